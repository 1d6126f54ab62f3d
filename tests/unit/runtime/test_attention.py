"""Attention and functional dropout: the mathematics of torch's, for stacked clients, with keyed draws."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stratafl.core.describe import columns, describe
from stratafl.core.objectives import CrossEntropy
from stratafl.core.state import expand
from stratafl.core.task import Inputs, Stack
from stratafl.errors import ModelError
from stratafl.models import without_fast_paths
from stratafl.runtime.attention import KeyedAttention, KeyedFunctions
from stratafl.runtime.draws import LEVELS, Context, drop
from stratafl.runtime.engine import LoopEngine, StackedEngine
from stratafl.runtime.model import Model
from stratafl.runtime.modules import draws_by_functions
from stratafl.runtime.products import fusing

CPU = torch.device("cpu")
BATCH, LENGTH, WIDTH = 3, 5, 8


def keyed(attention):
    attention.__class__ = KeyedAttention
    attention.context, attention.path = Context(key=torch.tensor(7), packed=True), "attention"
    return attention


MASKS = {
    "none": {},
    "padding": {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] + [True] * 4])},
    "causal": {"attn_mask": nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64), "is_causal": True},
    "by head": {"attn_mask": torch.arange(3 * 2 * 25).reshape(6, 5, 5) % 4 == 1},
    "weights": {"need_weights": True, "average_attn_weights": False},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_equals_torchs(mask, batch_first):
    torch.manual_seed(0)
    stock = nn.MultiheadAttention(WIDTH, 2, dropout=0.5, batch_first=batch_first, dtype=torch.float64).eval()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    x, other = (x, x + 1) if batch_first else (x.transpose(0, 1), x.transpose(0, 1) + 1)
    expected = [stock(x, x, x, **MASKS[mask]), stock(x, other, other, **MASKS[mask])]
    ours = keyed(stock)
    for (y, weights), (z, others) in zip(
        expected, (ours(x, x, x, **MASKS[mask]), ours(x, other, other, **MASKS[mask])), strict=True
    ):
        assert torch.allclose(y, z)
        assert (weights is None) == (others is None) or mask == "none"
        assert weights is None or torch.allclose(weights, others)


def test_attention_without_a_batch_and_with_other_widths():
    stock = nn.MultiheadAttention(WIDTH, 2, kdim=6, vdim=4, bias=False, dtype=torch.float64).eval()
    query, key, value = (torch.randn(LENGTH, width, dtype=torch.float64) for width in (WIDTH, 6, 4))
    expected = stock(query, key, value)
    assert all(torch.allclose(a, b) for a, b in zip(expected, keyed(stock)(query, key, value), strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": torch.arange(25).reshape(5, 5) % 3 > 0},
        {"attn_mask": torch.arange(25.0, dtype=torch.float64).reshape(5, 5), "scale": 0.3},
        {"is_causal": True},
        {"enable_gqa": True},
    ],
)
def test_functional_attention_equals_torchs(options):
    torch.manual_seed(1)
    heads = 2 if "enable_gqa" in options else 4
    q, k, v = (torch.randn(BATCH, n, LENGTH, 4, dtype=torch.float64) for n in (4, heads, heads))
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    with KeyedFunctions(Context(key=torch.tensor(1))):
        ours = F.scaled_dot_product_attention(q, k, v, **options)
    assert torch.allclose(expected, ours)


def test_a_row_that_sees_nothing_is_finite():
    ours = keyed(nn.MultiheadAttention(WIDTH, 2, batch_first=True).eval())
    x = torch.randn(1, 2, WIDTH)
    assert ours(x, x, x, key_padding_mask=torch.ones(1, 2, dtype=torch.bool))[0].isfinite().all()


def test_packed_draws_are_sixteen_bits_of_a_stream():
    """Four places of each number, the lowest bits first; a compiler is given the same places one by one."""
    context = Context(key=torch.tensor(11), packed=True)
    x = torch.ones(50, 41)
    y = drop(x, 0.1, context, "path")
    kept, share = y != 0, round(0.1 * LEVELS) / LEVELS
    assert torch.allclose(y[kept], torch.tensor(1 / (1 - share)))
    assert abs(float(kept.double().mean()) - 0.9) < 0.03
    assert not torch.equal(drop(x, 0.1, context, "path") != 0, kept)  # the next call of the step
    context.calls.clear()
    with fusing():
        assert torch.equal(drop(x, 0.1, context, "path"), y)
    assert not drop(x, 1.0, context, "path").any()


class Encoder(nn.Module):
    """Torch's encoder with dropout in and around attention; pads are token 0."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(9, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.2, batch_first=True)
        self.encoder, self.fc = nn.TransformerEncoder(layer, 1), nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.fc(self.encoder(self.tokens(x), src_key_padding_mask=x == 0)[:, 0])


