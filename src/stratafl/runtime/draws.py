"""What a step tells the modules of a model, and how they draw: as a function of the step's key."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.reprs import short_repr
from stratafl.errors import ModelError
from stratafl.runtime.products import is_fusing

LEVELS = 2**16  # of a share that is dropped, if draws are packed


@short_repr
@dataclass
class Context:
    """What a step tells the modules besides their input, and what they tell the step."""

    weight: Tensor | None = None  # [B]: 1 for real samples, 0 for padding
    key: Tensor | None = None  # this client's random key in this step
    statistics: dict[str, Tensor] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    packed: bool = False  # whether a number of 64 bits decides over four places

    def clear(self) -> None:
        """Forget the step, whose wrappers would keep all of its tensors alive."""
        self.weight = self.key = None
        self.statistics.clear()


def drop(x: Tensor, p: float, context: Context, path: str, spatial: bool = False) -> Tensor:
    """Dropout whose mask is a function of the step's key: the same on every device and for every C."""
    assert context.key is not None
    shape = (*x.shape[:2], *(1,) * (x.ndim - 2)) if spatial else x.shape
    call = context.calls[path]
    context.calls[path] += 1
    key = keys.fold(keys.fold(context.key, keys.purpose_number(path)), call)
    if context.packed:
        return x * _packed(key, p, shape, x)
    index = torch.arange(torch.Size(shape).numel(), device=x.device).reshape(shape)
    if is_fusing():  # the compiler would multiply the places themselves by the key's numbers, which overflow there
        index = index ^ (key ^ key)
    mask = keys.stream(key, index) >= keys.threshold(p)
    return x * mask / (1 - p) if p < 1 else x * 0


def drop_channels(x: Tensor, p: float, context: Context, path: str, axes: int) -> Tensor:
    """Dropout of whole channels, after which `axes` axes follow; as for torch, `x` may be a single sample.

    Like torch's `dropout2d`, two axes take `[B, C, L]` for a batch.
    """
    single = x.ndim == axes + 1 and axes != 2
    return drop(x[None], p, context, path, True)[0] if single else drop(x, p, context, path, True)


def check_share(p: float) -> None:
    """Refuse a share of dropout that is none."""
    if not 0 <= p <= 1:
        raise ModelError(f"dropout has p = {p}: choose a share from 0 to 1")


class _Quarters(torch.autograd.Function):
    """Words `[n]` of 64 bits as `[4n]` of 16 bits, the lowest first. Torch 2.11's `vmap` has no rule for that view."""

    @staticmethod
    def forward(words: Tensor) -> Tensor:
        return words.view(torch.int16)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None], words: Tensor) -> tuple[Tensor, int | None]:
        (place,) = dims
        stacked = words if place is None else words.movedim(place, 0).contiguous()
        quarters: Tensor = _Quarters.apply(stacked)  # type: ignore[no-untyped-call]
        return quarters, None if place is None else 0


def _packed(key: Tensor, p: float, shape: Sequence[int], like: Tensor) -> Tensor:
    """0 where a place is dropped, else 1 / (1 − share); 16 bits of a stream decide, so the share is a multiple of 2⁻¹⁶.

    Models that attend drop an entry for each pair of tokens, and 64 bits for each would take most of a step. Other
    models keep the draws that they have had.
    """
    level, count = round(p * LEVELS), torch.Size(shape).numel()
    if level in (0, LEVELS):
        return like.new_full(tuple(shape), float(level == 0))
    if is_fusing():  # one place after the other, which a compiler makes one kernel of
        index = torch.arange(count, device=like.device).reshape(tuple(shape)) ^ (key ^ key)
        bits = (keys.stream(key, index >> 2) >> ((index & 3) << 4)) & (LEVELS - 1)
        stays = (bits ^ (LEVELS // 2)) >= level
    else:
        words = keys.stream(key, torch.arange(-(-count // 4), device=like.device))
        bits = _Quarters.apply(words)[:count]  # type: ignore[no-untyped-call]
        first = level - LEVELS // 2  # the least number that stays; a clamp takes a fifth of a comparison
        stays = (bits.clamp(first - 1, first) - (first - 1)).reshape(tuple(shape))
    return stays.to(like.dtype) * (LEVELS / (LEVELS - level))
