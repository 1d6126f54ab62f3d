"""Check an algorithm: every law of the contract, then its own special cases, in all settings."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from stratafl.algorithms.special_cases import SpecialCase
from stratafl.core.algorithm import Algorithm
from stratafl.core.layout import Buffers
from stratafl.core.state import flatten
from stratafl.errors import ContractError, first_line
from stratafl.evaluation.evaluate import deployed, received_models
from stratafl.execute import Matrix
from stratafl.testing.case import SIZES, Case, difference, within_reach
from stratafl.testing.laws import LAWS

Setting = tuple[Buffers, float]  # and the share of clients that take part in a round
SETTINGS: tuple[Setting, ...] = (("follow", 1.0), ("follow", 0.5), ("local", 1.0), ("local", 0.5))


def check_special_case(
    law: SpecialCase, rounds: int = 2, participation: float = 1.0, buffers: Buffers = "follow"
) -> None:
    """Raise unless, after some rounds, both algorithms give every client the same model."""
    case = Case(law.special, buffers, participation, rounds)
    ids = torch.arange(len(SIZES[: law.clients]))
    models = []
    for algorithm in (law.special, law.simple):
        sim = case.simulation(algorithm, batchnorm=law.batchnorm, sizes=SIZES[: law.clients])
        progress, layout = sim.run(Matrix()), sim.setup.layout
        chosen = {name for layer in layout.resolve(law.on) for name in layout.layer(layer).tensors}
        stages = {"received": received_models(sim, progress, ids), "deployed": deployed(sim, progress, ids)}
        models.append({path: x for path, x in flatten(stages).items() if path.partition("/")[2] in chosen})
    gap = difference(*models)
    if not gap <= 1e-12:
        raise ContractError("degenerate", f"{law.says}, but models differ by {gap:.1e} ({case})")


@dataclass(frozen=True)
class LawResult:
    """A law, in a sentence, and how it was broken, if it was."""

    name: str
    says: str
    error: ContractError | None


def law_results(
    algorithm: Algorithm, laws: Iterable[SpecialCase] = (), *, rounds: int = 2, settings: Iterable[Setting] = SETTINGS
) -> Iterator[LawResult]:
    """The contract law by law, then the algorithm's own degenerate laws, each in all settings."""
    algorithm, rounds = within_reach(algorithm, rounds)
    cases = [Case(algorithm, buffers, participation, rounds) for buffers, participation in settings]
    for law in LAWS:
        name = _law_name(law)
        yield LawResult(name, (law.__doc__ or name).splitlines()[0], _broken(law, cases))
    for special_case in laws:
        fitting = [case for case in cases if case.participation == 1.0 or not special_case.full_participation_only]
        yield LawResult("degenerate", f"{special_case.says}.", _broken(partial(_check_case, special_case), fitting))


def check_algorithm(
    algorithm: Algorithm, laws: Iterable[SpecialCase] = (), *, rounds: int = 2, settings: Iterable[Setting] = SETTINGS
) -> None:
    """Raise a `ContractError` if the algorithm breaks the contract, or one of its own degenerate laws."""
    for result in law_results(algorithm, laws, rounds=rounds, settings=settings):
        if result.error is not None:
            raise result.error


def _broken(law: Callable[[Case], None], cases: Iterable[Case]) -> ContractError | None:
    try:
        for case in cases:
            law(case)
    except ContractError as error:
        return error
    except Exception as error:  # a user's algorithm may fail in any way
        return ContractError(_law_name(law), first_line(error, typed=True))
    return None


def _law_name(law: Callable[[Case], None]) -> str:
    return getattr(law, "__name__", "degenerate").removesuffix("_law").replace("_", " ")


def _check_case(law: SpecialCase, case: Case) -> None:
    check_special_case(law, case.rounds, case.participation, case.buffers)
