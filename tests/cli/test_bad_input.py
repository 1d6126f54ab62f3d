"""Every mistake is one line and exit code 2, says what is wrong and what there is, and changes nothing."""

import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import SMALL, TINY, Result, checked_line, command, journals, snapshot

from stratafl.algorithms import ALGORITHMS
from stratafl.cli import main

METHODS = f"one of: {', '.join(sorted(ALGORITHMS))}"


# --- names


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--algorithm", "fedpr"], ("unknown algorithm.name 'fedpr'; did you mean 'fedper'?", METHODS)),
        (["--model", "mpl"], ("unknown model.name 'mpl'; did you mean 'mlp'?", "cnn, ")),
        (["--data", "digit"], ("unknown data.name 'digit'; did you mean 'digits'?", "FILE.npz")),
        (["--set", "trian.lr=1"], ("unknown table 'trian'; did you mean 'train'?", "evaluate, stop")),
        (["--set", "train.learning_rate=1"], ("unknown key of [train] 'learning_rate'", "one of: lr, epochs")),
        (["--set", "train.epoch=1"], "unknown key of [train] 'epoch'; did you mean 'epochs'?"),
        (["--set", "algorithm.personal=fc9"], ("unknown layer 'fc9'; did you mean 'fc'?", "one of: fc1, fc, all")),
        (["--set", "algorithm.personl=head"], "unknown option of fedper 'personl'; did you mean 'personal'?"),
        (["--set", "model.hiden=[8]"], ("unknown option of model mlp 'hiden'; did you mean 'hidden'?", "norm")),
        (["--set", "data.partition=idd"], ("unknown data.partition 'idd'; did you mean 'iid'?", "pfllib")),
        (["--engine", "lop"], ("unknown run.engine 'lop'; did you mean 'loop'?", "stacked")),
        (["--metric", "AUROC"], ("unknown evaluate.metric 'AUROC'; did you mean 'auroc'?", "@0.95, module:function")),
        (["--metric", "f1"], "unknown evaluate.metric 'f1'; did you mean 'macro_f1'?"),
        (["--set", "model.head=fc7"], ("unknown head 'fc7'; did you mean 'fc'?", "one of: fc1, fc")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_unknown_name_is_answered_with_the_nearest_and_with_all(refused, arguments, says):
    refused("run", *arguments, says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--metric", "auroc", "--set", "evaluate.metric=mae"],
            "--metric auroc and --set evaluate.metric=mae",
        ),
        (["--guard", "--set", "evaluate.guard=false"], "--guard and --set evaluate.guard=false contradict each other"),
        (["--seed", "3", "--set", "run.seed=4"], "--seed 3 and --set run.seed=4 contradict each other: leave out one"),
    ],
    ids=["metric", "guard", "seed"],
)
def test_an_option_that_contradicts_a_setting_is_refused(refused, arguments, says):
    refused("run", *arguments, says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--nosuch"], ("No such option", "--nosuch")),
        (["run", "--round", "3"], ("No such option", "--rounds")),
        (["rum"], "No such command 'rum'"),
        (["run", "fedper"], "unexpected extra argument"),
        (["run", "--rounds", "many"], ("--rounds", "integer")),
        (["run", "--out"], "'--out' requires an argument"),
        (["resume"], "Missing argument 'DIR'"),
        (["report"], "Missing argument 'DIR...'"),
        (["report", ".", "--target", "high"], "--target"),
        (["check"], "Missing argument 'NAME'"),
        (["compare", "--jobs", "0"], "--jobs"),
        (["bench", "--models", "nosuch"], "unknown model of the bench 'nosuch'"),
        (["bench", "--methods", "fedavgg"], "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        (["bench", "--sweep", "cohorts"], "unknown sweep 'cohorts'; did you mean 'cohort'?"),
        (["bench", "--clients", "0"], "--clients must be at least 1, not 0"),
        (["bench", "--compile", "maybe"], "unknown compile 'maybe'"),
        (["bench", "--device", "cpu", "--precision", "tf32"], "precision 'tf32' needs a GPU"),
        (["bench", "--json", "nosuch/speed.json"], "there is no folder 'nosuch'"),
    ],
    ids=" ".join,
)
def test_a_command_line_that_cannot_be_read(refused, arguments, says):
    refused(*arguments, says=says)


