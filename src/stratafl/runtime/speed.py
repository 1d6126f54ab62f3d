"""Options for speed, none of which changes results beyond rounding: precision, captured steps, kinds of convolutions.

Stacked clients turn a stock convolution into one with a group per client. On a GPU either it or a product of shifted
slices may be up to five times faster than the other, depending on the shape and the GPU, so both are measured.
Compiled steps always use products, because they can be fused.
"""

import copy
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from stratafl.errors import RecordError, first_line, unknown
from stratafl.runtime.captured import capture
from stratafl.runtime.products import MatmulConv2d, may_be_product, rounding

Precision = Literal["fp32", "tf32", "bf16"]
Choice = Literal["auto", "on", "off"]
Convolutions = Literal["auto", "product", "stock"]
REPEATS = 20
log = logging.getLogger("stratafl")


@dataclass(frozen=True)
class Speed:
    """Precision of products, whether steps are captured and compiled, and how convolutions are computed.

    `products` says for each convolution whether it is a product. Without it, all are on a CPU, because the bits of a
    product do not depend on the other clients of a chunk; on a GPU the faster way is measured.
    """

    precision: Precision = "fp32"
    graphs: Choice = "auto"
    compile: Choice = "auto"
    convolutions: Convolutions = "auto"
    products: Mapping[str, bool] | None = None

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
    if speed.convolutions == "auto" and sample.is_cuda and speed.compile != "on":
        return replace(speed, products=faster_as_products(module, sample, clients, batch))
    stock = speed.convolutions == "stock"
    return replace(speed, products=dict.fromkeys(convolutions(module), not stock))


def faster_as_products(module: nn.Module, sample: Tensor, clients: int, batch: int) -> dict[str, bool]:
    """For each convolution, whether a product is faster for this number of clients and samples."""
    module = copy.deepcopy(module).to(sample.device).eval().requires_grad_(False)
    mine = {path: module.get_submodule(path) for path in convolutions(module)}
    for conv in mine.values():
        conv.__class__ = MatmulConv2d
    found: dict[str, bool] = {}
    known: dict[object, bool] = {}
    for path, shape in _inputs(module, mine, sample).items():
        conv = cast(MatmulConv2d, mine[path])
        geometry = (conv.weight.shape, conv.stride, conv.padding, conv.dilation, conv.groups, shape)
        if geometry not in known:
            x = sample.new_zeros(clients, batch, *shape)
            known[geometry] = _faster(conv, _step(conv, x, clients))
        found[path] = known[geometry]
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


def _faster(conv: MatmulConv2d, step: Callable[[], object]) -> bool:
    """Whether the product is faster; it is used where nothing can be measured."""
    try:
        stock, product = (_milliseconds(step, as_product=p, conv=conv) for p in (False, True))
    except RuntimeError as error:
        log.info("a convolution cannot be measured and becomes a product: %s", first_line(error))
        return True
    return product < stock


def _milliseconds(step: Callable[[], object], *, as_product: bool, conv: MatmulConv2d) -> float:
    before, conv.product = conv.product, as_product
    try:
        replay = capture(step, torch.cuda.graph_pool_handle())
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
