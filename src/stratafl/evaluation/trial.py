"""A trial: a simulation that is evaluated as it goes, one round at a time, each with the lines to record."""

import time
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.layout import Rows
from stratafl.core.reprs import short_repr
from stratafl.core.round import Round
from stratafl.evaluation import evaluate
from stratafl.evaluation.diagnostics import DiagnosticsCollector, LayerDiagnostics
from stratafl.evaluation.measure import Line, client_lines, layer_lines, round_line, score_line, upload_line
from stratafl.execute.executors import Matrix
from stratafl.execute.round import Executor
from stratafl.execute.simulation import Progress, Simulation


@short_repr
@dataclass(frozen=True)
class RoundLines:
    """What is recorded of a round: one line, one per evaluated client, one per layer."""

    round: Line
    clients: list[Line] = field(default_factory=list)
    layers: list[Line] = field(default_factory=list)


@short_repr
@dataclass(frozen=True, eq=False)
class Trial:
    """A simulation, every how many rounds it is evaluated, and on how many clients (0: all), always the same ones.

    Without `test` the test samples are never scored.
    """

    sim: Simulation
    every: int = 1
    sample: int = 0
    lab: LayerDiagnostics = LayerDiagnostics()
    executor: Executor = Matrix()
    test: bool = True

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
        return torch.argsort(keys.keys(setup.seed, 0, everybody, "evaluated"))[: self.sample].sort()[0]

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The held-out splits that have samples, and are scored."""
        federation, scored = self.sim.runtime.federation, ("validation", "test") if self.test else ("validation",)
        return tuple(split for split in scored if int(federation.counts(split).sum()))

    def round(self, progress: Progress) -> tuple[Progress, RoundLines]:
        """One round, evaluated if it is due."""
        rnd = self.sim.at(progress.t)
        evaluated = rnd.plan.evaluated and ((rnd.t + 1) % self.every == 0 or rnd.t + 1 == self.rounds)
        looked = self.lab.due(rnd.t)
        collector = DiagnosticsCollector(self.lab, self.sim, rnd, self.executor.process_group) if looked else None
        examiner = _Examiner(self, rnd, evaluated, collector)
        examine = examiner if evaluated or looked else None
        progress, report = self.sim.round(progress, self.executor, examine=examine, watched=looked)
        between_servers = self.sim.algorithm.communication(self.sim.at(progress.t), progress.server)
        line: Line = {"round": progress.t, "phase": rnd.plan.phase, **round_line(report), **between_servers}
        line |= upload_line(report, self.sim.runtime.federation.client_names)
        line["seconds.train"] -= examiner.seconds
        begin = time.perf_counter()
        scores, clients = self._evaluation(progress, examiner, report.present) if evaluated else ({}, [])
        seen = [{} for _ in rnd.layout.layers] if collector is None else collector.lines(progress, report)
        line |= scores | {"seconds.evaluate": time.perf_counter() - begin + examiner.seconds}
        plain = layer_lines(report, rnd.layout)
        layers = [{"round": progress.t, **each, **more} for each, more in zip(plain, seen, strict=True)]
        return progress, RoundLines(line, [{"round": progress.t, **each} for each in clients], layers)

    def _evaluation(self, progress: Progress, examiner: "_Examiner", present: Tensor) -> tuple[Line, list[Line]]:
        classes, sim, group = self.sim.setup.classes, self.sim, self.executor.process_group
        stages = evaluate.STAGES if sim.algorithm.global_model is None else (*evaluate.STAGES, "global")
        scores = evaluate.score_in_shares(
            group, sim, self.ids, lambda mine: evaluate.score_stages(sim, progress, mine, self.splits, stages)
        )
        line, lines = score_line(scores, classes), client_lines(self.ids, scores, classes)
        ids = present[torch.isin(present, self.ids)]
        trained = evaluate.gather_scores(group, *examiner.scores, ids)
        line |= score_line(trained, classes)
        by_client = {each["client"]: each for each in client_lines(ids, trained, classes)}
        lines = [{**each, **by_client.get(each["client"], {})} for each in lines]
        if len(sim.new_clients):
            new = evaluate.score_in_shares(
                group, sim, sim.new_clients, lambda mine: evaluate.score_new_clients(sim, progress, self.splits, mine)
            )
            line |= score_line(new, classes, "new.")
            lines += [{"new": True, **each} for each in client_lines(sim.new_clients, new, classes)]
        return line, lines


class _Examiner:
    """Scores models right after training, while they exist; only those of clients that are evaluated."""

    def __init__(self, trial: Trial, rnd: Round, evaluated: bool, collector: DiagnosticsCollector | None) -> None:
        self._trial, self._rnd, self._evaluated, self._collector = trial, rnd, evaluated, collector
        self._ids: list[Tensor] = []
        self._scores: list[evaluate.StageScores] = []
        self.seconds = 0.0

    def __call__(self, group: Tensor, received: Rows, rows: Rows) -> None:
        begin = time.perf_counter()
        if self._collector is not None:
            self._collector.collect(received, rows)
        if self._evaluated:
            self._score(group, rows)
        self.seconds += time.perf_counter() - begin

    def _score(self, group: Tensor, rows: Rows) -> None:
        mine = torch.isin(group, self._trial.ids).nonzero()[:, 0]
        if len(mine):
            rows = rows if len(mine) == len(group) else {name: x[mine.to(x.device)] for name, x in rows.items()}
            trial = self._trial
            self._ids.append(group[mine])
            self._scores.append(evaluate.score_trained(trial.sim, self._rnd, rows, group[mine], trial.splits))

    @property
    def scores(self) -> tuple[Tensor, evaluate.StageScores]:
        if not self._scores:
            return torch.empty(0, dtype=torch.int64), {}
        return torch.cat(self._ids), evaluate.join_scores(self._scores)