@pytest.mark.parametrize("given", ["train.lr", "train=3", "lr=0.1", "=", "train.=1", ""])
def test_a_setting_is_table_key_and_value(refused, given):
    refused("run", "--set", given, says=("table.key=value", f"'{given}'"))


# --- values


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("train.lr=-0.1", "train.lr must be at least 0, not -0.1"),
        ("train.lr=nan", "train.lr"),
        ("train.lr=inf", "train.lr"),
        ("train.lr=fast", "train.lr must be a number, not 'fast'"),
        ("train.weight_decay=inf", "train.weight_decay"),
        ("train.epochs=1.5", "train.epochs must be a whole number, not 1.5"),
        ("train.drop_last=1", "train.drop_last must be true or false, not 1"),
        ("run.rounds=0", "run.rounds must be at least 1, not 0"),
        ("run.seed=-1", "run.seed must be at least 0, not -1"),
        ("run.participation=1.5", "run.participation must be at most 1, not 1.5"),
        ("data.clients=0", "data.clients must be at least 1, not 0"),
        ("data.clients=-3", "data.clients must be at least 1, not -3"),
        ("algorithm.finetune=x", "algorithm.finetune must be a whole number, not 'x'"),
        ("algorithm.finetune=-1", "algorithm.finetune must be at least 0, not -1"),
        ("algorithm.initial=mine", "unknown algorithm.initial 'mine'; choose one of: common, own"),
        ("algorithm.personal=3", "algorithm.personal must be a text, not 3"),
        ("algorithm.personal=last:9", ("'last:9' asks for 9 layers", "2: fc1, fc")),
        ("model.hidden=5", "hidden as a sequence of widths such as (200,), got 5"),
        ("model.hidden=[0]", "hidden[0], got 0"),
        ("model.weights=none.safetensors", ("there is no weights file", "none.safetensors")),
        ("run.memory_limit=10", ("data, model and libraries take", "the memory limit is 10B: raise it")),
        (
            "run.memory_limit=8XB",
            "run.memory_limit must be a size such as 8GB, 500MB, 1.5GiB or a number of bytes, not '8XB'",
        ),
        ("run.memory_limit=0", "run.memory_limit must be a size such as 8GB"),
        ("run.memory_limit=-1GB", "run.memory_limit must be a size such as 8GB"),
        ("run.store=tape", "unknown run.store 'tape'; choose one of: auto, device, disk, ram"),
    ],
)
def test_a_value_out_of_its_range(refused, given, says):
    refused("run", "--set", given, says=says)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta", ""])
def test_a_device_that_is_not_there(refused, device):
    refused("run", "--device", device, says=(f"'{device}'", "one of: auto, cpu"))


def test_stopping_early_needs_validation(refused):
    refused("run", "--set", "stop.target=0.9", "--set", "data.validation=0", says=("stop", "set data.validation"))
    refused("run", "--set", "stop.patience=2", "--set", "data.validation=0", says=("stop", "set data.validation"))


@pytest.mark.parametrize("new_clients", [4, 5])
def test_somebody_must_train(refused, new_clients):
    refused(
        "run",
        *SMALL,
        "--set",
        f"data.new_clients={new_clients}",
        says=f"{new_clients} of 4 clients cannot be new clients",
    )


