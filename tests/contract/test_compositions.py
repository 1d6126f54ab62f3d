"""FLAYER's parts and LAG on every method of the papers' tables: the contract, and what they are at the ends."""

import pytest
import torch

from stratafl.algorithms import algorithm
from stratafl.algorithms.composition import PARTS, parse_composition
from stratafl.algorithms.special_cases import special_cases_of
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix
from stratafl.testing import Case, check_algorithm, check_special_case, difference

TABLE_5 = tuple(f"{host}+flayer" for host in ("fedavg", "ditto", "fedamp", "fedper", "fedrep", "fedala"))
LAG = tuple(
    f"{host}+lag" for host in ("fedavg", "fedexp", "pfedme", "scaffold", "fedbabu", "fedrod", "fedpac")
)  # Table 6, Fig. 5 and the published code
COMPOSITIONS = (*TABLE_5, *LAG)
PRIOR = ("fedala+prior+flayer", "ditto+prior", "fedalp+prior", "fedpac+prior", "fedavg+prior+lag", "scaffold+prior+q8")
QUICK = ("fedper+flayer", "fedexp+lag")
SETTINGS = (("follow", 0.5), ("local", 1.0))
SOME_SLOW = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMPOSITIONS]


def acting(name):
    """The composition, in which the part acts from the first round on."""
    return algorithm(name, **PARTS[parse_composition(name)[1][-1]].soon)


ONE_OF_EACH_PART = [
    pytest.param(name, marks=pytest.mark.slow if name in QUICK else pytest.mark.nightly) for name in COMPOSITIONS
]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.nightly if place else pytest.mark.slow) for place, n in enumerate(PRIOR)]
)
def test_contract_with_priors(name):
    check_algorithm(acting(name), rounds=2, settings=[SETTINGS[PRIOR.index(name) % 2]])


@pytest.mark.parametrize("name", ONE_OF_EACH_PART)
def test_contract(name):
    check_algorithm(acting(name), rounds=2, settings=[SETTINGS[COMPOSITIONS.index(name) % 2]])


@pytest.mark.parametrize(
    "name", [*QUICK[:1], *(pytest.param(n, marks=pytest.mark.slow) for n in COMPOSITIONS if n != QUICK[0])]
)
def test_a_part_that_does_nothing_leaves_the_method_and_on_fedavg_it_is_that_of_its_paper(name):
    for number, law in enumerate(special_cases_of(name)):
        buffers, participation = SETTINGS[number % 2]
        check_special_case(law, rounds=3, participation=participation, buffers=buffers)


@pytest.mark.parametrize("name", SOME_SLOW)
def test_a_part_changes_what_clients_use(name):
    case, ids = Case(acting(name), "follow", 1.0, rounds=3), torch.arange(6)
    progress = case.plain.run(Matrix())
    without = case.simulation(algorithm(parse_composition(name)[0]))
    gap = difference(received_models(case.plain, progress, ids), received_models(without, without.run(Matrix()), ids))
    assert gap > 1e-4
    if name in LAG:
        told = case.plain.algorithm.tell(case.plain.at(progress.t), progress.server)
        assert 1 <= int(told["personal"].sum()) < len(case.plain.setup.layout.layers)
