"""Options for speed, none of which changes results beyond rounding: precision, captured steps, kinds of convolutions.

Stacked clients turn a stock convolution into one with a group per client. On a GPU either it or a product of shifted
slices may be several times faster than the other, depending on the shape and the GPU, so both are measured. In compiled
steps a rule decides instead: see `ways.py`.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from stratafl.core.describe import light_copy
from stratafl.errors import RecordError, first_line, unknown
from stratafl.runtime.captured_step import capture
from stratafl.runtime.kernels import run_on
from stratafl.runtime.products import MatmulConv2d, is_rounding, may_be_product, rounding
from stratafl.runtime.ways import Way

Precision = Literal["fp32", "tf32", "bf16"]
Choice = Literal["auto", "on", "off"]
Convolutions = Literal["auto", "product", "stock", "kernel"]
REPEATS = 20
log = logging.getLogger("stratafl")


@dataclass(frozen=True)
class Speed:
    """Precision of products, whether steps are captured and compiled, and how convolutions are computed.

    `products` says for each convolution how it is computed. Without it, all are products on a CPU, because the bits of
    a product do not depend on the other clients of a chunk; on a GPU the faster way is measured.
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


DEFAULT_SPEED = Speed()


def check_precision(name: str, device: torch.device) -> None:
    if name != "fp32" and device.type != "cuda":
        raise RecordError(f"precision '{name}' needs a GPU, but this runs on '{device.type}': use fp32")


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
    if speed.convolutions == "kernel" and not run_on(sample.device.type):
        log.warning("run.convolutions=kernel needs Triton and a GPU: convolutions run as products instead")
    if speed.convolutions != "auto":
        return replace(speed, products=dict.fromkeys(convolutions(module), speed.convolutions))
    if sample.is_cuda and speed.compile != "on":
        return replace(speed, products=faster_ways(module, sample, clients, batch))
    return replace(speed, products=dict.fromkeys(convolutions(module), True))


_faster_way: dict[Hashable, bool] = {}  # once per process, so that its runs choose alike and can be joined


def faster_ways(module: nn.Module, sample: Tensor, clients: int, batch: int) -> dict[str, bool]:
    """For each convolution, whether a product is faster than stock for this number of clients and samples."""
    module = light_copy(module).to(sample.device).eval().requires_grad_(False)
    convs = {path: module.get_submodule(path) for path in convolutions(module)}
    for conv in convs.values():
        conv.__class__ = MatmulConv2d
    is_product: dict[str, bool] = {}
    how = (clients, batch, sample.device, sample.dtype, torch.get_float32_matmul_precision())
    for path, shape in _inputs(module, convs, sample).items():
        conv = cast(MatmulConv2d, convs[path])
        geometry = (conv.weight.shape, conv.stride, conv.padding, conv.dilation, conv.groups, shape, is_rounding(), how)
        if geometry not in _faster_way:
            x = sample.new_zeros(clients, batch, *shape)
            _faster_way[geometry] = _is_product_faster(conv, _step(conv, x, clients))
        is_product[path] = _faster_way[geometry]
    return is_product


def convolutions(module: nn.Module) -> list[str]:
    return [path for path, sub in module.named_modules() if may_be_product(sub)]


def _inputs(module: nn.Module, convs: Mapping[str, nn.Module], sample: Tensor) -> dict[str, torch.Size]:
    shapes: dict[str, torch.Size] = {}

    def see(path: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        shapes[path] = inputs[0].shape[1:]

    hooks = [conv.register_forward_pre_hook(partial(see, path)) for path, conv in convs.items()]
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


def _is_product_faster(conv: MatmulConv2d, step: Callable[[], object]) -> bool:
    """Whether a product takes less time; yes where neither can be measured."""
    times = {}
    for product in (True, False):
        try:
            times[product] = _milliseconds(step, product, conv)
        except Exception as error:  # such as a lack of memory
            log.info("a convolution cannot be measured: %s", first_line(error))
            times[product] = inf
    return times[True] <= times[False]


def _milliseconds(step: Callable[[], object], product: bool, conv: MatmulConv2d) -> float:
    before, conv.product = conv.product, product
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
