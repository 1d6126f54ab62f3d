"""Tables of settings: read and written by their records, typed by people, documented."""

import runpy
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from stratafl.config.experiment import Experiment, to_tables, with_settings, with_values
from stratafl.config.setting_tables import parse_settings
from stratafl.core.annotations import Named, Range
from stratafl.core.records import Written, from_settings, record, to_settings
from stratafl.errors import RecordError, StrataError, UnknownNameError
from stratafl.policies import Constant, Cosine, Exponential, LocalTraining, Stepped, Warmup


@record
class Clock:
    """What a key may stand for."""

    minutes: float = 0.0


@record
class Oven:
    """A table with every kind of key, and a field that is none."""

    heat: Annotated[float, Range(above=0, most=250), "how hot"] = 180.0
    trays: Annotated[int, Range(least=1, below=5), "how many"] = 2
    mode: Annotated[Literal["fan", "grill"], "from where"] = "fan"
    recipe: Annotated[str, Named({"bread": 1, "cake": 2}, paths=True), "what"] = "bread"
    timer: Annotated[float | None, Range(least=0), "how long"] = None
    light: Annotated[bool, "whether one", "sees it"] = False
    tools: Annotated[tuple[Annotated[str, Named(("knife", "spoon"))], ...], "with what"] = ()
    clock: Annotated[Clock, Written("rest", float, Clock, lambda clock: clock.minutes), "until it is eaten"] = Clock()
    colour: str = "white"


