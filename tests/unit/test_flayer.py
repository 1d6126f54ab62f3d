"""FLAYER equation by equation: values worked out by hand, and whole runs against plain PyTorch loops in float64."""

import copy
import importlib
import logging
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from plain_flayer import TRAIN, PlainFlayer, PlainOfficial, of, share_correct, state
from torch import nn

from stratafl.algorithms import fedavg, fedper, flayer
from stratafl.algorithms.flayer import Guide, LayerRate, TopChange, top
from stratafl.algorithms.flayer_official import HEAD_RATE, KernelTop, child_rates, children, kernel_mask, official
from stratafl.core.describe import describe
from stratafl.core.layers import select
from stratafl.core.parcel import ColumnMask, Field, Parcel, count_bytes
from stratafl.data import from_splits
from stratafl.errors import DataError, RecordError
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix, simulation
from stratafl.models import build
from stratafl.policies import Accuracy, LocalTraining, Mean, Pull, Remember, Take
from stratafl.runtime import engine
from stratafl.testing import CLASSES, SHAPE, tiny_federation
from tiers import slow_except

SIZES = (23, 14, 12, 7, 4)
PARTS = {
    "none": flayer(guide=False, rates=False, mask=False, train=TRAIN),
    "guide": flayer(rates=False, mask=False, train=TRAIN),
    "rates": flayer(guide=False, mask=False, train=TRAIN),
    "mask": flayer(guide=False, rates=False, train=TRAIN),
    "all": flayer(train=TRAIN),
}


@pytest.fixture(autouse=True)
def untraced(monkeypatch):
    """Steps are not traced: that takes most of the time of a short run."""
    monkeypatch.setattr(engine, "patience", lambda _: float("inf"), raising=False)


def mlp(*hidden):
    torch.manual_seed(3)
    return build("mlp", shape=SHAPE, classes=CLASSES, hidden=hidden)


def convnorm():
    torch.manual_seed(5)
    return build("convnorm", shape=SHAPE, classes=CLASSES, channels=4, dropout=0.0)


def made(alg, module, federation=None, **options):
    options = {"rounds": 3, "dtype": torch.float64} | options
    return simulation(alg, federation or tiny_federation(SIZES), module, **options)


def everybody(sim, progress):
    return received_models(sim, progress, torch.arange(sim.setup.clients))


def close(a, b):
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (a, b))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


# Eq. 2: where training starts


def mixed(module, head, A, own, theirs, **options):
    """What `Guide` makes of heads full of `own` and a global model full of `theirs`."""
    sim = made(flayer(), module, **options)
    rnd, layout = sim.at(0), sim.setup.layout
    task = sim.task(torch.arange(len(A)), rnd)
    kept = layout.staying(select(head))
    client = {
        "theta": {n: torch.full((len(A), *layout.specs[n].shape), own, dtype=torch.float64) for n in kept},
        "accuracy": torch.tensor(A, dtype=torch.float64),
    }
    sent = {n: torch.full(layout.specs[n].shape, theirs, dtype=torch.float64) for n in layout.travelling()}
    rows = Guide(select(head))(rnd, client, Parcel({"theta": Field(sent, common=True)}), task)["theta"]
    return rows, task


def test_the_head_is_mixed_by_accuracy_and_the_base_is_the_global_one():
    rows, task = mixed(mlp(4), "last:1", (0.0, 0.25, 1.0), own=2.0, theirs=6.0)
    for name in ("fc.weight", "fc.bias"):  # A·2 + (1 − A)·6
        assert [rows[name][k].unique().tolist() for k in range(3)] == [[6.0], [5.0], [2.0]]
    for name in ("fc1.weight", "fc1.bias"):
        assert rows[name].unique().tolist() == [6.0]
    close(task.notes["mix/own"], [[0, 0], [0, 0.25], [0, 1]])


@pytest.mark.parametrize(("buffers", "expected"), [("follow", 5.0), ("local", 2.0)])
def test_statistics_of_the_head_are_mixed_like_it_where_they_travel(buffers, expected):
    rows, _ = mixed(convnorm(), "last:2", (0.25,), own=2.0, theirs=6.0, buffers=buffers)
    assert rows["bn2.running_mean"].unique().tolist() == [expected]
    assert rows["bn1.running_mean"].unique().tolist() == [6.0 if buffers == "follow" else 2.0]
    assert rows["bn2.weight"].unique().tolist() == rows["conv2.weight"].unique().tolist() == [5.0]
    assert rows["bn1.weight"].unique().tolist() == rows["conv1.weight"].unique().tolist() == [6.0]


