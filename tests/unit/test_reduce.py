"""Weighted means of three numbers, by hand; folding in chunks gives the same bits."""

import pytest
import torch

from stratafl.core.layers import Layer
from stratafl.core.layout import Layout, Rows, Spec
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Mask, Parcel
from stratafl.core.reduce import add_rows, add_rows_by_group, add_weights, mean_or_hold
from stratafl.core.round import Round, Setup
from stratafl.errors import UnknownNameError
from stratafl.policies import Mean

NAN = float("nan")
# Two layers of one tensor with three columns each.
LAYOUT = Layout(
    [Spec("a", (3,), 0, True), Spec("b", (3,), 1, True)],
    [Layer(name, "other", name, name == "b", None, (name,)) for name in "ab"],
)
ROUND = Round(Setup(LAYOUT, {}, lambda ids: {}, 3, 1), 0)
HELD = {"a": torch.tensor([-1.0, -2.0, -3.0]), "b": torch.tensor([-4.0, -5.0, -6.0])}


def block(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)


A = block([1.0, 2.0, 3.0], [5.0, 6.0, 7.0], [10.0, 20.0, 30.0])


def merged(rows: Rows, samples: list[int], mask: Mask | None = None, weights: str = "samples", chunk: int = 99) -> Rows:
    """What the server holds after clients uploaded rows, folded in chunks."""
    step = Mean(weights=weights)
    up = Parcel({"theta": Field(rows, mask=mask), "samples": Field(torch.tensor(samples))})
    up = Parcel({name: field for name, field in up.items() if f"up.{name}" in step.reads})
    server, sums = {"theta": HELD}, {}
    for start in range(0, len(samples), chunk):
        some = slice(start, start + chunk)
        sums = step.fold(ROUND, server, sums, up.pick(some), torch.arange(len(samples))[some])
    return step.finish(ROUND, server, sums)["theta"]


def test_a_mean_weighted_by_samples():
    # (1·1 + 3·5 + 4·10) / 8, (1·2 + 3·6 + 4·20) / 8, (1·3 + 3·7 + 4·30) / 8
    found = merged({"a": A}, [1, 3, 4])
    assert found["a"].tolist() == [7.0, 12.5, 18.0]


def test_uniform_weights_ask_for_no_count_of_samples():
    assert Mean(weights="uniform").reads == ("up.theta", "theta")
    assert Mean(weights="samples").reads == ("up.theta", "up.samples", "theta")


def test_a_mean_is_weighted_by_samples_and_holds_what_nobody_sent_unless_it_is_told_otherwise():
    assert Mean() == Mean("theta", weights="samples", unsent="held")
    assert Mean("phi").reads == ("up.phi", "up.samples", "phi")
    assert Mean("phi").writes == ("phi",)


def test_a_mean_of_an_unknown_kind_is_refused():
    with pytest.raises(UnknownNameError, match=r"unknown Mean.unsent 'hled'.*hoose one of: held, zero"):
        Mean(unsent="hled")


def test_another_field_than_the_model_is_merged_under_its_own_name():
    step, server = Mean("phi"), {"phi": HELD, "theta": {"a": torch.zeros(3), "b": torch.zeros(3)}}
    up = Parcel({"phi": Field({"a": A}), "samples": Field(torch.tensor([1, 3, 4]))})
    found = step.finish(ROUND, server, step.fold(ROUND, server, {}, up, torch.arange(3)))
    assert list(found) == ["phi"]
    assert found["phi"]["a"].tolist() == [7.0, 12.5, 18.0]
    assert found["phi"]["b"].tolist() == [-4.0, -5.0, -6.0]


def test_uniform_weights_ignore_the_samples():
    rows = block([1.0, 2.0, 3.0], [5.0, 6.0, 7.0], [6.0, 1.0, 5.0])
    assert merged({"a": rows}, [1, 3, 400], weights="uniform")["a"].tolist() == [4.0, 3.0, 5.0]


def test_layers_that_nobody_sends_are_held():
    assert merged({"a": A}, [1, 3, 4])["b"].tolist() == [-4.0, -5.0, -6.0]


