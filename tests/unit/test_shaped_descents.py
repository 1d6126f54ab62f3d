"""What shapes a descent, by hand: one weight w, samples (x, y), the loss (w·x − y)², its gradient 2·x·(w·x − y)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from stratafl.algorithms.local import alone
from stratafl.core.fields import Number, Start
from stratafl.core.layout import per_row
from stratafl.core.objectives import losses
from stratafl.core.records import record
from stratafl.core.state import rows_of, tensor_of
from stratafl.data import from_splits
from stratafl.errors import RecordError
from stratafl.execute import Matrix, simulation
from stratafl.policies import Clamp, Copy, LocalTraining, Pull

SAMPLES = ([(1.0, 2.0)] * 4, [(2.0, 2.0)] * 2)  # gradients 2·(w − 2) and 4·(2w − 2)
START, RATE = 1.0, 0.1
NAME = "fc.weight"


class Weight(nn.Module):
    """w·x."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.fc.weight, START)

    def forward(self, x):
        return self.fc(x)


def run(*train, samples=SAMPLES, rounds=1, keeping=None, model=Weight):
    """The progress after some rounds of a method with these steps, whose clients keep `keeping` besides."""
    given = [{"train": tuple(np.array(column) for column in zip(*pairs, strict=True))} for pairs in samples]
    federation = from_splits([{"train": (x["train"][0][:, None], x["train"][1])} for x in given], dtype=torch.float64)
    plain = alone()
    made = replace(plain, train=train, client={**plain.client, **(keeping or {})})
    return simulation(made, federation, model, rounds=rounds, dtype=torch.float64, head="fc").run(Matrix())


def weights(progress, field="theta"):
    return [float(rows_of(progress.clients[k], field)[NAME]) for k in sorted(progress.clients)]


def by_hand(first, second):
    """w after so many steps of each client."""
    found = []
    for (x, y), steps in zip((SAMPLES[0][0], SAMPLES[1][0]), (first, second), strict=True):
        w = START
        for _ in range(steps):
            w -= RATE * 2 * x * (w * x - y)
        found.append(w)
    return found


PLAIN = LocalTraining(lr=RATE, batch=1)


def test_an_epoch_by_hand():
    assert weights(run(PLAIN)) == pytest.approx(by_hand(4, 2), abs=1e-12)
    assert by_hand(1, 1) == pytest.approx([1.2, 1.0])


def test_repeats_use_each_batch_several_times():
    progress = run(replace(PLAIN, repeats=3), CountedAsNumber(), keeping={"steps": Number()})
    assert weights(progress) == pytest.approx(by_hand(12, 6), abs=1e-12)
    assert [float(progress.clients[k]["steps"]) for k in range(2)] == [12.0, 6.0]


@record
class CountedAsNumber(Copy):
    """The number of steps, as a number that clients keep."""

    source: str = "steps"
    into: str = "steps"

    def __call__(self, rnd, client, task):
        return {"steps": tensor_of(client, "steps").double()}


def test_repeats_go_batch_by_batch():
    """Samples (1, 2) and (1, 0) without shuffling: three steps towards 2, then three towards 0."""
    progress = run(replace(PLAIN, repeats=3, shuffle=False), samples=([(1.0, 2.0), (1.0, 0.0)],))
    w = 2 - (2 - START) * 0.8**3
    assert weights(progress) == pytest.approx([w * 0.8**3], abs=1e-12)


@pytest.mark.parametrize(("share", "first", "second"), [(0.5, 2, 1), (0.6, 3, 2), (0.1, 1, 1), (1.0, 4, 2)])
def test_a_share_of_the_batches(share, first, second):
    """⌈share·4⌉ and ⌈share·2⌉ of the batches of each of two epochs."""
    progress = run(replace(PLAIN, share=share, epochs=2))
    assert weights(progress) == pytest.approx(by_hand(2 * first, 2 * second), abs=1e-12)


def test_a_share_takes_the_first_batches_of_a_shuffle():
    progress = run(replace(PLAIN, share=0.5, shuffle=False), samples=([(1.0, 2.0), (1.0, 0.0)],))
    assert weights(progress) == pytest.approx([1.2], abs=1e-12)


def test_epochs_from_a_field_differ_between_clients():
    """The field begins at 2 for everybody; the second client's becomes 0 after the first round."""
    counted = replace(PLAIN, epochs_from="passes")
    progress = run(counted, Fewer(), keeping={"passes": Number(2.0)}, rounds=2)
    assert weights(progress) == pytest.approx(by_hand(16, 4), abs=1e-12)


@record
class Fewer(Copy):
    """The client with more samples keeps its epochs, the other has none from now on."""

    source: str = "passes"
    into: str = "passes"

    def __call__(self, rnd, client, task):
        return {"passes": tensor_of(client, "passes") * (task.sizes("train") > 2)}


def test_a_projection_brings_every_step_back():
    """Towards 2 and towards 1 from 1, kept at most 1.1 (after each step) or at least 1.3."""
    assert weights(run(replace(PLAIN, project=Clamp(0.0, 1.1)))) == pytest.approx([1.1, 1.0], abs=1e-12)
    # The second client is put to 1.3 and goes from there to 1.3 − 0.1·4·0.6 = 1.06, and back.
    assert weights(run(replace(PLAIN, project=Clamp(1.3, 9.0))))[1] == pytest.approx(1.3, abs=1e-12)


