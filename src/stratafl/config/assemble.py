"""From an experiment to the objects that run it: algorithm, federation, model, simulation."""

import dataclasses
import json
import logging
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from stratafl.algorithms import ALGORITHMS
from stratafl.algorithms.composition import composed, is_composition
from stratafl.config.experiment import Experiment
from stratafl.config.setting_tables import (
    DataTable,
    ModelTable,
    RunTable,
    ServerTable,
    partition_of,
    reading_of,
    shift_of,
    time_of,
    without_effect,
)
from stratafl.config.trust import NO_TRUST, Trust, called, imported, parameters
from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import checked
from stratafl.core.keys import Seeds
from stratafl.core.layers import Select
from stratafl.core.records import to_settings
from stratafl.data import IID, Federation, Partition, Samples, from_samples, load_samples
from stratafl.data.loading import shared_federation
from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.data.splitting import SplitPlan
from stratafl.data.user_files import perhaps_clients
from stratafl.errors import DataError, ModelError, PhaseError, RecordError, counted
from stratafl.evaluation.diagnostics import LayerDiagnostics
from stratafl.execute import Simulation, simulation
from stratafl.execute.build_simulation import ModelSource
from stratafl.execute.memory import device_of, device_or_cpu
from stratafl.execute.rounds import limit_of
from stratafl.models import MODELS
from stratafl.models.architecture import with_recipe
from stratafl.policies.robust import robust
from stratafl.policies.train import with_class_weights
from stratafl.runtime.speed import Speed

_STORABLE_TYPES = (int, float, str, bool, list, Select)
log = logging.getLogger("stratafl")


def builder_of(name: str, trust: Trust | bool = NO_TRUST) -> Callable[..., Any]:
    """What makes the method of this name: of the catalogue, composed, or at a path that is trusted."""
    if is_composition(name):
        return composed(name)
    return ALGORITHMS.get(name) or imported("algorithm", name, trust)


def maker_of(name: str, trust: Trust | bool = NO_TRUST) -> Callable[..., Any]:
    """What makes the model of this name: of the catalogue, or at a path that is trusted."""
    return MODELS.get(name) or imported("model", name, trust)


def algorithm_of(experiment: Experiment, trust: Trust | bool = NO_TRUST) -> Algorithm:
    """The method with its options and the experiment's local descent."""
    table = experiment.algorithm
    builder = builder_of(table.name, trust)
    hints = _hints(builder)
    options = {key: checked(f"algorithm.{key}", hints.get(key, Any), value) for key, value in table.options.items()}
    algorithm = called(table.name, builder, options, {"train": experiment.train})
    if not isinstance(algorithm, Algorithm):
        raise RecordError(f"'{table.name}' returns {type(algorithm).__name__}, not an algorithm")
    return _with_merge(algorithm, experiment)


OF_MERGE = {"share": "trimmed", "factor": "clipped", "norm": "clipped", "f": "krum", "keep": "krum"}


def _with_merge(algorithm: Algorithm, experiment: Experiment) -> Algorithm:
    """The method with the merge that the table [server] asks for."""
    server, usual = experiment.server, ServerTable()
    for key, merge in OF_MERGE.items():
        if getattr(server, key) != getattr(usual, key) and server.merge != merge:
            raise RecordError(f"server.{key} has no effect with server.merge = '{server.merge}': it is for '{merge}'")
    if server.norm is not None and server.factor != usual.factor:
        raise RecordError("server.factor has no effect with server.norm, which sets the largest norm: leave one out")
    if server.merge == "mean":
        return algorithm
    if server.secure:
        raise RecordError(
            f"server.merge = '{server.merge}' compares single uploads, which server.secure hides: leave one out"
        )
    try:
        return robust(algorithm, server.merge, **{key: getattr(server, key) for key in OF_MERGE})
    except RecordError as error:
        raise RecordError(f"{experiment.algorithm.name}: server.{error}") from error


