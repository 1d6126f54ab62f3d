"""The numbers of a round as a run records them: one flat line per round, per client and per layer."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf, isfinite, isinf
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stratafl.core.layout import Layout
from stratafl.core.reprs import holder, short_repr
from stratafl.core.round import Round
from stratafl.core.state import tensor_of
from stratafl.core.task import Scores
from stratafl.evaluation.evaluate import StageScores
from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import Predictions
from stratafl.execute.round_run import Report
from stratafl.execute.simulation import Simulation
from stratafl.execute.uploads import LeftOut, OutlyingUpdate

Line = dict[str, Any]
Whole = NDArray[np.int64]
Numbers = NDArray[np.float64]
SIMULATED = "simulated.seconds"  # key of a line
LEFT_OUT, OUTLIERS, SHORTENED = "left_out", "outliers", "shortened"  # keys of a line
TOTAL = "clients"  # key of a line that has flagged clients or models: how many clients take part in the run
EVALUATED = "evaluated.clients"  # … and how many of them are evaluated, if not all
NOT_FINITE = "not_finite"  # key: how many clients have a model that is not finite
WORST_SHARE = 0.1  # share of clients that counts as the worst


@short_repr
@dataclass(frozen=True)
class MetricValues:
    """A metric over all samples (NaN where it is not defined), and of each client for whom it is defined.

    These are the same clients for every model, because the metric is defined by the targets alone.
    """

    metric: Metric
    pooled: float
    clients: Mapping[int, float]

    @staticmethod
    def of(metric: Metric, predictions: Predictions) -> "MetricValues":
        return MetricValues(metric, predictions.value(metric), predictions.by_client(metric))

    def statistics(self) -> dict[str, float]:
        """Over all samples, mean and deviation over clients, worst clients."""
        values = torch.tensor(list(self.clients.values()), dtype=torch.float64)
        return {**client_spread(self.metric.key, values, self.metric.larger_is_better), self.metric.key: self.pooled}


def client_spread(name: str, values: Tensor, larger_is_better: bool) -> dict[str, float]:
    """Mean and deviation over clients and the mean of the worst tenth, which is rounded up; NaN without clients."""
    if not len(values):
        return {f"client_{name}": float("nan"), "std": float("nan"), "worst10": float("nan")}
    worst = values.sort(descending=not larger_is_better).values[: ceil(WORST_SHARE * len(values))]
    statistics = (values.mean(), values.std(correction=0), worst.mean())
    return dict(zip((f"client_{name}", "std", "worst10"), map(float, statistics), strict=True))


StageValues = Mapping[str, MetricValues]  # by "split.stage", of a metric that needs more than hits and loss
NO_VALUES: StageValues = MappingProxyType({})


def score_statistics(scores: Scores, classes: int | None) -> dict[str, float | None]:
    """Mean per sample and per client, deviation over clients, worst clients; without classes, all of it of the loss.

    Clients without samples do not count; without any sample the result is empty.
    """
    has_samples = scores.count > 0
    count = scores.count[has_samples].double()
    loss = scores.loss[has_samples].double()
    if len(count) == 0:
        return {}
    name, summed = ("loss", loss) if classes is None else ("accuracy", scores.hits[has_samples].double())
    numbers = {name: float(summed.sum() / count.sum()), **client_spread(name, summed / count, name == "accuracy")}
    numbers["loss"] = float(loss.sum() / count.sum())
    return {key: _finite(value) for key, value in numbers.items()}


def score_line(
    stage_scores: StageScores, classes: int | None, prefix: str = "", values: StageValues = NO_VALUES
) -> Line:
    """The statistics of each split and stage, flat: `test.deployed.accuracy` and so on.

    Deviation and worst clients are those of the run's metric, where `values` holds one. Clients whose model is not
    finite count as guessing; `not_finite` says how many they are, if there are any.
    """
    line: Line = {}
    # Stages may share scores.
    statistics = {id(scores): score_statistics(scores, classes) for scores in stage_scores.values()}
    for place, scores in stage_scores.items():
        numbers = dict(statistics[id(scores)])
        if numbers and place in values:
            numbers |= {key: _finite(value) for key, value in values[place].statistics().items()}
        if scores.finite is not None and not bool(scores.finite.all()):
            numbers[NOT_FINITE] = int((~scores.finite).sum())
        line |= {f"{prefix}{place}.{key}": value for key, value in numbers.items()}
    return line


def round_line(report: Report) -> Line:
    """Size of the cohort, training loss of the clients that took part, bytes and seconds of a round.

    If all clients were left out, the loss is that of all of them, because it shows what happened.
    """
    line: Line = {"cohort": len(report.cohort)}
    counted = report.took_part if bool(report.took_part.any()) else ~report.took_part
    for purpose in [name.removesuffix("/steps") for name in report.notes if name.endswith("/steps")]:
        line |= _loss_line(report, purpose, counted)
    dropped = [int(tensor_of(report.notes, name).sum()) for name in report.notes if name.endswith("/dropped")]
    line |= {"dropped_samples": sum(dropped)} if dropped else {}
    line |= {"bytes.down": report.down.total, "bytes.up": report.up.total}
    return line | {"seconds.train": report.train_seconds, "seconds.server": report.server_seconds}


def pace_line(sim: Simulation, rnd: Round, report: Report) -> Line:
    """How many clients dropped out, and what the round would take, where the run says that they do."""
    line: Line = {"dropped_out": len(sim.invited(rnd)) - len(sim.cohort(rnd))} if sim.drop else {}
    if sim.time is None:
        return line
    sent, steps = (report.down.clients + report.up.clients).cpu(), torch.zeros(len(report.cohort), dtype=torch.int64)
    for name in report.notes:
        steps = steps + (tensor_of(report.notes, name).cpu() if name.endswith("/steps") else 0)
    return {**line, SIMULATED: sim.time.seconds(sim.setup.seeds.partition, report.cohort, sent, steps)}


def _loss_line(report: Report, purpose: str, counted: Tensor) -> Line:
    taken = tensor_of(report.notes, f"{purpose}/steps")
    line, steps = {f"{purpose}.steps": int(taken.sum())}, taken[counted.to(taken.device)].double()
    if f"{purpose}/loss" not in report.notes or steps.sum() == 0:
        return line
    loss = tensor_of(report.notes, f"{purpose}/loss")
    losses = loss[counted.to(loss.device)].double()
    return {f"{purpose}.loss": _finite(float((losses * steps).sum() / steps.sum())), **line}


def local_steps(line: Line) -> int:
    """The local steps of all clients in a round, whatever they were for."""
    return sum(int(value) for key, value in line.items() if key.endswith(".steps"))


def upload_line(report: Report, names: Sequence[str] = ()) -> Line:
    """The clients whose upload was left out, shortened, or far from the others'; no key without any such client."""

    def entries(flagged: Sequence[LeftOut | OutlyingUpdate]) -> list[Line]:
        return [{**asdict(each), **({"name": names[each.client]} if names else {})} for each in flagged]

    lines = {LEFT_OUT: entries(report.left_out), OUTLIERS: entries(report.outliers)}
    lines[SHORTENED] = entries(report.shortened)
    return {key: clients for key, clients in lines.items() if clients}


