"""Global, fine-tuned and regularised methods against plain loops, and the loops against what is simpler than they are.

BatchNorm's statistics are part of what is compared. A method that is not in the catalogue is skipped.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache

import plain_clients
import pytest
import torch
from plain_clients import Clients, Model
from plain_descents import PlainMethod, change, furthest, moved, network, statistics, trainable
from plain_global import PlainFedExp, PlainFedOpt, PlainMoon, PlainScaffold
from plain_personal import PlainDitto, PlainFedAvgFT, PlainFedAvgLPFT, PlainFedBABU, PlainPerFedAvg, PlainPFedMe
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import conv2d, cross_entropy, softplus

from methods import PARTICIPATION
from stratafl.algorithms import ALGORITHMS, algorithm, fedavg, fedper, fedprox, local
from stratafl.core.algorithm import Algorithm
from stratafl.core.layers import select
from stratafl.core.layout import Rows
from stratafl.core.state import rows_of
from stratafl.evaluation.evaluate import deployed, received_models
from stratafl.execute import Matrix, Progress, Simulation, simulation
from stratafl.models import Staged
from stratafl.policies import Exponential, LocalTraining, Mean
from tiers import slow_except

pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.budget(1.2, "three rounds beside a plain loop")]

D = torch.float64
ROUNDS = 3
SEED = 3  # with which half of the clients in three rounds are one client that never takes part, and three that do twice
PLAIN = LocalTraining(lr=0.1, epochs=1, batch=8)
HEAVY = replace(PLAIN, momentum=0.5, weight_decay=0.01)
# Clients of 7 and of 4 samples take no step.
EVERYTHING = replace(HEAVY, clip=0.5, drop_last=True, schedule=Exponential(0.8))
CORRECTED = replace(EVERYTHING, momentum=0.0)
FAR = replace(HEAVY, lr=0.5, epochs=2)  # clients that go far from each other
WHOLE = LocalTraining(lr=0.1, epochs=1, batch=40)  # one step a round, on all samples
FIXED = {"head": ("fc",), "last:2": ("conv2", "bn2", "fc")}


@dataclass(frozen=True)
class Case:
    """A method with options, and its plain loop; `oracle` holds options that the loop spells differently."""

    name: str
    plain: type[PlainMethod]
    train: LocalTraining
    options: Mapping[str, object] = field(default_factory=dict)
    oracle: Mapping[str, object] = field(default_factory=dict)


ADAPTIVE = {"server_lr": 0.03, "beta1": 0.8, "beta2": 0.9, "tau": 0.02}
PFEDME = {"strength": 6.0, "inner": 2, "personal_lr": 0.05, "beta": 0.6}
CASES = {
    "scaffold": Case("scaffold", PlainScaffold, PLAIN, {"server_lr": 0.7}),
    "scaffold, clipped, decayed": Case("scaffold", PlainScaffold, CORRECTED, {"server_lr": 1.2}),
    "fedexp": Case("fedexp", PlainFedExp, FAR, {"epsilon": 0.05}),
    "fedopt, adam": Case("fedopt", PlainFedOpt, HEAVY, {"optimizer": "adam", **ADAPTIVE}),
    "fedopt, yogi": Case("fedopt", PlainFedOpt, HEAVY, {"optimizer": "yogi", **ADAPTIVE}),
    "fedopt, momentum": Case("fedopt", PlainFedOpt, HEAVY, {"optimizer": "momentum", "server_lr": 0.6, "beta1": 0.7}),
    "moon": Case("moon", PlainMoon, HEAVY, {"strength": 3.0, "temperature": 0.3}),
    "ditto": Case("ditto", PlainDitto, HEAVY, {"strength": 0.4, "personal_epochs": 2}),
    "ditto, clipped": Case("ditto", PlainDitto, replace(HEAVY, clip=0.5), {"strength": 2.0}),
    "pfedme": Case("pfedme", PlainPFedMe, PLAIN, PFEDME),
    "perfedavg, fo": Case("perfedavg", PlainPerFedAvg, PLAIN, {"version": "fo", "alpha": 0.3}),
    "perfedavg, hf": Case("perfedavg", PlainPerFedAvg, PLAIN, {"version": "hf", "alpha": 0.2, "delta": 0.01}),
    "perfedavg, one rate": Case("perfedavg", PlainPerFedAvg, PLAIN, {"version": "hf"}),
    "fedavgft": Case("fedavgft", PlainFedAvgFT, HEAVY, {"tune_epochs": 3}),
    "fedavglpft": Case("fedavglpft", PlainFedAvgLPFT, HEAVY, {"head_epochs": 2, "tune_epochs": 3}),
    "fedbabu": Case("fedbabu", PlainFedBABU, HEAVY, {"tune_epochs": 2}),
    "fedbabu, two blocks": Case(
        "fedbabu", PlainFedBABU, HEAVY, {"tune_epochs": 2, "fixed": "last:2"}, {"fixed": FIXED["last:2"]}
    ),
}


def clients(participation: float = 1.0, train: LocalTraining = PLAIN) -> Clients:
    return replace(plain_clients.clients(participation, train), seed=SEED)


@cache
def oracle(case: str, participation: float) -> PlainMethod:
    chosen = CASES[case]
    made = chosen.plain(clients(participation, chosen.train), **{**chosen.options, **chosen.oracle})
    return made.run(ROUNDS)


@cache
def averaged(train: LocalTraining, participation: float) -> PlainMethod:
    return PlainMethod(clients(participation, train)).run(ROUNDS)


def simulated(method: Algorithm, plain: Clients, rounds: int = ROUNDS) -> tuple[Simulation, Progress]:
    run = {"rounds": rounds, "participation": plain.participation, "seed": plain.seed}
    sim = simulation(method, plain.federation, plain.module, dtype=D, **run)  # type: ignore[arg-type]
    return sim, sim.run(Matrix())


def assert_rows(rows: Rows, models: Iterable[Model], tolerance: float = 1e-8) -> None:
    """Row k is the k-th model."""
    gaps = [furthest({n: x[k] for n, x in rows.items()}, model) for k, model in enumerate(models)]
    assert max(gaps) < tolerance, gaps


def assert_stages(found: tuple[Simulation, Progress], plain: PlainMethod, tolerance: float = 1e-8) -> None:
    """Every client's model as received and deployed, whether it ever took part or not, and the server's."""
    sim, progress = found
    ids = torch.tensor(plain.clients.everybody)
    assert_rows(received_models(sim, progress, ids), map(plain.received, plain.clients.everybody), tolerance)
    assert_rows(deployed(sim, progress, ids), map(plain.deployed, plain.clients.everybody), tolerance)
    served = rows_of(progress.server, sim.algorithm.global_model or "theta")
    assert set(served) >= set(plain.sent)
    assert furthest(served, {n: plain.global_model[n] for n in served}) < tolerance


# The methods of the catalogue


QUICK = ("scaffold", "fedopt, adam", "moon", "pfedme")
ALL = ("scaffold, clipped, decayed", "ditto, clipped", "pfedme")  # with all clients, slowly


@pytest.mark.parametrize(
    ("case", "participation"),
    slow_except(((case, 0.5) for case in QUICK), [*((case, 0.5) for case in CASES), *((case, 1.0) for case in ALL)]),
)
def test_method_is_its_plain_loop(case: str, participation: float) -> None:
    chosen = CASES[case]
    if chosen.name not in ALGORITHMS:
        pytest.skip(f"'{chosen.name}' is not in the catalogue")
    plain = oracle(case, participation)
    assert_stages(simulated(algorithm(chosen.name, train=chosen.train, **chosen.options), plain.clients), plain)


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_models_move_and_the_method_is_not_fedavg(case: str) -> None:
    """Otherwise a comparison would show nothing."""
    plain, plainer = oracle(case, 0.5), averaged(CASES[case].train, 0.5)
    for client in plain.clients.everybody:
        for model in (plain.received(client), plain.deployed(client)):
            assert furthest(model, plain.start) > 1e-3
            assert all(bool(x.isfinite().all()) for x in model.values())
        if any(client in plain.clients.sampled(t) for t in range(ROUNDS)):
            assert furthest(plain.deployed(client), plainer.deployed(client)) > 1e-6


def _options() -> list[tuple[str, str]]:
    """Every option of every case that is not the loop's default."""
    given = [(name, each, {**case.options, **case.oracle}) for name, case in CASES.items() for each in case.options]
    defaults = {name: {f.name: f.default for f in fields(case.plain)} for name, case in CASES.items()}
    return [(name, option) for name, option, values in given if values[option] != defaults[name][option]]


