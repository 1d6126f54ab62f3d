"""Choices and predictions of clients are not believed: a file that was changed is one line, and is written again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from guarded_runs import finish, finished
from safetensors.torch import load_file, save
from torch import Tensor

from stratafl.config.experiment import from_tables
from stratafl.errors import DamagedError
from stratafl.runs import Run
from stratafl.runs.guard_files import read_guard
from stratafl.runs.prediction_file import PREDICTIONS, _digest, read_predictions

TABLES = {"run": {"rounds": 2}, "data": {"clients": 3, "validation": 0.2}, "evaluate": {"guard": True}}
TABLES |= {"train": {"batch": 400}, "model": {"name": "mlp", "hidden": [8]}, "algorithm": {"name": "fedavg"}}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(from_tables(TABLES), tmp_path_factory.mktemp("guarded") / "run")


@pytest.fixture
def copied(done: Path, tmp_path: Path) -> Path:
    return shutil.copytree(done, tmp_path / "run")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (("clients", 0, "gains"), [1], r"gains is \[1\], not a table"),
        (("clients", 0, "gains", "received"), "x", "x is not a table"),
        (("clients", 0, "gains", "received"), {}, "mean is missing"),
        (("clients", 0, "gains", "received", "mean"), "x", "mean is x, not a number or nothing"),
        (("clients", 0), 1, "1 is not a table"),
        (("clients",), [], "each client"),
        (("clients",), "x", "clients is x, not a list"),
        (("clients", 0, "client"), 1, "each client"),
        (("clients", 0, "client"), 10**15, "the run has no client 1000000000000000"),
        (("clients", 0, "client"), -1, "client -1 with .* cannot take"),
        (("clients", 0, "choice"), "x", "cannot take 'x'"),
        (("clients", 0, "validation_samples"), 1.5, r"validation_samples is 1\.5, not a whole number"),
        (("round",), 99, "the run has no round 99"),
        (("round",), "1", "round is 1, not a whole number"),
        (("epochs",), -1, "at least 0"),
    ],
)
def test_damaged_choices_are_one_line(copied: Path, key: tuple[Any, ...], value: object, says: str) -> None:
    path = copied / "guard" / "guard.json"
    table = whole = json.loads(path.read_text())
    for each in key[:-1]:
        table = table[each]
    table[key[-1]] = value
    path.write_text(json.dumps(whole))
    with pytest.raises(DamagedError, match=rf"guard\.json' is damaged: .*{says}") as error:
        read_guard(copied)
    assert "\n" not in str(error.value)
    with Run.open(copied) as run:
        assert run.unguarded


@pytest.mark.parametrize("name", [PREDICTIONS, "guard.json", "models.safetensors"])
def test_a_file_of_the_guard_that_was_removed_is_written_again(done: Path, copied: Path, name: str) -> None:
    (copied / "guard" / name).unlink()
    finish(Run.open(copied))
    assert (copied / "guard" / name).read_bytes() == (done / "guard" / name).read_bytes()


def few(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: x[:9] for key, x in found.items()}


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        ("client", lambda x: x[:, None], r"clients are whole numbers \[n\]"),
        ("client", lambda x: x[0], "0-d tensor"),
        ("client", lambda x: x.float(), "clients are whole numbers"),
        ("client", lambda x: x + 100, "the run has no client 100"),
        ("client", lambda x: x + 2**40, "the run has no client"),
        ("client", lambda x: x - 1, "the run has no client -1"),
        ("client", lambda x: x * 0, r"client 0 has \d+ test samples, not \d+"),
        ("client", lambda x: x[:9], "predictions need clients"),
        ("y", lambda x: x - 5, "labels are from 0 to 9"),
        ("y", lambda x: x + 5, "labels are from 0 to 9"),
        ("y", lambda x: x.float(), r"finite and scores are \[n, 1\]"),
        ("y", lambda x: x > 3, "targets are whole numbers"),
        ("y", lambda x: x.to(torch.uint8), "targets are whole numbers"),
        ("y", lambda x: x[:, None], r"targets are \[n\]"),
        ("scores", lambda x: x[:, :0], "there are scores"),
        ("scores", lambda x: x[:, :1], "labels are from 0 to 0"),
        ("scores", lambda x: x[:, 0], "predictions need clients"),
        ("scores", lambda x: x * 1000, "probabilities, which sum to 1"),
        ("scores", lambda x: -x, "probabilities, which sum to 1"),
        ("scores", lambda x: x / 0, "probabilities, which sum to 1"),
        ("scores", lambda x: x > 0.5, "scores are float32"),
        ("scores", lambda x: x.to(torch.float8_e4m3fn), "scores are float32"),
        ("", few, r"client 0 has \d+ test samples, not 9"),
        ("", lambda found: {"client": found["client"]}, "'test.y' is missing"),
    ],
)
def test_forged_predictions_are_one_line(copied: Path, part: str, change: Any, says: str) -> None:
    found = {key.removeprefix("test."): x for key, x in load_file(copied / PREDICTIONS).items() if "test." in key}
    found = {**found, part: change(found[part])} if part else change(found)
    tensors = {f"test.{key}": x.contiguous() for key, x in found.items()}
    about = {"round": 2, "stage": "deployed", "sha256": _digest(tensors)}
    (copied / PREDICTIONS).write_bytes(save(tensors, {"stratafl": json.dumps(about)}))
    with pytest.raises(DamagedError, match=rf"{PREDICTIONS}'.*: .*{says}.*'strata resume'") as error:
        read_predictions(copied)
    assert "\n" not in str(error.value)


def test_models_that_diverged_have_predictions(copied: Path) -> None:
    tensors = load_file(copied / PREDICTIONS)
    tensors["test.scores"] *= float("nan")
    about = {"round": 2, "stage": "deployed", "sha256": _digest(tensors)}
    (copied / PREDICTIONS).write_bytes(save(tensors, {"stratafl": json.dumps(about)}))
    assert read_predictions(copied) is not None
