"""A trained federation: every client's model, its predictions and metrics, and the guard's choice."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stratafl.config.metric_choice import metric_for
from stratafl.config.setting_tables import EvaluateTable
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.layout import Rows
from stratafl.core.reprs import holder
from stratafl.data.arrays import Array, cells_of, in_columns, plain_tensor, stack_named
from stratafl.data.federation import Federation
from stratafl.errors import DataError, ModelError, RunError, shown, unknown
from stratafl.evaluation.candidates import EPOCHS, GuardCandidates, GuardedModels, alone_like, guarded, local_descent
from stratafl.evaluation.evaluate import state_dict
from stratafl.evaluation.guard import SAFE, Choice
from stratafl.evaluation.measure import NOT_FINITE, Line
from stratafl.evaluation.metrics import Metric, named_metric, own_metric
from stratafl.evaluation.predictions import Predictions, predictions
from stratafl.evaluation.trial import Trial
from stratafl.execute import Progress, Simulation
from stratafl.execute.drawing import filled
from stratafl.execute.tokens import check_given
from stratafl.export import Predictor, export_model, finite_outputs
from stratafl.models import own_model
from stratafl.runs.directory import GUARD, config_of
from stratafl.runs.guard_files import companion, extended, local_model, read_guard, run_to_end, train_alone
from stratafl.runs.summary import DEFAULTS, evaluated, selected

HELD_OUT = ("test", "validation")


@holder
class Fitted:
    """A trained federation: every client's model, and one line of metrics per round.

    The models are those after `round`, the selected round, which tables and reports score.
    """

    sim: Simulation
    progress: Progress
    history: list[Line]
    counts: Line | None = None  # the line of the round that the run's settings select; None: by validation
    folder: Path | None = None  # the run directory that it was loaded from
    evaluate: EvaluateTable = DEFAULTS  # what rounds were selected by, and the stage of the models that count
    selected_by: Metric | None = None  # that metric; None: as `evaluate` names it
    trust: Trust | bool = NO_TRUST

    def _about(self) -> str:
        kind = "regression" if self.sim.setup.classes is None else f"{self.sim.setup.classes} classes"
        return f"{self.clients} clients, {kind}, after round {self.round} of {self.sim.setup.rounds}"

    @property
    def clients(self) -> int:
        return self.sim.setup.clients

    @property
    def accuracy(self) -> float:
        """Test accuracy of these models over all samples."""
        if self.sim.setup.classes is None:
            raise DataError("a regression has no accuracy: use selected['test.deployed.loss'], the mean squared error")
        line: Line = next((line for line in self.history if line["round"] == self.round), {})
        value = line.get("test.deployed.accuracy")
        if value is None:
            raise DataError(f"round {self.round} has no test accuracy: it was not evaluated on labelled test samples")
        if line.get(f"test.deployed.{NOT_FINITE}") or line.get("test.deployed.loss", 0.0) is None:
            broken = predictions(self.sim, self.progress, torch.arange(self.clients), "test").not_finite
            whose = ", ".join(map(self.title_of, broken[:8]))
            raise ModelError(
                f"there is no accuracy, because some models are not finite: {whose}; train again with a lower learning "
                "rate, or take metric('accuracy'), where they count as guessing"
            )
        return float(value)

    def title_of(self, client: int) -> str:
        """Words for a client in messages."""
        names = self.sim.runtime.federation.client_names
        return f"client '{shown(names[client])}'" if names else f"client {client}"

    def metric(
        self,
        metric: str | Callable[..., object],
        split: str = "test",
        average: str = "auto",
        client: int | str | None = None,
    ) -> float:
        """A metric of these models on held-out samples: a name, or a function `f(y_true [n], y_score [n, K])`.

        `average` is over all `samples` or the mean over `clients`; `auto` is as the run says for its own metric, and
        else as docs/metrics.md says. With `client`, it is that client's own. NaN where it is not defined.
        """
        chosen = named_metric(metric) if isinstance(metric, str) else own_metric(metric)
        if average not in ("auto", "samples", "clients"):
            raise unknown("average", average, ("auto", "samples", "clients"))
        held_out = self.predictions(split)
        if client is not None:
            return held_out.of(self.number_of(client)).value(chosen)
        usual = "samples" if chosen.pooled else "clients"
        if chosen.name == self.evaluate.metric and self.evaluate.average != "auto":
            usual = self.evaluate.average
        return held_out.average(chosen, usual if average == "auto" else average)

    def confusion(self, client: int | str | None = None, split: str = "test") -> Tensor:
        """How many samples of each class (rows) are given each class (columns), of a client or of all, `[K, K]`."""
        held_out = self.predictions(split)
        return (held_out if client is None else held_out.of(self.number_of(client))).confusion()

    def predictions(self, split: str = "test") -> Predictions:
        """What every client's own model gives for its own samples of a split, `test` or `validation`.

        It is the model at the stage that counts (`evaluate.stage`); after training as it is deployed, since models
        right after training are not kept.
        """
        if split not in HELD_OUT:
            raise unknown("split", split, HELD_OUT)
        return predictions(self.sim, self.progress, torch.arange(self.clients), split, self._stage)

    @property
    def _stage(self) -> str:
        return "deployed" if self.evaluate.stage == "trained" else self.evaluate.stage

    @property
    def client_names(self) -> tuple[str, ...]:
        """What the data calls the clients, or their numbers as text."""
        return tuple(map(self.sim.runtime.federation.client_name, range(self.clients)))

    def client(self, client: int | str) -> "FittedClient":
        """A client by its name or its number, with its own model."""
        return FittedClient(self, self.number_of(client))

    def number_of(self, client: int | str) -> int:
        """The number of a client that is given by its name or its number."""
        if isinstance(client, str):
            if client not in self.client_names:
                raise unknown("client", client, self.client_names)
            return self.client_names.index(client)
        if not isinstance(client, int):
            raise DataError(f"client must be a name or a whole number from 0 to {self.clients - 1}, not {client!r}")
        if not 0 <= client < self.clients:
            raise DataError(f"there is no client {client}: the {self.clients} clients are numbered from 0")
        return client

    @property
    def round(self) -> int:
        """The round that these models come from: the selected one, unless you asked for the newest."""
        return self.progress.t

    @property
    def selected(self) -> Line:
        """The metrics of the selected round: the best on validation samples, unless the run selects another way."""
        if not evaluated(self.history):
            raise DataError("no round is selected, because none was evaluated")
        return self.counts or selected(self.history)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, or their numbers: `classes[i]` is the class that `predict` calls i."""
        federation = self.sim.runtime.federation
        return tuple(map(federation.class_name, range(federation.classes or 0)))

    # Older forms of what `client(…)` gives; they stay.

    def model(self, client: int | str) -> nn.Module:
        """`client(client).model`."""
        return self.client(client).model

    def predictor(self, client: int | str) -> Predictor:
        """`client(client).predictor`."""
        return self.client(client).predictor

    def outputs(self, client: int | str, x: Array) -> Tensor:
        """`client(client).outputs(x)`."""
        return self.client(client).outputs(x)

    def predict(self, client: int | str, x: Array) -> Tensor:
        """The class of each raw sample as a number, which `classes` names; or for a regression the model's output."""
        outputs = self.outputs(client, x)
        return outputs if self.sim.setup.classes is None else outputs.argmax(-1)

    def export(self, client: int | str, path: str | Path) -> Path:
        """`client(client).export(path)`."""
        return self.client(client).export(path)

    # The guard

    def guard(self, epochs: int = EPOCHS) -> "Guarded":
        """Train local models, and let each client choose between those, its own model and fine-tuned ones.

        It takes as long as training did, and chooses on validation samples. `epochs` are those of fine-tuning, with the
        learning rate of the run that was loaded, or else of the method's own training.
        """
        stored = None if self.folder is None else config_of(self.folder)
        if stored is None and extended(self.sim):
            raise ModelError(
                "guard() cannot train the model alone, because this method adds layers to it: use "
                "'strata run --guard', and load that run"
            )
        train = local_descent(self.sim.algorithm) if stored is None else stored.train
        alone = alone_like(self.sim, train) if stored is None else companion(self.sim, stored, self.trust)
        trial = Trial(self.sim)
        metric = self.selected_by or metric_for(self.evaluate, self.sim.runtime.federation, self.trust)
        best = run_to_end(train_alone(Trial(alone, metric=metric), self.evaluate, self.sim.setup.rounds))
        candidates = GuardCandidates(self.sim, self.progress, alone, best, train, self._stage, epochs)
        return Guarded(guarded(candidates, trial.ids, trial.splits, metric))

    def guarded(self, client: int | str) -> nn.Module:
        """The model that a client takes in a run with `--guard`, in evaluation mode.

        The guard chooses among the models of the selected round, so models of another round are refused.
        """
        if self.folder is None or not (self.folder / GUARD).exists():
            raise RunError("this run has no guard: load one that was started with --guard, or call guard()")
        record = read_guard(self.folder)
        if record.round != self.round:
            raise RunError(
                f"the guard chose among the models of round {record.round}, but these are of round {self.round}: "
                "load the run without round='newest'"
            )
        client = self.number_of(client) if isinstance(client, str) else client
        if client not in record.choices:
            raise DataError(
                f"client {client!r} has no chosen model: give one of the clients {first_few(record.choices)}"
            )
        name, experiment = record.choices[client].candidate, config_of(self.folder)
        if name == SAFE:
            sim = companion(self.sim, experiment, self.trust) if extended(self.sim) else self.sim
            return own_model(_module(sim, local_model(self.folder, client)))
        train, stage = experiment.train, experiment.evaluate.stage
        candidates = GuardCandidates(self.sim, self.progress, train=train, stage=stage, epochs=record.epochs)
        return own_model(_module(self.sim, _only_row(candidates.rows(name, torch.tensor([client])))))


