"""The files of a tuning are not believed: whatever was changed in them is refused in one line, and nothing hangs."""

import json
import shutil
import tomllib

import pytest
import tomli_w
from stored_runs import created, finished_tuning

from stratafl.errors import DamagedError, RecordError, UnknownNameError
from stratafl.report.tuned import read_tuning
from stratafl.tuning import Tuning, TuningPlan, advance
from stratafl.tuning.reuse import tuned_settings


@pytest.fixture
def tuning(tmp_path):
    return shutil.copytree(finished_tuning(), tmp_path / "tune")


def change(path, key, value):
    """Write a value of a nested table, whose key is a path of keys; None removes it."""
    toml = path.suffix == ".toml"
    tables = tomllib.loads(path.read_text()) if toml else json.loads(path.read_text())
    *outer, last = key
    table = tables
    for each in outer:
        table = table[each]
    if value is None and toml:
        del table[last]
    else:
        table[last] = value
    path.write_text(tomli_w.dumps(tables) if toml else json.dumps(tables))


@pytest.mark.budget(2, "the tuning that these tests share")
@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({"run.rounds": [1, 2]}, r"run\.rounds .*METHOD\.option"),
        ({"data.validation": [0.1, 0.2]}, r"data\.validation .*METHOD\.option"),
        ({"fedprox.name": ["fedavg", "local"]}, r"algorithm\.name .*METHOD\.option"),
        ({"train.lr": [-1.0, 0.1]}, r"train\.lr .* 0"),
        ({"train.lr": [float("nan"), 0.1]}, r"train\.lr "),
        ({"train.lr": ["x", 0.1]}, r"lr"),
        ({"fedprox.mu": [0.1, 0.2]}, "'mu'"),
        ({"fedprox.strength": [-1.0, 0.1]}, "strength .* 0"),
    ],
)
def test_a_bad_grid_is_refused_before_anything_is_written_and_when_it_is_read(tmp_path, tuning, grid, says):
    with pytest.raises((RecordError, UnknownNameError), match=says):
        created(tmp_path / "new", plan=TuningPlan(2, grids=grid))
    assert not (tmp_path / "new").exists()
    (tuning / "tuned.toml").unlink()
    change(tuning / "tune.toml", ("tune", "plan", "grids"), grid)
    with pytest.raises(DamagedError, match=rf"tune\.toml' is damaged: .*{says}"):
        Tuning.open(tuning)


@pytest.mark.budget(2, "the tuning that these tests share")
@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (("plan", "only"), "train.lr", "only is train.lr, not a list"),
        (("plan", "only"), [1], "a setting in only is 1, not a text"),
        (("plan", "only"), ["foo"], "unknown setting to tune 'foo'"),
        (("plan", "grids"), [1], r"grids is \[1\], not a table"),
        (("plan", "grids"), {"train.lr": 3}, r"train\.lr is 3, not a list"),
        (("plan", "grids"), {"train.lr": []}, r"grid of train\.lr .*\["),
        (("plan", "grids"), {"train.lr": [0.1, 0.1]}, r"grid of train\.lr .*\["),
        (("plan", "trials"), 2.5, r"trials is 2\.5, not a whole number"),
        (("plan", "trials"), float("nan"), "trials is nan, not a whole number"),
        (("plan", "trials"), 10**9, "trials must be from 1 to 10,000"),
        (("plan", "eta"), 0, "eta must be from 1 to 10"),
        (("plan", "widen"), "no", "widen is no, not true or false"),
        (("plan", "sampler"), 1, "sampler is 1, not a text"),
        (("plan", "sampler"), "x", "unknown sampler 'x'"),
        (("plan", "foo"), 1, r"unknown key of \[tune\.plan\] 'foo'"),
        (("plan",), "x", "plan is x, not a table"),
        (("methods",), ["fedavg", "fedavg"], "methods must be"),
        (("methods",), [], "methods must be"),
        (("methods",), [1], "methods must be"),
        (("methods",), ["fedavg", "fedprox", "local"], "local is missing"),
        (("seeds",), 10**9, "seeds must be from 1 to 10,000"),
        (("seeds",), -1, "seeds must be from 1"),
        (("seeds",), True, "seeds is True, not a whole number"),
        (("settings",), [1], r"settings is \[1\], not a table"),
        (("settings", "fedavg"), "x", "fedavg is x, not a table"),
        (("settings", "fedavg"), {"run.rounds": 1}, r"run\.rounds is not a setting of a single method"),
        (("settings", "fedavg"), {"algorithm.name": "local"}, r"algorithm\.name is not a setting of a single method"),
        (("settings", "fedavg"), {"train": {"lr": 1.0}}, "train is not a setting of a single method"),
        (("settings", "fedavg"), {"train.lr": "x"}, "lr"),
    ],
)
def test_a_damaged_plan_is_one_line(tuning, key, value, says):
    (tuning / "tuned.toml").unlink()
    change(tuning / "tune.toml", ("tune", *key), value)
    with pytest.raises(DamagedError, match=rf"tune\.toml' is damaged: .*{says}") as error:
        Tuning.open(tuning)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (("fedavg", "settings"), "x", "settings is x, not a table"),
        (("fedavg", "settings"), [1], r"settings is \[1\], not a table"),
        (("fedavg", "settings"), {"train.lr": "x"}, "lr"),
        (("fedavg", "settings"), {"train": {"lr": 0.1}}, "train is not a setting of a single method"),
        (("fedavg", "settings"), {"algorithm.name": "evil:f"}, r"algorithm\.name is not a setting of a single method"),
        (("fedavg", "settings"), {"run.rounds": 1}, r"run\.rounds is not a setting of a single method"),
        (("fedavg", "is_default"), "x", "is_default is x, not true or false"),
        (("fedavg",), None, "fedavg is missing"),
        (("fedavg",), 1, "fedavg is 1, not a table"),
        (("evil:f",), {"is_default": True, "settings": {}}, "evil:f is not a method of this tuning"),
    ],
)
def test_damaged_choices_are_one_line(tuning, key, value, says):
    change(tuning / "tuned.toml", ("tuned", "methods", *key), value)
    for use in (Tuning.open, lambda folder: tuned_settings(folder, ["fedavg"])):
        with pytest.raises(DamagedError, match=rf"tuned\.toml' is damaged: .*{says}") as error:
            use(tuning)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(("key", "value"), [("settings", {"train.lr": 0.2}), ("is_default", True), ("settings", None)])
