"""A trial: a simulation that is evaluated as it goes; one round at a time, each with its lines for the record."""

import time
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.layout import Rows
from stratafl.core.reprs import short_repr
from stratafl.core.round import Round
from stratafl.evaluation.evaluate import STAGES, Board, gathered, joined, new_clients, score_trained, scoreboard, shared
from stratafl.evaluation.lab import Bench, Lab
from stratafl.evaluation.measure import Line, board_line, client_lines, cost_line, layer_lines, upload_line
from stratafl.execute import Executor, Matrix, Progress, Simulation


@short_repr
@dataclass(frozen=True)
class Entry:
    """What is recorded of a round: one line, one per evaluated client, one per layer."""

    round: Line
    clients: list[Line] = field(default_factory=list)
    layers: list[Line] = field(default_factory=list)


@short_repr
@dataclass(frozen=True, eq=False)
class Trial:
    """A simulation and when and on whom it is evaluated (`sample` clients, always the same ones; 0: all)."""

    sim: Simulation
    every: int = 1
    sample: int = 0
    lab: Lab = Lab()
    executor: Executor = Matrix()

    @property
    def rounds(self) -> int:
        """How many rounds there are in all."""
        return self.sim.rounds

    @cached_property
    def ids(self) -> Tensor:
        """The clients that are evaluated."""
        setup = self.sim.setup
        if not 0 < self.sample < setup.clients:
            return torch.arange(setup.clients)
        return torch.argsort(keys.keys(setup.seed, 0, torch.arange(setup.clients), "evaluated"))[: self.sample].sort()[
            0
        ]

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The held-out splits that hold any sample."""
        federation = self.sim.runtime.federation
        return tuple(split for split in ("validation", "test") if int(federation.counts(split).sum()))

    def round(self, progress: Progress) -> tuple[Progress, Entry]:
        """One round, evaluated if it is its turn."""
        rnd = self.sim.at(progress.t)
        evaluated = self._evaluated(rnd)
        bench = Bench(self.lab, self.sim, rnd, self.executor.process_group) if self.lab.due(rnd.t) else None
        examiner = _Examiner(self, rnd, evaluated, bench)
        examined = evaluated or bench is not None
        progress, report = self.sim.round(
            progress, self.executor, examine=examiner if examined else None, watched=bench is not None
        )
        line: Line = {"round": progress.t, "phase": rnd.plan.phase, **cost_line(report), **self._costs(progress)}
        line |= upload_line(report, self.sim.runtime.federation.client_names)
        line["seconds.train"] -= examiner.seconds
        begin = time.perf_counter()
        scores, clients = self._evaluation(progress, examiner, report.present) if evaluated else ({}, [])
        seen = bench.lines(progress, report) if bench is not None else [{} for _ in rnd.layout.layers]
        line |= scores | {"seconds.evaluate": time.perf_counter() - begin + examiner.seconds}
        plain = layer_lines(report, rnd.layout)
        layers = [{"round": progress.t, **each, **more} for each, more in zip(plain, seen, strict=True)]
        return progress, Entry(line, [{"round": progress.t, **each} for each in clients], layers)

    def _costs(self, progress: Progress) -> dict[str, float]:
        return self.sim.algorithm.communication(self.sim.at(progress.t), progress.server)

    def _evaluated(self, rnd: Round) -> bool:
        return rnd.plan.evaluated and ((rnd.t + 1) % self.every == 0 or rnd.t + 1 == self.rounds)

    def _evaluation(self, progress: Progress, examiner: "_Examiner", present: Tensor) -> tuple[Line, list[Line]]:
        classes, sim, process_group = self.sim.setup.classes, self.sim, self.executor.process_group
        stages = STAGES if sim.algorithm.global_model is None else (*STAGES, "global")
        board = shared(process_group, sim, self.ids, lambda mine: scoreboard(sim, progress, mine, self.splits, stages))
        line, lines = board_line(board, classes), client_lines(self.ids, board, classes)
        ids = present[torch.isin(present, self.ids)]
        trained = gathered(process_group, *examiner.board, ids)
        line |= board_line(trained, classes)
        by_client = {each["client"]: each for each in client_lines(ids, trained, classes)}
        lines = [{**each, **by_client.get(each["client"], {})} for each in lines]
        if len(sim.new_clients):
            new = shared(
                process_group, sim, sim.new_clients, lambda mine: new_clients(sim, progress, self.splits, mine)
            )
            line |= board_line(new, classes, "new.")
            lines += [{"new": True, **each} for each in client_lines(sim.new_clients, new, classes)]
        return line, lines


class _Examiner:
    """Scores models right after training, while they are there; only of clients that are evaluated."""

    def __init__(self, trial: Trial, rnd: Round, evaluated: bool, bench: Bench | None) -> None:
        self._trial, self._rnd, self._evaluated, self._bench = trial, rnd, evaluated, bench
        self._ids: list[Tensor] = []
        self._boards: list[Board] = []
        self.seconds = 0.0

    def __call__(self, group: Tensor, received: Rows, rows: Rows) -> None:
        """Score the group, and show it to the laboratory."""
        begin = time.perf_counter()
        if self._bench is not None:
            self._bench.collect(received, rows)
        if self._evaluated:
            self._score(group, rows)
        self.seconds += time.perf_counter() - begin

    def _score(self, group: Tensor, rows: Rows) -> None:
        mine = torch.isin(group, self._trial.ids).nonzero()[:, 0]
        if len(mine):
            rows = rows if len(mine) == len(group) else {name: x[mine.to(x.device)] for name, x in rows.items()}
            self._ids.append(group[mine])
            self._boards.append(score_trained(self._trial.sim, self._rnd, rows, group[mine], self._trial.splits))

    @property
    def board(self) -> tuple[Tensor, Board]:
        """Who was scored, and how."""
        if not self._boards:
            return torch.empty(0, dtype=torch.int64), {}
        return torch.cat(self._ids), joined(self._boards)
