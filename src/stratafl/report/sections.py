"""Sections of a report: text, tables with their download, charts with their controls and downloads."""

from collections.abc import Sequence

from stratafl.report.charts import Chart
from stratafl.report.escaping import escape
from stratafl.report.tables import Table

Part = str | Table | Chart  # a text is HTML


class Section:
    """A title over parts; parts that are missing are left out."""

    def __init__(self, name: str, title: str, parts: Sequence[Part | None]) -> None:
        self.name, self.title = name, title
        self.parts = [part for part in parts if part is not None]


def section_html(section: Section) -> str:
    """The section as HTML."""
    parts = "\n".join(_part(part, section.title) for part in section.parts)
    name, title = section.name, escape(section.title)
    heading = f'<h2 id="{name}-title">{title}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{heading}\n{parts}\n</section>'


def _part(part: Part, title: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Table):
        button = f'<button type="button" data-table="{part.name}" aria-label="Table {part.name} as CSV">CSV</button>'
        return f'<div class="tabled">{part.html()}<div class="downloads">{button}</div></div>'
    heading = f"<h3>{escape(part.title)}</h3>" if part.title != title else ""
    buttons = "".join(
        f'<button type="button" data-chart="{part.name}" data-format="{kind}" '
        f'aria-label="Chart {escape(part.title)} as {kind.upper()}">{kind.upper()}</button>'
        for kind in ("png", "svg", "csv")
    )
    return (
        f"<figure>{heading}<figcaption>{escape(part.says)}</figcaption>"
        f'<div class="controls" id="controls-{part.name}" role="group" aria-label="{escape(part.title)}"></div>'
        f'<div class="chart" id="chart-{part.name}" role="img" aria-label="{escape(f"{part.title}. {part.says}")}" '
        f'style="min-height:{part.height}px"></div><div class="downloads">{buttons}</div></figure>'
    )
