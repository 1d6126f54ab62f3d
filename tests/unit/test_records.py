"""Records print, compare, and go to TOML and back."""

import dataclasses

import pytest

from stratafl.algorithms import ALGORITHMS, fedavg, fedper, fedprox, fedrep
from stratafl.core import records
from stratafl.core.fields import Filled, Number, Start, Together
from stratafl.core.layers import Select, select
from stratafl.core.objectives import CrossEntropy
from stratafl.core.phased import Phase, Phased
from stratafl.core.records import from_table, from_toml, record, stored_repr, to_table, to_toml
from stratafl.data import Dirichlet
from stratafl.errors import RecordError, UnknownNameError
from stratafl.policies import Constant, Cosine, Exponential, LocalTraining, Mean, Pull, Upload

NESTED = {
    "LocalTraining with everything": LocalTraining(
        lr=0.1,
        epochs=3,
        batch=7,
        momentum=0.9,
        weight_decay=1e-4,
        clip=2.5,
        schedule=Cosine(floor=0.25),
        layers=select("not head+batchnorm"),
        objective=CrossEntropy(),
        edits=(Pull(0.5), Pull(0.25, anchor="other")),
        steps=4,
        drop_last=True,
        shuffle=False,
        purpose="head",
    ),
    "selections": Start(select("blocks:2"), own=True),
    "fields of several kinds": Together((Start(select("head")), Filled(0.0, select("last:2"), per_client=True))),
    "a number": Number(value=-1.5, width=3),
    "options of an algorithm": fedper(
        personal="blocks:2", initial="own", finetune=2, linear_base=True, train=LocalTraining(schedule=Exponential(0.5))
    ),
    "phases": Phased(
        (Phase(fedavg(), rounds=3), Phase(fedrep(), participation="all", evaluated=False)),
        finish=Phase(fedavg(train=LocalTraining(lr=0.5)), participation="all"),
    ),
    "tuning": dataclasses.replace(fedprox(strength=0.3), tune=(LocalTraining(epochs=2),)),
    "a partition": Dirichlet(),
}
ALL = {name: builder() for name, builder in ALGORITHMS.items()} | NESTED


@pytest.mark.parametrize("name", ALL)
def test_a_record_comes_back_from_toml(name):
    made = ALL[name]
    back = from_toml(to_toml(made))
    assert back == made
    assert repr(back) == repr(made)
    assert type(back) is type(made)
    assert to_toml(back) == to_toml(made)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_made_twice_is_equal_and_another_is_not(name):
    assert ALGORITHMS[name]() == ALGORITHMS[name]()
    assert ALGORITHMS[name](train=LocalTraining(lr=0.123)) != ALGORITHMS[name]()
    assert "batch=123" in repr(ALGORITHMS[name](train=LocalTraining(batch=123)))
    # pFedMe's own rate is personal_lr; that of its local model, train.lr, is in proportion to it.
    assert ("pace=2.46" if name == "pfedme" else "lr=0.123") in repr(ALGORITHMS[name](train=LocalTraining(lr=0.123)))


