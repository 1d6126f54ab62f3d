"""Means with differential privacy for clients: clipped updates and Gaussian noise; the accountant says what it costs.

Who adds the noise decides against whom it protects. In the central model the server does (DP-FedAvg, McMahan et al.,
2018): it sees every update, and must not act on uploads in any other way than through this mean. In the local model
each client adds all of it before it sends. In the distributed model (Kairouz, Liu, Steinke, 2021) each client adds a
part, as whole numbers in secure sums, so that the server sees nothing but a sum with enough noise.
"""

import logging
from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Annotated, Literal

import torch
from torch import Tensor

from stratafl.core.annotations import Range
from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layout import Layout, Rows, per_row, row_dot
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import record
from stratafl.core.reduce import add_rows
from stratafl.core.round import Round, Setup
from stratafl.core.secure_sums import most_colluding, opening_threshold
from stratafl.core.state import State, rows_of
from stratafl.core.steps import MergeSums, Names, Send, field_names
from stratafl.core.task import Task
from stratafl.errors import RecordError, counted
from stratafl.policies.accountant import Accounted, discrete_epsilon_of, epsilon_of
from stratafl.policies.clip import clipped, scale
from stratafl.policies.keyed_noise import DEVIATION_BITS, client_key, discrete_gaussian, gaussian, noise_key
from stratafl.policies.merge import Mean, Positive, kept_blocks

log = logging.getLogger("stratafl")
Noise = Annotated[float, Range(least=0)]
Delta = Annotated[float, Range(above=0, below=1)]
Count = Annotated[int, Range(least=0)]
DistantModel = Literal["local", "distributed"]  # in which the server is not trusted
NO_NOISE = "noise=0 promises no privacy: choose 1 or more"
ROUNDED = 1 - 1e-6  # of a norm, so that an update in float32 is not longer


@record
class PrivateMean(Accounted, Mean):
    """θ + (Σ min(1, clip/‖Δ_k‖)·Δ_k + N(0, (noise·clip)²)) / D, where Δ_k = θ_k − θ and D is the size of a cohort.

    D is fixed, because the number of uploads that arrive would tell which clients were left out. A client that is left
    out, and columns that a client did not send, count as an update of 0. Every trainable column of these layers gets
    noise in every round, even if no client sent it.
    """

    weights: str = "uniform"
    clip: Positive = 1.0
    noise: Noise = 1.0
    delta: Delta = 1e-5
    layers: Select = select("all")
    budget: Positive | None = None
    by_layer: bool = False
    noisy = True
    promise = "against everyone who sees the server's models, but no privacy against the server"

    def check(self, setup: Setup) -> None:
        if self.weights != "uniform" or self.unsent != "held":
            raise RecordError("a private mean needs weights='uniform' and unsent='held'")
        self.check_guarantee(setup)
        if not self.noise:
            log.warning(NO_NOISE)

    def footprint(self, setup: Setup) -> Footprint:
        """The mean's memory, and the noise of one tensor with its random bytes."""
        usual = super().footprint(setup)
        return Footprint(usual.client, sums=usual.sums, merge=usual.merge + 6 * setup.block_bytes(torch.float64))

    def uploaded(self, rnd: Round, server: State, up: Parcel) -> tuple[Mapping[str, Tensor], Rows | None]:
        if not self.by_layer:
            return super().uploaded(rnd, server, up)
        rows, sent = kept_blocks(up[self.field], server[self.field], rnd.layout)
        parts, old = layer_parts(rows, rnd.layout, self.layers), rows_of(server, self.field)
        norm = self.clip / sqrt(len(parts))
        short = [clipped({n: rows[n] for n in part}, sent, old, rnd.layout, norm) for part in parts]
        return {name: block for part in short for name, block in part.items()}, sent

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        self.check_budget(rnd)
        old = rows_of(server, self.field)
        top, bottom = (rows_of(sums, name) if sums else {} for name in ("top", "bottom"))
        size, new = rnd.setup.cohort, dict[str, Tensor](old)
        for name in old:
            if name not in top and name not in rnd.layout.trainable(self.layers):
                continue
            absent = size - bottom[name] if name in bottom else size  # who sent nothing has an update of 0
            total = top[name] if name in top else torch.zeros_like(old[name], dtype=torch.float64)
            new[name] = self._noised(rnd, name, (total + absent * old[name].double()) / size).to(old[name].dtype)
        return {self.field: new}

    def _noised(self, rnd: Round, name: str, mean: Tensor) -> Tensor:
        if not self.noise:
            return mean
        drawn = gaussian(noise_key(rnd.setup), rnd.t, f"{self.field}/{name}", mean.numel())
        return mean + (self.noise * self.clip / rnd.setup.cohort) * drawn.reshape(mean.shape).to(mean.device)

    def mean(self, server: State, sums: State) -> Rows:
        raise NotImplementedError("a private mean is never taken without its noise")

    def epsilon(self, setup: Setup, rounds: int) -> float:
        return epsilon_of(self.noise, rounds, self.delta)


