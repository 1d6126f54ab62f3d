"""Convolutions by Triton kernels: their algebra everywhere, the kernels themselves where Triton is installed."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from plain_convolutions import error, factors, product
from torch import nn
from torch.func import functional_call, grad, vmap

from processes import outputs
from stratafl.runtime import kernels
from stratafl.runtime.kernels import TILES, Geometry, Tiles, candidates, programs, tiles_for
from stratafl.runtime.products import MatmulConv2d, _Axis
from stratafl.runtime.step_graph import describe_step

STRIDED = Geometry(3, 2, 4, 5, (6, 5), (3, 3), (3, 5), (2, 1), (-1, -1))


@pytest.fixture
def _oracle_as_kernel(monkeypatch):
    """Kernels that are replaced by the oracle: what is left is the algebra around them."""

    def multiply(kind, a, b, geometry, precision):
        return product(kind, a, b, geometry).to(a.dtype)

    monkeypatch.setattr(kernels, "multiply", multiply)
    monkeypatch.setattr(kernels, "usable", lambda x, kernel: True)


def convolution(x, w, geometry=STRIDED):
    y = kernels.convolve(x.transpose(0, 1), w, geometry.stride, geometry.start, geometry.out, "fp32")
    return y.transpose(0, 1)


def test_a_step_is_described_without_compiling_its_kernels(monkeypatch):
    def launched(*given):
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr(kernels, "launch", launched)
    monkeypatch.setattr(kernels, "usable", lambda x, kernel: True)
    x, w = samples(torch.float32)
    described, _ = describe_step(lambda x, w: w.add_(convolution(x, w).mean()), [x, w])
    assert [each for each, *_ in described["operations"]].count("stratafl::convolution_parts.default") == 1
    with pytest.raises(AssertionError, match="launched"):
        convolution(x, w)


def stock(x, w):
    return torch.nn.functional.conv2d(x, w, stride=STRIDED.stride, padding=1)


def cubes(f, x, w):
    return f(x, w).pow(3).sum()


def slopes(f, x, w):
    dx, dw = grad(partial(cubes, f), argnums=(0, 1))(x, w)
    return dx.pow(3).sum() + dw.pow(3).sum()


def samples(dtype=torch.float64):
    torch.manual_seed(0)
    return torch.randn(3, 2, 4, 6, 5, dtype=dtype), torch.randn(3, 5, 4, 3, 3, dtype=dtype)


@pytest.mark.parametrize("loss", [cubes, slopes])
@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0)])
@pytest.mark.usefixtures("_oracle_as_kernel")
def test_derivatives_of_first_and_second_order_are_those_of_a_stock_convolution(loss, in_dims):
    given = [x if dim == 0 else x[0] for x, dim in zip(samples(), in_dims, strict=True)]
    found, expected = (vmap(grad(partial(loss, f), argnums=(0, 1)), in_dims)(*given) for f in (convolution, stock))
    for mine, theirs in zip(found, expected, strict=True):
        assert error(mine, theirs) < 1e-12


@pytest.mark.usefixtures("_oracle_as_kernel")
def test_clients_of_clients_are_clients():
    x, w = samples()
    found = vmap(vmap(convolution), in_dims=(0, 1))(x[None], w[:, None])
    assert error(found[0], vmap(stock)(x, w)) < 1e-12


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "padding", "size"),
    [
        (3, 4, 5, 1, 0, (8, 8)),
        (4, 5, 3, 2, 1, (5, 6)),
        (4, 4, 3, 1, 1, (1, 1)),
        (2, 3, 3, 1, 1, (1, 4)),
        (4, 4, 3, 2, 1, (2, 2)),
    ],
)
@pytest.mark.usefixtures("_oracle_as_kernel")
def test_a_module_computes_the_same_by_kernels_and_by_products(inputs, outputs, kernel, stride, padding, size):
    """Also where taps that meet nothing but padding are cut off."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dtype=torch.float64)
    conv.__class__ = MatmulConv2d
    torch.manual_seed(0)
    rows = {name: torch.randn(2, *x.shape, dtype=torch.float64) for name, x in conv.named_parameters()}
    x = torch.randn(2, 3, inputs, *size, dtype=torch.float64)

    def loss(row, x):
        return functional_call(conv, row, (x,)).pow(3).sum()

    found = {}
    for way in ("kernel", True):
        conv.product = way
        found[way] = vmap(grad(loss, argnums=(0, 1)))(rows, x)
    assert error(found["kernel"][1], found[True][1]) < 1e-12
    for name in rows:
        assert error(found["kernel"][0][name], found[True][0][name]) < 1e-12


def test_products_stay_where_kernels_cannot_run(monkeypatch):
    x = torch.zeros(1, 2, 4, 4)
    assert not kernels.usable(x, (3, 3))  # a CPU
    monkeypatch.setattr(kernels, "run_on", lambda device: True)
    assert kernels.usable(x, (3, 3))
    assert not kernels.usable(x.double(), (3, 3))
    assert not kernels.usable(x, (9, 9))  # more taps than bits
    conv = nn.Conv2d(2, 3, 3, dilation=2)
    conv.__class__ = MatmulConv2d
    conv.product = "kernel"
    assert conv._way(x, _Axis(4, 3, 1, 0, 2), _Axis(4, 3, 1, 0, 2)) == "product"


def test_geometry_and_tiles_survive_as_numbers():
    assert Geometry.of(STRIDED.numbers) == STRIDED
    tiles = Tiles(64, 32, 16, 4, 3, 5, True)
    assert Tiles.of(tiles.numbers) == tiles


@pytest.mark.parametrize("kind", ["output", "image", "weight"])
@pytest.mark.parametrize("clients", [1, 13, 100])
def test_sums_are_divided_only_where_programs_are_few(kind, clients):
    geometry = Geometry(clients, 10, 64, 128, (8, 8), (3, 3), (4, 4), (2, 2), (-1, -1))
    for tiles in candidates(kind, geometry, processors=132):
        whole = clients * programs(kind, geometry, tiles)
        assert tiles.parts == 1 or whole * tiles.parts <= 2 * 132
        assert not tiles.tapwise or (kind != "weight" and kernels._channels(kind, geometry) % tiles.k == 0)
    assert tiles_for(kind, geometry, 132) in candidates(kind, geometry, 132)


def test_every_pixel_of_a_strided_image_has_a_program():
    """Pixels are computed in classes by their remainders: there must be a program for each tile of each class."""
    geometry = Geometry(1, 1, 4, 4, (5, 5), (3, 3), (3, 3), (2, 2), (-1, -1))
    assert programs("image", geometry, Tiles(16, 16, 16, 4, 2)) == 4  # nine pixels at most in a class
    assert programs("image", replace(geometry, batch=2), Tiles(16, 16, 16, 4, 2)) == 8


def test_blocks_are_powers_of_two():
    for tiles in TILES:
        assert all(n & (n - 1) == 0 and n >= 16 for n in tiles.numbers[:3])


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.slow
def test_interpreted_kernels_agree_with_stock_convolutions():
    script = Path(__file__).parents[1] / "interpreted_kernels.py"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    out = subprocess.PIPE
    child = subprocess.Popen([sys.executable, str(script)], stdout=out, stderr=out, text=True, env=environment)
    found, complaints = outputs(child)
    if "cannot interpret" in complaints:
        pytest.skip(complaints.strip())
    assert found == "kernels agree\n", complaints[-2000:]


def test_oracle_factors_have_the_shapes_of_their_kind():
    a, b = factors("image", STRIDED)
    assert product("image", a, b, STRIDED).shape == STRIDED.shape("image")
