"""The contract: what every algorithm must satisfy, ours and anybody's.

    from stratafl.testing import check_algorithm
    check_algorithm(my_algorithm())

It runs the algorithm on a small federation (convolution, BatchNorm and dropout; ragged clients, one of them smaller
than a batch), under both rules for buffers, with full and half participation, and raises a `ContractError` that names
the law that was broken. Phases are shortened so that every one of them is reached.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from stratafl.algorithms.laws import Law
from stratafl.core.algorithm import Algorithm
from stratafl.core.layout import Buffers
from stratafl.errors import ContractError, first_line
from stratafl.evaluation.evaluate import received
from stratafl.execute import Matrix
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
    within_reach,
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


@dataclass(frozen=True)
class Verdict:
    """A law, in a sentence, and how it was broken, if it was."""

    name: str
    says: str
    error: ContractError | None


def verdicts(
    algorithm: Algorithm,
    laws: Iterable[Law] = (),
    *,
    rounds: int = 2,
    settings: Iterable[tuple[Buffers, float]] = SETTINGS,
) -> Iterator[Verdict]:
    """The contract law by law, then the algorithm's own degenerate laws, each in all settings."""
    algorithm, rounds = within_reach(algorithm, rounds)
    cases = [Case(algorithm, buffers, participation, rounds) for buffers, participation in settings]
    for law in LAWS:
        name = law.__name__.replace("_", " ")
        yield Verdict(name, (law.__doc__ or name).splitlines()[0], _broken(law, cases))
    for own in laws:
        fitting = [case for case in cases if case.participation == 1.0 or not own.full_participation_only]
        yield Verdict("degenerate", f"{own.says}.", _broken(partial(_check_case, own), fitting))


def check_algorithm(
    algorithm: Algorithm,
    laws: Iterable[Law] = (),
    *,
    rounds: int = 2,
    settings: Iterable[tuple[Buffers, float]] = SETTINGS,
) -> None:
    """Raise a `ContractError` if the algorithm breaks the contract, or one of its own degenerate laws."""
    for verdict in verdicts(algorithm, laws, rounds=rounds, settings=settings):
        if verdict.error is not None:
            raise verdict.error


def _broken(law: Callable[[Case], None], cases: Iterable[Case]) -> ContractError | None:
    try:
        for case in cases:
            law(case)
    except ContractError as error:
        return error
    except Exception as error:  # an algorithm of anybody's may fail in any way
        name = getattr(law, "__name__", "degenerate").replace("_", " ")
        return ContractError(name, first_line(error, typed=True))
    return None


def _check_case(law: Law, case: Case) -> None:
    check_law(law, case.rounds, case.participation, case.buffers)


__all__ = [
    "CLASSES",
    "LAWS",
    "SETTINGS",
    "SHAPE",
    "SIZES",
    "Case",
    "Law",
    "Verdict",
    "check_algorithm",
    "check_law",
    "difference",
    "everything",
    "outcome",
    "tiny_federation",
    "tiny_model",
    "verdicts",
    "within_reach",
]
