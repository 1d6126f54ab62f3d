"""Uploads that no server can use are left out of the round, and updates that are far from the others' are named."""

import re
from dataclasses import replace

import pytest
import torch

from simulations import built
from stratafl.algorithms import fedalp, fedavg, fedlag, fedper, flayer, local
from stratafl.api import fit
from stratafl.core.form import form_of
from stratafl.core.layers import Layer
from stratafl.core.layout import Layout, Spec
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Parcel
from stratafl.core.schema import NOT_FINITE
from stratafl.core.state import flatten
from stratafl.errors import StageError
from stratafl.evaluation.measure import upload_line
from stratafl.evaluation.trial import Trial
from stratafl.execute import Debug, Matrix, Messages, simulation, uploads
from stratafl.execute.uploads import ENDLESS, FAR, LeftOut, OutlyingUpdate, inspect, outlying_updates
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.testing import difference, tiny_federation, tiny_model
from stratafl.testing.watch import Tampered, Watched, claiming, not_finite

NAN = torch.nan
THETA = f"{NOT_FINITE} in field 'theta'"
BAD = {
    "one NaN": not_finite(),
    "infinite": not_finite(torch.inf),
    "10^12 samples": claiming(10**12),
    "fewer than none": claiming(-(10**6)),
    "NaN samples": claiming(NAN),
}
METHODS = {
    "fedalp": fedalp(groups=2, warmup=1),
    "fedlag": fedlag(k=1, xi=0.0, warmup=0),
    "fedper": fedper(),
    "flayer": flayer(),
    "local": local(),
}


def made(method, **options):
    options = {"rounds": 2, "dtype": torch.float64, "buffers": "local"} | options
    return simulation(method, tiny_federation(), tiny_model(batchnorm=False), **options)


def tampered(sim, **changes):
    return replace(sim, algorithm=Tampered(sim.algorithm, {int(i.strip("c")): BAD[how] for i, how in changes.items()}))


# The round


@pytest.mark.parametrize("name", ["fedalp", "fedlag", "local"])  # the contract has a law for every method
def test_the_others_are_where_they_would_be_without_them(name):
    sim, everybody = made(METHODS[name]), torch.arange(6)
    progress = sim.start()
    for changes in ({"c1": "one NaN", "c3": "10^12 samples"}, {"c0": "fewer than none", "c2": "NaN samples"}):
        bad = torch.tensor([int(client.strip("c")) for client in changes])
        without, plain = sim.round(progress, Matrix(), everybody[~torch.isin(everybody, bad)])
        after, report = tampered(sim, **changes).round(progress, Matrix(), everybody)
        if plain.up.total == 0:  # a method that sends nothing
            assert not report.left_out
            return
        assert [each.client for each in report.left_out] == bad.tolist()
        assert difference(after.tensors(), without.tensors()) <= 1e-12
        progress, _ = sim.round(progress, Matrix(), everybody)


@pytest.mark.parametrize(
    ("name", "executor"), [("fedlag", Matrix(chunk=2)), ("fedper", Messages()), ("flayer", Matrix())]
)
def test_every_executor_leaves_out_the_same(name, executor):
    sim = made(METHODS[name])
    cohort = sim.cohort(sim.at(0))
    after, report = tampered(sim, c1="one NaN", c4="10^12 samples").round(sim.start(), executor)
    without, _ = sim.round(sim.start(), Matrix(), cohort[~torch.isin(cohort, torch.tensor([1, 4]))])
    assert difference(after.tensors(), without.tensors()) <= 1e-12
    first, second = report.left_out
    assert (first, second.client) == (LeftOut(1, THETA), 4)
    assert re.search(r"\b1000000000000\b.*\b7\b", second.reason)
    assert report.present.tolist() == [0, 2, 3, 5]
    assert report.up.clients.shape == (6,)  # they have sent their bytes all the same


def test_where_nobody_is_left_everything_stays_as_it_was():
    sim = made(fedper())
    before, _ = sim.round(sim.start(), Matrix())
    after, report = tampered(sim, c0="one NaN", c5="infinite").round(before, Matrix(), torch.tensor([5, 0]))
    assert after.t == before.t + 1
    assert difference(after.tensors(), replace(before, t=after.t).tensors()) == 0
    assert report.left_out == (LeftOut(5, THETA), LeftOut(0, THETA))


