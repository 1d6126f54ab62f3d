"""The engine, timed round by round: a simulation with its default settings."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bench_models import BenchModel, Workload
from plain_loops import LEARNING_RATE
from stratafl.algorithms import ALGORITHMS
from stratafl.core.algorithm import Algorithm
from stratafl.core.layout import Layout
from stratafl.data import Federation
from stratafl.evaluation.evaluate import score_stages
from stratafl.execute import InOneProcess, Matrix, simulation
from stratafl.execute.context import SimulationContext
from stratafl.execute.memory import device_memory
from stratafl.execute.round_run import Watch, unwatched
from stratafl.policies import LocalTraining
from stratafl.runtime import LoopEngine
from stratafl.runtime.build import EngineName
from stratafl.runtime.speed import Speed
from timing import Seconds, now

ROUNDS = 1000  # of a run of which a few rounds are timed; decides whether compiling pays
STEADY = 2  # rounds without a new compiled step or trace, after which timing may begin
PATIENT = 15.0  # seconds to wait for a first trace, which comes late where steps are long and gain little from it
SERVER = ("download", "fold", "absorb")


def bench_method(name: str, batch: int, clients: int) -> Algorithm:
    """The method without shuffling, its warm-up phases as short as possible."""
    groups = min(4, clients)
    short = {"fedlag": {"warmup": 0}, "fedalp": {"warmup": 1, "groups": groups}, "fedavg30local": {"warmup": 1}}
    return ALGORITHMS[name](train=LocalTraining(lr=LEARNING_RATE, batch=batch, shuffle=False), **short.get(name, {}))


class TimedMatrix(InOneProcess):
    """The matrix executor, which also adds up the seconds of every stage."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._matrix = device, Matrix()
        self.seconds: dict[str, float] = {}

    def groups(self, sim: SimulationContext, ids: Tensor) -> Iterator[Tensor]:
        return self._matrix.groups(sim, ids)

    @contextmanager
    def stage(self, name: str, ids: Tensor, layout: Layout) -> Iterator[Watch]:
        begin = now(self._device)
        yield unwatched
        self.seconds[name] = self.seconds.get(name, 0.0) + now(self._device) - begin


class EngineRun:
    """A method on a workload; `first` is the time from building it to the end of the first round."""

    name = "engine"

    def __init__(
        self,
        name: str,
        model: BenchModel,
        workload: Workload,
        federation: Federation,
        device: str,
        speed: Speed,
        engine: EngineName = "auto",
    ) -> None:
        begin = time.perf_counter()
        self.device = torch.device(device)
        algorithm, module = bench_method(name, workload.batch, workload.clients), model.module
        share, limit = workload.cohort / workload.clients, device_memory(self.device) // 2
        where: dict[str, Any] = {"device": device, "engine": engine, "speed": speed, "memory_limit": limit}
        self.sim = simulation(algorithm, federation, module, rounds=ROUNDS, participation=share, **where)
        self.cohort = self.sim.ordered(self.sim.setup.sampled(0))
        self._everybody = torch.arange(workload.clients)
        self._progress = self.sim.start()
        self._round()
        self.first = now(self.device) - begin

    def once(self) -> Seconds:
        """One round, always of the same cohort, and the evaluation of all deployed models."""
        begin, cpu = now(self.device), time.process_time()
        server = self._round()
        done, cpu = now(self.device), time.process_time() - cpu
        self.board = score_stages(self.sim, self._progress, self._everybody, ("test",), ("deployed",))
        return Seconds(done - begin - server, server, now(self.device) - done, cpu)

    def _round(self) -> float:
        """One round; the seconds of the server."""
        timed = TimedMatrix(self.device)
        everybody = self.sim.at(self._progress.t).plan.participation == "all"
        self._progress, _ = self.sim.round(self._progress, timed, None if everybody else self.cohort)
        return sum(timed.seconds[stage] for stage in SERVER)

    def warm_up(self) -> int:
        """Run rounds until the main phase has begun and no step is captured, compiled or traced any more; how many."""
        begin, done, steady = time.perf_counter(), 0, 0
        keeps = not isinstance(self.sim.runtime.engine, LoopEngine)
        patient = PATIENT if keeps else 0.0
        while not self._in_main_phase or steady < STEADY or (not self.kept and time.perf_counter() - begin < patient):
            before = self.kept, self.compiled
            self.once()
            done += 1
            steady = steady + 1 if (self.kept, self.compiled) == before else 0
        return done

    @property
    def _in_main_phase(self) -> bool:
        return self.sim.at(self._progress.t).plan.phase == self.sim.at(ROUNDS - 1).plan.phase

    @property
    def kept(self) -> int:
        """How many captured or traced steps are kept."""
        return self.sim.runtime.kept

    @property
    def compiled(self) -> object:
        """Whether they are compiled; None until that is decided."""
        return self.sim.runtime.tuning["compiled"]
