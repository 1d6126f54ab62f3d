"""Convolutions of stacked clients by Triton kernels, which read images in place instead of laying out columns.

The columns of a 3×3 convolution are nine times as large as the image. Here the three products of a convolution (output,
gradient of the image, gradient of the weight) gather them while they multiply. Each product is linear in its two
factors and its derivatives are the other two, so they can be differentiated as often as wanted. The kernels themselves
are in `conv_triton.py`; where there is no Triton or no GPU, `usable` says no and `MatmulConv2d` multiplies columns.
"""

import os
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import cache
from importlib.util import find_spec
from math import ceil, prod
from typing import Any, Literal, cast

import torch
from torch import Tensor

from stratafl.runtime.step_graph import SHAPES

Kind = Literal["output", "image", "weight"]
Pair = tuple[int, int]
Factors = Literal["fp32", "tf32", "bf16"]
Multiply = Callable[[Kind, Tensor, Tensor], Tensor]
STACKED = 5  # axes of the images and weights of several clients
MOST_TAPS = 62  # a bit each
WAVES = 2  # programs per multiprocessor from which a sum is not divided any more
LEAST_STEPS = 4  # of a part of a sum
# What a multiprocessor does in a clock, and how many clocks pass before a program multiplies; rough figures of an H200.
PRODUCTS_PER_CLOCK, LOADS_PER_CLOCK, GATHERS_PER_CLOCK, STARTING = 800, 12, 6.5, 2000
REREAD = 3  # how often a pixel that was read is found in the first cache


@dataclass(frozen=True)
class Geometry:
    """One convolution of all clients: how many there are, and the sizes of what is convolved.

    Output pixel (y, x) meets image pixels from (y·stride + start) on; `start` is minus the padding, unless taps that
    meet nothing but padding were cut off.
    """

    clients: int
    batch: int
    inputs: int
    outputs: int
    image: Pair
    kernel: Pair
    out: Pair
    stride: Pair
    start: Pair

    def shape(self, kind: Kind) -> tuple[int, ...]:
        """The shape of a product of this kind."""
        if kind == "weight":
            return (self.clients, self.outputs, self.inputs, *self.kernel)
        channels, size = (self.outputs, self.out) if kind == "output" else (self.inputs, self.image)
        return (self.clients, channels, self.batch, *size)

    def product(self, kind: Kind) -> tuple[int, int, int]:
        """Rows, columns and the length of the sums of one client's product; strided sums count their own taps only."""
        taps, places = prod(self.kernel), self.batch * prod(self.out)
        if kind == "output":
            return self.outputs, places, self.inputs * taps
        if kind == "weight":
            return self.outputs, self.inputs * taps, places
        own_taps = prod(ceil(k / s) for k, s in zip(self.kernel, self.stride, strict=True))
        return self.inputs, self.batch * prod(self.image), self.outputs * own_taps

    @property
    def numbers(self) -> list[int]:
        sizes = (self.image, self.kernel, self.out, self.stride, self.start)
        return [self.clients, self.batch, self.inputs, self.outputs, *(n for pair in sizes for n in pair)]

    @classmethod
    def of(cls, numbers: list[int]) -> "Geometry":
        clients, batch, inputs, outputs, *sizes = numbers
        image, kernel, out, stride, start = ((sizes[i], sizes[i + 1]) for i in range(0, 10, 2))
        return cls(clients, batch, inputs, outputs, image, kernel, out, stride, start)


@dataclass(frozen=True)
class Tiles:
    """What a program computes: a block of the product, in steps of `k` (for weights: places), with so many warps.

    `parts` programs share a sum; their shares are added in a fixed order afterwards. `tapwise`: a step sees one tap of
    `k` channels instead of some taps of few channels, which needs half of the instructions and a copy of the weights.
    """

    rows: int
    columns: int
    k: int
    warps: int
    stages: int
    parts: int = 1
    tapwise: bool = False

    @property
    def numbers(self) -> list[int]:
        return [int(each) for each in astuple(self)]

    @classmethod
    def of(cls, numbers: list[int]) -> "Tiles":
        rows, columns, k, warps, stages, parts, tapwise = numbers
        return cls(rows, columns, k, warps, stages, parts, bool(tapwise))


# From large products of many clients to small ones, which need many programs.
TILES = (
    Tiles(128, 128, 32, 8, 3),
    Tiles(64, 128, 32, 4, 3),
    Tiles(64, 128, 64, 4, 2),
    Tiles(128, 64, 32, 4, 3),
    Tiles(64, 64, 32, 4, 4),
    Tiles(32, 128, 32, 4, 3),
    Tiles(32, 64, 64, 4, 3),
    Tiles(64, 32, 64, 4, 3),
    Tiles(32, 32, 64, 4, 3),
    Tiles(32, 16, 128, 4, 3),
)
MEASURED: dict[tuple[Kind, Geometry], Tiles] = {}  # filled by who measures; wins over estimates


