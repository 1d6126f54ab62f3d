"""Attention and functional dropout as the engine runs them: for stacked clients, with keyed draws.

Torch's fused attention has no rule for stacked clients, and it draws from torch's own generator. Here attention is two
products and a softmax, as in the paper, and every draw is a function of the step's key. `KeyedAttention` is what
`nn.MultiheadAttention` becomes; `KeyedFunctions` catches the functions that other modules call.
"""

import sys
from math import sqrt
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stratafl.runtime.draws import Context, check_share, drop, drop_channels
from stratafl.runtime.products import batch_product, per_client, rows_product, turned

# Axes of a sample after its channels; 0 where every number is drawn for itself.
_SPATIAL = {F.dropout: 0, torch.dropout: 0, F.dropout1d: 1, F.dropout2d: 2, F.dropout3d: 3}


class KeyedAttention(nn.MultiheadAttention):
    """Multi-head attention with keyed dropout of its weights; the same mathematics as torch's."""

    context: Context
    path: str
    frozen: frozenset[str] = frozenset()  # its tensors that all clients share

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
        out = rows_product(mixed, self._weight("out_proj.weight", mixed), self.out_proj.bias)
        shown = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
        if single:
            return out.squeeze(0), None if shown is None else shown.squeeze(0)
        return (out if self.batch_first else out.transpose(0, 1)), shown

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        bias = self.in_proj_bias
        whole = None if self.in_proj_weight is None else self._weight("in_proj_weight", query)
        if whole is not None and query is key and key is value:
            return rows_product(query, whole, bias).chunk(3, -1)
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        parts = [self._weight(name, query) for name in names] if whole is None else whole.chunk(3)
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        inputs = (query, key, value)
        return tuple(rows_product(x, w, b) for x, w, b in zip(inputs, parts, biases, strict=True))

    def _weight(self, name: str, x: Tensor) -> Tensor:
        weight: Tensor = attrgetter(name)(self)
        return per_client(weight, x) if name in self.frozen else weight

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
    """softmax(q·kᵀ·scale + mask), and zeros in a row that sees nothing, as in torch's fused attention."""
    scores = batch_product(q * scale, turned(k))
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        mask = _added(later, q) if mask is None else mask + _added(later, q)
    if mask is None:
        return torch.softmax(scores, -1)
    # With a finite mask, no row and no gradient becomes NaN.
    weights = torch.softmax(scores + mask.clamp(min=torch.finfo(q.dtype).min / 2), -1)
    return weights * (mask > -torch.inf).any(-1, keepdim=True)


def _added(hidden: Tensor, like: Tensor) -> Tensor:
    if hidden.dtype == torch.bool:
        return torch.zeros_like(hidden, dtype=like.dtype).masked_fill(hidden, -torch.inf)
    return hidden.to(like.dtype)


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
        self,
        function: Any,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        train: bool = True,  # what `torch.dropout` calls `training`
    ) -> Tensor:
        check_share(p)
        if not (training and train) or p == 0:
            return input
        axes = _SPATIAL[function]
        y = drop_channels(input, p, self.context, "dropout", axes) if axes else drop(input, p, self.context, "dropout")
        return input.copy_(y) if inplace else y

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
        check_share(dropout_p)
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
