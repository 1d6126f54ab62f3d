"""The form of a parcel: what both sides know of it before it is sent; parcels that no message can carry are refused."""

from dataclasses import replace

import pytest
import torch

from stratafl.core.describe import describe
from stratafl.core.form import FieldForm, Form, TensorForm, form_of
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Parcel
from stratafl.errors import WireError
from stratafl.models import build

LAYOUT = describe(build("convnorm", shape=(1, 4, 4), classes=3, channels=2))
BIAS = {"fc.bias": torch.zeros(1, 3)}
ALL = LayerMask(torch.ones(1, 5, dtype=torch.bool))


def test_a_form_by_hand():
    some = ColumnMask({"fc.bias": torch.tensor([True, False, True])})
    parcel = Parcel(
        {
            "theta": Field({"fc.weight": torch.zeros(1, 3, 2), "fc.bias": torch.zeros(1, 3).double()}, mask=ALL),
            "sparse": Field({"fc.bias": torch.zeros(3).half()}, common=True, mask=some),
            "others": Field({"fc.bias": torch.zeros(4, 3)}, common=True),
            "samples": Field(torch.tensor([12])),
        }
    )
    assert form_of(parcel, LAYOUT) == Form(
        {
            "theta": FieldForm(
                False, "layers", {"fc.weight": TensorForm("F32", (3, 2)), "fc.bias": TensorForm("F64", (3,))}
            ),
            "sparse": FieldForm(True, "columns", {"fc.bias": TensorForm("F16", (3,))}),
            "others": FieldForm(True, "none", {"fc.bias": TensorForm("F32", (4, 3))}),
            "samples": FieldForm(False, "none", TensorForm("I64", ())),
        }
    )


def test_what_a_message_can_hold_by_hand():
    some = ColumnMask({"conv1.weight": torch.zeros(2, 1, 3, 3, dtype=torch.bool)})
    parcel = Parcel(
        {
            "theta": Field(BIAS, mask=ALL),
            "sparse": Field({"conv1.weight": torch.zeros(2, 1, 3, 3).double()}, common=True, mask=some),
            "samples": Field(torch.tensor([12], dtype=torch.int32)),
        }
    )
    held = {path: (entry.dtype, entry.shape, entry.bytes) for path, entry in form_of(parcel, LAYOUT).entries(LAYOUT)}
    assert held == {
        "value/theta/fc.bias": ("F32", (3,), 12),
        "mask/theta": ("U8", (1,), 1),  # five layers
        "value/sparse/conv1.weight": ("F64", (2, 1, 3, 3), 144),
        "mask/sparse/conv1.weight": ("U8", (3,), 3),  # eighteen columns
        "value/samples": ("I32", (), 4),
    }


def test_what_a_mask_selects_is_not_part_of_the_form_and_neither_are_values():
    other = Parcel({"x": Field({"fc.bias": torch.ones(1, 3)}, mask=LayerMask(~ALL.sent))})
    assert form_of(Parcel({"x": Field(BIAS, mask=ALL)}), LAYOUT) == form_of(other, LAYOUT)


FIELD = FieldForm(False, "layers", {"fc.bias": TensorForm("F32", (3,))})
OTHERS = {
    "nothing": Form({}),
    "a name": Form({"y": FIELD}),
    "a flag": Form({"x": replace(FIELD, common=True)}),
    "a mask": Form({"x": replace(FIELD, mask="none")}),
    "a block": Form({"x": replace(FIELD, value={"fc.weight": TensorForm("F32", (3,))})}),
    "a tensor": Form({"x": replace(FIELD, value=TensorForm("F32", (3,)))}),
    "a type": Form({"x": replace(FIELD, value={"fc.bias": TensorForm("F64", (3,))})}),
    "a shape": Form({"x": replace(FIELD, value={"fc.bias": TensorForm("F32", (3, 1))})}),
    "one more": Form({"x": FIELD, "y": FIELD}),
}


def test_digests_of_different_forms_differ():
    digests = {form.digest for form in OTHERS.values()} | {Form({"x": FIELD}).digest}
    assert len(digests) == len(OTHERS) + 1
    assert {len(digest) for digest in digests} == {16}


def test_the_order_of_names_does_not_change_the_digest():
    other = FieldForm(False, "none", TensorForm("F32", ()))
    assert Form({"x": FIELD, "y": other}).digest == Form({"y": other, "x": FIELD}).digest
    assert Form({"x": FIELD, "y": other}).digest != Form({"x": other, "y": FIELD}).digest


REFUSED = {
    "a tensor that the model does not have": (Field({"fc.b": torch.ones(1, 3)}), "'fc.b', which this model does not"),
    "a wrong shape": (Field({"fc.bias": torch.ones(1, 4)}), r"shape \(4,\), but this model has \(3,\)"),
    "rows of others with a mask": (
        Field({"fc.bias": torch.ones(1, 2, 3)}, mask=ALL),
        r"shape \(2, 3\), but this model has \(3,\)",
    ),
    "rows of rows": (Field({"fc.bias": torch.ones(1, 2, 2, 3)}), r"shape \(2, 2, 3\), but this model has \(3,\)"),
    "a row of another shape": (Field({"fc.bias": torch.ones(1, 3, 4)}), r"shape \(3, 4\), but this model has \(3,\)"),
    "two clients": (Field({"fc.bias": torch.ones(2, 3)}), "a message is for one client, but this parcel is for 2"),
    "no client": (Field(torch.ones(0, 3)), "a message is for one client, but this parcel is for 0"),
    "no client axis": (Field(torch.tensor(1.0)), "this value has no client axis"),
    "complex numbers": (
        Field(torch.ones(1, dtype=torch.complex64)),
        "holds torch.complex64, which a message cannot carry; choose one of: float64, float32",
    ),
    "a masked tensor": (Field(torch.ones(1, 5), mask=ALL), "is a tensor with a mask of layers"),
    "whole numbers with a mask": (Field({"fc.bias": torch.ones(1, 3).long()}, mask=ALL), "is I64, which has no NaN"),
    "a mask of numbers": (Field(BIAS, mask=LayerMask(torch.ones(1, 5))), r"mask of torch.float32 \(1, 5\)"),
    "a mask of other layers": (
        Field(BIAS, mask=LayerMask(torch.ones(1, 4, dtype=torch.bool))),
        r"bool \(1, 4\), not torch.bool \(1, 5\)",
    ),
    "a common mask in a field for each": (
        Field(BIAS, mask=LayerMask(torch.ones(5, dtype=torch.bool))),
        r"\(5,\), not torch.bool \(1, 5\)",
    ),
    "a mask of other columns": (
        Field(BIAS, mask=ColumnMask({"fc.bias": torch.ones(1, 1, dtype=torch.bool)})),
        r"\(1, 1\), not torch.bool \(1, 3\)",
    ),
    "a mask without a block": (Field(BIAS, mask=ColumnMask({})), "'fc.bias' either in its blocks or in its mask"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_parcel_that_no_message_can_carry_is_refused(case):
    field, reason = REFUSED[case]
    with pytest.raises(WireError, match=reason) as refusal:
        form_of(Parcel({"x": field}), LAYOUT)
    assert str(refusal.value).startswith("field 'x'")
    assert "\n" not in str(refusal.value)


def test_a_name_with_a_slash_is_refused():
    with pytest.raises(WireError, match="field 'a/b' has a '/' in its name"):
        form_of(Parcel({"a/b": Field(torch.ones(1))}), LAYOUT)
