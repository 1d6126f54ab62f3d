"""Robust merges against plain numpy, their special cases, and from a method to a robust one."""

import csv
import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from plain_robust import drawn

from methods import every_method
from simulations import built
from stratafl.algorithms import ALGORITHMS, algorithm, fedavg, fedbn, fedper, flayer, local, pfedla
from stratafl.config.assemble import algorithm_of, simulation_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Parcel
from stratafl.core.phased import Phase, Phased
from stratafl.errors import RecordError, UnknownNameError
from stratafl.execute import Matrix, Messages
from stratafl.leak.replay import replayed
from stratafl.policies import ClippedMean, Krum, Mean, Median, TrimmedMean
from stratafl.policies.robust import robust
from stratafl.policies.robust_merge import RobustMerge
from stratafl.testing import check_algorithm, difference
from stratafl.testing.watch import Tampered
from tiers import slow_except

HOW = {"median": Median(), "trimmed": TrimmedMean(), "clipped": ClippedMean()}


def made(method, batchnorm=False, **options):
    return built(method, batchnorm=batchnorm, **options)


def columns(rows, draw):
    return ColumnMask({n: torch.rand(x.shape, generator=draw) < 0.5 for n, x in rows.items()})


def layers(rows, draw):
    return LayerMask(torch.rand(len(next(iter(rows.values()))), 2, generator=draw) < 0.5)


def merged(merge, sim, held, up):
    ids = torch.arange(len(up["samples"].tensor))
    return merge.absorb(sim.at(0), {"theta": held}, up, ids)["theta"]


def averaged(sim, held, up, **options):
    mean, ids = Mean(**options), torch.arange(len(up["samples"].tensor))
    return mean.finish(sim.at(0), {"theta": held}, mean.fold(sim.at(0), {"theta": held}, {}, up, ids))["theta"]


# Against plain numpy, column by column


def plain_median(values, weights):
    return np.median(values)


