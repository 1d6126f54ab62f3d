"""Many quadratic programmes on the simplex at once, by an interior-point method in float64.

    min_α αᵀQα − 2·gᵀα   with α ≥ 0 and Σα = 1,   one Q for all, and a g for each

Mehrotra's predictor-corrector steps (Nocedal and Wright, 2006, section 16.6). They take as many iterations whatever Q
is conditioned like, where gradient methods would need thousands, and no programme waits for another's decision.
"""

import torch
from torch import Tensor

ITERATIONS = 60  # about twenty are needed
GAP = 1e-21  # α·s at the solution, of a Q scaled to a diagonal of about 1: where both are 0, α is exact to its root
BACK = 0.995  # of the way to the boundary
AT_ONCE = 2**24  # numbers in the matrices of the programmes that are solved side by side


def minimise_on_simplex(Q: Tensor, g: Tensor) -> Tensor:
    """The minimisers `[M, n]` for a positive definite Q `[n, n]` and linear terms g `[M, n]`."""
    Q, g = Q.double(), g.double()
    scale = Q.diagonal().mean()
    some = max(1, AT_ONCE // Q.numel())
    return torch.cat([_solved(Q / scale, part / scale) for part in g.split(some)])


def _solved(Q: Tensor, g: Tensor) -> Tensor:
    """α, with the multipliers λ of Σα = 1 and s of α ≥ 0: Qα − g − λ − s = 0, α·s = 0."""
    alpha = torch.full_like(g, 1 / g.shape[1])
    slope = alpha @ Q - g
    lam = slope.amin(1, keepdim=True) - 1.0
    s = slope - lam  # at least 1: dual feasible, and stays so, as α stays on the simplex
    for _ in range(ITERATIONS):
        gap = (alpha * s).mean(1, keepdim=True)
        if bool((gap <= 2 * GAP).all()):
            break
        factor = torch.linalg.cholesky(Q + torch.diag_embed(s / alpha))
        residual = alpha @ Q - g - lam - s
        ahead = _direction(factor, alpha, s, residual, alpha * s)
        left = ((alpha + _reach(alpha, ahead[0]) * ahead[0]) * (s + _reach(s, ahead[2]) * ahead[2])).mean(
            1, keepdim=True
        )
        target = ((left / gap) ** 3 * gap).clamp(min=GAP)
        to_alpha, to_lam, to_s = _direction(factor, alpha, s, residual, alpha * s + ahead[0] * ahead[2] - target)
        step = BACK * torch.minimum(_reach(alpha, to_alpha), _reach(s, to_s))
        alpha, lam, s = alpha + step * to_alpha, lam + step * to_lam, s + step * to_s
    return alpha / alpha.sum(1, keepdim=True)


def _direction(
    factor: Tensor, alpha: Tensor, s: Tensor, residual: Tensor, excess: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Newton's step (dα, dλ, ds) that removes the residual and the excess of α·s; Σ dα = 1 − Σα."""
    sides = torch.stack([-residual - excess / alpha, torch.ones_like(alpha)], -1)
    u, v = torch.cholesky_solve(sides, factor).unbind(-1)
    to_lam = (1 - alpha.sum(1, keepdim=True) - u.sum(1, keepdim=True)) / v.sum(1, keepdim=True)
    to_alpha = u + to_lam * v
    return to_alpha, to_lam, -(excess + s * to_alpha) / alpha


def _reach(x: Tensor, direction: Tensor) -> Tensor:
    """How much of a step leaves x positive, 1 at most."""
    limits = torch.where(direction < 0, -x / direction, torch.inf)
    return limits.amin(1, keepdim=True).clamp(max=1.0)
