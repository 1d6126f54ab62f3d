"""The schema of uploads: known without data, checked by every executor before the server's state is touched."""

import re
from dataclasses import replace
from functools import cache

import pytest
import torch

from simulations import built, federation
from stratafl.algorithms import algorithm, fedavg, fedper, flayer, heurpfedla
from stratafl.core import wire
from stratafl.core.algorithm import Algorithm, Total, Work
from stratafl.core.fields import Number
from stratafl.core.form import FieldForm, Form, TensorForm
from stratafl.core.layerwise import Layerwise
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Parcel
from stratafl.core.phased import Phased
from stratafl.core.records import record
from stratafl.core.rehearsal import Rehearsal
from stratafl.core.schema import misfit
from stratafl.core.state import rows_of
from stratafl.core.steps import MergeSums, Send
from stratafl.errors import RecordError, WireError
from stratafl.execute import Debug, Matrix, Messages, simulation
from stratafl.policies import Mean, Upload
from stratafl.testing import difference, tiny_model
from stratafl.testing.watch import Tampered

EXECUTORS = {"matrix": Matrix(chunk=1), "messages": Messages(), "debug": Debug()}
SIZES = (9, 8, 7, 6, 5, 4)


def made(method, **options):
    """A small one: a single step of each client, which are told apart by their counts."""
    if isinstance(method, Layerwise | Phased):
        return built(method, sizes=SIZES, batchnorm=False, **options)
    return simulation(method, federation(SIZES), tiny_model(False), rounds=2, dtype=torch.float64)


# The form is known without data


def test_the_form_of_fedavg_by_hand():
    sim = made(fedavg())
    theta = {name: TensorForm("F64", spec.shape) for name, spec in sim.setup.layout.specs.items()}
    assert fedavg().upload_form(sim.at(0), sim.start().server) == Form(
        {
            "theta": FieldForm(False, "none", theta, "finite"),
            "samples": FieldForm(False, "none", TensorForm("I64", ()), "positive"),
        }
    )


def test_each_phase_has_its_own_form_found_once():
    method = algorithm("fedavg30local", warmup=1)
    sim, found = made(method, rounds=4), []

    class Counted(Tampered):
        def upload_form(self, rnd, server):
            found.append(rnd.t)
            return super().upload_form(rnd, server)

    replace(sim, algorithm=Counted(method, {})).run(Matrix())
    phases = [sim.at(t).plan.phase for t in range(sim.rounds)]
    assert len(set(phases)) > 1
    assert found == [t for t, phase in enumerate(phases) if phase not in phases[:t]]


class Counts(Algorithm):
    """Not a record of steps: clients send how often they have each class, and the server adds that up."""

    def init(self, setup):
        return {"counts": torch.zeros(setup.classes, dtype=torch.float64), "theta": dict(setup.start)}

    def enrol(self, setup, ids):
        return {}

    def download(self, rnd, server, ids, new=False):
        return Parcel({"theta": Field(server["theta"], common=True)})

    def receive(self, rnd, client, parcel, task):
        return {"theta": {n: x.expand(len(task), *x.shape) for n, x in parcel["theta"].rows.items()}}

    def work(self, rnd, client, task):
        counts = Field(task.class_counts("train").double())
        return Work({}, Parcel({"counts": counts, "samples": Field(task.sizes("train"))}), client["theta"])

    def fold(self, rnd, server, total, uploads, ids):
        before = total.sums[0]["counts"] if total.sums else torch.zeros_like(server["counts"])
        return Total(({"counts": before + uploads["counts"].tensor.sum(0)},))

    def absorb(self, rnd, server, total):
        return {**server, "counts": total.sums[0]["counts"]}


def test_an_algorithm_that_is_not_a_record_of_steps_has_a_form_too():
    sim = made(Counts())
    form = Counts().upload_form(sim.at(0), sim.start().server)
    assert form.fields["counts"] == FieldForm(False, "none", TensorForm("F64", (3,)), "finite")
    after, report = sim.round(sim.start(), Messages())
    assert not report.left_out
    assert after.server["counts"].sum() == sum(sim.runtime.federation.counts("train"))