def test_a_layer_mask_leaves_out_those_who_did_not_send():
    sent = LayerMask(torch.tensor([[True, True], [False, True], [True, False]]))
    rows = {
        "a": block([1.0, 2.0, 3.0], [NAN] * 3, [9.0, 10.0, 11.0]),
        "b": block([0.0, 1.0, 2.0], [4.0, 5.0, 6.0], [NAN] * 3),
    }
    found = merged(rows, [1, 3, 3], sent)
    assert found["a"].tolist() == [7.0, 8.0, 9.0]  # (1 + 3·9) / 4 and so on, without the second client
    assert found["b"].tolist() == [3.0, 4.0, 5.0]  # (0 + 3·4) / 4 and so on, without the third


def test_a_column_mask_counts_column_by_column_and_holds_the_rest():
    sent = torch.tensor([[True, False, False], [True, True, False], [False, True, False]])
    rows = torch.where(sent, A, NAN)
    found = merged({"a": rows}, [1, 3, 4], ColumnMask({"a": sent}))["a"]
    assert found.tolist() == [4.0, 14.0, -3.0]  # (1 + 3·5) / 4, (3·6 + 4·20) / 7, nobody


def test_with_unsent_zero_a_column_that_was_not_sent_counts_as_0():
    sent = torch.tensor([[True, False, False], [True, True, False], [False, True, False]])
    step, server = Mean(unsent="zero"), {"theta": HELD}
    field = Field({"a": torch.where(sent, A, NAN)}, mask=ColumnMask({"a": sent}))
    up = Parcel({"theta": field, "samples": Field(torch.tensor([1, 3, 4]))})
    found = step.finish(ROUND, server, step.fold(ROUND, server, {}, up, torch.arange(3)))["theta"]
    assert found["a"].tolist() == [2.0, 12.25, 0.0]  # (1 + 3·5) / 8, (3·6 + 4·20) / 8, 0 / 8


def test_a_layer_that_every_mask_leaves_out_is_held():
    sent = LayerMask(torch.tensor([[True, False]] * 3))
    found = merged({"a": A, "b": torch.full((3, 3), NAN)}, [1, 3, 4], sent)
    assert found["b"].tolist() == [-4.0, -5.0, -6.0]
    assert found["a"].tolist() == [7.0, 12.5, 18.0]


@pytest.mark.parametrize("mask", [None, "layers", "columns"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 6])
def test_chunks_of_any_size_give_the_same_bits(mask, chunk):
    draw = torch.Generator().manual_seed(0)
    rows = {n: torch.randn(7, 3, generator=draw) * 10.0 ** torch.arange(-3, 4)[:, None] for n in "ab"}
    chosen = torch.rand(7, 2, generator=draw) > 0.4
    columns = {n: torch.rand(7, 3, generator=draw) > 0.4 for n in "ab"}
    sent = {None: None, "layers": LayerMask(chosen), "columns": ColumnMask(columns)}[mask]
    samples = [3, 17, 5, 101, 9, 2, 31]
    whole, parts = merged(rows, samples, sent), merged(rows, samples, sent, chunk=chunk)
    for name in "ab":
        assert whole[name].dtype == torch.float32
        assert torch.equal(whole[name], parts[name])


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5])
def test_clients_are_added_one_after_the_other(chunk):
    # Each one is lost beside 1e16; three of them added up first would not be.
    rows = block([1e16], [1.0], [1.0], [1.0], [-1e16])
    assert merged({"a": rows}, [1] * 5, chunk=chunk)["a"].tolist() == [0.0, 0.0, 0.0]


PLACES, SAMPLES = torch.tensor([1, 0, 1, 1, 0, 3, 1]), torch.tensor([3, 17, 5, 101, 9, 2, 31])


def test_every_group_has_the_sum_of_its_own_rows():
    draw = torch.Generator().manual_seed(0)
    rows = {"a": torch.randn(7, 3, generator=draw), "scalar": torch.randn(7, generator=draw)}
    found = add_rows_by_group({}, PLACES, 4, SAMPLES, rows)
    for name, x in rows.items():
        for m in range(4):
            mine = torch.eq(PLACES, m)
            alone = add_rows({}, SAMPLES[mine], {name: x[mine]}, None)[name]
            torch.testing.assert_close(found[name][m], alone, rtol=1e-15, atol=1e-15)
    assert found["a"][2].tolist() == [0.0] * 3
    assert found["a"].dtype == torch.float64


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 6])
def test_clients_of_a_group_are_added_one_after_the_other(chunk):
    # Each one is lost beside 1e16; three of them added up first would not be.
    rows, places = block([1e16], [7.0], [1.0], [1.0], [1.0], [-1e16]), torch.tensor([1, 0, 1, 1, 1, 1])
    total: Rows = {}
    for some in torch.arange(6).split(chunk):
        total = add_rows_by_group(total, places[some], 2, torch.ones(len(some)), {"a": rows[some]})
    assert total["a"].flatten().tolist() == [7.0, 0.0]