# --- data


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["data.clients=2000", "data.partition=iid"], "1797 samples cannot be divided among 2000 clients"),
        (
            ["data.minimum=80"],
            (
                "0 of 1000 draws gave each of 20 clients at least 80",
                "alpha 0.1",
                "set data.clients or data.minimum lower, or data.alpha",
            ),
        ),
        (["data.minimum=90"], "1797 samples cannot give each of 20 clients at least 90"),
        (["data.partition=classes", "data.per_client=11"], ("per_client=11", "only 10 classes")),
        (["data.validation=0.5", "data.test=0.5"], ("validation=0.5 and test=0.5", "leave no share for training")),
        (["data.clients=1797", "data.partition=iid"], ("client 0 has 1 sample,", "none is left for training")),
        (["train.batch=1000", "train.drop_last=true"], ("drop_last with batches of 1000", "the largest client has")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_division_that_cannot_be(refused, settings, says):
    refused("run", *(part for setting in settings for part in ("--set", setting)), says=says)


def arrays(**changed):
    x = np.random.default_rng(0).random((60, 4), dtype=np.float32)
    given = {"x": x, "y": np.arange(60) % 3, **changed}
    return {name: array for name, array in given.items() if array is not None}


def spoilt(value, dtype=np.float32):
    x = arrays()["x"].astype(dtype)
    x[7, 2] = value
    return x


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (arrays(x=spoilt(np.nan)), ("x of 'mine' holds 1 NaN or infinite values", "first in sample 7")),
        (arrays(x=spoilt(np.inf)), ("x of 'mine' holds 1 NaN or infinite values", "first in sample 7")),
        (
            arrays(x=spoilt(1e300, np.float64)),
            ("x of 'mine' holds 1 NaN or infinite values as float32", "first in sample 7"),
        ),
        (arrays(y=np.full(60, np.nan)), "y of 'mine' holds 60 NaN or infinite values"),
        (
            arrays(y=np.arange(50) % 3),
            ("x has shape (60, 4) and y (50,)", "the first axis of both must count the samples"),
        ),
        (arrays(y=np.zeros((60, 2, 2))), ("y of 'mine' has shape (60, 2, 2)", "labels are [samples]")),
        (arrays(y=np.zeros((60, 2), dtype=int)), ("y of 'mine' has shape (60, 2)", "labels are [samples]")),
        (arrays(x=np.float32(3)), "x has shape ()"),
        (arrays(y=np.zeros(60, "datetime64[D]")), ("mine.npz' are neither numbers nor names", "row 1")),
        (arrays(y=np.array([["cat"]] * 60)), "mine.npz' are neither numbers nor names"),
        (arrays(x=arrays()["x"].astype(complex)), "x of 'mine' has dtype complex128"),
        (arrays(x=arrays()["x"][:0], y=np.arange(0)), "holds no samples: x has shape (0, 4)"),
        (arrays(x=None, a=np.zeros(3)), "has no array 'x', only: y, a"),
        (arrays(y=None), "has no array 'y', only: x"),
        (arrays(x=None, y=None), "has no array 'x', only: none"),
        (arrays(y=np.array([{}] * 60, dtype=object)), ("mine.npz' is not an npz file of plain arrays", "Object")),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_arrays_that_cannot_be_used(refused, place, given, says):
    np.savez(place / "mine.npz", **given)
    refused("run", *SMALL, "--data", "mine.npz", says=says)


def test_clients_in_a_file_are_one_name_per_sample(refused, place):
    np.savez(place / "mine.npz", **arrays(client=np.arange(4)))
    arguments = ("--set", "data.clients=4", "--set", "data.partition=auto")
    refused("run", *arguments, "--data", "mine.npz", says=("client has shape (4,)", "there are 60 samples"))


def write_text(path):
    path.write_text("x,y\n1,2\n", encoding="utf-8")


def write_nothing(path):
    path.touch()


def write_one_array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros((3, 4)))


def write_half(path):
    np.savez(path, **arrays())
    path.write_bytes(path.read_bytes()[:300])


def write_flipped(path):
    np.savez(path, **arrays())
    data = bytearray(path.read_bytes())
    data[200] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize("write", [write_text, write_nothing, write_one_array, write_half, write_flipped, Path.mkdir])
def test_a_file_that_is_no_npz(refused, place, write):
    write(place / "mine.npz")
    refused("run", *SMALL, "--data", "mine.npz", says="mine.npz' is not an npz file of plain arrays")


def test_a_data_file_that_is_not_there(refused, place):
    refused("run", "--data", "mine.npz", says=("there is no data file", str(place / "mine.npz")))


# --- configuration files


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, ("cannot read 'mine.toml'", "No such file")),
        ("[train", "'mine.toml' is not TOML"),
        ("[trian]\nlr = 1", "unknown table 'trian'; did you mean 'train'?"),
        ("[train]\nlearning_rate = 1", "unknown key of [train] 'learning_rate'"),
        ("train = 3", "[train] must be a table of keys, not 3"),
        ("[train]\nlr = 'x'", "train.lr must be a number, not 'x'"),
        ("[algorithm]\nname = 3", "algorithm.name must be a text, not 3"),
    ],
)
def test_a_configuration_that_cannot_be_read(refused, place, text, says):
    if text is not None:
        (place / "mine.toml").write_text(text, encoding="utf-8")
    refused("run", "--config", "mine.toml", says=says)


