"""How the models of a site compare on its own test samples: trained alone, as received, and personalised.

A site that trains alone has the model, the start, the settings of training and the number of rounds of the federation.
The gain, personalised over alone, is paired sample by sample; its 95 % interval is that of the gains of a simulation.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stratafl.algorithms import local
from stratafl.config.deployment import site_of
from stratafl.config.experiment import Experiment
from stratafl.config.metric_choice import stored_metric
from stratafl.core.layout import Rows
from stratafl.core.state import State
from stratafl.deploy.stored_model import ALONE_MODEL, write_model
from stratafl.errors import StageError, WireError, shown
from stratafl.evaluation.candidates import local_descent
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.evaluation.predictions import Predictions, predictions_of
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.exchange.site_store import Final
from stratafl.execute.site import Site
from stratafl.report.gains import verdict
from stratafl.report.gains.gain_intervals import gain_limits
from stratafl.report.gains.gain_records import Outlook
from stratafl.report.gains.sample_noise import ClientScores, bound_of, paired_noise

MAX_SCORE = 1e30  # of which a mean can be taken
STAGES = ("alone", "received", "personalised")


@dataclass(frozen=True)
class SiteScores:
    """The scores of a site's models on its test samples, None where one is not defined.

    `low` and `high` are the ends of the 95 % interval of the gain of the personalised model over the one alone.
    """

    rounds: int
    samples: int
    alone: float | None
    received: float | None
    personalised: float | None
    low: float | None = None
    high: float | None = None

    def gain(self, metric: Metric) -> float | None:
        """How much better the personalised model is than the one alone; positive is better, whatever the metric."""
        if self.alone is None or self.personalised is None:
            return None
        return metric.sign * (self.personalised - self.alone)

    @property
    def outlook(self) -> Outlook:
        """What the interval says of personalised against alone."""
        return verdict(self.low, self.high)

    def to_table(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_table(table: object) -> "SiteScores":
        """What a site says of itself; a `WireError` if it is anything but scores."""
        names = [field.name for field in fields(SiteScores)]
        if not isinstance(table, Mapping) or set(table) != set(names):
            raise WireError("these are not the scores of a site: run the same version on both sides")
        counts, scores = (table["rounds"], table["samples"]), [table[name] for name in names[2:]]
        if not all(type(count) is int and 0 <= count < 1 << 40 for count in counts) or not all(map(_is_score, scores)):
            raise WireError(f"these are not the scores of a site: {shown(table, 200)}")
        return SiteScores(*counts, *(None if score is None else float(score) for score in scores))


def _is_score(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_number and isfinite(value) and abs(value) <= MAX_SCORE)  # type: ignore[arg-type]


def report_metric(experiment: Experiment) -> Metric:
    """What a federation's report compares by: `evaluate.metric`, or accuracy (of numbers the squared error)."""
    regression = experiment.data.targets == "numbers"
    if ":" in experiment.evaluate.metric:  # your own code, which a report does not run
        return METRICS["mse" if regression else "accuracy"]
    return stored_metric(experiment.evaluate, regression)


def compared(
    site: Site, final: Final, experiment: Experiment, blueprint: Blueprint, widest: Mapping[str, int], folder: Path
) -> SiteScores:
    """The scores of the models of this site at its end; it trains alone for them, and writes that model."""
    metric, count = report_metric(experiment), site.samples["test"]
    if not count:
        return SiteScores(final.round, 0, None, None, None)
    at_end = final.round, final.state, final.parcel
    stages: dict[str, ClientScores | None] = {
        "received": _scores(site, final.round, site.received(*at_end), metric),
        "personalised": _scores(site, final.round, site.deployed(*at_end), metric),
    }
    try:
        alone, rows = model_trained_alone(site, final.round, experiment, blueprint, widest)
        write_model(folder / ALONE_MODEL, alone, rows, final.mark)
        stages["alone"] = _scores(alone, final.round, rows, metric)
    except StageError:  # training alone diverges
        stages["alone"] = None
    values = {stage: _value(scores) for stage, scores in stages.items()}
    scores = SiteScores(final.round, count, *(values[stage] for stage in STAGES))
    low, high = _limits(stages["personalised"], stages["alone"], scores.gain(metric), metric)
    return replace(scores, low=low, high=high)


def model_trained_alone(
    site: Site, rounds: int, experiment: Experiment, blueprint: Blueprint, widest: Mapping[str, int]
) -> tuple[Site, Rows]:
    """The site of a federation in which nothing is sent, and its model after these rounds."""
    alone = site_of(experiment, alone_blueprint(blueprint, rounds), site.runtime.federation, site.client, widest)
    state: State | None = None
    for t in range(rounds):
        state = alone.work(t, state, alone.nothing_sent(t)).state
    return alone, alone.deployed(rounds, state, alone.nothing_sent(rounds))


def alone_blueprint(blueprint: Blueprint, rounds: int) -> Blueprint:
    """The same model and training without the federation, and without the layers that its method adds."""
    return replace(blueprint, algorithm=local(train=local_descent(blueprint.algorithm)), rounds=max(rounds, 1))


def _scores(site: Site, t: int, rows: Rows, metric: Metric) -> ClientScores:
    y, outputs = site.outputs(t, rows, "test")
    clients = torch.full((len(y),), site.client)
    predictions: Predictions = predictions_of(clients, y, outputs, site.runtime.federation.classes)
    return ClientScores(predictions, metric)


def _value(scores: ClientScores | None) -> float | None:
    value = float("nan") if scores is None else float(scores.values[0])
    return value if isfinite(value) else None


def _limits(
    personalised: ClientScores | None, alone: ClientScores | None, gain: float | None, metric: Metric
) -> tuple[float | None, float | None]:
    if gain is None or personalised is None or alone is None:
        return None, None
    noise = paired_noise([(personalised, alone)], personalised.ids)
    limits = gain_limits(np.array([[gain]]), noise, bound_of(metric), metric.percent)
    low, high = float(limits.low[0]), float(limits.high[0])
    return (low, high) if isfinite(low) and isfinite(high) else (None, None)