@pytest.mark.parametrize(("moment", "split"), [("trained", "train"), ("initialised", "validation")])
def test_the_accuracy_is_that_of_the_last_time_it_took_part(moment, split):
    module, federation = convnorm(), tiny_federation(SIZES)
    sim = made(flayer(accuracy_of=moment, accuracy=split, train=TRAIN), module, federation)
    first = sim.start()
    assert [float(a) for a in sim.algorithm.enrol(sim.setup, torch.arange(5))["accuracy"]] == [0.0] * 5
    seen = {}
    second, _ = sim.round(first, Matrix(), torch.tensor([0]), lambda g, before, after: seen.update(a=(before, after)))
    begun, trained = ({n: x[0] for n, x in rows.items()} for rows in seen["a"])
    expected = share_correct(module, trained if moment == "trained" else begun, *of(federation, 0, split))
    assert 0 < expected < 1
    close(second.clients[0]["accuracy"], expected)
    rows, global_model = everybody(sim, second), second.server["theta"]
    for name in ("fc.weight", "fc.bias"):
        close(rows[name][0], expected * trained[name] + (1 - expected) * global_model[name])
        assert torch.equal(rows[name][1], global_model[name])  # who never took part has A = 0
    third, _ = sim.round(second, Matrix(), torch.tensor([1]))
    assert third.clients[0]["accuracy"] == second.clients[0]["accuracy"]
    close(
        everybody(sim, third)["fc.bias"][0],
        expected * trained["fc.bias"] + (1 - expected) * third.server["theta"]["fc.bias"],
    )


def test_the_first_round_starts_from_the_global_model():
    sim = made(flayer(), convnorm())
    rows = everybody(sim, sim.start())
    assert all(torch.equal(rows[name][k], x) for name, x in sim.setup.start.items() for k in range(5))


def test_a_fixed_accuracy_is_never_measured():
    alg = flayer(accuracy=0.3, train=TRAIN)
    assert not any(isinstance(step, Accuracy) for step in alg.steps)
    sim = made(alg, mlp(4))
    progress = sim.run(Matrix())
    assert {round(float(memory["accuracy"]), 12) for memory in progress.clients.values()} == {0.3}
    assert flayer(accuracy=1) == flayer(accuracy=1.0)


# Eq. 3–4: a rate per client, layer and step


def test_the_rate_by_hand():
    layout = describe(mlp(2, 3))
    assert layout.names == ("fc1", "fc2", "fc")
    zeros = {n: torch.zeros(2, *s.shape, dtype=torch.float64) for n, s in layout.specs.items()}
    zeros["fc1.weight"][0, 0, 0] = 3.0
    zeros["fc1.bias"][0, 1] = 4.0  # ‖g^(1)‖ = 5 over weight and bias
    zeros["fc2.weight"][0, 0, 1] = 0.1
    zeros["fc.bias"][0, 2] = -1.0
    factors = LayerRate()(zeros, zeros, {}, layout)
    floor = math.log(1 + 1e8)
    expected = {  # 1 + ln(1 + 1/‖g‖)·i/3
        "fc1": [1 + math.log(1.2) / 3, 1 + floor / 3],
        "fc2": [1 + math.log(11) * 2 / 3, 1 + floor * 2 / 3],
        "fc": [1 + math.log(2), 1 + floor],
    }
    for name, factor in factors.items():
        close(factor.flatten(), expected[name.partition(".")[0]])
    assert LayerRate(floor=1.0)(zeros, zeros, {}, layout)["fc.bias"].flatten().tolist()[1] == 1 + math.log(2)


def test_a_normalisation_is_part_of_the_layer_it_normalises():
    layout = describe(convnorm())
    assert layout.names == ("conv1", "bn1", "conv2", "bn2", "fc")
    assert layout.units == (0, 0, 1, 1, 2)
    gradients = {n: torch.zeros(1, *s.shape).double() for n, s in layout.specs.items() if s.trainable}
    gradients["conv2.weight"][0, 0, 0, 0, 0], gradients["bn2.bias"][0, 1] = 3.0, 4.0
    factors = LayerRate()(gradients, gradients, {}, layout)
    for name in ("conv2.weight", "bn2.weight", "bn2.bias"):
        close(factors[name].flatten(), [1 + math.log(1.2) * 2 / 3])
    blocks = describe(build("resnet20", shape=(3, 8, 8), classes=10), granularity="block")
    assert blocks.units == tuple(range(len(blocks.names)))  # stem, nine blocks, fc1, fc2, fc


