"""The contract with compressed uploads: every method of the catalogue obeys it, or is refused with the reason."""

import pytest

from methods import MECHANISMS, PAPERS, SLOW
from stratafl.algorithms import ALGORITHMS, algorithm
from stratafl.algorithms.composition import PARTS
from stratafl.algorithms.compress_on import compressed
from stratafl.algorithms.special_cases import special_cases_of
from stratafl.errors import RecordError
from stratafl.policies.codecs import Quantise, TopK
from stratafl.runtime import engine
from stratafl.testing import check_algorithm, check_special_case

REFUSED = {"local": "nothing is sent", "flayer": "sends single columns"}
SPARSE = {
    **REFUSED,
    "fedalp": "FormGroups compares whole updates",
    "fedcac": "Customise compares whole updates",
    "fedexp": "Extrapolate compares whole updates",
    "fedlag": "PersonaliseConflicts compares whole updates",
    "fedpac": "of what it gets the server sends only 'base'",
    "ifca": "the server has no 'theta' of a client",
}
SHORT = {
    "fedalp": {"groups": 2, "warmup": 1},
    "fedavg30local": {"warmup": 2},
    "fedlag": {"k": 1, "xi": 0.0, "warmup": 1},
}
QUICK = {"q8": {"fedper"}, "topk": {"heurpfedla"}}  # each in a few seconds; the others are slow tests
REASONS = {"q8": REFUSED, "q4": REFUSED, "topk": SPARSE}


def cases(*parts):
    """Every method with every part of the two, if it is of a paper or the first of its mechanism; else with one."""
    for place, name in enumerate(sorted(ALGORITHMS)):
        for part in parts:
            if name in QUICK[part] | REASONS[part].keys():
                yield name, part
            elif name in PAPERS | MECHANISMS or part == parts[place % 2] or name in REASONS[parts[place % 2]]:
                yield pytest.param(name, part, marks=SLOW)


@pytest.fixture(autouse=True)
def untraced(monkeypatch):
    """Steps are not traced, but where the contract says so: that takes most of the time of a short run."""
    monkeypatch.setattr(engine, "patience", lambda _: float("inf"), raising=False)


@pytest.mark.parametrize(("host", "part"), list(cases("q8", "topk")))
def test_every_method_obeys_the_contract_or_is_refused(host, part):
    name, reasons = f"{host}+{part}", REASONS[part]
    if host in reasons:
        with pytest.raises(RecordError, match=reasons[host]) as error:
            algorithm(name)
        assert "\n" not in str(error.value)
        return
    made = algorithm(name, **SHORT.get(host, {}), **PARTS[part].soon)
    check_algorithm(made, rounds=2, settings=[("follow", 0.5)])


CODECS = {
    "4 bits": (Quantise(4), False),
    "4 bits, stochastic, with feedback": (Quantise(4, "stochastic"), True),
    "few, without feedback": (TopK(0.05), False),
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", [("local", 0.5), ("follow", 1.0)])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("host", ["fedavg", "heurpfedla", "scaffold", "fedamp"])
def test_other_codecs_obey_it_too(host, codec, setting):
    how, feedback = CODECS[codec]
    made = compressed(algorithm(host), how, feedback=feedback, min_size=1)
    check_algorithm(made, rounds=3, settings=[setting])


@pytest.mark.slow
@pytest.mark.parametrize("part", ["q8", "q4", "topk"])
@pytest.mark.parametrize("host", sorted({*PAPERS, "fedavg", "scaffold", "apple"} - SPARSE.keys()))
def test_a_compression_that_leaves_nothing_out_is_the_method(host, part):
    for law in special_cases_of(f"{host}+{part}"):
        check_special_case(law, rounds=3, participation=0.5)
