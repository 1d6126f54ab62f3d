"""How clients are cut into pieces, how many threads short steps get, and traces without idle operations."""

import pytest
import torch

from stratafl.core.state import join, pick, rejoin
from stratafl.runtime import lanes
from stratafl.runtime.lanes import Pace
from stratafl.runtime.tracing import VIEWS, trace

CPU = torch.device("cpu")


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize(("clients", "most", "sizes"), [(20, 4, [3, 3, 4, 3, 3, 4]), (3, 4, [1, 2]), (5, 1, [1] * 5)])
def test_pieces_are_even_and_keep_all_lanes_busy(clients, most, sizes):
    pieces = lanes.cut(clients, most)
    assert [piece.stop - piece.start for piece in pieces] == sizes
    assert [c for piece in pieces for c in range(clients)[piece]] == list(range(clients))


def test_a_step_is_long_as_timed_or_by_its_rows():
    assert lanes.is_long(2**23)
    assert not lanes.is_long(2**23 - 1)
    assert not lanes.is_long(2**30, lanes.LONG / 2)
    assert lanes.is_long(1, lanes.LONG)


class Machine:
    """A clock, and steps that take so many seconds with all threads and with one."""

    def __init__(self, several, one):
        self.now, self.several, self.one = 0.0, several, one
        self.alone = list[bool]()

    def run(self, pace, steps):
        self.alone.clear()
        for _ in range(steps):
            with pace.step():
                self.alone.append(torch.get_num_threads() == 1)
                self.now += self.one if self.alone[-1] else self.several
        return sum(self.alone) / steps


@pytest.mark.usefixtures("_two_threads")
def test_short_steps_get_the_number_of_threads_that_is_faster():
    machine = Machine(several=1.0, one=3.0)
    pace = Pace(lambda: machine.now)
    assert machine.run(pace, 1000) < 0.05
    machine.several = 9.0  # another program has begun
    machine.run(pace, 2000)
    assert pace.alone
    assert machine.run(pace, 100) > 0.9
    machine.several = 1.0
    machine.run(pace, 2000)
    assert not pace.alone
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("_two_threads")
def test_a_step_that_fails_gives_the_threads_back():
    pace = Pace()
    pace.alone = True
    with pytest.raises(ValueError, match="as it is"), pace.step():
        assert torch.get_num_threads() == 1
        raise ValueError("as it is")
    assert torch.get_num_threads() == 2


def test_there_is_no_pace_on_other_devices():
    assert lanes.pace(10, torch.device("cuda")) is None
    assert lanes.pace(10, CPU) is lanes.pace(11, CPU)


def test_what_was_moved_in_place_is_not_copied():
    state = {"row": {"w": torch.arange(12.0).reshape(4, 3), "shared": torch.ones(3).expand(4, 3)}, "n": torch.zeros(4)}
    parts = [pick(state, slice(0, 1)), pick(state, slice(1, 4))]
    for part in parts:
        part["row"]["w"].add_(1)
        part["n"] = part["n"] + 1
    whole, copied = rejoin(state, parts), join(parts)
    assert whole["row"]["w"] is state["row"]["w"]
    assert whole["row"]["shared"] is state["row"]["shared"]
    assert whole["n"].tolist() == [1, 1, 1, 1]
    assert torch.equal(whole["row"]["w"], copied["row"]["w"])
    swapped = rejoin(state, [pick(state, slice(2, 4)), pick(state, slice(0, 2))])
    assert torch.equal(swapped["row"]["w"], state["row"]["w"][[2, 3, 0, 1]])
    assert len(rejoin(state, parts[:1])["n"]) == 1


def test_a_trace_leaves_out_views_that_change_nothing():
    def step(x):
        same = x.view(2, 3).expand(2, 3)
        return (same + 1).view(6), same.view(3, 2)

    x = torch.arange(6.0).reshape(2, 3)
    traced = trace(step, [(x.shape, x.stride(), x.dtype, x.device)])
    assert sum(node.target in VIEWS for node in traced.graph.nodes) == 2
    assert all(torch.equal(a, b) for a, b in zip(traced(x), step(x), strict=True))
