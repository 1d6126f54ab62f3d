"""Attacks on uploads: each formula by hand, each works on an upload that was built to be weak and fails on noise."""

import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from stratafl.algorithms import algorithm, fedavg, fedper
from stratafl.data import digits_federation
from stratafl.data.partitions import Dirichlet
from stratafl.errors import RunError
from stratafl.execute import simulation
from stratafl.leak import leakage as measured
from stratafl.leak.attacks import (
    area,
    correlation,
    guessed_labels,
    guessed_shares,
    loss_scores,
    matched_inputs,
    membership_scores,
    recovered_inputs,
    sample_gradients,
    similarity,
)
from stratafl.leak.leakage import (
    ATTACKS,
    INVERSION,
    LARGEST_CLASS,
    MEMBERSHIP,
    PRESENCE,
    SHARES,
    WHOLE_MODEL,
    Leak,
    leakage,
)
from stratafl.leak.leakage_picture import leakage_picture, strength
from stratafl.leak.replay import replayed
from stratafl.methods import LocalTraining
from stratafl.models import build
from stratafl.policies import Mean
from stratafl.testing import difference

TRAIN = LocalTraining(lr=0.1, batch=1000)


def network():
    return build("mlp", shape=(1, 8, 8), classes=10, hidden=(16,))


def made(method=None, clients=4, alpha=0.1, **options):
    data = digits_federation(clients=clients, partition=Dirichlet(alpha=alpha, minimum=20), seed=1)
    return simulation(method or fedavg(train=TRAIN), data, network, rounds=2, **options)


# The formulas


def test_class_shares_solve_for_the_mixture_of_gradients():
    gradients = torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]])
    update = -0.1 * (0.7 * gradients[0] + 0.3 * gradients[2])
    shares = guessed_shares(update, gradients)
    assert torch.allclose(shares / shares.sum(), torch.tensor([0.7, 0.0, 0.3], dtype=torch.float64), atol=1e-6)


def test_class_shares_of_noise_say_nothing():
    torch.manual_seed(0)
    gradients, truth = torch.randn(10, 500), torch.rand(10)
    values = [correlation(guessed_shares(torch.randn(500), gradients), truth) for _ in range(200)]
    assert abs(sum(values) / len(values)) < 0.1


def test_a_member_is_what_points_against_the_update_more_than_against_others():
    gradients = torch.tensor([[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0]])
    updates = torch.tensor([[-3.0, 0.0], [0.0, 1.0]])
    expected = torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)  # 1 − 0, 0 − (−1), −1 − 0
    assert torch.allclose(membership_scores(gradients, updates, 0), expected)
    assert torch.equal(membership_scores(gradients, updates[:1].repeat(3, 1), 0), torch.zeros(3, dtype=torch.float64))


def test_a_loss_counts_by_how_much_more_it_falls_than_by_others():
    drops = torch.tensor([[3.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    assert loss_scores(drops, 0).tolist() == [2.5, 0.0]


def test_labels_are_given_in_the_guessed_shares():
    assert guessed_labels(torch.tensor([0.5, -1.0, 0.25]), 3).tolist() == [0, 0, 2]


def test_an_area_and_a_correlation_by_hand():
    assert area(torch.tensor([3.0, 1.0, 2.0, 1.0]), torch.tensor([True, True, False, False])) == (1 + 1 + 0 + 0.5) / 4
    assert area(torch.tensor([3.0]), torch.tensor([True])) is None
    assert correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 6.0])) == pytest.approx(1)
    assert correlation(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 4.0])) == 0


def test_an_area_is_that_of_privacy_meter():
    """`MetricResult("", guesses, members, predictions_proba=scores).roc_auc` of Privacy Meter 1.0.1."""
    scores = torch.tensor([(7 * i * i + 3 * i) % 13 / 4 for i in range(14)])
    assert area(scores, torch.arange(14) % 5 < 2) == pytest.approx(0.6875, rel=1e-12)


