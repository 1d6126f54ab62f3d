"""Methods as parameters of tests: one of each kind is fast, every other one is slow, full products are nightly."""

from collections.abc import Iterable
from typing import Any

import pytest

from stratafl.algorithms import ALGORITHMS

KINDS = {
    "one global model": "fedavg",
    "personal layers": "fedper",
    "masks of columns and rates of layers": "flayer",
    "the server mixes a model for each client": "pfedla",
    "phases, and layers that the server chooses": "fedlag",
    "two models for each client": "ditto",
    "control variates beside the model": "scaffold",
    "weights that clients learn": "apple",
    "an extended model": "fedrod",
}
PAPERS = {"fedalp", "fedlag", "fedper", "flayer", "heurpfedla", "pfedla"}
MECHANISMS = {"fedavg", "fedbn", "fedrep", "local", "apple", "ditto", "fedala", "fedcp", "fedrod", "pfedme", "scaffold"}
SLOW, NIGHTLY = pytest.mark.slow, pytest.mark.nightly
PARTICIPATION = [pytest.param(1.0, marks=NIGHTLY), 0.5]  # half of the clients show more


def every_method(names: Iterable[str] = ALGORITHMS) -> list[Any]:
    """These names; methods that are not the one of their kind are slow tests."""
    return [name if name in KINDS.values() else pytest.param(name, marks=SLOW) for name in sorted(names)]


def methods_and_participation() -> list[Any]:
    """One method of each kind with half of the clients, every other one slowly, and with all clients nightly."""
    halves = [pytest.param(name, 0.5, marks=() if name in KINDS.values() else SLOW) for name in sorted(ALGORITHMS)]
    return [*halves, *(pytest.param(name, 1.0, marks=NIGHTLY) for name in sorted(PAPERS | MECHANISMS))]
