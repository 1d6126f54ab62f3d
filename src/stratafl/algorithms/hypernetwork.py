"""The hypernetworks of pFedLA, one per client, computed for many clients at once."""

from itertools import pairwise
from math import prod
from typing import Annotated, Literal

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.annotations import Fixed, Range
from stratafl.core.fields import FieldSpec, Side
from stratafl.core.footprint import Footprint
from stratafl.core.records import record
from stratafl.core.reduce import PIECE
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, tensor_of

Width = Annotated[int, Range(least=1), Fixed("a size of the hypernetwork, as in the paper")]


@record
class Hypernetwork:
    """α_i = HN_i(v_i; ψ_i) (Eq. 4): an embedding, an MLP with ReLU, and for each layer one output per client.

    The paper gives no sizes; these are those of public code.
    """

    embedding: Width = 100
    width: Width = 100
    depth: Width = 3
    unit: Literal["layer", "model"] = "layer"
    normalise: Literal["softmax", "relu"] = "softmax"
    initial: Literal["drawn", "uniform"] = "drawn"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.fields())

    def fields(self) -> dict[str, FieldSpec]:
        """Embedding, hidden layers and outputs of every client."""
        sizes = [self.embedding, *[self.width] * self.depth]
        fields: dict[str, FieldSpec] = {"v": Drawn((self.embedding,), "hyper/v", kind="normal")}
        for d, (inputs, outputs) in enumerate(pairwise(sizes)):
            bound = inputs**-0.5
            fields[f"psi{d}.weight"] = Drawn((outputs, inputs), f"hyper/psi{d}.weight", bound=bound)
            fields[f"psi{d}.bias"] = Drawn((outputs,), f"hyper/psi{d}.bias", bound=bound)
        fields["out.weight"], fields["out.bias"] = self._outputs()
        return fields

    def _outputs(self) -> tuple["Drawn", "Drawn"]:
        """Weight and bias of one linear map per layer, a row per client: equal weights are equal outputs above 0."""
        layers, bound = "layers" if self.unit == "layer" else 1, self.width**-0.5
        weight, bias = ((layers, self.width), "hyper/out.weight"), ((layers,), "hyper/out.bias")
        if self.initial == "uniform":
            return Drawn(*weight, 0.0, True, "constant"), Drawn(*bias, 1.0, True, "constant")
        if self.normalise == "relu":  # as public code has it: a row that is all negative would have no weights
            return Drawn(*weight, 1.0, True, "positive"), Drawn(*bias, 0.0, True, "constant")
        return Drawn(*weight, bound, True), Drawn(*bias, bound, True)

    def client_bytes(self, setup: Setup) -> int:
        """What the hypernetwork of one client takes."""
        element = next(iter(setup.start.values())).element_size()
        fields = [field for field in self.fields().values() if isinstance(field, Drawn)]
        return element * sum(prod(f.sizes(setup)) * (setup.clients if f.pairs else 1) for f in fields)

    def footprint(self, setup: Setup) -> Footprint:
        return Footprint(client=2 * self.client_bytes(setup))

    def weights(self, rnd: Round, server: State, ids: Tensor) -> Tensor:
        """α of these clients: `[C, L, N]`, which sums to 1 over the last axis."""
        return self._alpha(self._of(server, ids), ids).expand(-1, len(rnd.layout.layers), -1)

    def moved(self, server: State, ids: Tensor, toward: Tensor, lr: float) -> State:
        """v_i + lr·Δv_i (Eq. 10) and ψ_i + lr·Δψ_i (Eq. 11), where `toward` `[C, L, N]` is (∂θ̄_i/∂α_i)ᵀ·Δθ_i, or its
        dimensionless form."""
        with torch.enable_grad():
            parameters = {name: x.detach().requires_grad_() for name, x in self._of(server, ids).items()}
            alpha = self._alpha(parameters, ids)
            pull = toward if self.unit == "layer" else toward.sum(1, keepdim=True)
            # (∂α_i/∂v_i)ᵀ·toward = Δv_i for the field v, (∂α_i/∂ψ_i)ᵀ·toward = Δψ_i for all others.
            steps = torch.autograd.grad(alpha, list(parameters.values()), grad_outputs=pull.to(alpha.dtype))
        after = {name: x.detach() + lr * step for (name, x), step in zip(parameters.items(), steps, strict=True)}
        return {name: tensor_of(server, name).index_copy(0, ids.to(x.device), x) for name, x in after.items()}

    def _of(self, server: State, ids: Tensor) -> dict[str, Tensor]:
        return {name: tensor_of(server, name)[ids] for name in self.names}

    def _alpha(self, parameters: dict[str, Tensor], ids: Tensor) -> Tensor:
        x = parameters["v"].unsqueeze(-1)
        for d in range(self.depth):
            x = torch.relu(torch.bmm(parameters[f"psi{d}.weight"], x) + parameters[f"psi{d}.bias"].unsqueeze(-1))
        out = parameters["out.weight"]  # [C, N, L or 1, H]
        z = torch.bmm(out.flatten(1, 2), x).reshape(out.shape[:3]) + parameters["out.bias"]
        return self._normalised(z.transpose(1, 2), ids)

    def _normalised(self, z: Tensor, ids: Tensor) -> Tensor:
        if self.normalise == "softmax":
            return torch.softmax(z, -1)
        raw = torch.relu(z)
        total = raw.sum(-1, keepdim=True)
        alone = torch.nn.functional.one_hot(ids.to(z.device), z.shape[-1]).to(z.dtype)[:, None]
        return torch.where(total > 0, raw / total.clamp(min=torch.finfo(z.dtype).tiny), alone)


