"""Every mistake is one line and exit code 2, says what is wrong and what there is, and changes nothing."""

import fcntl
import os
import resource
import shutil
import sys
import tempfile
from contextlib import chdir, contextmanager
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import SMALL, TINY, checked_line, journals, snapshot

from stratafl.algorithms import ALGORITHMS
from stratafl.config.migrations import FORMAT

METHODS = f"one of: {', '.join(sorted(ALGORITHMS))}"


# --- names


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--algorithm", "fedpr"], ("unknown algorithm.name 'fedpr'; did you mean 'fedper'?", METHODS)),
        (["--model", "mpl"], ("model.name", "'mpl'", "'mlp'", "cnn, ")),
        (["--data", "digit"], ("data.name", "'digit'", "'digits'", "FILE.npz")),
        (["--set", "trian.lr=1"], ("'trian'", "'train'", "evaluate, stop")),
        (["--set", "train.learning_rate=1"], ("[train]", "'learning_rate'", "lr, epochs")),
        (["--set", "train.epoch=1"], ("'epoch'", "'epochs'")),
        (["--set", "algorithm.personal=fc9"], ("'fc9'", "'fc'", "fc1, fc, all")),
        (["--set", "algorithm.personl=head"], ("'personl'", "'personal'")),
        (["--set", "model.hiden=[8]"], ("'hiden'", "'hidden'", "norm")),
        (["--set", "data.partition=idd"], ("data.partition", "'idd'", "'iid'", "pfllib")),
        (["--engine", "lop"], ("run.engine", "'lop'", "'loop'", "stacked")),
        (["--metric", "AUROC"], ("evaluate.metric", "'AUROC'", "'auroc'", "@0.95, module:function")),
        (["--metric", "f1"], ("evaluate.metric", "'f1'", "'macro_f1'")),
        (["--set", "model.head=fc7"], ("'fc7'", "'fc'", "fc1, fc")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_unknown_name_is_answered_with_the_nearest_and_with_all(refused, arguments, says):
    refused("run", *arguments, says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fit"], ("'fit'", "run: strata --help")),
        (["data", "showw"], ("'showw'", "'show'", "run: strata data --help")),
        (["advise", "--data", "my.csv"], ("--data", "run: strata advise --help")),
        (["check", "mine.py"], ("'mine.py'", "mine:")),
        (["run", "fedper"], ("(fedper)", "run: strata run --help")),
        (["run", "--lr", "0.1"], ("'--lr'", "--set train.lr=")),
        (["advise", "--label", "died"], ("'--label'", "--set data.label=")),
        (["run", "--set", "lr=0.1"], ("'lr=0.1'", "'train.lr=0.1'")),
        (["predict", "none", "--client", "a", "--data", "x.csv"], ("no folder 'none'", "run directory")),
    ],
    ids=["command", "subcommand", "option", "file", "argument", "setting", "table setting", "key", "folder"],
)
def test_an_unknown_command_or_option_names_the_help_and_suggests_once(refused, arguments, says):
    assert refused(*arguments, says=says).count("Did you mean") <= 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--metric", "auroc", "--set", "evaluate.metric=mae"],
            ("--metric auroc", "--set", "evaluate.metric=mae"),
        ),
        (["--guard", "--set", "evaluate.guard=false"], ("--guard", "--set", "evaluate.guard=false")),
        (["--seed", "3", "--set", "run.seed=4"], ("--seed 3", "--set", "run.seed=4")),
    ],
    ids=["metric", "guard", "seed"],
)
def test_an_option_that_contradicts_a_setting_is_refused(refused, arguments, says):
    refused("run", *arguments, says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--nosuch"], "--nosuch"),
        (["run", "--round", "3"], "--rounds"),
        (["rum"], "'rum'"),
        (["run", "fedper"], "fedper"),
        (["run", "--rounds", "many"], ("--rounds", "integer")),
        (["run", "--out"], "'--out'"),
        (["resume"], "'DIR'"),
        (["report"], "'DIR...'"),
        (["report", ".", "--target", "high"], "--target"),
        (["check"], "'NAME'"),
        (["compare", "--jobs", "0"], "--jobs"),
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
        ("train.lr=-0.1", ("train.lr", "0", "-0.1")),
        ("train.lr=nan", "train.lr"),
        ("train.lr=inf", "train.lr"),
        ("train.lr=fast", ("train.lr", "'fast'")),
        ("train.weight_decay=inf", "train.weight_decay"),
        ("train.epochs=1.5", ("train.epochs", "1.5")),
        ("train.drop_last=1", ("train.drop_last", "1")),
        ("run.rounds=0", ("run.rounds", "1", "0")),
        ("run.seed=-1", ("run.seed", "0", "-1")),
        ("run.participation=1.5", ("run.participation", "1", "1.5")),
        ("data.clients=0", ("data.clients", "1", "0")),
        ("data.clients=-3", ("data.clients", "1", "-3")),
        ("algorithm.finetune=x", ("algorithm.finetune", "'x'")),
        ("algorithm.finetune=-1", ("algorithm.finetune", "0", "-1")),
        ("algorithm.initial=mine", ("algorithm.initial", "'mine'", "common, own")),
        ("algorithm.personal=3", ("algorithm.personal", "3")),
        ("algorithm.personal=last:9", ("'last:9'", "9", "2: fc1, fc")),
        ("model.hidden=5", ("(200,)", "5")),
        ("model.hidden=[0]", "hidden[0], got 0"),
        ("model.weights=none.safetensors", "none.safetensors"),
        ("run.memory_limit=10", "10B"),
        (
            "run.memory_limit=8XB",
            ("run.memory_limit", "8GB", "500MB", "1.5GiB", "'8XB'"),
        ),
        ("run.memory_limit=0", ("run.memory_limit", "8GB")),
        ("run.memory_limit=-1GB", ("run.memory_limit", "8GB")),
        ("run.store=tape", ("run.store", "'tape'", "auto, device, disk, ram")),
    ],
)
def test_a_value_out_of_its_range(refused, given, says):
    refused("run", "--set", given, says=says)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta", ""])