def test_the_debugger_says_where_it_came_about():
    sim = made(fedavg())
    with pytest.raises(StageError, match=r"'work'.* 2,.*'fc'.*'theta'.* 1 of 3 "):
        tampered(sim, c2="one NaN").round(sim.start(), Debug())
    _, report = tampered(sim, c2="10^12 samples").round(sim.start(), Debug())
    assert [each.client for each in report.left_out] == [2]


# What is looked at

LAYOUT = Layout(
    (Spec("a.weight", (2,), 0, True), Spec("a.mean", (1,), 0, False), Spec("b.weight", (1,), 1, True)),
    (
        Layer("a", "linear", "a", False, None, ("a.weight", "a.mean")),
        Layer("b", "linear", "b", True, None, ("b.weight",)),
    ),
)
RECEIVED = {"a.weight": torch.ones(2, 2), "a.mean": torch.zeros(2, 1), "b.weight": torch.zeros(2, 1)}


def looked_at(held=(4, 7), state=None, received=None, sent=None, **fields):
    parcel = Parcel(fields)
    form = form_of(parcel.pick(slice(0, 1)), LAYOUT).bounded({"samples": "positive"})
    before = {"theta": received or Field(RECEIVED)}
    return inspect(parcel, form, state or {}, before, torch.tensor(held), LAYOUT, sent=sent)


def theta(a=((1, 1), (1, 1)), mean=((0,), (0,)), b=((0,), (0,)), mask=None, dtype=torch.float32):
    blocks = {"a.weight": a, "a.mean": mean, "b.weight": b}
    return Field({name: torch.tensor(x, dtype=dtype) for name, x in blocks.items()}, mask=mask)


def test_the_norm_is_of_what_was_learned_over_trainable_columns():
    found = looked_at(theta=theta(a=((1, 4), (1, 1)), mean=((9,), (9,)), b=((4,), (-2,))))
    assert found.norms == [5.0, 2.0]
    assert found.reasons == ["", ""]


@pytest.mark.parametrize("shape", [(), (7,), (5, 4)])
@pytest.mark.parametrize("piece", [1, 9, 2**20])
def test_a_norm_is_the_same_whether_columns_are_summed_together_or_in_pieces(shape, piece, monkeypatch):
    monkeypatch.setattr(uploads, "COLUMNS", piece)
    draw = torch.Generator().manual_seed(0)
    after = torch.randn(3, *shape, generator=draw)
    before = torch.randn(1, *shape, generator=draw).expand(3, *shape)  # what all received
    sent = torch.rand(3, *shape, generator=draw) < 0.5
    expected = (after - before).double().pow(2)
    assert torch.allclose(uploads._square(after, before, []), expected.reshape(3, -1).sum(1), rtol=1e-14)
    holes = after.masked_fill(~sent, NAN)
    assert torch.allclose(uploads._square(holes, before, [sent]), (expected * sent).reshape(3, -1).sum(1), rtol=1e-14)


def test_an_update_is_measured_once_for_each_start(monkeypatch):
    """A client's own layer counts from what it has and, as a part of the upload, from what the server sent."""
    own = Field({**RECEIVED, "b.weight": torch.ones(2, 1)})
    measured, square = [], uploads._square
    monkeypatch.setattr(uploads, "_square", lambda block, *rest: measured.append(block) or square(block, *rest))
    found = looked_at(theta=theta(b=((4,), (-2,))), received=own, sent={"theta": Field(RECEIVED)})
    assert (found.norms, found.lengths["update"]) == ([3.0, 3.0], [4.0, 2.0])
    assert len(measured) == 4  # a.weight and a.mean once, b.weight twice


def test_a_norm_does_not_overflow_where_its_square_would():
    assert looked_at(theta=theta(b=((3e30,), (0,)))).norms == [pytest.approx(3e30), 0.0]


def test_a_column_that_was_sent_and_not_received_is_looked_at():
    """It is in no update, so that a finite norm says nothing about it."""
    known = LayerMask(torch.tensor([[True, False], [True, False]]))
    found = looked_at(theta=theta(b=((NAN,), (0,))), received=Field(RECEIVED, mask=known))
    assert (found.reasons, found.norms[0]) == ([THETA, ""], 0.0)


