"""Result files in docs/results/short and docs/results/headline, as `strata reproduce` wrote them; Markdown tables."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
DIFFERENCE = re.compile(r": ([+-][\d.]+)(?: \(± ([\d.]+))?")


@dataclass(frozen=True)
class Judged:
    """A verdict of a result file."""

    claim: str
    where: str
    words: str
    why: str

    @property
    def holds(self) -> bool | None:
        return {"✓": True, "✗": False}.get(self.words[0])

    @property
    def one_seed(self) -> bool:
        return "one seed" in self.words + self.why

    @property
    def noise(self) -> bool:
        return "within noise" in self.words

    @property
    def short(self) -> str:
        """The symbol, the first difference and its interval, and the one that decides: ✗ −2.9 ± 0.5."""
        parts = [part for part in self.why.split("; ") if DIFFERENCE.search(part)]
        if self.holds is None or not parts:
            return self.words[0]
        deciding = next((part for part in parts if "within noise" not in part), parts[0])
        texts = [_difference(part) for part in dict.fromkeys((parts[0], parts[0] if self.noise else deciding))]
        noted = " (one seed)" if self.one_seed else ""
        return f"{self.words[0]} {'; '.join(texts)}{noted}"


def _difference(text: str) -> str:
    found = DIFFERENCE.search(text)
    assert found, text
    interval = f" ± {found[2]}" if found[2] else ""
    return f"{found[1].replace('-', '−')}{interval}" + (", within noise" if "within noise" in text else "")


@dataclass(frozen=True)
class Result:
    """A result file: its numbers by measure, row and head of column, and its verdicts."""

    recipe: str
    scale: str
    settings: Mapping[str, str]
    numbers: Mapping[str, Mapping[tuple[str, str], str]]
    judged: Sequence[Judged]


@cache
def result(name: str) -> Result:
    """The result file of this name, such as short/flayer-table2.md."""
    text = (RESULTS / name).read_text(encoding="utf-8")
    title = re.match(r"## (\S+), scale (\w+)", text)
    assert title, name
    settings = dict(re.findall(r"`([\w.]+)=([^`]*)`", text.partition("\nSettings: ")[2].partition("\n")[0]))
    numbers = {}
    for measure, table in re.findall(r"^\*\*(.+)\*\*\n\n((?:\|.*\n)+)", text, re.MULTILINE):
        heads, _, *rows = cells(table)
        numbers[measure] = {
            (row, head): value for row, *values in rows for head, value in zip(heads[1:], values, strict=True)
        }
    verdicts = re.search(r"^\| claim \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = cells(verdicts[1]) if verdicts else []
    judged = [Judged(row[0], row[1], row[5].strip("*"), row[6]) for row in rows]
    return Result(title[1], title[2], settings, numbers, judged)


def cells(table: str) -> list[list[str]]:
    """The cells of a Markdown table, row by row."""
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.strip().splitlines()]


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """A table whose last columns, so many, are numbers."""
    rule = "|---" * (len(head) - numbers) + "|---:" * numbers + "|"
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"