def test_a_device_that_is_not_there(refused, device):
    refused("run", "--device", device, says=(f"'{device}'", "one of: auto, cpu"))


def test_stopping_early_needs_validation(refused):
    refused("run", "--set", "stop.target=0.9", "--set", "data.validation=0", says=("stop", "data.validation"))
    refused("run", "--set", "stop.patience=2", "--set", "data.validation=0", says=("stop", "data.validation"))


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
        (["data.clients=2000", "data.partition=iid"], ("1797", "2000")),
        (
            ["data.minimum=80"],
            ("0", "1000", "20", "80", "alpha 0.3", "data.clients", "data.minimum", "data.alpha"),
        ),
        (["data.minimum=90"], ("1797", "20", "90")),
        (["data.partition=classes", "data.per_client=11"], ("per_client=11", "only 10 classes")),
        (["data.validation=0.5", "data.test=0.5"], ("validation=0.5", "test=0.5")),
        (["data.clients=1797", "data.partition=iid"], ("0", "1")),
        (["train.batch=1000", "train.drop_last=true"], ("drop_last", "1000")),
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
        (arrays(x=spoilt(np.nan)), ("'mine'", "1", "7")),
        (arrays(x=spoilt(np.inf)), ("'mine'", "1", "7")),
        (
            arrays(x=spoilt(1e300, np.float64)),
            ("'mine'", "float32", "7"),
        ),
        (arrays(y=np.full(60, np.nan)), ("'mine'", "60")),
        (
            arrays(y=np.arange(50) % 3),
            ("(60, 4)", "(50,)"),
        ),
        (arrays(y=np.zeros((60, 2, 2))), ("'mine'", "(60, 2, 2)")),
        (arrays(y=np.zeros((60, 2), dtype=int)), ("'mine'", "(60, 2)")),
        (arrays(x=np.float32(3)), "()"),
        (arrays(y=np.zeros(60, "datetime64[D]")), ("mine.npz", "row 1")),
        (arrays(y=np.array([["cat"]] * 60)), "mine.npz"),
        (arrays(x=arrays()["x"].astype(complex)), ("'mine'", "complex128")),
        (arrays(x=arrays()["x"][:0], y=np.arange(0)), "(0, 4)"),
        (arrays(x=None, a=np.zeros(3)), ("'x'", "y, a")),
        (arrays(y=None), "'y'"),
        (arrays(x=None, y=None), "'x'"),
        (arrays(y=np.array([{}] * 60, dtype=object)), ("mine.npz", "Object")),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_arrays_that_cannot_be_used(refused, place, given, says):
    np.savez(place / "mine.npz", **given)
    refused("run", *SMALL, "--data", "mine.npz", says=says)


