"""Methods that mix, choose or generate models, and methods composed with FLAYER and LAG, against their plain loops.

A method that is not in the catalogue yet is skipped. The plain loops are checked without it: at the ends of their
options they are simpler methods, which are in the catalogue or a few lines here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from plain_clients import Clients, Model, assert_same, clients, flat, layer_of, state
from plain_compositions import (
    BASE,
    HEAD,
    Lagged,
    PlainDittoFlayer,
    PlainFedALAFlayer,
    PlainFedALAPrior,
    PlainFedAMPFlayer,
    PlainFedBABULag,
    PlainFedEXPLag,
    PlainFedPerFlayer,
    PlainFedStrata,
    PlainPFedMeLag,
    PlainPriorFlayer,
    PlainScaffoldLag,
    layer_rates,
)
from plain_fedlag import PlainFedLAG
from plain_mixtures import (
    Hypernet,
    Plain,
    PlainAPPLE,
    PlainFedALA,
    PlainFedAMP,
    PlainFedAvg,
    PlainFedCAC,
    PlainFedFomo,
    PlainHeurFedAMP,
    PlainIFCA,
    PlainPFedHN,
    descended,
    mean_loss,
    pulled,
    trainable,
)
from torch import Tensor

import methods
from stratafl.algorithms import ALGORITHMS, algorithm
from stratafl.core.algorithm import Algorithm
from stratafl.core.state import State
from stratafl.errors import UnknownNameError
from stratafl.evaluation.evaluate import deployed, received_models
from stratafl.execute import Matrix, Simulation, simulation
from stratafl.policies import LocalTraining
from tiers import slow_except

pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.budget(1.0, "some rounds beside a plain loop")]

ROUNDS = 3
TRAIN = LocalTraining(lr=0.1, epochs=2, batch=8, momentum=0.5, weight_decay=0.01)
PURE = LocalTraining(lr=0.1, epochs=2, batch=8)  # where a definition has no momentum
TOLERANCE = 1e-8


# What the library draws and the loops take over: the only places that know the names of its state


def groups_of(server: State) -> tuple[Model, ...]:
    """IFCA: the initial models of all groups, `[groups, …]` by tensor name."""
    rows: Any = server["groups"]
    return tuple({n: x[m].clone() for n, x in rows.items()} for m in range(len(next(iter(rows.values())))))


def hypernet_of(server: State) -> Hypernet:
    """pFedHN: embeddings, hidden layers, and output layers by the name of the tensor that they generate."""
    hidden = sorted(n.removesuffix(".weight") for n in server if n.startswith("psi") and n.endswith(".weight"))
    weights, biases = _rows(server, "out.weight"), _rows(server, "out.bias")
    return Hypernet(
        _tensor(server, "v"),
        [(_tensor(server, f"{layer}.weight"), _tensor(server, f"{layer}.bias")) for layer in hidden],
        {name: (weight.flatten(0, -2), biases[name].flatten()) for name, weight in weights.items()},
    )


def _tensor(server: State, name: str) -> Tensor:
    value = server[name]
    assert isinstance(value, Tensor)
    return value


def _rows(server: State, name: str) -> Mapping[str, Tensor]:
    value = server[name]
    assert not isinstance(value, Tensor)
    return value


# The same for the loops alone


def drawn_groups(clients: Clients, count: int = 2) -> tuple[Model, ...]:
    """Models of which none is best for everybody: the common one, and others whose heads prefer another class."""
    first = state(clients.module)
    turned = [{n: x.roll(m, 0) if layer_of(n) in HEAD else x for n, x in first.items()} for m in range(count)]
    return tuple({n: 3 * x if layer_of(n) in HEAD else x for n, x in model.items()} for model in turned)


def drawn_hypernet(
    clients: Clients, embedding: int = 3, hidden: int = 7, depth: int = 2, personal: Any = ()
) -> Hypernet:
    """One whose outputs are the common initial model and something of the client's own."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int, scale: float) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    sizes = [embedding, *[hidden] * (depth + 1)]
    layers = [(draw(b, a, scale=a**-0.5), draw(b, scale=0.1)) for a, b in pairwise(sizes)]
    start = state(clients.module)
    made = {n: start[n] for n in trainable(start) if layer_of(n) not in personal}
    out = {n: (draw(x.numel(), hidden, scale=0.1), x.flatten().clone()) for n, x in made.items()}
    return Hypernet(draw(clients.federation.clients, embedding, scale=1.0), layers, out)


# The cases: a library method with its options, its loop, and the loop without what makes the method


Builder = Callable[[Clients, State | None], Plain]


