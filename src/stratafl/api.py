"""A few lines for a notebook: train on one's own arrays and module, and get every client's model back.

fitted = stratafl.fit(fedper(), [(x, y), …], model, rounds=20)
fitted.predict(3, x)          what client 3's own model says
fitted.model(3)               that model, an nn.Module that takes samples as training does
fitted.predictor(3)           the same with what was done to the data: it takes raw samples, as predict does
fitted.export(3, "c3.onnx")   or .safetensors
"""

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stratafl.core.algorithm import Algorithm
from stratafl.core.reprs import short_repr
from stratafl.data import Federation, from_clients
from stratafl.data.arrays import Array, plain_tensor
from stratafl.errors import DataError, ModelError, RecordError, RunError
from stratafl.evaluation.evaluate import state_dict
from stratafl.evaluation.flags import Notices
from stratafl.evaluation.measure import Line
from stratafl.evaluation.trial import Trial
from stratafl.execute import Progress, Simulation, simulation
from stratafl.execute.build import ModelSource
from stratafl.execute.tokens import check_given
from stratafl.export.predictor import Predictor
from stratafl.export.writing import to_onnx, to_safetensors
from stratafl.runs import read_run
from stratafl.runs.stored import selected_line
from stratafl.runs.summary import Selection, evaluated, selected

log = logging.getLogger("stratafl")


@short_repr
@dataclass(frozen=True, eq=False)
class Fitted:
    """A federation after its rounds: every client's model, and one line per round of how it went.

    The models are those after `round`, the selected one: that which tables and reports score.
    """

    sim: Simulation
    progress: Progress
    history: list[Line]
    counts: Line | None = None  # the line of the round that the run's settings select; none: by validation

    def _about(self) -> str:
        after = getattr(self, "round", self.progress.t)
        kind = "regression" if self.sim.setup.classes is None else f"{self.sim.setup.classes} classes"
        return f"{self.clients} clients, {kind}, after round {after} of {self.sim.setup.rounds}"

    @property
    def clients(self) -> int:
        """How many clients took part."""
        return self.sim.setup.clients

    @property
    def accuracy(self) -> float:
        """Test accuracy of these models, over all samples."""
        key = "test.deployed.accuracy"
        if self.sim.setup.classes is None:
            raise DataError("a regression has no accuracy: selected['test.deployed.loss'] is its mean squared error")
        value = self._line.get(key)
        if value is None:
            raise DataError(f"there is no test accuracy: round {self.round} was not evaluated on labelled test samples")
        return float(value)

    @property
    def round(self) -> int:
        """The round after which these models are what they are: the selected one, unless another was asked for."""
        return self.progress.t

    @property
    def _line(self) -> Line:
        return next((line for line in self.history if line["round"] == self.round), {})

    @property
    def selected(self) -> Line:
        """The line of the round that counts: by validation, unless the run selects another way."""
        if not evaluated(self.history):
            raise DataError("no round was evaluated, so none can be selected")
        return self.counts or selected(self.history)

    @property
    def classes(self) -> tuple[str, ...]:
        """What the data calls its classes, or their numbers: `classes[i]` is the class that `predict` calls i."""
        federation = self.sim.runtime.federation
        return tuple(map(federation.class_name, range(federation.classes or 0)))

    def model(self, client: int) -> nn.Module:
        """A client's own model, as it would be deployed, in evaluation mode.

        It takes samples as training does: scaled and standardised. `predictor(client)` takes raw ones.
        """
        if not isinstance(client, int):
            raise DataError(f"a client is a whole number from 0 to {self.clients - 1}, not {client!r}")
        assert self.sim.template is not None  # every simulation that was put together has one
        module = copy.deepcopy(self.sim.template)
        module.load_state_dict(state_dict(self.sim, self.progress, client), strict=False)
        return module.eval()

    def predictor(self, client: int) -> Predictor:
        """A client's own model and what was done to the data, as one module that takes raw samples.

        The model is its `module`; of a regression with scaled targets it gives numbers of the data's own unit.
        """
        runtime = self.sim.runtime
        return Predictor(self.model(client), runtime.federation.preprocessing, runtime.dtype)

    def outputs(self, client: int, x: Array) -> Tensor:
        """What a client's own model gives for these samples, which are as the data has them, before any scaling."""
        samples = self._samples(x)
        with torch.no_grad():
            given: Tensor = self.predictor(client)(samples)
        return given

    def predict(self, client: int, x: Array) -> Tensor:
        """The class of each raw sample by a client's own model, or its output where there are no classes."""
        given = self.outputs(client, x)
        return given if self.sim.setup.classes is None else given.argmax(-1)

    def export(self, client: int, path: str | Path) -> Path:
        """Write a client's own model to `NAME.onnx` or `NAME.safetensors`; an existing file is not touched.

        ONNX takes raw samples, as `predict` does. Safetensors holds the weights of `model(client)` alone, and what is
        to be done to samples and outputs as JSON in its metadata (`preprocessing`).
        """
        target = Path(path)
        if target.exists():
            raise RunError(f"'{target}' exists: choose another name, or remove it")
        if target.suffix == ".onnx":
            raw = self.sim.runtime.federation.preprocessing
            to_onnx(self.predictor(client), torch.zeros((2, *raw.shape), dtype=raw.kind), target)
        elif target.suffix == ".safetensors":
            to_safetensors(self.model(client), target, self.sim.runtime.federation.preprocessing)
        else:
            raise RunError(f"'{target}' ends neither in .safetensors nor in .onnx")
        return target

    def _samples(self, x: Array) -> Tensor:
        samples = self.sim.runtime.federation.preprocessing.raw(plain_tensor(x, "x"))
        if self.sim.template is not None:
            check_given(self.sim.template, samples)
        return samples