@holder
class FittedClient:
    """One client of a trained federation: its own model as it would be deployed."""

    fitted: Fitted
    number: int

    def _about(self) -> str:
        return f"'{shown(self.name)}' after round {self.fitted.round}"

    @property
    def name(self) -> str:
        return self.fitted.sim.runtime.federation.client_name(self.number)

    @property
    def model(self) -> nn.Module:
        """Your own module in evaluation mode; it takes samples as training does, scaled and standardised."""
        return own_model(self._adapted)

    @property
    def _adapted(self) -> nn.Module:
        sim = self.fitted.sim
        return _module(sim, state_dict(sim, self.fitted.progress, self.number))

    @property
    def predictor(self) -> Predictor:
        """The model with its preprocessing, as one module that takes raw samples.

        The model is its `module`. For a regression with standardised targets, outputs are in the data's own unit.
        """
        runtime = self.fitted.sim.runtime
        return Predictor(self._adapted, runtime.federation.preprocessing.of(self.number), runtime.dtype)

    def outputs(self, x: Array) -> Tensor:
        """What the model gives for raw samples, as they are in the data: logits of the classes, or numbers.

        Columns of a DataFrame are taken by name, where the data has names for them. Texts may be a list.
        """
        sim, federation = self.fitted.sim, self.fitted.sim.runtime.federation
        samples = _raw_samples(federation, x)
        if sim.template is not None:
            check_given(sim.template, samples)
        with torch.no_grad():
            outputs: Tensor = (model := self.predictor)(samples)
        return finite_outputs(outputs, model, self.fitted.title_of(self.number))

    def predict_proba(self, x: Array) -> Tensor:
        """The probability of each class, in the order of `fitted.classes`, for raw samples: `[n, K]`."""
        if self.fitted.sim.setup.classes is None:
            raise DataError("a regression has no probabilities: use predict")
        return self.outputs(x).softmax(-1)

    def predict(self, x: Array) -> Tensor | NDArray[np.str_]:
        """The class of each raw sample as the data calls it, by name or by number; for a regression the output."""
        outputs = self.outputs(x)
        if self.fitted.sim.setup.classes is None:
            return outputs
        names, numbers = self.fitted.sim.runtime.federation.class_names, outputs.argmax(-1)
        return np.array(names)[numbers.numpy()] if names else numbers

    def metric(self, metric: str | Callable[..., object], split: str = "test") -> float:
        """A metric of the model on the client's own held-out samples, as `Fitted.metric` takes it."""
        return self.fitted.metric(metric, split, client=self.number)

    def confusion(self, split: str = "test") -> Tensor:
        """How many samples of each class (rows) are given each class (columns), `[K, K]`."""
        return self.fitted.confusion(self.number, split)

    def export(self, path: str | Path) -> Path:
        """Write the model to `NAME.onnx` or `NAME.safetensors`; an existing file is never overwritten.

        ONNX takes raw samples, as `predict` does. Safetensors holds the weights of `model`; its metadata describes the
        preprocessing of samples and outputs as JSON (`preprocessing`).
        """
        target = Path(path)
        export_model(self.predictor, target, self.fitted.title_of(self.number))
        return target


