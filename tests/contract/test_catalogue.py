"""Every algorithm of the catalogue keeps the contract, and its own degenerate laws.

One method is fast, every method once through every law is slow, and all settings are nightly; the first degenerate law
is fast for one method of each kind and for those of the papers.
"""

import pytest
import torch
from torch import Tensor, nn

from methods import KINDS, NIGHTLY, PAPERS, SLOW
from stratafl.algorithms import (
    ALGORITHMS,
    algorithm,
    fedalp,
    fedavg,
    fedavg30local,
    fedlag,
    fedper,
    flayer,
    heurpfedla,
    pfedla,
    simmix,
)
from stratafl.algorithms.special_cases import SPECIAL_CASES
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix, Messages, simulation
from stratafl.policies import LocalTraining
from stratafl.testing import CLASSES, SETTINGS, Case, check_algorithm, check_special_case, difference, tiny_federation

# Methods whose mechanism needs some rounds, or a shorter warm-up, before it does anything.
ACTING = {
    "fedalp": fedalp(groups=2, warmup=1),
    "fedavg30local": fedavg30local(warmup=2),
    "fedlag": fedlag(k=2, xi=0.0, warmup=0, train=LocalTraining(lr=0.5)),
    "flayer": flayer(s=1),
    "flayer official": flayer(preset="official"),
    "heurpfedla": heurpfedla(k=2, hyper_lr=400.0, initial="uniform"),
    "pfedla": pfedla(hyper_lr=50.0, initial="uniform"),
    "simmix": simmix(),
}
EVERY = sorted({*ALGORITHMS, *ACTING})
QUICK = (("follow", 0.5), ("local", 1.0))  # two settings in which both values of both keys occur
HALF = (("follow", 0.5), ("local", 0.5))  # half of the clients cost less
AT_ONCE = ("fedper",)  # the others equal their plain loops, or show a degenerate law at once


def _settings():
    """Each method in one of two settings with half of the clients, in turn, and nightly in the three others."""
    for place, name in enumerate(EVERY):
        first = QUICK[0] if name in ACTING else HALF[place % 2]
        for setting in (first, *(each for each in SETTINGS if each != first)):
            marks = NIGHTLY if setting != first else () if name in AT_ONCE else SLOW
            yield pytest.param(name, setting, marks=marks, id=f"{name}-{setting[0]}-{setting[1]}")


@pytest.mark.budget(8, "sixteen laws")
@pytest.mark.parametrize(("name", "setting"), list(_settings()))
def test_contract(name, setting):
    check_algorithm(ACTING[name] if name in ACTING else algorithm(name), rounds=2, settings=[setting])


@pytest.mark.nightly
@pytest.mark.parametrize("name", ACTING)
def test_contract_of_methods_that_need_time_to_act(name):
    check_algorithm(ACTING[name], rounds=5, settings=QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTING)
def test_in_the_contract_their_mechanism_acts(name):
    case = Case(ACTING[name], "follow", 0.5, rounds=5)
    sim, ids = case.plain, torch.arange(6)
    progress = sim.run(Matrix())
    plain = case.simulation(fedavg())
    gap = difference(received_models(sim, progress, ids), received_models(plain, plain.run(Matrix()), ids))
    assert gap > 1e-4
    told = sim.algorithm.tell(sim.at(progress.t), progress.server)
    if name == "fedalp":
        assert len(progress.server["member"].unique()) == 2
        assert told["psi"].max() == pytest.approx(0.6)
        assert told["psi"].min() < 0.5
    if name == "fedlag":
        assert 1 <= int(told["personal"].sum()) < len(sim.setup.layout.layers)
    if "pfedla" in name or name == "simmix":  # weights that were learned: they began as equal ones
        began = sim.algorithm.tell(sim.at(0), sim.algorithm.init(sim.setup))["alpha"]
        assert torch.allclose(began, torch.full_like(began, 1 / 6))
        assert float((told["alpha"] - began).abs().max()) > 0.01
    _, report = sim.round(progress, Matrix())
    whole = sum(spec.size for spec in sim.setup.layout.specs.values()) * len(report.cohort)
    if name == "heurpfedla":
        down = sim.algorithm.download(sim.at(progress.t), progress.server, report.cohort)["theta"]
        assert (~down.mask.sent).sum(1).tolist() == [2] * len(report.cohort)
        assert 0 < int(report.down.values.sum()) < 0.9 * whole
    if name == "flayer":
        assert 0.3 * whole < int(report.up.values.sum()) < 0.9 * whole


class Scaled(nn.Module):
    """A linear model whose output is scaled by a parameter without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(36, CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.fc(x.flatten(1))


SCALARS = [("flayer", Messages()), ("pfedla", Matrix())]
SCALARS += [pytest.param(name, Messages(), marks=SLOW) for name in ACTING if name != "flayer"]


@pytest.mark.parametrize(("name", "executor"), SCALARS)
def test_a_parameter_without_axes_is_a_column_like_any_other(name, executor):
    sim = simulation(ACTING[name], tiny_federation(), Scaled, rounds=3, dtype=torch.float64)
    scale = received_models(sim, sim.run(executor), torch.arange(6))["scale"]
    assert scale.shape == (6,)
    assert bool((scale != 1.5).all())


VARIANTS = {
    "own heads": fedper(initial="own"),
    "fine-tuning": fedper(finetune=1),
    "two blocks": fedper(personal="blocks:2"),
    "first layer": fedper(personal="first:1"),
    "named layers": fedper(personal="conv1+fc"),
    "linear base": fedper(linear_base=True),
    "linear base, two blocks": fedper(personal="blocks:2", linear_base=True),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=NIGHTLY if place % 6 else SLOW) for place, n in enumerate(VARIANTS)]
)
def test_contract_of_fedper_variants(name):
    check_algorithm(VARIANTS[name], settings=[("follow", 0.5)])


def test_every_algorithm_has_a_degenerate_law():
    assert set(SPECIAL_CASES) == set(ALGORITHMS)
    assert all(SPECIAL_CASES.values())


def _in_order(name, place, law, number):
    """A law's first setting, fast for the first law of some methods; of the others, nightly, one in turn."""
    possible = [(p, b) for p in (0.5, 1.0) for b in ("follow", "local") if p == 1.0 or not law.full_participation_only]
    first, *rest = possible
    at_once = place == 0 and name in PAPERS | {*KINDS.values()}
    return (first, () if at_once else SLOW), (rest[number % len(rest)], NIGHTLY)


LAWS = [(name, place, law) for name, laws in SPECIAL_CASES.items() for place, law in enumerate(laws)]
CASES = [
    pytest.param(law, *setting, id=f"{law.says} ({setting[0]}, {setting[1]})", marks=marks)
    for number, (name, place, law) in enumerate(LAWS)
    for setting, marks in _in_order(name, place, law, number)
]


@pytest.mark.parametrize(("law", "participation", "buffers"), CASES)
def test_degenerate_laws(law, participation, buffers):
    check_special_case(law, rounds=2, participation=participation, buffers=buffers)