@record
class Trail:
    """v ← v + rate·(w − v), with w after the step."""

    reads = writes = ("trail",)

    def __call__(self, row, client, layout, rate):
        v = rows_of(client, "trail")
        return {"trail": {n: v[n] + per_row(rate, v[n]) * (row[n] - v[n]) for n in v}}


@record
class OneRate(Trail):
    """Takes the rates of all clients for one number."""

    def __call__(self, row, client, layout, rate):
        v = rows_of(client, "trail")
        return {"trail": {n: v[n] + rate * (row[n] - v[n]) for n in v}}


def test_a_follower_that_takes_rates_for_one_number_is_refused():
    with pytest.raises(RecordError, match=r"^OneRate .*\(2, 1, 2\) .*'trail/fc.weight'.* \(2, 1, 1\)$"):
        run(replace(PLAIN, follow=(OneRate(),)), keeping={"trail": Start()})


def test_followers_move_once_per_batch_with_the_row_after_it():
    moving = replace(PLAIN, repeats=2, follow=(Trail(),))
    progress = run(moving, keeping={"trail": Start()})
    assert weights(progress) == pytest.approx(by_hand(8, 4), abs=1e-12)
    for client, batches in enumerate((4, 2)):
        v = START
        for step in range(1, batches + 1):
            v += RATE * (by_hand(2 * step, 2 * step)[client] - v)
        assert weights(progress, "trail")[client] == pytest.approx(v, abs=1e-12)


def test_an_edit_sees_a_follower_move():
    """w is pulled to v, which follows it: w ← w − 0.1·(2(w − 2) + 3(w − v)), then v ← v + 0.1·(w − v)."""
    moving = replace(PLAIN, edits=(Pull(3.0, "trail"),), follow=(Trail(),))
    progress = run(moving, keeping={"trail": Start()})
    w, v = START, START
    for _ in range(4):
        w -= RATE * (2 * (w - 2) + 3 * (w - v))
        v += RATE * (w - v)
    assert (weights(progress)[0], weights(progress, "trail")[0]) == pytest.approx((w, v), abs=1e-12)


@record
class LookAhead:
    """The gradient on the second batch, at the row after a step of 0.5 on the first; leaves the row for followers."""

    draws = 2
    reads = ()
    gives = ("ahead",)

    def __call__(self, gradient, row, client, layout):
        first = gradient(row, draw=0)
        ahead = {n: x - 0.5 * first.rows[n] if n in first.rows else x for n, x in row.items()}
        return gradient(ahead, draw=1), {"ahead": ahead}


@record
class KeepAhead:
    """What the rule left, as the follower's field."""

    reads = ("ahead", "trail")
    writes = ("trail",)

    def __call__(self, row, client, layout, rate):
        return {"trail": dict(rows_of(client, "ahead"))}


def test_a_rule_takes_the_gradient_elsewhere():
    """From 1: on (1, 2), ahead is 1 − 0.5·(−2) = 2, where the gradient is 0; on (2, 2) ahead is 1, the optimum."""
    moving = replace(PLAIN, steps=1, gradient=LookAhead(), follow=(KeepAhead(),))
    progress = run(moving, keeping={"trail": Start()})
    assert weights(progress) == pytest.approx([1.0, 1.0], abs=1e-12)
    assert weights(progress, "trail") == pytest.approx([2.0, 1.0], abs=1e-12)


def test_the_two_batches_of_a_rule_are_drawn_apart():
    """Of two samples, (1, 2) and (1, 0), the two draws of a step are equal for some clients and differ for others.

    On equal ones ahead is 2 or 0, where their gradient is 0; on different ones the gradient is 4 or −4.
    """
    moving = replace(PLAIN, steps=1, gradient=LookAhead())
    found = weights(run(moving, samples=([(1.0, 2.0), (1.0, 0.0)],) * 12))
    assert {round(w, 9) for w in found} == {0.6, 1.0, 1.4}
    in_order = weights(run(replace(moving, shuffle=False), samples=([(1.0, 2.0), (1.0, 0.0)],) * 3))
    assert in_order == pytest.approx([1.0] * 3)


def test_fields_that_move_along_may_not_have_the_names_of_a_descent():
    @record
    class Steps:
        reads = writes = ("steps",)

        def __call__(self, row, client, layout, rate):
            return {}

    with pytest.raises(RecordError, match="'steps'"):
        replace(PLAIN, follow=(Steps(),))
    with pytest.raises(RecordError, match="'trail'"):
        replace(PLAIN, row="trail", follow=(Trail(),))


class Noisy(nn.Module):
    """w·x with half of the samples dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.fc.weight, START)

    def forward(self, x):
        return self.fc(self.drop(x))


def test_repeats_drop_out_anew():
    """One sample (1, 0), dropped or doubled: with one mask for eight repeats, w would stay 1 or be 0.2⁸."""
    found = weights(run(replace(PLAIN, repeats=8), samples=([(1.0, 0.0)],) * 8, model=Noisy))
    # Each step that is not dropped is w ← w − 0.1·2·2·(2w) = 0.2·w.
    taken = {round(float(torch.tensor(w).log() / torch.tensor(0.2).log())) for w in found}
    assert len(taken) > 2
    assert taken - {0, 8}


def test_losses_of_labels_and_of_numbers():
    logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(losses(logits, torch.tensor([0, 1])), torch.tensor([0.126928, 0.693147]))
    torch.testing.assert_close(losses(torch.tensor([[2.0], [1.0]]), torch.tensor([0.0, 4.0])), torch.tensor([4.0, 9.0]))
