"""Methods with a head of parts, and those that weigh what features say, against plain loops written before them.

What is compared are predictions: the logits of every client's model on its own test samples, in float64, round by
round. So only `DRAWN` knows names of the library, those of parts whose initial values it draws.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import pytest
import torch
from plain_clients import Clients, convnorm
from plain_parts import (
    BASE_LAYERS,
    HEAD,
    Batch,
    Described,
    Plain,
    PlainFedAS,
    PlainFedBias,
    PlainFedCP,
    PlainFedDBE,
    PlainFedPAC,
    PlainFedPer,
    PlainFedPrior,
    PlainFedRoD,
    PlainGPFL,
    best_mixture,
    labelled,
    mlp,
    mmd,
    skewed,
)
from plain_rivals import PlainConFREE, PlainFedLC, PlainFedPerConFREE, PlainPFedFDA
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from methods import NIGHTLY, SLOW
from stratafl.algorithms import ALGORITHMS, algorithm
from stratafl.core import keys
from stratafl.core.layout import Rows
from stratafl.data import Federation
from stratafl.evaluation.evaluate import deployed, received_models, score_stages
from stratafl.execute import Matrix, Progress, Simulation, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.testing import CLASSES, SHAPE, tiny_federation

pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.budget(1.2, "some rounds beside a plain loop")]

TRAIN = LocalTraining(lr=0.1, epochs=1, batch=10, momentum=0.9, weight_decay=0.01)
PLAIN_SGD = replace(TRAIN, momentum=0.0, weight_decay=0.0)  # where it is a choice what a second optimiser takes over
TOLERANCE, ROUNDS = 1e-8, 3
MODELS: dict[str, Callable[[], nn.Module]] = {"convnorm": convnorm, "mlp": mlp}
FEDERATIONS: dict[str, Callable[[], Federation]] = {"tiny": tiny_federation, "skewed": skewed}

# The names that the library gives to what it draws, by the name here.
_POLICY = {
    f"policy.{i}.{part}": f"fc.policy.{theirs}.{part}"
    for i, theirs in ((0, "linear"), (1, "norm"))
    for part in ("weight", "bias")
}
_VALVE = {
    f"{m}.{i}.{part}": f"fc.valve.{m}.{theirs}.{part}"
    for m in ("gamma", "beta")
    for i, theirs in ((0, "linear"), (2, "norm"))
    for part in ("weight", "bias")
}
DRAWN: dict[str, Mapping[str, str]] = {
    "fedcp": _POLICY,
    "gpfl": {"embedding.weight": "fc.embedding.weight", **_VALVE},
}


@dataclass(frozen=True)
class Case:
    """A method of the library with options at which every term acts, and its plain loop with the same."""

    name: str
    oracle: Callable[..., Plain]
    options: Mapping[str, object] = field(default_factory=dict)
    train: LocalTraining = TRAIN
    has_global: bool = False  # a global model that is not what clients receive


CASES = {
    "fedrod": Case("fedrod", PlainFedRoD, has_global=True),
    "fedrod, not balanced": Case("fedrod", PlainFedRoD, {"balanced": False}, has_global=True),
    "fedpac": Case("fedpac", PlainFedPAC, {"strength": 0.7, "head_epochs": 2}),
    "feddbe": Case("feddbe", PlainFedDBE, {"strength": 2.0, "momentum": 0.4}),
    "feddbe, no momentum": Case("feddbe", PlainFedDBE, {"strength": 1.5, "momentum": 1.0}),
    "fedcp": Case("fedcp", PlainFedCP, {"strength": 2.0}),
    "gpfl": Case("gpfl", PlainGPFL, {"strength": 0.05, "decay": 0.2}),
    "fedas": Case("fedas", PlainFedAS, {"align_lr": 0.05, "align_epochs": 2}, PLAIN_SGD),
    "fedbias": Case("fedbias", PlainFedBias),
    "fedprior": Case("fedprior", PlainFedPrior, {"smoothing": 0.5}, has_global=True),
    "fedlc": Case("fedlc", PlainFedLC, {"tau": 2.0}),
    "confree": Case("confree", PlainConFREE, {"radius": 0.7}),
    "fedper+confree": Case("fedper+confree", PlainFedPerConFREE, {"radius": 0.7}),
    "pfedfda": Case("pfedfda", PlainPFedFDA, {"ridge": 0.1, "epsilon": 0.01}),
}


# Against the library


def simulated(name: str, clients: Clients, **options: object) -> Simulation:
    return simulation(
        algorithm(name, train=clients.train, **options),
        clients.federation,
        clients.module,
        rounds=ROUNDS,
        participation=clients.participation,
        engine="stacked",
        dtype=torch.float64,
    )


def drawn(sim: Simulation, name: str) -> dict[str, Tensor]:
    """Initial values of what the library draws, under the names used here."""
    missing = sorted(set(DRAWN[name].values()) - set(sim.setup.start))
    assert not missing, f"the library has no {missing} but {sorted(sim.setup.start)}: adapt DRAWN"
    return {mine: sim.setup.start[theirs] for mine, theirs in DRAWN[name].items()}


def logits(sim: Simulation, rows: Rows, client: int) -> Tensor:
    """What a client's row says on its test samples, in a copy of the model that the algorithm extended."""
    assert sim.template is not None
    net = copy.deepcopy(sim.template).double().eval()
    net.load_state_dict({name: x[client] for name, x in rows.items()}, strict=False)
    held = sim.runtime.federation.split("test").of(client)
    with torch.no_grad():
        out: Tensor = net(sim.runtime.federation.x[held].double())
        return out