@dataclass(frozen=True)
class Case:
    """`options` of the library's `name`; `plain` and `without` make loops, from drawn state where there is one."""

    name: str
    options: dict[str, Any]
    plain: Builder
    without: Builder
    train: LocalTraining = TRAIN


def case(
    name: str, loop: Callable[..., Plain], off: Mapping[str, Any], *, train: LocalTraining = TRAIN, **options: Any
) -> Case:
    """A method whose loop takes the same options."""
    return loop_case(name, loop, options, off, options, train)


def loop_case(
    name: str,
    loop: Callable[..., Plain],
    given: Mapping[str, Any],
    off: Mapping[str, Any],
    options: dict[str, Any],
    train: LocalTraining = TRAIN,
) -> Case:
    return Case(name, options, lambda c, _: loop(c, **given), lambda c, _: loop(c, **{**given, **off}), train)


def grouped(c: Clients, server: State | None, count: int = 2) -> Plain:
    return PlainIFCA(c, groups=drawn_groups(c, count) if server is None else groups_of(server))


def hyper_case(
    name: str, personal: tuple[str, ...] = (), sizes: Mapping[str, int] | None = None, **options: Any
) -> Case:
    drawn = {"embedding": 3, "hidden": 7, "depth": 2} if sizes is None else dict(sizes)

    def loop(c: Clients, server: State | None, **changed: Any) -> Plain:
        net = drawn_hypernet(c, **drawn, personal=personal) if server is None else hypernet_of(server)
        return PlainPFedHN(c, net=net, personal=personal, **{**options, **changed})

    return Case(name, {**drawn, **options}, loop, lambda c, s: loop(c, s, hyper_lr=0.0))


FEDREP = (("head", HEAD, 3), ("train", BASE, None))
LAG = {"k": 2, "xi": 0.0}
PFEDME = {"strength": 6.0, "inner": 3, "personal_lr": 0.1, "beta": 0.7}
FAR = 0.3  # a learning rate at which layers become personal, and stop being so
CASES = {
    "fedala": loop_case(
        "fedala",
        PlainFedALA,
        {"layers": ("fc",), "weights_lr": 5.0, "share": 0.5, "first_passes": 3},
        {"weights_lr": 0.0},
        {"layers": "last:1", "weights_lr": 5.0, "share": 0.5, "first_passes": 3},
    ),
    "fedala, two layers": loop_case(
        "fedala",
        PlainFedALA,
        {"layers": ("conv2", "bn2", "fc"), "weights_lr": 8.0, "share": 0.7, "first_passes": 2},
        {"weights_lr": 0.0},
        {"layers": "last:2", "weights_lr": 8.0, "share": 0.7, "first_passes": 2},
    ),
    "apple": case("apple", PlainAPPLE, {"weights_lr": 0.0}, train=PURE, weights_lr=0.01, strength=0.7, until=0.9),
    "apple, 1/N": case(
        "apple", PlainAPPLE, {"own": 0.5}, train=PURE, weights_lr=0.01, strength=0.7, until=0.9, own=None
    ),
    "apple, unscaled": case(
        "apple", PlainAPPLE, {"weights_lr": 0.0}, train=PURE, weights_lr=0.02, strength=0.5, until=0.5, scaled=False
    ),
    "fedamp": case("fedamp", PlainFedAMP, {"strength": 0.0}, strength=0.7),
    "fedamp, given": case("fedamp", PlainFedAMP, {"alpha": 0.0}, strength=0.7, alpha=0.1, sigma=1.5),
    "heurfedamp": case("heurfedamp", PlainHeurFedAMP, {"sharpness": 0.0}, strength=0.7, own=0.3, sharpness=4.0),
    "fedfomo": case("fedfomo", PlainFedFomo, {"models": 0}, models=2),
    "fedfomo, everybody": case("fedfomo", PlainFedFomo, {"models": 2}, models=5),
    "fedcac": case("fedcac", PlainFedCAC, {"share": 0.0}, share=0.3, beta=4.0),
    "fedcac, share": case("fedcac", PlainFedCAC, {"beta": 100.0}, share=0.7, beta=1.5),
    "ifca": Case("ifca", {"groups": 2}, grouped, lambda c, s: PlainIFCA(c, groups=drawn_groups(c, 1))),
    "ifca, three": Case(
        "ifca", {"groups": 3}, lambda c, s: grouped(c, s, 3), lambda c, s: PlainIFCA(c, groups=drawn_groups(c, 2))
    ),
    "pfedhn": hyper_case("pfedhn", hyper_lr=0.05, momentum=0.8, decay=0.01, clip=50.0),
    "pfedhn, clipped": hyper_case("pfedhn", hyper_lr=0.05, momentum=0.8, decay=0.01, clip=0.2),
    "pfedhnpc": hyper_case("pfedhnpc", HEAD, hyper_lr=0.05, momentum=0.8, decay=0.01, clip=50.0),
    "fedper+flayer": loop_case("fedper+flayer", PlainFedPerFlayer, {}, {"mask": False}, {}),
    "fedrep+flayer": loop_case(
        "fedrep+flayer", PlainFedPerFlayer, {"phases": FEDREP}, {"rates": False}, {"head_epochs": 3}
    ),
    "ditto+flayer": case("ditto+flayer", PlainDittoFlayer, {"rates": False}, strength=0.7, personal_epochs=1),
    "fedala+flayer": loop_case(
        "fedala+flayer",
        PlainFedALAFlayer,
        {"weights_lr": 5.0, "share": 0.5, "first_passes": 3},
        {"mask": False},
        {"weights_lr": 5.0, "share": 0.5, "first_passes": 3},
    ),
    "fedamp+flayer": case("fedamp+flayer", PlainFedAMPFlayer, {"rates": False}, strength=0.7),
    "fedavg+prior+flayer": loop_case(
        "fedavg+prior+flayer", PlainPriorFlayer, {"smoothing": 0.5}, {"smoothing": 1e12}, {"smoothing": 0.5}
    ),
    "fedstrata": loop_case("fedstrata", PlainFedStrata, {"smoothing": 0.5}, {"smoothing": 1e12}, {"smoothing": 0.5}),
    "fedala+prior": loop_case(
        "fedala+prior",
        PlainFedALAPrior,
        {"layers": ("fc",), "weights_lr": 5.0, "share": 0.5, "first_passes": 3, "smoothing": 0.5},
        {"smoothing": 1e12},
        {"layers": "last:1", "weights_lr": 5.0, "share": 0.5, "first_passes": 3, "smoothing": 0.5},
    ),
    "fedexp+lag": loop_case(
        "fedexp+lag",
        PlainFedEXPLag,
        {**LAG, "epsilon": 1e-4},
        {"k": 0},
        {**LAG, "warmup": 0, "epsilon": 1e-4},
        replace(TRAIN, lr=FAR),
    ),
    "fedbabu+lag": loop_case(
        "fedbabu+lag",
        PlainFedBABULag,
        {**LAG, "k": 1},
        {"k": 0},
        {**LAG, "k": 1, "warmup": 0, "tune_epochs": 0},
        replace(TRAIN, lr=FAR),
    ),
    "pfedme+lag": loop_case(
        "pfedme+lag",
        PlainPFedMeLag,
        {**LAG, **PFEDME},
        {"k": 0},
        {**LAG, **PFEDME, "warmup": 0},
        PURE,
    ),
    "scaffold+lag": loop_case(
        "scaffold+lag", PlainScaffoldLag, LAG, {"k": 0}, {**LAG, "warmup": 0}, replace(PURE, lr=FAR)
    ),
}
EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
PARTICIPATION = pytest.mark.parametrize("participation", methods.PARTICIPATION)


