"""The hypernetwork of pFedHN: one network for all clients, which generates model tensors from a client's embedding.

It is stored as fields of the server. Each number that it generates takes `hidden` + 1 numbers of its own.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.fields import FieldSpec, Side
from stratafl.core.layers import Select, select
from stratafl.core.layout import Rows
from stratafl.core.records import record
from stratafl.core.reduce import pieces
from stratafl.core.round import Setup
from stratafl.core.state import State, Value, rows_of

WEIGHTS, BIASES = "out.weight", "out.bias"  # of the output layers, by the tensor that they generate


@record
class ModelGenerator:
    """h(v; ψ): Linear, `depth` times ReLU and Linear, and for each tensor of these layers one Linear of its size.

    Without an `embedding`, v has 1 + N/4 numbers. Output biases start as the common initial `model`, so that the scales
    of normalisations start near 1, or are `drawn` like everything else.
    """

    layers: Select = select("all")
    embedding: int | None = None
    hidden: int = 100
    depth: int = 3
    initial: Literal["model", "drawn"] = "model"

    @property
    def inner(self) -> tuple[str, ...]:
        """The tensors of the inner layers."""
        return tuple(f"psi{d}.{part}" for d in range(self.depth + 1) for part in ("weight", "bias"))

    @property
    def names(self) -> tuple[str, ...]:
        return ("v", *self.inner, WEIGHTS, BIASES)

    def fields(self) -> dict[str, FieldSpec]:
        """Every tensor of the hypernetwork, as fields of the server."""
        drawn: dict[str, FieldSpec] = {name: GeneratorField(self, name) for name in self.names}
        return drawn if self.initial == "drawn" else {**drawn, BIASES: GeneratorField(self, BIASES, "model")}

    def features(self, inner: Mapping[str, Tensor], v: Tensor) -> Tensor:
        """What the output layers are given: `[C, hidden]`, for embeddings `[C, e]`."""
        x = _linear(v, inner["psi0.weight"], inner["psi0.bias"])
        for d in range(1, self.depth + 1):
            x = _linear(torch.relu(x), inner[f"psi{d}.weight"], inner[f"psi{d}.bias"])
        return x

    def outputs(self, server: State, x: Tensor) -> Rows:
        """The generated tensors of each client, from its features."""
        biases = rows_of(server, BIASES)
        return {name: _linear(x, weight, biases[name]) for name, weight in rows_of(server, WEIGHTS).items()}

    def width(self, setup: Setup) -> int:
        """How many numbers an embedding has."""
        return 1 + setup.clients // 4 if self.embedding is None else self.embedding


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`[C, …]` from `[C, n]` and `[…, n]`, client by client: products of a batch round differently for another C."""
    flat = weight.reshape(-1, weight.shape[-1])
    out = torch.stack([torch.mv(flat, row) for row in x])
    return out.reshape(len(x), *bias.shape) + bias


@record
class GeneratorField(FieldSpec):
    """A field of the hypernetwork: `drawn`, the common initial `model`, or `zero`.

    An embedding is normal and keyed by (seed, id); linear layers are uniform in ±1/√inputs, as torch draws them.
    """

    net: ModelGenerator
    name: str
    start: Literal["drawn", "model", "zero"] = "drawn"

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Value:
        if self.name not in (WEIGHTS, BIASES):
            return self._values(setup, "", self._shape(setup))
        shapes = {name: setup.layout.specs[name].shape for name in setup.layout.trainable(self.net.layers)}
        if self.start == "model":
            return {name: setup.start[name].clone() for name in shapes}
        last = (self.net.hidden,) if self.name == WEIGHTS else ()
        return {name: self._values(setup, name, (*shape, *last)) for name, shape in shapes.items()}

    def _shape(self, setup: Setup) -> tuple[int, ...]:
        """The shape of the embeddings, or of a tensor of the inner layers."""
        width, hidden = self.net.width(setup), self.net.hidden
        if self.name == "v":
            return (setup.clients, width)
        inputs = width if self.name == "psi0.weight" else hidden
        return (hidden,) if self.name.endswith("bias") else (hidden, inputs)

    def _values(self, setup: Setup, tensor_name: str, shape: tuple[int, ...]) -> Tensor:
        like = next(iter(setup.start.values()))
        values = torch.zeros(shape, dtype=like.dtype, device=like.device)
        if values.is_meta or self.start != "drawn":  # only its size is asked for, or zeros
            return values
        # Each client's embedding has a key of its own; every other tensor has one.
        ids = torch.arange(setup.clients if self.name == "v" else 1)
        key = keys.keys(setup.seeds.weights, 0, ids, f"generator/{self.name}/{tensor_name}")[:, None]
        flat = values.reshape(len(ids), -1)
        for piece in pieces(flat.shape[1]):
            index = torch.arange(piece.start, min(piece.stop, flat.shape[1]))
            flat[:, piece] = self._drawn(key, index, setup).to(like)
        return values

    def _drawn(self, key: Tensor, index: Tensor, setup: Setup) -> Tensor:
        if self.name == "v":  # Box and Muller
            radius, turn = (keys.uniform(key, 2 * index + k, torch.float64) for k in (0, 1))
            return torch.sqrt(-2 * torch.log(radius)) * torch.cos(2 * torch.pi * turn)
        inputs = self.net.width(setup) if self.name.startswith("psi0") else self.net.hidden
        return (2 * keys.uniform(key, index, torch.float32) - 1) / math.sqrt(inputs)