def _hints(builder: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(builder, include_extras=True)
    except Exception:  # a person's own builder may be annotated with anything, or not be a function
        return {}


def completed(experiment: Experiment, trust: Trust | bool = NO_TRUST) -> Experiment:
    """The experiment with every option of its method, model and partition, at its default where none was given."""
    algorithm, model, data = experiment.algorithm, experiment.model, experiment.data
    builder, maker = builder_of(algorithm.name, trust), maker_of(model.name, trust)
    return dataclasses.replace(
        experiment,
        algorithm=dataclasses.replace(algorithm, options={**defaults(builder), **algorithm.options}),
        model=dataclasses.replace(model, options={**defaults(maker), **model.options}),
        data=_completed(data),
    )


def _completed(data: DataTable) -> DataTable:
    options = {key: value for key, value in vars(partition_of(data)).items() if value is not None}
    table_keys = {key: options.pop(key) for key in tuple(options) if hasattr(data, key)}
    return dataclasses.replace(data, **table_keys, options=options)


def defaults(maker: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a function's arguments that a configuration can hold."""
    values = {name: p.default for name, p in parameters(maker).items() if p.default is not p.empty}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {name: str(v) if isinstance(v, Select) else v for name, v in plain.items() if isinstance(v, _STORABLE_TYPES)}


def seeds_of(experiment: Experiment) -> Seeds:
    run, data, model = experiment.run, experiment.data, experiment.model
    return Seeds.of(run.seed, data.seed, model.seed, run.batch_seed)


def federation_of(experiment: Experiment, *, raw: bool = False) -> Federation:
    """The data over its clients, standardised as the experiment says, or `raw`."""
    data, plan = experiment.data, split_plan(experiment, minimum_test=2 if experiment.data.name == "digits" else 1)
    samples = samples_of(data, plan.seed, reading_limit(experiment.run))
    partition, fallback = None if data.partition == "auto" else partition_of(data), _fallback(data, samples)
    shares = {"clients": data.clients, "new_clients": data.new_clients}
    shift = shift_of(data, plan.seed)
    federation = from_samples(samples, plan, partition=partition, fallback=fallback, raw=raw, **shares)
    return federation if shift is None else shift.applied(federation)


def split_plan(experiment: Experiment, minimum_test: int = 1) -> SplitPlan:
    data = experiment.data
    return SplitPlan(data.validation, data.test, minimum_test, seeds_of(experiment).partition, data.split)


def federation_to_run(experiment: Experiment) -> Federation:
    """The data over its clients, on the run's device; runs of one process that use the same data share one."""
    data, run = experiment.data, experiment.run
    settings = {**to_settings(data), "seed": seeds_of(experiment).partition, "limit": reading_limit(run).most}
    key, device = json.dumps(settings, sort_keys=True), device_or_cpu(run.device)
    return shared_federation(data.name, data.path, key, device, lambda: federation_of(experiment))


def log_standardisation(federation: Federation) -> None:
    """Say once what was done to the columns of a table, and what a tokenizer gives away."""
    note = federation.standardisation_note()
    if note:
        federation.once("standardisation", lambda: log.warning("%s", note))
    text = federation.text
    if text is not None and text.tokenizer:
        federation.once("tokenizer", lambda: log.warning("%s; data.tokens = 'hashed' has none", text.note()))


def _fallback(data: DataTable, samples: Samples) -> Partition:
    """The partition if none is set; settings without an effect on it are refused."""
    usual = partition_of(data)
    if data.partition == "auto" and samples.owner is None and (hint := perhaps_clients(samples.codes)):
        log.warning("'%s': %s", data.name, hint)
    dividing = ["per_client", *vars(usual)]
    if data.partition == "auto" and samples.owner is not None:
        clients = len(np.unique(samples.owner))
        why = f"the data names its {clients:,} clients. Leave it out, or set data.partition to repartition the samples"
        _refuse_set(data, [*(["clients"] if data.clients != clients else []), *dividing], samples.name, why)
        if samples.tests is not None and data.test != DataTable().test:  # perhaps as the protocol has it
            log.warning("data.test has no effect with '%s', which has its own test samples", samples.name)
    elif data.partition == "auto" and samples.y.dtype.kind == "f":
        _refuse_set(data, dividing, samples.name, "the data has no classes and is partitioned evenly. Leave it out")
        log.warning("'%s' has no classes and is partitioned evenly (data.partition = 'iid')", samples.name)
        return IID()
    name = "dirichlet" if data.partition == "auto" else data.partition
    others = ", ".join(f"data.{key}" for key in ("clients", *vars(usual)))
    _refuse_set(data, without_effect(data), name, f"leave it out (these have an effect: {others})")
    return usual


def _refuse_set(data: DataTable, keys: Sequence[str], name: str, why: str) -> None:
    """Raise if one of these keys is not at its default."""
    settings, usual = to_settings(_completed(data)), to_settings(_completed(DataTable()))
    for key in keys:
        if settings.get(key) != usual.get(key):
            raise DataError(f"data.{key} = {settings[key]} has no effect with '{name}': {why}")


def samples_of(data: DataTable, seed: int, limit: MemoryLimit = USUAL_LIMIT) -> Samples:
    """The samples as the table says that they are read, in as much memory as the limit leaves."""
    return load_samples(data.name, reading_of(data, seed, limit))


def reading_limit(run: RunTable) -> MemoryLimit:
    """The run's memory limit, where it is one of RAM and not of a GPU."""
    name = device_of("auto") if run.device == "auto" else run.device  # a device that is missing is refused elsewhere
    return MemoryLimit(run.memory_limit if name == "cpu" else None)


def model_of(
    table: ModelTable, shape: tuple[int, ...], classes: int | None, trust: Trust | bool = NO_TRUST
) -> ModelSource:
    """A function that makes the model for samples of this shape and this number of classes (or 1 output).

    A module that was given in Python is the model itself.
    """
    maker = maker_of(table.name, trust)
    if isinstance(maker, nn.Module):
        return maker
    offered = {"shape": shape, "classes": classes or 1}

    def make() -> nn.Module:
        module = called(f"model {table.name}", maker, table.options, offered)
        if not isinstance(module, nn.Module):
            raise ModelError(f"'{table.name}' returns {type(module).__name__}, not an nn.Module")
        return with_recipe(module, table.name, **offered, **table.options) if table.name in MODELS else module

    return make


def simulation_of(
    experiment: Experiment, tuning: Mapping[str, Any] | None = None, trust: Trust | bool = NO_TRUST, begun: bool = False
) -> Simulation:
    """Everything put together, refusing what does not fit before anything is written.

    `tuning` is what an earlier part of the same run measured about speed, see `Runtime.tuning`; `begun` says that
    there is such a part.
    """
    tuning = tuning or {}
    algorithm = algorithm_of(experiment, trust)
    federation, model, run = federation_to_run(experiment), experiment.model, experiment.run
    if not begun:
        log_standardisation(federation)
    compile = run.compile
    switched = tuning.get("switched") or {}
    if compile == "auto" and tuning.get("compiled") is not None and not switched:
        compile = "on" if tuning["compiled"] else "off"
    try:
        return simulation_with(
            experiment,
            algorithm,
            federation,
            model_of(model, tuple(federation.x.shape[1:]), federation.classes, trust),
            engine="loop" if run.engine == "auto" and tuning.get("engine") == "loop" else run.engine,
            speed=Speed(run.precision, run.graphs, compile, run.convolutions, tuning.get("products"), switched),
            store=run.store,
            saved=True,
            diagnosed_clients=LayerDiagnostics().clients if experiment.evaluate.lab else 0,
            begun=begun,
        )
    except PhaseError as error:
        raise RecordError(_never_acts(experiment, error, trust)) from error


def simulation_with(
    experiment: Experiment, algorithm: Algorithm, federation: Federation, model: ModelSource, **more: Any
) -> Simulation:
    """The simulation that an experiment describes, of these parts; `more` are further arguments of `simulation`."""
    run, new = experiment.run, experiment.data.new_clients
    names = None if federation.classes is None else list(map(federation.class_name, range(federation.classes)))
    counts = None if names is None else federation.class_counts("train")[: federation.clients - new].sum(0)
    algorithm = with_class_weights(algorithm, names, counts)
    more = {"engine": run.engine, **more}
    return simulation(
        algorithm,
        federation,
        model,
        rounds=run.rounds,
        participation=run.participation,
        seed=seeds_of(experiment),
        granularity=run.granularity,
        buffers=run.buffers,
        head=experiment.model.head,
        frozen=experiment.model.frozen,
        weights=experiment.model.weights,
        device=run.device,
        memory_limit=run.memory_limit,
        new_clients=experiment.data.new_clients,
        norm_limit=limit_of(experiment.server.norm_limit, algorithm, experiment.server.secure),
        secure=experiment.server.secure,
        drop=run.drop,
        time=time_of(run),
        **more,
    )


def _never_acts(experiment: Experiment, error: PhaseError, trust: Trust | bool) -> str:
    """That the rounds end before the method's last phase begins, and what to do."""
    name, shorter = experiment.algorithm.name, error.rounds // 4
    more = f"run at least {counted(error.before + 1, 'round')}"
    if "warmup" not in parameters(builder_of(name, trust)):
        return f"{name}: {error}"
    less = f", or shorten the warm-up, such as --set {name}.warmup={shorter}" if shorter else ""
    taken = f"{name}'s warm-up takes {counted(error.before, 'round')} and the run has {error.rounds:,}"
    return f"{taken}, so its mechanism never starts: {more}{less}"