def assert_same_predictions(sim: Simulation, progress: Progress, plain: Plain) -> None:
    everybody = torch.arange(sim.setup.clients)
    for stage, rows in (
        ("received", received_models(sim, progress, everybody)),
        ("deployed", deployed(sim, progress, everybody)),
    ):
        gaps = [float((logits(sim, rows, k) - plain.predictions(k)).abs().max()) for k in plain.clients.everybody]
        assert max(gaps) < TOLERANCE, (stage, progress.t, gaps)


def assert_same_global_model(sim: Simulation, progress: Progress, plain: Plain) -> None:
    scores = score_stages(sim, progress, torch.arange(sim.setup.clients), ("test",), ("global",))["test.global"]
    for k in plain.clients.everybody:
        expected = cross_entropy(plain.global_predictions(k), plain.data(k, "test")[1], reduction="sum")
        assert abs(float(scores.loss[k] - expected)) < TOLERANCE, k


def clients_of(case: Case, federation: str, model: str, participation: float) -> Clients:
    return Clients(FEDERATIONS[federation](), MODELS[model](), case.train, participation)


def both(name: str, federation: str, model: str, participation: float) -> tuple[Simulation, Plain]:
    """The library's method and its plain loop, from the same start."""
    case = CASES[name]
    if case.name.partition("+")[0] not in ALGORITHMS:
        pytest.skip(f"the catalogue has no '{case.name}' yet")
    clients = clients_of(case, federation, model, participation)
    sim = simulated(case.name, clients, **case.options)
    parts = {"parts": drawn(sim, case.name)} if case.name in DRAWN else {}
    return sim, case.oracle(clients, **parts, **case.options)


VARIANTS = ("fedrod, not balanced", "feddbe, no momentum", "fedbias", "fedper+confree", "pfedfda")
SETTINGS = (("skewed", "convnorm", 0.5), ("tiny", "convnorm", 1.0), ("skewed", "mlp", 1.0))


def _runs():
    """Each method in the first setting, slowly in one of the other two, in turn, and nightly in the third.

    Every third is fast.
    """
    for place, name in enumerate(CASES):
        yield pytest.param(name, *SETTINGS[0], marks=SLOW if name in VARIANTS or place % 3 else ())
        for number, setting in enumerate(SETTINGS[1:]):
            yield pytest.param(name, *setting, marks=SLOW if number == place % 2 else NIGHTLY)


