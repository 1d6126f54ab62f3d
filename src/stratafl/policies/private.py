"""A mean with differential privacy for clients (DP-FedAvg, McMahan et al., 2018): clipped updates and Gaussian noise.

Whoever sees the server's models learns little of any one client, as the accountant says how little. The server itself
sees every update as it is. What it must not do is act on uploads in another way than through this mean.
"""

import logging
from typing import Annotated

import torch

from stratafl.core.annotations import Range
from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layout import Rows
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of
from stratafl.errors import RecordError
from stratafl.policies.accountant import DELTA, EPSILON, epsilon_of, most_rounds
from stratafl.policies.merge import Mean, Positive
from stratafl.policies.noise import gaussian, noise_key

log = logging.getLogger("stratafl")
Noise = Annotated[float, Range(least=0)]
Delta = Annotated[float, Range(above=0, below=1)]


@record
class PrivateMean(Mean):
    """θ + (Σ min(1, clip/‖Δ_k‖)·Δ_k + N(0, (noise·clip)²)) / D, where Δ_k = θ_k − θ and D is the size of a cohort.

    D is fixed, since the number of uploads that arrive would tell who was left out. Who is left out, and columns that
    a client did not send, count as an update of 0. Every trainable column of these layers gets noise, whoever sent it,
    also in a round of which every upload was left out.
    """

    weights: str = "uniform"
    clip: Positive = 1.0
    noise: Noise = 1.0
    delta: Delta = 1e-5
    layers: Select = select("all")

    @property
    def noisy(self) -> bool:
        return True

    def check(self, setup: Setup) -> None:
        if self.weights != "uniform" or self.unsent != "held":
            raise RecordError("a private mean has uniform weights and unsent='held'")
        plain = [name for name in setup.layout.travelling() if not setup.layout.specs[name].trainable]
        if plain:
            raise RecordError(
                f"BatchNorm statistics such as '{plain[0]}' would be shared without noise: set run.buffers to 'local', "
                "or choose a model without BatchNorm"
            )
        if self.delta >= 1 / setup.clients:
            raise RecordError(
                f"delta={self.delta:g} would allow to publish one of {setup.clients} clients as it is: choose a delta "
                f"well below {1 / setup.clients:g}"
            )
        if not self.noise:
            log.warning("noise=0 promises no privacy: choose 1 or more")

    def footprint(self, setup: Setup) -> Footprint:
        """Noise of one tensor and what it is made of, beside the mean's."""
        usual = super().footprint(setup)
        return Footprint(usual.client, sums=usual.sums, merge=usual.merge + 6 * setup.block_bytes(torch.float64))

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        old = rows_of(server, self.field)
        top, bottom = (rows_of(sums, name) if sums else {} for name in ("top", "bottom"))
        size, new = rnd.setup.cohort, dict[str, torch.Tensor](old)
        for name in old:
            if name not in top and name not in rnd.layout.trainable(self.layers):
                continue
            absent = size - bottom[name] if name in bottom else size  # who sent nothing has an update of 0
            total = top[name] if name in top else torch.zeros_like(old[name], dtype=torch.float64)
            new[name] = self._noised(rnd, name, (total + absent * old[name].double()) / size).to(old[name].dtype)
        return {self.field: new}

    def _noised(self, rnd: Round, name: str, mean: torch.Tensor) -> torch.Tensor:
        if not self.noise:
            return mean
        drawn = gaussian(noise_key(rnd.setup), rnd.t, f"{self.field}/{name}", mean.numel())
        return mean + (self.noise * self.clip / rnd.setup.cohort) * drawn.reshape(mean.shape).to(mean.device)

    def mean(self, server: State, sums: State) -> Rows:
        raise NotImplementedError("a private mean is never taken without its noise")

    def spent(self, rnd: Round) -> dict[str, float]:
        if not self.noise:
            return {}
        rounds = most_rounds(rnd.setup, rnd.t)
        return {EPSILON: epsilon_of(self.noise, rounds, self.delta), DELTA: self.delta}
