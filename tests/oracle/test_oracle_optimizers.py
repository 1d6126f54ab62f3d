"""Optimisers, their state and schedules against torch.optim and torch.optim.lr_scheduler, round by round."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
import torch
from oracle_loops import Federated, Phase, check, convnorm, images
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, LRScheduler, SequentialLR, StepLR

from stratafl.algorithms import fedavg
from stratafl.core.state import rows_of, tensor_of
from stratafl.execute import Matrix, Progress, Simulation, simulation
from stratafl.policies import Constant, Cosine, Exponential, LocalTraining, Stepped, Warmup
from stratafl.policies.schedules import Schedule
from tiers import slow_except

pytestmark = pytest.mark.usefixtures("untraced")

SIZES, ROUNDS = (14, 11, 4, 9), 3
SEED = 3  # with which half of the clients are one that is away for a round, and one that never takes part
SLOTS = {"velocity": "momentum_buffer", "moment": "exp_avg", "square": "exp_avg_sq"}
Make = Callable[[list[nn.Parameter], float], Optimizer]
PLAIN = LocalTraining(lr=0.05, epochs=2, batch=10)
# Adam divides by what may be rounding alone, such as the gradient of a bias before BatchNorm: epsilon covers that.
WITH_ADAM = replace(PLAIN, lr=0.02, beta1=0.8, beta2=0.95, epsilon=1e-3)
BETAS = {"betas": (0.8, 0.95), "eps": 1e-3}
OPTIMISERS: dict[str, tuple[LocalTraining, Make]] = {
    "momentum": (replace(PLAIN, momentum=0.9), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
    "nesterov": (replace(PLAIN, momentum=0.8, nesterov=True), lambda p, lr: torch.optim.SGD(p, lr, 0.8, nesterov=True)),
    "nesterov, decay": (
        replace(PLAIN, momentum=0.8, nesterov=True, weight_decay=0.1),
        lambda p, lr: torch.optim.SGD(p, lr, 0.8, nesterov=True, weight_decay=0.1),
    ),
    "adam": (replace(WITH_ADAM, optimizer="adam"), lambda p, lr: Adam(p, lr, **BETAS)),  # type: ignore[arg-type]
    "adam, decay": (
        replace(WITH_ADAM, optimizer="adam", weight_decay=0.1),
        lambda p, lr: Adam(p, lr, weight_decay=0.1, **BETAS),  # type: ignore[arg-type]
    ),
    "adamw": (replace(WITH_ADAM, optimizer="adamw"), lambda p, lr: AdamW(p, lr, weight_decay=0.0, **BETAS)),  # type: ignore[arg-type]
    "adamw, decay": (
        replace(WITH_ADAM, optimizer="adamw", weight_decay=0.1),
        lambda p, lr: AdamW(p, lr, weight_decay=0.1, **BETAS),  # type: ignore[arg-type]
    ),
    "adam, decay, clip": (
        replace(WITH_ADAM, optimizer="adam", weight_decay=0.1, clip=0.2),
        lambda p, lr: Adam(p, lr, weight_decay=0.1, **BETAS),  # type: ignore[arg-type]
    ),
}


@dataclass
class WithOptimisers(Federated):
    """Clients with an optimiser of torch, whose state they keep from round to round or not."""

    make: Make = torch.optim.SGD
    keeps: bool = False
    optimisers: dict[int, Optimizer] = field(default_factory=dict)

    def descend(self, net: nn.Module, anchor: dict[str, Tensor], client: int, t: int, phase: Phase) -> None:
        def made(net: nn.Module, lr: float) -> Optimizer:
            new = self.make(list(net.parameters()), lr)
            if self.keeps and client in self.optimisers:
                groups = new.state_dict()["param_groups"]
                new.load_state_dict({"state": self.optimisers[client].state_dict()["state"], "param_groups": groups})
            self.optimisers[client] = new
            return new

        self.optimiser = made
        super().descend(net, anchor, client, t, phase)


def both(train: LocalTraining, make: Make, keeps: bool, participation: float) -> tuple[Simulation, WithOptimisers]:
    federation, module = images(SIZES), convnorm()
    train = replace(train, optimizer_state="kept" if keeps else "dropped")
    run = {"rounds": ROUNDS, "participation": participation, "seed": SEED}
    sim = simulation(fedavg(train=train), federation, module, engine="stacked", dtype=torch.float64, **run)  # type: ignore[arg-type]
    return sim, WithOptimisers(federation, module, (Phase(train),), make=make, keeps=keeps, **run)  # type: ignore[arg-type]


FAST = [("nesterov, decay", True), ("adam, decay, clip", True), ("adamw, decay", False)]


@pytest.mark.parametrize(("name", "keeps"), slow_except(FAST, product(OPTIMISERS, (False, True))))
def test_optimiser_is_that_of_torch(name: str, keeps: bool) -> None:
    sim, oracle = both(*OPTIMISERS[name], keeps, 0.5)
    progress = check(sim, oracle)
    if keeps:
        assert_same_state(progress, oracle)


def assert_same_state(progress: Progress, oracle: WithOptimisers) -> None:
    """What each client keeps is torch's state of its last round; of one that never took part, zeros."""
    names = [name for name, _ in oracle.start.named_parameters()]
    for client in range(oracle.federation.clients):
        kept = progress.clients.get(client, {})
        if client not in oracle.optimisers:
            assert not kept
            continue
        state = oracle.optimisers[client].state_dict()["state"]
        found = [slot for slot in SLOTS if f"train.{slot}" in kept]
        assert found
        for slot in found:
            rows = rows_of(kept, f"train.{slot}")
            for i, name in enumerate(names):
                torch.testing.assert_close(rows[name].reshape(state[i][SLOTS[slot]].shape), state[i][SLOTS[slot]])
        if "moment" in found:
            assert float(tensor_of(kept, "train.updates")) == float(state[0]["step"])


