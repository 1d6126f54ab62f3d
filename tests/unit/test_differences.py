"""The pages on clients that differ have the numbers of their files, which have every run."""

import csv
import math
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

from stratafl.advice.measured import SURE, is_sure, measured_federations

RESULTS = Path(__file__).parents[2] / "docs/results"
SEEDS = ("0", "1", "2")


def rows_of(place: str) -> list[dict[str, str]]:
    with (RESULTS / place).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(page: str, first: str) -> list[list[str]]:
    """The rows of the table whose first column has this title."""
    text = (RESULTS / page).read_text(encoding="utf-8")
    (body,) = re.findall(rf"^\| {first} \|.*\n\|[-:| ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in body.splitlines()]


def values(rows: list[dict[str, str]], **wanted: str) -> list[float]:
    chosen = {row["seed"]: row for row in rows if all(row[key] == value for key, value in wanted.items())}
    assert sorted(chosen) == [*SEEDS]
    return [100 * float(chosen[seed]["accuracy"]) for seed in SEEDS]


def test_the_page_of_cuts_has_the_numbers_of_its_file() -> None:
    rows = rows_of("cuts/cuts.csv")
    written = table("cuts.md", "federation")
    federations = list(dict.fromkeys(row["federation"] for row in rows))
    assert [row[0] for row in written] == federations
    lost: dict[str, list[float]] = {"PLayer-FL": [], "conflicts": []}
    for name, *cells in written:
        means = [fmean(values(rows, federation=name, cut=str(cut))) for cut in range(5)]
        assert cells[:5] == [f"{mean:.1f}" for mean in means]
        for rule, cell in zip(lost, cells[5:], strict=True):
            chosen = {row["seed"]: row[rule] for row in rows if row["federation"] == name}
            assert cell.split(" (")[0] == ", ".join(chosen[seed] for seed in SEEDS)
            of_seeds = [values(rows, federation=name, cut=chosen[seed])[place] for place, seed in enumerate(SEEDS)]
            lost[rule].append(max(means) - fmean(of_seeds))
            assert cell.endswith(f"({lost[rule][-1]:.1f})")
    text = (RESULTS / "cuts.md").read_text(encoding="utf-8")
    for rule, points in lost.items():
        assert f"{rule} loses {fmean(points):.1f} points" in text
    for cut in range(5):
        fixed = fmean(max(m) - m[cut] for m in _means(rows, federations))
        assert f"| {cut} | {fixed:.1f} |" in text


def _means(rows: list[dict[str, str]], federations: list[str]) -> list[list[float]]:
    return [[fmean(values(rows, federation=name, cut=str(cut))) for cut in range(5)] for name in federations]


def test_the_page_of_kinds_has_the_numbers_of_its_file() -> None:
    rows = rows_of("kinds/race.csv")
    federations = list(dict.fromkeys(row["federation"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    written = {row[0].strip("`"): row[1:] for row in table("kinds.md", "method")}
    assert [*written] == methods
    for method, cells in written.items():
        of_method = [values(rows, federation=name, method=method) for name in federations]
        assert cells == [f"{fmean(each):.1f} ± {stdev(each):.1f}" for each in of_method]

    def ahead(method: str, other: str, name: str) -> float:
        one, two = (fmean(values(rows, federation=name, method=each)) for each in (method, other))
        return one - two

    gaps = [ahead(method, "local", name) for method in ("fedper", "fedrep") for name in federations]
    expected = [
        [ahead("local", "fedavg", name) for name in ("rotation", "concept shift")],
        [-min(gaps), max(gaps)],
        [ahead("fedavg", "local", name) for name in ("alike", "uneven sizes")],
    ]
    items = re.findall("^- .*", (RESULTS / "kinds.md").read_text(encoding="utf-8"), re.MULTILINE)
    numbers_of_items = [re.findall(r"\d+\.\d", item)[:2] for item in items[:3]]
    assert numbers_of_items == [[f"{number:.1f}" for number in numbers] for numbers in expected]


def test_what_advice_knows_is_what_the_runs_show() -> None:
    """The tables in the package, recomputed from every run: seed 0 chooses the learning rate for all seeds."""
    runs, facts = (rows_of(f"which-method/{name}.csv") for name in ("runs", "facts"))
    known = {(each.kind, each.samples): each for each in measured_federations()}
    seen = defaultdict[tuple[str, int], list[tuple[float, float]]](list)
    for row in facts:
        seen[row["kind"], int(row["samples"])].append((float(row["label skew"]), float(row["feature shift"])))
    assert {cell: list(each.facts) for cell, each in known.items()} == seen
    for (kind, samples), cell in known.items():
        tests, validated = dict[str, list[float]](), dict[str, float]()
        here = [row for row in runs if (row["kind"], row["samples"]) == (kind, str(samples))]
        for method in {row["method"] for row in here}:
            best = _best(here, method)
            tests[method] = [float(row["test"]) for row in best]
            validated[method] = fmean(float(row["validation"]) for row in best)
        assert validated[cell.methods[0].method] == max(validated.values())
        for each in cell.methods:
            assert math.isclose(each.accuracy, fmean(tests[each.method]), abs_tol=1e-4)
            for gain, base in ((each.over_local, "local"), (each.over_fedavg, "fedavg")):
                gains = [a - b for a, b in zip(tests[each.method], tests[base], strict=True)]
                assert math.isclose(gain.value, fmean(gains), abs_tol=1e-4)
                assert math.isclose(gain.error, stdev(gains) / 3**0.5, abs_tol=1e-4)


ALIKE, PERMUTED = "alike", "half of the labels permuted"
SOME_SKEW, SKEW = "label skew, α = 0.5", "label skew, α = 0.1"
TURNED, TURNED_FAR = "rotation by up to 45°", "rotation by up to 90°"
SHARING = ("fedavg", "fedprior", "fedala", "fedstrata")


def test_what_the_page_calls_certain_is_certain_and_nothing_else_is() -> None:
    """Each sentence of docs/results/which-method.md on a lead."""
    known = {(each.kind, each.samples): {m.method: m for m in each.methods} for each in measured_federations()}

    def ahead(kind: str, samples: int) -> set[str]:
        """The methods that are certainly ahead of training alone."""
        methods = known[kind, samples].values()
        return {each.method for each in methods if each.over_local.value > 0 and is_sure(each.over_local)}

    def ahead_of_fedavg(kind: str, samples: int, method: str) -> bool:
        gain = known[kind, samples][method].over_fedavg
        return gain.value > 0 and is_sure(gain)

    sizes = (20, 80, 320)
    for samples in sizes:
        assert ahead(ALIKE, samples) >= {*SHARING}
        assert not any(is_sure(known[ALIKE, samples][name].over_fedavg) for name in SHARING)
        assert "fedstrata" in ahead(SOME_SKEW, samples)
        assert ahead(SKEW, samples) == ({"flayer"} if samples == 80 else set())
        assert known[SKEW, samples]["fedavg"].over_local.value < -0.1
        assert not ahead(TURNED_FAR, samples)
        assert ahead_of_fedavg(TURNED_FAR, samples, "lgfedavg")
        assert all(known[TURNED_FAR, samples][name].over_local.value < 0 for name in SHARING)
        assert not ahead("domains", samples)
        assert all(known[PERMUTED, samples][name].over_local.value < -0.05 for name in SHARING)
    assert known[SKEW, 80]["flayer"].over_local.value < 0.01
    assert "flayer" in ahead(TURNED, 20)
    assert "ifca" in ahead(TURNED, 80)
    assert not ahead(TURNED, 320)
    assert [ahead_of_fedavg("domains", samples, "ifca") for samples in sizes] == [False, True, False]
    for samples in (80, 320):
        assert ahead_of_fedavg("domains", samples, "fedper")
        assert "fedper" in ahead(PERMUTED, samples)
    assert not ahead(PERMUTED, 20)


def test_fedstrata_is_certainly_ahead_of_fedprior_in_no_federation_with_skewed_labels() -> None:
    runs = rows_of("which-method/runs.csv")
    for kind in (SOME_SKEW, SKEW):
        for samples in ("20", "80", "320"):
            here = [row for row in runs if (row["kind"], row["samples"]) == (kind, samples)]
            pairs = zip(_best(here, "fedstrata"), _best(here, "fedprior"), strict=True)
            gains = [float(strata["test"]) - float(prior["test"]) for strata, prior in pairs]
            assert fmean(gains) < SURE * stdev(gains) / 3**0.5


def _best(here: list[dict[str, str]], method: str) -> list[dict[str, str]]:
    """Of each seed its best round at the learning rate that the first chose."""
    mine = [row for row in here if row["method"] == method]
    rate = max((row for row in mine if row["seed"] == SEEDS[0]), key=_chosen)["rate"]
    mine = [row for row in mine if row["rate"] == rate]
    return [max((row for row in mine if row["seed"] == seed), key=_chosen) for seed in SEEDS]


def test_the_table_for_choosing_has_the_numbers_of_the_measured_federations() -> None:
    known = {e.kind: {m.method: m.accuracy for m in e.methods} for e in measured_federations() if e.samples == 80}
    rows = table("../understand/choosing.md", "your clients")
    measured = [row for row in rows if row[-1].split(":")[0] in known]
    assert {row[-1].split(":")[0] for row in measured} == {*known} - {TURNED}
    for _, methods, _, cell in measured:
        kind, numbers = cell.split(":")
        names = re.findall(r"\[`(\w+)`\]", methods) + re.findall(r"`(\w+)`", numbers)
        assert {*names} >= {"local"}
        assert re.findall(r"\d+\.\d", numbers) == [f"{100 * known[kind][name]:.1f}" for name in names]


def _chosen(row: dict[str, str]) -> tuple[float, float]:
    return float(row["validation"]), -float(row["loss"])


def test_the_page_of_the_race_has_the_scores_of_its_file() -> None:
    written = {row[0].strip("`*"): row[1:] for row in table("fedstrata.md", "method")}
    rows = rows_of("fedstrata/hospitals/tuned.csv")
    assert [*written] == [row["method"] for row in rows]
    for row in rows:
        rate, validation, *tests = written[row["method"]]
        assert row["chosen"] == f"train.lr={rate}"
        assert validation == f"{float(row['validation']):.3f}"
        scores = [[float(row[f"{which}_{part}"]) for part in ("mean", "std")] for which in ("tuned", "untuned")]
        assert tests == [f"{mean:.3f} ± {deviation:.3f}" for mean, deviation in scores]


def test_the_seeds_of_the_race_have_the_means_of_its_file_and_the_intervals_of_the_page() -> None:
    scores = defaultdict[str, list[float]](list)
    for row in rows_of("fedstrata/hospitals/seeds.csv"):
        scores[row["method"]].append(float(row["test"]))
    for row in rows_of("fedstrata/hospitals/tuned.csv"):
        if row["method"] in scores:
            assert math.isclose(fmean(scores[row["method"]]), float(row["tuned_mean"]), abs_tol=1e-6)
            assert math.isclose(stdev(scores[row["method"]]), float(row["tuned_std"]), abs_tol=1e-6)
    gains = [a - b for a, b in zip(scores["flayer"], scores["local"], strict=True)]
    mean, reach = fmean(gains), 4.303 * stdev(gains) / 3**0.5
    behind = [fmean(scores[name]) - fmean(scores["fedstrata"]) for name in ("flayer", "fedprior")]
    text = (RESULTS / "fedstrata.md").read_text(encoding="utf-8")
    assert f"FLAYER has {mean:.3f} (95 % interval {mean - reach:.3f} to {mean + reach:.3f}" in text
    assert f"FedStrata is {behind[0]:.4f} behind FLAYER and {behind[1]:.4f} behind the plain prior" in text


def test_the_page_for_newcomers_has_the_numbers_of_its_files() -> None:
    """The advised method is the best or within noise of it, and no pair differs for certain."""
    scores, pairs = rows_of("newcomer/scores.csv"), rows_of("newcomer/pairs.csv")
    numbers = [abs(float(row[name])) for row in scores for name in ("test", "at default rate")]
    numbers += [abs(float(row[name])) for row in pairs for name in ("difference", "low", "high")]
    items = re.findall("^- .*", (RESULTS / "newcomer.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*re.findall(r"\d+\.\d", " ".join(items))} <= {f"{100 * number:.1f}" for number in numbers}
    assert all(float(row["p"]) > 0.05 for row in pairs)
    for row in rows_of("newcomer/advice.csv"):
        tests = {each["method"]: float(each["test"]) for each in scores if each["data"] == row["data"]}
        ahead = [name for name in tests if tests[name] > tests[row["advised"]]]
        lows = {each["first"]: float(each["low"]) for each in pairs if _is_pair(each, row)}
        assert len(tests) == 8
        assert all(lows[name] < 0 for name in ahead)


def _is_pair(pair: dict[str, str], advised: dict[str, str]) -> bool:
    return (pair["data"], pair["second"]) == (advised["data"], advised["advised"])
