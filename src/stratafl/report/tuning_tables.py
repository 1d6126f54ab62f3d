"""What a tuning chose: each method's settings and scores, and its validation score over the learning rate."""

from collections.abc import Sequence

from stratafl.report import charts
from stratafl.report.charts import Chart, plain_text, rounded, scatter, value_axis
from stratafl.report.formats import NOTHING, score, spread
from stratafl.report.study import Study
from stratafl.report.tables import Cell, Table, text
from stratafl.report.tuned import LR, TunedMethod


def tuning_table(study: Study) -> Table | None:
    """One row per method that was tuned."""
    if not study.tuned:
        return None
    head = ("method", "chosen", "validation", "test, tuned", "test, untuned", "trials", "to know")
    rows = tuple(_row(each) for each in study.tuned)
    caption = (
        "Every method was tuned with the same budget on validation data alone; test data was scored afterwards, on "
        "fresh seeds. Untuned: the same seeds with the default settings."
    )
    return Table("tuned", caption, head, rows, left=2, stacked=True)


def _row(each: TunedMethod) -> tuple[Cell, ...]:
    loss, (tuned, untuned) = each.regression, (each.spread("tuned"), each.spread("untuned"))
    chosen = ", ".join(f"{_short(key)} = {_value(value)}" for key, value in (each.settings or {}).items())
    cells = [text(each.method), Cell(chosen or NOTHING, chosen)]
    cells += [Cell(score(each.validation, loss), each.validation)]
    cells += [Cell(spread(tuned, loss), tuned.mean if tuned else None, "strong")]
    cells += [Cell(spread(untuned, loss), untuned.mean if untuned else None)]
    return (*cells, text(len(each.trials)), text(each.remark() or NOTHING))


def _short(key: str) -> str:
    return "learning rate" if key == LR else key.removeprefix("algorithm.")


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def rates_chart(study: Study) -> Chart | None:
    """The validation score of each method over the learning rates that were tried; the chosen one is larger."""
    curves = [(each, each.curve()) for each in study.tuned]
    shown = [(each, points) for each, points in curves if len(points) > 1]
    if not shown:
        return None
    labels = charts.short_labels([each.method for each, _ in shown])
    traces = [_curve(place, *each) for place, each in enumerate(zip(labels, *zip(*shown, strict=True), strict=True))]
    loss = shown[0][0].regression
    values = [value for _, points in shown for _, value, _ in points]
    layout = {
        "xaxis": {"title": {"text": "learning rate"}, "type": "log"},
        "yaxis": value_axis("validation score", values, share=not loss),
    }
    caption = (
        "The best validation score at each learning rate; the large marker is the rate that was chosen. A method whose "
        "best rate is the lowest or highest tried may be better beyond it. Trials that stopped early had fewer rounds."
    )
    return Chart("rates", "Validation over the learning rate", caption, {"data": traces, "layout": layout})


def _curve(place: int, label: str, each: TunedMethod, points: Sequence[tuple[float, float, int]]) -> dict[str, object]:
    style = charts.line_style(place)
    chosen = (each.settings or {}).get(LR)
    sizes = [13 if rate == chosen else 7 for rate, _, _ in points]
    x, y = [rate for rate, _, _ in points], [rounded(value) for _, value, _ in points]
    form = ".4g" if each.regression else ".1%"
    hover = f"%{{x:g}}: %{{y:{form}}}, %{{customdata}} rounds<extra>%{{fullData.name}}</extra>"
    more = {"line": style["line"], "marker": {**style["marker"], "size": sizes}, "hovertemplate": hover}
    return scatter("lines+markers", x, y, name=plain_text(label), customdata=[r for *_, r in points], **more)
