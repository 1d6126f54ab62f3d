"""A trial: a simulation that runs and is evaluated round by round; each round gives the lines to record."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.layout import Rows
from stratafl.core.reprs import holder, short_repr
from stratafl.core.round import Round
from stratafl.evaluation import evaluate, measure
from stratafl.evaluation.diagnostics import DiagnosticsCollector, LayerDiagnostics
from stratafl.evaluation.evaluate import StageScores
from stratafl.evaluation.last_trained import LastTrained
from stratafl.evaluation.measure import ClientTable, Line, MetricValues, StageValues
from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import (
    StagePredictions,
    gather_predictions,
    join_stages,
    predict_in_shares,
    stage_predictions,
    trained_predictions,
)
from stratafl.execute.executors import Matrix
from stratafl.execute.round_run import Examiner, Executor
from stratafl.execute.simulation import Progress, Simulation

SAMPLED_FROM, SAMPLED = 5_000, 2_000  # if there are more clients than this, so many of them are evaluated by default


def evaluated_clients(setting: int | None, clients: int) -> int:
    """How many of so many clients a run evaluates: all with 0, and without a setting a sample of many."""
    if setting is None:
        return clients if clients <= SAMPLED_FROM else SAMPLED
    return min(setting, clients) or clients


@short_repr
@dataclass(frozen=True)
class RoundLines:
    """The records of a round: one line, a table of the evaluated clients and one of new ones, one line per layer."""

    round: Line
    tables: tuple[ClientTable, ...] = ()  # of the evaluated clients
    layers: list[Line] = field(default_factory=list)

    @property
    def clients(self) -> list[Line]:
        return [{"round": self.round["round"], **line} for table in self.tables for line in table.lines()]


@holder
class Trial:
    """A simulation, every how many rounds it is evaluated, and on how many clients (0: all), always the same ones.

    Without `test` the test samples are never scored.
    """

    sim: Simulation
    every: int = 1
    sample: int = 0
    lab: LayerDiagnostics = LayerDiagnostics()
    executor: Executor = Matrix()
    metric: Metric | None = None  # None: accuracy, or the squared error of numbers
    stage: str = "deployed"  # of the models that count
    test: bool = True

    @property
    def predicts(self) -> bool:
        """Whether the metric needs what models give for single samples."""
        return self.metric is not None and not self.metric.summed

    @property
    def rounds(self) -> int:
        """The number of rounds in all, with a finishing phase."""
        return self.sim.rounds

    @cached_property
    def ids(self) -> Tensor:
        setup = self.sim.setup
        everybody = torch.arange(setup.clients)
        if not 0 < self.sample < setup.clients:
            return everybody
        return torch.argsort(keys.keys(setup.seeds.partition, 0, everybody, "evaluated"))[: self.sample].sort()[0]

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The held-out splits that have samples, and are scored."""
        federation, scored = self.sim.runtime.federation, ("validation", "test") if self.test else ("validation",)
        return tuple(split for split in scored if int(federation.counts(split).sum()))

    def round(self, progress: Progress) -> tuple[Progress, RoundLines]:
        """One round, evaluated if it is due."""
        rnd, trained = self.sim.at(progress.t), LastTrained.of(progress.trained, self.splits)
        evaluated, looked, due = self._evaluates(rnd), self.lab.due(rnd.t), self._due(rnd)
        collector = DiagnosticsCollector(self.lab, self.sim, rnd, self.executor.process_group) if looked else None
        examiner = _Examiner(self, rnd, due, collector)
        examine = examiner if len(due) or looked else None
        progress, report = self.sim.round(progress, self.executor, examine=examine, watched=looked)
        if len(due):
            present = report.present[torch.isin(report.present, due)]
            trained = trained.after(present, *examiner.gathered(present))
        progress = replace(progress, trained=trained.tensors())
        between_servers = self.sim.algorithm.communication(self.sim.at(progress.t), progress.server)
        line: Line = {"round": progress.t, "phase": rnd.plan.phase, **measure.round_line(report), **between_servers}
        line |= measure.pace_line(self.sim, rnd, report)
        line |= self.sim.algorithm.spent(self.sim.at(progress.t))
        line |= measure.upload_line(report, self.sim.runtime.federation.client_names)
        line["seconds.train"] -= examiner.seconds
        begin = self.sim.runtime.now()
        scores, tables = self._evaluation(progress, trained, report.present) if evaluated else ({}, ())
        seen = [{} for _ in rnd.layout.layers] if collector is None else collector.lines(progress, report)
        if measure.LEFT_OUT in line or any(key.endswith(f".{measure.NOT_FINITE}") for key in scores):
            line[measure.TOTAL] = self.sim.setup.clients
            line |= {measure.EVALUATED: len(self.ids)} if len(self.ids) < self.sim.setup.clients else {}
        line |= scores | {"seconds.evaluate": self.sim.runtime.now() - begin + examiner.seconds}
        plain = measure.layer_lines(report, rnd.layout)
        layers = [{"round": progress.t, **facts, **more} for facts, more in zip(plain, seen, strict=True)]
        return progress, RoundLines(line, tables, layers)

    def _evaluates(self, rnd: Round) -> bool:
        return rnd.plan.evaluated and ((rnd.t + 1) % self.every == 0 or rnd.t + 1 == self.rounds)

    def _due(self, rnd: Round) -> Tensor:
        """The clients whose models are scored right after this round: they do not train again before the evaluation."""
        ids = self.ids
        for t in range(rnd.t, self.rounds) if rnd.plan.evaluated else ():
            later = self.sim.at(t)
            ids = ids if t == rnd.t else ids[~torch.isin(ids, self.sim.cohort(later))]
            if self._evaluates(later) or not len(ids):
                return ids
        return ids[:0]

    def _evaluation(
        self, progress: Progress, trained: LastTrained, present: Tensor
    ) -> tuple[Line, tuple[ClientTable, ...]]:
        classes, new_clients = self.sim.setup.classes, self.sim.new_clients
        scored = self._scored(progress, self.ids, self._stages(progress))
        scores, values = self._measured(self.ids, *scored)
        line = measure.score_line(scores, classes, values=values)
        table = measure.scored_clients(self.ids, scores, classes, values)
        ids = torch.cat([present[torch.isin(present, self.ids)], self.ids[~torch.isin(self.ids, present)]])
        scores, values = self._measured(ids, *trained.with_others(ids, *scored))
        line |= measure.score_line(scores, classes, values=values)
        if len(trained.clients) < len(ids):
            line["trained.clients"] = len(trained.clients)
        table = table.updated(measure.scored_clients(ids, scores, classes, values))
        if len(new_clients):
            scored = self._scored(progress, new_clients, ("received", "trained", "deployed"), new=True)
            scores, values = self._measured(new_clients, *scored)
            line |= measure.score_line(scores, classes, "new.", values)
            return line, (table, measure.scored_clients(new_clients, scores, classes, values, new=True))
        return line, (table,)

    def _stages(self, progress: Progress) -> tuple[str, ...]:
        named = self.sim.algorithm.global_model is not None
        wanted = self.stage == "global" and evaluate.global_field(self.sim, progress.server) is not None
        return (*evaluate.STAGES, "global") if named or wanted else evaluate.STAGES

    def _scored(
        self, progress: Progress, ids: Tensor, stages: tuple[str, ...], new: bool = False
    ) -> tuple[StageScores, StagePredictions]:
        """Hits and loss of these clients at these stages, or predictions if the metric needs more than that."""
        sim, group, splits = self.sim, self.executor.process_group, self.splits

        def scored(share: Tensor) -> StageScores:
            if new:
                return evaluate.score_new_clients(sim, progress, splits, share)
            return evaluate.score_stages(sim, progress, share, splits, stages)

        if not self.predicts:
            return evaluate.score_in_shares(group, sim, ids, scored), {}
        return {}, predict_in_shares(
            group, sim, ids, lambda m: stage_predictions(sim, progress, m, splits, stages, new)
        )

    def _measured(
        self, ids: Tensor, scores: StageScores, predictions: StagePredictions
    ) -> tuple[StageScores, StageValues]:
        """Hits and loss of these clients, and the metric if it needs more than that."""
        return self.summed(ids, predictions) if self.predicts else (scores, {})

    def summed(self, ids: Tensor, predictions: StagePredictions) -> tuple[StageScores, StageValues]:
        """Hits, loss and the metric of these clients' predictions; stages with the same ones are computed once."""
        assert self.metric is not None
        metric, distinct = self.metric, {id(predicted): predicted for predicted in predictions.values()}
        scores = {key: predicted.summed(ids) for key, predicted in distinct.items()}
        values = {key: MetricValues.of(metric, predicted) for key, predicted in distinct.items()}
        places = {place: id(predicted) for place, predicted in predictions.items()}
        return {place: scores[key] for place, key in places.items()}, {p: values[key] for p, key in places.items()}


