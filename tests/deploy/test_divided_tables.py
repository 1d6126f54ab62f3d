"""Tables in a rehearsal: every site gets raw samples, and standardises them as the simulation of the file does."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hospitals import patients, write_patients
from stratafl.config.assemble import federation_of
from stratafl.config.deployment import site_federation_of
from stratafl.config.experiment import with_values
from stratafl.data.sample_format import SampleFormat
from stratafl.deploy.local_federation import divided, rehearsed
from stratafl.errors import DeployError


def table_tables(tmp_path, **data):
    """The tables of a federation of a csv with the columns `x`, `z` and a label with fractions."""
    lines = [f"{i},{i * 7 % 5},{i / 3}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["x,z,amount", *lines]))
    data = {"name": str(tmp_path / "t.csv"), "label": "amount", "partition": "iid", **data}
    return {"algorithm": {"name": "fedper"}, "data": data}


def test_scaled_targets_are_refused_with_a_value_that_is_not(tmp_path):
    with pytest.raises(DeployError, match=r"data.targets = 'numbers'"):
        rehearsed(table_tables(tmp_path, targets="scaled"), 2)
    rehearsed(table_tables(tmp_path, targets="numbers"), 2)


def test_sites_get_samples_as_they_are_and_standardise_them_as_a_simulation_does(tmp_path):
    file = rehearsed(table_tables(tmp_path), 2)
    simulated = federation_of(with_values(file.experiment, {"data.clients": 2}))
    for client, place in enumerate(divided(file, tmp_path).values()):
        raw = np.load(place)
        assert sorted(raw) == ["amount", "x"]
        assert raw["x"].max() > 50
        agreed = replace(SampleFormat.of(simulated), columns=())  # arrays have no names
        site = site_federation_of(file.experiment, agreed, str(place), client)
        assert agreed.own_columns
        assert site.preprocessing.of(0).columns.mean == pytest.approx((29.5, 2.0), abs=9)
        seen = site.x[site.split("train").indices].double()
        assert torch.allclose(seen.mean(0), torch.zeros(2).double(), atol=1e-6)


def test_data_that_names_more_clients_than_there_are_sites_gives_the_first_ones(tmp_path):
    place = write_patients(tmp_path / "h.csv", patients(hospitals=4, smallest=30, largest=40))
    data = {"name": str(place), "label": "died", "client": "hospital"}
    sites = divided(rehearsed({"data": data}, 3), tmp_path)
    assert [np.load(path)["hospital"][0] for path in sites.values()] == ["Arles", "Bath", "Celje"]
    with pytest.raises(DeployError, match=r"4 clients.*--local 1 to 4"):
        divided(rehearsed({"data": data}, 5), tmp_path / "more")