@pytest.mark.nightly
@pytest.mark.parametrize(("case", "option"), _options())
def test_every_option_acts(case: str, option: str) -> None:
    """A case with one option left at its default ends with other models."""
    chosen, plain = CASES[case], oracle(case, 0.5)
    options = {name: value for name, value in {**chosen.options, **chosen.oracle}.items() if name != option}
    other = chosen.plain(clients(0.5, chosen.train), **options).run(ROUNDS)
    assert max(furthest(plain.deployed(k), other.deployed(k)) for k in plain.clients.everybody) > 1e-6


def test_some_clients_take_part_twice_and_some_never() -> None:
    plain = clients(0.5)
    times = [sum(k in plain.sampled(t) for t in range(ROUNDS)) for k in plain.everybody]
    assert sorted(times) == [0, 1, 2, 2, 2, 2]


# Each loop in a case in which it must be something simpler


def uniform(train: LocalTraining) -> Algorithm:
    return replace(fedavg(train=train), merge=(Mean(weights="uniform"),))


@pytest.mark.nightly
@pytest.mark.parametrize("participation", PARTICIPATION)
def test_scaffold_begins_as_fedavg_with_uniform_weights(participation: float) -> None:
    plain = PlainScaffold(clients(participation, HEAVY))
    assert_stages(simulated(uniform(HEAVY), plain.clients, rounds=1), plain.run(1))