def fit(
    algorithm: Algorithm,
    clients: Federation | Sequence[tuple[Array, Array]],
    model: ModelSource,
    *,
    rounds: int = 20,
    validation: float = 0.1,
    test: float = 0.25,
    split: str = "stratified",
    seed: int = 0,
    evaluate_every: int = 1,
    device: str = "auto",
    **options: Any,
) -> Fitted:
    """Run an algorithm on one `(x, y)` per client (or a federation) and a module, or a function that makes one.

    You get the models after the round with the best validation accuracy; without a validation part, after the last.
    Each client's samples are cut into test, validation and train, by class (`split="random"`: by chance alone).
    `device` is a GPU where there is one, as in the command, unless you say `cpu` or another; `options` are those of
    `simulation`.
    """
    if evaluate_every < 1:
        raise RecordError(f"evaluate_every counts rounds, at least 1, not {evaluate_every}")
    if not isinstance(model, nn.Module) and not callable(model):
        raise ModelError(f"a model is an nn.Module or a function that makes one, not {model!r}")
    federation = clients
    if not isinstance(federation, Federation):
        federation = from_clients(federation, validation=validation, test=test, seed=seed, split=split)
    sim = simulation(algorithm, federation, model, rounds=rounds, seed=seed, device=device, **options)
    trial = Trial(sim, evaluate_every)
    progress, history, selection, notices = trial.sim.start(), list[Line](), Selection(), Notices()
    try:
        while progress.t < trial.rounds:
            progress, entry = trial.round(progress)
            history.append(entry.round)
            selection = selection.after(entry.round, progress)
            for notice in notices.of(history):
                log.warning("%s", notice)
    finally:
        sim.runtime.close()
    return Fitted(trial.sim, selection.progress or progress, history)


def load(folder: str | Path, *, round: str = "selected", device: str = "auto", trust: bool = False) -> Fitted:
    """What a run directory holds: the models after its selected round, which tables score, and its lines.

    `round="newest"` gives those after the newest checkpoint, from which `strata resume` goes on. `device` is where the
    models are computed; `auto` is where the run did, or the CPU if this machine has no such device. If the run names a
    model or a method of your own, `package.module:name`, loading it runs that code: `trust=True`.
    """
    sim, progress, lines = read_run(Path(folder), round, device, trust)
    return Fitted(sim, progress, lines, selected_line(Path(folder), lines))
