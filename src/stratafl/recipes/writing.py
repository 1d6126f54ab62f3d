"""The result of a reproduction in words: paper and measurement side by side, claim by claim."""

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from stratafl.files import write_atomically
from stratafl.recipes.claims import MEASURES, OF_CONVERGENCE
from stratafl.recipes.gaps import Numbers, Place
from stratafl.recipes.judging import Verdict
from stratafl.recipes.measuring import seconds
from stratafl.recipes.recipe import Column, Recipe, Row
from stratafl.recipes.reproduction import RESULT, Reproduction
from stratafl.report.formats import duration
from stratafl.report.outcomes import outcome
from stratafl.report.places import machine, span, versions
from stratafl.report.ranking import INCOMPARABLE, MARK
from stratafl.report.verdicts import VERDICTS
from stratafl.runs.directory import environment_of

PAPER, HERE = "paper", "here"


def write(made: Reproduction, command: str) -> list[Verdict]:
    """Judge, and write `result.md` and `verdicts.json`."""
    judged = made.judged()
    text = json.dumps(verdict_table(made.recipe, judged), indent=2, ensure_ascii=False)
    write_atomically(made.folder / VERDICTS, text.encode())
    write_atomically(made.folder / RESULT, markdown(made, judged, command).encode())
    return judged


def markdown(made: Reproduction, judged: Sequence[Verdict], command: str) -> str:
    """All of it as Markdown."""
    recipe, scale = made.recipe, made.recipe.at(made.scale)
    lines = [f"## {recipe.name}, scale {made.scale}: {recipe.title}", ""]
    lines += [f"`{command}` — {_made(made)}; protocol `{recipe.protocol}`."]
    settings = {**recipe.settings, **scale.settings}
    lines += ["", f"Settings: {_settings(settings)}."]
    for kind, some in (("Columns", _columns(made)), ("Rows", recipe.runnable)):
        lines += ["", f"{kind}: " + "; ".join(f"*{each.name}* {_settings(each.settings)}" for each in some) + "."]
    lines += ["", f"Data: {_names(made, 'data')}. Model: {_names(made, 'model')}.", ""]
    lines += [f"- {note}" for note in recipe.notes]
    for measure in recipe.measures:
        lines += ["", f"**{MEASURES[measure]}**", "", *table(made, measure)]
    lines += ["", "; ".join(legend(made)) + ".", ""]
    lines += ["| claim | where | predicate | paper | measured | verdict | why |", "|---|---|---|---|---|---|---|"]
    lines += [
        f"| {v.claim} | {v.column} | {v.predicate} | {v.paper} | {v.measured} | **{v.words}** | {v.reason} |"
        for v in judged
    ]
    left, lost = made.not_run(), made.diverged()
    lines += ["", "Diverged, so that their numbers say little:", "", *(f"- {each}" for each in lost)] if lost else []
    lines += ["", "Not run:" if left else "Everything was run.", "", *(f"- {each}" for each in left), ""]
    return "\n".join(lines)


def _settings(given: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in given.items()) or "as they are"


def _columns(made: Reproduction) -> list[Column]:
    return [column for column in made.recipe.columns if column.name in made.recipe.columns_at(made.scale)]


def _names(made: Reproduction, table: str) -> str:
    """Which data or models are used."""
    return ", ".join(dict.fromkeys(getattr(cell.experiment, table).name for cell in made.cells))


def _made(made: Reproduction) -> str:
    """Where and when the runs were made, and what they took: by whichever call, and perhaps elsewhere."""
    if not made.begun:
        return "nothing was run"
    about = [environment_of(place) for place in made.begun]
    where = [f"{machine(env)}; {versions(env)}" for env in about]
    when = span([str(env["started"]) for env in about if env.get("started")])
    spent = sum(seconds(outcome(place)) for place in made.begun)
    return "; ".join([*dict.fromkeys(where), *filter(None, [when]), f"its runs took {duration(spent)}"])


def table(made: Reproduction, measure: str) -> list[str]:
    """Rows × columns: what the paper prints, and what was measured."""
    head = [f"{made.shown(name) if what == HERE else name}: {what}" for name, what in heads(made, measure)]
    lines = ["| method | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    return lines + ["| " + " | ".join([row.name, *texts]) + " |" for row, texts in cells(made, measure)]


def heads(made: Reproduction, measure: str) -> list[tuple[str, str]]:
    """Each column as "paper", if anything is printed in it, and as "here"."""
    printed = {column for _, column in made.printed(measure)}
    both = [(name, what) for name in made.recipe.columns_at(made.scale) for what in (PAPER, HERE)]
    return [(name, what) for name, what in both if what == HERE or name in printed]


def cells(made: Reproduction, measure: str) -> Iterator[tuple[Row, list[str]]]:
    """Each row with its cells: what the paper prints, or mean and deviation over seeds."""
    printed, numbers, columns = made.printed(measure), made.numbers(measure), heads(made, measure)
    leaking = made.leaking()
    improving = made.numbers().keys() - numbers.keys() if measure in OF_CONVERGENCE else set[Place]()
    for row in made.recipe.rows:
        paper = {name: f"{value:.2f}" for (owner, name), value in printed.items() if owner == row.name}
        here = {name: _here(row, name, numbers) for name, _ in columns}
        here |= dict.fromkeys((name for name in here if (row.name, name) in improving), "improving")
        here |= {name: f"{here[name]} {MARK}" for name in here if (row.name, name) in leaking}
        yield row, [paper.get(name, "") if what == PAPER else here[name] for name, what in columns]


def legend(made: Reproduction) -> list[str]:
    """How the tables are to be read."""
    said = ["mean ± standard deviation over seeds; in verdicts ± is half of the 95 % interval of a difference"]
    return said + ([f"{MARK} {INCOMPARABLE}"] if made.leaking() else [])


def _here(row: Row, column: str, numbers: Numbers) -> str:
    if row.missing or (row.columns is not None and column not in row.columns):
        return "missing" if row.missing else ""
    values = list(numbers.get((row.name, column), {}).values())
    if not values:
        return "not run"
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def verdict_table(recipe: Recipe, judged: Sequence[Verdict]) -> list[Mapping[str, Any]]:
    """The verdicts as plain tables, for `verdicts.json`."""
    paper, _, table = recipe.name.partition("/")
    return [
        {
            "paper": paper,
            "table": f"{table}: {v.column}",
            "claim": v.claim,
            "predicate": v.predicate,
            "paper_value": v.paper,
            "measured": v.measured,
            "holds": v.holds,
            "noise": v.noise,
            "stand_in": v.stand_in,
            "reason": v.reason,
        }
        for v in judged
    ]