# Inputs


def test_inputs_are_those_of_breaching():
    """`AnalyticAttacker.invert_fc_layer(weight, bias, [])` of breaching 0.1.2, whose rows have another order."""
    weight = [[0.8125, -0.875, 0.0], [-0.125, 1.0, -0.5625], [0.0, 0.0, 0.0], [1.25, -2.5, 0.75]]
    bias = [0.625, 0.25, 0.0, 0.5]
    inputs = recovered_inputs(*(torch.tensor(x, dtype=torch.float64) for x in (weight, bias)))
    assert sorted(inputs.tolist()) == [
        pytest.approx(x) for x in ([-0.5, 4.0, -2.25], [1.3, -1.4, 0.0], [2.5, -5.0, 1.5])
    ]


def one_step(count):
    """A model, some inputs, and the update of one step on them."""
    torch.manual_seed(count)
    module, x, y = network(), torch.randn(count, 1, 8, 8), torch.arange(count)
    model = {name: value.detach() for name, value in module.state_dict().items()}
    gradients = sample_gradients(module, model, x, y, [range(count)])
    return module, model, x, y, {name: -0.1 * g[0] for name, g in gradients.items()}


def test_gradients_are_those_of_the_mean_loss_of_a_group():
    module, _, x, y, update = one_step(3)
    cross_entropy(module(x), y).backward()
    assert difference(update, {name: -0.1 * p.grad for name, p in module.named_parameters()}) < 1e-7


def test_the_input_of_one_sample_is_read_off_a_linear_layer():
    _, _, x, _, update = one_step(1)
    inputs = recovered_inputs(update["fc1.weight"], update["fc1.bias"])
    assert torch.allclose(inputs, x.flatten(1).double().expand_as(inputs), atol=1e-4)
    assert similarity(inputs, x.flatten(1)) == pytest.approx(1)


def test_inputs_of_some_samples_are_found_by_descent():
    module, model, x, y, update = one_step(2)
    start = 0.1 * torch.randn(x.shape)
    assert similarity(start.flatten(1), x.flatten(1)) < 0.6
    assert similarity(matched_inputs(module, model, update, start, y).flatten(1), x.flatten(1)) > 0.95


def test_descent_on_noise_gives_no_input():
    module, model, x, y, update = one_step(2)
    draws = torch.Generator().manual_seed(0)
    start = 0.1 * torch.randn(x.shape, generator=draws)
    noise = {name: torch.randn(value.shape, generator=draws) for name, value in update.items()}
    assert similarity(matched_inputs(module, model, noise, start, y).flatten(1), x.flatten(1)) < 0.4


def test_noise_gives_no_input():
    torch.manual_seed(0)
    x = torch.randn(5, 64)
    noise = recovered_inputs(torch.randn(16, 64), torch.randn(16))
    assert similarity(noise, x) == pytest.approx(similarity(torch.randn(200, 64), x), abs=0.15)
    assert similarity(noise[:0], x) == 0


# What a host sees


def test_the_mean_of_what_a_host_sees_is_what_it_sends_next():
    sim = made()
    first, second = replayed(sim, 2)
    weights = sim.samples[first.ids].double() / sim.samples[first.ids].sum()
    for name, base in first.base.items():
        mean = torch.tensordot(weights, (base + first.update[name]).double(), 1)
        assert torch.allclose(mean, second.base[name][0].double(), atol=1e-6)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_with_secure_sums_it_sees_their_mean_alone(weights):
    method = replace(fedavg(train=TRAIN), merge=(Mean(weights=weights),))
    (seen,), (alone,) = replayed(made(method, secure=True), 1), replayed(made(method), 1)
    by = made().samples[alone.ids].double() if weights == "samples" else torch.ones(4, dtype=torch.float64)
    for name, x in seen.update.items():
        mean = torch.tensordot(by / by.sum(), alone.update[name].double(), 1)
        assert torch.allclose(x.double(), mean.expand_as(x), atol=1e-6)


