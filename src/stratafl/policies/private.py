"""A mean with differential privacy for clients (DP-FedAvg, McMahan et al., 2018): clipped updates and Gaussian noise.

Anyone who sees the server's models learns little about any one client; the accountant says how little. The server
itself sees every update, and must not act on uploads in any other way than through this mean.
"""

import logging
from hashlib import blake2b, shake_256
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from stratafl.core.annotations import Range
from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layout import Rows
from stratafl.core.records import record
from stratafl.core.reduce import pieces
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of
from stratafl.errors import RecordError
from stratafl.policies.accountant import DELTA, EPSILON, epsilon_of, most_rounds
from stratafl.policies.merge import Mean, Positive

log = logging.getLogger("stratafl")
Noise = Annotated[float, Range(least=0)]
Delta = Annotated[float, Range(above=0, below=1)]
NOISE_PIECE = 2**18  # numbers of one stream; another size is other noise


@record
class PrivateMean(Mean):
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
    noisy = True

    def check(self, setup: Setup) -> None:
        if self.weights != "uniform" or self.unsent != "held":
            raise RecordError("a private mean needs weights='uniform' and unsent='held'")
        plain = [name for name in setup.layout.travelling() if not setup.layout.specs[name].trainable]
        if plain:
            raise RecordError(
                f"BatchNorm statistics such as '{plain[0]}' would be shared without noise: set run.buffers to 'local', "
                "or choose a model without BatchNorm"
            )
        if self.delta >= 1 / setup.clients:
            raise RecordError(
                f"delta={self.delta:g} would allow publishing one of {setup.clients} clients unprotected: choose "
                f"a delta well below {1 / setup.clients:g}"
            )
        if not self.noise:
            log.warning("noise=0 promises no privacy: choose 1 or more")

    def footprint(self, setup: Setup) -> Footprint:
        """The mean's memory, and the noise of one tensor with its random bytes."""
        usual = super().footprint(setup)
        return Footprint(usual.client, sums=usual.sums, merge=usual.merge + 6 * setup.block_bytes(torch.float64))

    def finish(self, rnd: Round, server: State, sums: State) -> State:
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

    def spent(self, rnd: Round) -> dict[str, float]:
        if not self.noise:
            return {}
        rounds = most_rounds(rnd.setup, rnd.t)
        return {EPSILON: epsilon_of(self.noise, rounds, self.delta), DELTA: self.delta}


# Noise follows from a key, a round and the name of a tensor: drawn again, it has the same bits. The hash of
# `core/keys.py` would do for a simulation. But anyone who knows all uploads but one could check a guess of that one
# against it, because 64 bits of it give away the rest. SHAKE-256 is a secure stream if its key is secret. It runs on
# the CPU, so that all ranks and devices draw the same numbers.


def noise_key(setup: Setup) -> bytes:
    """The server's secret; in a simulation it follows from the seed, which is public."""
    if setup.secret is not None:
        return setup.secret
    return blake2b(str(setup.seeds.batches).encode(), digest_size=32, person=b"stratafl noise").digest()


def gaussian(key: bytes, t: int, name: str, count: int) -> Tensor:
    """`count` independent numbers of N(0, 1) in float64."""
    drawn = np.empty(count)
    for number, some in enumerate(pieces(count, NOISE_PIECE)):
        place = t.to_bytes(8, "big") + number.to_bytes(8, "big") + name.encode()
        drawn[some] = _normal(shake_256(key + place).digest(16 * ((len(drawn[some]) + 1) // 2)), len(drawn[some]))
    return torch.from_numpy(drawn)


def _normal(data: bytes, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Box and Muller: two numbers from two uniform ones of 53 bits, none of which is 0."""
    first, second = ((np.frombuffer(data, "<u8").reshape(2, -1) >> 11) + 0.5) * 2.0**-53
    length, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
    both = np.concatenate([length * np.cos(angle), length * np.sin(angle)])
    return np.asarray(both[:count], dtype=np.float64)
