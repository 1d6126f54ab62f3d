"""The blueprint of a federation: everything that its members agree on before any data is seen.

A simulation (`build_simulation.py`), a server (`server.py`) and a site (`site.py`) are built from the same blueprint,
so they have the same layers, start from the same weights and draw the same random numbers. Devices, memory limits and
speed are not part of it: each member chooses its own, which changes at most the last bits.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor, nn

from stratafl.core import records
from stratafl.core.algorithm import Algorithm
from stratafl.core.describe import columns, describe, frozen_tensors
from stratafl.core.keys import Seeds
from stratafl.core.layers import Select
from stratafl.core.layout import Buffers, Granularity, Layout, Rows
from stratafl.core.reprs import holder
from stratafl.core.round import Setup
from stratafl.core.state import bytes_of
from stratafl.data.preprocessing import dtype_name
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import DataError, RecordError, counted
from stratafl.execute.drawing import NO_LAYER, PER_CLIENT, ModelDraw, ModelSource
from stratafl.runtime.build import EngineName, head_width

log = logging.getLogger("stratafl")


@holder
class Blueprint:
    """What all members of a federation agree on; `samples` is the format of their samples.

    `model` is a module (its weights are the common start) or a function that makes one (drawn from the seed); `weights`
    is a file with the initial weights; `frozen` layers are not trained; `clients` take part in training, new clients
    are numbered after them; with the engine `auto` a simulation measures which one is faster on its machine, and a site
    never does.
    """

    algorithm: Algorithm
    model: ModelSource
    samples: SampleFormat
    clients: int
    rounds: int
    participation: float = 1.0
    seeds: Seeds = field(default_factory=Seeds)
    granularity: Granularity = "module"
    buffers: Buffers = "follow"
    head: str | None = None
    weights: Path | None = None
    dtype: torch.dtype = torch.float32
    engine: EngineName = "auto"
    frozen: Select = NO_LAYER

    def __post_init__(self) -> None:
        if not 0 < self.participation <= 1:
            raise DataError(f"participation is {self.participation}: choose a share of the clients above 0 and up to 1")
        if not isinstance(self.rounds, int) or self.rounds < 0:
            raise DataError(f"the number of rounds is {self.rounds}: choose a whole number of at least 0")
        if not isinstance(self.algorithm, Algorithm):
            raise RecordError(f"{self.algorithm!r} is not an algorithm: pass a record such as fedavg()")
        if self.clients < 1:
            raise DataError(f"{self.clients} clients were given: a federation needs at least one")

    # The model

    @cached_property
    def draw(self) -> ModelDraw:
        parts = (self.model, self.algorithm, self.samples, self.seeds.weights, self.dtype)
        return ModelDraw(*parts, self.head, self.frozen, self.granularity)

    @property
    def is_drawn(self) -> bool:
        """Whether a function makes the model, whose weights are then drawn."""
        return not isinstance(self.model, nn.Module)

    @cached_property
    def module(self) -> nn.Module:
        """The model that all start from, as the algorithm extends it."""
        return self.draw.common(self.weights)

    @cached_property
    def layout(self) -> Layout:
        return describe(self.module, granularity=self.granularity, buffers=self.buffers, head=self.head)

    @cached_property
    def features(self) -> int:
        """The width of the head's input. Raises if the model does not take such samples."""
        return head_width(self.module, self.layout, self.head, self.samples)

    # What is known before the first round

    def setup(self, device: str | torch.device = "cpu", features: int | None = None) -> Setup:
        """The setup on a device; `features` is the width of the head's input, if a runtime has found it."""
        layout, draw = self.layout, self.draw

        def fresh(ids: Tensor) -> Rows:
            models = [columns(draw(i, PER_CLIENT)) for i in ids.tolist()]
            return {name: torch.stack([model[name] for model in models]).to(device) for name in layout.specs}

        start = {name: tensor.clone().to(device) for name, tensor in columns(self.module).items()}
        width = self.features if features is None else features
        facts = (self.clients, self.rounds, self.seeds, self.samples.classes, width, self.participation)
        return Setup(layout, start, fresh, *facts)

    def check_splits(self) -> None:
        """Refuse an algorithm that asks for the test split. Warn of one that declares what it leaks."""
        if self.algorithm.leaks is not None:
            log.warning("%s: its results cannot be compared with those of other methods", self.algorithm.leaks)
        elif "test" in self.algorithm.requires.splits:
            raise DataError("the algorithm asks for the test split, which no algorithm may read")

    def check_largest(self, largest: int) -> None:
        """Refuse batches of which the largest client does not have one."""
        for batching in self.algorithm.requires.batchings:
            if batching.drop_last and batching.size > largest:
                left = f"the largest client has {counted(largest, 'sample')}"
                raise DataError(f"drop_last with batches of {batching.size} leaves nothing to train on: {left}")

    # Agreement

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """A digest of each part, by which two members find out whether they agree, and on what they do not.

        `weights` are exact: machines whose random numbers differ in the last bit do not agree on them. Nor on `frozen`,
        the tensors that are not trained: no round would carry them to a site that has others.
        """
        layout, seeds = self.layout, self.seeds
        specs = [(spec.name, spec.shape, spec.layer, spec.trainable or spec.own) for spec in layout.specs.values()]
        layers = [(layer.name, layer.kind, layer.tensors) for layer in layout.layers]
        schedule = (self.clients, self.rounds, self.participation, seeds.weights, seeds.batches, self.engine)
        parts = {
            "method": self._method(),
            "model": (specs, layers, layout.buffers, dtype_name(self.dtype), self.features),
            "samples": self.samples.to_table(),
            "rounds": schedule,
        }
        digests = {name: _digest(json.dumps(part, sort_keys=True).encode()) for name, part in parts.items()}
        digests["weights"] = tensors_digest(columns(self.module))
        return {**digests, "frozen": tensors_digest(frozen_tensors(self.module))} if layout.frozen else digests

    def _method(self) -> str:
        try:
            return records.to_toml(self.algorithm)
        except RecordError:  # an algorithm of your own need not be a record
            return f"{type(self.algorithm).__module__}.{type(self.algorithm).__qualname__}"


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def tensors_digest(tensors: Rows) -> str:
    """A digest of the bytes of these tensors, one after the other."""
    total = blake2b(digest_size=16)
    for x in tensors.values():
        total.update(bytes_of(x.cpu()).numpy().data)
    return total.hexdigest()