def test_clients_in_a_file_are_one_name_per_sample(refused, place):
    np.savez(place / "mine.npz", **arrays(client=np.arange(4)))
    arguments = ("--set", "data.clients=4", "--set", "data.partition=auto")
    refused("run", *arguments, "--data", "mine.npz", says=("(4,)", "60"))


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
    refused("run", *SMALL, "--data", "mine.npz", says="mine.npz")


def test_a_data_file_that_is_not_there(refused, place):
    refused("run", "--data", "mine.npz", says=("there is no data file", str(place / "mine.npz")))


# --- configuration files


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "'mine.toml'"),
        ("[train", ("'mine.toml'", "TOML")),
        ("[trian]\nlr = 1", ("'trian'", "'train'")),
        ("[train]\nlearning_rate = 1", "'learning_rate'"),
        ("train = 3", ("[train]", "3")),
        ("[train]\nlr = 'x'", ("train.lr", "'x'")),
        ("[algorithm]\nname = 3", ("algorithm.name", "3")),
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
        ("ThreeOutputs", ("ThreeOutputs", "(3,)", "10 logits")),
        ("WrongShape", ("WrongShape", "(1, 8, 8)", "RuntimeError")),
        ("ConstructorRaises", ("own_models:ConstructorRaises", "ValueError: 10 classes are")),
        ("ForwardRaises", ("ForwardRaises", "KeyError", "no such thing")),
        ("ForwardMistyped", ("ForwardMistyped", "AttributeError", "outt")),
        ("ForwardAsserts", ("ForwardAsserts", "AssertionError: wants three channels")),
        ("text", ("'own_models:text'", "nn.Module")),
        ("NUMBER", ("own_models:NUMBER", "int")),
        ("Recurent", ("own_models", "'Recurent'", "'Recurrent'")),
        ("", "package.module:name"),
    ],
)
def test_an_own_model_that_does_not_fit(refused, name, says):
    refused("run", *TINY, "--model", f"own_models:{name}", says=says)


def test_an_own_model_with_an_option_it_does_not_take(refused):
    arguments = ("--model", "own_models:Perceptron", "--set", "model.widht=3")
    refused("run", *TINY, *arguments, says=("'widht'", "'width'"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise RuntimeError('not today')", "RuntimeError: not today"),
        ("import nosuchpackage", "'nosuchpackage'"),
        ("class Net(", "SyntaxError"),
        ("", "'Net'"),
    ],
)
@pytest.mark.parametrize("kind", ["model", "algorithm"])
def test_an_own_file_that_cannot_be_imported(refused, place, monkeypatch, kind, text, says):
    (place / "broken_file.py").write_text(text, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "broken_file", raising=False)
    refused("run", f"--{kind}", "broken_file:Net", says=("broken_file", says))
    sys.modules.pop("broken_file", None)


def test_an_own_file_that_is_not_there(refused):
    refused("run", "--model", "nowhere.to_be_found:Net", says=("nowhere.to_be_found:Net", "'nowhere'"))
    refused("run", "--algorithm", "nowhere:method", says=("nowhere:method", "'nowhere'"))


def test_an_algorithm_that_is_none(refused):
    refused("run", "--algorithm", "own_models:text", says="own_models:text")
    refused("check", "own_models:words", says="'own_models:words'")
    refused("check", "own_models:NUMBER", says=("own_models:NUMBER", "int"))


def test_check_of_an_unknown_method(refused):
    refused("check", "nosuch", says=("unknown algorithm.name 'nosuch'", METHODS))
    refused("check", "fedpr", says="'fedper'")
    refused("check", "fedper", "--set", "personl=head", says="'personal'")


# --- directories


@pytest.mark.parametrize("what", ["run", "compare"])
def test_a_run_is_not_written_over(refused, finished, what):
    refused(what, *SMALL, "--out", finished, says=("'done'", "strata resume done", "--out"))


@pytest.mark.parametrize("what", ["run", "compare"])
def test_a_comparison_is_not_written_over(refused, both, what):
    refused(what, *SMALL, "--out", both, says=("'both'", "--out"))


@pytest.mark.parametrize("what", ["run", "compare"])
def test_nothing_that_exists_is_written_over(refused, place, what):
    (place / "full").mkdir()
    (place / "full" / "notes.txt").write_text("mine", encoding="utf-8")
    (place / "file").write_text("mine", encoding="utf-8")
    refused(what, *SMALL, "--out", "full", says=("'full'", "--out"))
    refused(what, *SMALL, "--out", "file", says=("'file'", "--out"))


