"""The contract: what every algorithm must satisfy, ours and anybody's.

    from stratafl.testing import check_algorithm
    check_algorithm(my_algorithm())

It runs the algorithm on a small federation (convolution, BatchNorm and dropout; ragged clients, one of them smaller
than a batch), under both rules for buffers, with full and half participation, and raises a `ContractError` that names
the law that was broken.
"""

from collections.abc import Iterable

import torch

from stratafl.algorithm import Algorithm
from stratafl.algorithms.laws import Law
from stratafl.errors import ContractError
from stratafl.evaluate import received
from stratafl.execute import Matrix
from stratafl.layout import Buffers
from stratafl.testing.case import (
    CLASSES,
    SHAPE,
    SIZES,
    Case,
    difference,
    everything,
    outcome,
    tiny_federation,
    tiny_model,
)
from stratafl.testing.laws import LAWS

SETTINGS: tuple[tuple[Buffers, float], ...] = (("follow", 1.0), ("follow", 0.5), ("local", 1.0), ("local", 0.5))


def check_law(law: Law, rounds: int = 2, participation: float = 1.0, buffers: Buffers = "follow") -> None:
    """A degenerate law: after some rounds, both algorithms give every client the same model."""
    case = Case(law.special, buffers, participation, rounds)
    ids = torch.arange(len(SIZES[: law.clients]))
    models = []
    for algorithm in (law.special, law.simple):
        sim = case.simulation(algorithm, batchnorm=law.batchnorm, sizes=SIZES[: law.clients])
        models.append(received(sim, sim.run(Matrix()), ids))
    gap = difference(*models)
    if not gap <= 1e-12:
        raise ContractError("degenerate", f"{law.says}, but models differ by {gap:.1e} ({case})")


def check_algorithm(
    algorithm: Algorithm,
    laws: Iterable[Law] = (),
    *,
    rounds: int = 2,
    settings: Iterable[tuple[Buffers, float]] = SETTINGS,
) -> None:
    """Raise a `ContractError` if the algorithm breaks the contract, or one of its own degenerate laws."""
    laws = tuple(laws)
    for buffers, participation in settings:
        case = Case(algorithm, buffers, participation, rounds)
        for law in LAWS:
            law(case)
        for own in laws:
            if participation == 1.0 or not own.full_participation_only:
                check_law(own, rounds, participation, buffers)


__all__ = [
    "CLASSES",
    "LAWS",
    "SETTINGS",
    "SHAPE",
    "SIZES",
    "Case",
    "Law",
    "check_algorithm",
    "check_law",
    "difference",
    "everything",
    "outcome",
    "tiny_federation",
    "tiny_model",
]
