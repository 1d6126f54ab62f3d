"""A federation in a folder, without its samples: every client's model, and what a client that joins later needs.

federation.json       method, architecture of the model, format of samples, names, lines of all rounds
start.safetensors     the model that all started from
server.safetensors    the server's state after the round that the models come from
models.safetensors    the clients' models; tensors that several clients share are stored once
added/                clients that joined later (`added.py`)

It is loaded on any machine. Nothing is imported because the folder names it: a model or a method that is not made of
our own parts and torch's is given to `load` again.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stratafl import algorithms  # noqa: F401 - whose records a folder names
from stratafl.api.added import AddedClient, read_added, write_added
from stratafl.config.experiment import Experiment
from stratafl.config.setting_tables import DataTable, EvaluateTable
from stratafl.core.algorithm import Algorithm
from stratafl.core.keys import Seeds
from stratafl.core.layers import select
from stratafl.core.records import from_settings, from_table, to_settings, to_table
from stratafl.core.reprs import holder
from stratafl.core.state import flatten, moved, unflatten
from stratafl.data.preprocessing import dtype_name, preprocessing_from
from stratafl.data.sample_format import SampleFormat
from stratafl.data.splitting import SplitPlan
from stratafl.errors import (
    DamagedError,
    DataError,
    ModelError,
    RecordError,
    RunError,
    StrataError,
    UnknownNameError,
    shown,
)
from stratafl.evaluation.measure import Line
from stratafl.execute import Progress, Simulation
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.build_simulation import ModelSource
from stratafl.execute.client_states import InMemory
from stratafl.execute.memory import device_of
from stratafl.execute.simulation import SavedForm
from stratafl.files import is_plain, write_atomically
from stratafl.models import build, save_weights
from stratafl.models.architecture import architecture, module_from
from stratafl.models.weights import read_weights
from stratafl.runs.directory import config_of, new_folder
from stratafl.runs.json_files import read_json
from stratafl.runtime.build import build_runtime
from stratafl.runtime.engine import LoopEngine
from stratafl.version import VERSION

FILE, START, SERVER, MODELS = "federation.json", "start.safetensors", "server.safetensors", "models.safetensors"
FORMAT = 1
_AGREED = ("clients", "rounds", "participation", "granularity", "buffers", "head")  # of a blueprint, as they are
_Models = dict[int, dict[str, Tensor]]


@holder
class SavedParts:
    """What a folder holds of a federation."""

    sim: Simulation
    progress: Progress
    history: list[Line]
    selected: Line | None  # the line of the round that the models come from
    evaluate: EvaluateTable
    split: SplitPlan
    models: Mapping[int, Mapping[str, Tensor]]
    added: dict[int, AddedClient]
    data: DataTable = DataTable()  # how samples were read


def is_saved(folder: Path) -> bool:
    return is_plain(folder / FILE)


# Writing


def write_folder(folder: Path, parts: SavedParts) -> Path:
    """Write a federation to a new folder, which appears complete or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"'{folder}' exists: choose another folder, or remove it")
    blueprint = parts.sim.blueprint
    if blueprint is None:
        raise RunError("this federation was not made by fit() or load(), so it cannot be saved")
    tensors, places = _shared(parts.models)
    table = {**_facts(parts, blueprint), "models": places}
    server = {name: x.cpu() for name, x in flatten(parts.progress.server, "server/").items()}
    with new_folder(folder) as partial:
        save_weights(blueprint.module, partial / START)
        _write_tensors(partial / SERVER, server)
        _write_tensors(partial / MODELS, tensors)
        table["checksums"] = {name: _checksum(partial / name) for name in (START, SERVER, MODELS)}
        write_atomically(partial / FILE, json.dumps(table, allow_nan=False).encode())
        for client in parts.added.values():
            write_added(partial, client)
    return folder


