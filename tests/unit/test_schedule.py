"""Slots: everybody gets all steps, in order, at one place at a time, and no slot waits."""

from itertools import pairwise

import pytest

from stratafl.runtime.schedule import Turn, duration, slots_for, timetable, turns

CASES = [
    ([5, 3, 2], 2),
    ([3, 3, 3], 3),
    ([7], 1),
    ([4, 4, 4, 4], 3),
    ([9, 1, 1, 1, 1], 2),
    ([10, 0, 7, 3, 0], 2),
    ([2] * 7, 3),
]


def test_a_plan_by_hand():
    """5 + 3 + 2 steps at two slots take 5: the second client fills the second slot, and the third goes after it."""
    assert turns([5, 3, 2], 2) == [Turn(0, 0, 0, 5), Turn(1, 1, 0, 3), Turn(2, 1, 3, 5)]


def test_who_does_not_fit_into_a_slot_begins_at_the_next():
    """4 + 4 + 4 at two slots take 6: the second client takes 2 at the second slot, then 2 at the first."""
    assert turns([4, 4, 4], 2) == [Turn(0, 0, 0, 4), Turn(1, 1, 0, 2, 0), Turn(1, 0, 4, 6, 2), Turn(2, 1, 2, 6)]


@pytest.mark.parametrize(("steps", "slots"), CASES)
def test_everybody_takes_all_steps_in_order_and_at_one_place_at_a_time(steps, slots):
    plan = turns(steps, slots)
    for client, count in enumerate(steps):
        mine = sorted((t for t in plan if t.client == client), key=lambda t: t.begin)
        taken = [t.first + s for t in mine for s in range(t.end - t.begin)]
        assert taken == list(range(count))
        assert all(a.end <= b.begin for a, b in pairwise(mine))
    for slot in range(slots):
        there = sorted((t for t in plan if t.slot == slot), key=lambda t: t.begin)
        assert all(a.end <= b.begin for a, b in pairwise(there))
    assert all(0 <= t.slot < slots and t.begin < t.end <= duration(steps, slots) for t in plan)


@pytest.mark.parametrize(("steps", "slots"), CASES)
def test_the_time_is_the_longest_clients_or_the_mean_of_the_slots(steps, slots):
    assert max(t.end for t in turns(steps, slots)) == max(max(steps), -(-sum(steps) // slots))


def test_as_many_slots_as_are_busy_or_one_more_where_that_pays():
    """344 · 13 + 36 steps: 13 slots take 347 steps of 14, 14 slots 344 of 15; 606 steps at two take 303, at one 606."""
    assert slots_for([344] * 13 + [36]) == 13
    assert slots_for([303, 100, 100, 100, 3]) == 2
    assert slots_for([5, 5, 5]) == 3
    assert slots_for([10, 9]) == 2
    assert slots_for([0, 0]) == slots_for([]) == 1
    for steps, _ in CASES:
        best = min(duration(steps, slots) * (slots + 1) for slots in range(1, 12))
        assert duration(steps, slots_for(steps)) * (slots_for(steps) + 1) == best


def test_a_timetable_says_who_is_where_at_which_of_its_steps():
    client, step = timetable((4, 4, 4), 2)
    assert client.tolist() == [[0, 0, 0, 0, 1, 1], [1, 1, 2, 2, 2, 2]]
    assert step.tolist() == [[0, 1, 2, 3, 2, 3], [0, 1, 0, 1, 2, 3]]
    assert timetable((0, 3), 2)[0].tolist() == [[1, 1, 1], [0, 0, 0]]
