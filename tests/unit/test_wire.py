"""The wire: a parcel of one client as bytes and back; anything else is a WireError, never another exception."""

import json
import random
import re
from collections.abc import Callable
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from safetensors.torch import load
from torch import nn

import stratafl
from stratafl.core import wire
from stratafl.core.describe import describe
from stratafl.core.form import Form, form_of
from stratafl.core.layout import Rows
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Parcel, count_bytes
from stratafl.core.state import stored_bytes
from stratafl.errors import WireError
from stratafl.models import build

LAYOUT = describe(build("convnorm", shape=(1, 4, 4), classes=3, channels=2))
NAMES = ("conv1.weight", "bn1.running_mean", "fc.bias")


def rows(*lead: int, names: tuple[str, ...] = NAMES, dtype: torch.dtype = torch.float32) -> Rows:
    draw = torch.Generator().manual_seed(0)
    return {n: torch.randn(*lead, *LAYOUT.specs[n].shape, generator=draw).to(dtype) for n in names}


def columns(*lead: int) -> ColumnMask:
    return ColumnMask({name: block > 0 for name, block in rows(*lead).items()})


def layers(*names: str) -> torch.Tensor:
    return torch.tensor([name in names for name in LAYOUT.names])


FIELDS = {
    "common": Field(rows(), common=True),
    "each": Field(rows(1)),
    "float64": Field(rows(1, dtype=torch.float64)),
    "mixed types": Field(
        rows(1, names=NAMES[:1], dtype=torch.float16) | rows(1, names=NAMES[1:], dtype=torch.bfloat16)
    ),
    "whole numbers": Field(rows(1, dtype=torch.int64)),
    "layer mask": Field(rows(1), mask=LayerMask(layers("bn1", "fc")[None])),
    "no layer sent": Field(rows(1), mask=LayerMask(layers()[None])),
    "common layer mask": Field(rows(), common=True, mask=LayerMask(layers("conv1"))),
    "column mask": Field(rows(1), mask=columns(1)),
    "no column sent": Field(
        rows(1), mask=ColumnMask({n: torch.zeros_like(x, dtype=torch.bool) for n, x in rows(1).items()})
    ),
    "common column mask": Field(rows(), common=True, mask=columns()),
    "common rows of others": Field(rows(4), common=True),
    "int64": Field(torch.tensor([12])),
    "vector": Field(torch.tensor([[1.0, 2.5]], dtype=torch.float64)),
    "booleans": Field(torch.tensor([[True, False]])),
    "common scalar": Field(torch.tensor(3.5), common=True),
    "common vector": Field(torch.tensor([1, 2, 3], dtype=torch.int32), common=True),
    "no values": Field(torch.empty(1, 0)),
    "no booleans": Field(torch.empty(1, 0, dtype=torch.bool)),
    "many axes": Field(torch.ones((1,) * 40)),
    "no layer": Field({}),
}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.isnan(), b.isnan())
        and torch.equal(*map(_held, (a, b)))
    )


def _held(x: torch.Tensor) -> torch.Tensor:
    return x.nan_to_num() if x.is_floating_point() else x


def there_and_back(parcel: Parcel) -> Parcel:
    return wire.decode(wire.encode(parcel, LAYOUT), LAYOUT, form_of(parcel, LAYOUT))


@pytest.mark.parametrize("kind", FIELDS)
def test_a_field_comes_back_as_it_was_with_nan_where_nothing_was_sent(kind):
    field = FIELDS[kind]
    back = there_and_back(Parcel({"x": field}))["x"]
    expected = field.poisoned(LAYOUT)
    assert back.common == field.common
    assert type(back.mask) is type(field.mask)
    if isinstance(field.value, torch.Tensor):
        assert same(back.tensor, field.tensor)
        return
    assert list(back.rows) == list(field.rows)
    assert all(same(back.rows[name], expected.rows[name]) for name in field.rows)
    if isinstance(field.mask, LayerMask):
        assert torch.equal(back.mask.sent, field.mask.sent)
    elif isinstance(field.mask, ColumnMask):
        assert all(torch.equal(back.mask.sent[name], sent) for name, sent in field.mask.sent.items())


