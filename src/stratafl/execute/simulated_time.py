"""Simulated time: what a round would take if clients had a network and were not equally fast.

It is written down and nothing else: no result depends on it. A figure of accuracy over time adds the rounds up.
"""

from typing import Annotated

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.annotations import Range
from stratafl.core.records import record

BANDWIDTH, STEP_SECONDS = 20.0, 0.01  # Mbit per second each way, and seconds of a local step, of a typical client
_UNIFORMS = 12  # whose sum, less six, is nearly normal
_PURPOSE = "slow"
_BITS_PER_MBIT = 1_000_000


@record
class SimulatedTime:
    """Client k takes f_k · (8 · bytes / bandwidth + steps · step_seconds), with f_k = exp(slow · z_k) in every round.

    z_k is nearly normal and keyed by the client. A round ends with its slowest client.
    """

    slow: Annotated[float, Range(least=0)]
    bandwidth: Annotated[float, Range(above=0)] = BANDWIDTH
    step_seconds: Annotated[float, Range(least=0)] = STEP_SECONDS

    def factors(self, seed: int, ids: Tensor) -> Tensor:
        """f_k of these clients."""
        draws = keys.uniform(keys.keys(seed, 0, ids, _PURPOSE)[:, None], torch.arange(_UNIFORMS), torch.float64)
        return (self.slow * (draws.sum(1) - _UNIFORMS / 2)).exp()

    def seconds(self, seed: int, ids: Tensor, sent: Tensor, steps: Tensor) -> float:
        """Of a round in which these clients exchanged and trained so much: bytes both ways, and local steps."""
        taken = 8 * sent.double() / (self.bandwidth * _BITS_PER_MBIT) + steps.double() * self.step_seconds
        return float((self.factors(seed, ids) * taken).max())
