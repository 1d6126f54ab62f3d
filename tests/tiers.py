"""Parameters of tests of which some are fast and all others slow, or some slow and all others nightly."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_except(fast: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """Each of `every` as a parameter, slow unless it is one of `fast`; a tuple is several parameters."""
    chosen = list(fast)
    rest = [each for each in every if each not in chosen]
    return [*chosen, *(pytest.param(*(x if isinstance(x, tuple) else (x,)), marks=pytest.mark.slow) for x in rest)]


def slow_and_nightly(every: Iterable[Any]) -> list[Any]:
    """Every other one slow, the rest nightly; a tuple is several parameters."""
    tiers = (pytest.mark.slow, pytest.mark.nightly)
    return [
        pytest.param(*(x if isinstance(x, tuple) else (x,)), marks=tiers[place % 2]) for place, x in enumerate(every)
    ]
