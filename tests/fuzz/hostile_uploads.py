"""Uploads that no client of a method can mean, as messages with the right checksum and mostly the right digest."""

import json
import random
from collections.abc import Mapping
from hashlib import blake2b
from itertools import accumulate
from math import prod

import torch
from safetensors.torch import load

from stratafl.core import wire
from stratafl.core.form import DTYPES, NAMES, Form, TensorForm
from stratafl.core.layout import Layout
from stratafl.core.parcel import Parcel

Draw = random.Random
Entries = dict[str, torch.Tensor]  # of a message, by path
OTHER = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)


def entries_of(upload: Parcel, layout: Layout) -> Entries:
    return load(wire.encode(upload, layout)[wire.PREFIX :])


def message(entries: Entries, digest: bytes) -> bytes:
    """The entries as the encoder writes them, with a checksum that is right."""
    ordered = sorted(entries.items(), key=lambda item: (-item[1].element_size(), item[0]))
    parts = [
        x.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()
        for _, x in ordered
    ]
    ends = [0, *accumulate(map(len, parts))]
    header = {
        path: {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": ends[i : i + 2]}
        for i, (path, x) in enumerate(ordered)
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    body = b"".join((len(text + b" " * (-len(text) % 8)).to_bytes(8, "little"), text, b" " * (-len(text) % 8), *parts))
    head = wire.MAGIC + digest
    return head + blake2b(head + body, digest_size=32).digest() + body


def conforms(entries: Entries, form: Form, held: int, sizes: Mapping[str, int]) -> bool:
    """Whether the schema allows these entries of a client with so many samples, decided anew.

    `sizes` are the numbers of columns of the model's tensors.
    """
    left = dict(entries)
    for name, field in form.fields.items():
        blocks = {"": field.value} if isinstance(field.value, TensorForm) else dict(field.value)
        for key, block in blocks.items():
            path = f"value/{name}/{key}" if key else f"value/{name}"
            value, shape = left.pop(path, None), block.shape
            if field.mask == "columns":
                bits = left.pop(f"mask/{name}/{key}", None)
                if bits is None or bits.dtype != torch.uint8 or bits.shape != ((prod(shape) + 7) // 8,):
                    return False
                flat = [byte >> (7 - i) & 1 for byte in bits.tolist() for i in range(8)]
                if any(flat[prod(shape) :]):
                    return False
                shape = (sum(flat),)
            if value is None or value.dtype != DTYPES[block.dtype] or tuple(value.shape) != shape:
                return False
            if not torch.isfinite(value).all() or (name == "samples" and value.tolist() != held):
                return False
            if "." in name and not _readable(name, key, value, form, sizes[key]):
                return False
    return not left


def _readable(name: str, key: str, value: torch.Tensor, form: Form, size: int) -> bool:
    """Whether a part of a compressed tensor can mean anything."""
    field, _, part = name.rpartition(".")
    numbers = value.reshape(-1).tolist()
    if part == "scale":
        return numbers[0] >= 0
    if part == "codes":
        if len(numbers) == size:
            return max(numbers) <= 254
        halves = [half for byte in numbers for half in (byte >> 4, byte & 15)]
        return max(halves) <= 14 and not any(halves[size:])
    if part == "places" and value.dtype == torch.uint8:
        bits = [byte >> (7 - i) & 1 for byte in numbers for i in range(8)]
        sent = form.fields[f"{field}.values"].value
        assert not isinstance(sent, TensorForm)
        return sum(bits) == sent[key].size and not any(bits[size:])
    return part != "places" or (numbers == sorted(set(numbers)) and numbers[0] >= 0 and numbers[-1] < size)


# Ways to change the entries of a message


def spoil_value(draw: Draw, entries: Entries) -> None:
    path = _some(draw, entries, lambda x: x.is_floating_point() and x.numel() > 0)
    entries[path] = entries[path].clone(memory_format=torch.contiguous_format)
    value = draw.choice((torch.nan, torch.inf, -torch.inf))
    entries[path].view(-1)[draw.randrange(entries[path].numel())] = value


def claim(draw: Draw, entries: Entries) -> None:
    if "value/samples" not in entries:
        return spoil_value(draw, entries)
    entries["value/samples"] = torch.tensor(draw.choice((0, -1, -5, -(2**63), 1, 10**12, 2**63 - 1)))
    return None


def retype(draw: Draw, entries: Entries) -> None:
    for path in [_some(draw, entries)] if draw.random() < 0.7 else list(entries):
        x = entries[path]
        entries[path] = x.to(draw.choice([dtype for dtype in OTHER if dtype != x.dtype]))


def reshape(draw: Draw, entries: Entries) -> None:
    path = _some(draw, entries)
    x = entries[path]
    entries[path] = draw.choice(
        (
            lambda: x.unsqueeze(0),
            lambda: x.unsqueeze(-1),
            lambda: torch.stack([x] * draw.choice((2, 3))),  # rows of several clients
            lambda: x.reshape(-1) if x.ndim != 1 else x[:-1],
            lambda: x.transpose(0, -1) if x.ndim > 1 else x[:1],
            lambda: x.reshape(-1)[:1].reshape(()) if x.numel() else x.unsqueeze(0),
            lambda: x[..., :0] if x.ndim else x.expand(2),
            lambda: torch.cat([x, x[:1]]) if x.ndim else x.expand(1),
        )
    )()


def drop(draw: Draw, entries: Entries) -> None:
    count = draw.choice((1, 1, len(entries) // 2, len(entries)))
    for path in draw.sample(sorted(entries), max(1, min(count, len(entries)))):
        entries.pop(path)


def add(draw: Draw, entries: Entries) -> None:
    like = entries[_some(draw, entries)]
    names = ("value/more", "value/theta", "value/theta/fc9.weight", "value/samples/fc.bias", "mask/theta", "value/rows")
    path = draw.choice((*names, "mask/theta/fc.bias", "mask/samples", "value/theta/fc.bias/", "x"))
    entries[path] = draw.choice((like, torch.zeros(1, dtype=torch.uint8), torch.tensor(1), torch.ones(0)))


def rename(draw: Draw, entries: Entries) -> None:
    path = _some(draw, entries)
    to = draw.choice(
        (path + "s", path[:-1], path.replace("theta", "rows"), path.replace("value", "mask"), path.upper())
    )
    entries[to] = entries.pop(path)


def swap(draw: Draw, entries: Entries) -> None:
    a, b = _some(draw, entries), _some(draw, entries)
    entries[a], entries[b] = entries[b], entries[a]


def remask(draw: Draw, entries: Entries) -> None:
    masks = [path for path, x in entries.items() if path.startswith("mask/") and x.dtype == torch.uint8 and x.ndim]
    if not masks:
        return add(draw, entries)
    path = draw.choice(masks)
    bits = entries[path].clone()
    bits[draw.randrange(len(bits))] ^= 1 << draw.randrange(8)
    entries[path] = draw.choice((bits, ~bits, torch.cat([bits, bits[:1]]), bits[:-1], bits.bool()))
    return None


def revalue(draw: Draw, entries: Entries) -> None:
    """Other finite values: what a schema cannot refuse."""
    path = _some(draw, entries, lambda x: x.is_floating_point() and x.numel() > 0)
    entries[path] = entries[path] * draw.choice((-1.0, 0.0, 1e3)) + draw.choice((0.0, 1.0, -1e6))


def repack(draw: Draw, entries: Entries) -> None:
    """Other codes, places or scales of what is compressed."""
    packed = [path for path in sorted(entries) if path.split("/")[1].endswith((".codes", ".scale", ".places"))]
    if not packed:
        return remask(draw, entries)
    path = draw.choice(packed)
    x = entries[path].clone()
    flat, at = x.view(-1), draw.randrange(max(1, x.numel()))
    if x.is_floating_point():
        value = draw.choice((-1.0, -1e-300, 1e308, torch.nan, torch.inf, -torch.inf))
        flat[at] = torch.tensor(value, dtype=torch.float64)  # a bare number that overflows would be refused here
    elif x.dtype == torch.int32:
        flat[at] = draw.choice((-1, 10**6, -(2**31), 2**31 - 1, int(flat[at - 1]), int(flat[0])))
    elif x.dtype == torch.uint8:
        flat[at] = draw.choice((0, 255, 15, 240, draw.randrange(256)))
    entries[path] = x
    return None


WAYS = (spoil_value, claim, retype, reshape, drop, add, rename, swap, remask, revalue, repack)


def _some(draw: Draw, entries: Entries, fits: object = None) -> str:
    return draw.choice([path for path, x in sorted(entries.items()) if fits is None or fits(x)])  # type: ignore[operator]


def changed(draw: Draw, entries: Entries) -> Entries:
    """The entries, changed in one way or several."""
    new = dict(entries)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        try:
            draw.choice(WAYS)(draw, new)
        except (IndexError, ValueError):  # nothing is left to change
            break
    return new


def hostile(draw: Draw, entries: Entries, form: Form, held: int, sizes: Mapping[str, int]) -> bytes:
    """A message that the schema does not allow; one of ten with a digest of another form."""
    new = entries
    while conforms(new, form, held, sizes):
        new = changed(draw, entries)
    return message(new, form.digest if draw.random() < 0.9 else draw.randbytes(16))


def plausible(draw: Draw, entries: Entries, form: Form) -> bytes:
    """A message with other finite values, and other columns where the sender chooses them."""
    new = dict(entries)
    revalue(draw, new)
    for path in [path for path in new if path.endswith(".scale") or "/theta.scale/" in path]:
        new[path] = new[path].abs()  # of a scale, no other sign
    for path in [path for path in new if path.startswith("mask/")]:
        size = prod(_block(form, path).shape)
        bits = [draw.random() < 0.5 for _ in range(size)]
        packed = [sum(bit << (7 - i) for i, bit in enumerate(bits[at : at + 8])) for at in range(0, size, 8)]
        new[path] = torch.tensor(packed, dtype=torch.uint8)
        value = path.replace("mask/", "value/")
        new[value] = torch.randn(sum(bits), dtype=new[value].dtype)
    return message(new, form.digest)


def _block(form: Form, path: str) -> TensorForm:
    _, name, key = path.split("/")
    value = form.fields[name].value
    assert not isinstance(value, TensorForm)
    return value[key]
