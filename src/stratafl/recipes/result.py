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
    recipe, scale = reproduction.recipe, reproduction.recipe.at(reproduction.scale)
    lines = [f"## {recipe.name}, scale {reproduction.scale}: {recipe.title}", ""]
    lines += [f"`{command}` — {_made(reproduction)}; protocol `{recipe.protocol}`."]
    lines += ["", f"Settings: {_settings({**recipe.settings, **scale.settings})}."]
    columns = [column for column in recipe.columns if column.name in recipe.columns_at(reproduction.scale)]
    for kind, some in (("Columns", columns), ("Rows", recipe.runnable)):
        lines += ["", f"{kind}: " + "; ".join(f"*{each.name}* {_settings(each.settings)}" for each in some) + "."]
    cells_run = [cell.experiment for cell in reproduction.cells]
    data, models = (dict.fromkeys(getattr(each, table).name for each in cells_run) for table in ("data", "model"))
    lines += ["", f"Data: {', '.join(data)}. Model: {', '.join(models)}.", ""]
    lines += [f"- {note}" for note in recipe.notes]
    for measure in recipe.measures:
        lines += ["", f"**{MEASURES[measure]}**", "", *table(reproduction, measure)]
    lines += ["", "; ".join(legend(reproduction)) + ".", ""]
    head = ("claim", "where", "predicate", "paper", "measured", "verdict", "why")
    rows = [(v.claim, v.column, v.predicate, v.paper_value, v.measured, f"**{v.words}**", v.reason) for v in judged]
    lines += markdown_table(head, rows)
    if tuned := reproduction.tuning_lines():
        lines += ["", "Tuned on validation data, with a seed of its own:", "", *(f"- {each}" for each in tuned)]
    left, lost = reproduction.not_run(), reproduction.diverged()
    lines += ["", "Diverged, so these numbers mean little:", "", *(f"- {each}" for each in lost)] if lost else []
    lines += ["", "Not run:" if left else "Everything was run.", "", *(f"- {each}" for each in left), ""]
    return "\n".join(lines)


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


def table(reproduction: Reproduction, measure: str) -> list[str]:
    columns = heads(reproduction, measure)
    head = [f"{reproduction.shown(name) if what == HERE else name}: {what}" for name, what in columns]
    return markdown_table(["method", *head], [[row.name, *texts] for row, texts in cells(reproduction, measure)])


def heads(reproduction: Reproduction, measure: str) -> list[tuple[str, str]]:
    """Each column as "paper", if the paper has numbers in it, and as "here"."""
    printed = {column for _, column in reproduction.printed(measure)}
    both = [(name, what) for name in reproduction.recipe.columns_at(reproduction.scale) for what in (PAPER, HERE)]
    return [(name, what) for name, what in both if what == HERE or name in printed]


def cells(reproduction: Reproduction, measure: str) -> Iterator[tuple[Row, list[str]]]:
    """Each row with its cells: the number in the paper, or mean and deviation over seeds."""
    printed, numbers = reproduction.printed(measure), reproduction.numbers(measure)
    columns, leaking = heads(reproduction, measure), reproduction.leaking()
    improving = reproduction.numbers().keys() - numbers.keys() if measure in OF_CONVERGENCE else set[Place]()
    for row in reproduction.recipe.rows:
        paper = {name: f"{value:.2f}" for (owner, name), value in printed.items() if owner == row.name}
        here = {name: _here(row, name, numbers) for name, _ in columns}
        here |= dict.fromkeys((name for name in here if (row.name, name) in improving), "improving")
        here |= {name: f"{here[name]} {MARK}" for name in here if (row.name, name) in leaking}
        yield row, [paper.get(name, "") if what == PAPER else here[name] for name, what in columns]


def legend(reproduction: Reproduction) -> list[str]:
    notes = ["mean ± standard deviation over seeds; in verdicts ± is half of the 95 % interval of a paired difference"]
    return notes + ([f"{MARK} {INCOMPARABLE}"] if reproduction.leaking() else [])


def _here(row: Row, column: str, numbers: Numbers) -> str:
    if row.missing or (row.columns is not None and column not in row.columns):
        return "missing" if row.missing else ""
    values = list(numbers.get((row.name, column), {}).values())
    if not values:
        return "not run"
    spread = Spread.of(values)
    return f"{spread.mean:.2f}" + ("" if spread.std is None else f" ± {spread.std:.2f}")
