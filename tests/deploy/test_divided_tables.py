"""Tables in a rehearsal: every site gets raw samples, and standardises them as the simulation of the file does."""

import csv

import numpy as np
import pytest
import torch

from hospitals import patients, write_patients
from stratafl.config.assemble import federation_of
from stratafl.config.deployment import site_federation_of
from stratafl.config.experiment import with_values
from stratafl.config.setting_tables import reading_of
from stratafl.data.sample_format import SampleFormat
from stratafl.data.site_samples import new_samples
from stratafl.deploy.local_federation import divided, rehearsed
from stratafl.errors import DeployError


def table_tables(tmp_path, **data):
    """The tables of a federation of a csv with the columns `x`, `z` and a label with fractions."""
    lines = [f"{i},{i * 7 % 5},{i / 3}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["x,z,amount", *lines]))
    data = {"name": str(tmp_path / "t.csv"), "label": "amount", "partition": "iid", **data}
    return {"algorithm": {"name": "fedper"}, "data": data}


def columns_of(path):
    head, *rows = csv.reader(path.read_text().splitlines())
    return dict(zip(head, zip(*rows, strict=True), strict=True))


def test_scaled_targets_are_refused_with_a_value_that_is_not(tmp_path):
    with pytest.raises(DeployError, match=r"data.targets = 'numbers'"):
        rehearsed(table_tables(tmp_path, targets="scaled"), 2)
    rehearsed(table_tables(tmp_path, targets="numbers"), 2)


def test_sites_get_samples_as_they_are_and_standardise_them_as_a_simulation_does(tmp_path):
    file = rehearsed(table_tables(tmp_path), 2)
    two = with_values(file.experiment, {"data.clients": 2})
    simulated, unscaled = federation_of(two), federation_of(two, raw=True)
    for client, place in enumerate(divided(file, tmp_path).values()):
        raw = columns_of(place)
        assert list(raw) == ["x", "z", "amount"]
        values = np.array([raw["x"], raw["z"]]).astype(np.float32).T  # bit for bit, in any order
        held = torch.cat([split.of(client) for split in unscaled.splits.values()])
        assert sorted(values.tolist()) == sorted(unscaled.x[held].tolist())
        agreed = SampleFormat.of(simulated)
        site = site_federation_of(file.experiment, agreed, str(place), client)
        assert agreed.own_columns
        assert site.preprocessing.of(0).columns.mean == pytest.approx((29.5, 2.0), abs=9)
        seen = site.x[site.split("train").indices].double()
        assert torch.allclose(seen.mean(0), torch.zeros(2).double(), atol=1e-6)


def test_a_rehearsed_site_knows_the_names_of_columns_and_classes(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a!r},{b!r},{'yes' if a > 0 else 'no'}" for a, b in rng.normal(size=(60, 2)).tolist()]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,label", *rows]))
    file = rehearsed({"data": {"name": str(tmp_path / "t.csv"), "partition": "iid"}}, 2)
    for client, place in enumerate(divided(file, tmp_path).values()):
        assert set(columns_of(place)["label"]) == {"yes", "no"}
        agreed = SampleFormat.of(federation_of(with_values(file.experiment, {"data.clients": 2})))
        site = site_federation_of(file.experiment, agreed, str(place), client)
        assert (site.column_names, site.class_names) == (("a", "b"), ("no", "yes"))


def test_a_raw_table_is_divided_into_cells_that_read_as_the_same(tmp_path):
    rows = [
        f"{i % 7 or ''},{'xyz'[i % 3]},2024-01-{1 + i % 28:02d},{'ja' if i % 2 else 'nein'},{i % 2}" for i in range(60)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,day,c,label", *rows]))
    file = rehearsed({"data": {"name": str(tmp_path / "t.csv"), "partition": "iid"}}, 2)
    whole = [row for path in divided(file, tmp_path).values() for row in path.read_text().splitlines()[1:]]
    assert sorted(whole) == sorted(rows)


def test_arrays_stay_arrays(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.random.default_rng(0).normal(size=(40, 1, 4, 4)), y=np.arange(40) % 2)
    file = rehearsed({"data": {"name": str(tmp_path / "t.npz"), "partition": "iid"}}, 2)
    sites = divided(file, tmp_path)
    assert [sorted(np.load(path)) for path in sites.values()] == [["x", "y"]] * 2
    assert divided(file, tmp_path) == sites


def test_data_that_names_more_clients_than_there_are_sites_gives_the_first_ones(tmp_path):
    place = write_patients(tmp_path / "h.csv", patients(hospitals=4, smallest=30, largest=40))
    data = {"name": str(place), "label": "died", "client": "hospital"}
    sites = divided(rehearsed({"data": data}, 3), tmp_path)
    assert [columns_of(path)["hospital"][0] for path in sites.values()] == ["Arles", "Bath", "Celje"]
    assert divided(rehearsed({"data": data}, 3), tmp_path) == sites  # what is there is left
    with pytest.raises(DeployError, match=r"4 clients.*--local 1 to 4"):
        divided(rehearsed({"data": data}, 5), tmp_path / "more")


def test_rehearsed_sites_have_their_texts_and_the_tokens_of_the_simulation(tmp_path):
    words = ["fever", "cough", "pain", "acute", "stable", "healthy", "routine", "normal"]
    rows = [
        f"the patient was seen with {words[i % 8]} and {words[i % 5]},{'ab'[i % 2]},{'xy'[i % 2]}" for i in range(80)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["note,label,client", *rows]))
    file = rehearsed({"data": {"name": str(tmp_path / "t.csv")}}, 2)
    simulated = federation_of(file.experiment)
    agreed = SampleFormat.of(simulated)
    whole = [row for path in divided(file, tmp_path).values() for row in path.read_text().splitlines()[1:]]
    assert sorted(whole) == sorted(row.rpartition(",")[0] for row in rows)
    for client, place in enumerate(divided(file, tmp_path).values()):
        site = site_federation_of(file.experiment, agreed, str(place), client)
        ours = torch.cat([split.of(client) for split in simulated.splits.values()])
        assert sorted(site.x.tolist()) == sorted(simulated.x[ours].tolist())
        read = new_samples(place, reading_of(file.experiment.data, 0), agreed)
        assert read.x.shape[1:] == agreed.shape