def plain_trimmed(share):
    def merge(values, weights):
        cut = min(int(np.ceil(share * len(values) - 1e-9)), (len(values) - 1) // 2)
        kept = np.argsort(values)[cut : len(values) - cut]
        return np.average(values[kept], weights=weights[kept])

    return merge


def by_hand(plain, sim, held, up):
    """Every column on its own; one that nobody sent is held."""
    sent, new = up["theta"].sent(sim.setup.layout), {}
    for name, block in up["theta"].rows.items():
        new[name] = held[name].clone()
        flat = block.reshape(len(block), -1)
        there = (
            torch.ones_like(flat, dtype=torch.bool) if sent is None else sent[name].expand_as(block).reshape_as(flat)
        )
        for column in range(flat.shape[1]):
            who = there[:, column].numpy()
            if who.any():
                weights = np.arange(1, len(block) + 1)[who]
                new[name].view(-1)[column] = float(plain(flat[:, column].numpy()[who], weights))
    return new


@pytest.mark.parametrize("mask", [None, columns, layers], ids=["whole", "columns", "layers"])
@pytest.mark.parametrize(("clients", "piece"), slow_except([(2, 5), (3, 2**16)], [(1, 5), (4, 2**16), (7, 5)]))
def test_median_and_trimmed_mean_by_hand(clients, mask, piece, monkeypatch):
    monkeypatch.setattr("stratafl.policies.robust_merge.PIECE", piece)
    sim = made(fedavg())
    held, up = drawn(sim, clients, mask)
    assert difference(merged(Median(), sim, held, up), by_hand(plain_median, sim, held, up)) <= 1e-12
    for share in (0.1, 0.2, 0.4):
        found = merged(TrimmedMean(share=share), sim, held, up)
        assert difference(found, by_hand(plain_trimmed(share), sim, held, up)) <= 1e-12


@pytest.mark.parametrize("mask", [None, columns], ids=["whole", "columns"])
@pytest.mark.parametrize("batchnorm", [False, True])
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_clipped_updates_by_hand(mask, batchnorm, factor):
    sim = made(fedavg(), batchnorm)
    held, up = drawn(sim, 5, mask)
    rows, specs = up["theta"].rows, sim.setup.layout.specs
    sent = up["theta"].sent(sim.setup.layout) or {n: torch.ones_like(x, dtype=torch.bool) for n, x in rows.items()}
    update = {n: torch.where(sent[n], x - held[n], 0).numpy() for n, x in rows.items()}
    for kind in (True, False):
        names = [n for n in rows if specs[n].trainable is kind]
        norms = np.array([np.sqrt(sum((update[n][c] ** 2).sum() for n in names)) for c in range(5)])
        for c in range(5):
            for n in names:
                update[n][c] *= min(1.0, factor * np.median(norms) / norms[c]) if norms[c] else 1.0
    expected = {}
    for n, x in update.items():
        weights = np.arange(1, 6).reshape(-1, *(1,) * (x.ndim - 1)) * sent[n].numpy()
        total = weights.sum(0)
        mean = (weights * x).sum(0) / np.where(total > 0, total, 1)
        expected[n] = torch.from_numpy(np.where(total > 0, held[n].numpy() + mean, held[n].numpy()))
    assert difference(merged(ClippedMean(factor=factor), sim, held, up), expected) <= 1e-12


# Against byzfl 0.0.11, an independent package, whose values were computed once, in float64:
#     from byzfl import ALittleIsEnough, Average, Clipping, Krum, Median, MultiKrum, TrMean
#     Median()(x), TrMean(f=2)(x), Krum(f=2)(x), MultiKrum(f=2)(x), Average()(Clipping(c=5.0)(x)),
#     ALittleIsEnough(tau=-1.5)(x)
# Its Krum sums n - f - 1 distances where the paper and ours have n - f - 2, so that its f=2 is our f=1.


def eight_uploads():
    x = [[((3 * k + 11 * c * c + 5 * k * c) % 29 - 14) / 4 for c in range(5)] for k in range(8)]
    return torch.tensor([[10 * v for v in row] if k == 3 else row for k, row in enumerate(x)], dtype=torch.float64)


BYZFL = {
    "median": (Median("w"), [-1.25, -0.375, 0.75, -0.125, -0.375]),
    "trimmed": (TrimmedMean("w", "uniform", share=0.25), [-1.25, -0.1875, 0.75, -0.375, -0.5]),
    "krum": (Krum("w", "uniform", f=1, keep=1), [-0.5, 0.0, -1.25, 3.0, -1.75]),
    "multi-krum": (Krum("w", "uniform", f=1, keep=6), [-1.125, 0.75, 0.875, 0.4583333333333333, -0.5]),
    "clipped": (
        ClippedMean("w", "uniform", factor=5.0 / 4.51331302350217),  # the median of the eight norms
        [-0.8543295103195856, -0.17102901310912555, 0.7682874972812248, -0.10675766917668739, -0.19008924488619838],
    ),
}


@pytest.mark.parametrize(("merge", "expected"), BYZFL.values(), ids=list(BYZFL))
def test_merges_have_the_values_of_byzfl(merge, expected):
    x, server = eight_uploads(), {"w": torch.zeros(5, dtype=torch.float64)}
    up = Parcel({"w": Field(x), "samples": Field(torch.arange(1, 9))})
    found = merge.absorb(made(fedavg()).at(0), server, up, torch.arange(8))["w"]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_the_attack_of_the_example_has_the_values_of_byzfl(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    attack = importlib.import_module("examples.wrong_clients").little_is_enough
    expected = [-9.056315069534651, -13.466128804368116, -10.740585637324822, -10.432425449808479, -4.141037136604698]
    assert attack(eight_uploads()).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.fixture
def example(monkeypatch):
    """The example with one small federation, in which a limit leaves somebody out."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    script = importlib.import_module("examples.wrong_clients")
    settings = ["data.clients=4", "data.alpha=0.3", "model.hidden=[4]", "server.norm_limit=1.05"]
    monkeypatch.setattr(script, "FEDERATIONS", {"small": settings})
    monkeypatch.setattr(script, "ROUNDS", 3)
    return script


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_example_measures_how_long_updates_are(example, tmp_path):
    path = tmp_path / "lengths.csv"
    example.write_ratios(path, ["fedavg"], 1)
    (row,) = read_rows(path)
    typed = ["algorithm.name=fedavg", "train.lr=0.1", "run.rounds=3", *example.FEDERATIONS["small"]]
    sim = simulation_of(with_settings(Experiment(), [*typed, "server.norm_limit=0", "server.norm_clip=0"]))
    ratios = []
    for seen in replayed(sim, 3):
        norms = sum(x.double().flatten(1).square().sum(1) for x in seen.update.values()).sqrt()
        ratios.append((norms / norms.quantile(0.5)).tolist())
    largest = max(max(of_round) for of_round in ratios)
    assert float(row["ratio"]) == float(row["in rounds 1-3"]) == pytest.approx(largest, abs=0.006)
    assert largest > max(ratios[int(row["round"]) - 1]) - 1e-9
    assert (row["part"], row["lengths"], row["above 5"]) == ("update", "12", "0")
    example.write_ratios(path, ["fedavg"], 1)
    assert read_rows(path) == [row]  # nothing is measured twice


@pytest.mark.slow
def test_the_example_counts_clean_clients_that_are_shortened_or_left_out(example, tmp_path, monkeypatch):
    example.write_clean(tmp_path / "clean.csv", ["fedavg"], 1)
    rows = read_rows(tmp_path / "clean.csv")
    assert [row["clip"] for row in rows] == ["2", "3", "5", "10", "0"]
    assert min(int(row["left_out"]) for row in rows) > 0
    assert {row["shortened"] for row in rows} == {"0"}  # above 1.05 medians they are left out before
    example.FEDERATIONS["small"][-1] = "server.norm_limit=0"
    monkeypatch.setattr(example, "CLIPS", (1.1,))
    example.write_clean(tmp_path / "open.csv", ["fedavg"], 1)
    shorter, plain = read_rows(tmp_path / "open.csv")
    assert int(shorter["shortened"]) > 0
    assert (shorter["left_out"], plain["left_out"], plain["shortened"]) == ("0", "0", "0")


# Special cases


@pytest.mark.parametrize("mask", [None, columns, layers], ids=["whole", "columns", "layers"])
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_nothing_trimmed_and_nothing_clipped_is_the_mean(weights, mask):
    sim = made(fedavg())
    held, up = drawn(sim, 6, mask)
    mean = averaged(sim, held, up, weights=weights)
    assert difference(merged(TrimmedMean(weights=weights, share=0.0), sim, held, up), mean) <= 1e-12
    assert difference(merged(ClippedMean(weights=weights, factor=1e30), sim, held, up), mean) <= 1e-12
    assert difference(merged(TrimmedMean(weights=weights), sim, held, up), mean) > 1e-3
    assert difference(merged(ClippedMean(weights=weights), sim, held, up), mean) > 1e-3


@pytest.mark.parametrize("merge", HOW.values(), ids=list(HOW))
def test_of_one_client_every_merge_is_that_client(merge):
    sim = made(fedavg())
    held, up = drawn(sim, 1)
    only = {name: x[0] for name, x in up["theta"].rows.items()}
    assert difference(merged(merge, sim, held, up), only) <= 1e-12


@pytest.mark.parametrize("merge", HOW.values(), ids=list(HOW))
def test_where_all_agree_every_merge_is_what_they_agree_on(merge):
    sim = made(fedavg())
    held, up = drawn(sim, 4)
    same = {name: x[:1].expand_as(x) for name, x in up["theta"].rows.items()}
    found = merged(merge, sim, held, Parcel({**up, "theta": Field(same)}))
    assert difference(found, {name: x[0] for name, x in same.items()}) <= 1e-12


@pytest.mark.parametrize("merge", HOW.values(), ids=list(HOW))
def test_one_client_of_many_moves_no_merge_far(merge):
    """Whatever one client sends, the result stays as near the others as they are to each other."""
    sim = made(fedavg())
    held, up = drawn(sim, 7)
    for scale in (1e3, 1e12):
        wild = {name: torch.cat([x[:6], scale * x[6:]]) for name, x in up["theta"].rows.items()}
        found = merged(merge, sim, held, Parcel({**up, "theta": Field(wild)}))
        assert difference(found, held) < 10
        assert difference(averaged(sim, held, Parcel({**up, "theta": Field(wild)})), held) > 10


def test_a_field_that_is_a_tensor_is_merged_and_what_the_server_does_not_keep_is_not():
    sim = made(fedavg())
    values = torch.tensor([[1.0, 9.0], [2.0, 8.0], [30.0, -70.0]], dtype=torch.float64)
    up = Parcel({"c": Field(values), "samples": Field(torch.tensor([1, 1, 2]))})
    found = Median("c").absorb(sim.at(0), {"c": torch.zeros(2, dtype=torch.float64)}, up, torch.arange(3))
    assert found["c"].tolist() == [2.0, 8.0]
    held, up = drawn(sim, 3)
    some = {name: x for name, x in held.items() if name.startswith("fc.")}
    assert set(merged(Median(), sim, some, up)) == set(some)


def test_weights_may_be_for_each_entry_and_weight_0_is_not_sent():
    """Prototypes [C, classes, features] weighted by class counts [C, classes]."""
    draw = np.random.default_rng(0)
    values, counts, held = draw.normal(size=(5, 3, 4)), draw.integers(0, 4, (5, 3)), draw.normal(size=(3, 4))
    counts[:, 2] = 0  # a class that nobody has
    up = Parcel({"c": Field(torch.from_numpy(values)), "n": Field(torch.from_numpy(counts))})
    server = {"c": torch.from_numpy(held)}
    for merge, plain in ((Median, plain_median), (TrimmedMean, plain_trimmed(0.2))):
        options = {} if merge is Median else {"weights": "n"}
        weights = np.ones_like(counts) if merge is Median else counts
        expected = held.copy()
        for i, j in np.ndindex(3, 4):
            who = weights[:, i] > 0
            if who.any():
                expected[i, j] = plain(values[who, i, j], weights[who, i])
        found = merge("c", **options).absorb(made(fedavg()).at(0), server, up, torch.arange(5))
        assert np.abs(found["c"].numpy() - expected).max() <= 1e-12


# From a method to a robust one


@pytest.mark.parametrize("how", HOW)
def test_every_mean_of_a_method_is_replaced(how):
    found = robust(fedavg(), how, share=0.3, factor=2.0)
    expected = {"median": Median(), "trimmed": TrimmedMean(share=0.3), "clipped": ClippedMean(factor=2.0)}
    assert found == replace(fedavg(), merge=(expected[how],))
    uniform = replace(fedavg(), merge=(Mean(weights="uniform"),))
    assert robust(uniform, "trimmed").merge == (TrimmedMean(weights="uniform"),)
    assert "up.samples" not in robust(fedavg(), "median").merge[0].reads
    phased = Phased((Phase(fedavg(), rounds=1), Phase(fedper())), finish=Phase(fedper()))
    found = robust(phased, how)
    assert all(isinstance(record.merge[0], RobustMerge) for record in found.records)


def test_a_method_without_a_mean_is_refused_in_one_line():
    for method, by in ((pfedla(), "LearnFromCosines"), (local(), "")):
        with pytest.raises(RecordError, match=f"'median'.*{by}") as refusal:
            robust(method, "median")
        assert "\n" not in str(refusal.value)
    with pytest.raises(RecordError, match="unsent='zero'"):
        robust(flayer(unsent="zero"), "median")


WITHOUT = (
    "apple",
    "confree",
    "fedamp",
    "fedexp",
    "fedfomo",
    "fedopt",
    "heurfedamp",
    "heurpfedla",
    "ifca",
    "local",
    "pfedhn",
)
WITHOUT += ("fedalp", "pfedhnpc", "pfedla", "pfedme", "scaffold", "simmix")  # not in all rounds


@pytest.mark.parametrize("name", WITHOUT)
def test_a_method_whose_server_takes_no_plain_mean_is_refused(name):
    with pytest.raises(RecordError, match="'trimmed'") as refusal:
        robust(algorithm(name), "trimmed")
    assert "\n" not in str(refusal.value)


def test_merges_that_stay_are_named(caplog):
    robust(algorithm("fedpac"), "median")
    assert "MixHeads" in caplog.text
    robust(algorithm("fedlag"), "median")
    assert "PersonaliseConflicts" in caplog.text


@pytest.mark.parametrize("name", every_method({*ALGORITHMS} - {*WITHOUT}))
def test_every_method_that_averages_can_be_made_robust(name):
    sim = made(robust(algorithm(name), "trimmed"), rounds=40, sizes=(9, 8, 7, 6, 5, 4))
    _, report = sim.round(sim.start(), Messages())
    assert not report.left_out


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_a_robust_method_obeys_the_contract(how):
    check_algorithm(robust(fedavg(), how), settings=[("follow", 0.5)])


@pytest.mark.slow
def test_a_robust_method_with_column_masks_obeys_the_contract():
    check_algorithm(robust(flayer(), "trimmed"), settings=[("local", 0.5)])


SCALED = [(method, how) for method in (fedavg, fedper, fedbn) for how in HOW] + [(flayer, "clipped")]


@pytest.mark.parametrize(("method", "how"), SCALED)
def test_a_client_whose_update_is_scaled_does_not_decide(method, how):
    """Where the mean is far away; FLAYER's columns may have one sender alone, which only clipping helps against."""

    def scaled(upload):
        theta = upload["theta"]
        return Parcel({**upload, "theta": replace(theta, value={n: 1e6 * x for n, x in theta.rows.items()})})

    sim = made(robust(method(), how))
    before = sim.start()
    after, _ = replace(sim, algorithm=Tampered(sim.algorithm, {2: scaled})).round(before, Matrix())
    assert difference(after.server["theta"], before.server["theta"]) < 2
    plain = made(method())
    after, _ = replace(plain, algorithm=Tampered(plain.algorithm, {2: scaled})).round(before, Matrix())
    assert difference(after.server["theta"], before.server["theta"]) > 1e3


# From a configuration


def test_a_configuration_names_the_merge():
    def of(*typed):
        return algorithm_of(with_settings(Experiment(), ["algorithm.name=fedper", *typed]))

    assert of().merge == (Mean(),)
    assert of("server.merge=median").merge == (Median(),)
    assert of("server.merge=trimmed", "server.share=0.1").merge == (TrimmedMean(share=0.1),)
    assert of("server.merge=clipped", "server.factor=2").merge == (ClippedMean(factor=2.0),)
    with pytest.raises(RecordError, match=r"server\.share .*'median'.*'trimmed'"):
        of("server.merge=median", "server.share=0.1")
    with pytest.raises(UnknownNameError, match=r"server\.merge 'mode'.*'mean'"):
        of("server.merge=mode")
    with pytest.raises(RecordError, match=r"^pfedla: server\.merge 'median'"):
        algorithm_of(with_settings(Experiment(), ["algorithm.name=pfedla", "server.merge=median"]))