@pytest.mark.parametrize(("name", "federation", "model", "participation"), list(_runs()))
def test_method_is_its_plain_loop(name: str, federation: str, model: str, participation: float) -> None:
    """And the global model, where there is one that is not what clients receive, has no personal part."""
    sim, plain = both(name, federation, model, participation)
    progress = sim.start()
    for t in range(ROUNDS):
        progress, _ = sim.round(progress, Matrix())
        plain.round(t)
        assert_same_predictions(sim, progress, plain)
    if CASES[name].has_global:
        assert_same_global_model(sim, progress, plain)


# What the plain loops do, whatever the library has


def gap(a: Plain, b: Plain) -> float:
    """The largest difference between predictions."""
    return max(float((a.predictions(k) - b.predictions(k)).abs().max()) for k in a.clients.everybody)


@cache
def usual(name: str) -> Plain:
    """After three rounds; nobody may change it."""
    return ran(CASES[name])


def ran(case: Case, **changed: object) -> Plain:
    torch.manual_seed(0)  # parts that the library draws
    clients = clients_of(case, "skewed", "convnorm", 0.5)
    return case.oracle(clients, **{**case.options, **changed}).run(ROUNDS)


TERMS: dict[str, dict[str, object]] = {
    "fedrod": {"balanced": False},
    "fedpac": {"strength": 0.0},
    "feddbe": {"strength": 0.0},
    "feddbe, no momentum": {"momentum": 0.5},
    "fedcp": {"strength": 0.0},
    "gpfl": {"strength": 0.0},
    "fedas": {"align_epochs": 0},
    "fedprior": {"smoothing": 1e9},
    "fedlc": {"tau": 0.0},
    "confree": {"radius": 0.0},
    "pfedfda": {"beta": 0.5},
}
CHOICES: dict[str, tuple[str, dict[str, object]]] = {
    "fedpac, head epochs": ("fedpac", {"head_epochs": 1}),
    "fedpac, clients never met": ("fedpac", {"unmet": "mean"}),
    "feddbe, shift": ("feddbe", {"train_shift": False}),
    "fedcp, noise": ("fedcp", {"noise": False}),
    "fedcp, context": ("fedcp", {"differentiated": True}),
    "gpfl, decay": ("gpfl", {"decay": 0.0}),
    "gpfl, condition": ("gpfl", {"condition": "current"}),
    "fedas, rate": ("fedas", {"align_lr": 0.01}),
    "fedas, shuffled": ("fedas", {"shuffled": True}),
    "fedas, statistics": ("fedas", {"statistics": "fisher"}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_models_move(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    start = case.oracle(clients_of(case, "skewed", "convnorm", 0.5), **case.options)
    assert gap(usual(name), start) > 1e-2


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "changed"), [*TERMS.items(), *CHOICES.values()], ids=[*TERMS, *CHOICES])
def test_every_term_and_choice_matters(name: str, changed: dict[str, object]) -> None:
    """A library that leaves it out or decides otherwise is found out: predictions differ by far more than 1e-8."""
    assert gap(usual(name), ran(CASES[name], **changed)) > 1e-6


@pytest.mark.nightly
def test_parts_are_personal() -> None:
    rod, bias, dbe, cp = (usual(name) for name in ("fedrod", "fedbias", "feddbe", "fedcp"))
    for plain, name in ((rod, "extra.weight"), (bias, "body.fc.bias"), (dbe, "shift"), (cp, "extra.weight")):
        assert len(plain.own) > 1
        assert set(next(iter(plain.own.values()))) <= {n for n in plain.server if plain.stays(n)}
        assert len({float(own[name].flatten()[0]) for own in plain.own.values()}) == len(plain.own)


def test_half_of_the_clients_leaves_somebody_out() -> None:
    """So clients that were never met, and clients that were away for a round, are among those compared."""
    cohorts = [Plain(clients_of(CASES["fedbias"], "skewed", "convnorm", 0.5)).cohort(t) for t in range(ROUNDS)]
    met = {k for cohort in cohorts for k in cohort}
    assert len(met) < 6 or len({k for cohort in cohorts[:2] for k in cohort}) < 6
    assert set(cohorts[0]) - set(cohorts[-1])


# The loop itself, against methods that the library has


def against(name: str, plain: Plain, t: int = 0, **options: object) -> float:
    """The largest difference of predictions after three rounds from round t on."""
    sim = simulated(name, plain.clients, **options)
    progress = replace(sim.start(), t=t)
    for round_ in range(t, ROUNDS):
        progress, _ = sim.round(progress, Matrix())
        plain.round(round_)
    rows = received_models(sim, progress, torch.arange(sim.setup.clients))
    same = [
        float((log_softmax(logits(sim, rows, k), 1) - log_softmax(plain.predictions(k), 1)).abs().max())
        for k in plain.clients.everybody
    ]
    return max(same)


def some_clients(
    participation: float = 0.5,
    model: str = "convnorm",
    federation: Federation | None = None,
    train: LocalTraining = TRAIN,
) -> Clients:
    return Clients(federation or skewed(), MODELS[model](), train, participation)


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
def test_the_loop_is_fedavg_and_fedper(model: str) -> None:
    assert against("fedavg", Plain(some_clients(model=model))) < TOLERANCE
    assert against("fedper", PlainFedPer(some_clients(model=model))) < TOLERANCE
    assert against("fedper", Plain(some_clients(model=model))) > 1e-3


@pytest.mark.nightly
def test_fedprior_with_much_smoothing_is_fedavg() -> None:
    assert against("fedavg", PlainFedPrior(some_clients(), smoothing=1e14)) < TOLERANCE


def test_fedprior_adds_log_frequencies() -> None:
    plain = PlainFedPrior(Clients(labelled([[0, 0, 0, 1]]), mlp(), TRAIN), smoothing=1.0)
    added = plain.predictions(0) - plain.global_predictions(0)
    torch.testing.assert_close(added.exp(), torch.tensor([[4 / 7, 2 / 7, 1 / 7]]).double().expand(6, 3))


@pytest.mark.nightly
def test_fedbias_with_one_client_is_local_training() -> None:
    alone = labelled([[0, 1, 2] * 7])
    assert against("local", PlainFedBias(some_clients(1.0, federation=alone))) < TOLERANCE


@pytest.mark.nightly
def test_fedrod_without_balance_has_fedavg_below_its_personal_heads() -> None:
    class Generic(PlainFedRoD):
        def predictions(self, client: int, split: str = "test") -> Tensor:
            return self.global_predictions(client, split)

    assert against("fedavg", Generic(some_clients(), balanced=False)) < TOLERANCE
    equal = labelled([[0, 1, 2] * n for n in (7, 3, 5, 2)])  # equal counts: the prior is the same for all classes
    assert against("fedavg", Generic(some_clients(federation=equal))) < TOLERANCE
    assert against("fedavg", Generic(some_clients())) > 1e-3


@pytest.mark.nightly
def test_feddbe_without_its_parts_is_fedavg_from_the_second_round() -> None:
    plain = PlainFedDBE(some_clients(), strength=0.0, train_shift=False)
    plain.round(0)
    assert against("fedavg", plain, t=1) < TOLERANCE


@pytest.mark.nightly
def test_feddbe_means_are_those_of_every_client() -> None:
    plain = PlainFedDBE(some_clients(0.5))
    plain.round(0)
    models = {k: plain.without_shift(k) for k in range(6)}
    pooled = torch.cat([plain.features(models[k], k)[0] for k in range(6)]).mean(0)
    torch.testing.assert_close(plain.feature_mean, pooled)
    assert all(torch.equal(plain.server[n], x) for n, x in PlainFedDBE(some_clients()).server.items())


class OwnHead(PlainFedPAC):
    """FedPAC that mixes no heads."""

    def mixture(self, i: int, cohort: list[int]) -> Tensor:
        return torch.eye(len(cohort), dtype=torch.float64)[cohort.index(i)]


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
def test_fedpac_without_prototypes_and_mixtures_is_fedrep(model: str) -> None:
    plain = OwnHead(some_clients(model=model), strength=0.0, head_epochs=2)
    assert against("fedrep", plain, head_epochs=2) < TOLERANCE
    assert against("fedrep", OwnHead(some_clients(model=model), strength=1.0, head_epochs=2), head_epochs=2) > 1e-3


@pytest.mark.nightly
def test_fedpac_mixes_heads() -> None:
    mixed, own = (make(some_clients(1.0), strength=0.7) for make in (PlainFedPAC, OwnHead))
    assert gap(mixed.run(ROUNDS), own.run(ROUNDS)) > 1e-3
    shares = torch.stack(list(mixed.mixtures.values()))
    assert ((shares > 0).sum(1) > 1).any()
    assert ((shares == 0).sum(1) > 0).any()


@pytest.mark.nightly
def test_fedpac_has_no_prototype_of_a_class_before_somebody_has_it() -> None:
    plain = PlainFedPAC(some_clients())
    without = {k: plain.work(plain.received(k), k, 0) for k in (0, 3)}
    plain.merge(without, 0)
    assert set(plain.prototypes) == {0, 1}
    before = dict(plain.prototypes)
    plain.merge({2: plain.work(plain.received(2), 2, 1)}, 1)  # it has class 1 alone
    assert torch.equal(plain.prototypes[0], before[0])
    assert not torch.equal(plain.prototypes[1], before[1])


@pytest.mark.nightly
def test_fedpac_solves_its_programme() -> None:
    generator = torch.Generator().manual_seed(2)
    for _ in range(20):
        A = torch.randn(5, 4, generator=generator, dtype=torch.float64)
        Q = A @ A.T + torch.diag(torch.rand(5, generator=generator, dtype=torch.float64) + 0.01)
        alpha = best_mixture(Q)
        slope = 2 * Q @ alpha  # optimal: where α > 0 the slope is the least one
        assert alpha.min() >= 0
        assert abs(float(alpha.sum()) - 1) < 1e-12
        assert float((slope[alpha > 0] - slope.min()).max()) < 1e-10
    torch.testing.assert_close(best_mixture(torch.eye(4).double()), torch.full((4,), 0.25).double())


def test_fedpac_describes_features_by_their_definition() -> None:
    z = torch.randn(30, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.arange(30) % 2
    told = Described.of(z, y)
    torch.testing.assert_close(told.H, torch.stack([z[y == 0].sum(0), z[y == 1].sum(0), torch.zeros(4)]) / 30)
    torch.testing.assert_close(told.V, float(z.square().sum() / 30 - told.H.square().sum()) / 30)
    assert told.V > 0


@pytest.mark.nightly
def test_fedas_without_alignment_is_fedper_with_other_weights() -> None:
    class BySamples(PlainFedAS):
        def fisher(self, net: nn.Module, client: int, t: int) -> float:
            return float(self.clients.samples(client))

    train = PLAIN_SGD
    assert against("fedper", BySamples(some_clients(train=train), align_epochs=0)) < TOLERANCE
    still = BySamples(some_clients(model="mlp", train=train), align_lr=0.0)  # without BatchNorm nothing moves at all
    assert against("fedper", still) < TOLERANCE
    assert against("fedper", PlainFedAS(some_clients(model="mlp", train=train), align_lr=0.0)) > 1e-3


def test_fedas_sums_squared_gradients_of_batches() -> None:
    """For softmax regression they are (p − y)·xᵀ, averaged over the batch."""
    module = build("mlp", shape=SHAPE, classes=CLASSES, hidden=()).double()
    plain = PlainFedAS(Clients(skewed(), module, PLAIN_SGD))
    x, y = plain.data(0)
    with torch.no_grad():
        wrong = module(x).softmax(1) - torch.eye(CLASSES).double()[y]
    with_bias = torch.cat([x.flatten(1), torch.ones(len(x), 1)], 1)
    expected = [(e.T @ z / len(e)).square().sum() for e, z in zip(wrong.split(10), with_bias.split(10), strict=True)]
    assert plain.fisher(plain.load(plain.server), 0, 0) == pytest.approx(float(sum(expected)))
    assert len(expected) == 3


def test_fedcp_draws_gumbel_noise() -> None:
    x, y = torch.zeros(200, 1), torch.zeros(200, dtype=torch.int64)
    u = Batch(x, y, keys.keys(0, 0, torch.tensor(3), "train/0/noise")).uniform("gumbel", (2, 50))
    assert 0 < float(u.min()) < float(u.max()) < 1
    noise = -torch.log(-torch.log(u))
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.03)
    assert float(noise.var()) == pytest.approx(torch.pi**2 / 6, abs=0.08)


def test_fedcp_measures_a_discrepancy() -> None:
    a, b = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert float(mmd(a, a)) == pytest.approx(0, abs=1e-15)
    assert float(mmd(a, b)) == pytest.approx(float(mmd(b, a)))
    k = [
        [sum(torch.exp(-(p - q).square().sum() / (2 * s)) for s in (10, 15, 20, 50)) for q in (*a, *b)]
        for p in (*a, *b)
    ]
    sign = [1] * 5 + [-1] * 5
    by_hand = sum(sign[i] * sign[j] * float(k[i][j]) for i in range(10) for j in range(10)) / 25
    assert float(mmd(a, b)) == pytest.approx(by_hand)


@pytest.mark.nightly
def test_fedcp_with_an_even_policy_averages_two_heads() -> None:
    plain = PlainFedCP(some_clients())
    even = {n: torch.zeros_like(x) if n.startswith("policy.") else x for n, x in plain.server.items()}
    x, _ = plain.data(0, "test")
    net = plain.load(even)
    with torch.no_grad():
        z = net.features(x)
        torch.testing.assert_close(plain.logits(net, x, 0), net.head(z / 2) * 2)  # both heads are the same at first


@pytest.mark.nightly
def test_fedcp_sees_one_context_in_a_round() -> None:
    """Whether a library takes it from the head as received or as it is now makes no difference."""
    plain = PlainFedCP(some_clients())
    before = plain.received(0)["extra.weight"]
    after = plain.work(plain.received(0), 0, 0)["extra.weight"]
    torch.testing.assert_close(*(x.sum(0) / x.sum(0).norm() for x in (before, after)))
    assert float((after - before).abs().max()) > 1e-2


@pytest.mark.nightly
def test_gpfl_with_a_closed_valve_is_its_base_and_head() -> None:
    plain = PlainGPFL(some_clients())
    closed = {n: torch.zeros_like(x) if n.split(".")[0] in ("gamma", "beta") else x for n, x in plain.server.items()}
    x, _ = plain.data(0, "test")
    net = plain.load(closed)
    with torch.no_grad():
        torch.testing.assert_close(plain.logits(net, x, 0), net.body(x))  # features are not negative


def test_gpfl_conditions_are_means_of_embeddings() -> None:
    plain = PlainGPFL(some_clients())
    g, p = plain.conditions(plain.net, 1)
    e = plain.server["embedding.weight"]
    torch.testing.assert_close(g, e.sum(0) / 3)
    torch.testing.assert_close(p, (3 * e[0] + 8 * e[2]) / 11)


def test_names_of_layers_are_as_the_loops_say() -> None:
    for make in MODELS.values():
        names = [f"body.{n}" for n, _ in make().named_parameters()]
        assert all(n.startswith(BASE_LAYERS) != n.startswith(HEAD) for n in names)