@record
class Drawn(FieldSpec):
    """A server field with a row per client, drawn by a key of (seed, client) or of (seed, client, other client)."""

    shape: tuple[int | str, ...]
    purpose: str
    bound: float = 1.0
    pairs: bool = False  # a row per pair of clients
    kind: Literal["uniform", "positive", "normal", "constant"] = "uniform"

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Tensor:
        """`[N, …]`, or `[N, N, …]` for pairs."""
        like, sizes = next(iter(setup.start.values())), self.sizes(setup)
        if like.is_meta:  # only its size is asked for, and shifts of tensors without values import torch's compiler
            return like.new_empty(*[setup.clients] * (1 + self.pairs), *sizes)
        everybody = torch.arange(setup.clients)
        key = keys.keys(setup.seeds.weights, 0, everybody, self.purpose)
        if self.pairs:
            key = keys.fold(key[:, None], everybody)
        index = torch.arange(prod(sizes))
        drawn = torch.empty(*key.shape, len(index), dtype=like.dtype)
        some = max(1, PIECE // max(1, drawn[0].numel()))  # its draws are several numbers of 64 bits each
        for some_keys, out in zip(key.split(some), drawn.split(some), strict=True):
            out.copy_(self._values(some_keys[..., None], index))
        return drawn.reshape(*key.shape, *sizes).to(like.device)

    def sizes(self, setup: Setup) -> list[int]:
        """The shape of one row."""
        return [len(setup.layout.layers) if size == "layers" else int(size) for size in self.shape]

    def _values(self, key: Tensor, index: Tensor) -> Tensor:
        if self.kind == "normal":  # Box and Muller
            radius = torch.sqrt(-2 * torch.log(1 - _share(key, 2 * index)))
            return radius * torch.cos(2 * torch.pi * _share(key, 2 * index + 1))
        if self.kind == "constant":
            return torch.full(torch.broadcast_shapes(key.shape, index.shape), self.bound, dtype=torch.float64)
        share = _share(key, index)
        return self.bound * share if self.kind == "positive" else self.bound * (2 * share - 1)


def _share(key: Tensor, index: Tensor) -> Tensor:
    """Numbers from 0 to below 1."""
    return ((keys.stream(key, index) >> 11) & ((1 << 53) - 1)).double() / (1 << 53)
