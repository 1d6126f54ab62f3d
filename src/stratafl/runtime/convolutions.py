"""The choice between stock convolutions and products of shifted slices on a GPU, by measuring both.

Stacked clients turn a stock convolution into one with a group per client. Either may be up to five times faster than
the other, depending on the shape and the GPU. Compiled steps always use products, because they can be fused.
"""

import copy
import logging
from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from stratafl.errors import first_line
from stratafl.runtime.captured_step import capture
from stratafl.runtime.products import MatmulConv2d, may_be_product

REPEATS = 20
log = logging.getLogger("stratafl")


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

    def see(path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            shapes[path] = inputs[0].shape[1:]

        return hook

    hooks = [conv.register_forward_pre_hook(see(path)) for path, conv in mine.items()]
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
