"""Schedules: the learning rate over the rounds.

In settings a schedule is a text: `constant`, `exponential:0.99`, `cosine`, `cosine:0.1` (down to a tenth),
`step:30:0.1` (a tenth of it every 30 rounds), each with `warmup:5+` in front where the first rounds lead up to it.
"""

from collections.abc import Callable
from math import cos, pi
from typing import Annotated, Protocol

from stratafl.core.annotations import Range
from stratafl.core.records import record
from stratafl.errors import RecordError, unknown


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

    factor: Annotated[float, Range(above=0, most=1)] = 0.99

    def __call__(self, t: int, rounds: int) -> float:
        return self.factor**t


@record
class Cosine:
    """From the full rate down to `floor` of it along half a cosine."""

    floor: Annotated[float, Range(least=0, most=1)] = 0.0

    def __call__(self, t: int, rounds: float) -> float:
        return self.floor + (1 - self.floor) * (1 + cos(pi * t / rounds)) / 2


@record
class Stepped:
    """The rate times `factor` after every `rounds` rounds."""

    rounds: Annotated[int, Range(least=1)] = 30
    factor: Annotated[float, Range(above=0, most=1)] = 0.1

    def __call__(self, t: int, rounds: int) -> float:
        return self.factor ** (t // self.rounds)


@record
class Warmup:
    """The first rounds lead up to the full rate in equal steps, then another schedule begins."""

    rounds: Annotated[int, Range(least=0)] = 5
    then: Schedule = Constant()

    def __call__(self, t: int, rounds: int) -> float:
        if t < self.rounds:
            return (t + 1) / (self.rounds + 1)
        return self.then(t - self.rounds, max(rounds - self.rounds, 1))


_KINDS: dict[str, Callable[..., Schedule]] = {
    "constant": Constant,
    "exponential": Exponential,
    "cosine": Cosine,
    "step": Stepped,
}


def parse_schedule(text: str) -> Schedule:
    """The schedule that a text such as `warmup:5+cosine` means."""
    first, plus, rest = text.partition("+")
    name, *values = first.strip().split(":")
    if name not in (*_KINDS, "warmup") or (plus and name != "warmup"):
        raise unknown("schedule", text, ["constant", "exponential:0.99", "cosine", "step:30:0.1", "warmup:5+cosine"])
    try:
        numbers = [float(value) for value in values]
        if name == "warmup":
            (rounds,) = values
            return Warmup(int(rounds), parse_schedule(rest) if plus else Constant())
        if name == "step":
            numbers[:1] = [int(value) for value in values[:1]]
        return _KINDS[name](*numbers)
    except (TypeError, ValueError) as error:
        raise RecordError(f"schedule '{text}' cannot be read: write one such as 'step:30:0.1' or 'cosine'") from error


def schedule_text(schedule: Schedule) -> str:
    """The text that `parse_schedule` reads."""
    if isinstance(schedule, Warmup):
        return f"warmup:{schedule.rounds}+{schedule_text(schedule.then)}"
    for name, kind in _KINDS.items():
        if type(schedule) is kind:
            return ":".join([name, *map(str, vars(schedule).values())])
    raise RecordError(f"{type(schedule).__name__} has no text form; choose one of: {', '.join((*_KINDS, 'warmup'))}")
