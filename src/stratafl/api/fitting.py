"""TrainingRun on a person's own samples and module, and loading what a run left."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from torch import nn

from stratafl.api.added import read_added
from stratafl.api.fitted import Fitted, trained
from stratafl.api.saved import is_saved, read_folder
from stratafl.api.training import Callback, TrainingRun, stop_after, watchers
from stratafl.config.assemble import model_of, split_plan
from stratafl.config.metric_choice import chosen_by_classes, metric_for
from stratafl.config.setting_tables import EvaluateTable, ModelTable
from stratafl.config.trust import Trust, accepted
from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import checked
from stratafl.core.objectives import balanced_weights
from stratafl.data import Federation
from stratafl.data.builders import Clients, from_frame, from_objects, with_standardised
from stratafl.data.frames import is_frame
from stratafl.data.reading import is_table
from stratafl.data.splitting import SplitPlan
from stratafl.data.text_clients import from_texts, hold_texts
from stratafl.errors import DataError, ModelError, RecordError, RunError, check_known, unknown
from stratafl.evaluation.metrics import Metric, own_metric
from stratafl.evaluation.trial import Trial
from stratafl.execute import simulation
from stratafl.execute.build_simulation import ModelSource
from stratafl.policies.class_weights import LEAST_WEIGHT, PLAIN, POOLED, in_order_of_classes, weights_by_name
from stratafl.policies.train import Weight, with_training
from stratafl.runs.directory import CONFIG, config_of, environment_of, read_run, refuse_runs, selected_line

NORMALISED = ("auto", "columns", "none")
log = logging.getLogger("stratafl")


def fit(
    algorithm: Algorithm,
    clients: Federation | Clients,
    model: ModelSource | str,
    *,
    label: str | None = None,
    client: str | None = None,
    rounds: int = 20,
    validation: float = 0.1,
    test: float = 0.25,
    split: str = "stratified",
    normalise: Literal["auto", "columns", "none"] = "auto",
    seed: int = 0,
    evaluate_every: int = 1,
    metric: str | Callable[..., object] = "auto",
    class_weight: str | Sequence[float] | Mapping[Any, float] = "none",
    patience: int | None = None,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
    device: str = "auto",
    **options: Any,
) -> Fitted:
    """Train with an algorithm on the samples of every client, in a list or by the clients' names, or on a federation.

    A client's samples are `(x, y)`, a torch `Dataset` or `DataLoader` of such pairs, or its own splits:
    `{"train": (x, y), "validation": …, "test": …}`, of which the last two may be missing. `x` and `y` are arrays, or
    tables such as DataFrames, whose columns are taken by name: their order may differ. Or `x` is a list of texts, which
    become tokens as a column of texts in a table does. Labels may be names.

    Or `clients` is one table, a DataFrame or a Hugging Face `Dataset`, whose column `label` is to be predicted and
    whose column `client` names the clients; or such a table for each client by its name, with `label` alone. It is read
    as a csv file is: it may hold categories, dates and missing values.

    `model` is a module, a name from `strata list models`, such as `mlp`, or a function that makes a module; if it has
    arguments `shape` and `classes`, they are given. Each client's samples are split into test, validation and training
    samples, stratified by class (`split="random"`: at random). Tables with more than numbers are encoded
    as files are. Rows of numbers with fractions are standardised, each client's columns by its own training samples
    (`normalise="none"`: not; a federation is taken as it is); `predict` does the same to raw samples. `device="auto"`
    is a GPU if there is one. `options` are those of `simulation`. You get the models after the round with the best
    `metric` on validation samples, or after the last round if there are none. `auto` is accuracy, balanced accuracy if
    one class has more than 60 % of the samples, or the squared error; or give a name, or a function
    `f(y_true, y_score)`.

    `class_weight` says by how much a sample counts in the loss: `balanced` by the classes of its client, `pooled` by
    those of all clients together (each n / (K·n_c)), or a weight for each class, in a list or by the classes' names.

    With `patience`, training ends after that many evaluations without a gain of 0.005 on validation samples. `progress`
    prints every round. Each of the `callbacks` is called with the line of every round, as `fitted.history` has it;
    training ends if one of them returns True.
    """
    if evaluate_every < 1:
        raise RecordError(f"evaluate_every must be a number of rounds, at least 1, not {evaluate_every}")
    if not isinstance(model, nn.Module | str) and not callable(model):
        raise ModelError(f"model must be an nn.Module, a function that returns one or a name, not {model!r}")
    check_known("option of fit", options, _OPTIONS)
    plan = SplitPlan(validation, test, seed=seed, split=split)
    federation = _federation(clients, label, client, plan, normalise, int(options.get("new_clients", 0)))
    if isinstance(class_weight, Mapping) or class_weight != "none":
        algorithm = _weighted(algorithm, class_weight, federation, int(options.get("new_clients", 0)))
    sim = simulation(
        algorithm, federation, _fitting(model, federation), rounds=rounds, seed=seed, device=device, **options
    )
    evaluate, chosen = _evaluation(metric, federation)
    trial = Trial(sim, evaluate_every, metric=chosen)
    training = TrainingRun(trial, evaluate, sim.start(), stop_after(patience, trial))
    return trained(training, watchers(callbacks, progress, training), plan)


def _weighted(
    algorithm: Algorithm, class_weight: str | Sequence[float] | Mapping[Any, float], federation: Federation, new: int
) -> Algorithm:
    """The algorithm with these weights of classes wherever it trains."""
    if federation.classes is None:
        raise DataError("class_weight needs classes, but the targets of this data are numbers: leave it out")
    names = [federation.class_name(label) for label in range(federation.classes)]
    weights: Any = class_weight
    if class_weight == POOLED:
        counts = federation.class_counts("train")[: federation.clients - new].sum(0)
        weights = tuple(balanced_weights(counts).clamp(min=LEAST_WEIGHT).tolist())
    elif isinstance(class_weight, str) and class_weight not in PLAIN:
        weights = in_order_of_classes(weights_by_name(class_weight), names)
    elif isinstance(class_weight, Mapping):
        weights = in_order_of_classes({str(name): weight for name, weight in class_weight.items()}, names)
    hint = Literal["balanced"] | tuple[Weight, ...]
    changed = with_training(algorithm, class_weight=checked("class_weight", hint, weights))
    if changed == algorithm:
        raise RecordError("class_weight has no effect, because this method has no local training: leave it out")
    return changed


def _federation(
    clients: Any, label: str | None, client: str | None, plan: SplitPlan, normalise: str, new_clients: int
) -> Federation:
    if normalise not in NORMALISED:
        raise unknown("normalise", normalise, NORMALISED)
    if is_frame(clients) or label is not None or client is not None:
        federation = from_frame(clients, label, client, plan, normalise, new_clients)
        if note := federation.standardisation_note("normalise='none'"):
            log.warning("%s", note)
        return federation
    if isinstance(clients, Federation):
        return clients
    if hold_texts(clients):
        return from_texts(clients, plan, new_clients)
    federation = from_objects(clients, validation=plan.validation, test=plan.test, seed=plan.seed, split=plan.split)
    return _standardised(federation, normalise)


def _fitting(model: ModelSource | str, federation: Federation) -> ModelSource:
    """A module, or a function without arguments that makes one: `shape` and `classes` are given to one that asks."""
    if isinstance(model, str):
        return model_of(ModelTable(model), tuple(federation.x.shape[1:]), federation.classes)
    asked = set() if isinstance(model, nn.Module) else {"shape", "classes"} & {*(accepted(model) or ())}
    facts = {"shape": tuple(federation.x.shape[1:]), "classes": federation.classes or 1}
    return partial(model, **{name: facts[name] for name in sorted(asked)}) if asked else model


def _standardised(federation: Federation, normalise: str) -> Federation:
    """A table with standardised columns, which is said; any other federation as it is."""
    if normalise == "columns" and federation.x.ndim != 2:
        raise DataError(f"normalise='columns' is for tables, but a sample is {tuple(federation.x.shape[1:])}")
    if federation.codes:
        ways = {"auto": ("x",), "columns": ("client",), "none": ()}
        federation = with_standardised(federation, ways[normalise])
    elif normalise == "none" or not (normalise == "columns" or is_table(federation.x)):
        return federation
    else:
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


def load(
    folder: str | Path,
    *,
    round: str = "selected",
    device: str = "auto",
    trust: bool = False,
    model: ModelSource | None = None,
    algorithm: Algorithm | None = None,
) -> Fitted:
    """Load what `Fitted.save` wrote, or a run directory: the models after its selected round, and all metrics.

    A saved folder needs no data. If its model is a class of your own, give it: `model=Net()`. The same holds for
    `algorithm`.

    Of a run directory, `round="newest"` gives the models of the newest checkpoint, from which `strata resume`
    continues. `device="auto"` is the device of the run, or the CPU if this machine does not have it. If the run uses a
    model or a method of your own (`package.module:name`), loading it runs that code: allow it with `trust=True`. You
    may load a run while it is still running.
    """
    place = Path(folder)
    if is_saved(place):
        parts = read_folder(place, device, model, algorithm)
        which = (parts.sim, parts.progress, parts.history, parts.selected, place, parts.evaluate)
        return Fitted(*which, split=parts.split, saved=parts.models, added=parts.added)
    if model is not None or algorithm is not None:
        raise RunError(f"model and algorithm are for saved folders, and '{place}' is none: leave them out")
    refuse_runs(place)
    sim, progress, lines = read_run(place, round, device, trust)
    evaluate, counts = config_of(place).evaluate, selected_line(place, lines)
    trusted = Trust.of(trust).asked_by(place / CONFIG, environment_of(place).get("folder"))
    added, plan = read_added(place, sim, progress.t), split_plan(config_of(place))
    return Fitted(sim, progress, lines, counts, place, evaluate, trust=trusted, split=plan, added=added)