@holder
class Guarded:
    """A trained federation in which each client has chosen its model on its validation samples."""

    models: GuardedModels

    def _about(self) -> str:
        counts = Counter(choice.candidate for choice in self.choices.values())
        return ", ".join(f"{count} {name}" for name, count in counts.most_common())

    @property
    def choices(self) -> Mapping[int, Choice]:
        """What each client takes, with the gain and standard error of every candidate."""
        return self.models.choices

    @property
    def accuracy(self) -> float:
        """Test accuracy of the chosen models over all samples."""
        if "test" not in self.models.all_predictions or not self.models.predictions("test").labelled:
            raise DataError("there is no test accuracy: the federation has no labelled test samples")
        return float(self.models.predictions("test").hits().double().mean())

    def model(self, client: int) -> nn.Module:
        """The model that a client takes, in evaluation mode."""
        if client not in self.choices:
            raise DataError(f"client {client!r} has no chosen model: give one of the clients {first_few(self.choices)}")
        local = self.choices[client].candidate == SAFE
        sim = self.models.candidates.alone if local else self.models.candidates.sim
        assert sim is not None  # it was trained to choose
        return own_model(_module(sim, _only_row(self.models.rows(client))))


def _raw_samples(federation: Federation, x: Any) -> Tensor:
    """Samples as the data has them; a row of a table of more than numbers as its codes."""
    table = federation.table
    if table is not None:
        return torch.from_numpy(table.coded(cells_of(x, table.names, "x"), "x"))
    if federation.text is not None:
        x = federation.text.coded(x)
    values = stack_named(in_columns(x, federation.column_names, "x"), federation.input_names, "x")
    return federation.preprocessing.raw(plain_tensor(values, "x"))


def _module(sim: Simulation, state: Mapping[str, Tensor]) -> nn.Module:
    assert sim.template is not None  # every assembled simulation has one
    return filled(sim.template, state)


def _only_row(rows: Rows) -> dict[str, Tensor]:
    return {name: block[0].clone() for name, block in rows.items()}


def first_few(ids: Iterable[int]) -> str:
    """The first of these numbers."""
    listed = sorted(ids)
    return ", ".join(map(str, listed[:8])) + (", …" if len(listed) > 8 else "")
