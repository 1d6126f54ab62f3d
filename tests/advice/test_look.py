"""What is seen of a federation, against hand-made numbers and planted facts."""

import numpy as np
import pytest

from stratafl.advice.advice_text import similar_text
from stratafl.advice.look import (
    Effect,
    Facts,
    client_distances,
    client_groups,
    feature_shift,
    label_skew,
    total_variation,
)
from stratafl.advice.measured import measured_federations, most_similar
from stratafl.data import from_clients


def drawn(shift: float, groups: int = 2, clients: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples of three classes, where the clients of a group are shifted alike."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), 30)
    label = rng.integers(0, 3, len(client))
    centres = rng.normal(size=(groups, 5))
    z = rng.normal(size=(len(client), 5)) + 2 * label[:, None] + shift * centres[client % groups]
    return z, label, client


def test_total_variation_is_the_mean_distance_of_class_frequencies() -> None:
    label, client = np.array([0, 0, 0, 1, 1, 1, 1, 1]), np.array([0, 0, 0, 0, 1, 1, 1, 1])
    # pooled 3/8, 5/8; client 0 has 3/4, 1/4, client 1 has 0, 1: both are 3/8 away
    assert total_variation(label, client) == pytest.approx(3 / 8)


def test_label_skew_is_there_only_if_accident_gives_less() -> None:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(40, 3)).astype(np.float32) for _ in range(6)]
    alike = from_clients([(each, rng.integers(0, 4, 40)) for each in x], classes=4)
    apart = from_clients([(each, rng.integers(0, 2, 40) + i % 3) for i, each in enumerate(x)], classes=4)
    even, skewed = label_skew(alike), label_skew(apart)
    assert even is not None
    assert skewed is not None
    assert not even.there
    assert skewed.there
    assert skewed.value > 0.3 > skewed.accident


def test_p_counts_accidents_that_are_as_large() -> None:
    assert Effect.of(3.0, [1.0, 2.0, 3.0, 4.0]) == Effect(3.0, 2.5, 3 / 5)


def test_feature_shift_is_omega_squared_of_clients_within_classes() -> None:
    z, label, client = drawn(0.7, clients=4)
    between = within = 0.0
    for c in range(3):
        mean = z[label == c].mean(0)
        for k in range(4):
            mine = z[(label == c) & (client == k)]
            between += len(mine) * ((mine.mean(0) - mean) ** 2).sum()
            within += ((mine - mine.mean(0)) ** 2).sum()
    spread = within / (len(z) - 12)
    omega = (between - (12 - 3) * spread) / (between + within + spread)
    found = feature_shift(z, label, client)
    assert found is not None
    assert found.value == pytest.approx(omega)
    assert found.there


def test_no_shift_is_recognised() -> None:
    p = [found.p for seed in range(4) if (found := feature_shift(*drawn(0.0, seed=seed))) is not None]
    assert len(p) == 4
    assert sorted(p)[1] > 0.05


def test_without_a_class_in_common_nothing_can_be_told() -> None:
    z, _, client = drawn(1.0)
    assert feature_shift(z, client, client) is None


def test_distances_are_zero_on_average_without_a_shift() -> None:
    z, label, client = drawn(0.0, clients=30)
    squared = client_distances(z, label, client, 30)  # cut off at 0, so above it on average
    shifted = client_distances(*drawn(2.0, clients=30), 30)
    assert squared.mean() < 0.3
    assert shifted.mean() > 5 * squared.mean()


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_of_clients_are_found(groups: int) -> None:
    found = client_groups(*drawn(3.0, groups, clients=9), 9)
    assert len(set(found)) == groups
    assert all((found[a] == found[b]) == (a % groups == b % groups) for a in range(9) for b in range(9))


def facts_of(skew: float, shift: float, samples: int, *, there: bool = True, classes: int | None = 10) -> Facts:
    p = 0.01 if there else 0.5
    return Facts(4, (samples,) * 4, classes, Effect(skew, 0.0, p), Effect(shift, 0.0, p), (), (), batchnorm=False)


def test_the_measured_federations_that_look_the_same_are_all_named() -> None:
    known = {(each.kind, each.samples): each for each in measured_federations()}
    for cell in known.values():
        for seen in cell.facts:
            similar = most_similar(facts_of(*seen, cell.samples))
            assert cell in similar
            assert seen in similar[0].facts  # the nearest first
    skewed = known["label skew, α = 0.1", 80]
    skew, _ = skewed.facts[0]
    assert most_similar(facts_of(skew + 0.02, 0.0, 90))[0] is skewed


def test_rotations_and_permuted_labels_that_look_like_clients_that_are_alike_are_named_with_them() -> None:
    """With 80 samples all of their facts are 0, and FedAvg, the best for clients that are alike, is not for them."""
    alike = most_similar(facts_of(0.0, 0.0, 80))
    kinds = {"alike", "rotation by up to 45°", "rotation by up to 90°", "half of the labels permuted"}
    assert {each.kind for each in alike} == kinds
    assert {each.samples for each in alike} == {80}
    assert len({each.methods[0].method for each in alike}) > 1
    assert most_similar(facts_of(0.4, 0.3, 80, there=False)) == alike  # what accident gives is nothing
    best = {each.methods[0].method for each in alike}
    text = similar_text(alike, best)
    assert all(name in text for name in kinds | best)
    assert len(similar_text(alike, best - {"fedavg"})) > len(text)  # says that it is not tried


def test_one_federation_alone_is_named_where_facts_tell_it_apart() -> None:
    (similar,) = most_similar(facts_of(0.3, 0.0, 80))
    assert (similar.kind, similar.samples) == ("label skew, α = 0.5", 80)


def test_no_measured_federation_is_near_one_with_far_more_samples_or_without_classes() -> None:
    assert most_similar(facts_of(0.3, 0.0, 100_000)) == []
    assert most_similar(facts_of(0.3, 0.0, 80, classes=None)) == []
