"""A table of a report, as HTML and as CSV: each cell has a text to show and a raw value."""

import csv
import html
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stratafl.errors import printable
from stratafl.report.formats import NO_VALUE

UNFOLDED = 18  # a table with more rows is folded
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes a text that starts so for a formula


@dataclass(frozen=True)
class Cell:
    """The text to show and the raw value; `look` is a class of the style sheet, `below` a smaller second line."""

    shown: str
    raw: Any = None
    look: str = ""
    below: str = ""


@dataclass(frozen=True)
class ReportTable:
    """Rows under a head; the first `left` columns hold words and are left-aligned.

    A `stacked` table has too many words for a phone: there each row becomes a block.
    """

    name: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left: int = 1
    written: str | None = None  # its CSV, if that has more than the table shows
    stacked: bool = False

    @property
    def csv(self) -> str:
        return self.written or as_csv(self.head, [[cell.raw for cell in row] for row in self.rows])

    def plain(self, columns: int | None = None) -> str:
        """Its first columns as text of one width, without caption and second lines."""
        texts = [self.head, *([cell.shown for cell in row] for row in self.rows)]
        lines = [[printable(text) for text in line[:columns]] for line in texts]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(f"{text:{'<' if at < self.left else '>'}{widths[at]}}" for at, text in enumerate(line)).rstrip()
            for line in lines
        )

    def markup(self) -> str:
        titles = "".join(f'<th scope="col"{self._side(i)}>{escaped(title)}</th>' for i, title in enumerate(self.head))
        rows = "\n".join(f"<tr>{''.join(self._cell(i, cell) for i, cell in enumerate(row))}</tr>" for row in self.rows)
        look = ' class="stacked"' if self.stacked else ""
        body = (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(self.caption)}">'
            f'<table id="{self.name}"{look}><caption><span>{escaped(self.caption)}</span></caption>'
            f"<thead><tr>{titles}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
        )
        folded = f"<details><summary>{escaped(self.caption)}</summary>{body}</details>"
        return body if len(self.rows) <= UNFOLDED else folded

    def _cell(self, column: int, cell: Cell) -> str:
        look = " ".join(filter(None, ("left" if column < self.left else "", cell.look)))
        marked = f' class="{look}"' if look else ""
        titled = f' data-title="{escaped(self.head[column])}"' if self.stacked else ""
        below = f"<small>{escaped(cell.below)}</small>" if cell.below else ""
        kind, scope = ("th", ' scope="row"') if column == 0 else ("td", "")
        return f"<{kind}{scope}{marked}{titled}>{escaped(cell.shown)}{below}</{kind}>"

    def _side(self, column: int) -> str:
        return ' class="left"' if column < self.left else ""


def without_empty_columns(table: ReportTable, spare: Collection[str] | None = None) -> ReportTable:
    """The table without the columns in which no row has a value, of all or of those that can be spared."""
    filled = [any(row[at].shown != NO_VALUE for row in table.rows) for at in range(len(table.head))]
    columns = [at for at, name in enumerate(table.head) if filled[at] or (spare is not None and name not in spare)]
    rows = tuple(tuple(row[at] for at in columns) for row in table.rows)
    return replace(table, head=tuple(table.head[at] for at in columns), rows=rows)


def escaped(text: str) -> str:
    """A text for HTML without markup and control characters: names come from files, with anything in them."""
    return html.escape(printable(text))


def text(value: Any, look: str = "") -> Cell:
    return Cell(str(value), value, look)


def as_csv(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """CSV in which a spreadsheet takes no text for a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_harmless(value) for value in row] for row in (head, *rows))
    return out.getvalue()


def _harmless(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    plain = printable(value)
    return f"'{plain}" if value.startswith(FORMULA) or plain.startswith(FORMULA) else plain
