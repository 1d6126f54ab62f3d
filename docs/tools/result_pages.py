"""Tables and pictures of docs/results that are made from the result files: `python docs/tools/result_pages.py`.

    docs/results/short/*.md, headline/*.md     results as `strata reproduce` wrote them
    docs/results/tables.toml                   which numbers and claims of theirs each table and picture shows
    docs/results/*.md, notebook/*.md           what stands between <!-- made: NAME --> and <!-- end --> is made here
    docs/pictures/results/*.svg                the pictures

A test fails if a page or a picture is not what this would write, or if a page has a number that no result file has.
"""

import csv
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from math import log
from pathlib import Path
from typing import Any

from judged_claims import coverage_table, means_table, totals
from pictures import caption, picture
from result_files import RESULTS, Judged, cells, markdown_table, result

from stratafl.advice.measured import MeasuredFederation, is_sure, measured_federations
from stratafl.recipes.recorded import recorded_results

DOCS = Path(__file__).parents[1]
PICTURES, NOTEBOOK = DOCS / "pictures/results", DOCS / "notebook"
DASHED = ' stroke-dasharray="4 2" fill-opacity="0"'  # with hollow marks
STROKES = (("shared", ""), ("own", ""), ("alone", ""), ("shared", DASHED), ("own", DASHED))
BLOCK = re.compile(r"(<!-- made: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
ACCURACY = "test accuracy, %"
PAPERS = {"flayer": "FLAYER", "fedper": "FedPer", "pfedla": "pFedLA", "fedalp": "FedALP", "fedlag": "FedLAG"}
HOLDS, FAILS, OPEN, NOT_RUN = "✓ holds", "✗ does not", "? cannot be told", "– not run"


# Claims of abstracts and conclusions


def evidence(claim: Mapping[str, Any]) -> list[Judged]:
    """The verdicts on a claim that were judged."""
    judged = [
        each
        for name, says, *where in claim.get("evidence", ())
        for each in result(name).judged
        if each.claim == says and (not where or each.where in where)
    ]
    for name, says, *_ in claim.get("evidence", ()):
        assert any(each.claim == says for each in result(name).judged), f"{name} has no claim '{says}'"
    return [each for each in judged if each.holds is not None]


def status(claim: Mapping[str, Any]) -> str:
    """What the verdicts on a claim come to: only one that other seeds would not reverse decides."""
    judged = evidence(claim)
    if "status" in claim:
        return str(claim["status"])
    if not judged:
        return NOT_RUN
    sure = {each.holds for each in judged if not (each.noise or each.one_seed)}
    if len(sure) == 2:
        return f"in part{_tally(judged)}"
    if sure:
        return f"{HOLDS if sure == {True} else FAILS}{_tally(judged)}"
    single = {each.holds for each in judged if each.one_seed}
    if len(single) == 1 and all(each.one_seed for each in judged):
        return f"{HOLDS if single == {True} else FAILS}, one seed"
    return f"{OPEN}{_tally(judged)}"


def _tally(judged: Sequence[Judged]) -> str:
    if len(judged) == 1:
        return " (within noise)" if judged[0].noise else ""
    parts = []
    for symbol, holds in (("✓", True), ("✗", False)):
        alike = [each for each in judged if each.holds is holds]
        noise = sum(each.noise for each in alike)
        parts += [f"{symbol} {len(alike)}" + (f", {noise} within noise" if noise else "")] if alike else []
    return f" ({'; '.join(parts)})"


def headlines(spec: Mapping[str, Any], paper: str | None = None) -> str:
    """The claims of all abstracts and conclusions, or those of one paper."""
    rows = []
    for claim in spec["claims"]:
        if paper in (None, claim["paper"]):
            link = f"[{PAPERS[claim['paper']]}]({claim['paper']}.md)"
            names = list(dict.fromkeys(name for name, *_ in claim.get("evidence", ())))
            links = [f"[{Path(name).stem.removeprefix(claim['paper'] + '-')}]({name})" for name in names]
            why = " ".join([claim["why"], *([f"({', '.join(links)})"] if links else [])])
            row = [claim["claim"], status(claim), claim.get("tuned", NOT_RUN), why]
            rows.append(row if paper else [link, *row])
    return markdown_table([*([] if paper else ["paper"]), "claim", "as printed", "tuned", "what was measured"], rows)


# Tables of numbers and of verdicts


def numbers_table(table: Mapping[str, Any]) -> str:
    """Numbers of several result files beside one another; the highest comparable one of each column is bold."""
    measure = table.get("measure", ACCURACY)
    columns = [{row: value for (row, head), value in _column(spec, measure).items()} for spec in table["columns"]]
    names = table.get("rows") or list(dict.fromkeys(row for column in columns for row in column))
    best = [max(map(_value, column.values()), default=0.0) if table.get("best", True) else None for column in columns]
    rows = []
    for name in names:
        values = [column.get(name, "") or "–" for column in columns]
        if set(values) == {"–"}:
            continue
        shown = [f"**{v}**" if _value(v) == top else v for v, top in zip(values, best, strict=True)]
        rows.append([table.get("labels", {}).get(name, name), *shown])
    return markdown_table(table["head"], rows, len(columns))


def _column(spec: Sequence[str], measure: str) -> dict[tuple[str, str], str]:
    name, head, *other = spec
    numbers = result(name).numbers[other[0] if other else measure]
    assert any(place[1] == head for place in numbers), f"{name} has no column '{head}'"
    return {place: value for place, value in numbers.items() if place[1] == head}


def _value(text: str) -> float:
    """Its number; that of a row which test data steers is comparable to none."""
    number = re.match(r"[\d.]+", text)
    return float(number[0]) if number and "†" not in text else -1.0


def pairs_table(table: Mapping[str, Any]) -> str:
    """The paper's number → ours, in columns of one or more result files."""
    rows = []
    for name, row, *other in table["rows"]:
        cells = []
        for _, file, column in table["columns"]:
            numbers = result(file).numbers[other[0] if other else ACCURACY]
            printed, here = (numbers.get((row, f"{column}: {which}"), "") for which in ("paper", "here"))
            cells.append(" → ".join(filter(None, (printed, here))) or "–")
        assert any(cell != "–" for cell in cells), f"no file has the row '{row}'"
        rows.append([name, *cells])
    return markdown_table([table["head"], *(head for head, *_ in table["columns"])], rows, len(table["columns"]))


def verdicts_table(table: Mapping[str, Any]) -> str:
    """Claims, each with its verdict in several result files."""
    rows = []
    for says, *claims in table["claims"]:
        cells = []
        for name, *where in table["files"]:
            judged = [e for e in result(name).judged if e.claim in claims and (not where or e.where in where)]
            cells.append(", ".join(each.short for each in judged) or "–")
        assert any(cell != "–" for cell in cells), f"no file has the claim '{claims}'"
        rows.append([says, *cells])
    return markdown_table(table["head"], rows)


def recipes_table() -> str:
    """A line for each recipe that was run, at each scale: how much of it, and its verdicts."""
    rows = []
    for each in recorded_results():
        name = each.page.removeprefix("docs/results/")
        numbers = (
            result(name).settings["run.rounds"],
            each.seeds,
            each.hold,
            each.fail,
            each.noise,
            each.untold,
            each.unjudged,
        )
        rows.append([f"[`{each.recipe}`]({name})", "; ".join(each.rows), *map(str, numbers)])
    head = ("rounds", "seeds, at most", "hold", "do not", "within noise", "cannot be told", "not judged")
    return markdown_table(["recipe", "columns", *head], rows, len(head))


def measured_table(samples: str) -> str:
    """Test accuracy of every method on the measured federations with so many samples; in bold what was chosen."""
    cells = [each for each in measured_federations() if each.samples == int(samples)]
    names = list(dict.fromkeys(method.method for cell in cells for method in cell.methods))
    rows = []
    for name in sorted(names, key=lambda name: -sum(_accuracy(cell, name) for cell in cells)):
        shown = [f"{100 * _accuracy(cell, name):.1f}" for cell in cells]
        bold = [f"**{v}**" if cell.methods[0].method == name else v for v, cell in zip(shown, cells, strict=True)]
        rows.append([f"`{name}`", *bold])
    return markdown_table(["method", *(cell.kind for cell in cells)], rows, len(cells))


def leads_table() -> str:
    """Of each measured federation the chosen method and what it gains over training alone and over FedAvg."""
    cells = measured_federations()
    kinds, sizes = (list(dict.fromkeys(getattr(cell, axis) for cell in cells)) for axis in ("kind", "samples"))
    by_place = {(cell.kind, cell.samples): _lead(cell) for cell in cells}
    rows = [[kind, *(by_place[kind, size] for size in sizes)] for kind in kinds]
    return markdown_table(["clients", *(f"{size} samples" for size in sizes)], rows)


def _lead(cell: MeasuredFederation) -> str:
    best = cell.methods[0]
    gains = {"local": best.over_local, "fedavg": best.over_fedavg}
    words = {
        name: f"{100 * gain.value:+.1f} ± {100 * gain.error:.1f}{'' if is_sure(gain) else '?'}"
        for name, gain in gains.items()
    }
    return f"`{best.method}` {', '.join((words | {best.method: '–'})[name] for name in gains)}".replace("-", "−")


def rates_table() -> str:
    """How many methods chose each learning rate, for each measured federation."""
    chosen: dict[tuple[str, str], Counter[str]] = {}
    with files("stratafl.advice").joinpath("measured.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            chosen.setdefault((row["kind"], row["samples"]), Counter())[row["rate"]] += 1
    kinds, sizes = (list(dict.fromkeys(cell[axis] for cell in chosen)) for axis in (0, 1))
    rows = [[kind, *(_rates(chosen[kind, size]) for size in sizes)] for kind in kinds]
    return markdown_table(["clients", *(f"{size} samples" for size in sizes)], rows)


def _rates(chosen: Counter[str]) -> str:
    return ", ".join(f"{rate}: {chosen[rate]}" for rate in sorted(chosen, key=float))


def newcomer_table() -> str:
    """Of each data set what advice names, the best of the compared methods, and how far that is ahead."""
    rows = []
    for advised in _rows("newcomer/advice.csv"):
        scores = {row["method"]: float(row["test"]) for row in _rows("newcomer/scores.csv", advised["data"])}
        score = scores[advised["advised"]]
        best = [method for method, test in scores.items() if test == max(scores.values())]
        names = "all" if len(best) == len(scores) else ", ".join(f"`{name}`" for name in best)
        ahead = "–" if advised["advised"] in best else _ahead(advised["data"], best[0], advised["advised"])
        tests = [f"{100 * test:.1f}" for test in (score, max(scores.values()))]
        rows.append([advised["data"], f"`{advised['advised']}`", tests[0], names, tests[1], ahead])
    head = ["data", "advised", "its test score", "best", "its test score", "ahead of the advised (95 % interval)"]
    return markdown_table(head, rows)


def _ahead(data: str, first: str, second: str) -> str:
    (pair,) = (row for row in _rows("newcomer/pairs.csv", data) if (row["first"], row["second"]) == (first, second))
    difference, low, high = (100 * float(pair[name]) for name in ("difference", "low", "high"))
    return f"{difference:+.1f} ({low:.1f} to {high:.1f})".replace("-", "−")


def newcomer_scores() -> str:
    """Test scores of all methods on all data sets, with their chosen learning rates."""
    rows = _rows("newcomer/scores.csv")
    data = [advised["data"] for advised in _rows("newcomer/advice.csv")]
    cells = {(row["method"], row["data"]): row for row in rows}
    table = []
    for method in dict.fromkeys(row["method"] for row in rows):
        shown = [cells[method, name] for name in data]
        table.append([f"`{method}`", *(_with_rate(row) for row in shown)])
    return markdown_table(["method", *data], table, len(data))


def _with_rate(row: Mapping[str, str]) -> str:
    spread = f"{100 * float(row['test']):.1f} ± {100 * float(row['deviation']):.1f}"
    return spread + (f" ({float(row['rate']):g})" if row["rate"] else "")


def _rows(name: str, data: str | None = None) -> list[dict[str, str]]:
    with (RESULTS / name).open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if data in (None, row["data"])]


def _accuracy(cell: MeasuredFederation, name: str) -> float:
    return next(each.accuracy for each in cell.methods if each.method == name)


# Pictures


def measured_grid(shown: Mapping[str, Any]) -> str:
    """A box for each measured federation: the chosen method, its lead over training alone and over FedAvg."""
    cells = measured_federations()
    kinds, sizes = (list(dict.fromkeys(getattr(cell, axis) for cell in cells)) for axis in ("kind", "samples"))
    left, top, width, height = 210, 70, 190, 74
    parts = [caption(0, 22, shown["title"])]
    for column, size in enumerate(sizes):
        parts.append(caption(left + width * (column + 0.5), 56, f"{size} samples per client", "quiet", "middle"))
    for cell in cells:
        x, y = left + width * sizes.index(cell.samples), top + height * kinds.index(cell.kind)
        best = cell.methods[0]
        leads = {"training alone": (best.over_local, "local"), "FedAvg": (best.over_fedavg, "fedavg")}
        least = min(gain.value for gain, _ in leads.values())
        shade = f'opacity="{max(0.06, min(0.5, 8 * least)):.2f}"'
        parts.append(f'<rect class="bar" x="{x}" y="{y}" width="{width - 6}" height="{height - 6}" rx="4" {shade}/>')
        parts.append(caption(x + width / 2 - 3, y + 20, best.method, anchor="middle"))
        shown_leads = [(name, gain) for name, (gain, base) in leads.items() if base != best.method]
        for line, (name, gain) in enumerate(shown_leads):
            words = f"{100 * gain.value:+.1f}{'' if is_sure(gain) else '?'} over {name}".replace("-", "−")
            parts.append(caption(x + width / 2 - 3, y + 40 + 18 * line, words, anchor="middle"))
    parts += [caption(left - 12, top + height * row + 38, kind, anchor="end") for row, kind in enumerate(kinds)]
    return picture(left + width * len(sizes) + 4, top + height * len(kinds) + 4, shown["title"], parts)


def bars(shown: Mapping[str, Any]) -> str:
    """A bar for each row of a result file, and the paper's number as a line where it prints one."""
    numbers = result(shown["file"]).numbers[shown.get("measure", ACCURACY)]
    left, top, width, step = 190, 44, 420, 34
    rows = [name for name in shown["rows"] if _value(numbers[name, f"{shown['column']}: here"]) >= 0]
    highest = float(shown["highest"])
    parts = [caption(0, 20, shown["title"])]
    for place, name in enumerate(rows):
        y, here = top + place * step, numbers[name, f"{shown['column']}: here"]
        printed = numbers.get((name, f"{shown['column']}: paper"), "")
        length = max(2.0, width * _value(here) / highest)
        parts += [caption(left - 10, y + 18, name, anchor="end")]
        parts += [f'<rect class="bar" x="{left}" y="{y}" width="{length:.1f}" height="24" rx="3"/>']
        words = here + (f" (paper {printed})" if printed else "")
        parts += [caption(left + length + 8, y + 18, words)]
    return picture(760, top + step * len(rows) + 8, shown["title"], parts)


def lines(shown: Mapping[str, Any]) -> str:
    """A line for each series, over rounds or over a setting."""
    series = _series(shown)
    left, top, width, height = 60, 62, 640, 230
    scale = log if shown.get("logarithmic") else float
    low, high = (scale(end(x for points in series.values() for x, _ in points)) for end in (min, max))
    lowest, highest = shown.get("lowest", 0), shown["highest"]
    parts = [caption(left, 24, shown["title"])]

    def at(x: float, y: float) -> tuple[float, float]:
        return left + width * (scale(x) - low) / (high - low), top + height * (1 - (y - lowest) / (highest - lowest))

    for score in range(lowest, highest + 1, shown["step"]):
        y = top + height * (highest - score) / (highest - lowest)
        parts += [f'<line class="axis" x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"/>']
        parts += [caption(left - 8, y + 5, str(score).replace("-", "−"), "quiet", "end")]
    for x in dict.fromkeys(x for points in series.values() for x, _ in points):
        parts += [caption(at(x, lowest)[0], top + height + 20, f"{x:g}", "quiet", "middle")]
    begin = left
    for (kind, dashes), (name, points) in zip(STROKES, series.items(), strict=False):
        places = [at(*point) for point in points]
        drawn_points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="{kind}"{dashes} points="{drawn_points}"/>')
        parts += [f'<circle class="{kind}"{dashes} cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in places]
        parts += [f'<circle class="{kind}"{dashes} cx="{begin + 6}" cy="44" r="5"/>']
        parts += [caption(begin + 18, 49, name, kind)]
        begin += 40 + 8 * len(name)
    parts.append(caption(left + width / 2, top + height + 42, shown["below"], "quiet", "middle"))
    return picture(730, top + height + 54, shown["title"], parts)


def _series(shown: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    if "steps" in shown:
        return _step_series(shown["steps"])
    return _csv_series(shown) if "csv" in shown else _table_series(shown)


def _step_series(method: str) -> dict[str, list[tuple[float, float]]]:
    """By federation, a method's lead over training alone at each step, from the table in notebook/defaults.md."""
    text = (NOTEBOOK / "defaults.md").read_text(encoding="utf-8")
    (_, _, *heads, _), _, *rows = cells(text[text.index("| | step | cifar100-1 ") :].split("\n\n")[0])
    alone, first = (next(place for place, row in enumerate(rows) if row[0] == name) for name in ("`local`", method))
    after = next(place for place, row in enumerate(rows) if place > first and row[0])
    return {
        head: [(number(row[1]), number(row[column]) - number(rows[alone][column])) for row in rows[first:after]]
        for column, head in enumerate(heads, 2)
    }


def _csv_series(shown: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    series: dict[str, list[tuple[float, float]]] = {}
    with (RESULTS / shown["csv"]).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            series.setdefault(row["method"], []).append((float(row["round"]), 100 * float(row["received"])))
    return series


def _table_series(shown: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    numbers = result(shown["file"]).numbers
    return {
        name: [(x, _value(numbers[measure][row, f"{column}: here"])) for x, column in shown["columns"]]
        for name, row, measure in shown["series"]
    }


# All pages


def made(text: str, spec: Mapping[str, Any]) -> str:
    """A page with its blocks made again."""

    def block(match: re.Match[str]) -> str:
        kind, _, name = match[2].partition(" ")
        parts: dict[str, Callable[[], str]] = {
            "headlines": lambda: headlines(spec, name or None),
            "numbers": lambda: numbers_table(spec["numbers"][name]),
            "pairs": lambda: pairs_table(spec["pairs"][name]),
            "verdicts": lambda: verdicts_table(spec["verdicts"][name]),
            "recipes": recipes_table,
            "coverage": coverage_table,
            "means": means_table,
            "totals": totals,
            "measured": lambda: measured_table(name),
            "leads": leads_table,
            "rates": rates_table,
            "newcomer": newcomer_scores if name else newcomer_table,
        }
        return f"{match[1]}\n{parts[kind]()}\n{match[3]}"

    return BLOCK.sub(block, text)


def number(text: str) -> float:
    """A number that may be bold."""
    return float(text.strip("*"))


def drawn(spec: Mapping[str, Any]) -> dict[str, str]:
    """All pictures by name."""
    kinds = {"lines": lines, "bars": bars, "measured": measured_grid}
    return {name: kinds[shown["kind"]](shown) for name, shown in spec["pictures"].items()}


def specification() -> dict[str, Any]:
    """What docs/results/tables.toml says."""
    return tomllib.loads((RESULTS / "tables.toml").read_text(encoding="utf-8"))


def pages() -> list[Path]:
    """The pages with blocks that are made here."""
    every = (*RESULTS.glob("*.md"), *NOTEBOOK.glob("*.md"))
    return sorted(page for page in every if BLOCK.search(page.read_text(encoding="utf-8")))


def main() -> None:
    """Write all pages and pictures."""
    spec = specification()
    for page in pages():
        page.write_text(made(page.read_text(encoding="utf-8"), spec), encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, content in drawn(spec).items():
        (PICTURES / f"{name}.svg").write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
