"""The steps of pFedHN: the server generates models and learns from the clients' changes to them (Algorithm 1)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stratafl.algorithms.model_generator import BIASES, WEIGHTS, GeneratorField, ModelGenerator
from stratafl.core.fields import FieldSpec
from stratafl.core.footprint import Footprint
from stratafl.core.layout import flat_rows
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import Computed, State, combine, rows_of, tensor_of, tensors
from stratafl.core.steps import MergeRows, Names, Serve


@record
class Generate(Serve):
    """θ_i = h(v_i; ψ); for `new` clients from the mean of all embeddings."""

    net: ModelGenerator
    new: bool = False
    writes = ("down.theta",)

    @property
    def reads(self) -> Names:
        return self.net.names

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        v = tensor_of(server, "v")
        embeddings = v.mean(0).expand(len(ids), -1) if self.new else v[ids.to(v.device)]
        inner = {name: tensor_of(server, name) for name in self.net.inner}
        return {"theta": Field(self.net.outputs(server, self.net.features(inner, embeddings)))}


@record
class LearnGenerator(MergeRows):
    """φ ← φ − lr·(1/|S|)·Σ_i (∂θ_i/∂φ)ᵀ·Δ_i with Δ_i = θ_i − θ̃_i, where φ is ψ and all v.

    The gradient is that of the whole cohort, so that the order of clients does not matter. It is clipped, then SGD with
    momentum and weight decay takes one step, which moves the embeddings of clients that were not there as well.
    """

    net: ModelGenerator
    lr: float = 0.01
    momentum: float = 0.9
    decay: float = 1e-3
    clip: float = 50.0

    @property
    def keeps(self) -> Mapping[str, FieldSpec]:
        return {f"{n}.velocity": GeneratorField(self.net, n, "zero") for n in self.net.names} if self.momentum else {}

    @property
    def reads(self) -> Names:
        return ("up.theta", *self.net.names, *self.keeps)

    @property
    def writes(self) -> Names:
        return (*self.net.names, *self.keeps)

    def footprint(self, setup: Setup) -> Footprint:
        """Δ_i of the cohort, the step of everything, and of the largest output layer what it is computed from."""
        step = 0 if self.momentum else self.net.hidden * setup.row_bytes()
        return Footprint(absorbed=setup.row_bytes(), merge=4 * self.net.hidden * setup.block_bytes() + step)

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        gradient = self._gradient(rnd, server, up["theta"].rows, ids)
        norms = torch.stack([torch.linalg.vector_norm(g) for g in tensors(gradient)])
        factor: Tensor = (self.clip / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1)

        def step(parts: Sequence[Tensor]) -> Tensor:
            value, g, *velocity = parts
            decayed = factor * g + self.decay * value
            return decayed + self.momentum * velocity[0] if velocity else decayed

        new: State = {}
        for name, g in gradient.items():
            velocity = f"{name}.velocity"
            moved = combine(step, [server[name], g, *([server[velocity]] if self.momentum else [])])
            new |= {velocity: moved} if self.momentum else {}
            new[name] = combine(lambda x: x[0] - self.lr * x[1], [server[name], moved])
        return new

    def _gradient(self, rnd: Round, server: State, trained: Mapping[str, Tensor], ids: Tensor) -> dict[str, Any]:
        """That of every field, by the chain rule; output layers' are as large as they are: one tensor at a time."""
        v, weights = tensor_of(server, "v"), rows_of(server, WEIGHTS)
        ids = ids.to(v.device)
        learned = {"v": v[ids], **{name: tensor_of(server, name) for name in self.net.inner}}
        learned = {name: x.detach().requires_grad_() for name, x in learned.items()}
        with torch.enable_grad():
            followed = self.net.features(learned, learned["v"])
        x = followed.detach()  # [C, hidden]
        theta, names = self.net.outputs(server, x), rnd.layout.trainable(self.net.layers)
        delta = {n: (theta[n] - trained[n]) / len(ids) for n in names}  # Δ_i/|S|, in an order that files do not change
        # (∂θ_i/∂x_i)ᵀ·Δ_i through the output layers; autograd goes on from there
        pull = sum((flat_rows(d) @ weights[n].reshape(-1, x.shape[1]) for n, d in delta.items()), torch.zeros_like(x))
        gradients = dict(zip(learned, torch.autograd.grad(followed, list(learned.values()), pull), strict=True))
        return {
            **{name: g.contiguous() for name, g in gradients.items()},  # autograd gives some transposed, files none
            "v": torch.zeros_like(v).index_copy(0, ids, gradients["v"]),
            WEIGHTS: Computed(delta, lambda n: torch.tensordot(delta[n], x, ([0], [0]))),
            BIASES: Computed(delta, lambda n: delta[n].sum(0)),
        }
