"""The wire: a parcel of one client as bytes and back; anything else is a WireError, never another exception."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

import stratafl
from stratafl import wire
from stratafl.describe import describe
from stratafl.errors import WireError
from stratafl.layout import Rows
from stratafl.models import build
from stratafl.parcel import ColumnMask, Field, LayerMask, Parcel, count_bytes

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
    return wire.decode(wire.encode(parcel, LAYOUT), LAYOUT)


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
    with pytest.raises(WireError, match="a message is for one client, this parcel is for 2"):
        wire.encode(Parcel({"x": field}), LAYOUT)


def forged(kind: str, change: Callable[[Rows, dict[str, Any]], object]) -> bytes:
    """The message of a field, changed: tensors by key, and what the header says of the field."""
    data = wire.encode(Parcel({"x": FIELDS[kind]}), LAYOUT)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["parcel"])
    tensors = load(data)
    change(tensors, header["x"])
    return save(tensors, {"parcel": json.dumps(header)})


def test_an_unchanged_forgery_is_accepted():
    assert same(wire.decode(forged("each", lambda t, h: None), LAYOUT)["x"].rows["fc.bias"], rows(1)["fc.bias"])


FORGERIES: dict[str, tuple[str, Callable[[Rows, dict[str, Any]], object], str]] = {
    "a tensor nobody has": (
        "each",
        lambda t, h: h["shapes"].update({"fc.b": [3]}),
        "holds 'fc.b', which this model does not",
    ),
    "a wrong shape": (
        "each",
        lambda t, h: h["shapes"].update({"fc.bias": [4]}),
        r"shape \(4,\), this model has \(3,\)",
    ),
    "a row too many": ("layer mask", lambda t, h: h["shapes"].update({"fc.bias": [2, 3]}), "this model has"),
    "a value of another shape": (
        "each",
        lambda t, h: t.update({"value/x/fc.bias": torch.zeros(1)}),
        "announces 'fc.bias'",
    ),
    "a value of another type": (
        "each",
        lambda t, h: t.update({"value/x/fc.bias": torch.zeros(3).double()}),
        "announces",
    ),
    "a value left out": ("each", lambda t, h: t.pop("value/x/fc.bias"), "lacks 'fc.bias', which it says was sent"),
    "a mask left out": ("layer mask", lambda t, h: t.pop("mask/x"), "not a parcel: KeyError"),
    "a mask of floats": ("layer mask", lambda t, h: t.update({"mask/x": torch.ones(1)}), "a mask of 5 columns holds"),
    "too few columns": (
        "column mask",
        lambda t, h: t.update({"value/x/conv1.weight": t["value/x/conv1.weight"][:2]}),
        r"announces 'conv1.weight' as float32 \(11,\)",
    ),
    "no shapes": ("each", lambda t, h: h.pop("shapes"), "not a parcel: KeyError"),
    "shapes of a wrong kind": ("each", lambda t, h: h.update(shapes=[3]), "not a parcel: AttributeError"),
    "a type that is none": (
        "layer mask",
        lambda t, h: h["dtypes"].update({"fc.bias": "load"}),
        "unknown type 'load'",
    ),
    "a type that does not exist": (
        "each",
        lambda t, h: h["dtypes"].update({"fc.bias": "f33"}),
        "unknown type 'f33'",
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_message_is_refused(forgery):
    kind, change, message = FORGERIES[forgery]
    with pytest.raises(WireError, match=message):
        wire.decode(forged(kind, change), LAYOUT)


UNNOTICED: dict[str, tuple[str, Callable[[Rows, dict[str, Any]], object]]] = {
    "under a layer mask, one number for a whole block": (
        "layer mask",
        lambda t, h: t.update({"value/x/fc.bias": torch.ones(1)}),
    ),
    "under a layer mask, another type": (
        "layer mask",
        lambda t, h: t.update({"value/x/fc.bias": torch.ones(3).double()}),
    ),
    "under a layer mask, a block that was sent and is not there": ("layer mask", lambda t, h: t.pop("value/x/fc.bias")),
    "under a layer mask, a block that was not sent and is there": (
        "layer mask",
        lambda t, h: t.update({"value/x/conv1.weight": torch.ones(2, 1, 3, 3)}),
    ),
    "under a column mask, one number for all columns": (
        "column mask",
        lambda t, h: t.update({"value/x/conv1.weight": torch.ones(1)}),
    ),
    "a column mask that is too short": (
        "no column sent",
        lambda t, h: t.update({"mask/x/conv1.weight": torch.zeros(1, dtype=torch.uint8)}),
    ),
    "a mask of an unknown kind": ("no layer sent", lambda t, h: h.update(mask="leyers")),
    "a shape beyond all numbers": (
        "common column mask",
        lambda t, h: h["shapes"].update({"conv1.weight": [10**30, 2, 1, 3, 3]}),
    ),
}


@pytest.mark.parametrize("forgery", UNNOTICED)
def test_a_forged_mask_or_masked_value_is_refused(forgery):
    kind, change = UNNOTICED[forgery]
    with pytest.raises(WireError):
        wire.decode(forged(kind, change), LAYOUT)


def test_a_field_that_should_be_rows_cannot_be_smuggled_in_as_a_tensor():
    data = forged("each", lambda t, h: (t.clear(), t.update({"value/x": torch.ones(2)})))
    with pytest.raises(WireError, match="a tensor, not blocks"):
        _ = wire.decode(data, LAYOUT)["x"].rows


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


@pytest.fixture(scope="module")
def message() -> bytes:
    return wire.encode(SMALL, LAYOUT)


def test_a_message_cut_off_anywhere_is_refused(message):
    for length in range(len(message)):
        with pytest.raises(WireError, match="these bytes are not a parcel"):
            wire.decode(message[:length], LAYOUT)


def test_random_bytes_are_refused():
    draw = random.Random(0)
    for _ in range(200):
        with pytest.raises(WireError):
            wire.decode(draw.randbytes(draw.randrange(120)), LAYOUT)


@pytest.mark.parametrize("place", range(9))
def test_a_flipped_byte_of_the_length_or_the_first_brace_is_refused(message, place):
    with pytest.raises(WireError):
        wire.decode(message[:place] + bytes([message[place] ^ 0x80]) + message[place + 1 :], LAYOUT)


def test_a_corrupted_byte_gives_a_parcel_or_a_wire_error_and_nothing_else(message):
    draw = random.Random(1)
    refused = 0
    for _ in range(200):
        place, value = draw.randrange(len(message)), draw.randrange(256)
        try:
            assert isinstance(wire.decode(message[:place] + bytes([value]) + message[place + 1 :], LAYOUT), Parcel)
        except WireError:
            refused += 1
    assert refused > 50


def test_nested_json_is_refused():
    deep = json.dumps({"__metadata__": {"parcel": "[" * 100_000}}).encode()
    with pytest.raises(WireError):
        wire.decode(len(deep).to_bytes(8, "little") + deep, LAYOUT)


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
