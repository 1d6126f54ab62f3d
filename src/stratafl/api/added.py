"""Clients that join after training: each gets the model that a simulation gives a new client, by its own samples.

    added/12.safetensors    in the folder of a run or of a saved federation: the model of the client with this number

Nothing else in the folder changes.
"""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from stratafl.core.reprs import holder
from stratafl.data.federation import Federation
from stratafl.data.preprocessing import Preprocessing, preprocessing_from
from stratafl.errors import DamagedError, DataError, ModelError, shown
from stratafl.evaluation.evaluate import client_models
from stratafl.evaluation.predictions import Predictions, predictions
from stratafl.execute import Progress, Simulation
from stratafl.execute.blueprint import tensors_digest
from stratafl.execute.drawing import filled
from stratafl.execute.tokens import check_tokens
from stratafl.files import atomically, explained, is_plain
from stratafl.models.weights import read_weights

ADDED = "added"
MAX_NAME = 64  # letters of a new client's name
log = logging.getLogger("stratafl")


@holder
class AddedClient:
    """A client that never took part: its number, its model, and the simulation of its own samples."""

    name: str
    number: int
    round: int  # of the server that its model comes from
    state: Mapping[str, Tensor]
    preprocessing: Preprocessing
    sim: Simulation | None = None  # None: read from a file, without samples

    def _about(self) -> str:
        return f"number {self.number}, after round {self.round}"

    def after(self, sim: Simulation, progress: Progress) -> "AddedClient | None":
        """The same client with the model that a later server gives it; None without its samples."""
        if self.sim is None:
            log.warning("client '%s' was read without samples, so it is left out: add it again", shown(self.name))
            return None
        return personalised(sim, progress, self.sim.runtime.federation, self.name, self.number)

    def predictions(self, progress: Progress, split: str, stage: str) -> Predictions:
        """What its model gives for its own samples of a split."""
        if self.sim is None:
            raise DataError(
                f"client '{shown(self.name)}' was read without samples, so it cannot be scored: add it again"
            )
        return predictions(self.sim, progress, torch.tensor([self.number]), split, stage, new=True)


def check_new_name(name: object, existing: Collection[str]) -> None:
    """Refuse what is not a name, and the name of a client that is there."""
    if not (isinstance(name, str) and name.strip() == name and name.isprintable() and 0 < len(name) <= MAX_NAME):
        raise DataError(f"'{shown(name)}' is not a name of a client: give 1 to {MAX_NAME} printable letters")
    if name in existing:
        raise DataError(f"client '{shown(name)}' already exists: give the new client another name")


def personalised(sim: Simulation, progress: Progress, federation: Federation, name: str, number: int) -> AddedClient:
    """A new client, whose samples are the federation, with the model that it would deploy after these rounds."""
    if sim.template is not None:
        check_tokens(sim.template, federation)
    for split in sim.requires.splits:
        if not int(federation.counts(split).sum()):
            raise DataError(
                f"the method needs the split '{split}' of client '{shown(name)}', which is empty: add samples"
            )
    runtime = sim.runtime
    widest = {split: runtime.largest(split) for split in federation.splits}  # bits depend on it
    one_client = replace(runtime, federation=federation.to(runtime.device), numbers=(number,), widest=widest)
    alone = replace(sim, runtime=replace(one_client, _joined=[], _batches={}, _switched={}))
    with alone.arithmetic():
        (models,) = client_models(alone, progress, torch.tensor([number]), new=True)
        state = {tensor: rows[0].cpu().clone() for tensor, rows in models.rows("deployed").items()}
    if not all(bool(x.isfinite().all()) for x in state.values()):
        raise ModelError(f"the model of client '{shown(name)}' is not finite: check its samples, such as their unit")
    return AddedClient(name, number, progress.t, state, federation.preprocessing.of(0), alone)


# Files


def write_added(folder: Path, client: AddedClient) -> Path:
    """Write the client's model into the folder of its run; no other file changes."""
    from safetensors.torch import save_file

    path = folder / ADDED / f"{client.number}.safetensors"
    facts = {"name": client.name, "number": client.number, "round": client.round}
    facts["digest"] = tensors_digest(dict(sorted(client.state.items())))
    metadata = {"client": json.dumps(facts), "preprocessing": json.dumps(client.preprocessing.to_table())}
    with explained("write", path):
        path.parent.mkdir(exist_ok=True)
        with atomically(path) as partial:
            save_file({name: x.contiguous() for name, x in client.state.items()}, partial, metadata)
    return path


def read_added(folder: Path, sim: Simulation, round: int) -> dict[int, AddedClient]:
    """The clients that were added to a run or a saved federation; those of another round are left out, and named."""
    paths = sorted((folder / ADDED).glob("*.safetensors")) if (folder / ADDED).is_dir() else []
    clients = [_read(path, sim) for path in paths if is_plain(path)]
    for client in clients:
        if client.round != round:
            log.warning(
                "client '%s' was added after round %d, but these models are of round %d: it is left out, add it again",
                *(shown(client.name), client.round, round),
            )
    return {client.number: client for client in clients if client.round == round}


def stored_numbers(folder: Path | None) -> dict[str, int]:
    """The numbers of all clients that were ever added to a folder, by name: those of an earlier round, too."""
    paths = sorted((folder / ADDED).glob("*.safetensors")) if folder is not None and (folder / ADDED).is_dir() else []
    try:
        return {json.loads(read_weights(path)[1]["client"])["name"]: int(path.stem) for path in paths if is_plain(path)}
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"'{folder}/{ADDED}' has a damaged file: remove it, and add the client again") from error


def _read(path: Path, sim: Simulation) -> AddedClient:
    try:
        tensors, metadata = read_weights(path)
        facts = json.loads(metadata["client"])
        name, number, round = facts["name"], facts["number"], facts["round"]
        if not (isinstance(name, str) and type(number) is int and type(round) is int and path.stem == str(number)):
            raise ValueError("its name, number or round is not one")
        if facts["digest"] != tensors_digest(dict(sorted(tensors.items()))):
            raise ValueError("its tensors are not those that were written")
        preprocessing = preprocessing_from(json.loads(metadata["preprocessing"]))
        assert sim.template is not None  # every assembled simulation has one
        filled(sim.template, tensors)
        missing = [each for each in sim.setup.layout.specs if each not in tensors]
        if missing:
            raise ValueError(f"it lacks '{shown(missing[0])}'")
        return AddedClient(name, number, round, tensors, preprocessing)
    except (KeyError, ValueError, TypeError, RuntimeError, ModelError) as error:
        raise DamagedError(f"'{path}' is damaged: remove it, and add the client again") from error