def usable(x: Tensor, kernel: Pair) -> bool:
    """Whether these kernels can convolve such an image; float64 stays with products, which are exact enough for it."""
    return x.dtype == torch.float32 and prod(kernel) <= MOST_TAPS and run_on(x.device.type)


@cache
def run_on(device: str) -> bool:
    """Whether there is something here that can run these kernels."""
    return find_spec("triton") is not None and (device == "cuda" or _interpreted())


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def convolve(x: Tensor, weight: Tensor, stride: Pair, start: Pair, out: Pair, factors: Factors) -> Tensor:
    """The convolution of `[in, B, h, w]` by `[out, in, kh, kw]` as `[out, B, h, w]`; `vmap` adds clients."""
    (inputs, batch, *image), (outputs, _, *kernel) = x.shape, weight.shape
    geometry = Geometry(1, batch, inputs, outputs, (image[0], image[1]), (kernel[0], kernel[1]), out, stride, start)
    x = x.contiguous()  # here, because the derivative by the weight reads it again

    def product(kind: Kind, a: Tensor, b: Tensor) -> Tensor:
        return multiply(kind, a, b, replace(geometry, clients=len(a)), factors)

    y: Tensor = Convolution.apply(x, weight, "output", product)  # type: ignore[no-untyped-call]
    return y


class Convolution(torch.autograd.Function):
    """One of the three products of a convolution, computed by `multiply`; each is a derivative of the others.

    | kind   | a      | b        |
    | output | image  | weight   |
    | image  | weight | gradient |
    | weight | image  | gradient |

    Tensors have four axes, or five of which the first are the clients; `multiply` is given the latter.
    """

    @staticmethod
    def forward(a: Tensor, b: Tensor, kind: Kind, multiply: Multiply) -> Tensor:
        return multiply(kind, a, b) if a.ndim == STACKED else multiply(kind, a[None], b[None])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Kind, Multiply], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.rest = inputs[2:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (a, b), (kind, multiply) = ctx.saved_tensors, ctx.rest
        derivatives: dict[Kind, tuple[tuple[Kind, Tensor, Tensor], tuple[Kind, Tensor, Tensor]]] = {
            "output": (("image", b, gradient), ("weight", a, gradient)),
            "image": (("weight", gradient, b), ("output", gradient, a)),
            "weight": (("image", gradient, b), ("output", a, gradient)),
        }
        gradients = [
            Convolution.apply(left, right, name, multiply) if needed else None  # type: ignore[no-untyped-call]
            for needed, (name, left, right) in zip(ctx.needs_input_grad[:2], derivatives[kind], strict=True)
        ]
        return gradients[0], gradients[1], None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, kind: Kind, multiply: Multiply
    ) -> tuple[Tensor, int]:
        """Clients, or more of them: the new axis joins theirs."""
        a, b = (_first(x, dim, info.batch_size) for x, dim in zip((a, b), in_dims[:2], strict=True))
        more = a.ndim > STACKED
        if more:
            a, b = a.flatten(0, 1), b.flatten(0, 1)
        y: Tensor = Convolution.apply(a, b, kind, multiply)  # type: ignore[no-untyped-call]
        return (y.unflatten(0, (info.batch_size, -1)) if more else y), 0


def _first(x: Tensor, dim: int | None, size: int) -> Tensor:
    """With the axis of `vmap` first; no view where it is, from which the compiler would choose an order in memory."""
    if dim is None:
        return x.expand(size, *x.shape)
    return x.movedim(dim, 0) if dim else x


def multiply(kind: Kind, a: Tensor, b: Tensor, geometry: Geometry, factors: Factors) -> Tensor:
    """One product of all clients. The parts of a sum are added by torch, so that a compiler can fuse what follows."""
    tiles = tiles_for(kind, geometry, _processors(a.device))
    if tiles.tapwise and kind == "output":
        b = b.permute(0, 1, 3, 4, 2)
    elif tiles.tapwise and kind == "image":
        a = a.permute(0, 2, 3, 4, 1)
    parts: Tensor = convolution_parts(a.contiguous(), b.contiguous(), kind, geometry.numbers, tiles.numbers, factors)
    return parts.sum(1) if tiles.parts > 1 else parts.squeeze(1)


@torch.library.custom_op("stratafl::convolution_parts", mutates_args=())
def convolution_parts(a: Tensor, b: Tensor, kind: str, geometry: list[int], tiles: list[int], factors: str) -> Tensor:
    """A product of all clients as `[C, parts, …]`, which the compiler and `vmap` do not look into."""
    sizes, blocks = Geometry.of(geometry), Tiles.of(tiles)
    result = a.new_empty(_shape_of_parts(kind, sizes, blocks))
    launch(cast(Kind, kind), a.contiguous(), b.contiguous(), result, sizes, blocks, factors)
    return result


@convolution_parts.register_fake
def _blank_parts(a: Tensor, b: Tensor, kind: str, geometry: list[int], tiles: list[int], factors: str) -> Tensor:
    return a.new_empty(_shape_of_parts(kind, Geometry.of(geometry), Tiles.of(tiles)))