class _Examiner(Examiner):
    """Scores models right after training, while they exist; only those of clients that are due."""

    def __init__(self, trial: Trial, rnd: Round, due: Tensor, collector: DiagnosticsCollector | None) -> None:
        self._trial, self._rnd, self._due, self._collector = trial, rnd, due, collector
        self.seconds = 0.0
        self.restart()

    def restart(self) -> None:
        self._ids: list[Tensor] = []
        self._scores: list[StageScores] = []
        self._predictions: list[StagePredictions] = []
        if self._collector is not None:
            self._collector.restart()

    def __call__(self, clients: Tensor, received: Rows, trained: Rows) -> None:
        now = self._trial.sim.runtime.now
        begin = now()
        if self._collector is not None:
            self._collector.collect(received, trained)
        self._score(clients, trained)
        self.seconds += now() - begin

    def _score(self, group: Tensor, rows: Rows) -> None:
        chosen, trial = torch.isin(group, self._due).nonzero()[:, 0], self._trial
        if not len(chosen):
            return
        rows = rows if len(chosen) == len(group) else {name: x[chosen.to(x.device)] for name, x in rows.items()}
        arguments = (trial.sim, self._rnd, rows, group[chosen], trial.splits)
        if trial.predicts:
            self._predictions.append(trained_predictions(*arguments))
        else:
            self._ids.append(group[chosen])
            self._scores.append(evaluate.score_trained(*arguments))

    def gathered(self, ids: Tensor) -> tuple[StageScores, StagePredictions]:
        """What the models of these clients score or predict, from all processes."""
        process_group = self._trial.executor.process_group
        if self._trial.predicts:
            return {}, gather_predictions(process_group, join_stages(self._predictions))
        scored_ids = torch.cat(self._ids) if self._ids else torch.empty(0, dtype=torch.int64)
        scores = evaluate.join_scores(self._scores) if self._scores else {}
        return evaluate.gather_scores(process_group, scored_ids, scores, ids), {}