def test_a_directory_below_a_file_cannot_be(refused, place):
    (place / "file").write_text("mine", encoding="utf-8")
    refused("run", *SMALL, "--out", "file/below", says="'file/below'")
    arguments = ("--algorithms", "local", "--seeds", "1", "--out", "file/below")
    refused("compare", *SMALL, *arguments, says="'file/below'")


@pytest.fixture
def read_only(finished):
    """A folder that may be looked at only, with a run in it, where root gives up its rights for a while."""
    folder = Path(tempfile.mkdtemp(prefix="strata-read-only-"))
    shutil.copytree(finished, folder / "done")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    owner = os.geteuid()
    with chdir(folder):
        if owner == 0:
            os.seteuid(65534)
        yield folder
        os.seteuid(owner)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_folder_is_said_and_left_alone(strata, finished, read_only):
    before = snapshot(read_only)
    for path, arguments in {
        "runs": ("run", *SMALL, "--rounds", 1),
        "new": ("compare", *SMALL, "--rounds", 1, "--algorithms", "local", "--seeds", 1, "--out", "new"),
        "table.csv": ("report", "done", "--csv", "table.csv"),
        "done": ("resume", "done"),
    }.items():
        line = checked_line(strata(*arguments))
        assert path in line
        assert "Permission denied" in line
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
    assert file in line
    assert snapshot(place) == {}


@pytest.mark.parametrize(
    ("size", "file", "settings"),
    [
        (3600, "rounds.jsonl", ("evaluate.clients=1", "run.checkpoint=9", "model.hidden=[8]")),
        *(
            pytest.param(*limits, marks=pytest.mark.slow)
            for limits in (
                (4000, "clients.jsonl", ("run.checkpoint=9", "model.hidden=[8]")),
                (15000, "checkpoint", ("run.checkpoint=1", "model.hidden=[64]")),
                (15000, "checkpoint", ("run.checkpoint=2", "model.hidden=[64]")),
            )
        ),
    ],
)
@pytest.mark.budget(1.5, "a run, one that is torn, and its end")
def test_a_run_whose_disk_was_full_goes_on_when_there_is_room(strata, place, size, file, settings):
    arguments = ("run", *TINY, "--rounds", 3, *(part for setting in settings for part in ("--set", setting)))
    assert strata(*arguments, "--out", "whole").code == 0
    with files_of_at_most(size):
        result = strata(*arguments, "--out", "torn")
    line = checked_line(result)
    assert f"torn/{file}" in line
    assert result.out == ""
    assert strata("resume", "torn").code == 0
    assert journals(place / "torn") == journals(place / "whole")


# --- resume


def test_resume_of_what_is_no_run(refused, place):
    (place / "full").mkdir()
    (place / "full" / "notes.txt").write_text("mine", encoding="utf-8")
    (place / "file").write_text("mine", encoding="utf-8")
    refused("resume", "nosuch", says="'nosuch'")
    refused("resume", "full", says="'full'")
    refused("resume", "file", says="'file'")


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("lr = 0.1", "lr = 0.2", ("'done/config.toml'", "train.lr", "0.1", "0.2")),
        ("rounds = 2\n", "rounds = 9\n", ("run.rounds", "2", "9")),
        ("[stop]", "[stop]\ntarget = 0.5", ("stop.target", "0.5")),
        ('name = "fedper"', 'name = "fedavg"', ("algorithm.name", "'fedper'", "'fedavg'")),
        ("lr = 0.1", "learning = 0.1", "'learning'"),
        ("[train]", "[train", ("'done/config.toml'", "TOML")),
    ],
)
def test_a_run_with_a_changed_configuration_is_not_resumed(refused, finished, old, new, says):
    edit(finished / "config.toml", old, new)
    refused("resume", finished, says=says)


def test_a_run_of_a_newer_format_is_left_alone(refused, finished):
    edit(finished / "environment.json", f'"format": {FORMAT}', f'"format": {FORMAT + 1}')
    refused("resume", finished, says=(str(FORMAT + 1), str(FORMAT)))
    refused("report", finished, says=(str(FORMAT + 1), str(FORMAT)))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1', '{"format": "new"}'])
def test_a_damaged_environment_is_said(refused, finished, text):
    (finished / "environment.json").write_text(text, encoding="utf-8")
    refused("resume", finished, says="done")