def test_some_clients_are_away_for_a_round() -> None:
    """Otherwise nothing would be shown of the state of clients that are not sampled."""
    _, oracle = both(PLAIN, torch.optim.SGD, True, 0.5)
    rounds = [[t for t in range(ROUNDS) if k in oracle.cohort(t)] for k in range(len(SIZES))]
    assert rounds == [[0, 2], [], [1, 2], [0, 1]]


def test_adam_with_torchs_own_epsilon() -> None:
    """Without BatchNorm, where no gradient is rounding alone."""
    federation = images(SIZES)
    torch.manual_seed(1)
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    train = replace(PLAIN, lr=0.01, optimizer="adam", optimizer_state="kept")
    sim = simulation(fedavg(train=train), federation, module, rounds=ROUNDS, engine="stacked", dtype=torch.float64)
    check(sim, WithOptimisers(federation, module, (Phase(train),), rounds=ROUNDS, make=Adam, keeps=True))


# Schedules: a factor for each round


def factors(make: Callable[[Optimizer], LRScheduler], rounds: int) -> list[float]:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 1.0)
    schedule, found = make(optimiser), []
    for _ in range(rounds):
        found.append(float(schedule.get_last_lr()[0]))
        optimiser.step()
        schedule.step()
    return found


def warmed(optimiser: Optimizer, rounds: int, then: LRScheduler) -> LRScheduler:
    return SequentialLR(optimiser, [LinearLR(optimiser, 1 / (rounds + 1), 1.0, rounds), then], [rounds])


SCHEDULES: dict[str, tuple[Schedule, Callable[[Optimizer], LRScheduler]]] = {
    "exponential": (Exponential(0.9), lambda o: ExponentialLR(o, 0.9)),
    "cosine": (Cosine(), lambda o: CosineAnnealingLR(o, 12)),
    "cosine with a floor": (Cosine(0.1), lambda o: CosineAnnealingLR(o, 12, eta_min=0.1)),
    "step": (Stepped(4, 0.3), lambda o: StepLR(o, 4, 0.3)),
    "warm-up": (Warmup(3, Constant()), lambda o: LinearLR(o, 1 / 4, 1.0, 3)),
    "warm-up, cosine": (Warmup(3, Cosine(0.1)), lambda o: warmed(o, 3, CosineAnnealingLR(o, 9, eta_min=0.1))),
    "warm-up, step": (Warmup(2, Stepped(4, 0.3)), lambda o: warmed(o, 2, StepLR(o, 4, 0.3))),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_is_that_of_torch(name: str) -> None:
    ours, theirs = SCHEDULES[name]
    assert [ours(t, 12) for t in range(12)] == pytest.approx(factors(theirs, 12), abs=1e-12)


@dataclass
class WithRates(Federated):
    """Clients whose learning rate of each round is in a list."""

    rates: list[float] = field(default_factory=list)

    def descend(self, net: nn.Module, anchor: dict[str, Tensor], client: int, t: int, phase: Phase) -> None:
        self.optimiser = lambda net, _: torch.optim.SGD(net.parameters(), self.rates[t], momentum=0.9)
        super().descend(net, anchor, client, t, phase)


@pytest.mark.slow
def test_a_run_with_a_schedule_has_the_rates_of_torch() -> None:
    train = replace(PLAIN, lr=0.2, momentum=0.9, schedule=Warmup(1, Cosine(0.1)), decay=0.5)
    federation, module = images(SIZES), convnorm()
    sim = simulation(fedavg(train=train), federation, module, rounds=4, engine="stacked", dtype=torch.float64)
    shape = factors(lambda o: warmed(o, 1, CosineAnnealingLR(o, 3, eta_min=0.1)), 4)
    rates = [0.2 * factor * 0.5**t for t, factor in enumerate(shape)]
    check(sim, WithRates(federation, module, (Phase(train),), rounds=4, rates=rates))


@pytest.mark.slow
def test_a_state_that_is_dropped_is_not_kept() -> None:
    sim, _ = both(*OPTIMISERS["adam"], False, 1.0)
    assert set(sim.run(Matrix()).clients[0]) == {"theta"}
