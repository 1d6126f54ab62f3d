"""Parcels: what of a field was sent, and what it weighs, worked out by hand."""

import pytest
import torch
from torch import nn

from stratafl.core.describe import describe
from stratafl.core.layout import Rows
from stratafl.core.parcel import Bytes, ColumnMask, Field, LayerMask, Parcel, count_bytes, join_parcels
from stratafl.errors import UnknownNameError, WireError
from stratafl.models import build

# conv1.weight has 18 columns, conv2.weight 36, each BatchNorm tensor 2, fc.weight 6, fc.bias 3; five layers.
LAYOUT = describe(build("convnorm", shape=(1, 4, 4), classes=3, channels=2))


def rows(*names: str, lead: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> Rows:
    """Blocks of these tensors, counting up from 1."""
    return {n: torch.arange(1, 1 + size(n, lead), dtype=dtype).reshape(*lead, *LAYOUT.specs[n].shape) for n in names}


def size(name: str, lead: tuple[int, ...] = ()) -> int:
    return torch.Size((*lead, *LAYOUT.specs[name].shape)).numel()


def first_columns(name: str, *counts: int) -> torch.Tensor:
    """For each client a mask of so many columns of the tensor."""
    place = torch.arange(size(name)).reshape(1, *LAYOUT.specs[name].shape)
    return place < torch.tensor(counts).reshape(-1, *(1,) * len(LAYOUT.specs[name].shape))


def layer_mask(*names: str) -> torch.Tensor:
    return torch.tensor([name in names for name in LAYOUT.names])


TWO_LAYERS = ("conv1.weight", "fc.weight", "fc.bias")
# (field, clients, bytes of each client, bytes of each layer over all clients, other bytes)
WEIGHTS = {
    "common": (Field(rows("conv1.weight", "fc.bias"), common=True), 3, [84] * 3, {"conv1": 216, "fc": 36}, 0),
    "each": (Field(rows("conv1.weight", "fc.bias", lead=(3,))), 3, [84] * 3, {"conv1": 216, "fc": 36}, 0),
    "statistics": (Field(rows("bn1.weight", "bn1.running_var", lead=(2,))), 2, [16, 16], {"bn1": 32}, 0),
    "layer mask": (
        Field(
            rows(*TWO_LAYERS, lead=(3,)),
            mask=LayerMask(torch.stack([layer_mask("conv1"), layer_mask("fc"), layer_mask()])),
        ),
        3,
        [72 + 1, 36 + 1, 1],
        {"conv1": 72, "fc": 36},
        3,
    ),
    "common layer mask": (
        Field(rows(*TWO_LAYERS), common=True, mask=LayerMask(layer_mask("fc", "bn1"))),
        2,
        [37, 37],
        {"fc": 72},
        2,
    ),
    "column mask": (
        # 18 columns need a bitmap of three bytes, three columns one of one byte.
        Field(
            rows("conv1.weight", "fc.bias", lead=(2,)),
            mask=ColumnMask(
                {"conv1.weight": first_columns("conv1.weight", 5, 18), "fc.bias": first_columns("fc.bias", 0, 2)}
            ),
        ),
        2,
        [5 * 4 + 3 + 0 + 1, 18 * 4 + 3 + 2 * 4 + 1],
        {"conv1": 23 + 75, "fc": 1 + 9},
        0,
    ),
    "common column mask": (
        Field(
            rows("conv2.weight"), common=True, mask=ColumnMask({"conv2.weight": first_columns("conv2.weight", 7)[0]})
        ),
        3,
        [7 * 4 + 5] * 3,
        {"conv2": 3 * 33},
        0,
    ),
    "column mask of float64": (
        Field(
            rows("fc.bias", lead=(1,), dtype=torch.float64),
            mask=ColumnMask({"fc.bias": first_columns("fc.bias", 2)}),
        ),
        1,
        [2 * 8 + 1],
        {"fc": 17},
        0,
    ),
    "common rows of others": (Field(rows("fc.bias", lead=(4,)), common=True), 2, [48, 48], {"fc": 96}, 0),
    "int64 of each": (Field(torch.tensor([5, 6, 7])), 3, [8] * 3, {}, 24),
    "float16 vectors": (Field(torch.zeros(2, 3, dtype=torch.float16)), 2, [6, 6], {}, 12),
    "common float64": (Field(torch.zeros(4, dtype=torch.float64), common=True), 3, [32] * 3, {}, 96),
    "common scalar": (Field(torch.tensor(1.0), common=True), 2, [4, 4], {}, 8),
    "mixed types": (
        Field(rows("conv1.weight", lead=(2,), dtype=torch.float64) | rows("fc.bias", lead=(2,), dtype=torch.float16)),
        2,
        [144 + 6] * 2,
        {"conv1": 288, "fc": 12},
        0,
    ),
    "no layer": (Field({}), 2, [0, 0], {}, 0),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_bytes_by_hand(case):
    field, clients, each, layers, other = WEIGHTS[case]
    counted = count_bytes(Parcel({"x": field}), LAYOUT, clients)
    assert counted.clients.tolist() == each
    assert counted.layers.tolist() == [layers.get(name, 0) for name in LAYOUT.names]
    assert (counted.other, counted.total) == (other, sum(each))
    assert counted.total == int(counted.layers.sum()) + counted.other


# How many values of conv1, conv2 and fc all clients send together.
VALUES = {
    "common": (54, 0, 9),  # three clients, each 18 and 3
    "each": (54, 0, 9),
    "layer mask": (18, 0, 9),
    "column mask": (5 + 18, 0, 0 + 2),
    "common column mask": (0, 3 * 7, 0),
    "common rows of others": (0, 0, 2 * 4 * 3),
    "int64 of each": (0, 0, 0),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_by_hand(case):
    field, clients, *_ = WEIGHTS[case]
    values = count_bytes(Parcel({"x": field}), LAYOUT, clients).values
    assert {name: int(x) for name, x in zip(LAYOUT.names, values, strict=True)} == {
        **dict.fromkeys(("bn1", "bn2"), 0),
        **dict(zip(("conv1", "conv2", "fc"), VALUES[case], strict=True)),
    }


def test_fields_of_a_parcel_add_up():
    parcel = Parcel({k: WEIGHTS[k][0] for k in ("layer mask", "common", "int64 of each")})
    assert count_bytes(parcel, LAYOUT, 3).clients.tolist() == [73 + 84 + 8, 37 + 84 + 8, 1 + 84 + 8]


def test_an_empty_parcel_weighs_nothing():
    assert count_bytes(Parcel({}), LAYOUT, 2).clients.tolist() == [0, 0]


def test_a_layer_mask_of_nine_layers_takes_two_bytes():
    layout = describe(nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(9))))
    field = Field({"0.weight": torch.ones(1, 1, 1)}, mask=LayerMask(torch.ones(1, 9, dtype=torch.bool)))
    assert count_bytes(Parcel({"x": field}), layout, 1).total == 4 + 2


def test_bytes_of_groups_add_up():
    one = Bytes(torch.tensor([1, 2]), torch.tensor([3, 0]), 4, torch.tensor([1, 0]))
    both = one + Bytes(torch.tensor([5]), torch.tensor([0, 6]), 7, torch.tensor([0, 2]))
    assert both.values.tolist() == [1, 2]
    assert (both.clients.tolist(), both.layers.tolist(), both.other, both.total) == ([1, 2, 5], [3, 6], 11, 8)


# What was sent


def masked(mask: str) -> Field:
    if mask == "layers":
        sent = LayerMask(torch.stack([layer_mask("conv1"), layer_mask("fc")]))
    else:
        sent = ColumnMask({n: first_columns(n, 1, 2) for n in ("conv1.weight", "fc.bias")})
    return Field(rows("conv1.weight", "fc.bias", lead=(2,)), mask=sent)


def test_sent_says_what_was_sent():
    assert {n: x.flatten().tolist() for n, x in masked("layers").sent(LAYOUT).items()} == {
        "conv1.weight": [True, False],
        "fc.bias": [False, True],
    }
    assert masked("columns").sent(LAYOUT)["fc.bias"].tolist() == [[True, False, False], [True, True, False]]
    assert Field(rows("fc.bias", lead=(2,))).sent(LAYOUT) is None


@pytest.mark.parametrize("mask", ["layers", "columns"])
def test_poison_reaches_all_that_was_not_sent_and_nothing_else(mask):
    field = masked(mask)
    poisoned = field.poisoned(LAYOUT)
    for name, block in field.rows.items():
        sent = field.sent(LAYOUT)[name].expand(block.shape)
        assert torch.equal(poisoned.rows[name].isnan(), ~sent)
        assert torch.equal(poisoned.rows[name][sent], block[sent])
        assert not block.isnan().any()
    assert poisoned.mask is field.mask


def test_without_a_mask_nothing_is_poisoned():
    parcel = Parcel({"a": Field(torch.ones(2)), "b": Field(rows("fc.bias"), common=True)})
    poisoned = parcel.poisoned(LAYOUT)
    assert poisoned["a"].tensor.tolist() == [1.0, 1.0]
    assert torch.equal(poisoned["b"].rows["fc.bias"], rows("fc.bias")["fc.bias"])


# Parts of a parcel


def whole() -> Parcel:
    return Parcel(
        {
            "layers": masked("layers"),
            "columns": masked("columns"),
            "common": Field(rows("fc.bias"), common=True),
            "samples": Field(torch.tensor([10, 20])),
        }
    )


@pytest.mark.parametrize("index", [torch.tensor([1]), slice(1, 2)])
def test_picking_a_client_takes_its_values_and_its_masks(index):
    one = whole().pick(index)
    assert one["samples"].tensor.tolist() == [20]
    assert one["layers"].mask.sent.tolist() == [layer_mask("fc").tolist()]
    assert one["columns"].mask.sent["fc.bias"].tolist() == [[True, True, False]]
    assert torch.equal(one["columns"].rows["fc.bias"], masked("columns").rows["fc.bias"][1:])
    assert one["common"].rows["fc.bias"].shape == (3,)
    assert one["common"].common


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_joining_is_the_inverse_of_picking(order):
    parcel, joined = whole(), join_parcels([whole().pick(torch.tensor([i])) for i in order])
    index = torch.tensor(order)
    assert torch.equal(joined["samples"].tensor, parcel["samples"].tensor[index])
    assert torch.equal(joined["layers"].mask.sent, parcel["layers"].mask.sent[index])
    assert torch.equal(joined["common"].rows["fc.bias"], parcel["common"].rows["fc.bias"])
    for name in ("conv1.weight", "fc.bias"):
        assert torch.equal(joined["layers"].rows[name], parcel["layers"].rows[name][index])
        assert torch.equal(joined["columns"].mask.sent[name], parcel["columns"].mask.sent[name][index])
    assert count_bytes(joined, LAYOUT, 2).clients.tolist() == count_bytes(parcel, LAYOUT, 2).clients[index].tolist()


def test_fields_with_different_kinds_of_masks_cannot_be_joined():
    parts = [Parcel({"x": masked("layers")}), Parcel({"x": masked("columns")})]
    with pytest.raises(WireError):
        join_parcels(parts)


def test_a_common_field_is_that_of_the_first_group():
    first, second = whole(), whole()
    assert join_parcels([first, second])["common"] is first["common"]


def test_a_parcel_on_another_device_keeps_its_masks():
    moved = whole().to(torch.device("cpu"))
    assert torch.equal(moved["layers"].mask.sent, whole()["layers"].mask.sent)
    assert torch.equal(moved["columns"].mask.sent["fc.bias"], whole()["columns"].mask.sent["fc.bias"])


def test_joining_one_parcel_is_that_parcel():
    parcel = whole()
    assert join_parcels([parcel]) is parcel


def test_a_parcel_is_a_mapping_that_names_its_fields():
    parcel = whole()
    assert list(parcel) == ["layers", "columns", "common", "samples"]
    assert len(parcel) == 4
    assert "samples" in parcel
    assert "theta" not in parcel
    assert repr(parcel) == "Parcel(layers, columns, common, samples)"
    with pytest.raises(UnknownNameError, match=r"'sample'.*'samples'"):
        parcel["sample"]


def test_a_field_is_asked_for_by_kind():
    with pytest.raises(WireError):
        _ = Field(torch.ones(1)).rows
    with pytest.raises(WireError):
        _ = Field({}).tensor