def method(case: Case) -> Algorithm:
    """The library's method, or a skip if the catalogue has no such name."""
    if "+" not in case.name and case.name not in ALGORITHMS:
        pytest.skip(f"'{case.name}' is not in the catalogue yet")
    try:
        return algorithm(case.name, **case.options, train=case.train)
    except UnknownNameError as error:
        if "+" in case.name and "unknown algorithm" in str(error):
            pytest.skip(f"'{case.name}' is not in the catalogue yet")
        raise


def simulated(algorithm: Algorithm, plain: Clients) -> Simulation:
    return simulation(
        algorithm,
        plain.federation,
        plain.module,
        rounds=ROUNDS,
        participation=plain.participation,
        buffers="follow",
        engine="stacked",
        dtype=torch.float64,
    )


FAST = ("fedala", "fedamp", "ifca")
ALL = ("fedala", "apple", "fedfomo", "pfedhn", "fedper+flayer", "scaffold+lag")  # with all clients, slowly


@pytest.mark.parametrize(
    ("name", "participation"),
    slow_except(((name, 0.5) for name in FAST), [*((name, 0.5) for name in CASES), *((name, 1.0) for name in ALL)]),
)
def test_method_is_its_plain_loop(name: str, participation: float) -> None:
    case = CASES[name]
    some = clients(participation, case.train)
    sim = simulated(method(case), some)
    models = case.plain(some, sim.algorithm.init(sim.setup)).run(ROUNDS)
    progress = sim.run(Matrix())
    assert_same(sim, progress, models, TOLERANCE)
    everybody = torch.arange(sim.setup.clients)
    rows, used = (stage(sim, progress, everybody) for stage in (received_models, deployed))
    assert all(torch.equal(rows[n], used[n]) for n in rows)  # none of them tunes


