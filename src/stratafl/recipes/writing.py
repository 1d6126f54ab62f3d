"""The result of a reproduction in words: paper and measurement side by side, claim by claim."""

import json
from collections.abc import Sequence
from statistics import fmean, stdev

from stratafl.recipes.claims import Numbers, Verdict
from stratafl.recipes.reproduction import RESULT, VERDICTS, Reproduction, verdict_table
from stratafl.runs.files import write_whole

SIGNS = {True: "✓ holds", False: "✗ does not hold", None: "– not run"}


def write(made: Reproduction, command: str, machine: str, seconds: float) -> list[Verdict]:
    """Judge, and write `result.md` and `verdicts.json`."""
    judged = made.judged()
    text = json.dumps(verdict_table(made.recipe, judged), indent=2, ensure_ascii=False)
    write_whole(made.folder / VERDICTS, text.encode())
    write_whole(made.folder / RESULT, markdown(made, judged, command, machine, seconds).encode())
    return judged


def markdown(made: Reproduction, judged: Sequence[Verdict], command: str, machine: str, seconds: float) -> str:
    """All of it as Markdown."""
    recipe, scale = made.recipe, made.recipe.at(made.scale)
    lines = [f"## {recipe.name}, scale {made.scale}: {recipe.title}", ""]
    lines += [f"`{command}` — {machine}; {seconds / 60:.1f} minutes in this call; protocol `{recipe.protocol}`."]
    settings = {**recipe.settings, **scale.settings}
    lines += ["", "Settings: " + ", ".join(f"`{key}={value}`" for key, value in settings.items()) + ".", ""]
    lines += [f"- {note}" for note in recipe.notes]
    lines += ["", *table(made, made.numbers()), ""]
    lines += ["| claim | where | predicate | paper | measured | verdict | why |", "|---|---|---|---|---|---|---|"]
    lines += [
        f"| {v.claim} | {v.column} | {v.predicate} | {v.paper} | {v.measured} | **{SIGNS[v.holds]}** | {v.reason} |"
        for v in judged
    ]
    left = made.not_run()
    lines += ["", "Not run:" if left else "Everything was run.", "", *(f"- {each}" for each in left), ""]
    return "\n".join(lines)


def table(made: Reproduction, numbers: Numbers) -> list[str]:
    """Rows × columns: what the paper prints, and what was measured."""
    columns, printed = made.recipe.columns_at(made.scale), made.printed()
    head = [f"{name}: {what}" for name in columns for what in ("paper", "measured")]
    lines = ["| method | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for row in made.recipe.rows:
        cells = []
        for name in columns:
            there = printed.get((row.name, name))
            cells += [
                "" if there is None else f"{there:.2f}",
                "missing" if row.missing else cell(numbers, row.name, name),
            ]
        lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
    return lines


def cell(numbers: Numbers, row: str, column: str) -> str:
    """Mean and standard deviation over seeds."""
    values = list(numbers.get((row, column), {}).values())
    if not values:
        return "not run"
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def tally(judged: Sequence[Verdict]) -> str:
    """How many claims hold."""
    counts = {sign: sum(v.holds is sign for v in judged) for sign in (True, False, None)}
    return f"{counts[True]} hold, {counts[False]} do not, {counts[None]} not run"
