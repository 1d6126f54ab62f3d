"""The result of a reproduction: `result.md` with paper and measurement side by side, and `verdicts.json`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stratafl.files import write_atomically
from stratafl.recipes.claims import MEASURES, OF_CONVERGENCE
from stratafl.recipes.recipe import Row
from stratafl.recipes.reproduction import RESULT, Reproduction
from stratafl.recipes.verdicts import Numbers, Place
from stratafl.report.formats import MARK, duration_text, machine, markdown_table, span, versions
from stratafl.report.intervals import Spread
from stratafl.report.outcome import read_outcome
from stratafl.report.ranking import INCOMPARABLE
from stratafl.report.verdict import VERDICTS, Verdict
from stratafl.runs.directory import environment_of

PAPER, HERE = "paper", "here"


def write_result(reproduction: Reproduction, command: str) -> list[Verdict]:
    """Write `result.md` and `verdicts.json`, and return the verdicts."""
    judged = reproduction.judged()
    text = json.dumps([verdict.entry for verdict in judged], indent=2, ensure_ascii=False)
    write_atomically(reproduction.folder / VERDICTS, text.encode())
    write_atomically(reproduction.folder / RESULT, result_markdown(reproduction, judged, command).encode())
    return judged


def result_markdown(reproduction: Reproduction, judged: Sequence[Verdict], command: str) -> str:
    recipe = reproduction.recipe
    lines = [f"## {recipe.name}, scale {reproduction.scale}: {recipe.title}", ""]
    lines += [f"**{reproduction.no_evidence}**", ""] if reproduction.no_evidence else []
    lines += [f"`{command}` — {_made(reproduction)}; protocol `{recipe.protocol}`.", "", *_setup(reproduction)]
    for measure in recipe.measures:
        lines += ["", f"**{MEASURES[measure]}**", "", *measure_table(reproduction, measure)]
    lines += ["", "; ".join(legend(reproduction)) + ".", "", *_verdict_table(judged)]
    lines += _listed("Claims that no run can judge:", [f"{claim.says}: {claim.why}" for claim in recipe.unjudged])
    lines += _listed("Tuned on validation data, with a separate seed:", reproduction.tuning_lines())
    lines += _listed("Diverged, so these numbers mean little:", reproduction.diverged())
    lines += _listed("Not run:", reproduction.not_run()) or ["", "Everything was run.", ""]
    return "\n".join([*lines, ""])


def _setup(reproduction: Reproduction) -> list[str]:
    """The settings of all runs, of columns and of rows, the data, the models and the recipe's notes."""
    recipe, scale = reproduction.recipe, reproduction.recipe.at(reproduction.scale)
    lines = [f"Settings: {_settings({**recipe.settings, **scale.settings, **reproduction.settings})}."]
    columns = [column for column in recipe.columns if column.name in recipe.columns_at(reproduction.scale)]
    for title, parts in (("Columns", columns), ("Rows", recipe.runnable)):
        lines += ["", f"{title}: " + "; ".join(f"*{part.name}* {_settings(part.settings)}" for part in parts) + "."]
    experiments = [cell.experiment for cell in reproduction.cells]
    data, models = (dict.fromkeys(getattr(each, table).name for each in experiments) for table in ("data", "model"))
    return [*lines, "", f"Data: {', '.join(data)}. Model: {', '.join(models)}.", "", *(f"- {n}" for n in recipe.notes)]


def _verdict_table(judged: Sequence[Verdict]) -> list[str]:
    head = ("claim", "where", "predicate", "paper", "measured", "verdict", "why")
    rows = [(v.claim, v.column, v.predicate, v.paper_value, v.measured, f"**{v.words}**", v.reason) for v in judged]
    return markdown_table(head, rows)


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return ["", title, "", *(f"- {item}" for item in items)] if items else []


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in settings.items()) or "as they are"


def _made(reproduction: Reproduction) -> str:
    """Where and when the runs were made, and how long they took; they may come from several calls and machines."""
    if not reproduction.begun:
        return "nothing was run"
    about = [environment_of(place) for place in reproduction.begun]
    where = [f"{machine(env)}; {versions(env)}" for env in about]
    when = span([str(env["started"]) for env in about if env.get("started")])
    lines = [line for place in reproduction.begun for line in read_outcome(place).lines]
    spent = sum(float(v) for line in lines for key, v in line.items() if key.startswith("seconds."))  # also evaluating
    return "; ".join([*dict.fromkeys(where), *filter(None, [when]), f"the runs took {duration_text(spent)}"])


def measure_table(reproduction: Reproduction, measure: str) -> list[str]:
    columns = column_heads(reproduction, measure)
    head = [f"{reproduction.shown(name) if what == HERE else name}: {what}" for name, what in columns]
    return markdown_table(["method", *head], [[row.name, *texts] for row, texts in table_rows(reproduction, measure)])


def column_heads(reproduction: Reproduction, measure: str) -> list[tuple[str, str]]:
    """Each column as "paper", if the paper has numbers of the same data in it, and as "here"."""
    printed = set() if reproduction.stand_in else {column for _, column in reproduction.printed(measure)}
    both = [(name, what) for name in reproduction.recipe.columns_at(reproduction.scale) for what in (PAPER, HERE)]
    return [(name, what) for name, what in both if what == HERE or name in printed]


def table_rows(reproduction: Reproduction, measure: str) -> Iterator[tuple[Row, list[str]]]:
    """Each row with its cells: the number in the paper, or mean and deviation over seeds."""
    printed, numbers = reproduction.printed(measure), reproduction.numbers(measure)
    columns, leaking = column_heads(reproduction, measure), reproduction.leaking()
    # Runs that are still improving have no number of a measure of convergence.
    improving = reproduction.numbers().keys() - numbers.keys() if measure in OF_CONVERGENCE else set[Place]()

    def here(row: Row, column: str) -> str:
        place = (row.name, column)
        measured = "improving" if place in improving else _measured(row, column, numbers)
        return f"{measured} {MARK}" if place in leaking else measured

    for row in reproduction.recipe.rows:
        paper = {name: f"{value:.2f}" for (owner, name), value in printed.items() if owner == row.name}
        yield row, [paper.get(name, "") if what == PAPER else here(row, name) for name, what in columns]


def legend(reproduction: Reproduction) -> list[str]:
    notes = ["mean ± standard deviation over seeds; in verdicts, ± is half of the 95 % interval of a paired difference"]
    return notes + ([f"{MARK} {INCOMPARABLE}"] if reproduction.leaking() else [])


def _measured(row: Row, column: str, numbers: Numbers) -> str:
    if row.missing:
        return "missing"
    if row.columns is not None and column not in row.columns:
        return ""
    values = list(numbers.get((row.name, column), {}).values())
    if not values:
        return "not run"
    spread = Spread.of(values)
    return f"{spread.mean:.2f}" + ("" if spread.std is None else f" ± {spread.std:.2f}")
