"""Successive halving: all trials run a few rounds, the better ones continue, and so on until the last round."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf


@dataclass(frozen=True)
class Rung:
    """So many trials run up to so many rounds."""

    trials: int
    rounds: int


def rungs(trials: int, rounds: int, eta: int = 2, every: int = 1) -> list[Rung]:
    """The schedule: of n trials, ⌈n/ηᵏ⌉ go on to rung k, which ends after η times the rounds of the one before.

    At least two trials (if there are two) run all rounds, so that the last decision is one between complete runs. A
    rung ends where rounds are evaluated (`every` so many). With η = 1 every trial runs all rounds.
    """
    steps = 0
    while eta > 1 and eta ** (steps + 1) < trials:
        steps += 1
    schedule: list[Rung] = []
    for k in range(steps + 1):
        end = ceil(rounds / eta ** (steps - k))
        end = min(rounds, ceil(end / every) * every)
        if not schedule or end > schedule[-1].rounds:
            schedule.append(Rung(ceil(trials / eta**k), end))
    return schedule


def promoted(scores: Mapping[int, float | None], keep: int) -> list[int]:
    """The trials that go on, in their order: the best `keep`; of equal ones the first; none that failed (−∞).

    A score of None is that of a trial that no evaluated round has judged yet: if there is any, all trials go on.
    """
    sound = [number for number, score in scores.items() if score != -inf]
    if any(scores[number] is None for number in sound):
        return sorted(sound)
    return sorted(sorted(sound, key=lambda number: (-(scores[number] or 0.0), number))[:keep])
