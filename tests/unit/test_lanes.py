"""How clients are cut into pieces, how many threads short steps get, and traces without idle operations."""

import pytest
import torch

from stratafl.core import lanes
from stratafl.core.reduce import FOLDED, add_rows
from stratafl.core.state import join_states, pick, rejoin
from stratafl.runtime import threads
from stratafl.runtime.engine import PLAIN, trace
from stratafl.runtime.threads import Pace

CPU = torch.device("cpu")


@pytest.fixture
def _two_threads(torch_threads):
    torch_threads(2)


def test_a_lane_keeps_its_threads_whatever_others_set_before_its_first_operation(torch_threads):
    torch_threads(3)
    lanes._pool.cache_clear()  # lanes of other tests have computed something
    lanes.in_lanes(lambda _: None, [None], threads=1)
    torch_threads(3)
    assert lanes.in_lanes(lambda _: torch.get_num_threads(), [None], threads=1) == [1]


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_sums_in_lanes_record_gradients_only_where_the_caller_does(mode):
    weights, rows = torch.ones(2), torch.ones(2, 2 * FOLDED, requires_grad=True)
    with mode():
        total = add_rows({}, weights, {"w": rows}, None)["w"]
    assert total.requires_grad is (mode is torch.enable_grad)
    assert total.is_inference() is (mode is torch.inference_mode)
    assert total.unique().tolist() == [2]


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize(("clients", "most", "sizes"), [(20, 4, [3, 3, 4, 3, 3, 4]), (3, 4, [1, 2]), (5, 1, [1] * 5)])
def test_pieces_are_even_and_keep_all_lanes_busy(clients, most, sizes):
    pieces = threads.cut(clients, most)
    assert [piece.stop - piece.start for piece in pieces] == sizes
    assert [c for piece in pieces for c in range(clients)[piece]] == list(range(clients))


def test_a_step_is_long_as_timed_or_by_its_rows():
    assert threads.is_long(2**23)
    assert not threads.is_long(2**23 - 1)
    assert not threads.is_long(2**30, threads.LONG_SECONDS / 2)
    assert threads.is_long(1, threads.LONG_SECONDS)


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
    machine.run(pace, 50)
    assert machine.run(pace, 1000) < 0.05
    machine.several = 90.0  # another program has begun
    assert machine.run(pace, 50) > 0.7
    assert pace.alone
    assert machine.run(pace, 1000) > 0.99  # trials are few, and end at once
    machine.several = 1.0
    machine.run(pace, 5000)
    assert not pace.alone
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("_two_threads")
def test_a_slow_first_step_decides_nothing():
    machine = Machine(several=1.1, one=50.0)
    pace = Pace(lambda: machine.now)
    machine.run(pace, 1)
    machine.one = 1.0
    assert machine.run(pace, 1000) > 0.98


@pytest.mark.usefixtures("_two_threads")
def test_a_step_that_fails_gives_the_threads_back():
    pace = Pace()
    pace.alone = True
    with pytest.raises(ValueError, match="as it is"), pace.step():
        raise ValueError("as it is")
    assert torch.get_num_threads() == 2


def test_there_is_no_pace_on_other_devices():
    assert threads.pace(10, torch.device("cuda"), 3) is None
    assert threads.pace(10, CPU, 3) is threads.pace(11, CPU, 4)


@pytest.mark.usefixtures("_two_threads")
def test_fewer_clients_than_threads_always_have_one_thread():
    """Else MKL divides sums over a client's samples, and bits would depend on how long steps took."""
    machine, paced = Machine(several=1.0, one=3.0), threads.pace(10, CPU, 1)
    assert machine.run(paced, 200) == 1
    assert threads.pace(10, CPU, 2) is not paced


def test_what_was_moved_in_place_is_not_copied():
    state = {"row": {"w": torch.arange(12.0).reshape(4, 3), "shared": torch.ones(3).expand(4, 3)}, "n": torch.zeros(4)}
    parts = [pick(state, slice(0, 1)), pick(state, slice(1, 4))]
    for part in parts:
        part["row"]["w"].add_(1)
        part["n"] = part["n"] + 1
    whole, copied = rejoin(state, parts), join_states(parts)
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
    assert sum(node.target is torch.Tensor.view for node in traced.graph.nodes) == 2
    assert all(torch.equal(a, b) for a, b in zip(traced(x), step(x), strict=True))


FIELDS = {"x": torch.randn(2, 3, 4), "y": torch.randint(0, 4, (2, 3, 1))}
CALLS = {  # every operation of `PLAIN`, as autograd and vmap write it
    "add.Tensor": ("x", "x"), "add_.Tensor": ("x", 1.0), "bmm.default": ("x", "xT"), "clone.default": ("x",),
    "div.Tensor": ("x", 3.0), "expand.default": ("x1", [2, 3, 5]), "gather.default": ("x", 2, "y"),
    "mul.Tensor": ("x", "x"), "neg.default": ("x",), "new_zeros.default": ("x", [2, 2]),
    "permute.default": ("x", [2, 0, 1]), "relu.default": ("x",), "rsqrt.default": ("x",),
    "scatter_add.default": ("x", 2, "y", "x1"), "squeeze.dims": ("x1", [2]), "sub.Tensor": ("x", "x"),
    "sum.dim_IntList": ("x", [1], True), "transpose.int": ("x", 1, 2), "unsqueeze.default": ("x", 2),
    "view.default": ("x", [6, 4]), "_unsafe_view.default": ("x", [6, 4]),
}  # fmt: skip


def operation(name):
    return getattr(getattr(torch.ops.aten, name.partition(".")[0]), name.partition(".")[2])


@pytest.mark.parametrize("name", CALLS)
def test_plain_functions_do_what_the_operations_do(name):
    given = {**FIELDS, "xT": FIELDS["x"].mT.contiguous(), "x1": FIELDS["x"][:, :, :1]}
    results = []
    for call in (operation(name), PLAIN[operation(name)]):
        words = [given[a].clone() if isinstance(a, str) else a for a in CALLS[name]]
        results.append(call(*words))
    assert torch.equal(*(torch.nan_to_num(each) for each in results))
    assert results[0].stride() == results[1].stride()


def test_every_plain_function_is_tested():
    assert {operation(name) for name in CALLS} == set(PLAIN)
