"""One transfer brings tensors of all types and shapes from a GPU as they are."""

import pytest
import torch

from stratafl.core.state import bytes_of
from stratafl.core.task import Scores
from stratafl.evaluation import evaluate
from stratafl.execute.transfers import on_host, packed


def test_tensors_of_any_type_and_shape_come_back_as_they_are():
    given = [
        torch.tensor([True, False, True]),
        torch.arange(5),
        torch.empty(0, 3),
        torch.tensor(0.1, dtype=torch.float64),
        torch.randn(3, 4).T,
        torch.tensor([float("nan"), float("inf"), -0.0], dtype=torch.bfloat16),
        torch.arange(6, dtype=torch.int32)[::2],
    ]
    for before, after in zip(given, packed(given), strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
        assert torch.equal(before.contiguous().view(torch.uint8), after.view(torch.uint8)) if before.ndim else True
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


def test_nothing_is_copied_on_a_cpu():
    x = torch.randn(3)
    assert on_host([x])[0] is x
    assert on_host([]) == []


@pytest.mark.parametrize("through", [on_host, packed])
def test_scores_in_another_order_go_on_being_shared(monkeypatch, through):
    monkeypatch.setattr(evaluate, "on_host", through)
    one = Scores(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0]), torch.tensor([7, 8, 9]))
    other = Scores(one.hits + 10, one.loss + 10, one.count + 10)
    found = evaluate.ordered_scores({"a": one, "b": one, "c": other}, torch.tensor([2, 0, 1]))
    assert found["a"] is found["b"]
    assert found["a"].hits.tolist() == [3.0, 1.0, 2.0]
    assert found["a"].loss.tolist() == [6.0, 4.0, 5.0]
    assert found["a"].count.tolist() == [9, 7, 8]
    assert found["c"].hits.tolist() == [13.0, 11.0, 12.0]


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(4.0, dtype=torch.float64).reshape(2, 2)[:1, 0],  # torch calls any stride of one number contiguous
        torch.arange(6).reshape(2, 3).T,
        torch.tensor(2.5),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.ones(1).expand(3, 2),
    ],
)
def test_bytes_are_the_numbers_in_their_order(x):
    assert bytes_of(x).numpy().tobytes() == x.numpy().tobytes()
