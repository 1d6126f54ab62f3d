"""The metric that selects rounds and ranks methods: chosen by name, by a path to your own function, or by the data."""

import logging
from dataclasses import replace
from typing import Literal

import torch

from stratafl.config.experiment import Experiment
from stratafl.config.setting_tables import EvaluateTable
from stratafl.config.trust import NO_TRUST, Trust, imported
from stratafl.data import Federation
from stratafl.errors import RecordError, shown
from stratafl.evaluation.metrics import METRICS, Metric, named_metric, own_metric

UNEVEN_SHARE = 0.6  # share of the largest class above which accuracy tells little
AUTO, PLAIN = "auto", "plain"
log = logging.getLogger("stratafl")


def metric_of(name: str, trust: Trust | bool = NO_TRUST) -> Metric:
    """The metric of this name: of the catalogue, `sensitivity@0.95`, or at a path that is trusted."""
    return own_metric(imported("metric", name, trust), name) if ":" in name else named_metric(name)


def stored_metric(evaluate: EvaluateTable, regression: bool) -> Metric:
    """The metric of a run as its settings say it, which imports nothing: one at a path has no values here."""
    name = evaluate.metric
    if name in (AUTO, PLAIN):  # as runs had it before metrics could be chosen
        return METRICS["mse" if regression else "accuracy"]
    if ":" not in name:
        return named_metric(name)

    def refuse(*arguments: object) -> object:
        raise RecordError(f"metric '{shown(name)}' is your own code: import it with metric_of(name, trust=True)")

    return replace(own_metric(refuse, name), larger_is_better=evaluate.better != "smaller")


def with_metric(experiment: Experiment, federation: Federation, trust: Trust | bool = NO_TRUST) -> Experiment:
    """The experiment with the metric, the average and the direction that are meant; a choice by the data is logged."""
    evaluate = experiment.evaluate
    metric = metric_for(evaluate, federation, trust)
    if evaluate.metric == AUTO and metric.name == "balanced_accuracy":
        log.warning("%s", chosen_by_classes(federation))
    average = ("samples" if metric.pooled else "clients") if evaluate.average == AUTO else evaluate.average
    better: Literal["larger", "smaller"] = "larger" if metric.larger_is_better else "smaller"
    target = experiment.stop.target
    if target is not None and metric.percent and target > 1:
        raise RecordError(f"stop.target must be at most 1 with the metric '{metric.name}', not {target:g}")
    if target is not None and evaluate.metric in (AUTO, PLAIN) and federation.classes is None:
        raise RecordError("stop.target needs a metric on data without classes: set --metric mae, or use stop.patience")
    return replace(experiment, evaluate=replace(evaluate, metric=metric.name, average=average, better=better))


def metric_for(evaluate: EvaluateTable, federation: Federation, trust: Trust | bool = NO_TRUST) -> Metric:
    """The metric that these settings mean for this data; refused if it is for data of another kind."""
    name, regression = evaluate.metric, federation.classes is None
    if name in (AUTO, PLAIN):
        uneven = name == AUTO and not regression and largest_share(federation)[1] > UNEVEN_SHARE
        return METRICS["mse" if regression else "balanced_accuracy" if uneven else "accuracy"]
    metric = metric_of(name, trust)
    if metric.classes is not None and metric.classes == regression:
        fitting = ", ".join(each.name for each in METRICS.values() if each.classes != metric.classes)
        actual, needed = ("numbers", "classes") if regression else ("classes", "numbers")
        wrong = f"evaluate.metric = '{name}' needs {needed}, but the targets of this data are {actual}"
        raise RecordError(f"{wrong}; choose one of: {fitting}")
    if evaluate.better != AUTO and ":" in name:
        return replace(metric, larger_is_better=evaluate.better == "larger")
    if evaluate.better != AUTO and (evaluate.better == "larger") != metric.larger_is_better:
        raise RecordError(f"evaluate.better = '{evaluate.better}' has no effect with '{name}': leave it out")
    return metric


def largest_share(federation: Federation) -> tuple[int, float]:
    """The class with the most samples, and its share of them; test samples decide nothing."""
    seen = (federation.class_counts(split).sum(0) for split in ("train", "validation"))
    counts = torch.stack([*seen]).sum(0).tolist()
    most = max(counts)
    return counts.index(most), most / max(1, sum(counts))


def chosen_by_classes(federation: Federation, change: str = "--metric {}") -> str:
    """Why balanced accuracy is the metric, and how to change that; of two classes AUROC sees more than the answers."""
    label, share = largest_share(federation)
    other = "auroc" if federation.classes == 2 else "accuracy"
    return (
        f"class '{shown(federation.class_name(label))}' has {share:.1%} of the samples, so rounds are selected and "
        f"methods ranked by balanced accuracy; change that with {change.format(other)}"
    )