def _facts(parts: SavedParts, blueprint: Blueprint) -> dict[str, Any]:
    runtime, federation = parts.sim.runtime, parts.sim.runtime.federation
    base = blueprint.draw.base()
    model = {"architecture": architecture(base, build), "class": type(base).__name__, "drawn": blueprint.is_drawn}
    return {
        **{"format": FORMAT, "stratafl": VERSION, "round": parts.progress.t, "name": federation.name},
        "method": _method(parts.sim.algorithm),
        "model": {**model, "frozen": _frozen(base)},
        "samples": blueprint.samples.to_table(),
        "preprocessing": federation.preprocessing.to_table(),
        "data": {key: value for key, value in to_settings(parts.data).items() if key not in ("name", "path")},
        "agreed": {key: getattr(blueprint, key) for key in _AGREED},
        **{"frozen": str(blueprint.frozen), "seeds": list(blueprint.seeds), "dtype": dtype_name(blueprint.dtype)},
        "engine": "loop" if isinstance(runtime.engine, LoopEngine) else "stacked",
        "widest": {split: runtime.largest(split) for split in federation.splits},
        **{"all_clients": federation.clients, "client_names": list(federation.client_names)},
        **{"evaluate": to_settings(parts.evaluate), "split": vars(parts.split)},
        **{"history": parts.history, "selected": parts.selected},
    }


def _frozen(module: nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if not parameter.requires_grad]


def _method(algorithm: Algorithm) -> dict[str, Any]:
    """The method as a table; only its name, if it is not made of records that can be written."""
    table: dict[str, Any] = {"class": type(algorithm).__name__, "record": None}
    try:
        record = to_table(algorithm)
        return {**table, "record": record} if from_table(record) == algorithm else table
    except StrataError:
        return table