def test_a_row_that_overflowed_spoils_no_group_but_its_own_and_nothing_given_is_changed():
    rows, total = torch.ones(7, 1), {"a": torch.zeros(4, 1, dtype=torch.float64)}
    rows[5] = float("inf")
    found = add_rows_by_group(total, PLACES, 4, SAMPLES, {"a": rows})["a"]
    assert found.flatten().tolist() == [26.0, 140.0, 0.0, float("inf")]
    assert total["a"].flatten().tolist() == [0.0] * 4


def test_sums_are_kept_in_float64():
    big = block([2.0**24], [1.0], [1.0])
    total = add_rows({}, torch.tensor([1, 1, 1]), {"a": big}, None)["a"]
    assert total.dtype == torch.float64
    assert total.tolist() == [2.0**24 + 2]  # in float32 both ones would be lost


def test_weights_are_not_rounded_to_the_models_precision():
    weights = torch.tensor([2**24 + 1, 1])
    total = add_rows({}, weights, {"a": block([1.0], [0.0])}, None)["a"]
    assert total.tolist() == [2.0**24 + 1]
    assert add_weights({}, weights, {"a": block([1.0], [0.0])}, None)["a"].item() == 2.0**24 + 2


def test_adding_changes_neither_the_total_nor_the_rows():
    total = {"a": torch.zeros(3, dtype=torch.float64)}
    rows = {"a": A.clone()}
    added = add_rows(total, torch.tensor([1.0, 1.0, 1.0]), rows, None)
    assert added["a"].tolist() == [16.0, 28.0, 40.0]
    assert total["a"].tolist() == [0.0] * 3
    assert torch.equal(rows["a"], A)


def test_blocks_that_are_not_among_the_rows_keep_their_totals():
    total, ones, everything = {"b": torch.tensor([5.0])}, torch.ones(2), torch.tensor([[True], [True]])
    rows, places = {"a": block([1.0], [2.0])}, torch.tensor([0, 0])
    added = (
        add_rows(total, ones, rows, None),
        add_rows_by_group(total, places, 1, ones, rows),
        add_weights(total, ones, rows, None),
        add_weights(total, ones, rows, {"a": everything}),
    )
    assert [float(sums["a"]) for sums in added] == [3.0, 3.0, 2.0, 2.0]
    assert all(sums["b"] is total["b"] for sums in added)


def test_blocks_with_different_totals_have_different_weights():
    total = {"a": torch.tensor(4.0, dtype=torch.float64)}
    found = add_weights(total, torch.tensor([1.0, 2.0]), {n: block([0.0], [0.0]) for n in "ab"}, None)
    assert {name: float(x) for name, x in found.items()} == {"a": 7.0, "b": 3.0}


def test_weights_below_one_are_weights_too():
    small = torch.tensor([0.5, 0.25, 1e-200], dtype=torch.float64)
    found = mean_or_hold({"a": torch.tensor([3.0, 2.0, 6.0], dtype=torch.float64) * small}, {"a": small}, HELD)
    assert found["a"].tolist() == [3.0, 2.0, 6.0]


def test_holding_keeps_type_and_blocks_of_the_server():
    found = mean_or_hold(
        {"a": torch.tensor([6.0, 5.0, 0.0], dtype=torch.float64)},
        {"a": torch.tensor([3.0, 2.0, 0.0], dtype=torch.float64)},
        HELD,
    )
    assert found["a"].tolist() == [2.0, 2.5, -3.0]
    assert found["a"].dtype == torch.float32
    assert list(found) == ["a", "b"]
    assert HELD["a"].tolist() == [-1.0, -2.0, -3.0]


def test_clients_without_samples_leave_the_server_as_it_was():
    assert merged({"a": A}, [0, 0, 0])["a"].tolist() == [-1.0, -2.0, -3.0]
