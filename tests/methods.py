"""Methods as parameters of tests: those of the five papers and one of each new mechanism at once, the others when slow.

The contract checks every method at once; where a test repeats part of it in another way, these are enough for `make
test`.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from stratafl.algorithms import ALGORITHMS

PAPERS = {"fedalp", "fedlag", "fedper", "flayer", "heurpfedla", "pfedla"}
MECHANISMS = {"fedavg", "fedbn", "fedrep", "local", "apple", "ditto", "fedala", "fedcp", "fedrod", "pfedme", "scaffold"}
SLOW = pytest.mark.slow


def every_method(names: Iterable[str] = ALGORITHMS) -> list[Any]:
    """These names; a method that is neither of a paper nor the first of its mechanism is a slow test."""
    others = set(ALGORITHMS) - PAPERS - MECHANISMS
    return [pytest.param(name, marks=SLOW) if name in others else name for name in sorted(names)]


PARTICIPATION = [pytest.param(1.0, marks=SLOW), 0.5]  # half of the clients show more


def methods_and_participation() -> list[Any]:
    """Every method with half of the clients, which shows more; those of papers and mechanisms, slowly, with all too."""
    some = sorted(PAPERS | MECHANISMS)
    halves = [pytest.param(name, 0.5, marks=() if name in some else SLOW) for name in sorted(ALGORITHMS)]
    return [*halves, *(pytest.param(name, 1.0, marks=SLOW) for name in some)]