class Functional(nn.Module):
    """Dropout and attention as functions, as libraries call them."""

    def __init__(self):
        super().__init__()
        self.tokens, self.inner, self.fc = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x):
        z = F.dropout(self.tokens(x), 0.3, training=self.training)
        q, k, v = self.inner(z).chunk(3, -1)
        z = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3 if self.training else 0.0)
        return self.fc(F.dropout1d(z, 0.3, self.training).mean(1))


@pytest.mark.parametrize("kind", [Encoder, Functional])
def test_stacked_clients_draw_what_each_draws_alone(kind):
    torch.manual_seed(0)
    module = without_fast_paths(kind().double())
    layout, sizes = describe(module), (BATCH, 2)
    assert draws_by_functions(module, torch.ones(2, LENGTH, dtype=torch.int64))
    engines = [
        make(lambda stacked=stacked: Model(module, layout, head=None, stacked=stacked, device=CPU, functions=True))
        for make, stacked in ((StackedEngine, True), (LoopEngine, False))
    ]
    x = torch.randint(1, 9, (2, BATCH, LENGTH))
    x[:, 1, 3:] = 0
    weight = (torch.arange(BATCH) < torch.tensor(sizes)[:, None]).double()
    stack = Stack(x, torch.randint(0, 3, (2, BATCH)), weight, torch.tensor([5, 6]), sizes)
    rows, trained = expand(columns(module), 2), layout.trainable()
    results = [e.gradients(CrossEntropy(), rows, stack, trained, Inputs(), e.model.modes(trained)) for e in engines]
    for name in trained:
        assert torch.allclose(results[0].rows[name], results[1].rows[name], atol=1e-12), name
    assert not torch.allclose(results[0].loss[0], results[0].loss[1])
    with torch.no_grad():
        expected = module.eval()(x[0])
    for engine in engines:
        assert torch.allclose(engine.outputs(rows, x, weight, sizes)[0][0], expected)


def test_models_without_such_functions_keep_their_draws():
    plain = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    assert not draws_by_functions(plain, torch.ones(2, 4))


def test_a_row_that_sees_nothing_gives_zeros_as_torchs():
    torch.manual_seed(2)
    x, hidden = torch.randn(2, 3, WIDTH), torch.tensor([[True] * 3, [True, False, False]])  # of one sample all are pads
    stock = nn.MultiheadAttention(WIDTH, 2, batch_first=True).eval()
    later = torch.ones(3, 3, dtype=torch.bool).triu(1)  # with it, the first token of the other one sees nothing
    for masks in ({}, {"attn_mask": later}):
        arguments = {"key_padding_mask": hidden, "need_weights": False, **masks}
        expected = stock(x, x, x, **arguments)[0]
        ours = keyed(nn.MultiheadAttention(WIDTH, 2, batch_first=True).eval())
        ours.load_state_dict(stock.state_dict())
        assert torch.allclose(ours(x, x, x, **arguments)[0], expected, atol=1e-6)
    q = x[:, None].requires_grad_()
    with KeyedFunctions(Context(key=torch.tensor(1))):
        y = F.scaled_dot_product_attention(q, q, q, attn_mask=~hidden[:, None, None])
    assert not y[0].any()
    (gradient,) = torch.autograd.grad(y.sum(), q)
    assert gradient.isfinite().all()
    assert not gradient[0].any()


