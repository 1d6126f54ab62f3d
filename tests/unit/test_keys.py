"""Keyed randomness: a draw belongs to its key, not to the cohort it is made in."""

import threading

import pytest
import torch

from methods import KINDS
from stratafl.algorithms import algorithm
from stratafl.core import keys
from stratafl.testing import Case, within_reach

WRAP = 1 << 64
IDS = torch.arange(12)


def unsigned(values: torch.Tensor) -> list[int]:
    return [int(v) % WRAP for v in values.reshape(-1)]


def plain_scramble(state: int) -> int:
    """The finaliser of splitmix64 in Python's whole numbers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % WRAP
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % WRAP
    return state ^ (state >> 31)


def test_a_stream_is_splitmix64_as_published():
    # The first five outputs of the reference implementation for the seed 1234567.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert unsigned(keys.stream(torch.tensor(1234567), torch.arange(5))) == published


@pytest.mark.parametrize("state", [0, 1, -1, 12345, -(1 << 63), (1 << 63) - 1, 0x0123456789ABCDEF])
def test_scramble_is_unsigned_arithmetic(state):
    assert unsigned(keys.scramble(torch.tensor(state))) == [plain_scramble(state % WRAP)]


def test_draws_of_this_version_are_pinned():
    drawn = keys.keys(7, 3, torch.tensor([0, 1, 41]), "train/0")
    assert drawn.tolist() == [1451340245812191206, 5821379160645641524, 1348193066844085482]
    assert keys.purpose_number("train/0") == 4894963661419067820
    assert keys.sample(7, 3, 20, 5).tolist() == [2, 11, 14, 16, 18]
    assert keys.shuffles(drawn[:1], torch.tensor([6]), 6).tolist() == [[2, 4, 5, 0, 1, 3]]
    assert torch.randint(1000, (3,), generator=keys.generator(7, 2, "model")).tolist() == [945, 714, 835]


def test_a_key_follows_its_definition():
    def fold(key: int, part: int) -> int:
        return plain_scramble((key * 5 + part + 0x9E3779B97F4A7C15) % WRAP)

    expected = fold(fold(fold(plain_scramble(7), 3), keys.purpose_number("x") % WRAP), 41)
    assert unsigned(keys.keys(7, 3, torch.tensor([41]), "x")) == [expected]


@pytest.mark.parametrize("cohort", [[5], [5, 0], [11, 5, 3], list(range(12)), list(reversed(range(12)))])
def test_a_clients_key_is_the_same_in_every_cohort(cohort):
    alone = int(keys.keys(3, 4, torch.tensor([5]), "train"))
    assert int(keys.keys(3, 4, torch.tensor(cohort), "train")[cohort.index(5)]) == alone


@pytest.mark.parametrize(
    "other", [(4, 2, "train"), (3, 3, "train"), (3, 2, "train/1"), (2, 3, "train"), (-3, 2, "train")]
)
def test_another_seed_round_or_purpose_gives_other_keys(other):
    seed, t, purpose = other
    assert not torch.any(keys.keys(3, 2, IDS, "train") == keys.keys(seed, t, IDS, purpose))


def test_keys_of_many_clients_rounds_and_purposes_are_distinct():
    drawn = [keys.keys(0, t, torch.arange(200), p) for t in range(20) for p in ("a", "b", "cohort")]
    assert torch.cat(drawn).unique().numel() == 200 * 20 * 3


def test_a_seed_of_any_size_is_accepted():
    assert torch.equal(keys.keys(WRAP + 5, 0, IDS, "x"), keys.keys(5, 0, IDS, "x"))
    assert not torch.any(keys.keys(-5, 0, IDS, "x") == keys.keys(5, 0, IDS, "x"))


def test_folding_another_number_gives_another_key():
    base = keys.keys(0, 0, IDS, "x")
    folds = torch.stack([keys.fold(base, e) for e in range(50)])
    assert folds.unique().numel() == 50 * len(IDS)
    assert torch.equal(keys.fold(base, torch.full_like(IDS, 3)), folds[3])


COUNTS = torch.tensor([7, 1, 10, 4])


def shuffled(width: int = 10) -> torch.Tensor:
    return keys.shuffles(keys.keys(0, 1, torch.arange(4), "shuffle"), COUNTS, width)


def test_a_shuffle_is_a_permutation_padded_with_what_is_left():
    for row, count in zip(shuffled().tolist(), COUNTS.tolist(), strict=True):
        assert sorted(row[:count]) == list(range(count))
        assert row[count:] == list(range(count, 10))


def test_shuffles_differ_from_client_to_client_and_from_the_identity():
    many = keys.shuffles(keys.keys(0, 0, IDS, "s"), torch.full((12,), 20), 20)
    assert len({tuple(row) for row in many.tolist()}) == 12
    assert list(range(20)) not in many.tolist()


@pytest.mark.parametrize("width", [10, 11, 64])
def test_a_shuffle_depends_neither_on_the_width_nor_on_other_rows(width):
    every = shuffled(width)
    for client, count in enumerate(COUNTS.tolist()):
        key = keys.keys(0, 1, torch.tensor([client]), "shuffle")
        alone = keys.shuffles(key, COUNTS[client : client + 1], count)
        assert every[client, :count].tolist() == alone[0].tolist()


def test_every_place_of_a_shuffle_is_equally_likely():
    rows = keys.shuffles(keys.keys(0, 0, torch.arange(6000), "s"), torch.full((6000,), 5), 5)
    share = torch.stack([(rows == value).double().mean(0) for value in range(5)])
    assert (share - 0.2).abs().max() < 0.03  # six standard deviations


@pytest.mark.parametrize(("clients", "count"), [(20, 5), (20, 20), (1, 1), (7, 6)])
def test_a_sample_is_sorted_and_without_replacement(clients, count):
    for t in range(10):
        drawn = keys.sample(0, t, clients, count).tolist()
        assert drawn == sorted(set(drawn))
        assert len(drawn) == count
        assert set(drawn) <= set(range(clients))


def test_a_sample_does_not_depend_on_how_many_keys_are_computed_at_once(monkeypatch):
    whole = keys.sample(7, 3, 20, 5)
    monkeypatch.setattr(keys, "IDS_IN_CACHE", 6)
    assert torch.equal(keys.sample(7, 3, 20, 5), whole)


def test_samples_change_from_round_to_round_and_reach_everybody_equally():
    drawn = [tuple(keys.sample(0, t, 20, 5).tolist()) for t in range(800)]
    assert len(set(drawn)) > 700
    times = torch.bincount(torch.tensor(drawn).flatten(), minlength=20)
    assert (times - 200).abs().max() < 75  # six standard deviations of a binomial of 800 and 1/4


def test_a_larger_sample_holds_the_smaller_one():
    assert set(keys.sample(0, 3, 20, 4).tolist()) < set(keys.sample(0, 3, 20, 9).tolist())


@pytest.mark.slow
def test_the_cohort_is_the_same_for_every_algorithm():
    cohorts = {}
    for name in (*KINDS.values(), "fedalp"):
        method, _ = within_reach(algorithm(name), 4)
        sim = Case(method, "follow", 0.5, 4).simulation()
        sampled = [t for t in range(4) if sim.at(t).plan.participation == "sampled"]
        cohorts[name] = {t: sorted(sim.cohort(sim.at(t)).tolist()) for t in sampled}
    assert any(len(cohort) < 4 for cohort in cohorts.values())  # a round of everybody samples nobody
    assert all(c == keys.sample(0, t, 6, 3).tolist() for each in cohorts.values() for t, c in each.items())


def test_streams_are_uniform():
    draws = keys.stream(torch.tensor(99), torch.arange(40_000))
    share = draws.double() / 2.0**64 + 0.5
    histogram = torch.histc(share, 20, 0, 1) / len(draws)
    assert (histogram - 0.05).abs().max() < 0.0066  # six standard deviations
    bits = torch.stack([(draws >> place) & 1 for place in range(64)]).double().mean(1)
    assert (bits - 0.5).abs().max() < 0.015


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9])
def test_a_draw_falls_below_the_threshold_with_its_probability(probability):
    draws = keys.stream(torch.tensor(5), torch.arange(40_000))
    below = (draws < keys.threshold(probability)).double().mean()
    assert abs(float(below) - probability) < 0.015
    assert probability or below == 0


@pytest.mark.parametrize(("probability", "number"), [(0.0, -(1 << 63)), (0.5, 0), (0.25, -(1 << 62)), (0.75, 1 << 62)])
def test_thresholds_by_hand(probability, number):
    assert keys.threshold(probability) == number


def test_a_generator_belongs_to_seed_number_and_purpose():
    def first(*key: object) -> float:
        return float(torch.rand((), generator=keys.generator(*key)))

    assert first(0, 1, "model") == first(0, 1, "model")
    assert len({first(0, 1, "model"), first(1, 1, "model"), first(0, 2, "model"), first(0, 1, "own model")}) == 4


def test_drawing_leaves_the_ambient_generator_alone():
    before = torch.get_rng_state()
    keys.sample(0, 0, 10, 3)
    keys.generator(0, 0, "model")
    shuffled()
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_that_draw_at_the_same_time_draw_their_own_numbers():
    """Stock modules draw from one generator, which all threads share; another thread tries while this one draws."""
    before, drawn, over = torch.get_rng_state(), threading.Event(), threading.Event()

    def another():
        with keys.torchs_generator(2):
            torch.rand(3)
            drawn.set()
            over.wait()

    thread = threading.Thread(target=another)
    with keys.torchs_generator(1):
        numbers = [torch.rand(3)]
        thread.start()
        drawn.wait(0.5)
        numbers.append(torch.rand(3))
        over.set()
    thread.join()
    assert torch.equal(torch.get_rng_state(), before)
    with keys.torchs_generator(1) as generator:
        assert torch.equal(torch.cat(numbers), torch.cat([torch.rand(3, generator=generator) for _ in range(2)]))


def test_equal_keys_are_sampled_by_their_order(monkeypatch):
    monkeypatch.setattr(keys, "keys", lambda seed, t, ids, purpose: ids // 3)
    assert keys.sample(0, 0, 9, 4).tolist() == [0, 1, 2, 3]
