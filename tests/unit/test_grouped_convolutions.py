"""Convolutions with a group per client: the same as stock ones, also when a step is recorded and compiled."""

import json
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from plain_convolutions import error
from torch import nn
from torch.func import functional_call, grad, vmap

from stratafl.runtime import grouped
from stratafl.runtime.modules import Context, prepare
from stratafl.runtime.products import MatmulConv2d, fusing, rounding
from stratafl.runtime.step_graph import build_step, describe_step, record_graph

#          in out kernel stride padding size, more
SHAPES = {
    "square": (3, 4, 3, 1, 1, (6, 6), {}),
    "odd": (4, 5, (3, 2), 1, (0, 1), (7, 5), {}),
    "strided": (4, 6, 3, 2, 1, (7, 6), {}),
    "strides that differ": (2, 3, 3, (2, 1), 1, (5, 8), {}),
    "wide padding": (3, 3, 2, 1, 2, (4, 5), {}),
    "one pixel": (4, 4, 3, 1, 1, (1, 1), {}),
    "one tap": (4, 6, 1, 1, 0, (4, 3), {}),
    "one tap, strided": (4, 6, 1, 2, 0, (5, 4), {}),
    "dilated": (2, 3, 3, 1, 1, (7, 7), {"dilation": 2}),
    "groups": (4, 6, 3, 1, 1, (5, 5), {"groups": 2}),
    "no bias": (3, 4, 5, 1, 2, (6, 7), {"bias": False}),
}


def convolution(shape, dtype=torch.float64):
    inputs, outputs, kernel, stride, padding, size, more = SHAPES[shape]
    torch.manual_seed(0)
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dtype=dtype, **more)
    rows = {name: torch.randn(3, *x.shape, dtype=dtype) for name, x in conv.named_parameters()}
    return conv, rows, torch.randn(3, 2, inputs, *size, dtype=dtype)


def cubes(conv, row, x):
    return functional_call(conv, row, (x,)).pow(3).sum()


def slopes(conv, row, x):
    found, dx = grad(partial(cubes, conv), argnums=(0, 1))(row, x)
    return dx.pow(3).sum() + sum(each.pow(3).sum() for each in found.values())


def client_by_client(conv, rows, x, loss):
    found = [grad(partial(loss, conv), argnums=(0, 1))({n: v[c] for n, v in rows.items()}, x[c]) for c in range(len(x))]
    return {n: torch.stack([each[0][n] for each in found]) for n in rows} | {"x": torch.stack([d for _, d in found])}


def stacked(conv, rows, x, loss, in_dims=(0, 0)):
    conv.__class__, conv.product = MatmulConv2d, "stock"
    with fusing():
        found, dx = vmap(grad(partial(loss, conv), argnums=(0, 1)), in_dims)(rows, x)
    return found | {"x": dx}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", [cubes, slopes])
def test_derivatives_of_first_and_second_order_are_those_of_stock_convolutions(shape, loss):
    conv, rows, x = convolution(shape)
    expected = client_by_client(conv, rows, x, loss)
    found = stacked(conv, rows, x, loss)
    for name in expected:
        assert error(found[name], expected[name]) < 1e-12, name


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", [cubes, slopes])
def test_gradients_of_weights_with_many_channels_are_products_with_columns(shape, loss, monkeypatch):
    made = []
    by_columns = grouped._by_columns
    monkeypatch.setattr(grouped, "MANY_CHANNELS", 3)
    monkeypatch.setattr(grouped, "_by_columns", lambda *given: made.append(given) or by_columns(*given))
    conv, rows, x = convolution(shape)
    expected = client_by_client(conv, rows, x, loss)
    found = stacked(conv, rows, x, loss)
    strided = any(n != 1 for n in (*conv.stride, *conv.dilation, conv.groups))
    assert bool(made) == (not strided)
    for name in expected:
        assert error(found[name], expected[name]) < 1e-12, name


def test_columns_that_need_too_much_room_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(grouped, "MANY_CHANNELS", 3)
    conv, rows, x = convolution("square")
    sizes = grouped.ConvolutionShape((2, 3, 6, 6), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1)
    assert sizes.columns(3) * 8 == 3 * 2 * 3 * 9 * 36 * 8  # clients, batch, inputs, taps, places, bytes
    monkeypatch.setattr(grouped, "MAX_COLUMN_BYTES", sizes.columns(3) * 8 - 1)
    monkeypatch.setattr(grouped, "_by_columns", None)  # would fail if it were called
    assert error(stacked(conv, rows, x, cubes)["weight"], client_by_client(conv, rows, x, cubes)["weight"]) < 1e-12


@pytest.mark.parametrize("shape", SHAPES)
def test_the_output_of_one_client_and_of_several(shape):
    conv, rows, x = convolution(shape)
    expected = torch.stack([functional_call(conv, {n: v[c] for n, v in rows.items()}, (x[c],)) for c in range(len(x))])
    conv.__class__, conv.product = MatmulConv2d, "stock"
    one = {name: rows[name][0] for name in rows}
    with fusing():
        assert error(vmap(partial(functional_call, conv))(rows, (x,)), expected) < 1e-12
        assert error(functional_call(conv, one, (x[0],)), expected[0]) < 1e-12
        nested = vmap(vmap(partial(functional_call, conv)))({n: v[None] for n, v in rows.items()}, (x[None],))
    assert error(nested[0], expected) < 1e-12