def test_what_was_not_sent_does_not_count():
    layers = LayerMask(torch.tensor([[True, True], [True, False]]))
    found = looked_at(theta=theta(b=((6,), (NAN,)), mask=layers))
    assert (found.reasons, found.norms) == (["", ""], [6.0, 0.0])
    sent = {name: torch.ones_like(x, dtype=torch.bool) for name, x in RECEIVED.items()}
    sent["a.weight"] = torch.tensor([[True, False], [True, True]])
    found = looked_at(theta=theta(a=((3, NAN), (NAN, 1)), mask=ColumnMask(sent)))
    assert found.reasons == ["", THETA]
    assert found.norms[0] == 2.0
    assert found.sound.tolist() == [0]


def test_what_was_not_received_does_not_count():
    """A server sent the second client only the first layer; to both it sends the same values, or each its own."""
    up = theta(a=((1, 4), (1, 1)), b=((4,), (6,)))
    each = Field(
        {**RECEIVED, "b.weight": torch.tensor([[0.0], [1e9]])}, mask=LayerMask(torch.tensor([[1, 1], [1, 0]]) > 0)
    )
    assert looked_at(received=each, theta=up).norms == [5.0, 0.0]
    common = Field({name: x[0] for name, x in RECEIVED.items()}, common=True)
    assert looked_at(received=common, theta=up).norms == [5.0, 6.0]
    masked = replace(common, mask=LayerMask(torch.tensor([False, True])))
    assert looked_at(received=masked, theta=up).norms == [4.0, 6.0]


def test_a_norm_that_overflows_is_a_reason():
    huge = theta(b=((1e200,), (0,)), dtype=torch.float64)
    assert looked_at(theta=huge).reasons == [ENDLESS, ""]


@pytest.mark.parametrize("value", [NAN, torch.inf, -torch.inf])
def test_one_value_of_any_field_is_enough(value):
    for fields in (
        {"theta": theta(a=((1, 1), (value, 1)))},
        {"theta": theta(mean=((0,), (value,)))},  # statistics are averaged as well
        {"theta": theta(), "more": Field(torch.tensor([[0.0, 1.0], [value, 1.0]]))},
    ):
        more = f"{NOT_FINITE} in field 'more'"
        assert looked_at(**fields).reasons == ["", more if "more" in fields else THETA]
    assert looked_at(more=Field(torch.tensor([value]), common=True)).reasons == [more, more]


def test_the_largest_numbers_are_finite():
    most = torch.finfo(torch.float32).max
    assert looked_at(theta=theta(a=((most, -most), (1, 1)))).reasons == ["", ""]


def test_a_count_is_the_clients_own():
    assert looked_at(held=(4, 7), counts=Field(torch.tensor([1, 1]))).reasons == ["", ""]
    found = looked_at(held=(4, 7), samples=Field(torch.tensor([4, 8])))
    assert found.reasons[0] == ""
    assert re.search(r"\b8\b.*\b7\b", found.reasons[1])
    assert looked_at(held=(4, 7), samples=Field(torch.tensor([3, 7]))).reasons[0] != ""  # fewer count for less


def test_who_sends_nothing_is_left_out_if_its_own_model_is_not_finite():
    found = looked_at()
    assert (found.reasons, found.norms) == (["", ""], [0.0, 0.0])
    found = looked_at(state={"theta": {"b.weight": torch.tensor([[1.0], [NAN]])}, "steps": torch.tensor([1, 2])})
    assert found.reasons == ["", uploads.STATE_NOT_FINITE]


@pytest.mark.slow
def test_a_model_that_is_not_sent_and_overflows_is_not_kept():
    """Training alone sends nothing: a client whose model is lost is where it was, and is named."""
    torch.manual_seed(0)  # a model whose units are all dead would not overflow
    clients = [(torch.zeros(40, 4), torch.tensor([0, 1] * 20)) for _ in range(4)]
    clients[1] = (torch.full((40, 4), 1e30), clients[1][1])
    model = build("mlp", shape=(4,), classes=2, hidden=(4,))
    fitted = fit(local(train=LocalTraining(lr=1e10)), clients, model, rounds=2, normalise="none")
    assert [[each["client"] for each in line["left_out"]] for line in fitted.history] == [[1], [1]]
    assert all(bool(x.isfinite().all()) for x in fitted.client(1).model.state_dict().values())


# Who is far from the others