def private(dp, noise, norm):
    return algorithm("fedavg+private", train=TRAIN, dp=dp, noise=noise, norm=norm, dp_delta=1e-5)


def test_noise_of_clients_is_in_what_it_sees():
    """Alone, an update has the client's noise; a sum has that of all, which is more than one of them adds."""
    (alone,) = replayed(made(), 1)
    for dp, secure in (("local", False), ("distributed", True)):
        (seen,) = replayed(made(private(dp, 1e-9, 1e3), secure=secure), 1)
        for name, x in seen.update.items():
            assert torch.allclose(seen.base[name], alone.base[name])
            expected = alone.update[name].mean(0).expand_as(x) if secure else alone.update[name]
            assert torch.allclose(x, expected, atol=1e-5)
    (own,) = replayed(made(private("local", 2.0, 1.0)), 1)
    (summed,) = replayed(made(private("distributed", 2.0, 1.0), secure=True), 1)
    assert float(own.update["fc1.weight"].std()) == pytest.approx(2.0, rel=0.1)
    # Each of 4 clients adds 2/√2 to the sum, whose quarter is seen: 3 open it, and one of them knows its own noise.
    assert float(summed.update["fc1.weight"].std()) == pytest.approx(2 / 2**0.5 * 4**0.5 / 4, rel=0.1)
    assert torch.equal(summed.update["fc1.weight"][0], summed.update["fc1.weight"][1])


def test_layers_that_stay_are_not_seen_and_columns_that_stay_do_not_move():
    (seen,) = replayed(made(fedper(train=TRAIN)), 1)
    assert {*seen.update} == {"fc1.weight", "fc1.bias"}
    (sparse,), (plain,) = (replayed(made(algorithm(name, train=TRAIN)), 1) for name in ("fedavg+topk", "fedavg"))
    unsent = sparse.update["fc1.weight"] == 0
    assert unsent.float().mean() > (plain.update["fc1.weight"] == 0).float().mean() + 0.3


def test_a_method_without_uploads_and_data_without_classes_are_refused():
    with pytest.raises(RunError, match="uploads"):
        leakage(made(algorithm("local", train=TRAIN)), 1, 2)
    sim = made()
    numbers = replace(sim.runtime.federation, classes=None, class_names=())
    with pytest.raises(RunError, match="classes"):
        leakage(replace(sim, runtime=replace(sim.runtime, federation=numbers)), 1, 2)


# All of it


@pytest.fixture(scope="module")
def secure_leaks():
    return leakage(made(secure=True), 1, 4)


@pytest.fixture(scope="module")
def leaks():
    return {(leak.layer, leak.attack): leak for leak in leakage(made(), 1, 4)}


def test_a_site_that_takes_one_step_gives_its_classes_away_in_every_layer(leaks):
    for layer in ("fc1", "fc", "fc, bias alone"):
        assert leaks[layer, SHARES].value > 0.9
        assert leaks[layer, PRESENCE].value > 0.8
        assert leaks[layer, LARGEST_CLASS].value > leaks[layer, LARGEST_CLASS].guess
    assert leaks["fc1", INVERSION].value > leaks["fc1", INVERSION].guess
    assert ("fc", INVERSION) not in leaks


def test_members_are_found_where_a_site_learns_a_few_samples_by_heart(monkeypatch):
    """Noise with labels by chance: only who trained on it can know it."""
    monkeypatch.setattr(measured, "MAX_MATCHED_SAMPLES", 0)  # no descent, which takes longest
    draws = torch.Generator().manual_seed(0)
    data = digits_federation(clients=4, partition=Dirichlet(alpha=100, minimum=20), test=0.97, seed=1)
    x, y = torch.randn(data.x.shape, generator=draws), torch.randint(0, 10, data.y.shape, generator=draws)
    sim = simulation(fedavg(train=replace(TRAIN, epochs=10)), replace(data, x=x, y=y), network, rounds=1)
    assert max(data.class_counts("train").sum(1)) < 14
    membership = {leak.layer: leak.value for leak in leakage(sim, 1, 4) if leak.attack == MEMBERSHIP}
    assert membership["fc1"] > 0.95
    assert membership["fc"] > 0.75
    assert membership[WHOLE_MODEL] > 0.9