def test_clients_may_share_images_or_weights():
    conv, rows, x = convolution("square")
    for given, in_dims in (((rows, x[0]), (0, None)), (({n: v[0] for n, v in rows.items()}, x), (None, 0))):
        wide = {n: v.expand(3, *v.shape) if in_dims[0] is None else v for n, v in given[0].items()}
        expected = client_by_client(conv, wide, given[1].expand(3, *x.shape[1:]), cubes)
        found = stacked(conv, *given, cubes, in_dims)
        conv.__class__ = nn.Conv2d
        assert all(error(found[name], expected[name]) < 1e-12 for name in expected)


def test_factors_are_rounded_as_those_of_products():
    conv, rows, x = convolution("square", torch.float32)
    conv.__class__ = MatmulConv2d
    found = {}
    for way in ("product", "stock"):
        conv.product = way
        with fusing(), rounding(torch.bfloat16):
            found[way] = vmap(grad(partial(cubes, conv), argnums=(0, 1)))(rows, x)
    exact = stacked(conv, rows, x, cubes)["x"].double()
    assert error(found["stock"][1], found["product"][1].double()) < 0.02
    assert 1e-4 < error(found["stock"][1], exact) < 0.05  # they are rounded


@pytest.mark.slow
def test_images_lie_with_clients_and_channels_last():
    x = torch.randn(3, 2, 4, 5, 6)
    laid = grouped.clients_last(x)
    assert torch.equal(laid, x)
    assert laid.permute(1, 3, 4, 0, 2).is_contiguous()
    merged = grouped._merged(x)
    assert merged.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(merged[1, 4:8], x[1, 1])
    torch.library.opcheck(grouped.clients_last, (x,), test_utils=("test_schema", "test_faketensor"))


# Steps of a network


class Block(nn.Module):
    """A stem and a residual block with BatchNorm, as in ResNet-20."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.norm0(self.stem(x)).relu()
        x = (self.norm2(self.conv2(self.norm1(self.conv1(x)).relu())) + x).relu()
        return self.head(x.mean((2, 3)))


def block_step(way, clients=3):
    """A step that moves all weights in place, and its tensors."""
    torch.manual_seed(0)
    context = Context()
    net = prepare(Block(), context, stacked=True, device=torch.device("cpu")).requires_grad_(False).train()
    for sub in net.modules():
        if isinstance(sub, MatmulConv2d):
            sub.product = way
    names = [name for name, _ in net.named_parameters()]
    stay = {name: x for name, x in net.named_buffers() if x.is_floating_point()}
    rows = [x.detach() + 0.1 * torch.randn(clients, *x.shape) for x in net.parameters()]
    x, y = torch.randn(clients, 4, 3, 8, 8), torch.randint(4, (clients, 4))

    def loss(row, x, y):
        context.weight = torch.ones(4)
        return F.cross_entropy(functional_call(net, {**stay, **row}, (x,)), y)

    def step(x, y, *tensors):
        found = vmap(grad(loss))(dict(zip(names, tensors, strict=True)), x, y)
        context.clear()
        for name, row in zip(names, tensors, strict=True):
            row.sub_(0.5 * found[name])

    return step, [x, y, *rows]


def after(step, given):
    with fusing():
        step(*given)
    return given


def test_a_step_can_be_described_and_built_again():
    step, given = block_step("stock")
    with fusing():
        described, constants = describe_step(step, [x.clone() for x in given])
    names = [name for name, _, _ in described["operations"]]
    assert names.count("aten::convolution.default") == 3 + 2  # three outputs and two images
    assert names.count("aten::convolution_backward.default") == 3
    assert "stratafl::clients_last.default" in names
    built = [x.clone() for x in given]
    build_step(json.loads(json.dumps(described)))(*built, *constants)
    products = after(block_step("product")[0], [x.clone() for x in given])
    for mine, theirs in zip(built, products, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # of the compiler's own imports
def test_a_compiled_step_computes_the_same_and_copies_no_image():
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    grouped.teach_compiler()
    step, given = block_step("stock")
    sources = []

    def keep(*args, **options):
        made = compile_fx_inner(*args, **options)
        sources.append(made.source_code)
        return made

    # Without torch's own choice of layouts, as on a GPU, where it leaves steps with grouped convolutions alone.
    with fusing(), config.patch(force_disable_caches=True, layout_optimization=False):
        graph = record_graph(lambda *tensors: step(*tensors) or (tensors[0],), [x.clone() for x in given])
        run = compile_fx(graph, given, inner_compile=keep)
    mine = [x.clone() for x in given]
    run(*mine)
    theirs = after(block_step("product")[0], [x.clone() for x in given])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(mine, theirs, strict=True))
    # All images between the layers lie as [B, h, w, C, channels], so nothing is laid out anew.
    strides = re.findall(r"empty_strided_cpu\(\(3, 4, 8, 8, 8\), \(([0-9, ]+)\)", sources[0])
    assert strides
    assert set(strides) == {"8, 1536, 1, 192, 24"}
    assert "torch.ops.stratafl" not in sources[0]
