"""Derivatives of a linear layer for the compiler: a sum of outer products is the product."""

import contextlib

import pytest
import torch
from torch.func import functional_call, grad, vmap

from stratafl.runtime.products import OUTER, MatmulLinear, fusing


def gradients(batch, way):
    generator = torch.Generator().manual_seed(0)
    layer = MatmulLinear(5, 3).double()
    columns = {n: torch.randn(2, *p.shape, generator=generator).double() for n, p in layer.named_parameters()}
    x, y = (torch.randn(2, batch, width, generator=generator).double() for width in (5, 3))

    def loss(columns, x, y):
        return ((functional_call(layer, columns, (x,)) - y) ** 2).sum()

    with way:
        return vmap(grad(loss, argnums=(0, 1)))(columns, x, y), columns, x, y


@pytest.mark.parametrize("batch", [1, 4, OUTER, OUTER + 1])
def test_derivatives_are_those_of_the_formula(batch):
    (by_columns, by_x), columns, x, y = gradients(batch, fusing())
    error = 2 * (torch.einsum("cbi,coi->cbo", x, columns["weight"]) + columns["bias"][:, None] - y)
    assert torch.allclose(by_columns["weight"], torch.einsum("cbo,cbi->coi", error, x), rtol=1e-13, atol=1e-13)
    assert torch.allclose(by_columns["bias"], error.sum(1), rtol=1e-13, atol=1e-13)
    assert torch.allclose(by_x, torch.einsum("cbo,coi->cbi", error, columns["weight"]), rtol=1e-13, atol=1e-13)


def operations(batch, way):
    seen = []

    class See(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with See():
        gradients(batch, way)
    return sum("bmm" in each for each in seen)


def test_small_batches_need_one_product_less():
    assert operations(4, fusing()) == operations(4, contextlib.nullcontext()) - 1
    assert operations(OUTER + 1, fusing()) == operations(OUTER + 1, contextlib.nullcontext())