def test_two_steps_by_hand():
    """Two numbers, w₂·w₁·x with squared error: g₁ = 2·(w₂·w₁·x − y)·w₂·x, g₂ = 2·(w₂·w₁·x − y)·w₁·x."""
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        module[0].weight.fill_(0.5)
        module[1].weight.fill_(2.0)
    data = from_splits([{"train": ([[3.0]], [[1.0]])}], dtype=torch.float64)
    sim = made(flayer(guide=False, mask=False, train=LocalTraining(lr=0.01, epochs=2)), module, data, rounds=1)
    progress, report = sim.round(sim.start(), Matrix(), watched=True)
    w, rates = [0.5, 2.0], []
    for _ in range(2):
        residual = 2 * (w[0] * w[1] * 3 - 1) * 3
        g = [residual * w[1], residual * w[0]]
        rates.append([0.01 * (1 + math.log(1 + 1 / abs(g[i])) * (i + 1) / 2) for i in range(2)])
        w = [w[i] - rates[-1][i] * g[i] for i in range(2)]
    close(progress.server["theta"]["0.weight"].item(), w[0])
    close(progress.server["theta"]["1.weight"].item(), w[1])
    close(report.notes["train/rates"], [[(rates[0][i] + rates[1][i]) / 2 for i in range(2)]])


EDITED = {
    "pull": LocalTraining(edits=Pull(3.0)),
    "clip": LocalTraining(clip=0.5),
    "decay": LocalTraining(weight_decay=0.7),
    "plain": LocalTraining(),
}


@pytest.mark.parametrize("name", EDITED)
def test_the_rate_is_that_of_the_gradient_after_edits_and_before_clipping_and_decay(name):
    """The two numbers above; the second step is pulled back to where the first began."""
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        module[0].weight.fill_(0.5)
        module[1].weight.fill_(2.0)
    data = from_splits([{"train": ([[3.0]], [[1.0]])}], dtype=torch.float64)
    train = replace(EDITED[name], lr=0.01, epochs=2)
    sim = made(flayer(guide=False, mask=False, train=train), module, data, rounds=1)
    progress, _ = sim.round(sim.start(), Matrix())
    w = [0.5, 2.0]
    for _ in range(2):
        residual = 2 * (w[0] * w[1] * 3 - 1) * 3
        g = [residual * w[1], residual * w[0]]
        if name == "pull":
            g = [g[i] + 3.0 * (w[i] - (0.5, 2.0)[i]) for i in range(2)]
        rates = [0.01 * (1 + math.log(1 + 1 / abs(g[i])) * (i + 1) / 2) for i in range(2)]
        if name == "clip":
            g = [each * 0.5 / (math.hypot(*g) + 1e-6) for each in g]
        if name == "decay":
            g = [g[i] + 0.7 * w[i] for i in range(2)]
        w = [w[i] - rates[i] * g[i] for i in range(2)]
    close(progress.server["theta"]["0.weight"].item(), w[0])
    close(progress.server["theta"]["1.weight"].item(), w[1])


def test_rates_that_were_there_are_kept():
    own = LayerRate(floor=0.5)
    assert flayer(train=LocalTraining(rates=own)).train[0].rates == (own, LayerRate())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_floor_does_not_vanish_in_short_numbers(dtype):
    layout = describe(mlp(2))
    zeros = {n: torch.zeros(1, *s.shape, dtype=dtype) for n, s in layout.specs.items()}
    assert all(factor.isfinite().all() for factor in LayerRate()(zeros, zeros, {}, layout).values())


# Eq. 5–9: what is sent


def test_the_largest_of_weight_and_bias_together():
    values = {"w": torch.tensor([[[1.0, 5.0], [2.0, 3.0]]]), "b": torch.tensor([[4.0, 0.5]])}
    half = top(values, 0.5)  # three of six: 5, 4, 3
    assert half["w"].tolist() == [[[False, True], [False, True]]]
    assert half["b"].tolist() == [[True, False]]


@pytest.mark.parametrize(("share", "count"), [(0.1, 1), (1 / 3, 4), (0.3, 3), (0.31, 4), (0.7, 7), (1.0, 10)])
def test_a_share_is_rounded_up(share, count):
    assert int(top({"w": torch.rand(1, 10)}, share)["w"].sum()) == count


def test_a_share_that_is_whole_is_not_rounded_up():
    assert 7 / 25 * 100 > 28
    assert int(top({"w": torch.rand(1, 100)}, 7 / 25)["w"].sum()) == 28


