"""The pages on clients that differ have the numbers of their files, which have every run."""

import csv
import math
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

from stratafl.advice.measured import measured_federations

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
            mine = [row for row in here if row["method"] == method]
            rate = max((row for row in mine if row["seed"] == SEEDS[0]), key=_chosen)["rate"]
            mine = [row for row in mine if row["rate"] == rate]
            best = [max((row for row in mine if row["seed"] == seed), key=_chosen) for seed in SEEDS]
            tests[method] = [float(row["test"]) for row in best]
            validated[method] = fmean(float(row["validation"]) for row in best)
        assert validated[cell.methods[0].method] == max(validated.values())
        for each in cell.methods:
            assert math.isclose(each.accuracy, fmean(tests[each.method]), abs_tol=1e-4)
            for gain, base in ((each.over_local, "local"), (each.over_fedavg, "fedavg")):
                gains = [a - b for a, b in zip(tests[each.method], tests[base], strict=True)]
                assert math.isclose(gain.value, fmean(gains), abs_tol=1e-4)
                assert math.isclose(gain.error, stdev(gains) / 3**0.5, abs_tol=1e-4)


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