def test_a_run_that_somebody_is_at_work_in_is_left_alone(refused, finished):
    handle = os.open(finished, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    refused("resume", finished, says="'done'")
    os.close(handle)


def test_a_run_whose_data_changed_is_not_resumed(strata, refused, place):
    np.savez(place / "mine.npz", **arrays())
    assert strata("run", *SMALL, "--data", "mine.npz", "--rounds", 1, "--out", "done").code == 0
    np.savez(place / "mine.npz", **arrays(x=arrays()["x"] + 1))
    refused("resume", "done", says="'done'")
    (place / "mine.npz").unlink()
    refused("resume", "done", says="mine.npz")


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
    assert "'done'" in result.err.splitlines()[-1]
    sys.modules.pop("changing_net")


def test_journals_that_were_cut_are_not_continued(refused, finished):
    (finished / "rounds.jsonl").write_text("", encoding="utf-8")
    refused("resume", finished, says="'done/rounds.jsonl'")


# --- report


def test_report_of_what_holds_no_run(refused, place):
    (place / "empty").mkdir()
    refused("report", "empty", says="'empty'")
    refused("report", "nosuch", says="'nosuch'")


@pytest.mark.parametrize("option", ["--csv", "--svg"])
def test_a_report_writes_over_nothing(refused, finished, option):
    Path("table").write_text("mine", encoding="utf-8")
    refused("report", finished, option, "table", says="'table'")
    refused("report", finished, option, finished, says="'done' exists")


def test_a_report_into_a_folder_that_is_not_there(refused, finished):
    for option in ("--csv", "--svg", "-o"):
        refused("report", finished, option, "nowhere/file", says=("'nowhere/file'", "'nowhere'"))
    refused("data", "show", "-o", "nowhere/held.svg", says="'nowhere'")


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
        (["--algorithms", "fedavg,local,fedavg"], "'fedavg,local,fedavg'"),
        (["--algorithms", ""], ()),
        (["--algorithms", "local", "--seeds", "0"], ("1", "10,000", "0")),
        (["--algorithms", "local", "--seeds", "-1"], ("1", "10,000", "-1")),
        (["--algorithms", "local,fedper", "--set", "fedper.personl=all"], ("'personl'", "'personal'")),
        (["--algorithms", "local,fedper", "--set", "fedper.personal=fc9"], ("'fc9'", "'fc'")),
        (["--algorithms", "local", "--set", "fedper.personal=all"], ("fedper", "local")),
        (["--algorithms", "local", "--set", "train.lr=-1"], ("train.lr", "0")),
        (["--algorithms", "local,nowhere:method"], "'nowhere'"),
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
        (f"format = {FORMAT}", f"format = {FORMAT + 1}", f"format {FORMAT + 1}"),
        (f"format = {FORMAT}\n", "", "both/compare.toml"),
        ("[compare]", "[compare", ("'both/compare.toml'", "TOML")),
        ("methods =", "method =", "'both/compare.toml'"),
        ("[compare.settings.local]", "[compare.setting.local]", "both/compare.toml"),
        ('"fedavg",', '"fedav",', "fedav"),
        (METHOD_LIST, 'methods = "local"', "both/compare.toml"),
        (METHOD_LIST, "methods = [1, 2]", "both/compare.toml"),
        (SEEDS, "seeds = 3", "'both/compare.toml'"),
        (SEEDS, 'seeds = ["a"]', "both/compare.toml"),
        (SEEDS, "seeds = [0.5]", "both/compare.toml"),
        (SEEDS, "seeds = [-1]", "-1"),
        ("[compare.settings.fedavg]", "[compare.settings]\nfedavg = 3", "both/compare.toml"),
        ("lr = 0.1", "lr = -1", ("train.lr", "0")),
    ],
)
def test_a_damaged_comparison_is_said(refused, both, old, new, says):
    edit(both / "compare.toml", old, new)
    refused("resume", both, says=says)


def test_a_comparison_with_a_changed_configuration_is_not_resumed(refused, both):
    edit(both / "compare.toml", "lr = 0.1", "lr = 0.2")
    refused("resume", both, says=("train.lr", "0.1", "0.2"))


@pytest.mark.parametrize("text", ["", "compare = 3\n", "[compare]\n", "\x00"])
def test_a_comparison_whose_file_was_overwritten_is_said(refused, both, text):
    (both / "compare.toml").write_text(text, encoding="utf-8")
    refused("resume", both, says="both")


# --- the program


@pytest.mark.budget(4, "a process that imports torch, to know the settings")
def test_the_program_ends_with_the_same_line_and_code(program, place):
    result = program("run", "--nosuch")
    assert "--nosuch" in checked_line(result)
    assert result.out == ""
    assert snapshot(place) == {}