def test_ties_go_to_the_first():
    values = {"w": torch.tensor([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0]]), "b": torch.tensor([[1.0], [0.0]])}
    chosen = top(values, 0.5)
    assert chosen["w"].tolist() == [[True, True, False], [True, True, False]]
    assert not chosen["b"].any()


def upload(module, least=0.1, clients=2, seed=0, **options):
    """What `TopChange` sends of rows that moved at random."""
    layout = describe(module, **options)
    generator = torch.Generator().manual_seed(seed)
    start, theta = (
        {n: torch.randn(clients, *s.shape, generator=generator) for n, s in layout.specs.items()} for _ in range(2)
    )
    task = SimpleNamespace(sizes=lambda split: torch.arange(1, clients + 1))
    client = {"theta": theta, "anchor": start}
    return layout, client, Parcel(TopChange(least)(SimpleNamespace(layout=layout), client, task))


@pytest.mark.parametrize("least", [0.1, 0.5, 1.0])
def test_each_layer_sends_its_share_of_what_changed_most(least):
    layout, client, parcel = upload(mlp(7, 5), least)
    sent = parcel["theta"].mask.sent
    for i, name in enumerate(layout.names, 1):
        share = min(max(i / 3, least), 1)  # Eq. 5
        tensors = [f"{name}.weight", f"{name}.bias"]
        for k in range(2):
            change = torch.cat([(client["theta"][n][k] - client["anchor"][n][k]).abs().flatten() for n in tensors])
            chosen = torch.cat([sent[n][k].flatten() for n in tensors])
            assert int(chosen.sum()) == math.ceil(share * len(change) - 1e-9)  # Eq. 7
            assert chosen.all() or change[chosen].min() >= change[~chosen].max()  # Eq. 6 and 8
    for name, block in parcel["theta"].rows.items():  # Eq. 9: the trained values themselves
        assert torch.equal(block[sent[name]], client["theta"][name][sent[name]])
    assert parcel["samples"].tensor.tolist() == [1, 2]


def test_the_first_layers_of_a_deep_model_send_a_tenth():
    layout, _, parcel = upload(mlp(*(3,) * 19), clients=1)
    sent = parcel["theta"].mask.sent
    counts = [int(sum(sent[n].sum() for n in layer.tensors)) for layer in layout.layers]
    assert counts[:3] == [math.ceil(0.1 * 111), math.ceil(0.1 * 12), math.ceil(0.15 * 12)]
    assert counts[-1] == 12


@pytest.mark.parametrize("buffers", ["follow", "local"])
def test_statistics_go_whole_or_not_at_all(buffers):
    layout, _, parcel = upload(convnorm(), buffers=buffers)
    sent = parcel["theta"].mask.sent
    statistics = [n for n, s in layout.specs.items() if not s.trainable]
    assert len(statistics) == 4
    assert all(sent[n].all() if buffers == "follow" else n not in sent for n in statistics)
    unit = int(sum(sent[n][0].sum() for n in ("conv1.weight", "bn1.weight", "bn1.bias")))
    assert unit == math.ceil(sum(layout.specs[n].size for n in ("conv1.weight", "bn1.weight", "bn1.bias")) / 3)


def test_another_method_sends_the_largest_changes_of_the_layers_it_shares():
    """FedPer: the base alone, with i and L of the whole model; each column is averaged over those who sent it."""
    federation = tiny_federation(SIZES)
    base = replace(fedper(train=TRAIN), mix=(Take(), Remember()), send=(TopChange(layers="base"),))
    sim, seen = made(base, mlp(8, 6), federation, rounds=1), {}
    progress, report = sim.round(
        sim.start(), Matrix(), examine=lambda group, before, after: seen.update(a=(group.tolist(), before, after))
    )
    order, before, after = seen["a"]
    n = torch.tensor([len(federation.split("train").of(k)) for k in order]).double()
    for i, layer in ((1, "fc1"), (2, "fc2")):
        names = [f"{layer}.weight", f"{layer}.bias"]
        old, new = (torch.cat([rows[name].flatten(1) for name in names], 1) for rows in (before, after))
        kept = torch.zeros_like(old)
        for k, change in enumerate((new - old).abs()):
            count = math.ceil(i / 3 * len(change) - 1e-9)
            kept[k, sorted(range(len(change)), key=lambda j, c=change: (-float(c[j]), j))[:count]] = 1
        weight = (n[:, None] * kept).sum(0)
        expected = torch.where(weight > 0, (n[:, None] * kept * new).sum(0) / weight.clamp(min=1), old[0])
        close(torch.cat([progress.server["theta"][name].flatten() for name in names]), expected)
        assert int(report.up.values[i - 1]) == int(kept.sum())
    assert "fc.weight" not in progress.server["theta"]
    assert int(report.up.values[2]) == 0
    rows = everybody(sim, progress)
    for k, client in enumerate(order):
        assert torch.equal(rows["fc.weight"][client], after["fc.weight"][k])


