"""Run the Triton kernels on the CPU by Triton's interpreter: TRITON_INTERPRET=1 python tests/interpreted_kernels.py.

In a process of its own, because Triton decides whether it interprets when it is first imported.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

sys.path.insert(0, str(Path(__file__).parent / "oracle"))
from plain_convolutions import error, factors, product

from stratafl.runtime import kernels
from stratafl.runtime.kernels import Geometry, Tiles
from stratafl.runtime.products import MatmulConv2d

BLOCKS = Tiles(16, 64, 16, 4, 2)
#             C  B  in  out image  kernel  out     stride  start
GEOMETRIES = [
    Geometry(2, 3, 3, 5, (6, 7), (3, 3), (6, 7), (1, 1), (-1, -1)),
    Geometry(1, 2, 3, 18, (8, 8), (5, 5), (4, 4), (1, 1), (0, 0)),
    Geometry(1, 2, 16, 16, (5, 4), (3, 3), (3, 2), (2, 2), (-1, -1)),
    Geometry(1, 2, 16, 32, (4, 4), (1, 1), (2, 2), (2, 2), (0, 0)),
    Geometry(1, 1, 2, 4, (9, 9), (7, 7), (5, 5), (2, 2), (-3, -3)),
    Geometry(1, 2, 2, 3, (7, 5), (3, 2), (3, 3), (3, 2), (-2, -1)),
    Geometry(2, 3, 4, 4, (2, 2), (2, 2), (1, 1), (2, 2), (0, 0)),
    Geometry(1, 3, 16, 4, (1, 1), (1, 1), (1, 1), (1, 1), (0, 0)),
]


def check_products():
    for geometry in GEOMETRIES:
        for kind in ("output", "image", "weight"):
            for parts, tapwise in ((1, False), (3, False), (2, True)):
                if tapwise and kernels._channels(kind, geometry) % BLOCKS.k:
                    continue
                kernels.MEASURED[kind, geometry] = replace(BLOCKS, parts=parts, tapwise=tapwise)
                a, b = factors(kind, geometry)
                found = kernels.multiply(kind, a, b, geometry, "fp32")
                assert found.shape == geometry.shape(kind)
                gap = error(found, product(kind, a, b, geometry))
                assert gap < 1e-6, (geometry, kind, parts, tapwise, gap)
            kernels.MEASURED.clear()


def check_module():
    """Gradients of stacked clients through the module, with taps cut off, and the same traced."""
    kernels.TILES = (BLOCKS,)
    conv = torch.nn.Conv2d(2, 3, 3, padding=1)
    conv.__class__ = MatmulConv2d
    rows = {name: torch.randn(2, *x.shape) for name, x in conv.named_parameters()}
    x = torch.randn(2, 2, 2, 1, 4)  # one row high: three of nine taps meet the image

    def loss(row, x):
        return functional_call(conv, row, (x,)).pow(3).sum()

    def step(rows, x):
        return vmap(grad(loss, argnums=(0, 1)))(rows, x)

    expected_rows, expected = step(rows, x)
    conv.product = "kernel"
    traced = make_fx(step)(rows, x)
    assert any("convolution_parts" in str(node.target) for node in traced.graph.nodes)
    for found_rows, found in (step(rows, x), traced(rows, x)):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
        for name, wanted in expected_rows.items():
            assert torch.allclose(found_rows[name], wanted, rtol=1e-4, atol=1e-4), name


def check_operation():
    """The operation obeys torch's rules: its shapes are known without running it, and it writes into nothing."""
    geometry = GEOMETRIES[-1]
    a, b = factors("output", geometry)
    arguments = (a, b, "output", geometry.numbers, BLOCKS.numbers, "fp32")
    torch.library.opcheck(kernels.convolution_parts, arguments, test_utils=("test_schema", "test_faketensor"))


def interpreter_works():
    """Triton 3.6 cannot interpret loops with NumPy 2.4 and later."""
    geometry = GEOMETRIES[-1]
    try:
        kernels.multiply("output", *factors("output", geometry), geometry, "fp32")
    except Exception as problem:
        if "0-dimensional arrays" in str(problem):
            return False
        raise
    return True


if __name__ == "__main__":
    if not interpreter_works():
        sys.exit("this Triton cannot interpret with this NumPy")
    check_products()
    check_module()
    check_operation()
    print("kernels agree")
