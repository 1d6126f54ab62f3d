"""A few lines for a notebook: train on one's own arrays and module, and get every client's model back.

fitted = stratafl.fit(fedper(), [(x, y), …], model, rounds=20)
fitted.predict(3, x)          what client 3's own model says
fitted.model(3)               that model, an nn.Module
fitted.export(3, "c3.onnx")   or .safetensors
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stratafl.algorithm import Algorithm
from stratafl.data import Federation, from_clients
from stratafl.data.arrays import Array, plain_tensor
from stratafl.data.scaling import numbers
from stratafl.errors import DataError, ModelError, RecordError, RunError
from stratafl.evaluate import state_dict
from stratafl.execute import Progress, Simulation, simulation
from stratafl.execute.simulation import ModelSource
from stratafl.export import to_onnx, to_safetensors
from stratafl.measure import Line
from stratafl.runs import stored
from stratafl.summary import evaluated, last, selected
from stratafl.trial import Trial


@dataclass(frozen=True, eq=False)
class Fitted:
    """A federation after its rounds: every client's model, and one line per round of how it went."""

    sim: Simulation
    progress: Progress
    history: list[Line]

    @property
    def clients(self) -> int:
        """How many clients took part."""
        return self.sim.setup.clients

    @property
    def accuracy(self) -> float:
        """Test accuracy of the deployed models after the last round, over all samples."""
        key = "test.deployed.accuracy"
        if self.sim.setup.classes is None:
            raise DataError("a regression has no accuracy: selected['test.deployed.loss'] is its mean squared error")
        if not evaluated(self.history) or key not in last(self.history):
            raise DataError("there is no test accuracy: no round was evaluated on labelled test samples")
        return float(last(self.history)[key])

    @property
    def selected(self) -> Line:
        """The line of the round with the best validation accuracy."""
        if not evaluated(self.history):
            raise DataError("no round was evaluated, so none can be selected")
        return selected(self.history)

    def model(self, client: int) -> nn.Module:
        """A client's own model, as it would be deployed, in evaluation mode."""
        if not isinstance(client, int):
            raise DataError(f"a client is a whole number from 0 to {self.clients - 1}, not {client!r}")
        assert self.sim.template is not None  # every simulation that was put together has one
        module = copy.deepcopy(self.sim.template)
        module.load_state_dict(state_dict(self.sim, self.progress, client), strict=False)
        return module.eval()

    def outputs(self, client: int, x: Array) -> Tensor:
        """What a client's own model gives for these samples."""
        samples = self._samples(x)
        with torch.no_grad():
            given: Tensor = self.model(client)(samples)
        return given

    def predict(self, client: int, x: Array) -> Tensor:
        """The class of each sample by a client's own model, or its output where there are no classes."""
        given = self.outputs(client, x)
        return given if self.sim.setup.classes is None else given.argmax(-1)

    def export(self, client: int, path: str | Path) -> Path:
        """Write a client's own model to `NAME.safetensors` or `NAME.onnx`; an existing file is not touched."""
        target = Path(path)
        if target.exists():
            raise RunError(f"'{target}' exists: choose another name, or remove it")
        if target.suffix == ".onnx":
            to_onnx(self.model(client), self._samples(self.sim.workshop.federation.x[:2]), target)
        elif target.suffix == ".safetensors":
            to_safetensors(self.model(client), target)
        else:
            raise RunError(f"'{target}' ends neither in .safetensors nor in .onnx")
        return target

    def _samples(self, x: Array) -> Tensor:
        tensor = plain_tensor(x, "x")
        shape = tuple(self.sim.workshop.federation.x.shape[1:])
        if tuple(tensor.shape[1:]) != shape:
            raise DataError(
                f"samples of shape {shape} are expected, [n, {', '.join(map(str, shape))}] in all, "
                f"not an array of shape {tuple(tensor.shape)}"
            )
        federation, dtype = self.sim.workshop.federation, self.sim.workshop.dtype
        if not federation.x.is_floating_point() and federation.x.dtype != torch.uint8:
            return tensor.cpu().to(federation.x.dtype)
        scale = federation.scale(dtype) if tensor.dtype == torch.uint8 else ()  # what is no byte is a number already
        return numbers(tensor.cpu().to(dtype), dtype, tuple(part.cpu() for part in scale))


def fit(
    algorithm: Algorithm,
    clients: Federation | Sequence[tuple[Array, Array]],
    model: ModelSource,
    *,
    rounds: int = 20,
    validation: float = 0.1,
    test: float = 0.25,
    seed: int = 0,
    evaluate_every: int = 1,
    device: str = "auto",
    **options: Any,
) -> Fitted:
    """Run an algorithm on one `(x, y)` per client (or a federation) and a module, or a function that makes one.

    Each client's samples are cut into test, validation and train. `device` is a GPU where there is one, as in the
    command, unless you say `cpu` or another; `options` are those of `simulation`.
    """
    if evaluate_every < 1:
        raise RecordError(f"evaluate_every counts rounds, at least 1, not {evaluate_every}")
    if not isinstance(model, nn.Module) and not callable(model):
        raise ModelError(f"a model is an nn.Module or a function that makes one, not {model!r}")
    federation = clients
    if not isinstance(federation, Federation):
        federation = from_clients(federation, validation=validation, test=test, seed=seed)
    sim = simulation(algorithm, federation, model, rounds=rounds, seed=seed, device=device, **options)
    trial = Trial(sim, evaluate_every)
    progress, history = trial.sim.start(), list[Line]()
    try:
        while progress.t < trial.rounds:
            progress, entry = trial.round(progress)
            history.append(entry.round)
    finally:
        sim.workshop.close()
    return Fitted(trial.sim, progress, history)


def load(folder: str | Path) -> Fitted:
    """What a run directory holds: the models after its newest checkpoint, and its lines up to there."""
    return Fitted(*stored(Path(folder)))
