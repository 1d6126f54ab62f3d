"""Every algorithm of the catalogue keeps the contract, in every setting, and its own degenerate laws."""

import pytest

from stratafl.algorithms import ALGORITHMS, algorithm, fedper
from stratafl.algorithms.laws import LAWS
from stratafl.testing import SETTINGS, check_algorithm, check_law


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s[0]}-{s[1]}")
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_contract(name, setting):
    check_algorithm(algorithm(name), settings=[setting])


VARIANTS = {
    "own heads": fedper(initial="own"),
    "fine-tuning": fedper(finetune=1),
    "two blocks": fedper(personal="blocks:2"),
    "first layer": fedper(personal="first:1"),
    "named layers": fedper(personal="conv1+fc"),
    "linear base": fedper(linear_base=True),
    "linear base, two blocks": fedper(personal="blocks:2", linear_base=True),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_contract_of_fedper_variants(name):
    check_algorithm(VARIANTS[name], settings=[("follow", 0.5)])


def test_every_algorithm_has_a_degenerate_law():
    assert set(LAWS) == set(ALGORITHMS)
    assert all(LAWS.values())


CASES = [
    pytest.param(law, participation, buffers, id=f"{law.says} ({participation}, {buffers})")
    for laws in LAWS.values()
    for law in laws
    for participation in (1.0, 0.5)
    for buffers in ("follow", "local")
    if participation == 1.0 or not law.full_participation_only
]


@pytest.mark.parametrize(("law", "participation", "buffers"), CASES)
def test_degenerate_laws(law, participation, buffers):
    check_law(law, rounds=2, participation=participation, buffers=buffers)
