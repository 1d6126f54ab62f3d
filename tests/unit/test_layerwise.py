"""Five slots: what does not fit together is refused when it is made, and steps run in their order."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from stratafl.algorithms import fedavg, fedper, fedprox
from stratafl.core.algorithm import Total
from stratafl.core.describe import describe
from stratafl.core.fields import Number
from stratafl.core.layerwise import Layerwise
from stratafl.core.parcel import Field, Parcel
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, clone, flatten, tensor_of
from stratafl.core.steps import MergeRows, MergeSums, Mix, Send, Serve, Train
from stratafl.errors import RecordError
from stratafl.policies import Broadcast, LocalTraining, Mean, Pull, Remember, Take, Upload
from stratafl.testing import Case

LAYOUT = describe(nn.Sequential(nn.Linear(2, 2)))
START = {name: torch.ones(spec.shape) for name, spec in LAYOUT.specs.items()}
ROUND = Round(Setup(LAYOUT, START, lambda ids: {}, 4, 1), 0)


@dataclass(frozen=True)
class Noop(Serve, Mix, Train, Send, MergeSums):
    """A step of any slot that only says what it reads and writes."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    __call__ = fold = finish = lambda *_: {}


@dataclass(frozen=True)
class Affine(Serve, Mix, Train, Send):
    """A train or mix step: into ← factor·field + shift."""

    field: str
    into: str
    factor: float = 1.0
    shift: float = 0.0

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.field,)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.into,)

    def value(self, state: State) -> Tensor:
        return self.factor * tensor_of(state, self.field) + self.shift

    def __call__(self, rnd: Round, client: State, *rest: object) -> State:
        return {self.into: self.value(client)}


@dataclass(frozen=True)
class Give(Affine):
    """A serve or send step."""

    common: bool = False

    def __call__(self, rnd: Round, state: State, *rest: object) -> Mapping[str, Field]:
        return {self.into.partition(".")[2]: Field(self.value(state), common=self.common)}


@dataclass(frozen=True)
class Sum(MergeSums):
    """A merge through sums: field ← field + factor·Σ uploads."""

    field: str
    factor: float = 1.0
    reads: tuple[str, ...] = ("up.x",)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.field,)

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        return {"sum": tensor_of(sums, "sum") + up["x"].tensor.sum() if sums else up["x"].tensor.sum()}

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        return {self.field: tensor_of(server, self.field) + self.factor * tensor_of(sums, "sum")}


@dataclass(frozen=True)
class Largest(MergeRows):
    """A merge that needs all rows: field ← the largest upload times a server field."""

    field: str
    times: str

    @property
    def reads(self) -> tuple[str, ...]:
        return ("up.x", self.times)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.field,)

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        return {self.field: up["x"].tensor.max() * tensor_of(server, self.times)}


def numbers(**slots: object) -> Layerwise:
    """An algorithm on plain numbers: clients double what they get and send it; the server adds it up."""
    plain = {
        "serve": (Give("y", "down.y", common=True),),
        "mix": (Take("y"),),
        "train": (Affine("y", "x", 2.0),),
        "send": (Give("x", "up.x"),),
        "merge": (Sum("y"),),
        "server": {"y": Number(1.0)},
        "client": {"x": Number(0.0)},
        "row": "x",
    }
    return Layerwise(**(plain | slots))


# The check when a record is made

