"""Threads of short steps, and traces without idle operations."""

import pytest
import torch

from stratafl.runtime import lanes
from stratafl.runtime.tracing import VIEWS, trace

CPU = torch.device("cpu")


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_two_threads")
def test_short_steps_have_one_thread_and_give_it_back():
    with lanes.alone_if_short(10, CPU):
        assert torch.get_num_threads() == 1
    with pytest.raises(ValueError, match="as it is"), lanes.alone_if_short(10, CPU):
        raise ValueError("as it is")
    assert torch.get_num_threads() == 2
    with lanes.alone_if_short(lanes.SHORT // 2, CPU):
        assert torch.get_num_threads() == 2


def test_a_trace_leaves_out_views_that_change_nothing():
    def step(x):
        same = x.view(2, 3).expand(2, 3)
        return (same + 1).view(6), same.view(3, 2)

    x = torch.arange(6.0).reshape(2, 3)
    traced = trace(step, [(x.shape, x.stride(), x.dtype, x.device)])
    assert sum(node.target in VIEWS for node in traced.graph.nodes) == 2
    assert all(torch.equal(a, b) for a, b in zip(traced(x), step(x), strict=True))
