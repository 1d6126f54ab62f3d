"""Candidates of the guard: the models that a client can take at the end of a run.

    received          as it received it after the selected round
    deployed          as the method deploys it, or whatever stage counts (`evaluate.stage`), where that is another model
    fine-tuned        the received model, all layers trained on the client's training samples for some epochs
    head fine-tuned   the received model, only its head trained
    local             trained alone, never having taken part: the safe choice

`guard.py` decides between them; `runs/guard.py` trains the local models and writes down what was chosen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stratafl.algorithms import local
from stratafl.core.layers import select
from stratafl.core.layout import Rows
from stratafl.core.reprs import short_repr
from stratafl.core.state import join, rows_of
from stratafl.errors import unknown
from stratafl.evaluation.evaluate import ClientModels, client_models, deployed, same_tensors
from stratafl.evaluation.guard import SAFE, Choice
from stratafl.evaluation.predictions import Predictions, joined, row_predictions
from stratafl.execute import Progress, Simulation
from stratafl.execute.context import client_state_format
from stratafl.execute.memory import choose_store, limit_left
from stratafl.policies import SGD
from stratafl.policies.train import tuning

TUNED, HEAD_TUNED = "fine-tuned", "head fine-tuned"
EPOCHS = 5  # of fine-tuning
LAYERS = {TUNED: select("all"), HEAD_TUNED: select("head")}
ByCandidate = dict[str, Predictions]


@short_repr
@dataclass(frozen=True, eq=False)
class Candidates:
    """A run at its selected round, local training at its own, and how received models are fine-tuned."""

    sim: Simulation
    progress: Progress
    alone: Simulation
    alone_progress: Progress
    train: SGD = SGD()
    stage: str = "deployed"
    epochs: int = EPOCHS

    def predictions(self, ids: Tensor, splits: Sequence[str]) -> dict[str, ByCandidate]:
        """By split and candidate, what the models of these clients give for their own samples."""
        parts: dict[str, dict[str, list[Predictions]]] = {split: {} for split in splits}
        for some, models in self._groups(ids):
            for split in splits:
                for name, (sim, rows) in models.items():
                    given = row_predictions(sim, some.rnd, rows, some.ids, split)
                    parts[split].setdefault(name, []).append(given)
        return {split: {name: joined(each) for name, each in found.items()} for split, found in parts.items()}

    def rows(self, name: str, ids: Tensor) -> Rows:
        """The models of these clients that are this candidate."""
        found = []
        for _, models in self._groups(ids):
            if name not in models:
                raise unknown("candidate", name, models)
            found.append({"rows": models[name][1]})
        return rows_of(join(found), "rows")

    def _groups(self, ids: Tensor) -> Iterator[tuple[ClientModels, dict[str, tuple[Simulation, Rows]]]]:
        """Some clients at a time, as many as memory allows: every candidate with the simulation it belongs to."""
        for some in client_models(self.sim, self.progress, self.sim.checked(ids)):
            with self.sim.arithmetic():
                received, own = some.rows("received"), some.rows(self.stage)
                models = {"received": (self.sim, received)}
                if self.stage != "received" and not same_tensors(received, own):
                    models[self.stage] = (self.sim, own)
                for name, layers in LAYERS.items():
                    step = tuning(self.train, self.epochs, layers, name)
                    tuned = rows_of(step(some.rnd, {step.row: received}, some.task), step.row)
                    models[name] = (self.sim, tuned)
            models[SAFE] = (self.alone, deployed(self.alone, self.alone_progress, some.ids))
            yield some, models


def alone_like(sim: Simulation, train: SGD) -> Simulation:
    """Local training of the same model from the same start, on the same data and device."""
    algorithm, device = local(train=train), sim.runtime.device
    needed = client_state_format(algorithm, sim.setup).size * sim.setup.clients
    left = limit_left(sim.memory_limit, device)
    store = choose_store("auto", needed, device, left, participation=sim.setup.participation, saved=False)
    return replace(sim, algorithm=algorithm, store=store, diagnosed_clients=0)


def guarded_predictions(found: ByCandidate, choices: Mapping[int, Choice]) -> Predictions:
    """Of the predictions of all candidates, those of the one that each client takes."""
    parts = []
    for name, given in found.items():
        taken = torch.tensor([client for client, choice in choices.items() if choice.candidate == name])
        parts.append(given.at(torch.isin(given.client, taken).nonzero()[:, 0]))
    return joined(parts)
