"""Codecs: what travels, bit by bit, worked out by hand; what arrives; what no client can mean."""

import pytest
import torch

from stratafl.core import keys
from stratafl.policies.codecs import Quantise, TopK

HALVES = [7.0, -7.0, 2.5, -1.4, 3.5]


def rows(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def undrawn():
    raise AssertionError("nothing is drawn")


def there_and_back(codec, x, draws=undrawn):
    return codec.decode(codec.encode(x, draws), x.shape[1]).x


def wrong(codec, parts, n):
    return [what for what, who in codec.decode(parts, n).wrong.items() if bool(who.any())]


# Quantisation


def test_8_bits_by_hand():
    parts = Quantise(8).encode(rows([0.5, -127.0, 1.25, 0.0, 100.0]), undrawn)  # scale 127/127
    assert parts["scale"].tolist() == [1.0]
    assert parts["codes"].dtype == torch.uint8
    assert parts["codes"].tolist() == [[127, 0, 128, 127, 227]]  # 0, −127, 1, 0, 100; 0.5 is rounded to even
    assert there_and_back(Quantise(8), rows([0.5, -127.0, 1.25, 0.0, 100.0])).tolist() == [[0, -127, 1, 0, 100]]


def test_4_bits_by_hand_two_to_a_byte():
    parts = Quantise(4).encode(rows(HALVES), undrawn)
    assert parts["scale"].tolist() == [1.0]
    assert parts["codes"].tolist() == [[0xE0, 0x96, 0xB0]]  # 7, −7 | 2, −1 | 4 and nothing, each + 7
    assert there_and_back(Quantise(4), rows(HALVES)).tolist() == [[7, -7, 2, -1, 4]]


def test_the_scale_is_that_of_each_client_and_zeros_stay_zeros():
    x = rows([0.0, 0.0, 0.0], [0.0, -14.0, 2.0])
    assert Quantise(4).encode(x, undrawn)["scale"].tolist() == [0.0, 2.0]
    assert there_and_back(Quantise(4), x).tolist() == [[0, 0, 0], [0, -14, 2]]


@pytest.mark.parametrize("bits", [4, 8])
def test_the_error_is_at_most_half_a_step(bits):
    x = torch.randn(5, 1001, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = x.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    error = (there_and_back(Quantise(bits), x) - x).abs()
    assert (error <= step / 2 + 1e-12).all()
    assert (error.amax(1, keepdim=True) > step * 0.45).all()


def test_32_bits_are_the_numbers_themselves():
    x = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    assert torch.equal(there_and_back(Quantise(32), x), x)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_shows_in_the_scale(bits, value):
    scale = Quantise(bits).encode(rows([1.0, value, 2.0], [1.0, 2.0, 3.0]), undrawn)["scale"]
    assert torch.isfinite(scale).tolist() == [False, True]


def test_numbers_too_small_for_a_scale_count_as_0():
    tiny = rows([1e-45, 0.0], dtype=torch.float32)
    assert there_and_back(Quantise(8), tiny).tolist() == [[0.0, 0.0]]


def drawn(clients, n):
    """As a step draws them: of each client its own."""
    key = keys.keys(0, 3, torch.arange(clients), "compress/theta/fc.weight")
    return lambda: keys.uniform(key[:, None], torch.arange(n), torch.float64)


def test_stochastic_rounding_is_right_on_average():
    x, clients = rows([7.0, 2.5, -1.4, 0.1, -6.9, 0.0]), 20_000
    found = there_and_back(Quantise(4, "stochastic"), x.expand(clients, -1), drawn(clients, 6))
    fraction = x - x.floor()
    assert set(found.unique().tolist()) == {7.0, 2.0, 3.0, -2.0, -1.0, 0.0, 1.0, -7.0, -6.0}
    spread = (fraction * (1 - fraction) / clients).sqrt()
    assert ((found.mean(0) - x).abs() <= 4 * spread + 1e-12).all()
    nearest = there_and_back(Quantise(4), x)
    assert ((nearest - x).abs() > 4 * spread + 1e-12).any()  # which would not pass


def test_a_draw_next_to_1_does_not_reach_the_next_number():
    x = rows([7.0, -7.0, 3.0, 0.0])
    for u in (2**-24, 1 - 2**-24):
        assert there_and_back(Quantise(4, "stochastic"), x, lambda u=u: torch.full_like(x, u)).tolist() == x.tolist()


def test_codes_that_do_not_exist():
    scale = rows(1.0)

    def found(bits, n, *numbers):
        return wrong(Quantise(bits), {"codes": torch.tensor([numbers], dtype=torch.uint8), "scale": scale}, n)

    assert found(8, 2, 254, 0) == []
    assert found(8, 2, 255, 0)
    assert found(4, 3, 0xEE, 0xE0) == []
    assert found(4, 3, 0xEF, 0xE0)
    assert found(4, 3, 0xEE, 0xE1)  # half a byte that means nothing


# Top-k


def test_top_k_by_hand_as_bits():
    parts = TopK(0.4).encode(rows([1.0, -3.0, 3.0, 0.5, -2.0]), undrawn)
    assert parts["places"].tolist() == [[0b01100000]]
    assert parts["values"].tolist() == [[-3.0, 3.0]]
    assert there_and_back(TopK(0.4), rows([1.0, -3.0, 3.0, 0.5, -2.0])).tolist() == [[0, -3, 3, 0, 0]]


def test_top_k_by_hand_as_indices():
    x = torch.zeros(2, 256, dtype=torch.float64)
    x[0, 200], x[0, 7], x[1, 3], x[1, 255] = -5.0, 4.0, 1.0, 2.0
    parts = TopK(2 / 256).encode(x, undrawn)
    assert parts["places"].dtype == torch.int32
    assert parts["places"].tolist() == [[7, 200], [3, 255]]
    assert parts["values"].tolist() == [[4.0, -5.0], [1.0, 2.0]]
    assert torch.equal(there_and_back(TopK(2 / 256), x), x)


def test_of_equals_the_first():
    assert there_and_back(TopK(0.5), rows([2.0, -2.0, 2.0, 2.0], [1.0, 2.0, 1.0, -1.0])).tolist() == [
        [2, -2, 0, 0],
        [1, 2, 0, 0],
    ]
    assert there_and_back(TopK(0.5), rows([0.0] * 4)).tolist() == [[0.0] * 4]


@pytest.mark.parametrize(
    ("keep", "n", "count"), [(0.1, 10, 1), (0.3, 10, 3), (0.01, 10, 1), (0.11, 10, 2), (0.07, 100, 7), (1.0, 7, 7)]
)
def test_how_many_are_kept(keep, n, count):
    parts = TopK(keep).encode(torch.arange(float(n))[None] + 1, undrawn)
    assert parts["values"].tolist() == [list(range(n - count + 1, n + 1))]


def test_places_take_whichever_is_smaller():
    for keep in (0.001, 0.02, 0.03, 0.04, 0.5, 1.0):
        n = 4001
        sent = TopK(keep).encode(torch.randn(1, n), undrawn)["places"]
        count = TopK(keep).count(n)
        assert sent.numel() * sent.element_size() == min((n + 7) // 8, 4 * count)


@pytest.mark.parametrize("keep", [0.01, 0.1, 0.7, 1.0])
def test_what_is_sent_is_exact_and_the_rest_is_0(keep):
    x = torch.randn(4, 403, generator=torch.Generator().manual_seed(1))
    found = there_and_back(TopK(keep), x)
    sent = found != 0
    assert sent.sum(1).tolist() == [TopK(keep).count(403)] * 4
    assert torch.equal(found[sent], x[sent])
    least = torch.where(sent, x.abs(), torch.inf).amin(1)
    assert (torch.where(sent, 0, x.abs()).amax(1) <= least).all()


def test_what_is_not_finite_is_sent_and_seen():
    values = TopK(0.25).encode(rows([1.0, torch.nan, 2.0, 9.0], [torch.inf, 1.0, 1.0, 1.0]), undrawn)["values"]
    assert torch.isfinite(values).any(1).tolist() == [False, False]


def test_indices_that_no_client_can_mean():
    def found(*index):
        places = torch.tensor([index], dtype=torch.int32)
        return wrong(TopK(2 / 256), {"places": places, "values": rows([1.0, 2.0])}, 256)

    assert found(0, 255) == []
    assert found(0, 256)
    assert found(-1, 5)
    assert all(found(*indices) for indices in ((5, 5), (6, 5)))
    assert found(-(2**31), 2**31 - 1)


def test_bits_that_no_client_can_mean():
    def found(byte):
        return wrong(TopK(0.4), {"places": torch.tensor([[byte]], dtype=torch.uint8), "values": rows([1.0, 2.0])}, 5)

    assert found(0b00011000) == []
    assert all(map(found, (0b00111000, 0b00001000, 0)))
    assert found(0b00011100)  # a bit behind the last number
