"""stratafl in a notebook: train on your own arrays and module, and get every client's model.

fitted = stratafl.fit(fedper(), [(x, y), …], model, rounds=20)
fitted.predict(3, x)          predictions of client 3's own model for raw samples
fitted.model(3)               that model, an nn.Module that takes preprocessed samples
fitted.predictor(3)           the model with its preprocessing: it takes raw samples, as predict does
fitted.metric("auroc")        of all clients' models on their test samples; also your own f(y_true, y_score)
fitted.export(3, "c3.onnx")   or .safetensors
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stratafl.config.metric_choice import chosen_by_classes, metric_for
from stratafl.config.setting_tables import EvaluateTable
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.algorithm import Algorithm
from stratafl.core.layout import Rows
from stratafl.core.reprs import holder
from stratafl.data import Federation, from_clients
from stratafl.data.arrays import Array, in_columns, plain_tensor
from stratafl.data.builders import with_standardised
from stratafl.data.reading import is_table
from stratafl.errors import DataError, ModelError, RecordError, RunError, check_known, shown, unknown
from stratafl.evaluation.candidates import EPOCHS, GuardCandidates, GuardedModels, alone_like, guarded, local_descent
from stratafl.evaluation.evaluate import state_dict
from stratafl.evaluation.flags import Notices
from stratafl.evaluation.guard import SAFE, Choice
from stratafl.evaluation.measure import NOT_FINITE, Line
from stratafl.evaluation.metrics import Metric, named_metric, own_metric
from stratafl.evaluation.predictions import Predictions, predictions
from stratafl.evaluation.trial import Trial
from stratafl.execute import Progress, Simulation, simulation
from stratafl.execute.build_simulation import ModelSource
from stratafl.execute.drawing import filled
from stratafl.execute.tokens import check_given
from stratafl.export import Predictor, export_model, finite_outputs
from stratafl.runs.directory import CONFIG, GUARD, config_of, environment_of, read_run, selected_line
from stratafl.runs.guard_files import companion, extended, local_model, read_guard, run_to_end, train_alone
from stratafl.runs.summary import DEFAULTS, Selection, evaluated, selected

log = logging.getLogger("stratafl")
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
            raise ModelError(
                f"there is no accuracy, because some models are not finite: {', '.join(map(self._title, broken[:8]))}; "
                "train again with a lower learning rate, or take metric('accuracy'), where they count as guessing"
            )
        return float(value)

    def _title(self, client: int) -> str:
        names = self.sim.runtime.federation.client_names
        return f"client '{shown(names[client])}'" if names else f"client {client}"

    def metric(
        self, metric: str | Callable[..., object], split: str = "test", average: str = "auto", client: int | None = None
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
            return held_out.of(self._checked(client)).value(chosen)
        usual = "samples" if chosen.pooled else "clients"
        if chosen.name == self.evaluate.metric and self.evaluate.average != "auto":
            usual = self.evaluate.average
        return held_out.average(chosen, usual if average == "auto" else average)

    def confusion(self, client: int | None = None, split: str = "test") -> Tensor:
        """How many samples of each class (rows) are given each class (columns), of a client or of all, `[K, K]`."""
        held_out = self.predictions(split)
        return (held_out if client is None else held_out.of(self._checked(client))).confusion()

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

    def _checked(self, client: int) -> int:
        self._check_number(client)
        if not 0 <= client < self.clients:
            raise DataError(f"client must be a whole number from 0 to {self.clients - 1}, not {client!r}")
        return client

    def _check_number(self, client: object) -> None:
        if not isinstance(client, int):
            names = self.sim.runtime.federation.client_names
            number = f"; {client!r} is client {names.index(client)}" if client in names else ""
            raise DataError(f"client must be a whole number from 0 to {self.clients - 1}, not {client!r}{number}")

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

    def model(self, client: int) -> nn.Module:
        """A client's own model as it would be deployed, in evaluation mode.

        It takes samples as training does: scaled and standardised. `predictor(client)` takes raw samples.
        """
        self._check_number(client)
        return _module(self.sim, state_dict(self.sim, self.progress, client))

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

    def guarded(self, client: int) -> nn.Module:
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
        if client not in record.choices:
            raise DataError(
                f"client {client!r} has no chosen model: give one of the clients {first_few(record.choices)}"
            )
        name, experiment = record.choices[client].candidate, config_of(self.folder)
        if name == SAFE:
            sim = companion(self.sim, experiment, self.trust) if extended(self.sim) else self.sim
            return _module(sim, local_model(self.folder, client))
        train, stage = experiment.train, experiment.evaluate.stage
        candidates = GuardCandidates(self.sim, self.progress, train=train, stage=stage, epochs=record.epochs)
        return _module(self.sim, _only_row(candidates.rows(name, torch.tensor([client]))))

    def predictor(self, client: int) -> Predictor:
        """A client's own model with its preprocessing, as one module that takes raw samples.

        The model is its `module`. For a regression with standardised targets, outputs are in the data's own unit.
        """
        runtime = self.sim.runtime
        return Predictor(self.model(client), runtime.federation.preprocessing.of(client), runtime.dtype)

    def outputs(self, client: int, x: Array) -> Tensor:
        """Outputs of a client's own model for raw samples, as they are in the data, before any scaling.

        Columns of a DataFrame are taken by name, where the data has names for them.
        """
        federation = self.sim.runtime.federation
        samples = federation.preprocessing.raw(plain_tensor(in_columns(x, federation.column_names, "x"), "x"))
        if self.sim.template is not None:
            check_given(self.sim.template, samples)
        with torch.no_grad():
            outputs: Tensor = (model := self.predictor(client))(samples)
        return finite_outputs(outputs, model, self._title(client))

    def predict(self, client: int, x: Array) -> Tensor:
        """The class of each raw sample by a client's own model, or for a regression its output."""
        outputs = self.outputs(client, x)
        return outputs if self.sim.setup.classes is None else outputs.argmax(-1)

    def export(self, client: int, path: str | Path) -> Path:
        """Write a client's own model to `NAME.onnx` or `NAME.safetensors`; an existing file is never overwritten.

        ONNX takes raw samples, as `predict` does. Safetensors holds the weights of `model(client)`; its metadata
        describes the preprocessing of samples and outputs as JSON (`preprocessing`).
        """
        target = Path(path)
        export_model(self.predictor(client), target, self._title(client))
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
        return _module(sim, _only_row(self.models.rows(client)))


