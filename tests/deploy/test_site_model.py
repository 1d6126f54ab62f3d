"""The model that a site ends with: the simulation's, from the site's own disk, and nothing is changed there."""

import csv
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch

from hosted import SITES, Local, with_all_samples, with_tables, write_file, write_samples
from stratafl.api import Fitted
from stratafl.cli import main as strata
from stratafl.config.assemble import simulation_of
from stratafl.deploy.courier import Delivered
from stratafl.deploy.hosting import Hosting
from stratafl.deploy.member import STATE, SiteMember
from stratafl.deploy.site_model import final_model, member_in, predicted
from stratafl.deploy.stored_model import MODEL, read_model
from stratafl.errors import DamagedError, DataError, DeployError, RunError, WireError
from stratafl.execute import Matrix
from stratafl.execute.exchange import read_site, site_folder
from stratafl.execute.exchange.site_store import CURRENT, DELIVERED
from stratafl.execute.exchange.state_file import read_state, write_state
from stratafl.files import private_folder

pytestmark = pytest.mark.budget(1.0, "the first test makes the federation that all read")


class Slow(Local):
    """A courier to sites that take ten seconds for every answer."""

    def carry(self, kind, messages, seconds):
        if seconds < 10:
            return Delivered({}, dict.fromkeys(messages, f"no answer within {seconds:.0f} s"))
        return super().carry(kind, messages, seconds)


def hosted(folder: Path, **tables):
    """A federation that is finished, with what `strata join` writes at each site."""
    file = with_tables(**tables)
    write_samples(folder)
    sites = {name: folder / name for name in (*SITES, *file.deploy.predict)}
    for place in (folder / "host", *sites.values()):
        write_file(place, file)
    for place in sites.values():
        write_node(place)
    for name in file.deploy.predict:
        (folder / f"{name}.csv").write_text((folder / "a.csv").read_text())
    Hosting(folder / "host", Slow(folder, sites)).run()
    return file


def write_node(place: Path) -> None:
    told = {"site": place.name, "data": str(place.with_suffix(".csv"))}
    (place / "node.toml").write_text(tomli_w.dumps(told))


def fitted(folder: Path, file) -> Fitted:
    sim = simulation_of(with_all_samples(folder, file))
    return Fitted(sim, sim.run(Matrix()), [])