@pytest.mark.nightly
def test_scaffolds_server_goes_part_of_the_way() -> None:
    whole, part = (PlainScaffold(clients(train=PLAIN), rate).run(1) for rate in (1.0, 0.7))
    expected = {n: whole.start[n] + 0.7 * d for n, d in change(whole.global_model, whole.start).items()}
    assert furthest(trainable(part.global_model), expected) < 1e-12
    assert furthest(statistics(part.global_model), statistics(whole.global_model)) < 1e-12


@pytest.mark.nightly
def test_scaffold_of_one_step_a_round_is_fedavg_with_uniform_weights() -> None:
    """The corrections of all clients sum to 0, and no client has moved when it takes its gradient."""
    plain = PlainScaffold(clients(train=WHOLE))
    assert_stages(simulated(uniform(WHOLE), plain.clients), plain.run(ROUNDS))
    assert all(furthest(c, plain.c) > 1e-3 for c in plain.own_c)


@pytest.mark.nightly
def test_control_variates_are_mean_gradients() -> None:
    """c_i⁺ = c_i − c + (x − y)/(Kη): the mean of g_i over K steps, whatever c_i and c were before."""
    plain = PlainScaffold(clients(0.5, replace(WHOLE, epochs=2, schedule=Exponential(0.5)))).run(2)
    c, before, x = plain.c, list(plain.own_c), dict(plain.global_model)
    plain.round(2)
    for k in plain.clients.everybody:
        if k not in plain.clients.sampled(2):
            assert plain.own_c[k] is before[k]
            continue
        samples = plain.clients.federation.split("train").of(k)
        first, _ = exact_gradient(plain.clients, x, samples)
        y = moved(x, {n: g - before[k][n] + c[n] for n, g in first.items()}, -0.1 * 0.5**2)
        second, _ = exact_gradient(plain.clients, y, samples)
        assert furthest(plain.own_c[k], {n: (first[n] + second[n]) / 2 for n in first}) < 1e-10