def _shared(models: Mapping[int, Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], dict[str, dict[str, str]]]:
    """Different tensors by a name of their own, and for each client the names of its tensors."""
    tensors: dict[str, Tensor] = {}
    places: dict[str, dict[str, str]] = {}
    for client, state in models.items():
        for name, tensor in state.items():
            plain = tensor.detach().cpu().contiguous()
            digest = hashlib.sha256(plain.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()[:32]
            tensors.setdefault(key := f"{name}/{digest}", plain.clone())
            places.setdefault(str(client), {})[name] = key
    return tensors, places


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({name: x.detach().contiguous().clone() for name, x in tensors.items()}, path)


# Reading


def read_folder(
    folder: Path, device: str = "auto", model: ModelSource | None = None, algorithm: Algorithm | None = None
) -> SavedParts:
    """The federation of a saved folder; `model` and `algorithm` are for a model or a method of one's own."""
    path = folder / FILE
    table = read_json(path)
    if table.get("format") != FORMAT:
        raise RunError(
            f"'{path}' has format {shown(table.get('format'))}: this version reads {FORMAT}, use a newer one"
        )
    place = device_of("cpu" if device == "auto" else device)
    try:
        for name, checksum in table["checksums"].items():
            if is_plain(folder / name) and _checksum(folder / name) != checksum:
                raise DamagedError(f"'{folder / name}' is damaged: copy the folder again, or save it again")
        return _parts(folder, table, place, model, algorithm)
    except (KeyError, ValueError, TypeError, AttributeError, RecordError, UnknownNameError, DataError) as error:
        raise DamagedError(f"'{path}' is damaged: copy the folder again, or save it again") from error


def _parts(
    folder: Path, table: Mapping[str, Any], device: str, model: ModelSource | None, algorithm: Algorithm | None
) -> SavedParts:
    blueprint = _blueprint(folder, table, model or _model_in(folder, table["model"]), algorithm)
    differing = set(_frozen(blueprint.draw.base())) ^ set(table["model"].get("frozen", []))
    if differing:
        raise ModelError(
            f"'{shown(min(differing))}' is frozen in the saved model or in yours, not in both: set requires_grad alike"
        )
    sim = _simulation(table, blueprint, device)
    t = table["round"]
    tensors = _tensors(folder / SERVER)
    SavedForm.of(sim).check(t, {"t": torch.tensor(t), **tensors})
    server = moved(unflatten(tensors, "server/"), sim.runtime.device)
    evaluate = from_settings("evaluate", EvaluateTable, table["evaluate"])
    models, added = _models(folder / MODELS, table["models"], sim), read_added(folder, sim, t)
    data = from_settings("data", DataTable, table["data"])
    progress, history = Progress(t, server, InMemory(sim.state_device, {})), list(table["history"])
    parts = (sim, progress, history, table["selected"], evaluate, SplitPlan(**table["split"]), models, added, data)
    return SavedParts(*parts)


def _blueprint(folder: Path, table: Mapping[str, Any], model: ModelSource, algorithm: Algorithm | None) -> Blueprint:
    method = algorithm or from_table(table["method"]["record"])
    if not isinstance(method, Algorithm):
        name = shown(table["method"]["class"])
        raise RunError(f"'{folder}' was made by a method of your own, {name}: give it, load(folder, algorithm=…)")
    dtype = getattr(torch, str(table["dtype"]))
    agreed = {key: table["agreed"][key] for key in _AGREED}
    form, seeds = SampleFormat.from_table(table["samples"]), Seeds(*table["seeds"])
    if not (folder / START).exists():
        raise DamagedError(f"'{folder}' lacks {START}: copy the folder again, or save it again")
    facts = {**agreed, "seeds": seeds, "dtype": dtype, "engine": table["engine"], "weights": folder / START}
    facts["frozen"] = select(table.get("frozen", "none"))
    return Blueprint(method, model, form, **facts)


def _model_in(folder: Path, table: Mapping[str, Any]) -> ModelSource:
    if table["architecture"] is None:
        name = shown(table["class"])
        raise ModelError(
            f"the model of '{folder}' is a class of your own, {name}: give it, load(folder, model={name}(…))"
        )

    def made() -> nn.Module:
        module = module_from(table["architecture"], build)
        for name in table.get("frozen", []):
            module.get_parameter(name).requires_grad_(False)
        return module

    try:
        module = made()
    except ModelError as error:
        raise DamagedError(f"'{folder / FILE}' does not describe a model: {error}; copy the folder again") from error
    return made if table["drawn"] else module


def _simulation(table: Mapping[str, Any], blueprint: Blueprint, device: str) -> Simulation:
    names, preprocessing = tuple(table["client_names"]), preprocessing_from(table["preprocessing"])
    federation = blueprint.samples.without_samples(table["all_clients"], preprocessing, names, str(table["name"]))
    runtime = build_runtime(
        federation,
        blueprint.module,
        blueprint.layout,
        head=blueprint.head,
        device=device,
        engine=blueprint.engine,
        batch=blueprint.algorithm.requires.batch,
        measures=False,
        widest={str(split): int(count) for split, count in table["widest"].items()},
    )
    setup, counts = blueprint.setup(device, runtime.features), torch.zeros(federation.clients, dtype=torch.int64)
    blueprint.algorithm.check(setup)
    parts = (blueprint.algorithm, setup, counts, runtime)
    return Simulation(*parts, template=blueprint.module.cpu(), blueprint=blueprint)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return read_weights(path)[0]
    except ModelError as error:
        raise DamagedError(f"'{path}' is missing or damaged: copy the folder again, or save it again") from error


def _models(path: Path, places: Mapping[str, Mapping[str, str]], sim: Simulation) -> _Models:
    tensors, specs = _tensors(path), sim.setup.layout.specs
    models = {int(client): {name: tensors[key] for name, key in each.items()} for client, each in places.items()}
    fits = all(
        state.keys() == specs.keys() and all(state[name].shape == spec.shape for name, spec in specs.items())
        for state in models.values()
    )
    if not fits or set(models) != set(range(sim.setup.clients)):
        raise ValueError("its models are not those of its clients")
    return models


def experiment_of_saved(folder: Path) -> Experiment:
    """How samples to predict are read: as those that the federation was trained on."""
    return replace(Experiment(), data=data_table(folder))


def data_table(folder: Path | None) -> DataTable:
    """How the samples of a run or of a saved federation were read; without a folder, as usual."""
    if folder is None:
        return DataTable()
    if not is_saved(folder):
        return config_of(folder).data
    return from_settings("data", DataTable, read_json(folder / FILE).get("data", {}))