def layer_parts(names: Iterable[str], layout: Layout, layers: Select) -> list[list[str]]:
    """The tensors among these of each layer, which is shortened to 1/√L of the whole norm.

    With noise z·S in every column, the layer has z_l = z·√L for its own norm: as 1/z² = Σ 1/z_l², that is what one norm
    for all of them costs.
    """
    tensors, parts = set(names), dict[int, list[str]]()
    for name in layout.trainable(layers):
        if name in tensors:
            parts.setdefault(layout.specs[name].layer, []).append(name)
    return list(parts.values())


# The server is not trusted: a client's own noise


@record
class SendPrivateUpdate(Send):
    """Δ_k = θ_k − what was received, shortened to the norm `clip`; in the local model with N(0, (noise·clip)²).

    An update that is not finite is sent as 0: that a client is missing would tell that its training failed.
    """

    step: Send
    field: str = "theta"
    clip: Positive = 1.0
    noise: Noise = 1.0
    model: DistantModel = "local"
    layers: Select = select("all")
    by_layer: bool = False
    writes = field_names("up.{field}.update")
    noisy_client = True

    @property
    def reads(self) -> Names:
        return (*self.step.reads, f"{self.field}.received")

    def check(self, setup: Setup) -> None:
        self.step.check(setup)
        if not self.noise:
            log.warning(NO_NOISE)

    def footprint(self, setup: Setup) -> Footprint:
        """An update in float64, shortened, and its noise one tensor at a time."""
        return Footprint(client=2 * setup.row_bytes(dtype=torch.float64) + 6 * setup.block_bytes(torch.float64))

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        trained, base = self.step(rnd, client, task)[self.field].rows, rows_of(client, f"{self.field}.received")
        missing = next((name for name in trained if name not in base), None)
        if missing is not None:
            raise RecordError(f"a private update is a change of what was received, but '{missing}' was not")
        updates = {name: x.double() - base[name] for name, x in trained.items()}
        parts = layer_parts(updates, rnd.layout, self.layers) if self.by_layer else [list(updates)]
        norm = self.clip * ROUNDED / sqrt(len(parts))
        short = {name: x for part in parts for name, x in _shortened({n: updates[n] for n in part}, norm).items()}
        noised = self._noised(rnd, short, task.ids.tolist()) if self.model == "local" and self.noise else short
        return {f"{self.field}.update": Field({name: x.to(trained[name].dtype) for name, x in noised.items()})}

    def _noised(self, rnd: Round, updates: Rows, ids: list[int]) -> Rows:
        keys = [
            client_key(rnd.setup, client, *(x[place] for x in updates.values())) for place, client in enumerate(ids)
        ]
        return {name: x + self.noise * self.clip * _drawn(keys, rnd.t, name, x) for name, x in updates.items()}