def test_an_algorithm_that_cannot_be_rehearsed_is_told_what_to_do():
    class Picky(Counts):
        def work(self, rnd, client, task):
            raise ZeroDivisionError("no data")

    says = r"Picky.*ZeroDivisionError: no data.*upload_form\(rnd, server\)"
    with pytest.raises(RecordError, match=says) as refusal:
        made(Picky()).algorithm.upload_form(made(Picky()).at(0), {"theta": {}})
    assert "\n" not in str(refusal.value)


def test_the_client_of_a_rehearsal_has_samples_of_every_class_and_learns_nothing():
    sim = made(fedavg())
    task, rows = Rehearsal(sim.at(0)), {n: x[None] for n, x in sim.setup.start.items()}
    assert task.class_counts().tolist() == [[2, 2, 2]]
    assert task.sizes().tolist() == [6]
    z, y, weight = task.features(rows, "train")
    real = sim.task(torch.tensor([0]), sim.at(0)).features(rows, "train")
    assert [x.dtype for x in (z, y, weight)] == [x.dtype for x in real]
    assert z.shape == (1, 6, real[0].shape[-1])
    assert y.tolist() == [[0, 0, 1, 1, 2, 2]]
    scores = task.scores(rows, "train")
    assert [x.dtype for x in (scores.hits, scores.loss, scores.count)] == [torch.float64, torch.float64, torch.int64]
    assert task.scan(None, rows, batch=3) is rows
    assert not any(x.any() for x in task.gradients(rows, None).rows.values())


# What is refused


def changed(name, **change):
    return lambda parcel: Parcel({**parcel, name: replace(parcel[name], **change)})


def without(parcel, *names):
    return Parcel({name: field for name, field in parcel.items() if name not in names})


def theta(function):
    return lambda p: Parcel({**p, "theta": replace(p["theta"], value=function(dict(p["theta"].rows)))})


def stacked(rows):
    return {name: x.unsqueeze(1).expand(1, *x.shape[1:2], *x.shape[1:]) for name, x in rows.items()}


HOSTILE = {
    "no theta": (lambda p: without(p, "theta"), "theta"),
    "no samples": (lambda p: without(p, "samples"), "samples"),
    "a field more": (lambda p: Parcel({**p, "more": p["samples"]}), "more"),
    "float32": (theta(lambda rows: {n: x.float() for n, x in rows.items()}), "theta"),
    "half of the tensors": (theta(lambda rows: dict(list(rows.items())[::2])), "theta"),
    "a tensor more": (theta(lambda rows: {**rows, "fc.scale": rows["fc.bias"]}), "fc.scale"),
    "stacked rows": (theta(stacked), "theta"),
    "another shape": (theta(lambda rows: {**rows, "fc.bias": rows["fc.bias"][:, :2]}), "fc.bias"),
    "one number for all": (theta(lambda rows: {**rows, "fc.bias": rows["fc.bias"][:, :1]}), "fc.bias"),
    "one tensor": (changed("theta", value=torch.zeros(1, 3, dtype=torch.float64)), "theta"),
    "common": (lambda p: Parcel({**p, "theta": Field({n: x[0] for n, x in p["theta"].rows.items()}, True)}), "theta"),
    "NaN": (theta(lambda rows: {**rows, "fc.bias": rows["fc.bias"] * torch.nan}), "theta"),
    "infinity": (theta(lambda rows: {**rows, "fc.bias": rows["fc.bias"] - torch.inf}), "theta"),
    "-5 samples": (changed("samples", value=torch.tensor([-5])), "samples"),
    "0 samples": (changed("samples", value=torch.tensor([0])), "samples"),
    "samples as float": (changed("samples", value=torch.tensor([31.0], dtype=torch.float64)), "samples"),
    "two counts": (changed("samples", value=torch.tensor([[31, 31]])), "samples"),
    "no counts": (changed("samples", value=torch.zeros(1, 0, dtype=torch.int64)), "samples"),
    "rows as samples": (lambda p: Parcel({**p, "samples": p["theta"]}), "samples"),
    "a layer mask": (
        lambda p: Parcel({**p, "theta": replace(p["theta"], mask=LayerMask(torch.ones(1, 2, dtype=torch.bool)))}),
        "theta",
    ),
    "a column mask": (
        lambda p: Parcel({**p, "theta": replace(p["theta"], mask=ColumnMask(_ones(p["theta"].rows)))}),
        "theta",
    ),
}


