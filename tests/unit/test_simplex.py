"""Quadratic programmes on the simplex, against every support; and FedPAC's weights of heads, which are solved so."""

import sys
from itertools import combinations

import pytest
import torch
from torch import Tensor

from stratafl.algorithms import simplex
from stratafl.algorithms.fedpac import head_weights
from stratafl.algorithms.simplex import minimise_on_simplex


def by_enumeration(Q: Tensor, g: Tensor) -> Tensor:
    """The minimiser of αᵀQα − 2·gᵀα: the best of those that rest on each set of places."""
    best, least = torch.zeros_like(g), torch.inf
    for size in range(1, len(g) + 1):
        for support in combinations(range(len(g)), size):
            at = torch.tensor(support)
            u, v = torch.linalg.solve(Q[at][:, at], torch.stack([g[at], torch.ones(size).double()], 1)).unbind(1)
            alpha = torch.zeros_like(g)
            alpha[at] = u + (1 - u.sum()) / v.sum() * v
            value = float(alpha @ Q @ alpha - 2 * g @ alpha)
            if bool((alpha >= 0).all()) and value < least:
                best, least = alpha, value
    return best


def drawn(seed: int, n: int, features: int = 6) -> tuple[Tensor, Tensor]:
    """H and V, with V over five powers of ten."""
    generator = torch.Generator().manual_seed(seed)
    H = torch.randn(n, features, generator=generator, dtype=torch.float64)
    return H, 10 ** (5 * torch.rand(n, generator=generator, dtype=torch.float64) - 4)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_minimisers_are_those_of_enumeration(n: int, scale: float) -> None:
    for seed in range(3):
        H, V = drawn(seed, n)
        gram = scale * H @ H.T
        Q = gram + torch.diag(scale * V)
        expected = torch.stack([by_enumeration(Q, g) for g in gram])
        torch.testing.assert_close(minimise_on_simplex(Q, gram), expected, atol=1e-10, rtol=0)


def test_a_minimiser_at_the_edge_of_a_face_is_exact_too() -> None:
    """α = (1, 0, 0) with a slope that is the same everywhere: neither α nor its multiplier is positive."""
    alpha = minimise_on_simplex(torch.eye(3).double(), torch.tensor([[1.0, 0.0, 0.0]]).double())
    torch.testing.assert_close(alpha, torch.tensor([[1.0, 0.0, 0.0]]).double(), atol=1e-9, rtol=0)


def test_many_programmes_are_optimal() -> None:
    """Too many places to enumerate: where α > 0 the slope is the least one."""
    H, V = drawn(0, 60, features=200)
    gram = H @ H.T
    Q = gram + torch.diag(1e3 * V)
    alpha = minimise_on_simplex(Q, gram)
    slope = alpha @ Q - gram
    assert float((slope - slope.amin(1, keepdim=True))[alpha > 1e-8].max()) < 1e-8
    assert float((alpha.sum(1) - 1).abs().max()) < 1e-14
    assert 1 < float((alpha > 1e-8).double().sum(1).mean()) < 60


def test_programmes_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    H, V = drawn(1, 7)
    gram = H @ H.T
    whole = minimise_on_simplex(gram + torch.diag(V), gram)
    monkeypatch.setattr(simplex, "MAX_NUMBERS", 1)
    torch.testing.assert_close(minimise_on_simplex(gram + torch.diag(V), gram), whole, atol=1e-13, rtol=0)


def test_weights_of_heads_minimise_what_the_paper_says() -> None:
    """αᵀ(diag(V) + D_i)α, with the matrix written out; weights below 1e-3 are dropped and the others sum to 1."""
    H, V = drawn(2, 6)
    H = 100 + 0.3 * H  # the differences count, not the mean
    for i, alpha in enumerate(head_weights(H.reshape(6, 3, 2), V)):
        away = H[i] - H
        expected = by_enumeration(torch.diag(V) + away @ away.T, torch.zeros(6).double())
        expected = torch.where(expected < 1e-3, 0, expected)
        torch.testing.assert_close(alpha, expected / expected.sum(), atol=1e-9, rtol=0)


def test_equal_clients_have_weights_by_their_variance() -> None:
    alpha = head_weights(torch.ones(3, 2, 4), torch.tensor([1.0, 2.0, 4.0]))
    torch.testing.assert_close(alpha, (torch.tensor([4.0, 2.0, 1.0]) / 7).double().expand(3, 3))


@pytest.mark.parametrize("V", [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [-1e-9, 0.1, 0.1]])
def test_clients_without_variance_have_weights(V: list[float]) -> None:
    for H in (torch.ones(3, 2, 4), torch.zeros(3, 2, 4), torch.arange(24.0).reshape(3, 2, 4)):
        alpha = head_weights(H, torch.tensor(V))
        assert bool(torch.isfinite(alpha).all())
        torch.testing.assert_close(alpha.sum(1), torch.ones(3).double())


def test_a_large_cohort_of_equal_clients_keeps_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 1200  # every weight is below 1e-3
    module = sys.modules[head_weights.__module__]
    monkeypatch.setattr(module, "minimise_on_simplex", lambda Q, g: torch.full_like(g, 1 / n))
    alpha = head_weights(torch.ones(n, 1), torch.ones(n))
    torch.testing.assert_close(alpha, torch.full((n, n), 1 / n).double())