# --- a person's own code


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ThreeOutputs", ("ThreeOutputs gives outputs of shape (3,)", "10 classes")),
        ("WrongShape", ("WrongShape does not take samples of shape (1, 8, 8)", "RuntimeError")),
        ("ConstructorRaises", ("own_models:ConstructorRaises", "ValueError: 10 classes are")),
        ("ForwardRaises", ("ForwardRaises", "KeyError", "no such thing")),
        ("ForwardMistyped", ("ForwardMistyped", "AttributeError", "outt")),
        ("ForwardAsserts", ("ForwardAsserts", "AssertionError: wants three channels")),
        ("text", "'own_models:text' gives str, not an nn.Module"),
        ("NUMBER", ("own_models:NUMBER", "int")),
        ("Recurent", "unknown name in own_models 'Recurent'; did you mean 'Recurrent'?"),
        ("", "nor written package.module:name"),
    ],
)
def test_an_own_model_that_does_not_fit(refused, name, says):
    refused("run", *TINY, "--model", f"own_models:{name}", says=says)


def test_an_own_model_with_an_option_it_does_not_take(refused):
    arguments = ("--model", "own_models:Perceptron", "--set", "model.widht=3")
    refused("run", *TINY, *arguments, says="'widht'; did you mean 'width'?")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise RuntimeError('not today')", "cannot be imported: RuntimeError: not today"),
        ("import nosuchpackage", "there is no module 'nosuchpackage' here"),
        ("class Net(", "cannot be imported: SyntaxError"),
        ("", "unknown name in broken_file 'Net'; there is none"),
    ],
)
@pytest.mark.parametrize("kind", ["model", "algorithm"])
def test_an_own_file_that_cannot_be_imported(refused, place, monkeypatch, kind, text, says):
    (place / "broken_file.py").write_text(text, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "broken_file", raising=False)
    refused("run", f"--{kind}", "broken_file:Net", says=("broken_file", says))
    sys.modules.pop("broken_file", None)


def test_an_own_file_that_is_not_there(refused):
    refused("run", "--model", "nowhere.to_be_found:Net", says=("nowhere.to_be_found:Net", "no module 'nowhere'"))
    refused("run", "--algorithm", "nowhere:method", says=("nowhere:method", "no module 'nowhere'"))


def test_an_algorithm_that_is_none(refused):
    refused("run", "--algorithm", "own_models:text", says="own_models:text")
    refused("check", "own_models:words", says="'own_models:words' gives str, not an algorithm")
    refused("check", "own_models:NUMBER", says=("own_models:NUMBER", "int"))


def test_check_of_an_unknown_method(refused):
    refused("check", "nosuch", says=("unknown algorithm.name 'nosuch'", METHODS))
    refused("check", "fedpr", says="did you mean 'fedper'?")
    refused("check", "fedper", "--set", "personl=head", says="did you mean 'personal'?")


# --- directories


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A run and a comparison of one round."""
    folder = tmp_path_factory.mktemp("originals")
    compared = ["compare", *SMALL, "--algorithms", "local,fedavg", "--seeds", "1", "--rounds", "1"]
    with redirect_stdout(StringIO()):
        assert main(["run", *SMALL, "--rounds", "1", "--out", str(folder / "done")]) == 0
        assert main([*compared, "--out", str(folder / "both")]) == 0
    return folder


@pytest.fixture
def finished(originals, place) -> Path:
    """A run of one round."""
    shutil.copytree(originals / "done", place / "done")
    return Path("done")


@pytest.fixture
def compared(originals, place) -> Path:
    """A comparison of one round."""
    shutil.copytree(originals / "both", place / "both")
    return Path("both")


@pytest.mark.parametrize("what", ["run", "compare"])
def test_a_run_is_not_written_over(refused, finished, what):
    refused(what, *SMALL, "--out", finished, says=("'done' already holds a run", "strata resume done", "--out"))


@pytest.mark.parametrize("what", ["run", "compare"])
def test_a_comparison_is_not_written_over(refused, compared, what):
    refused(what, *SMALL, "--out", compared, says=("'both'", "choose another --out"))


@pytest.mark.parametrize("what", ["run", "compare"])
def test_nothing_that_exists_is_written_over(refused, place, what):
    (place / "full").mkdir()
    (place / "full" / "notes.txt").write_text("mine", encoding="utf-8")
    (place / "file").write_text("mine", encoding="utf-8")
    refused(what, *SMALL, "--out", "full", says=("'full' exists", "choose another --out"))
    refused(what, *SMALL, "--out", "file", says=("'file' exists", "choose another --out"))


def test_a_directory_below_a_file_cannot_be(refused, place):
    (place / "file").write_text("mine", encoding="utf-8")
    refused("run", *SMALL, "--out", "file/below", says="cannot create 'file/below': Not a directory")
    arguments = ("--algorithms", "local", "--seeds", "1", "--out", "file/below")
    refused("compare", *SMALL, *arguments, says="cannot create 'file/below': Not a directory")


UNPRIVILEGED = """
import json, os, sys
from stratafl.cli import main
warm_up, commands = json.loads(sys.argv[1])
for arguments in warm_up:  # everything is imported while root may read it
    assert main(arguments) == 0