@pytest.mark.nightly
@pytest.mark.parametrize("participation", PARTICIPATION)
@pytest.mark.parametrize("case", ["scaffold", "scaffold, clipped, decayed"])
def test_the_servers_control_variate_is_the_mean_of_all_clients(case: str, participation: float) -> None:
    plain = oracle(case, participation)
    assert isinstance(plain, PlainScaffold)
    mean = {n: torch.stack([c[n] for c in plain.own_c]).mean(0) for n in plain.c}
    assert furthest(plain.c, mean) < 1e-12
    assert max(float(x.abs().max()) for x in mean.values()) > 1e-3


@pytest.mark.nightly
def test_clients_without_a_batch_keep_their_control_variate() -> None:
    plain = oracle("scaffold, clipped, decayed", 1.0)
    assert isinstance(plain, PlainScaffold)
    corrected = [any(bool(x.any()) for x in c.values()) for c in plain.own_c]
    assert corrected == [plain.clients.samples(k) >= 8 for k in plain.clients.everybody]


DEGENERATE: dict[str, tuple[Callable[[Clients], PlainMethod], LocalTraining]] = {
    "fedexp with a large epsilon": (lambda c: PlainFedExp(c, 1e9), HEAVY),
    "momentum without momentum": (lambda c: PlainFedOpt(c, "momentum", server_lr=1.0, beta1=0.0), HEAVY),
    # v stays at τ², so that lr/(√v + τ) is 1.
    "adam without memory": (lambda c: PlainFedOpt(c, "adam", 0.2, beta1=0.0, beta2=1.0, tau=0.1), HEAVY),
    "yogi without memory": (lambda c: PlainFedOpt(c, "yogi", 0.2, beta1=0.0, beta2=1.0, tau=0.1), HEAVY),
    "moon of strength 0": (lambda c: PlainMoon(c, strength=0.0), HEAVY),
    "no tuning": (lambda c: PlainFedAvgFT(c, tune_epochs=0), HEAVY),
    "no probing and no tuning": (lambda c: PlainFedAvgLPFT(c, tune_epochs=0, head_epochs=0), HEAVY),
}


@pytest.mark.nightly
@pytest.mark.parametrize("participation", PARTICIPATION)
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_loops_are_fedavg(case: str, participation: float) -> None:
    make, train = DEGENERATE[case]
    plain = make(clients(participation, train)).run(ROUNDS)
    assert_stages(simulated(fedavg(train=train), plain.clients), plain)


@pytest.mark.nightly
@pytest.mark.parametrize("participation", PARTICIPATION)
def test_fedexp_meets_both_sides_of_its_maximum(participation: float) -> None:
    plain = oracle("fedexp", participation)
    assert isinstance(plain, PlainFedExp)
    assert min(plain.steps) == 1
    assert max(plain.steps) > 1.2


def test_fedexp_step_by_hand() -> None:
    """Clients of 31 and 23 samples go (3, 1) and (−3, 1), their statistics to 1 and 2."""
    plain = PlainFedExp(clients(), epsilon=0.5)
    start = {"w": torch.tensor([1.0, 1.0], dtype=D), "bn.running_mean": torch.tensor([0.0], dtype=D)}
    ends = {
        0: {"w": torch.tensor([4.0, 2.0], dtype=D), "bn.running_mean": torch.tensor([1.0], dtype=D)},
        1: {"w": torch.tensor([-2.0, 2.0], dtype=D), "bn.running_mean": torch.tensor([2.0], dtype=D)},
    }
    plain.global_model = start
    a, b = 31 / 54, 23 / 54
    x, step = 3 * (a - b), 10 / (2 * ((3 * (a - b)) ** 2 + 1 + 0.5))
    assert step > 1
    found = plain.merged(ends)
    torch.testing.assert_close(found["w"], torch.tensor([1 + step * x, 1 + step], dtype=D))
    torch.testing.assert_close(found["bn.running_mean"], torch.tensor([a + 2 * b], dtype=D))


