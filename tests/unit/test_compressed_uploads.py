"""Compressed uploads that no client can mean: left out with the reason, alone or in a group; the round goes on."""

import re
from dataclasses import replace

import pytest
import torch

from simulations import built
from stratafl.algorithms import fedavg, fedlag
from stratafl.algorithms.compress_on import with_q4, with_q8, with_topk
from stratafl.core.parcel import Parcel
from stratafl.execute import Matrix, Messages
from stratafl.runtime import engine
from stratafl.testing.watch import Tampered

Q8, Q4 = with_q8(fedavg(), min_size=8), with_q4(fedavg(), min_size=1)
PHASES = with_q8(fedlag(k=1, xi=0.0, warmup=1), min_size=8)
BITS, INDICES = with_topk(fedavg(), min_size=8), with_topk(fedavg(), keep=0.01, min_size=8)
NAME = "fc1.weight"  # 288 numbers: a tenth are 29 in 36 bytes of places, a hundredth 3 in as many indices


@pytest.fixture(autouse=True)
def untraced(monkeypatch):
    """Steps are not traced: that takes most of the time of a short run."""
    monkeypatch.setattr(engine, "patience", lambda _: float("inf"), raising=False)


def spoilt(part, change, name=NAME):
    def apply(parcel):
        field = parcel[f"theta.{part}"]
        blocks = {**field.rows, name: field.rows[name].clone()}
        change(blocks[name])
        return Parcel({**parcel, f"theta.{part}": replace(field, value=blocks)})

    return apply


def setting(place, value):
    def change(x):
        x[(0, *place)] = value

    return change


def twice(x):
    x[0, 1] = x[0, 0]


def backwards(x):
    x[0] = x[0].flip(0)


def another_bit(x):
    x[0, 0] ^= 128


CASES = {
    "a negative scale": (Q8, "scale", setting((), -0.1), r"'theta\.scale'.*-0\.1"),
    "a scale of NaN": (Q8, "scale", setting((), torch.nan), r"'theta\.scale'"),
    "an infinite scale": (Q4, "scale", setting((), torch.inf), r"'theta\.scale'"),
    "a scale that overflows": (Q8, "scale", setting((), 1e308), "'theta'"),
    "a scale that overflows, in a phase": (PHASES, "scale", setting((), 1e308), "'theta'"),
    "a code too many": (Q8, "codes", setting((5,), 255), r"\b8 bits.*'fc1\.weight'"),
    "half a code too many": (Q4, "codes", setting((5,), 0x0F), r"\b4 bits"),
    "an index too large": (INDICES, "places", setting((2,), 288), r"index.*'fc1\.weight'"),
    "an index below 0": (INDICES, "places", setting((0,), -1), "index"),
    "a repeated or unordered index": (INDICES, "places", twice, r"index.*'fc1\.weight'"),
    "indices backwards": (INDICES, "places", backwards, "index"),
    "a place too many or too few": (BITS, "places", another_bit, "places"),
    "a value of NaN": (BITS, "values", setting((3,), torch.nan), r"'theta\.values'"),
}
BY_MESSAGE = ("a negative scale", "an infinite scale", "a repeated or unordered index", "a place too many or too few")


def made(method):
    return built(method, sizes=(9, 8, 7, 6, 5, 4), batchnorm=False)


def _executors():
    for name in CASES:
        yield name, Matrix()
        yield pytest.param(name, Messages(), marks=() if name in BY_MESSAGE else pytest.mark.slow)


@pytest.mark.parametrize(("name", "executor"), list(_executors()))
def test_it_is_left_out_and_the_others_are_not(name, executor):
    method, part, change, says = CASES[name]
    sim = made(method)
    tampered = replace(sim, algorithm=Tampered(method, {2: spoilt(part, change), 4: spoilt(part, change)}))
    after, report = tampered.round(sim.start(), executor)
    assert [each.client for each in report.left_out] == [2, 4]
    assert all(re.search(says, each.reason) for each in report.left_out), report.left_out
    without, _ = sim.round(sim.start(), executor, torch.tensor([0, 1, 3, 5]))
    for place, x in without.tensors().items():
        assert torch.equal(after.tensors()[place], x)
    assert 2 not in after.clients  # it keeps what it had, its residual too


def test_what_cannot_be_read_is_nan_for_whoever_does_not_ask_why():
    sim, ids = made(Q8), torch.arange(6)
    rnd, server, task = sim.at(0), sim.start().server, sim.task(ids, sim.at(0))
    client = Q8.receive(rnd, Q8.enrol(sim.setup, ids), Q8.download(rnd, server, ids), task)
    work = Tampered(Q8, {2: spoilt("codes", setting((5,), 255))}).work(rnd, client, task)
    rows = Q8.open(rnd, server, work.upload, ids).uploads["theta"].rows[NAME]
    assert rows.isnan().flatten(1).all(1).tolist() == [False, False, True, False, False, False]
    assert not rows[[0, 1, 3, 4, 5]].isnan().any()


def test_an_update_that_is_far_from_the_others_is_named():
    """Norms are those of what arrives, not of codes."""
    sim = made(Q8)

    def louder(x):
        x *= 1e4

    loud = replace(sim, algorithm=Tampered(Q8, {3: spoilt("scale", louder)}))
    _, report = loud.round(sim.start(), Matrix())
    assert not report.left_out
    assert [each.client for each in report.outliers] == [3]
    assert not sim.round(sim.start(), Matrix())[1].outliers