# The loops alone: every method moves every model, and what makes the method changes it


def gap(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return float((flat(a) - flat(b)).abs().max())


def assert_equal(found: list[Model], expected: list[Model], statistics: bool = True) -> None:
    for mine, other in zip(found, expected, strict=True):
        for n in other if statistics else trainable(other):
            torch.testing.assert_close(mine[n], other[n], rtol=0, atol=1e-10)


@pytest.mark.nightly
@EVERY_CASE
def test_models_move_and_the_method_matters(case: Case) -> None:
    some = clients(0.5, case.train)
    before, models = case.plain(some, None).run(0), case.plain(some, None).run(ROUNDS)
    without = case.without(some, None).run(ROUNDS)
    assert all(bool(x.isfinite().all()) for model in models for x in model.values())
    assert min(gap(a, b) for a, b in zip(before, models, strict=True)) > 1e-3
    changed = [gap(a, b) for a, b in zip(models, without, strict=True)]
    assert sum(x > 1e-4 for x in changed) >= 2, changed


def test_half_of_the_clients_leaves_some_out_and_meets_some_late() -> None:
    some = clients(0.5)
    cohorts = [set(some.sampled(t)) for t in range(ROUNDS)]
    assert [len(cohort) for cohort in cohorts] == [3, 3, 3]
    assert cohorts[0] != cohorts[1]
    assert (cohorts[1] | cohorts[2]) - cohorts[0]
    assert set(some.everybody) - cohorts[0] - cohorts[1]


# Choices are not decided by rounding, in either loop: whoever computes them otherwise chooses the same


@pytest.mark.nightly
@PARTICIPATION
def test_choices_are_clear(participation: float) -> None:
    some = clients(participation, TRAIN)
    for name in ("fedcac", "fedcac, share"):
        fedcac = CASES[name].plain(some, None)
        assert isinstance(fedcac, PlainFedCAC)
        fedcac.run(ROUNDS)
        assert min(fedcac.margins) > 1e-6
        assert {len(C) for each in fedcac.similar for C in each.values()} > {1}  # alone and together
    ifca = CASES["ifca"].plain(some, None)
    assert isinstance(ifca, PlainIFCA)
    ifca.run(ROUNDS)
    assert {m for each in ifca.chosen for m in each.values()} == {0, 1}
    assert min(ifca.margins) > 1e-6
    fomo = CASES["fedfomo"].plain(some, None)
    assert isinstance(fomo, PlainFedFomo)
    fomo.run(ROUNDS)
    weights = [w for i in some.everybody for w in fomo.weights(i).values()]
    assert min(abs(w) for w in weights) > 1e-6
    assert min(weights) < 0 < max(weights)
    if participation == 1.0:
        assert any(j > 2 for i in some.everybody for j in fomo.sent(i))  # not only those with the lowest ids


# The loops at the ends of their options


def library(name: str, some: Clients, **options: Any) -> list[Model]:
    """What every client has after three rounds of a method that exists."""
    sim = simulated(algorithm(name, **options, train=some.train), some)
    rows = received_models(sim, sim.run(Matrix()), torch.arange(sim.setup.clients))
    return [{n: x[k] for n, x in rows.items()} for k in some.everybody]


def alone(some: Clients, rounds: int = ROUNDS, strength: float = 0.0, rates: bool = False) -> list[Model]:
    """Every client by itself, with a pull to where it starts each round."""
    models = [state(some.module) for _ in some.everybody]
    for t in range(rounds):
        for k, start in enumerate(models):
            factors = layer_rates if rates else None
            models[k] = descended(some, start, k, t, edit=pulled(strength, start), factors=factors)
    return models


@pytest.mark.nightly
@PARTICIPATION
def test_plain_descent_is_the_librarys(participation: float) -> None:
    some = clients(participation, TRAIN)
    assert_equal(PlainFedAvg(some).run(ROUNDS), library("fedavg", some))
    assert_equal(PlainFedAvg(some, strength=0.7).run(ROUNDS), library("fedprox", some, strength=0.7))
    fedrep = PlainFedPerFlayer(some, rates=False, mask=False, phases=FEDREP)
    assert_equal(fedrep.run(ROUNDS), library("fedrep", some, head_epochs=3))


@pytest.mark.nightly
def test_plain_descent_alone_is_local() -> None:
    some = clients(1.0, TRAIN)
    assert_equal(alone(some), library("local", some))


@pytest.mark.nightly
@PARTICIPATION
def test_fedala_with_weights_that_stay_at_1_is_fedavg(participation: float) -> None:
    some = clients(participation, TRAIN)
    assert_equal(PlainFedALA(some, weights_lr=0.0, first_passes=1).run(ROUNDS), PlainFedAvg(some).run(ROUNDS))


@pytest.mark.nightly
def test_fedala_weights_follow_the_gradient_of_the_loss_in_them() -> None:
    """One batch: ∂L/∂W by autograd through own + (received − own)⊙W, from weights inside (0, 1)."""
    some = clients(1.0, replace(TRAIN, batch=100))
    ala = PlainFedALA(some, weights_lr=0.3, share=1.0, first_passes=1)
    ala.run(1)
    W = {n: torch.full_like(x, 0.6).requires_grad_() for n, x in ala.W[0].items()}
    ala.W[0] = {n: x.detach() for n, x in W.items()}
    held = some.federation.split("train").of(0)
    net = torch.func.functional_call(some.module.eval(), ala.mixed(0, W), some.federation.x[held])
    loss = torch.nn.functional.cross_entropy(net, some.federation.y[held])
    expected = {n: W[n] - 0.3 * g for n, g in zip(W, torch.autograd.grad(loss, list(W.values())), strict=True)}
    learned = ala.learned(0, 1)
    assert all(bool(((x > 0) & (x < 1)).all()) for x in learned.values())
    for n, x in learned.items():
        torch.testing.assert_close(x, expected[n].detach(), rtol=0, atol=1e-12)


@pytest.mark.nightly
def test_apple_with_fixed_equal_weights_sums_what_clients_learn() -> None:
    """p = 1/N: one step of the core moves w^p by η·N·p² = η/N, and all of them meet in the mean of the cores."""
    some = clients(1.0, PURE)
    slow = replace(some, train=replace(PURE, lr=PURE.lr / 6))
    w = state(some.module)
    for t in range(ROUNDS):
        moved = [descended(slow, w, k, t) for k in some.everybody]
        w = {n: w[n] + sum((each[n] - w[n] for each in moved), torch.zeros_like(w[n])) for n in w}
    assert_equal(PlainAPPLE(some, weights_lr=0.0, own=None).run(ROUNDS), [w] * 6, statistics=False)


@pytest.mark.nightly
def test_apple_moves_its_weights_along_the_gradient_of_the_loss_in_them() -> None:
    """One batch, cores that differ, no pull: p ← p − η₂·∂L(Σ_j p_j·w_j)/∂p by autograd."""
    some = clients(1.0, replace(PURE, batch=100, epochs=1))
    apple = PlainAPPLE(some, weights_lr=0.05, until=0.0)
    apple.run(1)
    p = apple.p[2].clone().requires_grad_()
    cores = {n: torch.stack([apple.cores[j][n] for j in range(6)]) for n in trainable(apple.initial)}
    mixed = {n: torch.tensordot(p, x, 1) for n, x in cores.items()}
    held = some.federation.split("train").of(2)
    out = torch.func.functional_call(some.module.train(), mixed, some.federation.x[held])
    (g,) = torch.autograd.grad(torch.nn.functional.cross_entropy(out, some.federation.y[held]), p)
    torch.testing.assert_close(apple.client(2, 1)[1], (p - 0.05 * g).detach(), rtol=0, atol=1e-12)


@pytest.mark.nightly
def test_apple_is_pulled_to_the_shares_of_samples_for_a_while() -> None:
    apple = PlainAPPLE(clients(1.0, PURE), weights_lr=0.01, strength=0.5, until=0.5, rounds=4)
    assert [apple.loss_scheduler(t) for t in range(4)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    free = PlainAPPLE(clients(1.0, PURE), weights_lr=0.01, strength=0.0, until=0.5, rounds=4)
    apple.run(2)
    free.run(2)
    share = torch.tensor([31, 23, 14, 12, 7, 4]) / 91
    assert float((apple.p - share).norm()) < float((free.p - share).norm())


@pytest.mark.nightly
def test_fedamp_without_a_pull_is_local() -> None:
    some = clients(1.0, TRAIN)
    assert_equal(PlainFedAMP(some, strength=0.0).run(ROUNDS), alone(some))


@pytest.mark.nightly
def test_fedamp_that_looks_at_nobody_is_pulled_to_its_own_start() -> None:
    some = clients(1.0, TRAIN)
    expected = alone(some, strength=0.7)
    assert_equal(PlainFedAMP(some, strength=0.7, alpha=0.0).run(ROUNDS), expected)
    assert_equal(PlainHeurFedAMP(some, strength=0.7, own=1.0).run(ROUNDS), expected)


@pytest.mark.nightly
@PARTICIPATION
def test_fedamp_that_sees_no_difference_is_pulled_to_the_mean(participation: float) -> None:
    some = clients(participation, TRAIN)
    models = PlainFedAMP(some, strength=0.7, sigma=1e14).run(ROUNDS)
    assert_equal(models, PlainHeurFedAMP(some, strength=0.7, own=1 / 6, sharpness=0.0).run(ROUNDS))


@pytest.mark.nightly
def test_attention_of_fedamp_sums_to_1_and_is_bounded() -> None:
    for name in ("fedamp", "fedamp, given", "heurfedamp"):
        plain = CASES[name].plain(clients(1.0, TRAIN), None)
        assert isinstance(plain, PlainFedAMP)
        plain.run(1)
        xi = plain.attention()
        torch.testing.assert_close(xi.sum(1), torch.ones(6, dtype=torch.float64))
        assert float(xi.min()) > 0
        scaled = (xi.diag() - 1 / 6).abs() < 1e-12
        assert bool(scaled.all()) == (name == "fedamp")


@pytest.mark.nightly
def test_fedfomo_that_is_sent_nothing_is_local() -> None:
    some = clients(1.0, TRAIN)
    assert_equal(PlainFedFomo(some, models=0).run(ROUNDS), alone(some))


@pytest.mark.nightly
def test_fedfomo_with_one_better_model_takes_it() -> None:
    some = clients(1.0, TRAIN)
    plain = PlainFedFomo(some, models=5)
    plain.run(1)
    losses = [[mean_loss(some, plain.rows[j], i, "validation") for j in range(6)] for i in range(6)]
    better = {i: [j for j in range(6) if losses[i][j] < losses[i][i]] for i in range(6)}
    single = [i for i, found in better.items() if len(found) == 1]
    best = [i for i, found in better.items() if not found]
    assert single or best
    for i in single:
        assert_equal([plain.model(i, 1)], [plain.rows[better[i][0]]])
    for i in best:
        assert_equal([plain.model(i, 1)], [plain.rows[i]])


@pytest.mark.nightly
@PARTICIPATION
def test_fedcac_without_critical_parameters_is_fedavg(participation: float) -> None:
    some = clients(participation, TRAIN)
    assert_equal(PlainFedCAC(some, share=0.0).run(ROUNDS), PlainFedAvg(some).run(ROUNDS))


@pytest.mark.nightly
def test_fedcac_whose_parameters_are_all_critical_is_a_uniform_mean() -> None:
    some = clients(1.0, TRAIN)
    uniform = PlainFedAvg(some, uniform=True).run(ROUNDS)
    assert_equal(PlainFedCAC(some, share=1.0).run(ROUNDS), uniform, statistics=False)


def test_critical_parameters_and_overlaps_by_hand() -> None:
    """|(θ_new − θ_old)·θ_new| = 3, 2, 2, 0: with share 0.3 two of four; an overlap is the share that is common."""
    plain = PlainFedCAC(clients(1.0, TRAIN), share=0.3)
    new, old = torch.tensor([3.0, -1.0, 2.0, 5.0]), torch.tensor([2.0, 1.0, 1.0, 5.0])
    assert plain.critical({"a": old}, {"a": new})["a"].tolist() == [1, 1, 0, 0]
    plain.masks = {0: {"a": torch.tensor([1.0, 1, 0, 0])}, 1: {"a": torch.tensor([0.0, 1, 1, 0])}}
    plain.masks[2] = {"a": torch.tensor([0.0, 0, 1, 1])}
    assert [plain.overlap(0, j) for j in range(3)] == [1.0, 0.5, 0.0]
    assert plain.collaborators(0, [0, 1, 2]) == {0: [0, 1], 1: [0, 1, 2], 2: [1, 2]}  # mean 1/3
    plain.beta = 3.0
    assert plain.collaborators(3, [0, 1, 2]) == {0: [0, 1], 1: [0, 1, 2], 2: [1, 2]}  # the largest itself
    assert plain.collaborators(4, [0, 1, 2]) == {0: [0], 1: [1], 2: [2]}


@pytest.mark.nightly
@PARTICIPATION
def test_ifca_with_one_group_is_fedavg(participation: float) -> None:
    some = clients(participation, TRAIN)
    start = state(some.module)
    expected = PlainFedAvg(some).run(ROUNDS)
    assert_equal(PlainIFCA(some, groups=(start,)).run(ROUNDS), expected)
    bad = {n: -1e3 * x if layer_of(n) in HEAD else x for n, x in start.items()}
    held = PlainIFCA(some, groups=(bad, start))
    assert_equal(held.run(ROUNDS), expected)
    assert_equal([held.group[0]], [bad])


@pytest.mark.nightly
@PARTICIPATION
@pytest.mark.parametrize("name", ["pfedhn", "pfedhnpc"])
def test_pfedhn_whose_hypernetwork_stays_generates_constants(name: str, participation: float) -> None:
    some = clients(participation, TRAIN)
    plain = CASES[name].without(some, None)
    assert isinstance(plain, PlainPFedHN)
    before, after = plain.run(0), plain.run(ROUNDS)
    for old, new in zip(before, after, strict=True):
        for n in trainable(old):
            assert torch.equal(old[n], new[n]) == (layer_of(n) not in plain.personal), n


@pytest.mark.nightly
def test_a_step_of_the_hypernetwork_goes_towards_what_clients_learned() -> None:
    some = clients(1.0, TRAIN)
    plain = PlainPFedHN(some, net=drawn_hypernet(some), hyper_lr=1e-3, momentum=0.0, decay=0.0)
    before = plain.run(0)
    plain.round(0)
    learned, after = plain.own, plain.run(0)
    far = [float((flat(a) - flat(b)).square().sum()) for a, b in zip(before, learned, strict=True)]
    near = [float((flat(a) - flat(b)).square().sum()) for a, b in zip(after, learned, strict=True)]
    assert sum(near) < sum(far)


@pytest.mark.nightly
def test_a_step_of_the_hypernetwork_is_one_on_a_mean_over_the_cohort() -> None:
    """The gradient of mean_i ½·‖h(v_i) − θ̃_i‖² with weight decay, by autograd; and what stays of it as momentum."""
    some = clients(0.5, TRAIN)
    plain = PlainPFedHN(some, net=drawn_hypernet(some), hyper_lr=0.03, momentum=0.9, decay=0.2)
    before, cohort = plain.hyper.leaves(), some.sampled(0)
    plain.round(0)
    made = [before.generated(i, plain.initial) for i in cohort]
    errors = [
        (x - plain.own[i][n]).square().sum() / 2 for i, each in zip(cohort, made, strict=True) for n, x in each.items()
    ]
    decay = sum((x.square().sum() / 2 for x in before.parameters), torch.zeros(()))
    loss = sum(errors, torch.zeros(())) / len(cohort) + 0.2 * decay
    steps = torch.autograd.grad(loss, before.parameters)
    for old, new, g in zip(before.parameters, plain.hyper.parameters, steps, strict=True):
        torch.testing.assert_close(new, old - 0.03 * g, rtol=0, atol=1e-12)
        torch.testing.assert_close(plain.optimiser.state[new]["momentum_buffer"], g, rtol=0, atol=1e-12)


@pytest.mark.nightly
def test_the_hypernetwork_is_clipped_where_a_case_says_so() -> None:
    for name, clipped in (("pfedhn", False), ("pfedhn, clipped", True)):
        plain = CASES[name].plain(clients(1.0, TRAIN), None)
        assert isinstance(plain, PlainPFedHN)
        plain.run(1)
        assert (plain.norms[0] > plain.clip) == clipped


# Compositions at the ends of their options


@pytest.mark.nightly
@PARTICIPATION
def test_flayer_on_fedper_is_flayer_with_an_accuracy_of_1(participation: float) -> None:
    some = clients(participation, TRAIN)
    assert_equal(PlainFedPerFlayer(some).run(ROUNDS), library("flayer", some, accuracy=1.0))


@pytest.mark.nightly
@PARTICIPATION
def test_the_global_branch_of_ditto_with_flayer_is_flayer_without_a_guide(participation: float) -> None:
    some = clients(participation, TRAIN)
    ditto = PlainDittoFlayer(some, strength=0.7)
    ditto.run(ROUNDS)
    assert_equal([ditto.global_model] * 6, library("flayer", some, guide=False))
    assert len(set(ditto.A.values())) > 1
    for k, A in ditto.A.items():
        for n, x in ditto.model(k, ROUNDS).items():
            share = A if layer_of(n) in HEAD else 1
            torch.testing.assert_close(x, share * ditto.v[k][n] + (1 - share) * ditto.global_model[n])


@pytest.mark.nightly
@PARTICIPATION
def test_fedala_with_flayer_and_weights_that_stay_at_1_is_flayer_without_a_guide(participation: float) -> None:
    some = clients(participation, TRAIN)
    models = PlainFedALAFlayer(some, weights_lr=0.0, first_passes=1).run(ROUNDS)
    assert_equal(models, library("flayer", some, guide=False))


@pytest.mark.nightly
def test_fedamp_with_flayer_that_looks_at_nobody_is_local_with_rates() -> None:
    some = clients(1.0, TRAIN)
    models = PlainFedAMPFlayer(some, strength=0.7, alpha=0.0).run(ROUNDS)
    assert_equal(models, alone(some, strength=0.7, rates=True))


@pytest.mark.nightly
@PARTICIPATION
def test_lag_on_fedavg_is_fedlag(participation: float) -> None:
    some = clients(participation, PURE)
    lagged, fedlag = Lagged(some, k=2), PlainFedLAG(some, k=2).run(ROUNDS)
    assert_equal(lagged.run(ROUNDS), [fedlag.start(k) for k in some.everybody])
    assert lagged.sets[1:] == fedlag.sets
    assert any(lagged.sets)


@pytest.mark.nightly
@PARTICIPATION
def test_lag_on_fedexp_that_never_extrapolates_is_fedlag(participation: float) -> None:
    some = clients(participation, TRAIN)
    assert_equal(PlainFedEXPLag(some, epsilon=1e9).run(ROUNDS), Lagged(some).run(ROUNDS))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["fedbabu+lag", "fedexp+lag", "pfedme+lag", "scaffold+lag"])
def test_layers_become_personal_and_steps_are_long(name: str) -> None:
    plain = CASES[name].plain(clients(0.5, CASES[name].train), None)
    assert isinstance(plain, Lagged)
    plain.run(ROUNDS)
    assert len({frozenset(each) for each in plain.sets[1:]}) > 1
    if isinstance(plain, PlainFedEXPLag):
        assert max(plain.steps) > 1.1


@pytest.mark.nightly
def test_lag_on_scaffold_without_personal_layers_is_scaffold() -> None:
    """Its first round is FedAvg with uniform weights; c_i is then the mean gradient, and c their mean over all."""
    some = clients(1.0, PURE)
    scaffold = PlainScaffoldLag(some, k=0)
    assert_equal(scaffold.run(1), PlainFedAvg(some, uniform=True).run(1))
    for n, c in scaffold.c.items():
        torch.testing.assert_close(c, torch.stack([each[n] for each in scaffold.c_i]).mean(0))
    assert max(float(c.abs().max()) for c in scaffold.c.values()) > 1e-3


@pytest.mark.nightly
def test_a_step_of_scaffold_by_hand() -> None:
    """One step: y = x − η(g − c_i + c) and c_i⁺ = g, and without c_i and c where the layer is personal."""
    some = clients(1.0, replace(PURE, batch=100, epochs=1))
    plain = PlainScaffoldLag(some, k=1)
    plain.run(1)
    plain.sets.append({"conv2", "bn2"})
    start = plain.model(1, 1)
    g = {n: (start[n] - x) / PURE.lr for n, x in descended(some, start, 1, 1).items()}
    after = plain.trained(start, 1, 1)
    for n, c in plain.c.items():
        correction = torch.zeros_like(c) if layer_of(n) in ("conv2", "bn2") else c - plain.c_i[1][n]
        torch.testing.assert_close(after[n], start[n] - PURE.lr * (g[n] + correction))
        torch.testing.assert_close(plain.learned[1][n], g[n])


def test_a_step_of_fedexp_by_hand() -> None:
    """Three updates of length 1 at right angles in shared layers: ‖Δ̄‖² = Σp²; what is personal is averaged."""
    some = clients(1.0, TRAIN)
    plain, p = PlainFedEXPLag(some, epsilon=0.01), torch.tensor([31, 23, 14], dtype=torch.float64) / 68
    w = plain.initial
    trained = {k: {n: x.clone() for n, x in w.items()} for k in range(3)}
    for k in range(3):
        trained[k]["conv1.weight"].view(-1)[k] += 1
        trained[k]["fc.bias"][k] += 9
        trained[k]["bn1.running_mean"][k] += 9
    new = plain.merged(trained, {"fc"})
    step = 1 / (2 * (float(p.square().sum()) + 0.01))
    assert step > 1.2
    torch.testing.assert_close((new["conv1.weight"] - w["conv1.weight"]).view(-1)[:3], step * p)
    torch.testing.assert_close(new["fc.bias"] - w["fc.bias"], 9 * p)
    torch.testing.assert_close((new["bn1.running_mean"] - w["bn1.running_mean"])[:3], 9 * p)


@pytest.mark.nightly
def test_control_variates_are_mean_gradients_of_personal_layers_too() -> None:
    some = clients(1.0, PURE)
    plain = PlainScaffoldLag(some, k=3)
    plain.run(1)
    assert plain.personal
    start, steps = plain.model(0, 1), PURE.epochs * -(-some.samples(0) // PURE.batch)
    after = plain.trained(start, 0, 1)
    corrected = descended(some, start, 0, 1, edit=lambda g, _: {n: g[n] + plain.c[n] - plain.c_i[0][n] for n in g})
    assert gap(after, corrected) > 1e-6
    for n in plain.c:
        if layer_of(n) in plain.personal:
            torch.testing.assert_close(plain.learned[0][n], (start[n] - after[n]) / (steps * PURE.lr))