SHAPES[torch.ops.stratafl.convolution_parts.default] = _blank_parts


def _shape_of_parts(kind: str, geometry: Geometry, tiles: Tiles) -> tuple[int, ...]:
    clients, *rest = geometry.shape(cast(Kind, kind))
    return (clients, tiles.parts, *rest)


def launch(kind: Kind, a: Tensor, b: Tensor, result: Tensor, geometry: Geometry, tiles: Tiles, factors: str) -> None:
    """Run the kernel that writes a product into `result`, `[C, parts, …]`."""
    from stratafl.runtime import conv_triton

    g, (rows, columns, k) = geometry, (tiles.rows, tiles.columns, tiles.k)
    taps, pixels, places = prod(g.kernel), g.batch * prod(g.image), g.batch * prod(g.out)
    image, output = (g.inputs, *g.image), (g.outputs, *g.out)
    weight = g.outputs * g.inputs * taps  # numbers of one client, from output to output, from input to input
    by_output, by_input = (g.inputs * taps, taps) if not tiles.tapwise else (g.inputs * taps, g.outputs * taps)
    fixed = (*g.kernel, *g.stride, *g.start)
    grid = (programs(kind, g, tiles), tiles.parts, g.clients)
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    kernel: Any = conv_triton.weights if kind == "weight" else conv_triton.images
    sizes: tuple[int, ...]
    if kind == "output":
        sizes = (g.batch, *image, *output, pixels, weight, by_output, by_input, tiles.parts, *fixed)
        kernel[grid](a, b, result, *sizes, False, tiles.tapwise, factors, rows, columns, k, **options)
    elif kind == "image":
        sizes = (g.batch, *output, *image, places, weight, by_input, by_output, tiles.parts, *fixed)
        kernel[grid](b, a, result, *sizes, True, tiles.tapwise, factors, rows, columns, k, **options)
    else:
        sizes = (g.batch, *image, *output, pixels, places, tiles.parts, *fixed)
        kernel[grid](a, b, result, *sizes, factors, rows, k, columns, **options)


def programs(kind: Kind, geometry: Geometry, tiles: Tiles) -> int:
    """How many programs compute one part of one client's product."""
    classes, (rows, columns, _) = 1, geometry.product(kind)
    if kind == "image":  # pixels that meet the same taps are computed together: see `conv_triton.images`
        classes = prod(geometry.stride)
        size = zip(geometry.image, geometry.stride, strict=True)
        columns = geometry.batch * prod(ceil(side / stride) for side, stride in size)
    return classes * ceil(rows / tiles.rows) * ceil(columns / tiles.columns)


def tiles_for(kind: Kind, geometry: Geometry, processors: int) -> Tiles:
    """The tiles that were measured to be fastest, or those with the shortest estimated time."""
    if (kind, geometry) in MEASURED:
        return MEASURED[kind, geometry]
    return min(candidates(kind, geometry, processors), key=lambda tiles: _clocks(kind, geometry, tiles, processors))


def candidates(kind: Kind, geometry: Geometry, processors: int) -> list[Tiles]:
    """All tiles that suit, with sums in one part or in so many that every multiprocessor has work."""
    suitable = []
    for tiles in TILES:
        whole = geometry.clients * programs(kind, geometry, tiles)
        steps = ceil(geometry.product(kind)[2] / tiles.k)
        most = max(1, min(steps // LEAST_STEPS, WAVES * processors // whole))
        suitable += [
            replace(tiles, parts=parts, tapwise=tapwise)
            for parts in sorted({1, most})
            for tapwise in (False, True)
            if not tapwise or _channels(kind, geometry) % tiles.k == 0
        ]
    return suitable


def _channels(kind: Kind, geometry: Geometry) -> int:
    """The channels that a sum runs over; 1 for weights, whose sums run over places."""
    return {"output": geometry.inputs, "image": geometry.outputs, "weight": 1}[kind]


def _clocks(kind: Kind, geometry: Geometry, tiles: Tiles, processors: int) -> float:
    """Estimated clocks of a launch: waves of programs, each as long as its products, its instructions or its loads."""
    rows, columns, length = geometry.product(kind)
    waves = ceil(geometry.clients * programs(kind, geometry, tiles) * tiles.parts / processors)
    steps = ceil(ceil(length / tiles.k) / tiles.parts)
    multiplied = tiles.rows * tiles.columns / PRODUCTS_PER_CLOCK
    loaded = (tiles.rows + tiles.columns / min(prod(geometry.kernel), REREAD)) / LOADS_PER_CLOCK
    gathered = tiles.columns / (GATHERS_PER_CLOCK * (2 if tiles.tapwise else 1))
    moved = 0
    if tiles.parts > 1:
        moved += (tiles.parts + 1) * geometry.clients * rows * columns
    if tiles.tapwise and prod(geometry.kernel) > 1:
        moved += 2 * prod(geometry.shape("weight"))
    clocks = STARTING + steps * tiles.k * max(multiplied, loaded, gathered)
    return waves * clocks + moved / (processors * LOADS_PER_CLOCK)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