@pytest.mark.parametrize("kind", FIELDS)
def test_what_is_encoded_is_what_is_counted(kind):
    parcel = Parcel({"x": FIELDS[kind]})
    assert wire.body_bytes(wire.encode(parcel, LAYOUT)) == count_bytes(parcel, LAYOUT, 1).total


def test_a_parcel_of_all_kinds_of_fields():
    parcel = Parcel(FIELDS)
    back = there_and_back(parcel)
    assert list(back) == list(FIELDS)
    assert wire.body_bytes(wire.encode(parcel, LAYOUT)) == count_bytes(parcel, LAYOUT, 1).total
    assert there_and_back(Parcel({})).keys() == set()


def test_a_transposed_block_that_is_still_to_be_differentiated_is_sent_as_its_values():
    block = torch.arange(6.0).reshape(2, 3).T[None].requires_grad_()
    back = there_and_back(Parcel({"x": Field({"fc.weight": block})}))["x"].rows["fc.weight"]
    assert back.tolist() == [[[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]]
    assert not back.requires_grad


def test_what_was_not_sent_is_not_in_the_bytes():
    secret = torch.full((1, 3), 1234.5678)
    for mask in (LayerMask(layers("conv1")[None]), ColumnMask({"fc.bias": torch.tensor([[False, False, False]])})):
        data = wire.encode(Parcel({"x": Field({"fc.bias": secret}, mask=mask)}), LAYOUT)
        assert secret[0, :1].numpy().tobytes() not in data


# Refusals


@pytest.mark.parametrize(
    "field",
    [Field(rows(2)), Field(torch.tensor([1, 2])), Field(rows(2), mask=LayerMask(torch.ones(2, 5, dtype=torch.bool)))],
)
def test_a_message_for_two_clients_is_refused(field):
    with pytest.raises(WireError, match=r"'x'.*\b2\b"):
        wire.encode(Parcel({"x": field}), LAYOUT)


def sealed(form: Form, body: bytes) -> bytes:
    """A message with a right checksum, whatever it holds."""
    head = b"parcel 1" + form.digest
    return head + blake2b(head + body, digest_size=32).digest() + body


def forged(kind: str, change: Callable[[Rows], object]) -> tuple[bytes, Form]:
    """The message of a field with other tensors in it, by path, and the form that was agreed."""
    parcel = Parcel({"x": FIELDS[kind]})
    form, tensors = form_of(parcel, LAYOUT), load(wire.encode(parcel, LAYOUT)[wire.PREFIX :])
    change(tensors)
    return sealed(form, safetensors_file(tensors)), form


def safetensors_file(tensors: Rows) -> bytes:
    """As the encoder writes it: the largest types first, then by name."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    parts = [x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for _, x in ordered]
    ends = [0, *accumulate(map(len, parts))]
    header = {
        path: {"dtype": TYPES[x.dtype], "shape": list(x.shape), "data_offsets": ends[i : i + 2]}
        for i, (path, x) in enumerate(ordered)
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


TYPES = {torch.float32: "F32", torch.float64: "F64", torch.uint8: "U8", torch.bool: "BOOL", torch.int64: "I64"}


@pytest.mark.parametrize("kind", ["each", "layer mask", "column mask", "booleans", "no layer"])
def test_an_unchanged_forgery_is_what_was_encoded(kind):
    data, _ = forged(kind, lambda tensors: None)
    assert data == wire.encode(Parcel({"x": FIELDS[kind]}), LAYOUT)


def test_a_message_is_an_ordinary_safetensors_file_behind_a_prefix_of_56_bytes():
    data = wire.encode(Parcel({"x": FIELDS["each"]}), LAYOUT)
    held = load(data[56:])
    assert {path: tuple(x.shape) for path, x in held.items()} == {
        f"value/x/{name}": LAYOUT.specs[name].shape for name in NAMES
    }
    assert data[:8] == b"parcel 1"
    assert data[24:56] == blake2b(data[:24] + data[56:], digest_size=32).digest()


WEIGHT = "value/x/conv1.weight"
FORGERIES: dict[str, tuple[str, Callable[[Rows], object], str]] = {
    "a tensor nobody has": (
        "each",
        lambda t: t.update({"value/x/fc.b": torch.ones(3)}),
        "they hold 'value/x/fc.b', which is not part of its form",
    ),
    "a field nobody has": ("each", lambda t: t.update({"value/y": torch.ones(3)}), "they hold 'value/y'"),
    "a tensor beside the blocks": ("each", lambda t: t.update({"value/x": torch.ones(3)}), "they hold 'value/x'"),
    "a mask where there is none": (
        "each",
        lambda t: t.update({"mask/x": torch.zeros(1, dtype=torch.uint8)}),
        "they hold 'mask/x'",
    ),
    "a value of another shape": (
        "each",
        lambda t: t.update({"value/x/fc.bias": torch.zeros(1)}),
        r"'value/x/fc.bias' is F32 \(1,\), not F32 \(3,\)",
    ),
    "a value of another type": (
        "each",
        lambda t: t.update({"value/x/fc.bias": torch.zeros(3).double()}),
        r"is F64 \(3,\), not F32 \(3,\)",
    ),
    "a value left out": ("each", lambda t: t.pop("value/x/fc.bias"), "they lack 'value/x/fc.bias'"),
    "a number of another type": ("int64", lambda t: t.update({"value/x": torch.tensor(1.0)}), r"is F32 \(\), not I64"),
    "a number that is a vector": ("int64", lambda t: t.update({"value/x": torch.tensor([1])}), r"is I64 \(1,\), not"),
    "a boolean that is 2": (
        "booleans",
        lambda t: t.update({"value/x": torch.tensor([1, 2], dtype=torch.uint8).view(torch.bool)}),
        "neither true nor false",
    ),
    "a mask left out": ("layer mask", lambda t: t.pop("mask/x"), "they lack 'mask/x'"),
    "a mask of floats": ("layer mask", lambda t: t.update({"mask/x": torch.ones(1)}), "'mask/x' is F32"),
    "a mask that is too long": (
        "layer mask",
        lambda t: t.update({"mask/x": torch.zeros(2, dtype=torch.uint8)}),
        r"'mask/x' is U8 \(2,\), not U8 \(1,\)",
    ),
    "a layer mask with a bit that no layer has": (
        "layer mask",
        lambda t: t.update({"mask/x": t["mask/x"] | 1}),
        "undefined bits",
    ),
    "a column mask with a bit that no column has": (
        "column mask",
        lambda t: t.update({"mask/x/fc.bias": t["mask/x/fc.bias"] | 1}),
        "undefined bits",
    ),
    "a column mask that is too short": (
        "no column sent",
        lambda t: t.update({"mask/x/conv1.weight": torch.zeros(1, dtype=torch.uint8)}),
        r"'mask/x/conv1.weight' is U8 \(1,\), not U8 \(3,\)",
    ),
    "too few columns": (
        "column mask",
        lambda t: t.update({WEIGHT: t[WEIGHT][:2]}),
        r"'value/x/conv1.weight' is F32 \(2,\), not F32 \(11,\)",
    ),
    "one number for all columns": ("column mask", lambda t: t.update({WEIGHT: torch.ones(1)}), r"is F32 \(1,\)"),
    "one number for a whole block": (
        "layer mask",
        lambda t: t.update({"value/x/fc.bias": torch.ones(1)}),
        r"is F32 \(1,\), not F32 \(3,\)",
    ),
    "a block that was sent and is not there": ("layer mask", lambda t: t.pop("value/x/fc.bias"), "they lack"),
    "a block that was not sent and is there": (
        "layer mask",
        lambda t: t.update({WEIGHT: torch.ones(2, 1, 3, 3)}),
        "they hold 'value/x/conv1.weight'",
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_message_with_a_right_checksum_is_refused(forgery):
    kind, change, message = FORGERIES[forgery]
    data, form = forged(kind, change)
    with pytest.raises(WireError, match=message) as refusal:
        wire.decode(data, LAYOUT, form)
    assert "\n" not in str(refusal.value)


def test_a_refusal_shows_no_more_than_the_beginning_of_a_forged_name():
    data, form = forged("each", lambda t: t.update({"\x1b[2J" + "n" * 120: torch.ones(0)}))
    with pytest.raises(WireError) as refusal:
        wire.decode(data, LAYOUT, form)
    assert "n" * 76 + "'" in str(refusal.value)
    assert "n" * 77 not in str(refusal.value)
    assert str(refusal.value).isprintable()


def header(data: bytes) -> tuple[bytes, bytes]:
    """The safetensors header of a message, and the values behind it."""
    length = int.from_bytes(data[56:64], "little")
    return data[64 : 64 + length], data[64 + length :]


def reheaded(text: bytes, values: bytes, form: Form) -> bytes:
    return sealed(form, len(text).to_bytes(8, "little") + text + values)


REWRITTEN: dict[str, Callable[[bytes], bytes]] = {
    "a name twice": lambda text: b'{"value/x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},' + text[1:],
    "a key twice": lambda text: text.replace(b'{"dtype"', b'{"dtype":"F64","dtype"', 1),
    "other spaces": lambda text: text.replace(b":", b": ").ljust((len(text.replace(b":", b": ")) + 7) // 8 * 8),
    "metadata": lambda text: b'{"__metadata__":{"a":"b"},' + text[1:] + b" " * 6,
    "a shape with a fraction": lambda text: text.replace(b"[2,3]", b"[2,3.0]"),
    "a negative shape": lambda text: text.replace(b"[2,3]", b"[-2,3]"),
    "a shape with a boolean": lambda text: text.replace(b"[2,3]", b"[true,3]"),
    "a shape beyond all numbers": lambda text: text.replace(b"[2,3]", b"[" + b"9" * 40 + b",3]"),
    "nested beyond all depth": lambda text: b"[" * 600,
    "no text": lambda text: b"\xff" * len(text),
}


@pytest.mark.parametrize("change", REWRITTEN)
def test_a_header_in_other_words_is_refused(change):
    field = Field(torch.ones(1, 2, 3))
    form, data = form_of(Parcel({"x": field}), LAYOUT), wire.encode(Parcel({"x": field}), LAYOUT)
    text, values = header(data)
    assert reheaded(text, values, form) == data
    assert REWRITTEN[change](text) != text
    with pytest.raises(WireError):
        wire.decode(reheaded(REWRITTEN[change](text), values, form), LAYOUT, form)


OTHER_FORMS = {
    "another name": Parcel({"y": FIELDS["each"]}),
    "one more field": Parcel({"x": FIELDS["each"], "y": FIELDS["int64"]}),
    "a common field": Parcel({"x": FIELDS["common"]}),
    "another type": Parcel({"x": FIELDS["float64"]}),
    "a mask": Parcel({"x": FIELDS["layer mask"]}),
    "one block less": Parcel({"x": Field(rows(1, names=NAMES[:2]))}),
    "a tensor": Parcel({"x": FIELDS["vector"]}),
    "no field": Parcel({}),
}


@pytest.mark.parametrize("other", OTHER_FORMS)
def test_a_parcel_of_another_form_is_refused(other):
    form = form_of(Parcel({"x": FIELDS["each"]}), LAYOUT)
    with pytest.raises(WireError):
        wire.decode(wire.encode(OTHER_FORMS[other], LAYOUT), LAYOUT, form)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_the_order_of_fields_is_that_of_the_form(order):
    parcel = Parcel({"b": FIELDS["int64"], "a": FIELDS["vector"]})
    back = wire.decode(wire.encode(parcel, LAYOUT), LAYOUT, form_of(Parcel({n: parcel[n] for n in order}), LAYOUT))
    assert list(back) == list(order)


def test_a_block_may_be_in_two_fields():
    shared = FIELDS["each"].rows
    parcel = Parcel({"x": Field(shared), "y": Field(shared)})
    back = there_and_back(parcel)
    assert all(same(back[name].rows["fc.bias"], shared["fc.bias"]) for name in parcel)


def test_a_number_that_is_expanded_is_sent_as_often_as_it_is_seen():
    for shape in ((1, 3), (1, 1)):
        back = there_and_back(Parcel({"x": Field(torch.tensor(2.5).expand(shape))}))
        assert torch.equal(back["x"].tensor, torch.full(shape, 2.5))


# Memory: what is decoded is as large as the form


def test_masks_of_zeros_cannot_become_more_than_the_form(monkeypatch):
    """A bit of a column mask is eight bytes of NaN; masks of fields that nobody expects become nothing at all."""
    full, made = torch.full, []
    monkeypatch.setattr(torch, "full", lambda *a, **k: made.append(full(*a, **k)) or made[-1])
    layout = describe(nn.Linear(1000, 100, bias=False))
    zeros = ColumnMask({"weight": torch.zeros(1, 100, 1000, dtype=torch.bool)})
    field = Field({"weight": torch.zeros(1, 100, 1000, dtype=torch.float64)}, mask=zeros)
    many = wire.encode(Parcel({f"x{i}": field for i in range(20)}), layout)
    assert len(many) < 300_000
    form = form_of(Parcel({"x0": field}), layout)
    for data, reason in ((many, "other fields"), (sealed(form, many[wire.PREFIX :]), "not part of its form")):
        with pytest.raises(WireError, match=reason):
            wire.decode(data, layout, form)
    assert sum(x.numel() * x.element_size() for x in made) == 800_000  # the one field of the form, once
    back = wire.decode(wire.encode(Parcel({"x0": field}), layout), layout, form)
    assert stored_bytes({"x0": back["x0"].value}) == 800_000


def test_a_message_larger_than_its_form_is_not_even_looked_at():
    form = form_of(Parcel({"x": FIELDS["int64"]}), LAYOUT)
    most = wire.most_bytes(form, LAYOUT)
    with pytest.raises(WireError, match=f"{most + 1:,} .*{most:,}"):
        wire.decode(bytes(most + 1), LAYOUT, form)
    with pytest.raises(WireError, match=str(wire.MAGIC)):
        wire.decode(bytes(most), LAYOUT, form)


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("name", ["x", "ä\x07\u2028\U0001f600" * 9])
def test_no_message_is_larger_than_its_form_allows(kind, name):
    parcel = Parcel({name: FIELDS[kind]})
    assert len(wire.encode(parcel, LAYOUT)) <= wire.most_bytes(form_of(parcel, LAYOUT), LAYOUT)
    assert list(there_and_back(parcel)) == [name]


# Damage

SMALL = Parcel(
    {
        "theta": Field({"fc.bias": rows(1)["fc.bias"]}, mask=LayerMask(layers("fc")[None])),
        "sparse": Field(
            {"fc.bias": rows(1)["fc.bias"]}, mask=ColumnMask({"fc.bias": torch.tensor([[True, False, True]])})
        ),
        "all": Field({"fc.bias": rows()["fc.bias"]}, common=True),
        "samples": Field(torch.tensor([12])),
    }
)
AGREED = form_of(SMALL, LAYOUT)


@pytest.fixture(scope="module")
def message() -> bytes:
    return wire.encode(SMALL, LAYOUT)


def test_a_message_cut_off_anywhere_is_refused(message):
    for length in range(len(message)):
        with pytest.raises(WireError):
            wire.decode(message[:length], LAYOUT, AGREED)


def test_a_message_with_bytes_behind_it_is_refused(message):
    for data in (message + b"\0", sealed(AGREED, message[wire.PREFIX :] + b"\0")):
        with pytest.raises(WireError):
            wire.decode(data, LAYOUT, AGREED)


def test_random_bytes_are_refused():
    draw = random.Random(0)
    for _ in range(200):
        data = draw.randbytes(draw.randrange(120))
        for given in (data, sealed(AGREED, data)):
            with pytest.raises(WireError):
                wire.decode(given, LAYOUT, AGREED)


def test_every_flipped_byte_is_refused(message):
    for place in range(len(message)):
        with pytest.raises(WireError):
            wire.decode(message[:place] + bytes([message[place] ^ 0x10]) + message[place + 1 :], LAYOUT, AGREED)


# No pickle

FORBIDDEN = {
    "a pickle module": r"^\s*(import|from)\s+(pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve)\b",
    "torch.load": r"\btorch\.load\(",
    "torch.save": r"\btorch\.save\(",
    "numpy's pickles": r"allow_pickle\s*=\s*True",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_in_the_package_pickles(what):
    files = sorted(Path(stratafl.__file__).parent.rglob("*.py"))
    assert len(files) > 40
    assert not [f.name for f in files if re.search(FORBIDDEN[what], f.read_text(encoding="utf-8"), re.MULTILINE)]