def _ones(rows):
    return {name: torch.ones_like(x, dtype=torch.bool) for name, x in rows.items()}


@cache
def _without_client_4(executor):
    sim = made(fedavg())
    return sim.round(sim.start(), EXECUTORS[executor], torch.tensor([0, 1, 2, 3, 5]))[0]


def _in_turn():
    """Every upload with one executor, and slowly with the others."""
    for number, what in enumerate(HOSTILE):
        for place, executor in enumerate(EXECUTORS):
            yield pytest.param(what, executor, marks=() if number % 3 == place else pytest.mark.slow)


@pytest.mark.parametrize(("what", "executor"), list(_in_turn()))
def test_every_executor_leaves_the_client_out_and_names_the_field(what, executor):
    change, field = HOSTILE[what]
    sim, expected = made(fedavg()), _without_client_4(executor)
    before = sim.start()
    after, report = _tampered(sim, {4: change}, before, EXECUTORS[executor])
    (left,) = report.left_out
    assert left.client == 4
    # A flag is not part of a message, and one that is too large is not looked into.
    assert field in left.reason or executor == "messages"
    assert left.reason.isprintable()
    assert difference(after.tensors(), expected.tensors()) == 0


def _tampered(sim, changes, before, executor):
    if isinstance(executor, Debug):  # which raises where a value is not finite, before anything is sent

        class Late(Debug):
            def carry(self, parcel, layout, form=None):
                return super().carry(parcel if form is None else self.change(parcel), layout, form)

            def change(self, parcel):
                client = next((i for i, n in enumerate(counts) if _is(parcel, n)), None)
                return changes.get(client, lambda p: p)(parcel)

        counts = sim.runtime.federation.counts("train").tolist()
        return sim.round(before, Late(), torch.arange(6))
    return replace(sim, algorithm=Tampered(sim.algorithm, changes)).round(before, executor, torch.arange(6))


def _is(parcel, count):
    return parcel["samples"].tensor.tolist() == [count]


def test_masks_of_columns_may_choose_columns_but_nothing_else():
    sim = made(flayer())
    rnd, ids = sim.at(0), torch.tensor([2])
    task = sim.task(ids, rnd)
    client = sim.algorithm.receive(
        rnd, sim.client_states({}, ids), sim.algorithm.download(rnd, sim.start().server, ids), task
    )
    upload = sim.algorithm.work(rnd, client, task).upload
    form = sim.upload_form(rnd, sim.start().server)
    others = ColumnMask({name: ~sent for name, sent in upload["theta"].mask.sent.items()})
    assert misfit(changed("theta", mask=others)(upload), form, rnd.layout, 1) == ""
    fewer = ColumnMask({name: sent for name, sent in others.sent.items() if name != "fc.bias"})
    wide = ColumnMask({**others.sent, "fc.bias": torch.ones(1, 4, dtype=torch.bool)})
    numbers = ColumnMask({**others.sent, "fc.bias": torch.ones(1, 3)})
    layers = LayerMask(torch.ones(1, 3, dtype=torch.bool))
    for mask, says in (
        (fewer, "'fc.bias'"),
        (wide, r"torch.bool \(1, 4\).*torch.bool \(1, 3\)"),
        (numbers, "torch.float32"),
        (layers, "'layers'.*'columns'"),
        (None, "'none'.*'columns'"),
    ):
        with pytest.raises(AssertionError, match=says):
            raise AssertionError(misfit(changed("theta", mask=mask)(upload), form, rnd.layout, 1))


# Bounds


@record
class UploadSteps(Send):
    """θ, n_k and a number per client."""

    value: str = "1"
    reads = ("theta",)
    writes = ("up.theta", "up.samples", "up.steps")

    def __call__(self, rnd, client, task):
        value = torch.tensor(float(self.value), dtype=torch.float64)
        return {**Upload()(rnd, client, task), "steps": Field(value.expand(len(task), 2))}