@pytest.mark.parametrize(
    ("optimizer", "first", "second"),
    [
        # Changes 1 and −2, β1 = β2 = 0.5, τ = 0.5, so v begins at 0.25.
        ("adam", 0.5 / (0.625**0.5 + 0.5), -0.75 / (2.3125**0.5 + 0.5)),
        ("yogi", 0.5 / (0.75**0.5 + 0.5), -0.75 / (2.75**0.5 + 0.5)),
        ("momentum", 1.0, -1.5),
    ],
)
def test_server_optimizers_by_hand(optimizer: str, first: float, second: float) -> None:
    plain = PlainFedOpt(clients(), optimizer, beta1=0.5, beta2=0.5, tau=0.5)
    name = next(iter(plain.m))
    one = torch.ones_like(plain.m[name])
    torch.testing.assert_close(plain.step(name, one), first * one)
    torch.testing.assert_close(plain.step(name, -2 * one), second * one)


def test_yogi_lets_v_fall_by_no_more_than_the_square() -> None:
    plain = PlainFedOpt(clients(), "yogi", beta1=0.0, beta2=0.5, tau=2.0)
    name = next(iter(plain.m))
    one = torch.ones_like(plain.m[name])
    torch.testing.assert_close(plain.step(name, one), one / (3.5**0.5 + 2))  # 4 − 0.5·1


@pytest.mark.nightly
def test_moon_begins_as_fedavg() -> None:
    """The previous model is the received one: its term is a constant."""
    plain = PlainMoon(clients(train=HEAVY), strength=5.0).run(1)
    assert_stages(simulated(fedavg(train=HEAVY), plain.clients, rounds=1), plain)


@pytest.mark.nightly
def test_moon_pulls_features_to_the_received_model() -> None:
    """ℓ_con = log(1 + e^((cos(z, z_p) − cos(z, z_g))/τ)), with z_g and z_p of networks in evaluation mode."""
    plain = PlainMoon(clients(train=HEAVY), strength=2.0, temperature=0.3).run(1)
    previous, model = plain.previous[0], plain.previous[1]
    x, y = plain.clients.federation.x[:9], plain.clients.federation.y[:9]
    net = network(plain.clients, model)
    assert isinstance(net, Staged)
    z = net.features(x)

    def asked(other: Model) -> Tensor:
        staged = network(plain.clients, other).eval()
        assert isinstance(staged, Staged)
        return staged.features(x).detach()

    near, far = (torch.cosine_similarity(z, asked(other)) for other in (plain.global_model, previous))
    found = plain.loss(previous)(network(plain.clients, model), x, y) - cross_entropy(net(x), y)
    torch.testing.assert_close(found, 2 * softplus((far - near) / 0.3).mean())


@pytest.mark.nightly
def test_ditto_of_strength_0_is_local_training_beside_fedavg() -> None:
    plain = PlainDitto(clients(train=HEAVY), strength=0.0).run(ROUNDS)
    sim, progress = simulated(local(train=replace(HEAVY, purpose="personal")), plain.clients)
    everybody = plain.clients.everybody
    assert_rows(received_models(sim, progress, torch.tensor(everybody)), map(plain.received, everybody))
    sim, progress = simulated(fedavg(train=HEAVY), plain.clients)
    assert furthest(rows_of(progress.server, "theta"), plain.global_model) < 1e-8


@pytest.mark.nightly
@pytest.mark.parametrize("participation", PARTICIPATION)
def test_personal_models_of_ditto_begin_as_those_of_fedprox(participation: float) -> None:
    train = replace(HEAVY, clip=0.5)
    plain = PlainDitto(clients(participation, train), strength=2.0, personal_epochs=3).run(1)
    prox = fedprox(strength=2.0, train=replace(train, epochs=3, purpose="personal"))
    _, progress = simulated(prox, plain.clients, rounds=1)
    assert furthest(rows_of(progress.server, "theta"), plain.clients.mean(plain.personal)) < 1e-8


@pytest.mark.nightly
def test_personal_models_of_ditto_are_pulled_to_what_was_received() -> None:
    plain = PlainDitto(clients(train=WHOLE), strength=2.0).run(1)
    v, w = dict(plain.personal), plain.global_model
    plain.round(1)
    for k in plain.clients.everybody:
        g, _ = exact_gradient(plain.clients, v[k], plain.clients.federation.split("train").of(k))
        expected = {n: v[k][n] - 0.1 * (g[n] + 2.0 * (v[k][n] - w[n])) for n in g}
        assert furthest(trainable(plain.personal[k]), expected) < 1e-10


