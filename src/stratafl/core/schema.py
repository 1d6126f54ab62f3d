"""Checks of an upload: its parcel has the expected form, and its values are possible.

The form is known before anything arrives (`Algorithm.upload_form`), so a sender can choose numbers within their bounds,
and columns where the method leaves it the choice, and nothing else. Whether finite numbers make sense is not decided
here: merges that withstand some wrong ones are in `policies/robust.py`.
"""

from collections.abc import Mapping, Set
from math import isfinite

import torch
from torch import Tensor

from stratafl.core.form import DTYPES, NAMES, Bound, FieldForm, Form, TensorForm, bits_misfit, mask_kind
from stratafl.core.layout import Layout
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Parcel

NOT_FINITE = "its upload is not finite"
_SIGNED: tuple[Bound, ...] = ("nonnegative", "positive")


def misfit(parcel: Parcel, form: Form, layout: Layout, clients: int) -> str:
    """How the parcel of this number of clients differs from its form, "" if it does not; values are not checked."""
    for name in form.fields:
        if name not in parcel:
            return f"its upload has no field '{name}'"
    for name, field in parcel.items():
        if name not in form.fields:
            return f"its upload has a field {name[:80]!r}, which the method does not ask for"
        wrong = _field_misfit(field, form.fields[name], layout, clients)
        if wrong:
            return f"field '{name}' of its upload {wrong}"
    return ""


def _field_misfit(field: Field, form: FieldForm, layout: Layout, clients: int) -> str:
    lead = () if form.common else (clients,)
    if field.common != form.common:
        return "is one value for all clients, not one each" if field.common else "is not one value for all clients"
    if mask_kind(field) != form.mask:
        return f"has a mask of kind '{mask_kind(field)}', not '{form.mask}'"
    if isinstance(field.value, Tensor) or isinstance(form.value, TensorForm):
        if isinstance(field.value, Tensor) and isinstance(form.value, TensorForm):
            return _tensor_misfit("", field.value, form.value, lead)
        return "is one tensor, not tensors by name" if isinstance(field.value, Tensor) else "is not a single tensor"
    wrong = _names_misfit(field.value, form.value)
    if wrong:
        return wrong
    for key, block in form.value.items():
        wrong = _tensor_misfit(f"'{key}' ", field.value[key], block, lead)
        if wrong:
            return wrong
    return _mask_misfit(field, form.value, layout, lead)


def _names_misfit(names: Mapping[str, object], expected: Mapping[str, object]) -> str:
    for key in expected:
        if key not in names:
            return f"lacks '{key}'"
    for key in names:
        if key not in expected:
            return f"holds {key[:80]!r}, which the method does not ask for"
    return ""


def _tensor_misfit(what: str, x: Tensor, form: TensorForm, lead: tuple[int, ...]) -> str:
    if x.dtype != DTYPES[form.dtype] or tuple(x.shape) != (*lead, *form.shape):
        shape = tuple(x.shape[len(lead) :]) if tuple(x.shape[: len(lead)]) == lead else tuple(x.shape)
        return f"holds {what}as {NAMES.get(x.dtype, x.dtype)} {shape}, not {form.dtype} {form.shape}"
    return ""


def _mask_misfit(field: Field, blocks: Mapping[str, TensorForm], layout: Layout, lead: tuple[int, ...]) -> str:
    if isinstance(field.mask, LayerMask):
        return bits_misfit(field.mask.sent, (*lead, len(layout.layers)))
    if isinstance(field.mask, ColumnMask):
        wrong = _names_misfit(field.mask.sent, blocks)
        if wrong:
            return f"has a mask that {wrong}"
        misfits = (bits_misfit(field.mask.sent[key], (*lead, *block.shape)) for key, block in blocks.items())
        return next((wrong for wrong in misfits if wrong), "")
    return ""


# Values


def extremes(field: Field, bound: Bound, clients: int, layout: Layout, finite: Set[str] = frozenset()) -> Tensor | None:
    """`[2, C]` in float64: the smallest and the largest value that each client sent, NaN if any is.

    None where there is nothing to look at: whole numbers without a sign to respect, booleans, tensors without values,
    and those of which is known that they are `finite`, if that is all that is asked.
    """
    finite_names = finite if bound == "finite" else frozenset[str]()
    sent = field.sent(layout)
    named: Mapping[str, Tensor] = {"": field.value} if isinstance(field.value, Tensor) else field.value
    block_extremes = [
        _extremes(block, None if sent is None else sent[name], field.common, clients)
        for name, block in named.items()
        if name not in finite_names and _has_bounds(block, bound)
    ]
    if not block_extremes or bound == "any":
        return None
    lows, highs = (torch.stack(side) for side in zip(*block_extremes, strict=True))
    return torch.stack([lows.amin(0), highs.amax(0)])


def _has_bounds(block: Tensor, bound: Bound) -> bool:
    return block.numel() > 0 and block.dtype != torch.bool and (block.is_floating_point() or bound in _SIGNED)


def _extremes(block: Tensor, sent: Tensor | None, common: bool, clients: int) -> tuple[Tensor, Tensor]:
    sent_values = (
        block if sent is None else torch.where(sent, block, 1)
    )  # unsent values are NaN, and 1 is within all bounds
    rows = sent_values.reshape(1, -1).expand(clients, -1) if common else sent_values.reshape(clients, -1)
    # one launch on a GPU; on a CPU one pass takes four times as long as two that are vectorised
    low, high = (rows.amin(1), rows.amax(1)) if rows.device.type == "cpu" else torch.aminmax(rows, dim=1)
    return low.double(), high.double()


def out_of_bounds(name: str, bound: Bound, low: float, high: float) -> str:
    """Why a client whose values reach from `low` to `high` is refused; "" if it is not."""
    if bound != "any" and not (isfinite(low) and isfinite(high)):
        return f"{NOT_FINITE} in field '{name}'"
    if (bound == "positive" and low <= 0) or (bound == "nonnegative" and low < 0):
        least = "above 0" if bound == "positive" else "at least 0"
        return f"field '{name}' of its upload holds {low:g}, but every value must be {least}"
    return ""