HYPER = {"hyper_step": 0.1, "embedding": 100, "width": 100, "depth": 3, "normalise": "softmax", "initial": "uniform"}
DEFAULTS = {  # as docs/methods/ has them
    "fedalp": {
        "beta": 0.6,
        "groups": None,
        "warmup_share": 0.5,
        "base": "received",
        "gamma": "group",
        "features": "cosine",
    },
    "fedavg30local": {"warmup": None, "warmup_share": 0.25},
    "fedlag": {"k": None, "xi": -0.1, "warmup": None, "warmup_share": 0.25, "weights": "samples", "bn": "follow"},
    "fedper": {"personal": "head", "initial": "common", "finetune": 0, "linear_base": False},
    "fedprox": {"strength": 0.01},
    "fedrep": {"personal": "head", "head_epochs": 1},
    "flayer": {"s": 1, "accuracy": "train", "accuracy_of": "trained", "least": 0.1, "unsent": "held"},
    "heurpfedla": {"k": 1, **HYPER},
    "lgfedavg": {"shared": "head"},
    "pfedla": {"unit": "layer", "sign": "descent", **HYPER},
    "simmix": {"unit": "layer", "sharpness": 5.0},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_options_that_are_left_out_are_those_of_the_documents(name):
    assert ALGORITHMS[name]() == ALGORITHMS[name](**DEFAULTS[name])


def test_training_that_is_left_open_is_that_of_the_documents():
    assert LocalTraining() == LocalTraining(
        lr=0.05, epochs=1, batch=10, momentum=0.0, weight_decay=0.0, schedule=Constant()
    )
    assert Exponential() == Exponential(0.99)


def test_a_table_by_hand():
    table = to_table(LocalTraining(clip=1.0, edits=(Pull(0.5),), layers=select("head")))
    assert table == {
        "type": "SGD",
        "class_weight": "none",
        "lr": 0.05,
        "epochs": 1,
        "batch": 10,
        "optimizer": "sgd",
        "momentum": 0.0,
        "nesterov": False,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "optimizer_state": "dropped",
        "weight_decay": 0.0,
        "clip": 1.0,
        "decay": 1.0,
        "schedule": {"type": "Constant"},
        "layers": "head",
        "row": "theta",
        "edits": [{"type": "Pull", "strength": 0.5, "anchor": "anchor"}],
        "rates": [],
        "follow": [],
        "repeats": 1,
        "share": 1.0,
        "drop_last": False,
        "shuffle": True,
        "frozen_modules_train": False,
        "purpose": "train",
    }


def test_records_are_values_that_never_change():
    assert Pull(0.5) == Pull(0.5)
    assert hash(Pull(0.5)) == hash(Pull(0.5))
    assert repr(Pull(0.5)) == "Pull(strength=0.5, anchor='anchor')"
    assert dataclasses.replace(Pull(0.5), strength=1.0) == Pull(1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Pull(0.5).strength = 1.0


def test_what_is_left_out_has_its_default():
    assert from_toml('type = "SGD"\nlr = 0.5') == LocalTraining(lr=0.5)
    assert "clip" not in to_table(LocalTraining())


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        ('type = "Number"\nvalue = 3', "value", 3.0),
        ('type = "SGD"\nlr = 1', "lr", 1.0),
        ('type = "SGD"\nclip = 2', "clip", 2.0),
        ('type = "SGD"\nepochs = 2', "epochs", 2),
        ('type = "Number"\nwidth = 2', "width", 2),
        ('type = "SGD"\nshuffle = false', "shuffle", False),
    ],
)
def test_a_whole_number_becomes_a_float_where_a_float_is_declared(text, field, expected):
    value = getattr(from_toml(text), field)
    assert value == expected
    assert type(value) is type(expected)


def test_selections_are_read_as_selections():
    assert from_toml('type = "Upload"\nlayers = "not last:2"') == Upload(select("not last:2"))
    with pytest.raises(UnknownNameError, match=r"unknown layer rule 'lsat'; did you mean 'last'\?"):
        from_toml('type = "Upload"\nlayers = "lsat:2"')


def test_an_unknown_type_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown record type 'Meann'; did you mean 'Mean'\?") as refusal:
        from_toml('type = "Meann"')
    assert "\n" not in str(refusal.value)


def test_an_unknown_key_is_refused_with_the_nearest():
    expected = r"unknown key of Mean 'weight'; did you mean 'weights'\? Choose one of: field, weights, unsent"
    with pytest.raises(UnknownNameError, match=expected):
        from_toml('type = "Mean"\nweight = "uniform"')


def test_an_unknown_key_deep_inside_is_refused():
    with pytest.raises(UnknownNameError, match=r"Cosine 'flor'.*'floor'"):
        from_toml('type = "SGD"\nschedule = {type = "Cosine", flor = 0.1}')


