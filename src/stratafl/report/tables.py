"""A table of a report: cells as they are shown and as they are, for HTML and for CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stratafl.errors import printable
from stratafl.report.escaping import escape

UNFOLDED = 18  # rows up to which a table is open
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet takes a text for a formula


@dataclass(frozen=True)
class Cell:
    """What is shown, and what it is; `look` is a class of the style sheet, `below` a second line that matters less."""

    shown: str
    raw: Any = None
    look: str = ""
    below: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under titles; `left` of the columns hold words and stand to the left.

    A table that is `stacked` has more words than a phone has room for: there each row is a block of its own.
    """

    name: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left: int = 1
    written: str | None = None  # its CSV, where that has more than what is shown
    stacked: bool = False

    @property
    def csv(self) -> str:
        """The table as CSV, with numbers as they are."""
        return (
            as_csv(self.head, [[cell.raw for cell in row] for row in self.rows]) if not self.written else self.written
        )

    def html(self) -> str:
        """The table as HTML, its caption included."""
        titles = "".join(f'<th scope="col"{self._side(i)}>{escape(title)}</th>' for i, title in enumerate(self.head))
        rows = "\n".join(f"<tr>{''.join(self._cell(i, cell) for i, cell in enumerate(row))}</tr>" for row in self.rows)
        look = ' class="stacked"' if self.stacked else ""
        body = (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(self.caption)}">'
            f'<table id="{self.name}"{look}><caption><span>{escape(self.caption)}</span></caption>'
            f"<thead><tr>{titles}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
        )
        folded = f"<details><summary>{escape(self.caption)}</summary>{body}</details>"
        return body if len(self.rows) <= UNFOLDED else folded

    def _cell(self, column: int, cell: Cell) -> str:
        look = " ".join(filter(None, ("left" if column < self.left else "", cell.look)))
        marked = f' class="{look}"' if look else ""
        titled = f' data-title="{escape(self.head[column])}"' if self.stacked else ""
        below = f"<small>{escape(cell.below)}</small>" if cell.below else ""
        kind, scope = ("th", ' scope="row"') if column == 0 else ("td", "")
        return f"<{kind}{scope}{marked}{titled}>{escape(cell.shown)}{below}</{kind}>"

    def _side(self, column: int) -> str:
        return ' class="left"' if column < self.left else ""


def text(value: Any, look: str = "") -> Cell:
    """A cell that is what it shows."""
    return Cell(str(value), value, look)


def as_csv(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """CSV in which no text is taken for a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_harmless(value) for value in row] for row in (head, *rows))
    return out.getvalue()


def _harmless(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    plain = printable(value)
    return f"'{plain}" if value.startswith(FORMULA) or plain.startswith(FORMULA) else plain
