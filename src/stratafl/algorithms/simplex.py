"""Quadratic programmes on the simplex, many at once: FedPAC's weights of heads, ConFREE's of updates.

An interior-point method in float64. Mehrotra's predictor-corrector steps (Nocedal and Wright, 2006, section 16.6) take
about as many iterations however ill-conditioned Q is, where gradient methods would need thousands, and all programmes
take the same steps, so that they run as one batch.
"""

import torch
from torch import Tensor

MAX_ITERATIONS = 60  # about 20 are needed
MIN_GAP = 1e-21  # mean of α·s to stop at; where both are 0, α is then exact to about √MIN_GAP (Q is scaled to 1)
STEP_SHARE = 0.995  # of the longest step that keeps α and s positive
MAX_NUMBERS = 2**22  # in the matrices of the programmes that are solved together


def minimise_on_simplex(Q: Tensor, g: Tensor) -> Tensor:
    """The minimisers `[M, n]` of αᵀQα − 2·gᵀα for a positive definite Q `[n, n]` and linear terms g `[M, n]`."""
    Q, g = Q.double(), g.double()
    scale = Q.diagonal().mean()
    together = max(1, MAX_NUMBERS // Q.numel())
    return torch.cat([_solved(Q / scale, part / scale) for part in g.split(together)])


def _solved(Q: Tensor, g: Tensor) -> Tensor:
    """α, with the multipliers λ of Σα = 1 and s of α ≥ 0: Qα − g − λ − s = 0, α·s = 0."""
    alpha = torch.full_like(g, 1 / g.shape[1])
    slope = alpha @ Q - g
    lam = slope.amin(1, keepdim=True) - 1.0
    s = slope - lam  # at least 1: dual feasible, and stays so, as α stays on the simplex
    for _ in range(MAX_ITERATIONS):
        gap = (alpha * s).mean(1, keepdim=True)
        if bool((gap <= 2 * MIN_GAP).all()):
            break
        factor = torch.linalg.cholesky(Q + torch.diag_embed(s / alpha))
        residual = alpha @ Q - g - lam - s
        # Predictor: how far a plain Newton step would close the gap.
        newton_alpha, _, newton_s = _direction(factor, alpha, s, residual, alpha * s)
        alpha_ahead = alpha + _reach(alpha, newton_alpha) * newton_alpha
        s_ahead = s + _reach(s, newton_s) * newton_s
        gap_ahead = (alpha_ahead * s_ahead).mean(1, keepdim=True)
        # Corrector: aim at a gap that this makes likely, and remove the predictor's second-order error.
        target = ((gap_ahead / gap) ** 3 * gap).clamp(min=MIN_GAP)
        to_alpha, to_lam, to_s = _direction(factor, alpha, s, residual, alpha * s + newton_alpha * newton_s - target)
        step = STEP_SHARE * torch.minimum(_reach(alpha, to_alpha), _reach(s, to_s))
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