@pytest.mark.parametrize(("model", "classes", "values"), [("cnn", 100, 692_324), ("cnn", 10, 646_154)])
def test_bytes_are_values_and_a_bitmap(model, classes, values):
    """2.77 MB and 0.12 MB of masks instead of 3.70 MB, for 100 classes."""
    layout, _, parcel = upload(build(model, shape=(3, 32, 32), classes=classes), clients=1)
    bytes_ = count_bytes(parcel, layout, 1)
    bitmap = sum(math.ceil(spec.size / 8) for spec in layout.specs.values())
    assert int(bytes_.values.sum()) == values
    assert bytes_.total == 4 * values + bitmap + 8  # and n_k
    if classes == 100:
        assert (round(4 * values / 1e6, 2), round(bitmap / 1e6, 2), round(4 * layout.columns / 1e6, 2)) == (
            2.77,
            0.12,
            3.70,
        )


# Line 12: the mean over those who sent


def merged(unsent):
    layout = describe(nn.Sequential(nn.Linear(4, 1, bias=False)))
    rows = torch.tensor([[[1.0, 2.0, 3.0, 9.0]], [[5.0, 6.0, 9.0, 9.0]], [[9.0, 7.0, 9.0, 9.0]]])
    sent = torch.tensor([[[1, 1, 1, 0]], [[1, 1, 0, 0]], [[0, 1, 0, 0]]]).bool()
    up = Parcel({"theta": Field({"0.weight": rows}, mask=ColumnMask({"0.weight": sent}))}).poisoned(layout)
    up = Parcel({**up, "samples": Field(torch.tensor([1, 3, 4]))})
    rnd, server = SimpleNamespace(layout=layout), {"theta": {"0.weight": torch.tensor([[10.0, 20.0, 30.0, 40.0]])}}
    merge = Mean(unsent=unsent)
    sums = merge.fold(rnd, server, {}, up, torch.arange(3))
    return merge.finish(rnd, server, sums)["theta"]["0.weight"].flatten()


def test_the_mean_is_over_those_who_sent_and_what_nobody_sent_is_held():
    close(merged("held"), [(1 + 15) / 4, (2 + 18 + 28) / 8, 3, 40])


def test_the_letter_of_line_12_averages_zeros_in():
    close(merged("zero"), [16 / 8, 48 / 8, 3 / 8, 0])


@pytest.mark.slow
def test_the_letter_of_line_12_collapses_the_base():
    norms = {}
    for unsent in ("held", "zero"):
        sim = made(flayer(unsent=unsent, train=replace(TRAIN, epochs=1)), mlp(16, 8), rounds=8)
        progress, norms[unsent] = sim.start(), []
        for _ in range(8):
            norms[unsent].append(float(progress.server["theta"]["fc1.weight"].norm()))
            progress, _ = sim.round(progress, Matrix())
    assert all(later < 0.8 * earlier for earlier, later in zip(norms["zero"][:5], norms["zero"][1:5], strict=False))
    assert norms["zero"][-1] < 0.3 * norms["zero"][0]
    assert min(norms["held"]) >= 0.99 * norms["held"][0]


# Whole runs


CONV = (("conv1", "bn1"), ("conv2", "bn2"), ("fc",))
CASES = {
    "paper": ({}, {}, "follow"),
    "two layers in the head, zeros averaged in": (
        {"s": 2, "unsent": "zero", "accuracy": "validation", "accuracy_of": "initialised", "least": 0.5},
        {"s": 2, "unsent": "zero", "split": "validation", "moment": "initialised", "least": 0.5},
        "local",
    ),
    "zeros averaged in": ({"unsent": "zero"}, {"unsent": "zero"}, "follow"),
    "fixed accuracy": ({"accuracy": 0.3}, {"fixed": 0.3}, "follow"),
}


