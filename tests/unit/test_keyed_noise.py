"""Keyed noise: normal and discrete Gaussian numbers against exact probabilities, and the keys that they follow from."""

import math

import numpy as np
import pytest
import torch

from stratafl.core.keys import Seeds
from stratafl.core.round import Setup
from stratafl.policies import keyed_noise
from stratafl.policies.keyed_noise import _exp_minus, _successes, client_key, discrete_gaussian, gaussian, noise_key


def setup(seed=0, **more):
    return Setup(None, {}, lambda ids: {}, 10, rounds=50, seeds=Seeds.of(seed), **more)


def test_noise_is_normal_and_independent():
    drawn = gaussian(b"k" * 32, 3, "theta/fc.weight", 400_000).numpy()
    assert abs(drawn.mean()) < 4 / math.sqrt(len(drawn))
    assert drawn.std() == pytest.approx(1, abs=0.005)
    assert (drawn**4).mean() == pytest.approx(3, abs=0.05)
    ordered = np.sort(drawn)
    below = 0.5 * (1 + torch.erf(torch.from_numpy(ordered) / math.sqrt(2)).numpy())
    assert np.abs(below - (np.arange(len(drawn)) + 0.5) / len(drawn)).max() < 1.95 / math.sqrt(len(drawn))  # 0.1 %
    for other in (drawn[1:], gaussian(b"k" * 32, 4, "theta/fc.weight", 400_000).numpy()):
        assert abs(np.corrcoef(drawn[: len(other)], other)[0, 1]) < 4 / math.sqrt(len(drawn))


def test_noise_follows_from_key_round_and_name(monkeypatch):
    first = gaussian(b"k" * 32, 0, "a", 1001)
    assert torch.equal(first, gaussian(b"k" * 32, 0, "a", 1001))
    for other in ((b"l" * 32, 0, "a"), (b"k" * 32, 1, "a"), (b"k" * 32, 0, "b")):
        assert not (first == gaussian(*other, 1001)).any()
    monkeypatch.setattr(keyed_noise, "NOISE_PIECE", 100)
    pieces = gaussian(b"k" * 32, 0, "a", 1001)
    assert pieces.isfinite().all()
    assert len(pieces.unique()) == 1001  # no piece repeats another


def test_the_key_is_the_secret_or_follows_from_the_seed():
    assert noise_key(setup(secret=b"s" * 32)) == b"s" * 32
    assert noise_key(setup(seed=1)) == noise_key(setup(seed=1)) != noise_key(setup(seed=2))
    assert len(noise_key(setup())) == 32
    assert "sss" not in repr(setup(secret=b"s" * 32))


# Whole numbers


@pytest.mark.parametrize("bits", [0, 1, 3])
def test_whole_numbers_have_the_probabilities_of_a_discrete_gaussian(bits):
    """χ² over the values that are expected at least 20 times, at 0.1 %."""
    deviation, count = 2**bits, 100_000
    drawn = discrete_gaussian(b"k" * 32, 2, "theta", count, bits).numpy()
    n = np.arange(-12 * deviation - 2, 12 * deviation + 3)
    expected = np.exp(-(n**2) / (2 * deviation**2))
    expected *= count / expected.sum()
    often = expected >= 20
    observed = np.array([(drawn == value).sum() for value in n])
    statistic = ((observed - expected)[often] ** 2 / expected[often]).sum()
    freedom = int(often.sum()) - 1
    assert statistic < freedom + 3.1 * math.sqrt(2 * freedom) + 6  # the 0.1 % point, from above
    assert observed.sum() == count


def test_whole_numbers_of_the_usual_deviation_are_normal_to_their_last_bits():
    drawn = discrete_gaussian(b"k" * 32, 2, "theta", 200_000).numpy()
    scaled = np.sort(drawn / 2**24)
    below = 0.5 * (1 + torch.erf(torch.from_numpy(scaled) / math.sqrt(2)).numpy())
    assert np.abs(below - (np.arange(len(scaled)) + 0.5) / len(scaled)).max() < 1.95 / math.sqrt(len(scaled))  # 0.1 %
    low = np.bincount(drawn & 15, minlength=16)
    assert ((low - len(drawn) / 16) ** 2 / (len(drawn) / 16)).sum() < 37.7  # 0.1 % of χ² with 15
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 4 / math.sqrt(len(drawn))


def test_a_word_that_cannot_decide_is_followed_by_another():
    """Bernoulli(1/3) and Bernoulli(exp(−1)) from the one word of 2^64 at their limit, by hand."""

    def words(*values):
        left = list(values)
        return lambda count: np.array([left.pop(0) for _ in range(count)], dtype=np.uint64)

    third, three = 2**64 // 3, np.array([2**64 - 1], dtype=np.uint64)
    # Of γ = 1 − 2^-64 a third is a whole number of units, so that nothing is left for another word to decide.
    assert _exp_minus(words(0, 0, third, 0), three)[0]  # the third fails, and 3 is odd
    assert not _exp_minus(words(0, 0, third - 1, 2**64 - 1), three)[0]  # the third succeeds, the fourth fails
    rest = np.array([2**64 - 2], dtype=np.uint64)  # of 3 two thirds
    limit = (2**64 - 2) // 3
    assert not _exp_minus(words(0, 0, limit, 2**63, 2**64 - 1), rest)[0]  # 1/2 < 2/3: it succeeds
    assert _exp_minus(words(0, 0, limit, 2**64 - 2**60), rest)[0]
    power = int(math.exp(-1) * 2**53) << 11  # near exp(−1), of which the first word is exact
    first = int(keyed_noise._FIRST_WORDS[-1])
    assert abs(first - power) < 2**12
    assert _successes(words(first, 0), 1)[0] == 1
    assert _successes(words(first, 2**64 - 1), 1)[0] == 0
    assert [_successes(words(word), 1)[0] for word in (first - 1, first + 1, int(math.exp(-2.5) * 2**64))] == [1, 0, 2]


def test_whole_numbers_follow_from_key_round_and_name():
    first = discrete_gaussian(b"k" * 32, 0, "a", 300)
    assert torch.equal(first, discrete_gaussian(b"k" * 32, 0, "a", 300))
    for other in ((b"l" * 32, 0, "a"), (b"k" * 32, 1, "a"), (b"k" * 32, 0, "b")):
        assert int((first == discrete_gaussian(*other, 300)).sum()) == 0


def test_a_site_never_adds_the_same_noise_to_two_contents():
    """In a simulation noise follows from seed and client, so that all devices draw the same."""
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 2**-20])
    site, simulated = setup(secret=b"s" * 32), setup()
    assert client_key(site, 0, one) == client_key(site, 0, one.clone())
    assert len({client_key(site, 0, one), client_key(site, 0, other), client_key(site, 1, one)}) == 3
    assert client_key(setup(secret=b"t" * 32), 0, one) != client_key(site, 0, one)
    assert client_key(simulated, 0, one) == client_key(simulated, 0, other) != client_key(simulated, 1, one)
    assert client_key(simulated, 0, one) != noise_key(simulated)
