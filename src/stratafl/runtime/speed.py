"""Options for speed, none of which changes results beyond rounding: precision, captured steps, kinds of convolutions.

Stacked clients turn a stock convolution into one with a group per client. On a GPU either it, a product of shifted
slices or a Triton kernel may be several times faster than the others, depending on the shape and the GPU, so they are
measured. Compiled steps never use stock convolutions, because products can be fused and kernels need no columns.
"""

import copy
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from stratafl.errors import RecordError, first_line, unknown
from stratafl.runtime.captured import capture
from stratafl.runtime.products import MatmulConv2d, Way, is_rounding, may_be_product, rounding

Precision = Literal["fp32", "tf32", "bf16"]
Choice = Literal["auto", "on", "off"]
Convolutions = Literal["auto", "product", "stock", "kernel"]
WAYS: dict[str, Way] = {"auto": True, "product": True, "stock": False, "kernel": "kernel"}
MEASURED: tuple[Way, ...] = (True, False)  # what `auto` chooses from; kernels join once they are measured on a GPU
REPEATS = 20
FUSED = 0.6  # the time of a product in a compiled step, whose slices are one copy, as a share of its time alone
log = logging.getLogger("stratafl")


@dataclass(frozen=True)
class Speed:
    """Precision of products, whether steps are captured and compiled, and how convolutions are computed.

    `products` says for each convolution whether it is a product or a kernel. Without it, all are products on a CPU,
    because the bits of a product do not depend on the other clients of a chunk; on a GPU the fastest way is measured.
    """

    precision: Precision = "fp32"
    graphs: Choice = "auto"
    compile: Choice = "auto"
    convolutions: Convolutions = "auto"
    products: Mapping[str, Way] | None = None
    switched: Mapping[str, int] | None = None  # of an earlier part of the run: since which round which step is compiled

    def __post_init__(self) -> None:
        kinds = {"precision": Precision, "graphs": Choice, "compile": Choice, "convolutions": Convolutions}
        for name, kind in kinds.items():
            if getattr(self, name) not in get_args(kind):
                raise unknown(name, str(getattr(self, name)), get_args(kind))

    @property
    def key(self) -> Hashable:
        """The same for runs that compute alike."""
        products = tuple(sorted((self.products or {}).items()))
        return self.precision, self.graphs, self.compile, self.convolutions, products

    def captures(self, device: torch.device) -> bool:
        """Whether steps are captured (on a CPU: kept with fixed tensors, as in tests)."""
        return "on" in (self.graphs, self.compile) or (self.graphs == "auto" and device.type == "cuda")


USUAL = Speed()


def check_precision(name: str, device: torch.device) -> None:
    if name != "fp32" and device.type != "cuda":
        raise RecordError(f"precision '{name}' needs a GPU, and this runs on '{device.type}': use fp32")


@contextmanager
def precision(name: Precision) -> Iterator[None]:
    """Products of float32 factors: exact, rounded to 10 bits (tf32) or to 7 bits (bf16); sums are always float32."""
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if name == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = name != "fp32"
    try:
        with rounding(torch.bfloat16 if name == "bf16" else None):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution


def with_convolutions(speed: Speed, module: nn.Module, sample: Tensor, clients: int, batch: int) -> Speed:
    """The same with `products` filled in, for this number of clients and samples on the sample's device."""
    if speed.products is not None:
        return speed
    fused = speed.compile == "on"
    ways = tuple(way for way in MEASURED if way or not fused)
    if speed.convolutions == "auto" and sample.is_cuda and len(ways) > 1:
        return replace(speed, products=fastest_ways(module, sample, clients, batch, ways, fused=fused))
    return replace(speed, products=dict.fromkeys(convolutions(module), WAYS[speed.convolutions]))


_fastest_way: dict[Hashable, Way] = {}  # once per process, so that its runs choose alike and can be joined


def fastest_ways(
    module: nn.Module, sample: Tensor, clients: int, batch: int, ways: Sequence[Way], *, fused: bool
) -> dict[str, Way]:
    """For each convolution, the fastest of these ways for this number of clients and samples.

    `fused`: in a compiled step, where a product takes less time than alone.
    """
    module = copy.deepcopy(module).to(sample.device).eval().requires_grad_(False)
    mine = {path: module.get_submodule(path) for path in convolutions(module)}
    for conv in mine.values():
        conv.__class__ = MatmulConv2d
    found: dict[str, Way] = {}
    how = (clients, batch, tuple(ways), fused, sample.device, sample.dtype, torch.get_float32_matmul_precision())
    for path, shape in _inputs(module, mine, sample).items():
        conv = cast(MatmulConv2d, mine[path])
        geometry = (conv.weight.shape, conv.stride, conv.padding, conv.dilation, conv.groups, shape, is_rounding(), how)
        if geometry not in _fastest_way:
            x = sample.new_zeros(clients, batch, *shape)
            _fastest_way[geometry] = _fastest(conv, _step(conv, x, clients), ways, fused)
        found[path] = _fastest_way[geometry]
    return found


def convolutions(module: nn.Module) -> list[str]:
    return [path for path, sub in module.named_modules() if may_be_product(sub)]


def _inputs(module: nn.Module, mine: Mapping[str, nn.Module], sample: Tensor) -> dict[str, torch.Size]:
    shapes: dict[str, torch.Size] = {}

    def see(path: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        shapes[path] = inputs[0].shape[1:]

    hooks = [conv.register_forward_pre_hook(partial(see, path)) for path, conv in mine.items()]
    try:
        with torch.no_grad():
            module(sample)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


def _step(conv: nn.Conv2d, x: Tensor, clients: int) -> Callable[[], object]:
    weight = conv.weight.detach().expand(clients, *conv.weight.shape).clone()

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        output: Tensor = functional_call(conv, {"weight": weight}, (x,))
        return output.sum()

    return lambda: vmap(grad(loss, argnums=(0, 1)))(weight, x)


def _fastest(conv: MatmulConv2d, step: Callable[[], object], ways: Sequence[Way], fused: bool) -> Way:
    """The way with the shortest time; a product where nothing can be measured."""
    times: dict[Way, float] = {}
    for way in ways:
        try:
            times[way] = _milliseconds(step, way, conv) * (FUSED if fused and way is True else 1)
        except Exception as error:  # a compiler of kernels may fail in any way
            log.info("a convolution cannot be measured as '%s': %s", way, first_line(error))
    return min(times, key=lambda way: times[way], default=True)


def _milliseconds(step: Callable[[], object], way: Way, conv: MatmulConv2d) -> float:
    before, conv.product = conv.product, way
    try:
        replay = capture(step)
    finally:
        conv.product = before
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()
    start.record()
    for _ in range(REPEATS):
        replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))
