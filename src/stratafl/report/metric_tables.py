"""All metrics of each method at its selected round, and the confusion matrix of one; both from stored predictions."""

from collections.abc import Iterable, Sequence
from math import isfinite
from statistics import fmean
from typing import Any, NamedTuple

import torch

from stratafl.evaluation.cross_site import CrossSite
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.evaluation.predictions import Predictions
from stratafl.report import charts
from stratafl.report.charts import Chart, category_axis, heat_map, plain_text
from stratafl.report.formats import NO_VALUE, minus
from stratafl.report.intervals import Spread
from stratafl.report.ranking import Rank
from stratafl.report.report_tables import Cell, ReportTable, text
from stratafl.report.study import Study

CELLS = 60_000_000  # scores of all runs together, above which the table is left out
CLASSES = 100  # of a confusion matrix at most, those with the most samples
WRITTEN = 12  # classes at most whose cells hold their numbers


class Average(NamedTuple):
    """A metric over all samples and as the mean over clients, each over seeds; None where it is not defined."""

    samples: Spread | None
    clients: Spread | None


def all_metrics(predictions: Sequence[Predictions], metrics: Iterable[Metric]) -> dict[str, Average]:
    """Each metric of a method from the predictions of its seeds."""
    averages = {}
    for metric in metrics:
        pooled = [each.value(metric) for each in predictions]
        by_client = [list(each.by_client(metric).values()) for each in predictions]
        means = [fmean(values) if values else float("nan") for values in by_client]
        averages[metric.name] = Average(_spread(pooled), _spread(means))
    return averages


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread.of(values) if values and all(map(isfinite, values)) else None


def metrics_table(study: Study) -> ReportTable | None:
    """A row per method, a column per metric; None if no method has stored the predictions of all its seeds."""
    stored = [(rank, predictions) for rank in study.ranks if (predictions := _stored(rank)) is not None]
    if not stored or sum(each.scores.numel() for _, some in stored for each in some) > CELLS:
        return None
    labelled = stored[0][1][0].labelled
    metrics = [metric for metric in METRICS.values() if metric.classes in (labelled, None)]
    rows = []
    for rank, predictions in stored:
        values = all_metrics(predictions, metrics)
        rows.append((text(rank.label), *(_cell(values[metric.name], metric) for metric in metrics)))
    fewer = [metric.title for metric in metrics if not metric.larger_is_better]
    caption = (
        "Over all test samples, mean ± standard deviation over seeds; the second line is the mean over clients. "
        f"Lower is better: {', '.join(fewer)}."
    )
    return ReportTable("metrics", caption, ("method", *(metric.title for metric in metrics)), tuple(rows))


def _stored(rank: Rank) -> list[Predictions] | None:
    predictions = [run.predictions for run in rank.members]
    stored = [each for each in predictions if each is not None and len(each)]
    return stored if predictions and len(stored) == len(predictions) else None


def _cell(average: Average, metric: Metric) -> Cell:
    over, mean = average
    below = _shown(mean, metric, deviation=False) if mean else ""
    return Cell(_shown(over, metric), over.mean if over else None, below=below)


def _shown(over_seeds: Spread | None, metric: Metric, deviation: bool = True) -> str:
    """A share in per cent, anything else with three decimals."""
    if over_seeds is None:
        return NO_VALUE
    factor, form = (100, ".1f") if metric.percent else (1, ".3f" if abs(over_seeds.mean) < 100 else ".4g")
    unit = " %" if metric.percent else ""
    mean = f"{factor * over_seeds.mean:{form}}{unit}"
    return minus(mean if over_seeds.std is None or not deviation else f"{mean} ± {factor * over_seeds.std:{form}}")


def confusion_chart(study: Study, rank: Rank | None) -> Chart | None:
    """Which classes the method takes for which, all seeds together; None for numbers, or without predictions."""
    predictions = _stored(rank) if rank is not None else None
    if rank is None or predictions is None or not predictions[0].labelled:
        return None
    counts = torch.stack([each.confusion() for each in predictions]).sum(0)
    totals = counts.sum(1)
    labels = totals.argsort(descending=True, stable=True)[:CLASSES].sort().values
    has_samples = totals[labels] > 0
    labels = labels[has_samples]
    shares = counts[labels][:, labels].double() / totals[labels, None]
    names = _class_names(study, rank, len(totals))
    shown = charts.distinct([plain_text(charts.shortened(names[i])) for i in labels.tolist()])
    texts = [[f"{int(counts[i, j])} of {int(totals[i])}" for j in labels.tolist()] for i in labels.tolist()]
    look = {"x": shown, "y": shown, "zmin": 0, "zmax": 1, "text": texts}
    look |= {"xgap": 1, "ygap": 1} if len(shown) <= 30 else {}
    look |= {"texttemplate": "%{z:.0%}"} if len(shown) <= WRITTEN else {}
    z = [[charts.rounded(value) for value in row] for row in shares.tolist()]
    trace = heat_map(z, "%{y} predicted as %{x}: %{z:.1%} (%{text})", colorbar=charts.percent_bar(0, 1), **look)
    layout = {"xaxis": category_axis("predicted class"), "yaxis": category_axis("true class", down=True)}
    some = f" The {CLASSES} largest of {len(totals)} classes." if len(totals) > CLASSES else ""
    seeds = f", {len(predictions)} seeds together" if len(predictions) > 1 else ""
    caption = f"{rank.label}: of the test samples of each class (rows), the share predicted as each class{seeds}.{some}"
    height = min(900, 170 + (26 if len(shown) <= 30 else 9) * max(len(shown), 5))
    return Chart("confusion", "Confusion matrix", caption, {"data": [trace], "layout": layout}, height=height)


def cross_site_chart(study: Study) -> Chart | None:
    """Every client's model on every client's test samples, of the first seed of each method; None without any."""
    tables = {
        rank.label: next((run.cross_site for run in rank.members if run.cross_site), None) for rank in study.ranks
    }
    figures = {label: _cross_site_figure(table) for label, table in tables.items() if table is not None}
    if not figures:
        return None
    table = next(table for table in tables.values() if table is not None)
    caption = (
        "Rows: models of clients. Columns: test samples of clients, prepared as their own client does it. "
        f"Metric: {table.metric}, first seed. The diagonal is every client's own score."
    )
    height = min(900, 170 + 26 * max(len(table.names), 5))
    tree, controls = charts.Branches(figures), (charts.Control("method"),)
    return Chart("cross-site", "Models on other clients' samples", caption, tree, controls, height)


def _cross_site_figure(table: CrossSite) -> charts.Figure:
    shown = charts.distinct([plain_text(charts.shortened(name)) for name in table.names])
    z = [[charts.rounded(value) for value in row] for row in table.values.tolist()]
    metric = METRICS.get(table.metric)
    form = "%{z:.1%}" if metric is not None and metric.percent else "%{z:.4g}"
    look: dict[str, Any] = {"x": shown, "y": shown, **({"texttemplate": form} if len(shown) <= WRITTEN else {})}
    trace = heat_map(z, f"model of %{{y}} on samples of %{{x}}: {form}", **look)
    layout = {"xaxis": category_axis("samples of"), "yaxis": category_axis("model of", down=True)}
    return {"data": [trace], "layout": layout}


def _class_names(study: Study, rank: Rank, count: int) -> Sequence[str]:
    names = rank.members[0].split_counts.classes
    return names if len(names) == count else list(map(str, range(count)))