def _module(sim: Simulation, state: Mapping[str, Tensor]) -> nn.Module:
    assert sim.template is not None  # every assembled simulation has one
    return filled(sim.template, state)


def _only_row(rows: Rows) -> dict[str, Tensor]:
    return {name: block[0].clone() for name, block in rows.items()}


def first_few(ids: Iterable[int]) -> str:
    """The first of these numbers."""
    listed = sorted(ids)
    return ", ".join(map(str, listed[:8])) + (", …" if len(listed) > 8 else "")


def fit(
    algorithm: Algorithm,
    clients: Federation | Sequence[tuple[Array, Array]],
    model: ModelSource,
    *,
    rounds: int = 20,
    validation: float = 0.1,
    test: float = 0.25,
    split: str = "stratified",
    normalise: Literal["auto", "columns", "none"] = "auto",
    seed: int = 0,
    evaluate_every: int = 1,
    metric: str | Callable[..., object] = "auto",
    device: str = "auto",
    **options: Any,
) -> Fitted:
    """Train with an algorithm on one `(x, y)` per client, or on a federation.

    `x` and `y` are arrays, or tables such as DataFrames, whose columns are taken by name: their order may differ.

    `model` is a module, or a function that makes one. Each client's samples are split into test, validation and
    training samples, stratified by class (`split="random"`: at random). Rows of numbers with fractions are
    standardised, each client's columns by its own training samples (`normalise="none"`: not; a federation is taken as
    it is); `predict` does the same to raw samples. `device="auto"` is a GPU if there is one.
    `options` are those of `simulation`. You get the models after the round with the best `metric` on validation
    samples, or after the last round if there are none. `auto` is accuracy, balanced accuracy if one class has more than
    60 % of the samples, or the squared error; or give a name, or a function `f(y_true, y_score)`.
    """
    if evaluate_every < 1:
        raise RecordError(f"evaluate_every must be a number of rounds, at least 1, not {evaluate_every}")
    if not isinstance(model, nn.Module) and not callable(model):
        raise ModelError(f"model must be an nn.Module or a function that returns one, not {model!r}")
    check_known("option of fit", options, _OPTIONS)
    federation = clients
    if not isinstance(federation, Federation):
        federation = from_clients(federation, validation=validation, test=test, seed=seed, split=split)
        federation = _standardised(federation, normalise)
    sim = simulation(algorithm, federation, model, rounds=rounds, seed=seed, device=device, **options)
    evaluate, chosen = _evaluation(metric, federation)
    trial = Trial(sim, evaluate_every, metric=chosen)
    try:
        state, history, line = _trained(trial, evaluate)
    finally:
        sim.runtime.close()
    return Fitted(sim, state, history, line, evaluate=evaluate, selected_by=chosen)