def new_table(folder: Path) -> tuple[Path, torch.Tensor]:
    """New samples without labels, in another order of columns, with a column that the model does not know."""
    x = torch.tensor(np.random.default_rng(5).integers(0, 16, (7, 8)) / 1.0, dtype=torch.float32)
    path = folder / "new.csv"
    names = [f"p{n}" for n in range(8)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", *reversed(names)])
        writer.writerows([f"nobody {row}", *reversed(values)] for row, values in enumerate(x.tolist()))
    return path, x


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosted")
    return folder, hosted(folder, run={"participation": 1.0, "rounds": 1})


@pytest.fixture
def copied(federation, tmp_path):
    """The same, to be damaged."""
    folder, file = federation
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for site in SITES:
        write_node(tmp_path / site)
    return tmp_path, file


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedper", "fedbabu", "flayer"])  # fedbabu tunes the head before deployment
def test_a_site_predicts_as_the_client_of_the_simulation_does(tmp_path, method):
    file = hosted(tmp_path, algorithm={"name": method}, run={"rounds": 3})
    theirs, (path, x) = fitted(tmp_path, file), new_table(tmp_path)
    for client, site in enumerate(SITES):
        found = predicted(member_in(tmp_path / site), path)
        assert torch.equal(found.values, torch.softmax(theirs.client(client).outputs(x).double(), -1).float())
        assert found.labels == [theirs.classes[place] for place in theirs.client(client).outputs(x).argmax(-1).tolist()]
    models = [torch.cat([p.flatten() for p in final_model(member_in(tmp_path / s)).parameters()]) for s in SITES]
    assert not any(torch.equal(models[0], other) for other in models[1:])


@pytest.mark.slow
def test_a_predicting_site_changes_nothing_even_while_its_folder_is_locked(federation):
    folder, file = federation
    before = snapshot(folder / "a")
    with private_folder(site_folder(folder / "a" / STATE, file.deploy.name, "a")):
        predicted(member_in(folder / "a"), new_table(folder)[0])
    assert snapshot(folder / "a") == before


@pytest.mark.slow
def test_a_site_that_only_predicts_gets_what_a_new_client_gets(tmp_path):
    options = {"algorithm": {"name": "fedavg"}, "run": {"rounds": 1}, "data": {"normalise": "none"}}
    file = hosted(tmp_path, deploy={"predict": ["later"]}, **options)
    path, x = new_table(tmp_path)
    found = predicted(member_in(tmp_path / "later"), path)
    theirs = fitted(tmp_path, file)
    assert torch.equal(
        found.values, torch.softmax(theirs.client(0).outputs(x).double(), -1).float()
    )  # FedAvg: one model


def test_what_is_written_reads_back(federation, tmp_path):
    folder, _ = federation
    found = predicted(member_in(folder / "b"), new_table(tmp_path)[0])
    found.write(tmp_path / "p.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text())))
    assert [row["prediction"] for row in rows] == found.labels
    assert [row["sample"] for row in rows] == [str(n) for n in range(1, 8)]
    numbers = torch.tensor([[float(row[f"probability_{name}"]) for name in found.classes] for row in rows])
    assert torch.equal(numbers, found.values)
    found.write(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as arrays:
        assert arrays["prediction"].tolist() == found.labels
        assert np.array_equal(arrays["probabilities"], found.values.numpy())
        assert tuple(arrays["classes"]) == found.classes
    for name in ("p.csv", "p.txt"):
        with pytest.raises(RunError, match=name):
            found.write(tmp_path / name)


def test_the_commands_predict_and_export(federation, tmp_path, capsys):
    folder, _ = federation
    path, _ = new_table(tmp_path)
    assert strata(["predict", str(folder / "c"), "--data", str(path)]) == 0
    assert capsys.readouterr().out == predicted(member_in(folder / "c"), path).csv()
    exported = ["export", str(folder / "c"), "-o", str(tmp_path / "c.safetensors")]
    assert strata(exported) == 0
    capsys.readouterr()
    assert strata(exported) == 2
    assert strata(["predict", str(tmp_path), "--data", str(path)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "c.safetensors'" in first
    assert f"'{tmp_path}'" in second


@pytest.mark.slow
def test_an_exported_onnx_model_predicts_as_the_site_does(federation, tmp_path):
    import onnxruntime

    folder, _ = federation
    path, x = new_table(tmp_path)
    assert strata(["export", str(folder / "c"), "-o", str(tmp_path / "c.onnx")]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "c.onnx")
    outputs = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    expected = predicted(member_in(folder / "c"), path).values
    assert np.allclose(torch.softmax(torch.tensor(outputs), -1), expected, atol=1e-5)


def test_before_the_commit_there_is_no_final_model(tmp_path):
    file = with_tables()
    write_samples(tmp_path)
    write_file(tmp_path / "a", file)
    with pytest.raises(DeployError, match="site 'a'"):
        predicted(SiteMember(tmp_path / "a", "a", str(tmp_path / "a.csv")), new_table(tmp_path)[0])


def test_a_lost_state_is_an_error_and_never_a_model_without_what_is_personal(copied):
    folder, file = copied
    place = site_folder(folder / "d" / STATE, file.deploy.name, "d")
    assert (place / DELIVERED).exists()
    (place / CURRENT).unlink()
    (folder / "d" / MODEL).unlink()
    with pytest.raises(DamagedError, match="'d'"):
        final_model(member_in(folder / "d"))


def test_samples_that_were_changed_after_the_agreement_are_refused(copied):
    folder, _ = copied
    own = folder / "a.csv"
    (folder / "a" / MODEL).unlink()
    own.write_text("\n".join(own.read_text().splitlines()[:-3]) + "\n")
    with pytest.raises(WireError, match=r"\d+ training samples"):
        final_model(member_in(folder / "a"))


def test_a_site_predicts_when_its_training_samples_have_moved(copied):
    folder, _ = copied
    path, _ = new_table(folder)
    (folder / "b" / MODEL).rename(folder / "kept")
    computed = predicted(member_in(folder / "b"), path)  # from its state and its samples
    (folder / "kept").rename(folder / "b" / MODEL)
    (folder / "b.csv").rename(folder / "elsewhere.csv")
    assert torch.equal(predicted(member_in(folder / "b"), path).values, computed.values)


def test_a_model_of_an_earlier_end_or_a_damaged_one_is_not_used(copied):
    folder, file = copied
    stored, place = folder / "b" / MODEL, site_folder(folder / "b" / STATE, file.deploy.name, "b")
    mark, template = read_site(folder / "b" / STATE, "test", "b", {}).delivery_mark(), member_in(folder / "b")
    assert read_model(folder / "b", mark, template.model_template()) is not None
    assert read_model(folder / "b", "0" * 32, template.model_template()) is None
    stored.write_bytes(stored.read_bytes()[:-1] + b"x")
    assert read_model(folder / "b", mark, template.model_template()) is None
    record, tensors = read_state(place / DELIVERED, 1 << 20)
    write_state(place / DELIVERED, {**record, "round": 7}, tensors)
    assert read_site(folder / "b" / STATE, "test", "b", {}).delivery_mark() != mark


def test_samples_without_a_column_of_the_model_are_refused(federation, tmp_path):
    folder, _ = federation
    (tmp_path / "short.csv").write_text("p0,p1\n1,2\n")
    with pytest.raises(DataError, match=r"'p2'.*p0, p1"):
        predicted(member_in(folder / "a"), tmp_path / "short.csv")
