"""The kernels of the matrix against explicit loops over its columns."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stratafl.core.describe import describe
from stratafl.core.layers import Layer
from stratafl.core.layout import Layout, Rows, Spec
from stratafl.errors import UnknownNameError
from stratafl.models import build

C, N = 3, 4


@pytest.fixture(scope="module")
def layout() -> Layout:
    return described()


def described(granularity: str = "module", buffers: str = "follow") -> Layout:
    return describe(build("convnorm", shape=(1, 4, 4), classes=3, channels=2), granularity=granularity, buffers=buffers)


def draw(layout: Layout, count: int, seed: int, dtype: torch.dtype = torch.float64) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(count, *s.shape, generator=generator, dtype=dtype) for n, s in layout.specs.items()}


def matrix(rows: Rows) -> list[list[float]]:
    """The rows as one list of numbers per client, in the order of the dictionary."""
    return torch.cat([block.flatten(1) for block in rows.values()], 1).tolist()


def column_specs(layout: Layout) -> list[Spec]:
    """For each column of `matrix`, the tensor it belongs to."""
    return [spec for spec in layout.specs.values() for _ in range(spec.size)]


def close(found: Tensor, expected: list) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), rtol=1e-12, atol=1e-12)


def test_columns_are_the_trainable_ones(layout):
    # Two 3×3 convolutions 1→2 and 2→2, two BatchNorms of two channels, a head 2→3.
    assert layout.columns == 18 + 4 + 36 + 4 + 9
    assert len(column_specs(layout)) == layout.columns + 8
    assert repr(layout) == "Layout(5 layers, 71 columns, buffers='follow')"


def test_spread_puts_one_value_per_layer_on_its_columns(layout):
    values = torch.arange(2.0 * 5).reshape(2, 5)
    spread = layout.spread(values, layout.specs)
    for name, spec in layout.specs.items():
        assert spread[name].shape == (2, *(1,) * len(spec.shape))
        assert spread[name].flatten().tolist() == [float(spec.layer), 5.0 + spec.layer]


def test_spread_without_a_client_axis_and_on_some_names(layout):
    spread = layout.spread(torch.arange(5.0), ["fc.bias", "bn1.running_mean"])
    assert {name: (tuple(x.shape), x.item()) for name, x in spread.items()} == {
        "bn1.running_mean": ((1,), 1.0),
        "fc.bias": ((1,), 4.0),
    }


@pytest.mark.parametrize("lead", [(), (2,)])
def test_spread_on_a_parameter_without_axes(lead):
    layers = [Layer(name, "other", name, False, None, (name,)) for name in "ab"]
    layout = Layout([Spec("a", (3,), 0, True), Spec("b", (), 1, True)], layers)
    spread = layout.spread(torch.arange(2.0).expand(*lead, 2), ["a", "b"])
    assert {name: x.shape for name, x in spread.items()} == {"a": (*lead, 1), "b": lead}
    assert spread["b"].flatten().tolist() == [1.0] * len(spread["b"].flatten())


def test_dot_sums_the_trainable_columns_of_each_layer(layout):
    a, b = draw(layout, C, 1), draw(layout, C, 2)
    expected = [[0.0] * 5 for _ in range(C)]
    for c, (one, other) in enumerate(zip(matrix(a), matrix(b), strict=True)):
        for spec, x, y in zip(column_specs(layout), one, other, strict=True):
            if spec.trainable:
                expected[c][spec.layer] += x * y
    close(layout.dot(a, b), expected)


def test_norms_are_roots_of_sums_of_squares(layout):
    a = draw(layout, C, 3)
    expected = [[0.0] * 5 for _ in range(C)]
    for c, row in enumerate(matrix(a)):
        for layer in range(5):
            own = [
                x for spec, x in zip(column_specs(layout), row, strict=True) if spec.trainable and spec.layer == layer
            ]
            expected[c][layer] = sum(x * x for x in own) ** 0.5
    close(layout.norms(a), expected)


def test_gram_holds_the_products_of_all_pairs(layout):
    a = draw(layout, C, 4)
    flat = matrix(a)
    expected = [[[0.0] * C for _ in range(C)] for _ in range(5)]
    for i in range(C):
        for j in range(C):
            for spec, x, y in zip(column_specs(layout), flat[i], flat[j], strict=True):
                expected[spec.layer][i][j] += x * y * spec.trainable
    close(layout.gram(a), expected)
    close(layout.gram(a).diagonal(dim1=1, dim2=2).T, layout.dot(a, a).tolist())


@pytest.mark.parametrize("kernel", ["dot", "norms", "gram"])
def test_statistics_are_invisible_to_products(layout, kernel):
    def value(rows: Rows) -> Tensor:
        return layout.dot(rows, rows) if kernel == "dot" else getattr(layout, kernel)(rows)

    rows = draw(layout, C, 5)
    spoiled = {n: x if layout.specs[n].trainable else torch.full_like(x, torch.nan) for n, x in rows.items()}
    without = {n: x for n, x in rows.items() if layout.specs[n].trainable}
    assert torch.equal(value(rows), value(spoiled))
    assert torch.equal(value(rows), value(without))


def test_a_layer_that_is_not_there_counts_nothing(layout):
    rows = {name: x for name, x in draw(layout, C, 5).items() if name.startswith("fc")}
    assert layout.dot(rows, rows)[:, :4].tolist() == [[0.0] * 4] * C
    assert (layout.dot(rows, rows)[:, 4] > 0).all()


@pytest.mark.parametrize("kernel", ["dot", "gram"])
def test_the_order_of_a_dictionary_changes_no_bit(kernel):
    layout = described("block")  # several tensors in one layer, so that sums have an order
    rows = draw(layout, C, 6, torch.float32)
    scaled = {name: x * 10.0 ** (i - 3) for i, (name, x) in enumerate(rows.items())}
    backwards = dict(reversed(scaled.items()))
    if kernel == "dot":
        assert torch.equal(layout.dot(scaled, scaled), layout.dot(backwards, scaled))
    else:
        assert torch.equal(layout.gram(scaled), layout.gram(backwards))


@pytest.mark.parametrize("cohort", [[0], [2, 0], [4, 3, 2, 1, 0]])
def test_a_clients_products_are_the_same_bits_in_every_cohort(layout, cohort):
    a, b = (draw(layout, 5, seed, torch.float32) for seed in (1, 2))
    some = [{n: x[cohort] for n, x in rows.items()} for rows in (a, b)]
    assert torch.equal(layout.dot(*some), layout.dot(a, b)[cohort])


def blend_by_hand(layout: Layout, weight: Callable[[Spec, int, int], float], rows: Rows) -> list[list[float]]:
    flat = matrix(rows)
    specs = column_specs(layout)
    return [[sum(weight(spec, c, n) * flat[n][p] for n in range(N)) for p, spec in enumerate(specs)] for c in range(C)]


@pytest.mark.parametrize("per_layer", [True, False])
def test_blend_mixes_rows_column_by_column(layout, per_layer):
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(*((5, C, N) if per_layer else (C, N)), generator=generator, dtype=torch.float64)
    rows = draw(layout, N, 7)

    def weight(spec: Spec, c: int, n: int) -> float:
        return (W[spec.layer, c, n] if per_layer else W[c, n]).item()

    blended = layout.blend(W, rows)
    assert {name: x.shape for name, x in blended.items()} == {n: (C, *s.shape) for n, s in layout.specs.items()}
    close(torch.tensor(matrix(blended), dtype=torch.float64), blend_by_hand(layout, weight, rows))


def test_blending_some_tensors_leaves_the_others_out(layout):
    rows = {"fc.bias": draw(layout, N, 8)["fc.bias"]}
    assert list(layout.blend(torch.eye(N, dtype=torch.float64), rows)) == ["fc.bias"]


def test_mask_takes_column_by_column(layout):
    a, b = draw(layout, C, 9), draw(layout, C, 10)
    dense = {name: x > 0 for name, x in draw(layout, C, 11).items()}
    found = matrix(layout.mask(dense, a, b))
    for c, (yes, one, other) in enumerate(zip(matrix(dense), matrix(a), matrix(b), strict=True)):
        assert found[c] == [x if chosen else y for chosen, x, y in zip(yes, one, other, strict=True)]


def test_mask_broadcasts_what_spread_gives(layout):
    a, b = draw(layout, C, 9), draw(layout, C, 10)
    chosen = torch.tensor([[True, False, True, False, True]] * 2 + [[False] * 5])
    found = layout.mask(layout.spread(chosen, a), a, b)
    for name, spec in layout.specs.items():
        for c in range(C):
            assert torch.equal(found[name][c], (a if chosen[c, spec.layer] else b)[name][c])


def test_layer_mask_marks_the_chosen_layers(layout):
    assert layout.layer_mask("head+bn1").tolist() == [False, True, False, False, True]
    assert layout.layer_mask("none").tolist() == [False] * 5


def test_a_layer_by_name(layout):
    assert layout.layer("bn1").kind == "batchnorm"
    assert layout.names == ("conv1", "bn1", "conv2", "bn2", "fc")
    with pytest.raises(UnknownNameError, match=r"unknown layer 'bn3'; did you mean 'bn"):
        layout.layer("bn3")


STATISTICS = ("bn1.running_mean", "bn1.running_var", "bn2.running_mean", "bn2.running_var")


@pytest.mark.parametrize(
    ("buffers", "layers", "travelling", "staying"),
    [
        ("follow", "bn1", ("bn1.weight", "bn1.bias", *STATISTICS[:2]), ("bn1.weight", "bn1.bias", *STATISTICS[:2])),
        ("follow", "head", ("fc.weight", "fc.bias"), ("fc.weight", "fc.bias")),
        ("follow", "none", (), ()),
        ("local", "bn1", ("bn1.weight", "bn1.bias"), ("bn1.weight", "bn1.bias", *STATISTICS)),
        ("local", "head", ("fc.weight", "fc.bias"), (*STATISTICS, "fc.weight", "fc.bias")),
        ("local", "none", (), STATISTICS),
    ],
)
def test_what_travels_and_what_stays(buffers, layers, travelling, staying):
    layout = described(buffers=buffers)
    assert layout.travelling(layers) == travelling
    assert layout.staying(layers) == staying
    assert layout.trainable(layers) == tuple(name for name in travelling if name not in STATISTICS)


@pytest.mark.parametrize("buffers", ["follow", "local"])
@pytest.mark.parametrize("layers", ["head", "batchnorm", "none", "conv1"])
def test_what_travels_of_the_rest_and_what_stays_cover_the_model_once(buffers, layers):
    layout = described(buffers=buffers)
    both = (*layout.staying(layers), *layout.travelling(f"not {layers}"))
    assert sorted(both) == sorted(layout.specs)


@pytest.mark.parametrize(
    ("granularity", "layers"),
    [
        (
            "tensor",
            {
                "conv1.weight": ("conv1.weight",),
                "bn1.weight": ("bn1.weight", "bn1.running_mean", "bn1.running_var"),
                "bn1.bias": ("bn1.bias",),
                "conv2.weight": ("conv2.weight",),
                "bn2.weight": ("bn2.weight", "bn2.running_mean", "bn2.running_var"),
                "bn2.bias": ("bn2.bias",),
                "fc.weight": ("fc.weight",),
                "fc.bias": ("fc.bias",),
            },
        ),
        (
            "module",
            {
                "conv1": ("conv1.weight",),
                "bn1": ("bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"),
                "conv2": ("conv2.weight",),
                "bn2": ("bn2.weight", "bn2.bias", "bn2.running_mean", "bn2.running_var"),
                "fc": ("fc.weight", "fc.bias"),
            },
        ),
        (
            "block",
            {
                "conv1": ("conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"),
                "conv2": ("conv2.weight", "bn2.weight", "bn2.bias", "bn2.running_mean", "bn2.running_var"),
                "fc": ("fc.weight", "fc.bias"),
            },
        ),
    ],
)
def test_granularities_of_convnorm(granularity, layers):
    layout = described(granularity)
    assert {layer.name: layer.tensors for layer in layout.layers} == layers
    for name, spec in layout.specs.items():
        assert name in layers[layout.names[spec.layer]]


SCALE = Layout([Spec("scale", (), 0, True)], [Layer("scale", "other", "scale", False, None, ("scale",))])


@pytest.mark.parametrize("kernel", ["dot", "norms", "gram", "blend"])
def test_kernels_on_a_parameter_without_axes(kernel):
    rows, ones = {"scale": torch.tensor([2.0, 3.0])}, torch.ones(1, 2)
    value = {
        "dot": lambda: SCALE.dot(rows, {"scale": torch.tensor([5.0, 7.0])}).tolist() == [[10.0], [21.0]],
        "norms": lambda: SCALE.norms(rows).tolist() == [[2.0], [3.0]],
        "gram": lambda: SCALE.gram(rows).tolist() == [[[4.0, 6.0], [6.0, 9.0]]],
        "blend": lambda: SCALE.blend(ones, rows)["scale"].tolist() == [5.0],
    }
    assert value[kernel]()


def test_a_parameter_without_axes_is_one_column():
    assert SCALE.columns == 1
    assert SCALE.spread(torch.tensor([[4.0], [5.0]]), ["scale"])["scale"].tolist() == [4.0, 5.0]


def test_row_by_row_a_row_has_the_same_bits_whoever_is_beside_it(layout):
    rows, others = draw(layout, C, 0, torch.float32), draw(layout, 20, 1, torch.float32)
    weights = torch.randn(C, 20, generator=torch.Generator().manual_seed(2))
    products, mixed = layout.cross(rows, others, row_by_row=True), layout.blend(weights, others, row_by_row=True)
    torch.testing.assert_close(products, layout.cross(rows, others))
    for c in range(C):
        alone = {name: block[c : c + 1] for name, block in rows.items()}
        assert torch.equal(products[:, c : c + 1], layout.cross(alone, others, row_by_row=True))
        single = layout.blend(weights[c : c + 1], others, row_by_row=True)
        assert all(torch.equal(mixed[name][c : c + 1], single[name]) for name in layout.specs)


def test_squared_distances_are_those_of_trainable_columns(layout):
    rows, trained = draw(layout, N, 5), {s.name for s in layout.specs.values() if s.trainable}
    flat = matrix({name: block for name, block in rows.items() if name in trained})
    expected = [[sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) for y in flat] for x in flat]
    close(layout.squared_distances(rows), expected)
