"""A trained federation: every client's model, its predictions and metrics, and the guard's choice."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stratafl.api.added import AddedClient, check_new_name, personalised, stored_numbers
from stratafl.api.fitted_client import FittedClient, named_client
from stratafl.api.guarded import Guarded, choose_models, stored_choice
from stratafl.api.numbers import client_number
from stratafl.api.saved import SavedParts, data_table, write_folder
from stratafl.api.training import Callback, TrainingRun, stored_training, watchers
from stratafl.config.metric_choice import metric_for
from stratafl.config.setting_tables import EvaluateTable
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.reprs import holder
from stratafl.data.arrays import Array
from stratafl.data.builders import client_like
from stratafl.data.federation import Federation
from stratafl.data.sample_format import SampleFormat
from stratafl.data.splitting import SplitPlan
from stratafl.errors import CallbackError, DataError, ModelError, RunError, unknown
from stratafl.evaluation.candidates import EPOCHS
from stratafl.evaluation.cross_site import cross_site
from stratafl.evaluation.measure import NOT_FINITE, Line
from stratafl.evaluation.metrics import Metric, named_metric, own_metric
from stratafl.evaluation.predictions import Predictions, predictions
from stratafl.execute import Progress, Simulation
from stratafl.export import Predictor
from stratafl.report.formats import score_text
from stratafl.report.notebook import CrossSiteResult
from stratafl.report.report_tables import Cell, ReportTable, text
from stratafl.runs.summary import DEFAULTS, evaluated, selected

HELD_OUT = ("test", "validation")
NONE_ADDED: Mapping[int, AddedClient] = MappingProxyType({})


@holder
class Fitted:
    """A trained federation: every client's model, and one line of metrics per round.

    `fit` and `load` return it. The models are those after `round`, the selected round, which tables and reports score.

    Example:
        ```python
        fitted = stratafl.fit("fedper", clients, "mlp", rounds=10)
        print(f"{fitted.accuracy:.1%}", fitted.metric("auroc"))
        basel = fitted.client("Basel")
        basel.predict(x_new)
        basel.export("basel.onnx")
        ```

    Attributes:
        history: One line per round: a dict of its number, times, bytes and scores.
        folder: The folder that `load` read, if it did.
    """

    sim: Simulation
    progress: Progress
    history: list[Line]
    counts: Line | None = None  # the line of the round that the run's settings select; None: by validation
    folder: Path | None = None  # the run directory that it was loaded from
    evaluate: EvaluateTable = DEFAULTS  # what rounds were selected by, and the stage of the models that count
    selected_by: Metric | None = None  # that metric; None: as `evaluate` names it
    trust: Trust | bool = NO_TRUST
    training: TrainingRun | None = None  # from which `train` goes on; None: as the run directory has it
    split: SplitPlan = SplitPlan(validation=0.1)  # how the samples of a client that is added are split
    saved: Mapping[int, Mapping[str, Tensor]] | None = None  # the clients' models, if the data was left behind
    added: dict[int, AddedClient] = field(default_factory=dict)

    def _about(self) -> str:
        kind = "regression" if self.sim.setup.classes is None else f"{self.sim.setup.classes} classes"
        return f"{self.clients} clients, {kind}, after round {self.round} of {self.sim.setup.rounds}"

    def __str__(self) -> str:
        """What it is, and the scores of these models by split, if their round was evaluated."""
        line = next((line for line in (self.counts or {}, *self.history) if line.get("round") == self.round), {})
        metric = self.selected_by or metric_for(self.evaluate, self.sim.runtime.federation, self.trust)
        columns = {metric.key: metric.title, f"client_{metric.key}": "mean over clients", "worst10": "worst 10 %"}
        rows = []
        for split in HELD_OUT:
            values = [line.get(f"{split}.{self.stage}.{key}") for key in columns]
            if any(value is not None for value in values):
                rows.append((text(split), *(Cell(score_text(value, metric)) for value in values)))
        table = ReportTable("scores", "", ("samples", *columns.values()), tuple(rows))
        return f"{self._about()}\n\n{table.plain()}" if rows else self._about()

    @property
    def clients(self) -> int:
        """The number of clients that were trained."""
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
            whose = ", ".join(named_client(self, number) for number in broken[:8])
            raise ModelError(
                f"there is no accuracy, because some models are not finite: {whose}; train again with a lower learning "
                "rate, or take metric('accuracy'), where they count as guessing"
            )
        return float(value)

    def name_of(self, client: int) -> str:
        """The name of the client of this number."""
        if client in self.added:
            return self.added[client].name
        return self.sim.runtime.federation.client_name(client)

    def metric(
        self,
        metric: str | Callable[..., object],
        split: str = "test",
        average: str = "auto",
        client: int | str | None = None,
    ) -> float:
        """A metric of these models on held-out samples.

        Args:
            metric: A name, such as `"auroc"`, or a function `f(y_true [n], y_score [n, K])`.
            split: `"test"` or `"validation"`.
            average: Over all `"samples"`, or the mean over `"clients"`. `"auto"` is as the run says for its own metric,
                and else as the page on metrics says.
            client: The name or number of one client, whose own metric you get.

        Returns:
            The metric, NaN where it is not defined.
        """
        chosen = named_metric(metric) if isinstance(metric, str) else own_metric(metric)
        if average not in ("auto", "samples", "clients"):
            raise unknown("average", average, ("auto", "samples", "clients"))
        if client is not None:
            return self._held_out(client, split).value(chosen)
        held_out = self.predictions(split)
        usual = "samples" if chosen.pooled else "clients"
        if chosen.name == self.evaluate.metric and self.evaluate.average != "auto":
            usual = self.evaluate.average
        return held_out.average(chosen, usual if average == "auto" else average)

    def confusion(self, client: int | str | None = None, split: str = "test") -> Tensor:
        """How many samples of each class (rows) are given each class (columns).

        Args:
            client: The name or number of one client. By default all clients' samples count.
            split: `"test"` or `"validation"`.

        Returns:
            Counts `[K, K]`, in the order of `classes`.
        """
        return (self.predictions(split) if client is None else self._held_out(client, split)).confusion()

    def predictions(self, split: str = "test") -> Predictions:
        """What every client's own model gives for its own held-out samples.

        Args:
            split: `"test"` or `"validation"`.

        Returns:
            One row per sample: its client, its target and the scores of the client's deployed model, or of the stage
            that the run is evaluated at.
        """
        self._check_scored(split)
        return predictions(self.sim, self.progress, torch.arange(self.clients), split, self.stage)

    def _held_out(self, client: int | str, split: str) -> Predictions:
        """The predictions of one client's model for its own samples of a split."""
        number = self.number_of(client)
        if number not in self.added or split not in HELD_OUT:
            return self.predictions(split).of(number)
        return self.added[number].predictions(self.progress, split, self.stage)

    def _check_scored(self, split: str) -> None:
        if split not in HELD_OUT:
            raise unknown("split", split, HELD_OUT)
        if self.saved is not None:
            raise DataError("a saved folder has no samples to score: use predict, or `history` with its scores")

    def cross_site(
        self, metric: str | None = None, split: str = "test", clients: Sequence[int | str] | None = None
    ) -> CrossSiteResult:
        """A metric of every client's model on every client's samples.

        Args:
            metric: The name of a metric, by default the run's own.
            split: `"test"` or `"validation"`.
            clients: Names or numbers of some clients, by default of all.

        Returns:
            The table, which a notebook shows as a heat map; `to_pandas()` gives a DataFrame.
        """
        self._check_scored(split)
        if isinstance(clients, str):
            raise DataError(f"clients must be a list of names or numbers, not {clients!r}: give clients=[{clients!r}]")
        ids = [*range(self.clients)] if clients is None else [self.number_of(client) for client in clients]
        usual = self.selected_by or metric_for(self.evaluate, self.sim.runtime.federation, self.trust)
        chosen = usual if metric is None else named_metric(metric)
        return CrossSiteResult.of(cross_site(self.sim, self.progress, chosen, ids, split, self.stage), chosen)

    @property
    def stage(self) -> str:
        """The stage of the models that are scored."""
        return "deployed" if self.evaluate.stage == "trained" else self.evaluate.stage

    @property
    def client_names(self) -> tuple[str, ...]:
        """What the data calls the clients, or their numbers as text; those that were added come last."""
        return tuple(map(self.name_of, (*range(self.clients), *self.added)))

    def client(self, client: int | str) -> FittedClient:
        """One client, with its own model.

        Args:
            client: Its name, or its number. Where names are whole numbers, a number that is the name of another
                client is refused: give the name, as text.
        """
        return FittedClient(self, self.number_of(client))

    def number_of(self, client: int | str) -> int:
        """The number of a client that is given by its name or its number."""
        numbers = (*range(self.clients), *self.added)
        return client_number(client, dict(zip(numbers, self.client_names, strict=True)))

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

    # Going on

    def train(
        self,
        rounds: int,
        *,
        patience: int | Literal["as before"] | None = "as before",
        progress: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> "Fitted":
        """Train for further rounds, from the newest one.

        The result is that of training with all rounds at once. This federation stays as it is, and so does a run
        directory that it was loaded from: `strata resume --rounds` extends one. A method whose schedule or phases
        depend on the number of rounds is refused.

        Args:
            rounds: How many rounds more.
            patience: As in `fit`; `"as before"` keeps that of the training so far.
            progress: Print every round.
            callbacks: As in `fit`.

        Returns:
            The federation after the best round of all.
        """
        training = self._training()
        wanted = training.stop.patience if patience == "as before" else patience
        further = training.for_more(rounds, wanted)
        return trained(further, watchers(callbacks, progress, further), self.split, self.added)

    def _training(self) -> TrainingRun:
        if self.training is not None:
            return self.training
        if self.folder is None or self.saved is not None:
            raise RunError(
                "this federation has no training samples, so it cannot be trained further: keep what fit() returned, "
                "or the run directory"
            )
        return stored_training(self.folder, self.sim, self.trust)

    def add_client(self, name: str, x: Any, y: Any = None) -> FittedClient:
        """Personalise for a client that never took part, by its own samples. The other clients stay as they are.

        The model is the one that a simulation gives a new client after this round. The samples are split as those of
        the others are.

        Args:
            name: The name of the client.
            x: Its samples as in `fit`, or a `Dataset`, or the client's splits.
            y: Its labels, unless `x` holds them.

        Returns:
            The client, which `client(name)` gives from now on.
        """
        number = new_client_number(self, name)
        form = SampleFormat.of(self.sim.runtime.federation)
        return admit_client(self, client_like(x if y is None else (x, y), form, self.split, name, number))

    def save(self, folder: str | Path) -> Path:
        """Write all clients' models and what new clients need to a new folder, without any sample.

        `stratafl.load` reads it on any machine. If the model is a class of your own, give it to `load`:
        `load(folder, model=Net())`.

        Args:
            folder: A folder that does not exist yet.

        Returns:
            The folder.
        """
        models = {number: FittedClient(self, number).state for number in range(self.clients)}
        what = (self.sim, self.progress, self.history, self.counts, self.evaluate, self.split, models, self.added)
        return write_folder(Path(folder), SavedParts(*what, data=data_table(self.folder)))

    # Deprecated forms of what `client(…)` does; version 0.3 removes them

    def model(self, client: int | str) -> nn.Module:
        """Deprecated: `client(client).model`."""
        _deprecated("model(client)", "client(client).model")
        return self.client(client).model

    def predictor(self, client: int | str) -> Predictor:
        """Deprecated: `client(client).predictor`."""
        _deprecated("predictor(client)", "client(client).predictor")
        return self.client(client).predictor

    def outputs(self, client: int | str, x: Array) -> Tensor:
        """Deprecated: `client(client).outputs(x)`."""
        _deprecated("outputs(client, x)", "client(client).outputs(x)")
        return self.client(client).outputs(x)

    def predict(self, client: int | str, x: Array) -> Tensor:
        """Deprecated: `client(client).predict(x)`, which gives classes by name; this gives their numbers."""
        _deprecated("predict(client, x)", "client(client).predict(x)")
        outputs = self.client(client).outputs(x)
        return outputs.argmax(-1) if self.classes else outputs

    def export(self, client: int | str, path: str | Path) -> Path:
        """Deprecated: `client(client).export(path)`."""
        _deprecated("export(client, path)", "client(client).export(path)")
        return self.client(client).export(path)

    # The guard

    def guard(self, epochs: int = EPOCHS) -> Guarded:
        """Train local models, and let each client choose between those, its own model and fine-tuned ones.

        This takes as long as training did. Clients choose on validation samples.

        Args:
            epochs: The epochs of fine-tuning, with the learning rate of the run that was loaded, or else of the
                method's own training.

        Returns:
            What each client has chosen, and its model.
        """
        if self.saved is not None:
            raise DataError("a saved folder has no samples, so the guard cannot choose: call guard() before save()")
        return choose_models(self, epochs)

    def guarded(self, client: int | str) -> nn.Module:
        """The model that a client takes in a run with `--guard`, in evaluation mode.

        The guard chooses among the models of the selected round, so models of another round are refused.
        """
        return stored_choice(self, self.number_of(client))


def admit_client(fitted: Fitted, samples: Federation) -> FittedClient:
    """Add a client whose samples are a federation of their own, which has its name."""
    name = samples.client_name(0)
    number = new_client_number(fitted, name)
    fitted.added[number] = personalised(fitted.sim, fitted.progress, samples, name, number)
    return FittedClient(fitted, number)


def new_client_number(fitted: Fitted, name: str) -> int:
    """The number that a new client of this name gets: the one it had at an earlier round, or the next one."""
    check_new_name(name, fitted.client_names)
    before = stored_numbers(fitted.folder)
    last = max([fitted.sim.runtime.federation.clients - 1, *fitted.added, *before.values()])
    return before.get(name, last + 1)


def fitted_after(training: TrainingRun, split: SplitPlan, added: Mapping[int, AddedClient] = NONE_ADDED) -> Fitted:
    """What a training delivers; clients that were added before get their models from its server."""
    sim, state, selection = training.trial.sim, training.delivered, training.selection
    again = {number: later for number, each in added.items() if (later := each.after(sim, state)) is not None}
    facts = (sim, state, training.history, selection.line)
    by, metric = training.evaluate, training.trial.metric
    return Fitted(*facts, evaluate=by, selected_by=metric, training=training, split=split, added=again)


def _deprecated(old: str, new: str) -> None:
    warnings.warn(f"fitted.{old} is deprecated: use fitted.{new}", DeprecationWarning, stacklevel=3)


def trained(
    training: TrainingRun,
    callbacks: Sequence[Callback],
    split: SplitPlan,
    added: Mapping[int, AddedClient] = NONE_ADDED,
) -> Fitted:
    """What a training delivers at its end; a callback that raises does not lose what was trained before."""
    try:
        return fitted_after(training.to_end(callbacks), split, added)
    except CallbackError as error:
        error.fitted = fitted_after(error.fitted, split, added)
        raise
    finally:
        training.trial.sim.runtime.close()
