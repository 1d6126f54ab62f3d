"""The batches of clients of different sizes, against plain loaders."""

from itertools import islice

import pytest
import torch

from simulations import built
from stratafl.core import keys
from stratafl.runtime.batches import BatchPlan, PlannedBatches, plan_batches, sample_positions
from stratafl.runtime.runtime import KEPT_BATCHES

COUNTS = [31, 4, 12, 10, 1, 21, 7]
SETTINGS = [
    {"batch": batch, "epochs": epochs, "steps": steps, "drop_last": drop_last, "smallest": smallest}
    for batch in (10, 3, 50)
    for epochs in (1, 3)
    for steps in (None, 5)
    for drop_last in (False, True)
    for smallest in (1, 2)
]


def loader(count: int, batch: int, drop_last: bool, smallest: int) -> list[int]:
    """The sizes of the batches of one epoch."""
    sizes = [min(batch, count - start) for start in range(0, count, batch)]
    return [size for size in sizes if size == batch or (not drop_last and size >= smallest)]


def simulated(count: int, batch: int, epochs: int, steps: int | None, drop_last: bool, smallest: int) -> list[int]:
    """The size of the batch of every step a client takes."""
    epoch = loader(count, batch, drop_last, smallest)
    if steps is None or not epoch:
        return epoch * epochs
    return list(islice((size for _ in range(steps) for size in epoch), steps))


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_plan_is_what_plain_loaders_would_do(setting):
    plan = plan_batches(COUNTS, **setting)
    taken = [simulated(count, **setting) for count in COUNTS]
    epoch = [loader(count, setting["batch"], setting["drop_last"], setting["smallest"]) for count in COUNTS]
    assert plan.counts == tuple(COUNTS)
    assert plan.steps == tuple(map(len, taken))
    assert plan.longest == max(map(len, taken))
    assert plan.per_epoch == tuple(map(len, epoch))
    assert sum(plan.dropped) == sum(COUNTS) - sum(map(sum, epoch))
    assert plan.epochs == max((-(-len(t) // len(e)) for t, e in zip(taken, epoch, strict=True) if e), default=0)
    for client, sizes in enumerate(taken):
        assert [int(plan.sizes()[client, step]) for step in range(len(sizes))] == sizes


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_active_clients_are_always_the_first_ones(setting):
    plan = plan_batches(COUNTS, **setting)
    assert sorted(plan.order) == list(range(len(COUNTS)))
    for step in range(plan.longest + 1):
        active = {client for client, steps in enumerate(plan.steps) if steps > step}
        assert set(plan.order[: len(active)]) == active
    for one, other in zip(plan.order, plan.order[1:], strict=False):
        assert plan.steps[one] > plan.steps[other] or (plan.steps[one] == plan.steps[other] and one < other)


def test_a_plan_by_hand():
    plan = plan_batches([25, 7, 21], batch=10, epochs=2, smallest=2)
    assert plan == BatchPlan((25, 7, 21), (3, 1, 2), (6, 2, 4), 10, dropped=(0, 0, 1))
    assert plan.order == (0, 2, 1)
    assert [int(plan.sizes()[0, step]) for step in range(6)] == [10, 10, 5, 10, 10, 5]
    assert plan.epochs == 2


def test_no_steps_at_all():
    plan = plan_batches([1, 1], batch=10, smallest=2)
    assert (plan.steps, plan.longest, plan.dropped, plan.epochs) == ((0, 0), 0, (1, 1), 0)


# The table of samples


def offsets() -> torch.Tensor:
    return torch.tensor([0, *COUNTS[:-1]]).cumsum(0) + 1000


def positions(plan: BatchPlan, shuffle: bool = True, ids: list[int] | None = None, starts: torch.Tensor | None = None):
    base = keys.keys(0, 0, torch.tensor(ids or range(len(plan.counts))), "train")
    epochs = torch.stack([keys.fold(base, epoch) for epoch in range(max(plan.epochs, 1))])
    return sample_positions(plan, epochs, offsets() if starts is None else starts, shuffle=shuffle)


def visited(plan: BatchPlan, found: torch.Tensor, client: int, epoch: int) -> list[int]:
    """The samples of a client in an epoch, without padding, counted from its first one."""
    steps = range(epoch * plan.per_epoch[client], (epoch + 1) * plan.per_epoch[client])
    real = [found[client, step, : int(plan.sizes()[client, step])] for step in steps]
    return (torch.cat(real) - offsets()[client]).tolist()


@pytest.mark.parametrize("batch", [10, 3, 1, 50])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_epoch_visits_each_sample_of_a_client_once(batch, shuffle):
    plan = plan_batches(COUNTS, batch=batch, epochs=3)
    found = positions(plan, shuffle)
    assert found.shape == (len(COUNTS), plan.longest, batch)
    for client, count in enumerate(COUNTS):
        for epoch in range(3):
            assert sorted(visited(plan, found, client, epoch)) == list(range(count))


@pytest.mark.parametrize("drop_last", [True, False])
def test_dropped_samples_change_from_epoch_to_epoch_and_none_is_seen_twice(drop_last):
    plan = plan_batches(COUNTS, batch=10, epochs=4, drop_last=drop_last, smallest=2)
    found = positions(plan)
    for client, count in enumerate(COUNTS):
        for epoch in range(4 if plan.steps[client] else 0):
            seen = visited(plan, found, client, epoch)
            assert len(set(seen)) == len(seen)
            assert set(seen) <= set(range(count))
    left_out = [set(range(31)) - set(visited(plan, found, 0, epoch)) for epoch in range(4)]
    assert all(len(left) == 1 for left in left_out)
    assert len(set.union(*left_out)) > 1


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("setting", SETTINGS[::3])
def test_padding_repeats_the_clients_own_samples(setting, shuffle):
    plan = plan_batches(COUNTS, **setting)
    found = positions(plan, shuffle)
    for client, (start, count) in enumerate(zip(offsets().tolist(), COUNTS, strict=True)):
        own = found[client] - start
        assert own.numel() == 0 or (int(own.min()) >= 0 and int(own.max()) < count)


def test_without_shuffling_samples_come_in_their_order():
    plan = plan_batches(COUNTS, batch=10, epochs=2)
    found = positions(plan, shuffle=False)
    for client, count in enumerate(COUNTS):
        assert visited(plan, found, client, 0) == visited(plan, found, client, 1) == list(range(count))


def test_shuffles_change_with_epoch_and_client():
    plan = plan_batches([20, 20], batch=10, epochs=3)
    found = positions(plan, starts=torch.tensor([0, 0]))
    orders = {tuple(found[c, 2 * e : 2 * e + 2].flatten().tolist()) for c in range(2) for e in range(3)}
    assert len(orders) == 6
    assert tuple(range(20)) not in orders


def test_steps_beyond_an_epoch_go_on_with_the_next_shuffle():
    plan = plan_batches([12], batch=10, steps=5)
    found = positions(plan, ids=[3], starts=torch.tensor([0]))[0]
    twice = positions(plan_batches([12], batch=10, epochs=3), ids=[3], starts=torch.tensor([0]))[0]
    assert torch.equal(found, twice[:5])


@pytest.mark.parametrize("cohort", [[5], [2, 5], [5, 0, 1]])
def test_a_clients_batches_do_not_depend_on_the_cohort(cohort):
    alone = plan_batches([21], batch=10, epochs=2)
    expected = positions(alone, ids=[5], starts=offsets()[5:6])[0]
    plan = plan_batches([COUNTS[i] for i in cohort], batch=10, epochs=2)
    found = positions(plan, ids=cohort, starts=offsets()[cohort])[cohort.index(5)]
    for step in range(alone.steps[0]):
        size = int(alone.sizes()[0, step])
        assert torch.equal(found[step, :size], expected[step, :size])


def test_a_share_of_an_epoch_is_rounded_up():
    plan = plan_batches([25, 5, 40], batch=10, epochs=2, share=0.5)
    assert plan.per_epoch == (2, 1, 2)
    assert plan.steps == (4, 2, 4)


def test_every_step_of_every_client_has_a_random_key_of_its_own():
    sim = built("fedavg")
    task = sim.task(torch.arange(6), sim.at(0))
    noise = task._batches(plan_batches([30] * 6, batch=10, epochs=2), "train/0", True).noise
    assert noise.shape == (6, 6)
    assert len(set(noise.flatten().tolist())) == 36


def test_batches_of_an_evaluation_stay_while_others_come_and_go():
    runtime, made = built("fedavg").runtime, []

    def use(key):
        runtime.kept_batches(
            ("a test", key), lambda: made.append(key) or PlannedBatches(plan_batches([1], batch=1), None)
        )

    for cohort in range(3 * KEPT_BATCHES):
        use("all clients")
        use(cohort)
    use(0)
    assert made == ["all clients", *range(3 * KEPT_BATCHES), 0]