if os.geteuid() == 0:
    os.seteuid(65534)
print("-", file=sys.stderr)
os.chdir(sys.argv[2])
for arguments in commands:
    print("code", main(arguments))
    print("-", file=sys.stderr)
"""


@pytest.fixture
def read_only(finished):
    """A folder that may be looked at only, with a run in it; also for root, who gives up the rest."""
    folder = Path(tempfile.mkdtemp(prefix="strata-read-only-"))
    shutil.copytree(finished, folder / "done")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_folder_is_said_and_left_alone(read_only):
    def commands(name):
        compared = ("--algorithms", "local", "--seeds", "1", "--out", name)
        return [
            ["run", *SMALL, "--rounds", "1"],
            ["compare", *SMALL, "--rounds", "1", *compared],
            ["report", "done", "--csv", "table.csv"],
            ["resume", "done"],
        ]

    before = snapshot(read_only)
    given = json.dumps([commands("warm"), commands("new")])
    script = [sys.executable, "-c", UNPRIVILEGED, given, str(read_only)]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    said = done.stderr.split("-\n")[1:-1]
    for text, path in zip(said, ("runs", "new", "table.csv", "done"), strict=True):
        assert "Permission denied" in checked_line(Result(2, "", text))
        assert path in text
    assert [line for line in done.stdout.splitlines() if line.startswith("code")] == ["code 2"] * 4
    assert snapshot(read_only) == before


@contextmanager
def files_of_at_most(size):
    """Writing more than this into a file fails, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("size", "file"), [(100, "config.toml"), (1500, "environment.json")])
def test_a_full_disk_at_the_start_leaves_nothing_behind(strata, place, size, file):
    with files_of_at_most(size):
        result = strata("run", *SMALL, "--out", "new")
    line = checked_line(result)
    assert "File too large" in line
    assert file in line
    assert snapshot(place) == {}


@pytest.mark.parametrize(
    ("size", "file", "settings"),
    [
        (2900, "rounds.jsonl", ("evaluate.clients=1", "run.checkpoint=9", "model.hidden=[8]")),
        (4000, "clients.jsonl", ("run.checkpoint=9", "model.hidden=[8]")),
        (15000, "checkpoint", ("run.checkpoint=1", "model.hidden=[64]")),
        (15000, "checkpoint", ("run.checkpoint=2", "model.hidden=[64]")),
    ],
)
def test_a_run_whose_disk_was_full_goes_on_when_there_is_room(strata, place, size, file, settings):
    arguments = ("run", *TINY, "--rounds", 3, *(part for setting in settings for part in ("--set", setting)))
    assert strata(*arguments, "--out", "whole").code == 0
    with files_of_at_most(size):
        result = strata(*arguments, "--out", "torn")
    line = checked_line(result)
    assert "File too large" in line
    assert f"torn/{file}" in line
    assert result.out == ""
    assert strata("resume", "torn").code == 0
    assert journals(place / "torn") == journals(place / "whole")


def test_a_full_disk_ends_the_program_with_one_line(strata, place):
    arguments = command("run", *SMALL, "--set", "run.checkpoint=1", "--rounds", 2, "--out", "torn")
    shell = ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash", *arguments]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert "File too large" in checked_line(Result(done.returncode, done.stdout, done.stderr))
    assert strata("resume", "torn").code == 0
    assert [line["round"] for line in journals(place / "torn")["rounds"]] == [1, 2]


# --- resume