def _trained(trial: Trial, evaluate: EvaluateTable) -> tuple[Progress, list[Line], Line | None]:
    """The state after the selected round, or after the last one if none is; all lines; the line of that round."""
    progress, history, selection, notices = trial.sim.start(), list[Line](), Selection(), Notices()
    while progress.t < trial.rounds:
        progress, entry = trial.round(progress)
        history.append(entry.round)
        selection = selection.after(entry.round, progress, evaluate)
        for notice in notices.of(history):
            log.warning("%s", notice)
    return selection.progress or progress, history, selection.line


def _standardised(federation: Federation, normalise: str) -> Federation:
    """A table with standardised columns, which is said; any other federation as it is."""
    if normalise not in ("auto", "columns", "none"):
        raise unknown("normalise", normalise, ("auto", "columns", "none"))
    if normalise == "columns" and federation.x.ndim != 2:
        raise DataError(f"normalise='columns' is for tables, but a sample is {tuple(federation.x.shape[1:])}")
    if normalise == "none" or not (normalise == "columns" or is_table(federation.x)):
        return federation
    federation = with_standardised(federation, ("client",))
    log.warning("%s", federation.standardisation_note("normalise='none'"))
    return federation


_OPTIONS = [
    option.name
    for function in (fit, simulation)
    for option in signature(function).parameters.values()
    if option.kind is option.KEYWORD_ONLY and option.name != "begun"
]


def _evaluation(metric: str | Callable[..., object], federation: Federation) -> tuple[EvaluateTable, Metric]:
    """What rounds are selected by; a choice by the data is logged."""
    if not isinstance(metric, str):
        custom = own_metric(metric)
        custom = replace(custom, name=f"own:{custom.name}")
        table = EvaluateTable(metric=custom.name, average="clients", better="larger" if custom.sign > 0 else "smaller")
        return table, custom
    chosen = metric_for(EvaluateTable(metric=metric), federation)
    if metric == "auto" and chosen.name == "balanced_accuracy":
        log.warning("%s", chosen_by_classes(federation, "metric='{}'"))
    return EvaluateTable(metric=chosen.name, average="samples" if chosen.pooled else "clients"), chosen


def load(folder: str | Path, *, round: str = "selected", device: str = "auto", trust: bool = False) -> Fitted:
    """Load a run directory: the models after its selected round, and the metrics of all rounds.

    `round="newest"` gives the models of the newest checkpoint, from which `strata resume` continues. `device="auto"` is
    the device of the run, or the CPU if this machine does not have it. If the run uses a model or a method of your own
    (`package.module:name`), loading it runs that code: allow it with `trust=True`. You may load a run while it is still
    running.
    """
    place = Path(folder)
    sim, progress, lines = read_run(place, round, device, trust)
    evaluate, counts = config_of(place).evaluate, selected_line(place, lines)
    trusted = Trust.of(trust).asked_by(place / CONFIG, environment_of(place).get("folder"))
    return Fitted(sim, progress, lines, counts, place, evaluate, trust=trusted)