@pytest.mark.budget(0.9, "three rounds, all parts, against a plain loop")
@pytest.mark.parametrize("name", slow_except(list(CASES)[:1], CASES))
def test_a_run_is_its_plain_loop(name):
    """Three rounds, five ragged clients of which three take part, all three parts on."""
    options, plain, buffers = CASES[name]
    federation, module = tiny_federation(SIZES), convnorm().double()
    alg = flayer(train=TRAIN, **options)
    sim = made(alg, module, federation, participation=0.6, buffers=buffers, engine="stacked")
    oracle = PlainFlayer(federation, copy.deepcopy(module), CONV, buffers=buffers, **plain)
    progress = sim.start()
    for t in range(3):
        progress, report = sim.round(progress, Matrix())
        oracle.round(t)
        assert sorted(report.cohort.tolist()) == sorted(oracle.cohorts[t])
    assert len(set(map(tuple, oracle.cohorts))) > 1
    rows = everybody(sim, progress)
    for k in range(5):
        expected = state(oracle.initialised(k))
        assert max(float((rows[n][k] - x).abs().max()) for n, x in expected.items()) < 1e-10
    moved = max(float((rows[n] - x).abs().max()) for n, x in sim.setup.start.items())
    assert moved > 1e-2
    for k, A in oracle.accuracy.items():
        close(progress.clients[k]["accuracy"], A)


@pytest.mark.slow
def test_each_part_alone_and_all_together_differ():
    """Fig. 3's variants: from FedAvg, and from each other."""
    models = {}
    for name, alg in PARTS.items():
        sim = made(alg, mlp(8, 6))
        models[name] = everybody(sim, sim.run(Matrix()))
    sim = made(fedavg(train=TRAIN), mlp(8, 6))
    plain = everybody(sim, sim.run(Matrix()))
    assert all(torch.equal(models["none"][n], plain[n]) for n in plain)
    for a, b in combinations(PARTS, 2):
        assert max(float((models[a][n] - models[b][n]).abs().max()) for n in plain) > 1e-3, (a, b)


def test_masks_leave_something_out():
    sim = made(flayer(train=TRAIN), mlp(8, 6))
    _, report = sim.round(sim.start(), Matrix())
    sizes = torch.tensor([sum(sim.setup.layout.specs[n].size for n in one.tensors) for one in sim.setup.layout.layers])
    share = report.up.values / (5 * sizes)
    assert [round(x, 2) for x in share.tolist()] == [0.33, 0.67, 1.0]


# On real data


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return SimpleNamespace(
        parts=importlib.import_module("examples.flayer_parts"), cka=importlib.import_module("examples.flayer_cka")
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_layers_are_less_alike_the_nearer_they_are_to_the_output(examples, seed):
    """Fig. 2: CKA after local training, on the digits."""
    first, last = examples.cka.similarities(flayer(train=examples.cka.TRAIN), seed, rounds=3)
    for similar in (first, last):
        assert similar["fc1"] > similar["fc2"] + 0.02
        assert similar["fc2"] > similar["fc"] + 0.05


@pytest.mark.nightly
def test_early_on_mixing_the_head_helps_and_all_parts_help_more(examples):
    """Fig. 3, models as received after eight rounds on the digits: 56 and 71 % where FedAvg has 22 %."""
    reached = {
        name: examples.parts.history(examples.parts.PARTS[name], 0, rounds=8, every=8)[-1]["test.received.accuracy"]
        for name in ("FedAvg", "aggregation only", "FLAYER")
    }
    assert reached["FLAYER"] > reached["aggregation only"] + 0.05
    assert reached["aggregation only"] > reached["FedAvg"] + 0.2


# Bad input


@pytest.mark.parametrize(
    ("module", "s", "values"),
    [
        (mlp(4), 2, "1 to 1$"),
        (mlp(4, 4, 4), 4, "1 to 3$"),
        (convnorm(), 3, "1 to 2$"),
        (mlp(), 1, "'last:1'"),
        (mlp(4), 5, "2: fc1, fc"),
    ],
)
def test_a_head_that_leaves_no_base_is_refused(module, s, values):
    with pytest.raises(RecordError, match=values):
        made(flayer(s=s), module)


def test_a_split_that_does_not_exist_is_refused():
    nothing = from_splits([{"train": ([[0.0], [1.0]], [0, 1]), "test": ([[0.0]], [0])}] * 2, classes=2)
    module = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2))
    with pytest.raises(DataError, match="'validation'"):
        simulation(flayer(accuracy="validation"), nothing, module, rounds=1)


def test_an_accuracy_needs_classes():
    numbers = from_splits([{"train": ([[0.0], [1.0]], [[0.5], [1.0]])}])
    module = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
    with pytest.raises(RecordError, match="classes"):
        simulation(flayer(), numbers, module, rounds=1)
    simulation(flayer(accuracy=0.5), numbers, module, rounds=1)


