"""States: the same few operations on tensors and on blocks."""

import pytest
import torch

from stratafl.core.state import (
    apply,
    clone,
    combine,
    expand,
    flatten,
    join_states,
    pick,
    rows_of,
    stacked,
    stored_bytes,
    tensor_of,
    tensors,
    unflatten,
)


def state() -> dict:
    return {
        "theta": {"a.weight": torch.arange(6.0).reshape(3, 2), "a.bias": torch.tensor([7.0, 8.0, 9.0])},
        "count": torch.tensor([10, 20, 30]),
        "nothing": {},
    }


def plain(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return {name: plain(part) for name, part in value.items()}


def test_apply_reaches_every_block():
    assert plain(apply(lambda x: x * 2, {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])})) == {
        "a": [2.0],
        "b": [4.0],
    }
    assert apply(lambda x: x * 2, torch.tensor([3])).tolist() == [6]


def test_combine_works_block_by_block():
    one, two = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, {"b": torch.tensor(20.0), "a": torch.tensor(10.0)}
    assert plain(combine(lambda xs: xs[0] + xs[1], [one, two])) == {"a": 11.0, "b": 22.0}
    assert combine(torch.stack, [torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]


def test_flat_names():
    flat = flatten(state(), "server/")
    assert list(flat) == ["server/theta/a.weight", "server/theta/a.bias", "server/count", "server/nothing/"]
    assert flat["server/nothing/"].numel() == 0


@pytest.mark.parametrize("prefix", ["", "server/", "client/12/"])
def test_flatten_and_unflatten_are_inverse(prefix):
    back = unflatten(flatten(state(), prefix), prefix)
    assert plain(back) == plain(state())
    assert list(back) == list(state())


def test_unflatten_takes_only_its_prefix():
    flat = flatten(state(), "client/1/") | flatten({"count": torch.tensor([1])}, "client/11/")
    assert plain(unflatten(flat, "client/11/")) == {"count": [1]}
    assert plain(unflatten(flat, "client/1/")) == plain(state())


def test_an_empty_state_is_nothing():
    assert unflatten(flatten({})) == {}


@pytest.mark.parametrize(
    ("index", "weight", "count"),
    [
        (torch.tensor([2, 0]), [[4.0, 5.0], [0.0, 1.0]], [30, 10]),
        (slice(1, 3), [[2.0, 3.0], [4.0, 5.0]], [20, 30]),
        (1, [2.0, 3.0], 20),
        (None, [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]], [[10, 20, 30]]),
    ],
)
def test_pick_takes_rows_of_every_field(index, weight, count):
    picked = pick(state(), index)
    assert picked["theta"]["a.weight"].tolist() == weight
    assert picked["count"].tolist() == count
    assert picked["nothing"] == {}


def test_join_puts_rows_below_each_other():
    parts = [pick(state(), slice(0, 1)), pick(state(), slice(1, 3))]
    assert plain(join_states(parts)) == plain(state())
    assert plain(join_states(list(reversed(parts)))["count"]) == [20, 30, 10]


def test_a_single_row_comes_back_as_it_was():
    assert plain(join_states([pick(state(), slice(i, i + 1)) for i in range(3)])) == plain(state())
    assert plain(stacked([pick(state(), i) for i in range(3)])) == plain(state())


def test_expand_repeats_a_row_without_a_copy():
    row = {"w": torch.tensor([[1.0, 2.0]]), "s": torch.tensor(3.0)}
    seen = expand(row, 4)
    assert {name: tuple(x.shape) for name, x in seen.items()} == {"w": (4, 1, 2), "s": (4,)}
    assert seen["w"][3].tolist() == [[1.0, 2.0]]
    assert seen["w"].data_ptr() == row["w"].data_ptr()


def test_a_clone_shares_no_memory():
    original = state()
    copy = clone(original)
    copy["theta"]["a.bias"][0] = -1
    copy["count"][0] = -1
    copy["theta"]["new"] = torch.zeros(3)
    assert plain(original) == plain(state())


def test_stored_bytes_by_hand():
    # Six and three float32, three int64.
    assert stored_bytes(state()) == 6 * 4 + 3 * 4 + 3 * 8
    assert (
        stored_bytes({"h": torch.zeros(5, dtype=torch.float16), "d": {"x": torch.zeros(2, dtype=torch.float64)}}) == 26
    )
    assert stored_bytes({}) == 0


def test_tensors_are_all_tensors():
    assert [x.numel() for x in tensors(state())] == [6, 3, 3]


def test_a_field_is_asked_for_by_kind():
    assert list(rows_of(state(), "theta")) == ["a.weight", "a.bias"]
    assert tensor_of(state(), "count").tolist() == [10, 20, 30]
    with pytest.raises(TypeError, match="'count'"):
        rows_of(state(), "count")
    with pytest.raises(TypeError, match="'theta'"):
        tensor_of(state(), "theta")
