"""Schedules: the learning rate over the rounds."""

from math import cos, pi
from typing import Protocol

from stratafl.core.records import record


class Schedule(Protocol):
    """A factor on the learning rate of round t of T."""

    def __call__(self, t: int, rounds: int) -> float: ...


@record
class Constant:
    """The same rate in every round."""

    def __call__(self, t: int, rounds: int) -> float:
        return 1.0


@record
class Exponential:
    """The rate times `factor` after each round."""

    factor: float = 0.99

    def __call__(self, t: int, rounds: int) -> float:
        return self.factor**t


@record
class Cosine:
    """From the full rate down to `floor` of it along half a cosine."""

    floor: float = 0.0

    def __call__(self, t: int, rounds: int) -> float:
        return self.floor + (1 - self.floor) * (1 + cos(pi * t / rounds)) / 2
