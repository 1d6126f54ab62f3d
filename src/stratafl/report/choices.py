"""What several charts choose from: methods and seeds, layers."""

from collections.abc import Callable
from typing import Any

from stratafl.report.charts import Branches, short_labels
from stratafl.report.journals import Looks
from stratafl.report.study import Study


def of_runs(study: Study, make: Callable[[Looks], Any]) -> Branches:
    """A tree over methods and seeds of what can be made of a run."""
    labels = short_labels([rank.label for rank in study.ranks])
    methods: dict[str, Any] = {}
    for label, rank in zip(labels, study.ranks, strict=True):
        seeds = {
            str(record.outcome.seed): made for record in study.of(rank) if (made := make(record.looks)) is not None
        }
        if seeds:
            methods[label] = Branches(seeds)
    return Branches(methods)


def layers_of(study: Study) -> list[str]:
    """The layers of all runs, in the order of their models."""
    return list(dict.fromkeys(layer for record in study.records.values() for layer in record.looks.layers))