def test_ten_times_the_median_is_far():
    assert outlying_updates([3, 1, 4, 2], [1.0, 2.0, 3.0, 25.0]) == (OutlyingUpdate(2, 10.0),)
    assert outlying_updates([3, 1, 4, 2], [1.0, 2.0, 3.0, 24.9]) == ()
    assert outlying_updates(range(5), [2.0] * 4 + [2.0 * FAR * 123.45]) == (OutlyingUpdate(4, 1230.0),)
    assert outlying_updates(range(4), [1.0, 1.0, 1.0, torch.inf]) == (OutlyingUpdate(3, None),)


def test_of_few_nobody_is_far_and_who_did_not_move_does_not_count():
    assert outlying_updates([0, 1], [1.0, 100.0]) == ()
    assert outlying_updates(range(5), [0.0, 0.0, 0.0, 1.0, 100.0]) == ()
    assert outlying_updates([0, 1, 2], [1.0, 1.0, 100.0]) == (OutlyingUpdate(2, 100.0),)
    assert outlying_updates(range(7), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 100.0]) == (OutlyingUpdate(6, 100.0),)
    assert (
        outlying_updates(range(7), [0.0, 0.0, 0.0, 1.0, 10.0, 10.0, 10.0]) == ()
    )  # the median of those who moved is 10
    assert outlying_updates(range(4), [torch.inf] * 4) == ()


def test_a_client_with_data_in_another_unit_is_named_and_takes_part():
    federation = tiny_federation()
    x = federation.x.clone()
    x[federation.split("train").of(3)] *= 1e4
    sim = simulation(fedavg(), replace(federation, x=x), tiny_model(batchnorm=False), rounds=1, dtype=torch.float64)
    _, whole = sim.round(sim.start(), Matrix())
    assert [each.client for each in whole.outliers] == [3]
    assert whole.outliers[0].ratio > 100
    assert not whole.left_out
    _, chunks = sim.round(sim.start(), Matrix(chunk=2))
    assert chunks.outliers == whole.outliers


# The line of a round


def test_the_line_of_a_round_names_them_and_its_loss_is_that_of_the_others():
    sim = made(fedper(), dtype=torch.float32)
    names = ("ann", "bob", "cem", "dee", "eva", "fay")
    federation = replace(sim.runtime.federation, client_names=names)
    x = federation.x.clone()
    x[federation.split("train").of(2)] *= 1e30
    sim = simulation(fedper(), replace(federation, x=x), tiny_model(batchnorm=False), rounds=1)
    progress, entry = Trial(sim).round(sim.start())
    assert entry.round["left_out"] == [{"client": 2, "name": "cem", "reason": THETA}]
    assert entry.round["cohort"] == 6
    assert 0 < entry.round["train.loss"] < 10
    assert 2 not in progress.clients
    as_received = [each["client"] for each in entry.clients if each["test.trained.loss"] == each["test.received.loss"]]
    assert as_received == [2]  # it has never trained, and counts all the same
    assert entry.round["trained.clients"] == 5


def test_a_round_without_either_says_nothing():
    sim = made(local())
    _, report = sim.round(sim.start(), Matrix())
    assert upload_line(report) == {}


def test_where_all_diverge_the_server_keeps_its_last_finite_state():
    sim = made(fedavg(train=LocalTraining(lr=1e30, epochs=2)), dtype=torch.float32)
    progress, entry = Trial(sim).round(sim.start())
    assert [each["client"] for each in entry.round["left_out"]] == sim.cohort(sim.at(0)).tolist()
    assert difference({"": progress.server["theta"]["fc.weight"]}, {"": sim.setup.start["fc.weight"]}) == 0
    assert entry.round["test.trained.loss"] == entry.round["test.received.loss"]
    assert entry.round["test.deployed.loss"] < 10


class Overflowing(Watched):
    """A method whose merge makes an infinite model of finite uploads."""

    def absorb(self, rnd, server, total):
        after = super().absorb(rnd, server, total)
        return {**after, "theta": {n: x / 0 for n, x in after["theta"].items()}}


def test_a_merge_that_overflows_leaves_the_server_as_it_was():
    sim = built("fedper", batchnorm=False)
    before = sim.start()
    after, report = replace(sim, algorithm=Overflowing(sim.algorithm)).round(before, Matrix())
    assert not report.left_out
    assert difference(flatten(after.server), flatten(before.server)) == 0