@pytest.mark.nightly
@pytest.mark.parametrize("participation", PARTICIPATION)
def test_pfedme_whose_local_model_takes_over_its_personal_one_is_fedavg(participation: float) -> None:
    """With one inner step and η·strength = 1, w_i = θ after every batch, and nothing pulls."""
    plain = PlainPFedMe(clients(participation, PLAIN), strength=10.0, inner=1, personal_lr=0.07).run(ROUNDS)
    _, progress = simulated(fedavg(train=replace(PLAIN, lr=0.07)), plain.clients)
    assert furthest(rows_of(progress.server, "theta"), plain.global_model) < 1e-8
    last = {k: plain.personal[k] for k in plain.clients.sampled(ROUNDS - 1)}
    assert furthest(plain.clients.mean(last), plain.global_model) < 1e-8


@pytest.mark.nightly
@pytest.mark.parametrize("participation", PARTICIPATION)
def test_pfedme_whose_local_model_stands_still_is_fedprox(participation: float) -> None:
    still = replace(PLAIN, lr=0.0)
    plain = PlainPFedMe(clients(participation, still), strength=3.0, inner=1, personal_lr=0.07).run(1)
    prox = fedprox(strength=3.0, train=replace(PLAIN, lr=0.07))
    _, progress = simulated(prox, plain.clients, rounds=1)
    assert furthest(rows_of(progress.server, "theta"), plain.clients.mean(plain.personal)) < 1e-8
    assert furthest(trainable(plain.global_model), trainable(plain.start)) < 1e-12


@pytest.mark.nightly
def test_pfedmes_server_goes_part_of_the_way() -> None:
    whole, part = (PlainPFedMe(clients(train=PLAIN), 6.0, 3, 0.05, beta=beta).run(1) for beta in (1.0, 0.6))
    expected = {n: whole.start[n] + 0.6 * d for n, d in change(whole.global_model, whole.start).items()}
    assert furthest(trainable(part.global_model), expected) < 1e-12
    assert furthest(statistics(part.global_model), statistics(whole.global_model)) < 1e-12


@pytest.mark.nightly
def test_pfedme_repeats_a_batch() -> None:
    """Without a pull, K inner steps on all samples are K epochs of that."""
    still = replace(WHOLE, lr=0.0)
    plain = PlainPFedMe(clients(train=still), strength=0.0, inner=3, personal_lr=0.1).run(1)
    _, progress = simulated(fedavg(train=replace(WHOLE, epochs=3)), plain.clients, rounds=1)
    assert furthest(rows_of(progress.server, "theta"), plain.clients.mean(plain.personal)) < 1e-8


@pytest.mark.nightly
@pytest.mark.parametrize("version", ["fo", "hf"])
def test_perfedavg_without_a_step_is_fedavg(version: str) -> None:
    """On all samples at once, since its gradients are taken on the second draw."""
    train = replace(WHOLE, epochs=2)
    plain = PlainPerFedAvg(clients(train=train), version, alpha=0.0).run(ROUNDS)
    _, progress = simulated(fedavg(train=train), plain.clients)
    assert furthest(rows_of(progress.server, "theta"), plain.global_model) < 1e-8


def exact_gradient(clients: Clients, model: Model, samples: Tensor, alpha: float = 0.0) -> tuple[Model, Model]:
    """∇ of w ↦ L(w − α∇L(w)) through the step, and ∇L at w − α∇L(w): MAML by automatic differentiation."""
    x, y = clients.federation.x[samples], clients.federation.y[samples]
    w = {n: p.clone().requires_grad_() for n, p in trainable(model).items()}
    net = network(clients, model)

    def loss(at: Mapping[str, Tensor]) -> Tensor:
        return cross_entropy(functional_call(net, dict(at), (x,)), y)

    inner = torch.autograd.grad(loss(w), list(w.values()), create_graph=True)
    stepped = {n: p - alpha * g for (n, p), g in zip(w.items(), inner, strict=True)}
    outer = loss(stepped)
    direct = torch.autograd.grad(outer, list(stepped.values()), retain_graph=True)
    through = torch.autograd.grad(outer, list(w.values()))
    return dict(zip(w, through, strict=True)), dict(zip(w, direct, strict=True))