@record
class Cook:
    """A table that takes further keys, and needs one."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


TABLE = {"heat": 200.0, "trays": 2, "mode": "fan", "recipe": "bread", "light": False, "tools": ["knife"], "rest": 5.0}


def test_a_table_goes_there_and_back():
    made = from_settings("oven", Oven, {"heat": 200, "tools": ["knife"], "rest": 5})
    assert made == Oven(heat=200.0, tools=("knife",), clock=Clock(5.0))
    assert to_settings(made) == TABLE  # without `timer`: TOML cannot write None
    assert from_settings("oven", Oven, TABLE) == made
    assert from_settings("oven", Oven, {"timer": None}) == Oven()


def test_further_keys_are_options_where_there_are_some():
    made = from_settings("cook", Cook, {"name": "bob", "knife": 3, "hat": [1, 2], "apron": None})
    assert made == Cook("bob", {"knife": 3, "hat": [1, 2]})
    assert to_settings(made) == {"name": "bob", "knife": 3, "hat": [1, 2]}
    assert from_settings("cook", Cook, {"name": "eve", "options": {"a": 1}}).options == {"options": {"a": 1}}


@pytest.mark.parametrize(
    ("cls", "table", "says"),
    [
        (Oven, 3, r"\[t\] .*3"),
        (Oven, {"heat": "hot"}, r"t\.heat.*'hot'"),
        (Oven, {"trays": 0}, r"t\.trays.*1.*0"),
        (Oven, {"rest": "long"}, r"t\.rest.*'long'"),
        (Oven, {"trais": 3}, "'trais'.*'trays'"),
        (Oven, {"colour": "red"}, "'colour'"),
        (Oven, {"clock": 3}, "'clock'"),
        (Oven, {"mode": "gril"}, r"t\.mode.*'gril'.*'grill'"),
        (Cook, {}, "'name'"),
        (Cook, {"name": "bob", "hat": float("nan")}, r"t\.hat .*nan"),
        (Cook, {"name": "bob", "hat": {1}}, r"t\.hat"),
    ],
)
def test_what_is_refused(cls, table, says):
    with pytest.raises((RecordError, UnknownNameError), match=says):
        from_settings("t", cls, table)


# What a person types


@pytest.mark.parametrize(
    ("typed", "path", "value"),
    [
        ("train.lr=0.1", "train.lr", 0.1),
        (" train.lr = 1", "train.lr", 1),
        ('data.path=we"ird/', "data.path", 'we"ird/'),
        ('data.path="quoted"', "data.path", "quoted"),
        ("data.label=2020", "data.label", "2020"),
        ("data.label=true", "data.label", "true"),
        ("run.device=cuda:1", "run.device", "cuda:1"),
        ("fedper.personal=last:2", "fedper.personal", "last:2"),
        ("own.methods:mine.strength=2", "own.methods:mine.strength", 2),
        ('log.to=["wandb"]', "log.to", ["wandb"]),
        ("model.hidden=[1, 2]", "model.hidden", [1, 2]),
        ("data.path=a\nb = 3", "data.path", "a\nb = 3"),
    ],
)
def test_what_is_typed_is_parsed_once(typed, path, value):
    assert parse_settings([typed]) == {path: value}


@pytest.mark.parametrize("typed", ["train.lr", "lr=0.1", "train.=3", "=3"])
def test_what_is_no_setting_is_refused(typed):
    with pytest.raises(RecordError, match=r"table\.key=value.*train\.lr=0\.1"):
        parse_settings([typed])


@pytest.mark.parametrize(
    "path", ['we"ird/', "it's/", '"quoted"', "2020", "true", "None", "[1]", "a=b", "tab\t", "\x7f"]
)
def test_a_value_arrives_as_it_is(path):
    made = with_values(Experiment(), {"data.path": path, "data.label": path, "model.weights": path})
    assert (made.data.path, made.data.label, made.model.weights) == (path, path, path)


def test_none_is_none():
    limited = with_settings(Experiment(), ["run.memory_limit=8GB", "data.path=x", "algorithm.finetune=2"])
    free = with_values(limited, {"run.memory_limit": None, "data.path": None, "fedper.finetune": None})
    assert (free.run.memory_limit, free.data.path, free.algorithm.options) == (None, None, {})
    with pytest.raises(RecordError, match=r"train\.lr .*None"):
        with_values(Experiment(), {"train.lr": None})


# [train]


def test_the_table_of_training_is_the_part_of_sgd_that_can_be_set():
    made = with_settings(
        Experiment(), ["train.lr=0.2", "train.decay=0.9", "train.clip=1", "train.drop_last=true"]
    ).train
    assert made == LocalTraining(lr=0.2, decay=0.9, clip=1.0, drop_last=True)
    usual = {"lr": 0.05, "epochs": 1, "batch": 10, "momentum": 0.0, "weight_decay": 0.0, "decay": 1.0}
    adam = {"optimizer": "sgd", "nesterov": False, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    rest = {"optimizer_state": "dropped", "schedule": "constant", "drop_last": False, "class_weight": "none"}
    assert to_tables(Experiment())["train"] == {**usual, **adam, **rest}


SCHEDULES = {
    "constant": Constant(),
    "exponential:0.9": Exponential(0.9),
    "cosine:0.1": Cosine(0.1),
    "step:30:0.1": Stepped(30, 0.1),
    "warmup:5+cosine:0.0": Warmup(5, Cosine()),
}


@pytest.mark.parametrize("text", SCHEDULES)
def test_a_schedule_is_a_text(text):
    made = with_settings(Experiment(), [f"train.schedule={text}"])
    assert made.train == LocalTraining(schedule=SCHEDULES[text])
    assert to_tables(made)["train"]["schedule"] == text


@pytest.mark.parametrize(
    "text", ["cosin", "cosine:a", "step:1.5", "step:0", "warmup", "warmup:2+", "cosine:1:2", "cosine+step"]
)
def test_a_schedule_that_cannot_be_read_is_refused(text):
    with pytest.raises(StrataError, match=r"schedule|Stepped") as error:
        with_settings(Experiment(), [f"train.schedule={text}"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("train", [LocalTraining(layers="head"), LocalTraining(steps=3), LocalTraining(epochs=0)])
def test_training_that_no_configuration_can_hold_is_refused(train):
    with pytest.raises(RecordError, match=r"lr, epochs, batch|train\.epochs .*1"):
        Experiment(train=train)


def test_a_table_that_was_read_before_is_read_as_what_it_holds():
    """Python takes 1, 1.0 and True for the same key."""
    one = from_settings("oven", Oven, {"trays": 1, "light": True})
    assert from_settings("oven", Oven, {"trays": 1, "light": True}) is one
    for table in ({"trays": True, "light": True}, {"trays": 1, "light": 1}, {"trays": 1.0, "light": True}):
        with pytest.raises(RecordError):
            from_settings("oven", Oven, table)
    assert from_settings("stove", Oven, {"trays": 1, "light": True}) == one


# The document


DOCUMENT = """\
## [oven]

| key | default | meaning |
|---|---|---|
| `heat` | `180.0` | how hot (at most 250, above 0) |
| `trays` | `2` | how many (at least 1, below 5) |
| `mode` | `fan` | from where (one of `fan`, `grill`) |
| `recipe` | `bread` | what |
| `timer` | none | how long (at least 0) |
| `light` | `false` | whether one sees it |
| `tools` | `[]` | with what (any of `knife`, `spoon`) |
| `rest` | `0.0` | until it is eaten |
"""


def test_tables_document_themselves():
    pages = runpy.run_path(str(Path(__file__).parents[2] / "docs/tools/pages.py"))
    assert pages["settings_tables"]({"oven": Oven}) == DOCUMENT
