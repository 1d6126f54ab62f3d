"""Attention and functional dropout as the engine runs them: for stacked clients, with keyed draws.

Torch's fused attention has no rule for stacked clients, and it draws from torch's own generator. Here attention is two
products and a softmax, as in the paper, and every draw is a function of the step's key. `KeyedAttention` is what
`nn.MultiheadAttention` becomes; `KeyedFunctions` catches the functions that other modules call.
"""

import sys
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stratafl.runtime.draws import Context, drop
from stratafl.runtime.products import batch_product, rows_product, turned

_SPATIAL = {F.dropout: False, torch.dropout: False, F.dropout1d: True, F.dropout2d: True, F.dropout3d: True}


class KeyedAttention(nn.MultiheadAttention):
    """Multi-head attention with keyed dropout of its weights; the same mathematics as torch's."""

    context: Context
    path: str

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if not self.batch_first and query.ndim == 3:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        single = query.ndim == 2
        if single:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        q, k, v = (self._apart(x) for x in self._projected(query, key, value))
        mask = self._mask(attn_mask, key_padding_mask, q)
        weights = attention_weights(q, k, mask, is_causal and attn_mask is None, 1 / sqrt(self.head_dim))
        if self.training and self.dropout > 0:
            weights = drop(weights, self.dropout, self.context, self.path)
        mixed = batch_product(weights, v).transpose(1, 2).flatten(2)
        out = rows_product(mixed, self.out_proj.weight, self.out_proj.bias)
        shown = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
        if single:
            return out.squeeze(0), None if shown is None else shown.squeeze(0)
        return (out if self.batch_first else out.transpose(0, 1)), shown

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        bias = self.in_proj_bias
        if self.in_proj_weight is not None and query is key and key is value:
            return rows_product(query, self.in_proj_weight, bias).chunk(3, -1)
        whole = self.in_proj_weight
        parts = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if whole is None else whole.chunk(3)
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        inputs = (query, key, value)
        return tuple(rows_product(x, w, b) for x, w, b in zip(inputs, parts, biases, strict=True))

    def _apart(self, x: Tensor) -> Tensor:
        """`[B, length, width]` as `[B, heads, length, width of a head]`."""
        heads: Tensor = x.unflatten(-1, (self.num_heads, self.head_dim))
        return heads.transpose(1, 2)

    def _mask(self, mask: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
        """What is added to the scores of `[B, heads, length, length]`: torch's masks are True where nothing is seen."""
        added = None if mask is None else _added(mask, like)
        if added is not None and added.ndim == 3:
            added = added.unflatten(0, (-1, self.num_heads))
        if padding is None:
            return added
        pads = _added(padding, like)[:, None, None, :]
        return pads if added is None else added + pads


def may_be_keyed(sub: nn.Module) -> bool:
    """Whether `KeyedAttention` can replace this module."""
    return type(sub) is nn.MultiheadAttention and sub.bias_k is None and not sub.add_zero_attn


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """softmax(q·kᵀ·scale + mask); the mask is finite, so a row that sees nothing gives equal weights instead of NaN."""
    scores = batch_product(q * scale, turned(k))
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, _least(q))
    return torch.softmax(scores if mask is None else scores + mask, -1)


def _least(like: Tensor) -> float:
    return torch.finfo(like.dtype).min / 4  # two masks may be added


def _added(hidden: Tensor, like: Tensor) -> Tensor:
    if hidden.dtype == torch.bool:
        return torch.zeros_like(hidden, dtype=like.dtype).masked_fill(hidden, _least(like))
    return hidden.to(like.dtype).clamp(min=_least(like))


class KeyedFunctions(TorchFunctionMode):
    """Dropout and attention that modules call as functions, keyed; only while a step trains."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if function in _SPATIAL:
            return self._dropout(function, *args, **kwargs)
        return function(*args, **kwargs)

    def _dropout(
        self, function: Any, input: Tensor, p: float = 0.5, training: bool | None = None, *inplace: bool, **named: bool
    ) -> Tensor:
        training = named.get("train", True) if training is None else training
        if not training or p == 0:
            return input
        return drop(input, p, self.context, "dropout", _SPATIAL[function])

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """As torch's function; its boolean mask is True where a key is seen."""
        if enable_gqa:
            times = query.shape[-3] // key.shape[-3]
            key, value = (x.repeat_interleave(times, -3) for x in (key, value))
        if attn_mask is not None:
            attn_mask = _added(~attn_mask if attn_mask.dtype == torch.bool else attn_mask, query)
        factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
        weights = attention_weights(query, key, attn_mask, is_causal, factor)
        if dropout_p > 0:
            weights = drop(weights, dropout_p, self.context, "attention")
        return batch_product(weights, value)


class KeyableCalls(TorchFunctionMode):
    """Counts calls of the functions that `KeyedFunctions` replaces."""

    count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is F.scaled_dot_product_attention or function in _SPATIAL
        return function(*args, **(kwargs or {}))


def teach_transformers() -> None:
    """Tell `transformers` that a tensor of stacked clients has no truth value, as it knows of compiled ones.

    It looks into masks for padding, to leave them out where there is none, unless the tensor is being traced.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    traced = getattr(masking, "is_tracing", None)
    if traced is None or hasattr(traced, "knows_stacked"):
        return

    def is_tracing(tensor: Any = None) -> bool:
        stacked = isinstance(tensor, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        return stacked or bool(traced(tensor))

    is_tracing.knows_stacked = True  # type: ignore[attr-defined]
    masking.is_tracing = is_tracing