def test_every_attack_fails_on_noise(monkeypatch):
    def noise(sim, rounds):
        draws = torch.Generator().manual_seed(0)
        for seen in replayed(sim, rounds):
            update = {name: 0.1 * torch.randn(x.shape, generator=draws) for name, x in seen.update.items()}
            yield replace(seen, update=update)

    monkeypatch.setattr(measured, "replayed", noise)
    monkeypatch.setattr(measured, "MAX_SAMPLES", 20)
    leaks = leakage(made(clients=12), 1, 12)
    assert {leak.attack for leak in leaks} == set(ATTACKS)
    for leak in leaks:
        if leak.attack == INVERSION:
            assert leak.value < leak.guess
        else:
            more = {SHARES: 0.3, LARGEST_CLASS: 0.3}.get(leak.attack, 0.15)
            assert abs(leak.value - leak.guess) < more, leak


def test_secure_sums_leave_little_more_than_a_guess(secure_leaks):
    for leak in secure_leaks:
        if leak.attack == MEMBERSHIP:
            assert leak.value == 0.5
        if leak.attack == SHARES:
            assert leak.value < 0.8


def test_a_picture_has_a_cell_for_each_layer_and_method(leaks):
    part = [leak for (layer, _), leak in leaks.items() if layer == "fc1"]
    picture = leakage_picture({"fedavg": list(leaks.values()), "fedper & co": part})
    assert picture.count("<title>") == len(leaks) + len(part)
    assert picture.count(">–<") == len(leaks) - len(part)
    assert "fedper &amp; co" in picture


def test_a_colour_says_how_far_an_attack_is_from_guessing():
    assert strength(Leak("fc", PRESENCE, 1, 0.75, 0.5)) == 0.5
    assert strength(Leak("fc", PRESENCE, 1, 0.4, 0.5)) == 0
    assert strength(Leak("fc", LARGEST_CLASS, 1, 1.0, 1.0)) == 0


# The page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_and_its_picture_show_what_the_file_has():
    """Means over three seeds, of the best layer where no layer is named."""
    seeds = defaultdict(list)
    with (DOCS / "results/leak/leaks.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            layer = line["layer"].replace("fc.linear", "fc")  # FedPrior's output layer
            seeds[line["method"], line["attack"], int(line["rounds"]), layer].append(float(line["value"]))
    assert {len(values) for values in seeds.values()} == {3}
    means = {key: sum(values) / 3 for key, values in seeds.items()}
    methods = {method for method, *_ in means}

    def best(method, attack, rounds):
        return max(value for key, value in means.items() if key[:3] == (method, attack, rounds))

    columns = [(SHARES, "fc1"), (SHARES, "fc"), (SHARES, "fc, bias alone"), (MEMBERSHIP, "fc1")]
    columns += [(MEMBERSHIP, WHOLE_MODEL), (INVERSION, "fc1"), (INVERSION, WHOLE_MODEL)]
    shown = {}
    for line in (DOCS / "guide/leak.md").read_text().splitlines():
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if name.strip("`") in methods:
            shown[name.strip("`")] = cells
    for method in methods:
        row = [means.get((method, attack, 4, layer)) for attack, layer in columns]
        row[3:3] = [best(method, SHARES, 1), best(method, LARGEST_CLASS, 4)]
        assert shown[method] == ["–" if value is None else f"{value:.2f}" for value in row], method
    picture = (DOCS / "pictures/leaks.svg").read_text()
    assert {method for method in methods if f">{method}</text>" in picture} == methods