def test_resume_of_what_is_no_run(refused, place):
    (place / "full").mkdir()
    (place / "full" / "notes.txt").write_text("mine", encoding="utf-8")
    (place / "file").write_text("mine", encoding="utf-8")
    refused("resume", "nosuch", says="there is no folder 'nosuch'")
    refused("resume", "full", says="'full' is not a run directory")
    refused("resume", "file", says="'file'")


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("lr = 0.05", "lr = 0.1", ("'done/config.toml' was changed: train.lr was 0.05 and is 0.1", "put it back")),
        ("rounds = 1\n", "rounds = 9\n", "run.rounds was 1 and is 9"),
        ("[stop]", "[stop]\ntarget = 0.5", "stop.target was None and is 0.5"),
        ('name = "fedper"', 'name = "fedavg"', "algorithm.name was 'fedper' and is 'fedavg'"),
        ("lr = 0.05", "learning = 0.05", "unknown key of [train] 'learning'"),
        ("[train]", "[train", "'done/config.toml' is not TOML"),
    ],
)
def test_a_run_with_a_changed_configuration_is_not_resumed(refused, finished, old, new, says):
    edit(finished / "config.toml", old, new)
    refused("resume", finished, says=says)


def test_a_run_of_a_newer_format_is_left_alone(refused, finished):
    edit(finished / "environment.json", '"format": 4', '"format": 5')
    refused(
        "resume", finished, says=("newer version of stratafl (format 5; this one reads up to 4)", "update stratafl")
    )
    refused(
        "report", finished, says=("newer version of stratafl (format 5; this one reads up to 4)", "update stratafl")
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1', '{"format": "new"}'])
def test_a_damaged_environment_is_said(refused, finished, text):
    (finished / "environment.json").write_text(text, encoding="utf-8")
    refused("resume", finished, says="done")


def test_a_run_that_somebody_is_at_work_in_is_left_alone(refused, finished):
    handle = os.open(finished, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    refused("resume", finished, says="another process is writing to 'done'")
    os.close(handle)


def test_a_run_whose_data_changed_is_not_resumed(strata, refused, place):
    np.savez(place / "mine.npz", **arrays())
    assert strata("run", *SMALL, "--data", "mine.npz", "--rounds", 1, "--out", "done").code == 0
    np.savez(place / "mine.npz", **arrays(x=arrays()["x"] + 1))
    refused("resume", "done", says="the data of 'done' is not what the run began with")
    (place / "mine.npz").unlink()
    refused("resume", "done", says="there is no data file")


OWN = """
from torch import nn
def net(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, {width}), nn.Linear({width}, classes))
"""


def test_a_run_whose_model_changed_is_not_resumed(strata, refused, place):
    (place / "changing_net.py").write_text(OWN.format(width=5), encoding="utf-8")
    assert strata("run", *TINY, "--model", "changing_net:net", "--rounds", 1, "--out", "done").code == 0
    (place / "changing_net.py").write_text(OWN.format(width=6), encoding="utf-8")
    sys.modules.pop("changing_net")
    result = strata("resume", "done", "--trust")
    assert result.code == 2
    assert "the model of 'done' is not what the run began with" in result.err.splitlines()[-1]
    sys.modules.pop("changing_net")


def test_journals_that_were_cut_are_not_continued(refused, finished):
    (finished / "rounds.jsonl").write_text("", encoding="utf-8")
    refused("resume", finished, says=("'done/rounds.jsonl' was cut", "were committed"))


# --- report


def test_report_of_what_holds_no_run(refused, place):
    (place / "empty").mkdir()
    refused("report", "empty", says="there is no run in 'empty'")
    refused("report", "nosuch", says="there is no folder 'nosuch'")


@pytest.mark.parametrize("option", ["--csv", "--svg"])
def test_a_report_writes_over_nothing(refused, finished, option):
    Path("table").write_text("mine", encoding="utf-8")
    refused("report", finished, option, "table", says="'table' exists: choose another name, or remove it")
    refused("report", finished, option, finished, says="'done' exists")


def test_a_report_into_a_folder_that_is_not_there(refused, finished):
    for option in ("--csv", "--svg", "-o"):
        refused(
            "report", finished, option, "nowhere/file", says="cannot write 'nowhere/file': there is no folder 'nowhere'"
        )
    refused("data", "show", "-o", "nowhere/held.svg", says="there is no folder 'nowhere'")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.toml", ""),
        ("config.toml", "[train"),
        ("config.toml", "run = 3"),
        ("environment.json", "{"),
        ("rounds.jsonl", ""),
        ("rounds.jsonl", "{}\n"),
        ("rounds.jsonl", "3\n"),
        ("rounds.jsonl", '{"round": 1, "test.dep\n'),
        ("rounds.jsonl", '{"test.deployed.accuracy": 1.0}\n'),
        ("rounds.jsonl", "\x00\x00\x00\n"),
    ],
)
def test_report_of_a_damaged_run(refused, finished, file, text):
    (finished / file).write_text(text, encoding="utf-8")
    refused("report", finished, says="done")


