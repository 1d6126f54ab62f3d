"""Candidates of the guard: the models that a client can take at the end of a run.

    received          as it received it after the selected round
    deployed          as the method deploys it, or whatever stage counts (`evaluate.stage`), where that is another model
    fine-tuned        the received model, all layers trained on the client's training samples for some epochs
    head fine-tuned   the received model, only its head trained
    local             trained alone, never having taken part: the safe choice

`guard.py` decides between them; `runs/guard.py` trains the local models and writes down each client's choice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stratafl.algorithms import local
from stratafl.core.algorithm import Algorithm
from stratafl.core.layers import select
from stratafl.core.layout import Rows
from stratafl.core.records import from_settings, to_settings
from stratafl.core.reprs import holder
from stratafl.core.state import join_states, rows_of
from stratafl.errors import DataError, unknown
from stratafl.evaluation.evaluate import ClientModels, client_models, deployed, same_tensors
from stratafl.evaluation.guard import SAFE, Choice, choose
from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import Predictions, join_predictions, row_predictions
from stratafl.execute import Progress, Simulation, simulation
from stratafl.execute.context import client_state_format
from stratafl.execute.executors import chunk_size
from stratafl.execute.memory import choose_store, limit_left
from stratafl.policies import LocalTraining
from stratafl.policies.train import tuning

TUNED, HEAD_TUNED = "fine-tuned", "head fine-tuned"
EPOCHS = 5  # of fine-tuning
LAYERS = {TUNED: select("all"), HEAD_TUNED: select("head")}
ByCandidate = dict[str, Predictions]


@holder
class GuardCandidates:
    """A run at its selected round, local training at its own, and how received models are fine-tuned."""

    sim: Simulation
    progress: Progress
    alone: Simulation | None = None
    alone_progress: Progress | None = None
    train: LocalTraining = LocalTraining()
    stage: str = "deployed"
    epochs: int = EPOCHS

    def predictions(self, ids: Tensor, splits: Sequence[str]) -> dict[str, ByCandidate]:
        """By split and candidate, what the models of these clients give for their own samples."""
        parts: dict[str, dict[str, list[Predictions]]] = {split: {} for split in splits}
        for some in self._groups(ids):
            for name, rows in self._each(some):
                sim, progress = self._alone() if name == SAFE else (self.sim, self.progress)
                for split in splits:
                    predicted = row_predictions(sim, sim.at(progress.t), rows, some.ids, split)
                    parts[split].setdefault(name, []).append(predicted)
        return {
            split: {name: join_predictions(each) for name, each in by_candidate.items()}
            for split, by_candidate in parts.items()
        }

    def _each(self, some: ClientModels) -> Iterator[tuple[str, Rows]]:
        """One candidate after the other, so that memory holds two models of a client and not all of them."""
        received = self._rows("received", some)
        yield "received", received
        stage_rows = self._rows(self.stage, some)
        if not same_tensors(stage_rows, received):
            yield self.stage, stage_rows
        del stage_rows
        for name in (*LAYERS, SAFE):
            yield name, self._rows(name, some)

    def rows(self, name: str, ids: Tensor) -> Rows:
        """The models of these clients that are this candidate."""
        names = ("received", *LAYERS, self.stage, SAFE)
        if name not in names:
            raise unknown("candidate", name, names)
        return rows_of(join_states([{"rows": self._rows(name, some)} for some in self._groups(ids)]), "rows")

    def _groups(self, ids: Tensor) -> Iterator[ClientModels]:
        """As many clients at a time as memory allows to train, since they are fine-tuned."""
        ids = self.sim.checked(ids)
        for group in ids.split(chunk_size(self.sim, min(len(ids), self.sim.largest_cohort))):
            yield from client_models(self.sim, self.progress, group)

    def _rows(self, name: str, some: ClientModels) -> Rows:
        if name == SAFE:
            return deployed(*self._alone(), some.ids)
        with self.sim.arithmetic():
            if name not in LAYERS:
                return some.rows(name)
            step = tuning(self.train, self.epochs, LAYERS[name], name)
            return rows_of(step(some.rnd, {step.row: some.rows("received")}, some.task), step.row)

    def _alone(self) -> tuple[Simulation, Progress]:
        if self.alone is None or self.alone_progress is None:
            raise DataError("there are no local models: train them with stratafl.runs.guard_files:train_alone")
        return self.alone, self.alone_progress


def local_descent(algorithm: Algorithm) -> LocalTraining:
    """The learning rate, batches and so on with which clients train; without what a method adds to a descent."""
    records = getattr(algorithm, "records", (algorithm,))
    steps = (step for each in records for step in getattr(each, "train", ()) if isinstance(step, LocalTraining))
    training = next(steps, LocalTraining())
    return replace(from_settings("train", LocalTraining, to_settings(training)), epochs=max(1, training.epochs))


def alone_like(sim: Simulation, train: LocalTraining) -> Simulation:
    """Local training of the same model, less what the method adds to it, from the same start on the same data."""
    algorithm, device = local(train=train), sim.runtime.device
    if _extended(sim.algorithm):
        return _built_anew(sim, algorithm)
    needed = client_state_format(algorithm, sim.setup).size * sim.setup.clients
    left = limit_left(sim.memory_limit, device)
    store = choose_store("auto", needed, device, left, participation=sim.setup.participation, saved=False)
    return replace(sim, algorithm=algorithm, store=store, diagnosed_clients=0)


def _extended(algorithm: Algorithm) -> bool:
    """Whether a method adds layers to the model."""
    return any(getattr(each, "extension", None) is not None for each in getattr(algorithm, "records", (algorithm,)))


def _built_anew(sim: Simulation, algorithm: Algorithm) -> Simulation:
    """The simulation with another method, which may have other layers."""
    plan, runtime = sim.blueprint, sim.runtime
    assert plan is not None  # every assembled simulation has one
    return simulation(
        algorithm,
        runtime.federation,
        plan.model,
        rounds=plan.rounds,
        participation=plan.participation,
        seed=plan.seeds,
        granularity=plan.granularity,
        buffers=plan.buffers,
        head=plan.head,
        frozen=plan.frozen,
        weights=plan.weights,
        dtype=plan.dtype,
        device=str(runtime.device),
        engine="loop" if runtime.prefers_loop else plan.engine,
        speed=runtime.speed,
        memory_limit=sim.memory_limit,
        new_clients=runtime.federation.clients - plan.clients,
        begun=True,
    )


@holder
class GuardedModels:
    """Candidates, and what each client takes of them."""

    candidates: GuardCandidates
    choices: Mapping[int, Choice]
    all_predictions: Mapping[str, ByCandidate]  # by split and candidate

    def predictions(self, split: str) -> Predictions:
        """What the model that each client takes gives for its own samples."""
        parts = []
        for name, predicted in self.all_predictions[split].items():
            taken = torch.tensor(self.clients(name), dtype=torch.int64)
            parts.append(predicted.at(torch.isin(predicted.client, taken).nonzero()[:, 0]))
        return join_predictions(parts)

    def clients(self, name: str) -> list[int]:
        """The clients that take this candidate."""
        return [client for client, choice in self.choices.items() if choice.candidate == name]

    def rows(self, client: int) -> Rows:
        """The model that a client takes."""
        return self.candidates.rows(self.choices[client].candidate, torch.tensor([client]))


def guarded(
    candidates: GuardCandidates, ids: Tensor, splits: Sequence[str], metric: Metric | None = None
) -> GuardedModels:
    """What each of these clients takes, by this metric on its validation samples."""
    predictions = candidates.predictions(ids, splits)
    if "validation" not in predictions:
        raise DataError("the guard chooses on validation samples: set data.validation, such as 0.1")
    return GuardedModels(candidates, choose(predictions["validation"], metric, clients=ids.tolist()), predictions)