@pytest.mark.nightly
def test_meta_gradients_are_those_of_automatic_differentiation() -> None:
    """On one batch in all three places, FO is the gradient at w̃ and HF that through the step."""
    first = PlainPerFedAvg(clients(train=PLAIN), "fo", alpha=0.3)
    second = PlainPerFedAvg(clients(train=PLAIN), "hf", alpha=0.3, delta=1e-6)
    samples = first.clients.federation.split("train").of(0)
    through, direct = exact_gradient(first.clients, first.start, samples, 0.3)
    assert furthest(first.meta_gradient(first.start, samples, samples, samples)[0], direct) < 1e-10
    assert furthest(second.meta_gradient(second.start, samples, samples, samples)[0], through) < 1e-6
    assert furthest(through, direct) > 1e-3


@pytest.mark.nightly
def test_each_draw_of_perfedavg_has_its_place() -> None:
    plain = PlainPerFedAvg(clients(train=PLAIN), "hf", alpha=0.3)
    a, b, c = plain.clients.federation.split("train").of(0)[:30].split(10)
    given, passed = plain.meta_gradient(plain.start, a, b, c)
    for other in ((b, b, c), (a, a, c), (a, b, a)):
        assert furthest(given, plain.meta_gradient(plain.start, *other)[0]) > 1e-3
    # The pass at w̃ on the second draw moves statistics, a tenth of the way from 0, and no other pass does.
    _, at_w = exact_gradient(plain.clients, plain.start, a)
    first = conv2d(plain.clients.federation.x[b], plain.start["conv1.weight"] - 0.3 * at_w["conv1.weight"], padding=1)
    torch.testing.assert_close(passed["bn1.running_mean"], 0.1 * first.mean((0, 2, 3)))


def tuned(method: Algorithm, *steps: LocalTraining) -> Algorithm:
    return replace(method, tune=steps)  # type: ignore[type-var]


@pytest.mark.nightly
@pytest.mark.parametrize("participation", PARTICIPATION)
def test_tuned_loops_are_fedavg_with_tune_steps(participation: float) -> None:
    everything = replace(HEAVY, epochs=3, purpose="tune")
    head = replace(HEAVY, epochs=2, purpose="probe", layers=select("head"))
    for case, steps in (("fedavgft", (everything,)), ("fedavglpft", (head, everything))):
        plain = oracle(case, participation)
        assert_stages(simulated(tuned(fedavg(train=HEAVY), *steps), plain.clients), plain)


@pytest.mark.nightly
@pytest.mark.parametrize("participation", PARTICIPATION)
def test_perfedavg_is_deployed_after_one_step(participation: float) -> None:
    plain = PlainPerFedAvg(clients(participation, replace(WHOLE, batch=8)), alpha=0.3)
    sim, progress = simulated(
        tuned(fedavg(train=plain.clients.train), LocalTraining(lr=0.3, steps=1, batch=8, purpose="tune")), plain.clients
    )
    plain.rounds, plain.global_model = ROUNDS, rows_of(progress.server, "theta")
    rows = deployed(sim, progress, torch.tensor(plain.clients.everybody))
    assert_rows(rows, map(plain.deployed, plain.clients.everybody))


@pytest.mark.nightly
@pytest.mark.parametrize("participation", PARTICIPATION)
@pytest.mark.parametrize("fixed", FIXED)
def test_fedbabu_is_fedper_whose_personal_layers_nobody_trains(fixed: str, participation: float) -> None:
    plain = oracle({"head": "fedbabu", "last:2": "fedbabu, two blocks"}[fixed], participation)
    body = replace(HEAVY, layers=~select(fixed))
    method = replace(fedper(personal=fixed), train=(body,))
    steps = replace(HEAVY, epochs=2, purpose="tune")
    assert_stages(simulated(tuned(method, steps), plain.clients), plain)