def test_a_missing_key_is_refused():
    with pytest.raises(RecordError, match="Pull needs 'strength'"):
        from_toml('type = "Pull"')


def test_a_value_that_a_record_refuses_is_refused():
    with pytest.raises(RecordError, match=r"LocalTraining\.batch .*1.*0"):
        from_toml('type = "SGD"\nbatch = 0')


def test_what_is_not_toml_is_refused():
    with pytest.raises(RecordError, match="not TOML"):
        from_toml("type = ")


@pytest.mark.parametrize("kind", ['["SGD"]', '{a = "SGD"}'])
def test_a_type_that_is_no_text_is_refused(kind):
    with pytest.raises(RecordError, match="SGD"):
        from_toml(f"type = {kind}")


@dataclasses.dataclass(frozen=True)
class Undecorated:
    value: int = 1


def test_a_dataclass_that_is_no_record_is_refused():
    with pytest.raises(RecordError, match=r"Undecorated.*@record"):
        to_table(Undecorated())
    with pytest.raises(RecordError, match="Undecorated"):
        to_table(dataclasses.replace(fedavg(), tune=(), server={"theta": Undecorated()}))


@pytest.mark.parametrize("value", [{1, 2}, object(), 1j, b"bytes"])
def test_a_value_that_no_file_can_hold_is_refused(value):
    with pytest.raises(RecordError, match=f"a record cannot hold {type(value).__name__}"):
        to_table({"x": value})


def test_plain_values_pass_through():
    assert to_table({"a": (1, 2.5, "x", True), "b": {"c": []}}) == {"a": [1, 2.5, "x", True], "b": {"c": []}}
    assert from_table({"a": [1, 2.5], "b": {"c": "x"}}) == {"a": (1, 2.5), "b": {"c": "x"}}


@pytest.fixture
def registry(monkeypatch):
    """A registry that is forgotten after the test."""
    monkeypatch.setattr(records, "_CLASSES", dict(records._CLASSES))


@pytest.mark.usefixtures("registry")
def test_two_records_of_one_name_are_refused():
    twin = type("Mean", (), {"__annotations__": {"x": int}, "x": 0})
    with pytest.raises(RecordError, match=rf"'Mean'.*stratafl\.policies\.merge.*{__name__}"):
        record(twin)
    assert from_toml('type = "Mean"') == Mean()


@pytest.mark.usefixtures("registry")
def test_a_record_made_again_in_the_same_place_replaces_itself():
    def made() -> type:
        @record
        class Reloaded:
            x: int = 0

        return Reloaded

    first, second = made(), made()
    assert first is not second
    assert from_table({"type": "Reloaded", "x": 3}) == second(3)
    with pytest.raises(RecordError, match="Reloaded"):
        to_table(first(3))


@pytest.mark.usefixtures("registry")
def test_a_record_of_anybody_goes_to_toml_and_back():
    @record
    class Mine:
        share: float
        layers: Select = select("head")
        inner: Mean | None = None
        table: dict[str, int] = dataclasses.field(default_factory=dict)

    mine = Mine(0.5, select("not head"), Mean(weights="uniform"), {"a": 1})
    assert from_toml(to_toml(mine)) == mine
    assert from_toml(to_toml(Mine(2.0))) == Mine(2.0)


def test_a_class_that_was_renamed_keeps_its_name_in_files_and_digests():
    assert from_toml('type = "LocalTraining"\nlr = 0.5') == from_toml('type = "SGD"\nlr = 0.5')
    assert to_table(LocalTraining())["type"] == "SGD"
    renamed = repr([LocalTraining()]).replace("LocalTraining(", "SGD(")
    assert stored_repr([LocalTraining()]) == renamed.replace("class_weight='none', ", "")  # which came later
    assert "class_weight='balanced'" in stored_repr(LocalTraining(class_weight="balanced"))