REFUSED = {
    "a serve that reads what the server has not": (
        {"serve": (Broadcast(field="phi"),)},
        ("serve", "Broadcast", "'phi'", "choose one of: theta"),
    ),
    "a mix that reads what nobody serves": ({"mix": (Take(), Take("mu"))}, ("mix", "Take", "'down.mu'")),
    "a mix without a download": ({"serve": ()}, ("mix", "Take", "'down.theta'")),
    "a mix that reads what comes later": ({"mix": (Remember("loss"), Take())}, ("mix", "Remember", "'loss'")),
    "a train that reads an unknown field": (
        {"train": (LocalTraining(edits=(Pull(1.0),)),)},
        ("train", "LocalTraining", "'anchor'"),
    ),
    "a send that reads an unknown field": ({"send": (Upload(field="phi"),)}, ("send", "Upload", "'phi'")),
    "a merge that reads what nobody sends": ({"send": ()}, ("merge", "Mean", "'up.theta'")),
    "a merge of another field": ({"merge": (Mean(), Mean("phi"))}, ("merge", "Mean", "'up.phi'")),
    "a merge that writes an undeclared field": (
        {"merge": (Mean(), Noop(writes=("phi",)))},
        ("merge", "Noop", "writes 'phi'", "declares only: theta"),
    ),
    "a tune that reads an unknown field": ({"tune": (LocalTraining(row="phi"),)}, ("tune", "LocalTraining", "'phi'")),
    "a step of another slot": (
        {"mix": (Upload(),)},
        ("Layerwise.mix must be a Mix, not Upload",),
    ),
    "a merge that only calls": ({"merge": (Take(),)}, ("Layerwise.merge must be a MergeSums",)),
    "what is no step at all": ({"train": (print,)}, ("Layerwise.train must be a Train, not <built-in",)),
    "a row nobody has": ({"row": "phi"}, ("the model is field 'phi'", "clients have only", "theta")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_record_that_does_not_fit_together_is_refused(case):
    change, words = REFUSED[case]
    with pytest.raises(RecordError) as refusal:
        replace(fedavg(), **change)
    message = str(refusal.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_a_refusal_says_slot_step_field_and_what_there_is():
    with pytest.raises(RecordError, match=r"^merge: Mean .*'up\.theta'.*: theta$"):
        replace(fedavg(), send=())


@pytest.mark.parametrize(
    "change",
    [
        {"mix": (Take(), Remember()), "train": (LocalTraining(edits=(Pull(1.0),)),)},
        {"train": (LocalTraining(), Noop(reads=("loss",), writes=("extra",)), Noop(reads=("extra",)))},
        {
            "send": (Upload(), Noop(reads=("steps",), writes=("up.extra",))),
            "merge": (Noop(reads=("up.extra",)), Mean()),
        },
        {"tune": (LocalTraining(),)},
    ],
)
def test_a_step_may_read_what_an_earlier_one_writes(change):
    made = replace(fedavg(), **change)
    assert {name: getattr(made, name) for name in change} == change


def test_a_tune_step_may_read_what_an_earlier_tune_step_writes():
    steps = (Noop(reads=("theta",), writes=("extra",)), Noop(reads=("extra",), writes=("theta",)))
    assert replace(fedavg(), tune=steps).tune == steps


LAX = {
    "tune runs before training": {"tune": (Noop(reads=("loss",)),)},
    "the download is not in the client's state": {"train": (LocalTraining(), Noop(reads=("down.theta",)))},
    "the row is evaluated before training": {"row": "phi", "train": (LocalTraining(), Noop(writes=("phi",)))},
}


@pytest.mark.parametrize("case", LAX)
def test_a_field_that_is_not_there_yet_is_refused(case):
    with pytest.raises(RecordError):
        replace(fedavg(), **LAX[case])


def test_a_single_step_needs_no_tuple():
    made = replace(fedavg(), train=LocalTraining(lr=1.0), merge=[Mean()])
    assert made.train == (LocalTraining(lr=1.0),)
    assert made.merge == (Mean(),)


# Derived properties


def test_splits_are_those_of_the_steps():
    assert fedavg().requires.splits == ("train",)
    asking = Noop(splits=("validation", "train")), Noop(splits=("extra", "validation"))
    made = replace(fedavg(), train=(LocalTraining(), asking[0]), tune=asking[1:])
    assert made.requires.splits == ("train", "validation", "extra")


def upload(*values: float) -> Parcel:
    return Parcel({"x": Field(torch.tensor(values))})


def test_rows_are_kept_if_some_merge_needs_them():
    uploads, ids = (upload(3.0, 4.0), upload(5.0)), (torch.tensor([2, 0]), torch.tensor([3]))
    for merge, kept in (((Sum("y"),), False), ((Sum("y"), Largest("z", "y")), True)):
        made = numbers(merge=merge, server={"y": Number(1.0), "z": Number()})
        total = made.fold(ROUND, {}, made.fold(ROUND, {}, Total(), uploads[0], ids[0]), uploads[1], ids[1])
        assert made.requires.rows == kept
        assert total.rows == (uploads if kept else ())
        assert total.ids == (ids if kept else ())
        assert tensor_of(total.sums[0], "sum").item() == 12.0


@pytest.mark.parametrize(
    ("merge", "sent"),
    [((Sum("y"),), ["x"]), ((Sum("y"), Noop(reads=("up.more",))), ["x", "more"]), ((), [])],
)
def test_a_client_sends_what_some_merge_reads_and_nothing_more(merge, sent):
    alg, ids = numbers(send=(Give("x", "up.x"), Give("x", "up.more")), merge=merge), torch.tensor([0, 2])
    assert list(alg.work(ROUND, {"x": torch.ones(2), "y": torch.ones(2)}, ids).upload) == sent


@dataclass(frozen=True)
class Who(MergeSums):
    """A merge that writes down who sent what, through sums or from rows."""

    reads: tuple[str, ...] = ("up.x",)
    writes: tuple[str, ...] = ("y",)

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        told = torch.stack([ids.double(), up["x"].tensor.double()], 1)
        return {"told": torch.cat([tensor_of(sums, "told"), told]) if sums else told}

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        return {"y": tensor_of(sums, "told")}


@dataclass(frozen=True)
class WhoInRows(MergeRows):
    reads: tuple[str, ...] = ("up.x",)
    writes: tuple[str, ...] = ("y",)

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        return {"y": torch.stack([ids.double(), up["x"].tensor.double()], 1)}


@pytest.mark.parametrize("step", [Who(), WhoInRows()])
def test_a_merge_knows_who_sent_what(step):
    alg = numbers(merge=(step,))
    total = alg.fold(ROUND, {}, Total(), upload(20.0, 0.5), torch.tensor([2, 0]))
    total = alg.fold(ROUND, {}, total, upload(30.0), torch.tensor([3]))
    assert alg.absorb(ROUND, alg.init(ROUND.setup), total)["y"].tolist() == [[2.0, 20.0], [0.0, 0.5], [3.0, 30.0]]


def test_an_extension_changes_the_model_and_without_one_it_is_as_given():
    module = nn.Linear(2, 2)
    assert fedavg().extend(module, torch.zeros(1, 2), 2, "") is module
    extended = replace(fedavg(), extension=lambda module, example, classes, head: nn.Linear(classes, len(head)))
    made = extended.extend(module, torch.zeros(1, 2), 7, "fc")
    assert (made.in_features, made.out_features) == (7, 2)


# The steps at work, on numbers


def test_a_round_by_hand():
    alg, ids = numbers(), torch.tensor([0, 2, 3])
    server = {"y": torch.tensor(5.0)}
    down = alg.download(ROUND, server, ids)
    client = alg.receive(ROUND, alg.enrol(ROUND.setup, ids), down, ids)
    assert client["y"].tolist() == [5.0, 5.0, 5.0]
    memory, up, trained = alg.work(ROUND, client, ids)
    assert memory["x"].tolist() == trained.tolist() == [10.0] * 3
    assert list(memory) == ["x"]  # y and what else the client had dies with the round
    total = alg.fold(ROUND, server, Total(), up, ids)
    assert alg.absorb(ROUND, server, total) == {"y": torch.tensor(35.0)}
    assert server["y"].item() == 5.0


def test_merge_steps_see_what_the_ones_before_them_changed():
    first, second = Sum("y", 10.0), Largest("z", "y")
    declared = {"y": Number(1.0), "z": Number(0.0)}
    results = {}
    for merge in ((first, second), (second, first)):
        alg = numbers(merge=merge, server=declared)
        server = alg.init(ROUND.setup)
        total = alg.fold(ROUND, server, Total(), upload(2.0), torch.tensor([0]))
        total = alg.fold(ROUND, server, total, upload(3.0), torch.tensor([1]))
        after = alg.absorb(ROUND, server, total)
        results[type(merge[0]).__name__] = (after["y"].item(), after["z"].item())
    assert results == {"Sum": (51.0, 153.0), "Largest": (51.0, 3.0)}


def test_two_merges_of_one_kind_keep_their_sums_apart():
    alg = numbers(merge=(Sum("y"), Sum("z", -1.0)), server={"y": Number(1.0), "z": Number(0.0)})
    server = alg.init(ROUND.setup)
    total = alg.fold(ROUND, server, Total(), upload(2.0, 3.0), torch.tensor([0, 1]))
    assert {name: x.item() for name, x in alg.absorb(ROUND, server, total).items()} == {"y": 6.0, "z": -5.0}


def test_two_merges_of_one_field_build_on_each_other():
    alg = numbers(merge=(Sum("y"), Sum("y", 10.0)))
    server = alg.init(ROUND.setup)
    total = alg.fold(ROUND, server, Total(), upload(2.0, 3.0), torch.tensor([0, 1]))
    assert alg.absorb(ROUND, server, total)["y"].item() == 1.0 + 5.0 + 50.0


def test_mix_steps_run_in_their_order():
    alg = numbers(mix=(Take("y"), Affine("y", "y", 2.0), Affine("y", "y", 1.0, 3.0)))
    down = Parcel({"y": Field(torch.tensor([5.0]))})
    assert alg.receive(ROUND, {"x": torch.tensor([0.0])}, down, None)["y"].tolist() == [13.0]


def test_a_common_number_is_taken_by_every_client_and_one_of_its_own_as_it_is():
    for field in (Field(torch.tensor([1.0, 2.0]), common=True), Field(torch.tensor([[1.0, 2.0]] * 3))):
        taken = Take("mu")(None, {}, {"mu": field}, range(3))["mu"]
        assert taken.tolist() == [[1.0, 2.0]] * 3


def test_train_steps_run_in_their_order():
    double, add = Affine("x", "x", 2.0), Affine("x", "x", 1.0, 3.0)
    found = [
        numbers(train=(Affine("y", "x"), *steps)).work(ROUND, {"y": torch.tensor([5.0])}, None)[0]["x"].item()
        for steps in ((double, add), (add, double))
    ]
    assert found == [13.0, 16.0]


def test_only_declared_layers_are_kept():
    rows = {name: torch.ones(2, *spec.shape) for name, spec in LAYOUT.specs.items()}
    alg = replace(fedper(personal="none"), train=(), send=(), merge=(), server={"theta": fedavg().server["theta"]})
    memory, _, _ = alg.work(ROUND, {"theta": rows}, None)
    assert memory == {"theta": {}}


# Deployment


def test_tune_works_on_a_copy():
    alg = replace(fedavg(), tune=(LocalTraining(lr=0.5),))
    sim = Case(alg, "follow", 1.0, 1).plain
    rnd, ids = sim.at(0), torch.arange(3)
    task = sim.task(ids, rnd)
    memory = alg.receive(rnd, alg.enrol(sim.setup, ids), alg.download(rnd, alg.init(sim.setup), ids), task)
    before = clone(memory)
    row = alg.deploy(rnd, memory, task)
    assert list(flatten(memory)) == list(flatten(before))
    assert all(torch.equal(x, flatten(before)[name]) for name, x in flatten(memory).items())
    assert not torch.allclose(row["fc.weight"], memory["theta"]["fc.weight"])


def test_tune_changes_nothing_that_is_kept_or_sent():
    tuned = numbers(tune=(Affine("x", "x", 100.0),))
    client = {"y": torch.tensor([5.0]), "x": torch.tensor([1.0])}
    memory, up, _ = tuned.work(ROUND, client, None)
    assert memory["x"].tolist() == [10.0] == up["x"].tensor.tolist()


def test_without_tune_the_row_is_deployed_as_received():
    alg = fedprox()
    memory = {"theta": {"0.weight": torch.ones(1, 2, 2)}, "anchor": {}}
    assert alg.deploy(ROUND, memory, None) is memory["theta"]