@record
class Weighted(MergeSums):
    """Reads a number per client with a bound."""

    bound: str = "positive"
    reads = ("up.steps", "theta")
    writes = ("theta",)

    @property
    def bounds(self):
        return {"up.steps": self.bound}

    def fold(self, rnd, server, sums, up, ids):
        return {"count": torch.tensor(1.0)}

    def finish(self, rnd, server, sums):
        return {"theta": rows_of(server, "theta")}


@pytest.mark.parametrize(
    ("bounds", "value", "says"),
    [
        (("positive",), 0.0, "'steps'.* 0,.*above 0"),
        (("positive",), 1e-300, None),
        (("nonnegative",), 0.0, None),
        (("nonnegative",), -1.0, "'steps'.*-1,.*at least 0"),
        (("finite",), -1.0, None),
        (("finite",), torch.nan, "'steps'"),
        (("nonnegative", "positive"), 0.0, "above 0"),  # the strictest
        (("positive", "finite"), 0.0, "above 0"),
    ],
)
def test_a_merge_says_what_it_can_use(bounds, value, says):
    merge = (Mean(), *(Weighted(bound) for bound in bounds))
    method = replace(fedavg(), send=(UploadSteps(str(value)),), merge=merge)
    executor = Messages() if len(bounds) > 1 else Matrix()
    _, report = made(method).round(made(method).start(), executor)
    assert all(re.search(says, left.reason) for left in report.left_out)
    assert len(report.left_out) == (6 if says else 0)


def test_counts_are_above_0_without_a_word_from_the_merge():
    assert fedper().bounds == {"samples": "positive"}
    assert replace(fedavg(), server={**fedavg().server, "steps": Number(0.0)}).bounds == {"samples": "positive"}


# On the wire


@pytest.mark.parametrize(
    "method", [fedavg(), flayer(), pytest.param(heurpfedla(k=1), marks=pytest.mark.slow)], ids=lambda m: ""
)
def test_decoding_refuses_values_and_names_the_field(method):
    sim = made(method)
    rnd, ids = sim.at(0), torch.tensor([2])
    task = sim.task(ids, rnd)
    download = sim.algorithm.download(rnd, sim.start().server, ids)
    client = sim.algorithm.receive(rnd, sim.client_states({}, ids), download, task)
    upload, form = sim.algorithm.work(rnd, client, task).upload, sim.upload_form(rnd, sim.start().server)
    assert wire.decode(wire.encode(upload, rnd.layout), rnd.layout, form).keys() == upload.keys()
    bad = theta(lambda rows: {**rows, "fc.bias": torch.full_like(rows["fc.bias"], torch.inf)})(upload)
    with pytest.raises(WireError, match="'theta'"):
        wire.decode(wire.encode(bad, rnd.layout), rnd.layout, form)
    if "samples" in upload:
        bad = changed("samples", value=torch.tensor([-5]))(upload)
        with pytest.raises(WireError, match=r"'samples'.*-5.*above 0"):
            wire.decode(wire.encode(bad, rnd.layout), rnd.layout, form)


def test_a_message_of_another_form_is_refused_with_the_first_difference():
    sim = made(fedavg())
    form = sim.upload_form(sim.at(0), sim.start().server)
    upload = Parcel(
        {
            "theta": Field({name: x[None] for name, x in sim.setup.start.items()}),
            "samples": Field(torch.tensor([3])),
        }
    )
    for what, says in {
        "no theta": "'value/theta/fc1.weight'",
        "no samples": "'value/samples'",
        "float32": r"'value/theta/fc1.weight'.*F32 \(8, 36\).*F64 \(8, 36\)",
        "half of the tensors": "'value/theta/fc1.bias'",
        "samples as float": r"'value/samples'.*F64 \(\).*I64 \(\)",
    }.items():
        data = wire.encode(HOSTILE[what][0](upload), sim.setup.layout)
        with pytest.raises(WireError, match=says):
            wire.decode(data, sim.setup.layout, form)
