"""Which way a convolution is computed: what is measured decides, in compiled steps a rule."""

import contextlib

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from stratafl.runs.environment import misstated
from stratafl.runtime import products, speed, ways
from stratafl.runtime.products import MatmulConv2d, fusing, rounding
from stratafl.runtime.speed import Speed, faster_ways, with_convolutions
from stratafl.runtime.ways import ConvolutionSize, count_clients, fused_way


def network():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3, padding=1))


@pytest.fixture
def times(monkeypatch):
    """Milliseconds of each way, by the height of the image; an error where there are none."""
    table = {}
    heights = {}

    def step(conv, x, clients):
        heights[id(conv)] = x.shape[3]
        return lambda: None

    def milliseconds(step, product, conv):
        if product not in table[heights[id(conv)]]:
            raise RuntimeError("out of memory")
        return table[heights[id(conv)]][product]

    monkeypatch.setattr(speed, "_step", step)
    monkeypatch.setattr(speed, "_milliseconds", milliseconds)
    return table


def test_each_convolution_takes_the_faster_way_that_runs(times):
    times |= {8: {True: 2.0, False: 1.0}, 6: {True: 1.0, False: 2.0}, 4: {False: 3.0}}
    assert faster_ways(network(), torch.zeros(2, 1, 8, 8), 3, 4) == {"0": False, "1": True, "2": False}


def test_what_cannot_be_measured_is_a_product(times):
    times |= {9: {}, 7: {True: 1.0}, 5: {True: 1.0, False: 1.0}}
    assert faster_ways(network(), torch.zeros(2, 1, 9, 9), 3, 4) == {"0": True, "1": True, "2": True}


@pytest.mark.parametrize(
    ("name", "way"), [("auto", True), ("product", "product"), ("stock", "stock"), ("kernel", "kernel")]
)
def test_on_a_cpu_nothing_is_measured(name, way, caplog):
    made = with_convolutions(Speed(convolutions=name), network(), torch.zeros(2, 1, 8, 8), 3, 4)
    assert made.products == {"0": way, "1": way, "2": way}
    assert ["needs Triton and a GPU" in line for line in caplog.messages] == [True] * (name == "kernel")


@pytest.mark.parametrize("way", [True, False, "product", "stock", "kernel"])
@pytest.mark.parametrize("traced", [False, True])
def test_every_way_computes_the_convolution_on_a_cpu(way, traced):
    conv, x = nn.Conv2d(1, 2, 3), torch.randn(2, 1, 8, 8)
    expected = conv(x)
    conv.__class__ = MatmulConv2d
    conv.product = way
    with fusing() if traced else contextlib.nullcontext():
        assert torch.allclose(conv(x), expected, atol=1e-5)


# Compiled steps

RESNET20 = {  # with 100 clients: inputs, outputs, kernel, stride, padding, out, way, way without kernels
    "stem": (3, 64, 3, 1, 1, 32, "product", "product"),
    "first stage": (64, 64, 3, 1, 1, 32, "grouped", "grouped"),
    "into the second": (64, 128, 3, 2, 1, 16, "kernel", "grouped"),
    "past the second": (64, 128, 1, 2, 0, 16, "product", "product"),
    "odd channels": (60, 60, 3, 1, 1, 32, "kernel", "product"),
    "third stage": (256, 256, 3, 1, 1, 8, "grouped", "grouped"),
}


def size(clients, batch, inputs, outputs, kernel, stride, padding, out):
    return ConvolutionSize(
        clients, batch, inputs, outputs, (kernel, kernel), (stride, stride), (padding, padding), (out, out)
    )


@pytest.mark.parametrize("layer", RESNET20)
def test_large_columns_are_avoided(layer):
    *sizes, way, without = RESNET20[layer]
    assert fused_way(size(100, 16, *sizes), kernels=True) == way
    assert fused_way(size(100, 16, *sizes), kernels=False) == without
    assert fused_way(size(1, 16, *sizes), kernels=True) == "product"


def test_the_bytes_of_columns_decide():
    """13 clients of the CNN and of ResNet-18 multiply, as was measured to be as fast."""
    assert size(13, 10, 32, 64, 5, 1, 0, 10).columns == 4 * 13 * 10 * 32 * 25 * 100
    assert fused_way(size(13, 10, 32, 64, 5, 1, 0, 10), kernels=True) == "product"
    assert fused_way(size(13, 10, 3, 64, 7, 2, 3, 16), kernels=True) == "product"
    assert fused_way(size(100, 10, 32, 64, 5, 1, 0, 10), kernels=True) == "kernel"


def test_a_convolution_without_columns_is_a_product():
    assert fused_way(size(1000, 100, 64, 64, 1, 1, 0, 32), kernels=True) == "product"
    assert fused_way(size(1000, 100, 64, 64, 1, 1, 1, 34), kernels=True) == "kernel"  # padded, which is a copy


@pytest.mark.parametrize(("product", "large"), [(True, "grouped"), (False, "grouped"), ("product", "product")])
def test_what_is_forced_is_not_chosen_by_the_rule(monkeypatch, product, large):
    """Otherwise the clients that `vmap` hides decide, here from five on."""
    monkeypatch.setattr(products, "_has_rule", lambda x: True)
    monkeypatch.setattr(ways, "LARGE", 5 * 4 * 64 * 9 * 36)
    conv = nn.Conv2d(64, 64, 3)
    conv.__class__, conv.product = MatmulConv2d, product
    seen = []
    axes = [products._Axis(8, 3, 1, 0, 1)] * 2
    with fusing():
        for clients in (4, 5):
            vmap(lambda x: seen.append(conv._way(x, *axes)) or x)(torch.zeros(clients, 1, 64, 8, 8))
    assert seen == ["product", large]


def test_the_rule_is_for_rounded_factors_on_a_gpu():
    x = torch.zeros(1, 1, 8, 8)
    with fusing(), rounding(torch.bfloat16):
        assert not products._has_rule(x)
    with rounding(torch.bfloat16):
        assert products._factors() == "bf16"
    assert products._factors() == "fp32"


def test_clients_are_counted_inside_vmap():
    seen = []

    def loss(w, x):
        seen.append(count_clients(x, w))
        return (w * x).sum()

    loss(torch.ones(3), torch.ones(3))
    vmap(grad(loss))(torch.ones(5, 3), torch.ones(5, 3))
    vmap(loss, (0, None))(torch.ones(4, 3), torch.ones(3))
    vmap(loss, (None, 0))(torch.ones(3), torch.ones(4, 3))
    vmap(vmap(grad(loss)), (1, 0))(torch.ones(4, 2, 3), torch.ones(2, 4, 3))
    assert seen == [1, 5, 4, 4, 8]


def test_a_run_remembers_its_kernels():
    assert misstated({"tuning": {"products": {"conv1": "kernel", "conv2": True, "conv3": "stock"}}}) is None
    assert "tuning.products" in misstated({"tuning": {"products": {"conv1": "cudnn"}}})
    assert "tuning.products" in misstated({"tuning": {"products": {"conv1": 1}}})