# What the authors' code does


class Short(nn.Module):
    """Convolutions of 3×3 and of 1×1, a hidden layer and a head."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.point = nn.Conv2d(2, 3, 1)
        self.hidden = nn.Linear(48, 5)
        self.fc = nn.Linear(5, CLASSES)

    def forward(self, x):
        z = torch.relu(self.point(torch.relu(self.norm(self.conv(x)))))
        return self.fc(torch.relu(self.hidden(z.flatten(1))))


def short():
    torch.manual_seed(2)
    return Short().double()


def test_the_official_preset_says_aloud_that_it_leaks(caplog):
    with caplog.at_level(logging.WARNING, "stratafl"):
        made(flayer(preset="official"), short())
    assert [record.levelname for record in caplog.records if "test accuracy" in record.getMessage()] == ["WARNING"]


@pytest.mark.parametrize("train", [LocalTraining(drop_last=True), LocalTraining(shuffle=False)])
def test_batches_that_the_official_preset_would_not_take_are_refused(train):
    with pytest.raises(RecordError, match=r"train\.drop_last"):
        official(train=train)


def test_the_official_preset_says_when_statistics_would_travel(caplog):
    with caplog.at_level(logging.WARNING, "stratafl"):
        made(official(), short(), buffers="local")
        made(official(), mlp(4))
        assert "run.buffers" not in caplog.text
        made(official(), short())
    assert "set run.buffers to 'local'" in caplog.text


def test_nobody_is_given_the_test_split_without_saying_so():
    with pytest.raises(DataError, match="test split"):
        made(replace(official(), leaks=None), short())


def test_official_rates_by_hand():
    """The first child 1, the head 1/5, between them 20·(1 + i/(n − 1)·mean of ln(1 + 1/‖g‖) over its tensors)."""
    layout = describe(mlp(2, 3))
    assert children(layout) == ["fc1", "fc2", "fc"]
    gradients = {n: torch.zeros(1, *s.shape).double() for n, s in layout.specs.items()}
    gradients["fc2.weight"][0, 0, 0], gradients["fc2.bias"][0, 0] = 1.0, 0.1
    close(child_rates(gradients, layout, 20.0), [[1, 20 * (1 + (math.log(2) + math.log(11)) / 2 / 2), 0.2]])
    close(child_rates(gradients, layout, 1.0)[0, 1], 1 + (math.log(2) + math.log(11)) / 4)
    gradients["fc2.bias"][0, 0] = 0.0  # a norm of 0 has a floor
    close(child_rates(gradients, layout, 1.0)[0, 1], 1 + (math.log(2) + math.log(1 + 1e8)) / 4)
    deeper = describe(short())
    assert children(deeper) == ["conv", "norm", "point", "hidden", "fc"]


def test_kernel_masks_by_hand():
    change = torch.arange(9.0).reshape(1, 1, 1, 3, 3)
    assert kernel_mask(change, 0.5).flatten().tolist() == [False] * 4 + [True] * 5  # round(4.5) is 4
    assert int(kernel_mask(change, 0.7).sum()) == 6  # round(2.7) is 3
    assert int(kernel_mask(change, 0.99).sum()) == 8  # at least one goes
    assert int(kernel_mask(change, 0.01).sum()) == 1  # and one stays
    assert not kernel_mask(torch.ones(2, 3, 4, 1, 1), 0.9).any()  # nothing stays of a 1×1 convolution
    vector = kernel_mask(torch.tensor([[3.0, 1.0, 2.0, 0.0, 4.0]]), 0.6)
    assert vector.tolist() == [[True, False, True, False, True]]
    assert kernel_mask(torch.zeros(2, 3, 4), 0.1).all()  # a matrix is never masked


def test_official_shares_go_by_tensor():
    """clamp(index / tensors, 0.1, 0.9) from 0, everything of the last two."""
    layout = describe(build("mlp", shape=SHAPE, classes=10, hidden=(10,) * 4))
    generator = torch.Generator().manual_seed(0)
    theta = {n: torch.randn(1, *s.shape, generator=generator) for n, s in layout.specs.items()}
    client = {"theta": theta, "anchor": {n: torch.zeros_like(x) for n, x in theta.items()}}
    task = SimpleNamespace(sizes=lambda split: torch.ones(1, dtype=torch.int64))
    sent = KernelTop()(SimpleNamespace(layout=layout), client, task)["theta"].mask.sent
    assert all(sent[n].all() for n in sent if n.endswith("weight"))
    biases = [int(sent[f"fc{i}.bias"].sum()) for i in range(1, 5)]
    assert biases == [10 - round(10 * (1 - max(i / 10, 0.1))) for i in (1, 3, 5, 7)]
    assert sent["fc.bias"].all()


def test_official_shares_are_from_a_tenth_to_nine_tenths():
    """Of 40 tensors: the second has 1/40 and keeps 4 of 40, the last but two has 37/40 and loses 4 of 40."""
    layout = describe(build("mlp", shape=SHAPE, classes=3, hidden=(40,) * 19))
    assert layout.trainable()[37] == "fc19.bias"
    theta = {n: torch.randn(1, *s.shape) for n, s in layout.specs.items()}
    client = {"theta": theta, "anchor": {n: torch.zeros_like(x) for n, x in theta.items()}}
    task = SimpleNamespace(sizes=lambda split: torch.ones(1, dtype=torch.int64))
    sent = KernelTop()(SimpleNamespace(layout=layout), client, task)["theta"].mask.sent
    assert (int(sent["fc1.bias"].sum()), int(sent["fc19.bias"].sum())) == (4, 36)


def test_rates_of_the_official_preset_are_added_up_only_when_watched():
    sim = made(flayer(preset="official"), short(), buffers="local")
    _, quiet = sim.round(sim.start(), Matrix())
    _, watched = sim.round(sim.start(), Matrix(), watched=True)
    assert "train/rates" not in quiet.notes
    assert watched.notes["train/rates"].shape == (5, 5)


def test_official_rates_are_noted_for_layers_with_something_to_train():
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, CLASSES))
    sim = made(official(), module, buffers="local")
    _, report = sim.round(sim.start(), Matrix(), watched=True)
    assert sim.setup.layout.names == ("1", "2", "3")
    assert ((report.notes["train/rates"] > 0).sum(0) > 0).tolist() == [True, False, True]


@pytest.mark.slow  # three rounds of a head epoch and an epoch per child
@pytest.mark.parametrize("own", [{}, {"p": 4, "middle": 1.0}], ids=["cnn", "resnet"])
def test_the_official_preset_is_its_plain_loop(own):
    federation, module = tiny_federation((23, 14, 12, 7)), short()
    train = LocalTraining(lr=0.01, epochs=2, batch=5, drop_last=True)
    sim = made(flayer(preset="official", train=train, **own), module, federation, buffers="local", engine="stacked")
    oracle, progress = PlainOfficial(federation, copy.deepcopy(module), **own), sim.start()
    for _ in range(3):
        progress, report = sim.round(progress, Matrix())
        oracle.round()
    rows = everybody(sim, progress)
    for k in range(4):
        expected = state(oracle.initialised(k))
        assert max(float((rows[n][k] - x).abs().max()) for n, x in expected.items()) < 1e-10
        close(progress.clients[k]["accuracy"], oracle.accuracy[k])
    assert len(set(oracle.accuracy.values())) > 1
    assert torch.equal(progress.server["theta"]["point.weight"], module.point.weight.detach())  # never changes
    assert not torch.equal(progress.clients[0]["theta"]["point.weight"], module.point.weight.detach())
    assert not torch.equal(progress.server["theta"]["conv.weight"], module.conv.weight.detach())
    assert report.notes["train/steps"].tolist() == [8, 4, 4, 2]


def test_before_training_the_official_preset_trains_the_head_alone():
    federation, module = tiny_federation((23, 14)), short()
    sim = made(
        flayer(preset="official", train=LocalTraining(lr=0.1, batch=5, drop_last=True)),
        module,
        federation,
        buffers="local",
    )
    rows = everybody(sim, sim.start())
    moved = {n for n, x in sim.setup.start.items() if not torch.equal(rows[n][0], x)}
    assert moved == {"fc.weight", "fc.bias", "norm.running_mean", "norm.running_var"}
    assert HEAD_RATE == 0.2


@pytest.mark.parametrize(("p", "values"), [(0, "1, not 0"), (10, "1 to 9 .*not 10")])
def test_official_heads_of_an_impossible_size_are_refused(p, values):
    with pytest.raises(RecordError, match=values):
        made(official(p=p), short())


def test_official_batches_that_leave_nothing_are_refused():
    with pytest.raises(DataError, match=r"drop_last .* 50 "):
        made(flayer(preset="official", train=LocalTraining(batch=50, drop_last=True)), short())
