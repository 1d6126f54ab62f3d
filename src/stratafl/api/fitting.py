"""Training on your own samples and module, and loading what a run left."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from stratafl.algorithms import algorithm as named_algorithm
from stratafl.api.added import read_added
from stratafl.api.client_samples import federation_in_memory
from stratafl.api.fitted import Fitted, trained
from stratafl.api.numbers import check_least
from stratafl.api.requests import known_options
from stratafl.api.saved import is_saved, read_folder
from stratafl.api.training import Callback, TrainingRun, stop_after, watchers
from stratafl.config.assemble import model_of, split_plan
from stratafl.config.metric_choice import chosen_by_classes, metric_for
from stratafl.config.protocols import text_options, training_options
from stratafl.config.setting_tables import DataTable, EvaluateTable, ModelTable, shift_of
from stratafl.config.trust import Trust, accepted
from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Size, checked
from stratafl.core.layout import Buffers, Granularity
from stratafl.core.objectives import balanced_weights
from stratafl.core.records import from_settings
from stratafl.data import Federation
from stratafl.data.builders import Clients
from stratafl.data.splitting import SplitPlan
from stratafl.errors import DataError, ModelError, RecordError, RunError, choices, unknown
from stratafl.evaluation.metrics import Metric, own_metric
from stratafl.evaluation.trial import Trial
from stratafl.execute import simulation
from stratafl.execute.build_simulation import ModelSource
from stratafl.execute.memory import Store
from stratafl.execute.rounds import clip_of, limit_of
from stratafl.policies.class_weights import LEAST_WEIGHT, PLAIN, POOLED, in_order_of_classes, weights_by_name
from stratafl.policies.train import LocalTraining, Weight, with_training
from stratafl.runs.directory import CONFIG, ROUNDS_KEPT, config_of, environment_of, read_run, refuse_runs, selected_line
from stratafl.runtime.build import EngineName
from stratafl.runtime.speed import Choice, Convolutions, Precision, Speed

log = logging.getLogger("stratafl")


@known_options
def fit(
    algorithm: Algorithm | str,
    clients: Federation | Clients,
    model: ModelSource | str,
    *,
    label: str | None = None,
    client: str | None = None,
    rounds: int = 20,
    lr: float | None = None,
    validation: float = 0.1,
    test: float = 0.25,
    split: str = "stratified",
    normalise: Literal["auto", "columns", "none"] = "auto",
    shift: str | None = None,
    strength: float | None = None,
    seed: int = 0,
    evaluate_every: int = 1,
    metric: str | Callable[..., object] = "auto",
    class_weight: str | Sequence[float] | Mapping[Any, float] = "none",
    patience: int | None = None,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
    participation: float = 1.0,
    new_clients: int = 0,
    norm_limit: float | None = None,
    norm_clip: float | None = None,
    weights: str | Path | None = None,
    head: str | None = None,
    frozen: str = "none",
    buffers: Buffers = "follow",
    granularity: Granularity = "module",
    device: str = "auto",
    dtype: torch.dtype = torch.float32,
    memory_limit: int | str | None = None,
    store: Store = "auto",
    engine: EngineName = "auto",
    precision: Precision = "fp32",
    graphs: Choice = "auto",
    compile: Choice = "auto",
    convolutions: Convolutions = "auto",
) -> Fitted:
    """Train a method on the samples of every client.

    You get the models after the round with the best `metric` on validation samples, or after the last round if there
    are no validation samples.

    Example:
        ```python
        clients = {"Basel": (x, y), "Bern": (x2, y2)}
        fitted = stratafl.fit("fedper", clients, "mlp", rounds=10, lr=0.1)
        fitted.client("Basel").predict(x_new)
        ```

    Args:
        algorithm: A name from `strata list`, such as `"fedper"` or `"fedper+flayer"`, or a method that you make with
            its options: `fedper(personal="last:2", train=LocalTraining(lr=0.1))` from `stratafl.methods`.
        clients: The samples of each client by its name, or in a list. They are `(x, y)`, a torch `Dataset` or
            `DataLoader` of such pairs, or the client's own splits `{"train": (x, y), "validation": …, "test": …}`, of
            which the last two may be missing. `x` and `y` are arrays, or tables such as DataFrames, whose columns are
            taken by name; or `x` is a list of texts. Labels may be names.
            Or `clients` is one table, a DataFrame or a Hugging Face `Dataset`, with
            `label` and `client`, or such a table for each client by its name, with `label` alone. Tables are read as
            csv files are: they may hold categories, dates and missing values.
        model: An `nn.Module`, whose weights are the common start; a name from `strata list models`, such as `"mlp"`;
            or a function that makes a module. A class or function with arguments `shape` and `classes` gets them.
        label: The column of a table that is to be predicted.
        client: The column of a table that names the clients.
        rounds: The number of rounds.
        lr: The learning rate of local training, if `algorithm` is a name. By default that of `LocalTraining`,
            or that of commands for a `model` by its name.
        validation: The share of each client's samples that selects the round, and that tuning uses.
        test: The share of each client's samples that is only scored.
        split: `"stratified"` by class, `"random"`, or `"ordered"`: the last samples of each client are for testing.
        normalise: By default rows of numbers with fractions are standardised, each client's columns by its own training
            samples, images of 8 bits are scaled to −1 … 1, and `predict` does the same to raw samples. `"none"`: leave
            them as they are. `"columns"`: standardise every table. A `Federation` is taken as it is.
        shift: Make clients differ, for experiments: `"rotation"`, `"blur"`, `"colour"`, `"noise"` or `"domains"` of
            images, permuted `"labels"`, or several, as in `"rotation+noise"` (see the page on partitions).
        strength: How large shifts are, from 0 to 1, by default 0.5.
        seed: A whole number, from which everything random is drawn.
        evaluate_every: Evaluate after every so many rounds.
        metric: What the round is selected by: a name (`strata list metrics`) or a function `f(y_true, y_score)`.
            `"auto"` is accuracy, balanced accuracy if one class has more than 60 % of the samples, or the squared
            error.
        class_weight: By how much a sample counts in the loss: `"balanced"` by the classes of its client, `"pooled"` by
            those of all clients together (each n / (K·n_c)), or a weight for each class, in a list or by class name.
        patience: End training after this many evaluations without a gain of 0.005 on validation samples.
        progress: Print every round.
        callbacks: Functions that are called with the line of every round, as `Fitted.history` has it. Training ends
            if one of them returns True.
        participation: The share of the clients that takes part in a round.
        new_clients: The last of the clients, this many, never take part in training.
        norm_limit: Leave out updates more than this many times as long as the cohort's median; 0: none. By default 20,
            and none for a method that adds noise.
        norm_clip: Shorten longer updates to this many times the cohort's median; 0: none. By default 5, and none
            without a `norm_limit`.
        weights: A file with the initial weights.
        head: The module that is the model's head, if it is not the last one.
        frozen: Layers that are not trained, sent or kept by clients, such as `"*.lora_A"`.
        buffers: Whether BatchNorm statistics `"follow"` their layer or stay `"local"`.
        granularity: What a layer is: a `"tensor"`, a `"module"` or a `"block"`.
        device: `"cpu"`, `"cuda"` or `"auto"`, which is a GPU if there is one.
        dtype: The type of the model's numbers.
        memory_limit: What training may take, in bytes or as `"8GB"`.
        store: Where client states are kept between rounds: on the `"device"`, in `"ram"`, on `"disk"`; `"auto"`
            chooses by size.
        engine: `"stacked"` trains all clients of a chunk at once, `"loop"` one by one. `"auto"` stacks what it can.
        precision: Of products on a GPU: `"fp32"`, `"tf32"` or `"bf16"`.
        graphs: Whether steps are captured as CUDA graphs.
        compile: Whether steps are compiled.
        convolutions: How convolutions are computed: `"product"`, `"stock"` or `"kernel"`.

    Returns:
        The trained federation: every client's model, its predictions and metrics.

    Raises:
        StrataError: In one sentence, what does not fit, what is allowed and what to do.
    """
    for name, value, least in (
        ("evaluate_every", evaluate_every, 1),
        ("seed", seed, 0),
        ("new_clients", new_clients, 0),
    ):
        check_least(name, value, least)
    if not isinstance(model, nn.Module | str) and not callable(model):
        raise ModelError(f"model must be an nn.Module, a function that returns one or a name, not {model!r}")
    plan = SplitPlan(validation, test, seed=seed, split=split)
    federation = federation_in_memory(clients, label, client, plan, normalise, int(new_clients))
    shifts = shift_of(from_settings("data", DataTable, {"shift": shift, "strength": strength}), seed)
    federation = federation if shifts is None else shifts.applied(federation)
    method = _method(algorithm, lr, _usual_training(model, federation))
    if not (isinstance(class_weight, str) and class_weight == "none"):
        method = _weighted(method, class_weight, federation, int(new_clients))
    limit = limit_of(norm_limit, method)
    sim = simulation(
        method,
        federation,
        _fitting(model, federation),
        rounds=rounds,
        participation=participation,
        seed=seed,
        granularity=granularity,
        buffers=buffers,
        head=head,
        frozen=frozen,
        weights=weights,
        dtype=dtype,
        device=device,
        engine=engine,
        speed=Speed(precision, graphs, compile, convolutions),
        memory_limit=None if memory_limit is None else Size().read("memory_limit", memory_limit),
        store=store,
        new_clients=new_clients,
        norm_limit=limit,
        norm_clip=clip_of(norm_clip, limit),
    )
    evaluate, chosen = _evaluation(metric, federation)
    trial = Trial(sim, evaluate_every, metric=chosen)
    training = TrainingRun(trial, evaluate, sim.start(), stop_after(patience, trial))
    return trained(training, watchers(callbacks, progress, training), plan)


def _usual_training(model: ModelSource | str, federation: Federation) -> dict[str, Any]:
    """The training that commands have by default for a model of the catalogue."""
    vocabulary = None if federation.text is None else federation.text.vocabulary
    return training_options(model, vocabulary) if isinstance(model, str) else {}


def _method(method: Algorithm | str, lr: float | None, training: Mapping[str, Any]) -> Algorithm:
    """A method by its name, with the usual training of the model and this learning rate."""
    if isinstance(method, str):
        options = {**training, **({} if lr is None else {"lr": lr})}
        return named_algorithm(method, train=LocalTraining(**options)) if options else named_algorithm(method)
    if not isinstance(method, Algorithm):
        raise RecordError(f"algorithm must be a method, such as fedper(), or its name, not {method!r}")
    if lr is not None:
        raise RecordError("lr is for a method by its name: give this one its own, train=LocalTraining(lr=…)")
    return method


def _weighted(
    algorithm: Algorithm, class_weight: str | Sequence[float] | Mapping[Any, float], federation: Federation, new: int
) -> Algorithm:
    """The algorithm with these weights of classes wherever it trains."""
    if federation.classes is None:
        raise DataError("class_weight needs classes, but the targets of this data are numbers: leave it out")
    names = [federation.class_name(label) for label in range(federation.classes)]
    weights: Any = class_weight.tolist() if hasattr(class_weight, "tolist") else class_weight
    if not isinstance(weights, str | Mapping | list | tuple):
        allowed = f"{choices(('none', 'balanced', POOLED))}, or a weight for each class, such as {{'a': 3, 'b': 1}}"
        raise RecordError(f"class_weight is {weights!r}: {allowed}")
    if weights == POOLED:
        counts = federation.class_counts("train")[: federation.clients - new].sum(0)
        weights = tuple(balanced_weights(counts).clamp(min=LEAST_WEIGHT).tolist())
    elif isinstance(weights, str) and weights not in PLAIN:
        weights = in_order_of_classes(weights_by_name(weights), names)
    elif isinstance(weights, Mapping):
        weights = in_order_of_classes({str(name): weight for name, weight in weights.items()}, names)
    if not isinstance(weights, str):  # numpy's numbers too
        weights = [weight.item() if hasattr(weight, "item") else weight for weight in weights]
    hint = Literal["balanced"] | tuple[Weight, ...]
    changed = with_training(algorithm, class_weight=checked("class_weight", hint, weights))
    if changed == algorithm:
        raise RecordError("class_weight has no effect, because this method has no local training: leave it out")
    return changed


def _fitting(model: ModelSource | str, federation: Federation) -> ModelSource:
    """A module, or a function without arguments that makes one: `shape` and `classes` are given to one that asks."""
    if isinstance(model, str):
        options = {} if federation.text is None else text_options(model, federation.text.vocabulary)
        return model_of(ModelTable(model, options=options), tuple(federation.x.shape[1:]), federation.classes)
    asked = set() if isinstance(model, nn.Module) else {"shape", "classes"} & {*(accepted(model) or ())}
    facts = {"shape": tuple(federation.x.shape[1:]), "classes": federation.classes or 1}
    return partial(model, **{name: facts[name] for name in sorted(asked)}) if asked else model


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
    """Load a run directory, or a folder that `Fitted.save` wrote.

    You may load a run while it is still running.

    Example:
        ```python
        fitted = stratafl.load("runs/first")
        fitted.client("Basel").predict(x_new)
        ```

    Args:
        folder: A run directory, with the models after its selected round and all metrics; or a saved folder, which
            needs no data.
        round: `"selected"`, or `"newest"` for the models of the newest checkpoint of a run, from which `strata resume`
            continues.
        device: `"cpu"`, `"cuda"` or `"auto"`, which is the device of the run, or the CPU if this machine does not have
            it.
        trust: Allow the run to import the model or method of your own (`package.module:name`) that it names. Loading
            it runs that code.
        model: For a saved folder whose model is a class of your own: `model=Net()`.
        algorithm: For a saved folder whose method is your own.

    Returns:
        The trained federation, as `fit` returns it.

    Raises:
        StrataError: If the folder is neither, is damaged, or needs code that you have not allowed.
    """
    place = Path(folder)
    if round not in ROUNDS_KEPT:
        raise unknown("round", round, ROUNDS_KEPT)
    if is_saved(place):
        if round != "selected":
            raise RunError(f"'{place}' is a saved folder, which has the models of one round: leave out round='{round}'")
        parts = read_folder(place, device, model, algorithm)
        which = (parts.sim, parts.progress, parts.history, parts.selected, place, parts.evaluate)
        return Fitted(*which, split=parts.split, saved=parts.models, added=parts.added)
    if model is not None or algorithm is not None:
        raise RunError(f"model and algorithm are for saved folders, and '{place}' is not one: leave them out")
    refuse_runs(place)
    sim, progress, lines = read_run(place, round, device, trust)
    evaluate, counts = config_of(place).evaluate, selected_line(place, lines)
    trusted = Trust.of(trust).asked_by(place / CONFIG, environment_of(place).get("folder"))
    added, plan = read_added(place, sim, progress.t), split_plan(config_of(place))
    return Fitted(sim, progress, lines, counts, place, evaluate, trust=trusted, split=plan, added=added)