# --- compare


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--algorithms", "fedavg,fedpre"], ("unknown algorithm.name 'fedpre'; did you mean", METHODS)),
        (["--algorithms", "fedavg,local,fedavg"], ("each once", "'fedavg,local,fedavg'")),
        (["--algorithms", ""], "a comparison needs methods"),
        (["--algorithms", "local", "--seeds", "0"], "a comparison has from 1 to 10,000 seeds, not 0"),
        (["--algorithms", "local", "--seeds", "-1"], "a comparison has from 1 to 10,000 seeds, not -1"),
        (["--algorithms", "local,fedper", "--set", "fedper.personl=all"], "'personl'; did you mean 'personal'?"),
        (["--algorithms", "local,fedper", "--set", "fedper.personal=fc9"], "unknown layer 'fc9'; did you mean 'fc'?"),
        (["--algorithms", "local", "--set", "fedper.personal=all"], "option of fedper, which is not compared: local"),
        (["--algorithms", "local", "--set", "train.lr=-1"], "train.lr must be at least 0"),
        (["--algorithms", "local,nowhere:method"], "there is no module 'nowhere'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_comparison_that_cannot_be(refused, arguments, says):
    refused("compare", *SMALL, *arguments, "--out", "both", says=says)


def test_an_option_of_a_method_is_not_silently_dropped(refused):
    arguments = ("--algorithms", "fedprox,local", "--set", "algorithm.mu=0.5", "--rounds", 1, "--seeds", 1)
    refused("compare", *SMALL, *arguments, says="mu")


SEEDS = "seeds = [\n    0,\n]"
METHOD_LIST = 'methods = [\n    "local",\n    "fedavg",\n]'


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("format = 4", "format = 5", "format 5"),
        ("format = 4\n", "", "both/compare.toml"),
        ("[compare]", "[compare", "'both/compare.toml' is not TOML"),
        ("methods =", "method =", "'both/compare.toml' is damaged"),
        ("[compare.settings.local]", "[compare.setting.local]", "both/compare.toml"),
        ('"fedavg",', '"fedav",', "fedav"),
        (METHOD_LIST, 'methods = "local"', "both/compare.toml"),
        (METHOD_LIST, "methods = [1, 2]", "both/compare.toml"),
        (SEEDS, "seeds = 3", "'both/compare.toml' is damaged"),
        (SEEDS, 'seeds = ["a"]', "both/compare.toml"),
        (SEEDS, "seeds = [0.5]", "both/compare.toml"),
        (SEEDS, "seeds = [-1]", "-1"),
        ("[compare.settings.fedavg]", "[compare.settings]\nfedavg = 3", "both/compare.toml"),
        ("lr = 0.05", "lr = -1", "train.lr must be at least 0"),
    ],
)
def test_a_damaged_comparison_is_said(refused, compared, old, new, says):
    edit(compared / "compare.toml", old, new)
    refused("resume", compared, says=says)


def test_a_comparison_with_a_changed_configuration_is_not_resumed(refused, compared):
    edit(compared / "compare.toml", "lr = 0.05", "lr = 0.1")
    refused("resume", compared, says="train.lr was 0.05 and is 0.1")


@pytest.mark.parametrize("text", ["", "compare = 3\n", "[compare]\n", "\x00"])
def test_a_comparison_whose_file_was_overwritten_is_said(refused, compared, text):
    (compared / "compare.toml").write_text(text, encoding="utf-8")
    refused("resume", compared, says="both")


# --- the program


def test_the_program_ends_with_the_same_line_and_code(program, place):
    result = program("run", "--nosuch")
    line = checked_line(result)
    assert "No such option" in line
    assert "--nosuch" in line
    assert result.out == ""
    assert snapshot(place) == {}
