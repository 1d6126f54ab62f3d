"""Changed messages: nothing is accepted that differs from what was sent, and nothing but a `WireError` is raised.

100,000 messages of eight kinds of parcels (seed 0; `make test` takes 4,000 of another seed). Half of them keep the
checksum that they had, and all are refused. For the other half the checksum is computed anew and the digest of the form
is mostly the right one, as by somebody who wants to deceive. What is accepted of these has the fields, flags, kinds of
masks, types and shapes that were sent, and is the only encoding of what it holds. Values differ, and so may the choice
of columns or layers where the sender is free to choose: only the sender knows it, so it is a value like any other.
Nine of ten with a new checksum are refused; the others hold other values, and a few select other columns or layers.
"""

import random
from collections import Counter

import pytest
import torch
from parcel_mutations import LAYOUT, MESSAGES, mutated

from stratafl.core import wire
from stratafl.core.form import Form, form_of
from stratafl.core.parcel import Parcel
from stratafl.core.state import stored_bytes, tensors
from stratafl.errors import WireError

pytestmark = pytest.mark.slow


def outcomes(cases: int, seed: int) -> Counter[str]:
    """What becomes of so many changed messages, half of them with a checksum computed anew."""
    draw, counted = random.Random(seed), Counter[str]()
    for case in range(cases):
        parcel, message, form = MESSAGES[case // 2 % len(MESSAGES)]
        fresh = case % 2 == 1
        data = message
        while data == message:
            data = mutated(draw, parcel, message, form, fresh)
        try:
            found = wire.decode(data, LAYOUT, form)
        except WireError as error:
            assert_one_line(str(error))
            counted["anew: refused" if fresh else "stale: refused"] += 1
            continue
        assert fresh, f"case {case}: accepted with a checksum that was not computed anew"
        check_accepted(found, data, parcel, form)
        counted["anew: other selection" if selection(found) != selection(parcel) else "anew: other values"] += 1
    return counted


def assert_one_line(message: str) -> None:
    assert message.isprintable(), message


def check_accepted(found: Parcel, data: bytes, sent: Parcel, form: Form) -> None:
    """It has the form of what was sent, takes as much memory, and has no other encoding."""
    assert form_of(found, LAYOUT) == form
    assert list(found) == list(sent)
    assert [stored_bytes({"": f.value}) for f in found.values()] == [stored_bytes({"": f.value}) for f in sent.values()]
    assert all(not x.requires_grad and x.is_contiguous() for f in found.values() for x in tensors({"": f.value}))
    assert wire.encode(found, LAYOUT) == data


def selection(parcel: Parcel) -> list[object]:
    """Which columns were sent, of every field with a mask."""
    masks = (field.sent(LAYOUT) for field in parcel.values())
    return [sent if sent is None else {n: x.tolist() for n, x in sent.items()} for sent in masks]


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each tensor that is made where nothing was sent."""
    full, sizes = torch.full, [0]

    def counting(*given: object, **options: object) -> torch.Tensor:
        made = full(*given, **options)
        sizes[0] = max(sizes[0], made.numel() * made.element_size())
        return made

    monkeypatch.setattr(wire.torch, "full", counting)
    return sizes


@pytest.mark.parametrize(
    ("cases", "seed"), [(4_000, 1), pytest.param(100_000, 0, marks=pytest.mark.nightly)], ids=["quick", "whole"]
)
def test_changed_messages_are_refused_or_differ_in_values_alone(cases, seed, allocated):
    counted = outcomes(cases, seed)
    assert counted["stale: refused"] == cases / 2
    assert counted["anew: refused"] > cases / 3
    assert counted["anew: other values"] > cases / 30
    assert counted.total() == cases
    assert allocated[0] <= 9 * 4  # never more than the largest block with a mask
