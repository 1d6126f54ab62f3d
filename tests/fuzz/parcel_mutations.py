"""Parcels of every kind of field, and many ways to change their messages."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from math import prod
from typing import Any

import torch

from stratafl.core import wire
from stratafl.core.form import Form, form_of
from stratafl.core.layers import Layer
from stratafl.core.layout import Layout, Spec
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Parcel
from stratafl.core.state import apply
from stratafl.errors import WireError

LAYOUT = Layout(
    [Spec("a.w", (2, 3), 0, True), Spec("a.b", (3,), 0, True), Spec("b.w", (9,), 1, True), Spec("b.s", (), 1, True)],
    [
        Layer(name, "other", name, name == "b", None, tensors)
        for name, tensors in (("a", ("a.w", "a.b")), ("b", ("b.w", "b.s")))
    ],
)
NAMES = tuple(LAYOUT.specs)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _rows(*lead: int, dtype: torch.dtype = torch.float32, names: tuple[str, ...] = NAMES) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(len(lead))
    return {n: torch.randn((*lead, *LAYOUT.specs[n].shape), generator=draw).to(dtype) for n in names}


def _columns(*lead: int) -> ColumnMask:
    return ColumnMask({name: x > 0 for name, x in _rows(*lead).items()})


PARCELS = (
    Parcel({"theta": Field(_rows(1)), "samples": Field(torch.tensor([31]))}),  # FedAvg up
    Parcel({"theta": Field(_rows(), common=True)}),  # FedAvg down
    Parcel({"theta": Field(_rows(1), mask=LayerMask(torch.tensor([[True, False]])))}),  # HeurpFedLA down
    Parcel({"theta": Field(_rows(), common=True, mask=LayerMask(torch.tensor([False, True])))}),  # FedLAG down
    Parcel({"theta": Field(_rows(1), mask=_columns(1)), "samples": Field(torch.tensor([31]))}),  # FLAYER up
    Parcel({"rows": Field(_rows(3), common=True), "active": Field(torch.tensor([[True, False, True]]))}),
    Parcel({"x": Field(_rows(1, dtype=torch.float64)), "y": Field(_rows(dtype=torch.float16), common=True)}),
    Parcel({"one": Field(torch.tensor(2.5), common=True), "none": Field({}), "empty": Field(torch.empty(1, 0))}),
)
Draw = random.Random
Change = Callable[[Draw, bytes], bytes]


def sealed(head: bytes, body: bytes) -> bytes:
    """A message with its checksum computed anew."""
    return head + blake2b(head + body, digest_size=32).digest() + body


# Bytes


def substitute(draw: Draw, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        place = draw.randrange(len(body))
        changed[place] = draw.choice((draw.randrange(256), changed[place] ^ (1 << draw.randrange(8)), 0, 0xFF))
    return bytes(changed)


def substitute_value(draw: Draw, body: bytes) -> bytes:
    start = 8 + int.from_bytes(body[:8], "little")
    return body[:start] + substitute(draw, body[start:]) if start < len(body) else body + b"\0"


def cut(draw: Draw, body: bytes) -> bytes:
    return body[: draw.randrange(len(body))]


def extend(draw: Draw, body: bytes) -> bytes:
    return body + draw.choice((bytes(draw.choice((1, 8, 64))), draw.randbytes(8), body[-8:], body))


def delete(draw: Draw, body: bytes) -> bytes:
    a, b = sorted(draw.randrange(len(body) + 1) for _ in range(2))
    return body[:a] + body[min(b, a + draw.choice((1, 8, 40))) :]


def insert(draw: Draw, body: bytes) -> bytes:
    place = draw.randrange(len(body))
    return body[:place] + draw.randbytes(draw.choice((1, 4, 8))) + body[place:]


def move(draw: Draw, body: bytes) -> bytes:
    a, b, n = draw.randrange(len(body)), draw.randrange(len(body)), draw.choice((1, 4, 8, 30))
    changed = bytearray(body)
    changed[a : a + n] = body[b : b + n]
    return bytes(changed)


# The header of the safetensors file


def _entry(draw: Draw, info: Any) -> Any:
    """An entry in which something is different."""
    if set(info) != {"dtype", "shape", "data_offsets"}:  # changed before
        return info
    kind, info = draw.randrange(6), dict(info)
    shape, ends = list(info["shape"]), list(info["data_offsets"])
    if kind == 0:
        info["dtype"] = draw.choice(("F64", "F32", "F16", "BF16", "I64", "U8", "BOOL", "I8", "C64", "f32", 7, None))
    elif kind == 1:
        draw.shuffle(shape)
        info["shape"] = shape
    elif kind == 2:
        odd = (0, 1, -1, True, None, 1.0, "3", 2**31, 2**63, 2**64, 10**40, [3], {})
        info["shape"] = [*shape[:-1], draw.choice(odd)] if draw.random() < 0.5 else [*shape, draw.choice(odd)]
    elif kind == 3:
        info["data_offsets"] = [ends[0] + draw.choice((-8, -4, 0, 4)), ends[1] + draw.choice((-4, 0, 4, 8, 2**62))]
    elif kind == 4:
        info["shape"] = shape[1:] if draw.random() < 0.5 else [1, *shape]
    else:
        info.pop(draw.choice(sorted(info)))
    return info


def edit_header(draw: Draw, body: bytes) -> bytes:
    """Rename, swap, drop, double, reorder or change entries, and write the header anew."""
    length = int.from_bytes(body[:8], "little")
    pairs, values = list(json.loads(body[8 : 8 + length]).items()), body[8 + length :]
    for _ in range(draw.choice((1, 1, 2))):
        kind = draw.randrange(8)
        i, j = (draw.randrange(len(pairs)) if pairs else 0 for _ in range(2))
        if kind == 0 or not pairs:
            path = draw.choice(
                ("value/theta", "mask/theta", "mask/theta/a.w", "value/theta/a.b", "value/y", "__metadata__")
            )
            pairs.append((path, {"dtype": "U8", "shape": [0], "data_offsets": [len(values)] * 2}))
        elif kind == 1:
            pairs[i] = (
                draw.choice((pairs[i][0] + "x", pairs[i][0].replace("value", "mask"), pairs[j][0])),
                pairs[i][1],
            )
        elif kind == 2:
            (a, x), (b, y) = pairs[i], pairs[j]
            pairs[i], pairs[j] = (a, y), (b, x)
        elif kind == 3:
            pairs.pop(i)
        elif kind == 4:
            pairs.insert(j, (pairs[i][0], _entry(draw, pairs[i][1])))
        elif kind == 5:
            draw.shuffle(pairs)
        else:
            pairs[i] = (pairs[i][0], _entry(draw, pairs[i][1]))
    text = "{" + ",".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in pairs) + "}"
    text = draw.choice((text, text, text, text.replace(",", ", "), text[:-1], f"[{text}]"))
    padded = text.encode() + b" " * (-len(text.encode()) % 8)
    length = len(padded) + draw.choice((0, 0, 0, 0, 0, 8, -8, 2**40))
    return max(length, 0).to_bytes(8, "little") + padded + values


# The parcel itself, encoded by the rules


def _other_field(draw: Draw, field: Field) -> Field:
    value, kind = field.value, draw.randrange(6)
    if kind == 0:
        return replace(field, common=not field.common)
    if kind == 1:
        to = draw.choice((*DTYPES, torch.int64, torch.uint8))
        return replace(field, value=apply(lambda x: x.to(to), value))
    if isinstance(value, torch.Tensor):
        return replace(field, value=value.unsqueeze(-1) if kind < 4 else torch.cat([value.unsqueeze(-1)] * 2, -1))
    if kind == 2:
        return replace(field, value=dict(list(value.items())[1:]))
    if kind == 3:
        return replace(field, mask=None)
    if kind == 4:
        return replace(field, mask=LayerMask(_bits(draw, (2,) if field.common else (1, 2))))
    return replace(field, mask=ColumnMask({n: _bits(draw, tuple(x.shape)) for n, x in value.items()}))


def _bits(draw: Draw, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([draw.random() < 0.5 for _ in range(prod(shape))]).reshape(shape)


def other_parcel(draw: Draw, parcel: Parcel) -> bytes:
    """The message of a parcel that differs in its fields, flags, masks, types or shapes."""
    for _ in range(20):
        fields, kind = dict(parcel), draw.randrange(6)
        name = draw.choice(sorted(fields))
        if kind == 0:
            fields.pop(name)
        elif kind == 1:
            fields[draw.choice(("y", "samples", "theta", name + "2"))] = fields[name]
        else:
            fields[name] = _other_field(draw, fields[name])
        try:
            return wire.encode(Parcel(fields), LAYOUT)
        except WireError:
            continue  # such a parcel cannot be written at all: try another
    return wire.encode(parcel, LAYOUT)


BODIES: tuple[Change, ...] = (substitute, substitute_value, cut, extend, delete, insert, move, edit_header, edit_header)


def mutated(draw: Draw, parcel: Parcel, message: bytes, form: Form, fresh: bool) -> bytes:
    """A changed message: with the checksum that it had, or as somebody would forge it who knows form and checksum."""
    kind = draw.randrange(len(BODIES) + 2)
    if not fresh and kind == 0:  # anywhere, also in the prefix
        return draw.choice((substitute, cut, extend, delete, insert, move))(draw, message)
    if kind >= len(BODIES):
        body = other_parcel(draw, parcel)[wire.PREFIX :]
    else:
        body = BODIES[kind](draw, message[wire.PREFIX :])
    if not fresh:
        return message[: wire.PREFIX] + body
    return sealed(wire.MAGIC + (form.digest if draw.random() < 0.95 else draw.randbytes(16)), body)


MESSAGES = tuple((parcel, wire.encode(parcel, LAYOUT), form_of(parcel, LAYOUT)) for parcel in PARCELS)
