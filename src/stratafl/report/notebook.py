"""A result in a notebook: sentences, a picture and a table, as HTML that needs neither scripts nor a network."""

from collections.abc import Sequence
from importlib import import_module
from math import isfinite
from typing import Any, NamedTuple

from stratafl.core.reprs import holder
from stratafl.errors import DataError
from stratafl.evaluation.cross_site import CrossSite
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.report.charts import COLOURS, shortened, value_range
from stratafl.report.formats import score_text
from stratafl.report.report_tables import Cell, ReportTable, escaped, text

ROW, LABELS, AXIS, NUMBERS = 22, 190, 300, 70  # pixels: height of a row; width of labels, axis and numbers
MAX_LETTERS = 30  # of a label
CELL = 26  # pixels of a cell in a heat map
STYLE = "<style>.stratafl small{display:block}.stratafl caption{text-align:left}</style>"
MAX_HEAT_MAP = 60  # rows and columns; a larger one shows nothing


class Dot(NamedTuple):
    """A value in a picture, with its standard deviation and its text; a faint one is no method of the federation."""

    label: str
    value: float
    std: float | None
    shown: str
    faint: bool = False


def dot_picture(dots: Sequence[Dot], *, percent: bool) -> str:
    """A row for each value: its label, a dot with its standard deviation on a common axis, and its text."""
    finite = [dot for dot in dots if isfinite(dot.value)]
    ends = value_range([dot.value + side * (dot.std or 0.0) for dot in finite for side in (-1, 1)], share=percent)
    if ends is None:
        return ""
    low, high = ends

    def across(value: float) -> float:
        return LABELS + AXIS * (min(max(value, low), high) - low) / (high - low)

    rows = []
    for place, dot in enumerate(finite):
        y, colour = ROW * place + ROW / 2, "#808080" if dot.faint else COLOURS[0]
        label = escaped(shortened(dot.label, MAX_LETTERS))
        bar = ""
        if dot.std:
            start, end = across(dot.value - dot.std), across(dot.value + dot.std)
            bar = f'<line x1="{start:.1f}" x2="{end:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
        rows.append(
            f'<text x="{LABELS - 8}" y="{y + 4}" text-anchor="end">{label}</text>{bar}'
            f'<circle cx="{across(dot.value):.1f}" cy="{y}" r="4" fill="{colour}"/>'
            f'<text x="{LABELS + AXIS + 8}" y="{y + 4}">{escaped(dot.shown)}</text>'
        )
    return _svg(LABELS + AXIS + NUMBERS, ROW * len(finite), "".join(rows), "Scores of methods")


def heat_picture(labels: Sequence[str], values: Sequence[Sequence[float]], texts: Sequence[Sequence[str]]) -> str:
    """A square of values, rows by columns with the same labels; better values are darker by their place in between."""
    finite = [value for row in values for value in row if isfinite(value)]
    if not finite or len(labels) > MAX_HEAT_MAP:
        return ""
    low, span = min(finite), max(max(finite) - min(finite), 1e-12)
    cells = []
    for row, label in enumerate(labels):
        y = CELL * (row + 1)
        cells.append(
            f'<text x="{LABELS - 8}" y="{y + CELL * 0.65:.0f}" text-anchor="end">{escaped(shortened(label))}</text>'
            f'<text x="{LABELS + CELL * (row + 0.5):.0f}" y="{CELL - 6}" text-anchor="middle">{row}</text>'
        )
        for column, (value, shown) in enumerate(zip(values[row], texts[row], strict=True)):
            share = (value - low) / span if isfinite(value) else 0.0
            title = f"model of {label} on samples of {labels[column]}: {shown}"
            cells.append(
                f'<rect x="{LABELS + CELL * column}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" '
                f'fill="{COLOURS[0]}" fill-opacity="{0.06 + 0.94 * share:.2f}"><title>{escaped(title)}</title></rect>'
            )
    return _svg(
        LABELS + CELL * len(labels), CELL * (len(labels) + 1), "".join(cells), "Models on other clients' samples"
    )


@holder
class CrossSiteResult(CrossSite):
    """A metric of every client's model on every client's samples. A notebook shows it as a heat map.

    Attributes:
        metric: The name of the metric.
        split: The split of the samples.
        names: The names of the clients.
        values: The table, a tensor: rows are models, columns are samples.
    """

    measure: Metric | None = None

    @staticmethod
    def of(table: CrossSite, metric: Metric) -> "CrossSiteResult":
        return CrossSiteResult(table.metric, table.split, table.names, table.values, metric)

    def to_pandas(self) -> Any:
        """The table as a DataFrame: rows are models, columns are samples."""
        return data_frames().DataFrame(self.values.numpy(), index=list(self.names), columns=list(self.names))

    def _repr_html_(self) -> str:
        values, metric = self.values.tolist(), self.measure or METRICS["accuracy"]
        texts = [[score_text(value, metric) for value in row] for row in values]
        better = (metric.sign * self.values).tolist()
        head = ("model of", *(f"{at} {name}" for at, name in enumerate(self.names)))
        rows = tuple((text(name), *map(Cell, row)) for name, row in zip(self.names, texts, strict=True))
        table = ReportTable("cross-site", f"{metric.title} on {self.split} samples of", head, rows)
        return fragment("Rows: models. Columns: samples.", heat_picture(self.names, better, texts), table)


def data_frames() -> Any:
    """The package pandas, imported when a DataFrame is asked for."""
    try:
        return import_module("pandas")
    except ImportError as error:
        raise DataError("to_pandas needs the package 'pandas': run pip install pandas") from error


def fragment(sentences: str, picture: str, table: ReportTable) -> str:
    """The parts of a result, one below the other."""
    return f'<div class="stratafl">{STYLE}<p>{escaped(sentences)}</p>{picture}{table.markup()}</div>'


def standalone(title: str, body: str) -> str:
    """A whole page with this body."""
    style = (
        "body{font:15px system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}td,th{padding:.2rem .6rem}"
    )
    head = f'<meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>{escaped(title)}</title>'
    return f"<!doctype html><html lang=en><head>{head}<style>{style}</style></head><body>{body}</body></html>\n"


def _svg(width: int, height: int, body: str, title: str) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    look = 'font-family="system-ui,sans-serif" font-size="12" fill="currentColor"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escaped(title)}" {size} {look}>{body}</svg>'
    )
