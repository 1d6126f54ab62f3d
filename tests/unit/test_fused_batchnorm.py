"""Batch statistics as the compiler gets them: one pass over the batch, the same numbers."""

import contextlib

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from stratafl.runtime.modules import Context, prepare
from stratafl.runtime.products import fusing

WEIGHTS = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)


def results(norm, context, rows, x, way):
    """Gradients by rows and images, and new running statistics, of two clients; the second has a padded sample."""

    def loss(trained, rest, x, weight):
        context.weight = weight
        context.statistics.clear()
        y = functional_call(norm, {**trained, **rest}, (x,))
        return (y.relu().square() * weight.reshape(-1, *(1,) * (x.ndim - 1))).sum(), dict(context.statistics)

    trained = {name: row for name, row in rows.items() if not name.startswith("running")}
    rest = {name: row for name, row in rows.items() if name.startswith("running")}
    with way:
        slopes, statistics = vmap(grad(loss, argnums=(0, 2), has_aux=True))(trained, rest, x, WEIGHTS)
    context.clear()
    return {**slopes[0], "x": slopes[1], **statistics}


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize(("kind", "size"), [(nn.BatchNorm2d, (3, 5, 4)), (nn.BatchNorm1d, (3,))])
def test_fused_statistics_are_the_usual_ones(kind, size, tracked):
    torch.manual_seed(0)
    context = Context()
    norm = nn.Sequential(kind(3, track_running_stats=tracked, dtype=torch.float64))
    norm = prepare(norm, context, stacked=True, device=torch.device("cpu")).train().requires_grad_(False)
    named = {**dict(norm.named_parameters()), **dict(norm.named_buffers())}
    rows = {name: torch.rand(2, *x.shape, dtype=torch.float64) for name, x in named.items() if x.is_floating_point()}
    x = torch.randn(2, 4, *size, dtype=torch.float64) + 3  # far from the running means
    usual, fused = (results(norm, context, rows, x, way) for way in (contextlib.nullcontext(), fusing()))
    assert usual.keys() == fused.keys()
    assert tracked == ("0.running_var" in usual)
    for name, expected in usual.items():
        assert torch.allclose(fused[name], expected, rtol=1e-10, atol=1e-10), name


@pytest.mark.parametrize("distance", [0.0, 100.0, 1e4])
def test_the_variance_is_right_far_from_zero(distance):
    """Raw features before the first BatchNorm, whose running mean is still 0."""
    context = Context()
    norm = prepare(nn.Sequential(nn.BatchNorm1d(2)), context, stacked=True, device=torch.device("cpu")).train()
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)) + distance
    with fusing():
        norm(x)
    found, expected = context.statistics["0.running_var"], 0.9 + 0.1 * x.double().var(0)
    assert torch.allclose(found.double(), expected, rtol=1e-3)


def test_a_constant_batch_has_no_variance():
    context = Context()
    norm = prepare(nn.Sequential(nn.BatchNorm1d(1)), context, stacked=True, device=torch.device("cpu")).train()
    x = torch.full((4, 1), 1000.1)
    with fusing():
        y = norm(x)
    assert torch.isfinite(y).all()
    assert context.statistics["0.running_var"] >= 0
