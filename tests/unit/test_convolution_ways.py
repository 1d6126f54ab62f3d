"""Which way a convolution is computed: what is measured decides, and what cannot be measured is left out."""

import pytest
import torch
from torch import nn

from stratafl.runs.environment import misstated
from stratafl.runtime import speed
from stratafl.runtime.products import MatmulConv2d
from stratafl.runtime.speed import FUSED, Speed, fastest_ways, with_convolutions


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

    def milliseconds(step, way, conv):
        if way not in table[heights[id(conv)]]:
            raise RuntimeError("does not compile")
        return table[heights[id(conv)]][way]

    monkeypatch.setattr(speed, "_step", step)
    monkeypatch.setattr(speed, "_milliseconds", milliseconds)
    return table


def test_each_convolution_takes_the_fastest_way_that_runs(times):
    times |= {8: {True: 2.0, False: 1.0, "kernel": 3.0}, 6: {True: 2.0, "kernel": 1.0}, 4: {}}
    found = fastest_ways(network(), torch.zeros(2, 1, 8, 8), 3, 4, (True, False, "kernel"), fused=False)
    assert found == {"0": False, "1": "kernel", "2": True}


def test_a_product_takes_less_time_in_a_compiled_step(times):
    times |= {8: {True: 1.0, "kernel": FUSED + 0.1}, 6: {True: 1.0, "kernel": FUSED - 0.1}, 4: {True: 1.0}}
    found = fastest_ways(network(), torch.zeros(2, 1, 8, 8), 3, 4, (True, "kernel"), fused=True)
    assert found == {"0": True, "1": "kernel", "2": True}


@pytest.mark.parametrize(("name", "way"), [("auto", True), ("product", True), ("stock", False), ("kernel", "kernel")])
def test_on_a_cpu_nothing_is_measured(name, way):
    made = with_convolutions(Speed(convolutions=name), network(), torch.zeros(2, 1, 8, 8), 3, 4)
    assert made.products == {"0": way, "1": way, "2": way}


def test_kernels_are_products_on_a_cpu():
    conv, x = nn.Conv2d(1, 2, 3), torch.randn(2, 1, 8, 8)
    expected = conv(x)
    conv.__class__ = MatmulConv2d
    conv.product = "kernel"
    assert torch.allclose(conv(x), expected, atol=1e-5)


def test_a_run_remembers_its_kernels():
    assert misstated({"tuning": {"products": {"conv1": "kernel", "conv2": True}}}) is None
    assert misstated({"tuning": {"products": {"conv1": "cudnn"}}}) == "tuning.products is not a table of convolutions"
    assert misstated({"tuning": {"products": {"conv1": 1}}}) == "tuning.products is not a table of convolutions"