@holder
class ClientTable:
    """What some clients score: a column for each key of their lines, whole numbers or numbers.

    A whole number below 0 and an infinite number stand for a key that the client's line lacks, NaN for null.
    """

    whole: Mapping[str, Whole]  # `client` among them
    numbers: Mapping[str, Numbers]
    new: bool = False  # whether these clients never took part

    def __len__(self) -> int:
        return len(self.whole["client"])

    def lines(self) -> list[Line]:
        lines: list[Line] = [{"new": True} if self.new else {} for _ in range(len(self))]
        for name, column in self.whole.items():
            for line, count in zip(lines, column.tolist(), strict=True):
                if count >= 0:
                    line[name] = count
        for name, values in self.numbers.items():
            for line, value in zip(lines, values.tolist(), strict=True):
                if not isinf(value):
                    line[name] = _finite(value)
        return lines

    def updated(self, other: "ClientTable") -> "ClientTable":
        """With the columns of another table of the same clients, in any order."""
        order = np.argsort(other.whole["client"])[np.argsort(np.argsort(self.whole["client"]))]
        whole = {name: x[order] for name, x in other.whole.items()}
        numbers = {name: x[order] for name, x in other.numbers.items()}
        return ClientTable({**self.whole, **whole}, {**self.numbers, **numbers}, self.new)


def scored_clients(
    ids: Tensor, stage_scores: StageScores, classes: int | None, values: StageValues = NO_VALUES, new: bool = False
) -> ClientTable:
    whole, numbers = {"client": ids.numpy().astype(np.int64)}, dict[str, Numbers]()
    for place, scores in stage_scores.items():
        count = scores.count.cpu().numpy().astype(np.int64)
        whole[f"{place.partition('.')[0]}.samples"] = count
        has_samples, at_least_one = count > 0, np.maximum(count, 1)
        hits, loss = (each.double().cpu().numpy() for each in (scores.hits, scores.loss))
        if classes is not None:
            numbers[f"{place}.accuracy"] = np.where(has_samples, hits / at_least_one, np.inf)
        mean = np.where(np.isfinite(loss), loss, np.nan) / at_least_one
        numbers[f"{place}.loss"] = np.where(has_samples, mean, np.inf)
        if scores.finite is not None and not bool(scores.finite.all()):
            whole[f"{place}.{NOT_FINITE}"] = np.where(scores.finite.cpu().numpy(), -1, 1)
        if place in values:
            defined = values[place].clients
            column = [defined.get(client, inf) for client in whole["client"].tolist()]
            numbers[f"{place}.{values[place].metric.key}"] = np.array(column, np.float64)
    return ClientTable(whole, numbers, new)


def layer_lines(report: Report, layout: Layout) -> list[Line]:
    columns = zip(layout.names, layout.sizes, report.down.layers.tolist(), report.up.layers.tolist(), strict=True)
    return [{"layer": name, "columns": size, "bytes.down": down, "bytes.up": up} for name, size, down, up in columns]


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None  # JSON has neither NaN nor infinity