@pytest.mark.parametrize("part", ["self_attn", "tokens"])
def test_a_frozen_attention_has_the_same_bits_for_any_number_of_clients(part):
    """Torch makes one product of the rows of all clients where the weight is shared: seen to differ on x86."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Embedding(9, 36), nn.TransformerEncoderLayer(36, 2, 8, batch_first=True), nn.Linear(36, 3)
    )
    module = without_fast_paths(nn.Sequential(*module, nn.Flatten(1)))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not (part in name or (part == "tokens" and name.startswith("0"))))
    layout = describe(module)
    engine = StackedEngine(lambda: Model(module, layout, head=None, stacked=True, device=CPU, functions=True))
    x, y, weight, keys = torch.arange(9)[:, None, None] % 9, torch.zeros(9, 1).long(), torch.ones(9, 1), torch.arange(9)

    def gradients(of: slice) -> dict:
        stack = Stack(x[of], y[of], weight[of], keys[of], (1,) * len(x[of]))
        rows, trained = expand(columns(module), len(stack.sizes)), layout.trainable()
        return engine.gradients(CrossEntropy(), rows, stack, trained, Inputs(), engine.model.modes(trained)).rows

    whole, one = gradients(slice(0, 9)), gradients(slice(4, 5))
    assert all(torch.equal(whole[name][4], one[name][0]) for name in one)


def test_dropout_of_channels_takes_a_single_sample_as_torch_does():
    with KeyedFunctions(Context(key=torch.tensor(3))):
        for function, shape in ((F.dropout1d, (40, 5)), (F.dropout3d, (40, 2, 2, 2)), (F.dropout2d, (8, 5, 6))):
            y = function(torch.ones(shape), 0.5, True)
            channels = y.flatten(2) if function is F.dropout2d else y.flatten(1)
            assert (channels == channels[..., :1]).all()
            assert set(y.unique().tolist()) == {0.0, 2.0}


def test_dropout_in_place_changes_its_input_in_both_engines():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.fc, self.drop = nn.Linear(4, 50), nn.Linear(50, 2), nn.Dropout(0.5, inplace=True)

        def forward(self, x):
            z = self.first(x)
            self.drop(z)
            F.dropout(z, 0.5, self.training, True)
            return self.fc(z)

    module, stack = (
        InPlace(),
        Stack(torch.ones(2, 1, 4), torch.zeros(2, 1).long(), torch.ones(2, 1), torch.tensor([5, 6]), (1, 1)),
    )
    for engine, stacked in ((StackedEngine, True), (LoopEngine, False)):
        made = engine(
            lambda stacked=stacked: Model(
                module, describe(module), head=None, stacked=stacked, device=CPU, functions=True
            )
        )
        trained = describe(module).trainable()
        rows = made.gradients(
            CrossEntropy(), expand(columns(module), 2), stack, trained, Inputs(), made.model.modes(trained)
        ).rows
        share = float((rows["fc.weight"] == 0).double().mean())
        assert 0.6 < share < 0.9, share  # three quarters are dropped


def test_a_share_that_is_none_is_one_line():
    with KeyedFunctions(Context(key=torch.tensor(3), packed=True)):
        with pytest.raises(ModelError, match=r"p = 1\.5"):
            F.dropout(torch.ones(3), 1.5)
        with pytest.raises(ModelError, match=r"p = -0\.1"):
            F.scaled_dot_product_attention(*(torch.ones(1, 2, 2),) * 3, dropout_p=-0.1)
