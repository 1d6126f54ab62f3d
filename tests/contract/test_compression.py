"""The contract with compressed uploads: every method of the catalogue obeys it, or is refused with the reason."""

import pytest

from methods import KINDS, NIGHTLY, PAPERS, SLOW
from stratafl.algorithms import ALGORITHMS, algorithm
from stratafl.algorithms.composition import PARTS
from stratafl.algorithms.compress_on import compressed
from stratafl.algorithms.special_cases import special_cases_of
from stratafl.errors import RecordError
from stratafl.policies.codecs import Quantise, TopK
from stratafl.runtime import engine
from stratafl.testing import check_algorithm, check_special_case

REFUSED = {"local": "local", "flayer": "column"}
SPARSE = {
    **REFUSED,
    "fedalp": "FormGroups",
    "fedcac": "Customise",
    "fedexp": "Extrapolate",
    "fedlag": "PersonaliseConflicts",
    "fedpac": "'base'",
    "ifca": "'theta'",
}
SHORT = {
    "fedalp": {"groups": 2, "warmup": 1},
    "fedavg30local": {"warmup": 2},
    "fedlag": {"k": 1, "xi": 0.0, "warmup": 1},
}
REASONS = {"q8": REFUSED, "q4": REFUSED, "topk": SPARSE}


CHECKED = sorted(KINDS.values())[::2]


def cases(*parts):
    """Refusals at once; of some kinds of methods one of the parts, in turn, slowly; every other pair nightly."""
    for place, name in enumerate(sorted(ALGORITHMS)):
        for part in parts:
            refused, turn = name in REASONS[part], part == parts[place % 2] or name in REASONS[parts[place % 2]]
            yield pytest.param(name, part, marks=() if refused else SLOW if turn and name in CHECKED else NIGHTLY)


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


@pytest.mark.nightly
@pytest.mark.parametrize("setting", [("local", 0.5), ("follow", 1.0)])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("host", ["fedavg", "heurpfedla", "scaffold", "fedamp"])
def test_other_codecs_obey_it_too(host, codec, setting):
    how, feedback = CODECS[codec]
    made = compressed(algorithm(host), how, feedback=feedback, min_size=1)
    check_algorithm(made, rounds=3, settings=[setting])


def _hosts():
    for number, host in enumerate(sorted({*PAPERS, "fedavg", "scaffold", "apple"} - SPARSE.keys())):
        for place, part in enumerate(("q8", "q4", "topk")):
            yield pytest.param(host, part, marks=SLOW if number % 3 == place else NIGHTLY)


@pytest.mark.parametrize(("host", "part"), list(_hosts()))
def test_a_compression_that_leaves_nothing_out_is_the_method(host, part):
    for law in special_cases_of(f"{host}+{part}"):
        check_special_case(law, rounds=3, participation=0.5)