def _shortened(updates: Rows, norm: float) -> Rows:
    """Updates of at most this norm; those that are not finite are 0."""
    norms = torch.stack([row_dot(x, x) for x in updates.values()]).sum(0).sqrt()
    factors = scale(norms, norm)
    return {n: torch.where(per_row(norms.isfinite(), x), x * per_row(factors, x), 0) for n, x in updates.items()}


def _drawn(keys: list[bytes], t: int, name: str, like: Tensor) -> Tensor:
    """For each of these keys numbers of N(0, 1) in the shape of a client's block."""
    drawn = [gaussian(key, t, name, like[0].numel()).reshape(like.shape[1:]) for key in keys]
    return torch.stack(drawn).to(like.device)


@record
class SumOfPrivateUpdates(Accounted, MergeSums):
    """θ + Σ Δ_k / D, where clients made their Δ_k private and D is the size of a cohort.

    In the local model a guarantee is for any two data sets of a client, which are 2·clip apart. In the distributed
    model a client adds N_Z(0, (noise·clip)²/h) in units of which this deviation is 2^24: then the noise of `h` clients
    is enough, which is the least number of a sum that is opened, without the `colluding` ones that tell the server
    their own noise. One is never counted: a client that sees the model knows its own.
    """

    field: str = "theta"
    clip: Positive = 1.0
    noise: Noise = 1.0
    delta: Delta = 1e-5
    layers: Select = select("all")
    budget: Positive | None = None
    model: DistantModel = "local"
    colluding: Count = 0
    reads = field_names("up.{field}.update", "{field}")
    writes = field_names("{field}")

    @property
    def secure(self) -> bool:  # type: ignore[override]
        return self.model == "distributed"

    @property
    def promise(self) -> str:  # type: ignore[override]
        if self.model == "local":
            return "against everyone, the server included, whatever data the client has"
        others = f"even with the noise of {counted(self._known, 'client')}"
        return f"against everyone who sees the server's models, and against the server, {others}"

    def check(self, setup: Setup) -> None:
        if self.secure and self.colluding > (most := most_colluding(setup.cohort)):
            raise RecordError(
                f"dp_colluding={self.colluding} clients of {setup.cohort} could help the server to open two sums of a "
                f"round, which have the same noise: choose {most} or less"
            )
        self.check_guarantee(setup)

    def footprint(self, setup: Setup) -> Footprint:
        return Footprint(sums=setup.row_bytes(dtype=torch.float64))

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        top = rows_of(sums, "top") if sums else {}
        return {"top": add_rows(top, torch.ones_like(ids), up[f"{self.field}.update"].rows, None)}

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        self.check_budget(rnd)
        old, size = rows_of(server, self.field), rnd.setup.cohort
        moved = {n: (old[n].double() + x / size).to(old[n].dtype) for n, x in rows_of(sums, "top").items()}
        return {self.field: {**old, **moved}}

    def epsilon(self, setup: Setup, rounds: int) -> float:
        if not self.secure:
            return epsilon_of(self.noise / 2, rounds, self.delta)
        columns = sum(setup.layout.specs[name].size for name in setup.layout.trainable(self.layers))
        return discrete_epsilon_of(self.noise, rounds, self.delta, helpers=self._helpers(setup), columns=columns)

    def _helpers(self, setup: Setup) -> int:
        """h: how many clients add noise to every sum that is opened which its observers do not know."""
        return opening_threshold(setup.cohort) - self._known

    @property
    def _known(self) -> int:
        """How many clients' noise an observer may know: that of those who help the server, or of itself."""
        return max(1, self.colluding)

    # Secure sums

    def secure_unit(self, rnd: Round) -> float | None:
        if not self.noise:
            return None
        return self.noise * self.clip / sqrt(self._helpers(rnd.setup)) * 2.0**-DEVIATION_BITS

    def secure_noise(self, rnd: Round, client: int, numbers: Tensor) -> Tensor:
        return discrete_gaussian(client_key(rnd.setup, client, numbers), rnd.t, self.field, numbers.numel())