def test_choices_that_are_not_those_of_the_trials_are_refused_and_written_again(tuning, key, value):
    written = (tuning / "tuned.toml").read_bytes()
    change(tuning / "tuned.toml", ("tuned", "methods", "fedavg", key), value)
    with pytest.raises(DamagedError, match=rf"tuned\.toml'.*: {key} of fedavg "):
        Tuning.open(tuning)
    (tuning / "tuned.toml").unlink()
    assert advance(Tuning.open(tuning))
    assert (tuning / "tuned.toml").read_bytes() == written


@pytest.mark.slow
@pytest.mark.parametrize("name", ["winners", "untuned"])
def test_runs_of_other_settings_than_the_chosen_ones_are_refused(tuning, name):
    other = {"winners": {"train.lr": 0.2}, "untuned": {"train.lr": 0.5}}[name]
    shutil.rmtree(tuning / name / "fedavg")  # or else its runs tell
    change(tuning / name / "compare.toml", ("compare", "settings", "fedavg"), other)
    with pytest.raises(DamagedError, match=rf"{name}'.*tuned\.toml"):
        Tuning.open(tuning).work()
    shutil.rmtree(tuning / name)
    assert advance(Tuning.open(tuning))
    assert Tuning.open(tuning).work() == []


def test_runs_of_what_was_chosen_before_the_plan_changed_are_refused(tuning):
    (tuning / "tuned.toml").unlink()
    change(tuning / "tune.toml", ("tune", "seeds"), 2)
    with pytest.raises(DamagedError, match=r"winners'.*tuned\.toml"):
        Tuning.open(tuning).work()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ((), "x", "methods is x, not a list"),
        ((0,), 1, "1 is not a table"),
        ((0, "method"), 1, "method is 1, not a text"),
        ((0, "settings"), "x", "settings is x, not a table or nothing"),
        ((0, "settings"), {"train.lr": "x"}, r"train\.lr is x, not a number"),
        ((0, "default"), None, "default is None, not a table"),
        ((0, "validation"), "x", "validation is x, not a number"),
        ((0, "sides"), [1], "sides is"),
        ((0, "sides"), {"train.lr": 1}, r"train\.lr is 1, not one of inside, lowest, highest"),
        ((0, "left"), [1], "a setting in left is 1, not a text"),
        ((0, "widened"), "x", "widened is x, not true or false"),
        ((0, "trials"), "x", "trials is x, not a list"),
        ((0, "trials"), [1], "1 is not a table"),
        ((0, "trials", 0, "settings"), "x", "settings is x, not a table"),
        ((0, "trials", 0, "settings"), {"train.lr": "x"}, r"train\.lr is x, not a number"),
        ((0, "trials", 0, "settings"), {"a": {}}, "a is {}, not a number"),
        ((0, "trials", 0, "score"), "x", "score is x, not a number"),
        ((0, "trials", 0, "rounds"), "x", "rounds is x, not a whole number"),
        ((0, "trials", 0, "failed"), 1, "failed is 1, not a text"),
        ((0, "tuned"), [1], r"tuned is \[1\], not a table"),
        ((0, "tuned"), {"1": "x"}, "the score of seed 1 is x, not a number"),
        ((0, "untuned"), {"1": None}, "the score of seed 1 is None, not a number"),
    ],
)
def test_a_damaged_result_is_one_line(tuning, key, value, says):
    assert [each.method for each in read_tuning(tuning)] == ["fedavg", "fedprox"]
    change(tuning / "tuning.json", ("methods", *key), value)
    with pytest.raises(DamagedError, match=rf"tuning\.json' is damaged: {says}.*strata resume") as error:
        read_tuning(tuning)
    assert "\n" not in str(error.value)
