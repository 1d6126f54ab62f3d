"""Guarded FedAvg and FedPer on six federations: close to the best candidate, and few are worse off than alone.

`python -m pytest -m nightly -s tests/unit/test_guard_federations.py` prints the table of docs/results/guard.md.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from federations import FEDERATIONS, LR, ROUNDS
from stratafl.algorithms import fedavg, fedper
from stratafl.config.setting_tables import EvaluateTable
from stratafl.core.algorithm import Algorithm
from stratafl.evaluation.candidates import GuardCandidates, GuardedModels, alone_like, guarded
from stratafl.evaluation.trial import Trial
from stratafl.execute import Progress, Simulation, simulation
from stratafl.policies import LocalTraining
from stratafl.runs.guard_files import run_to_end, train_alone

SEEDS = (10, 11, 12)  # the rule was designed with others
TRAIN, EVERY = LocalTraining(lr=LR), EvaluateTable(every=5)
METHODS: dict[str, Callable[..., Algorithm]] = {"fedavg": fedavg, "fedper": fedper}
HALF, FEW = 0.5, 0.05  # of FedPer's share of clients that are worse off; a share that is always allowed


def selected(sim: Simulation) -> Progress:
    """The state after the round that is best on validation samples."""
    return run_to_end(train_alone(Trial(sim, EVERY.every), EVERY, ROUNDS))


@cache
def local_of(name: str, seed: int) -> Progress:
    return selected(alone_like(made_with("fedavg", name, seed), TRAIN))


def made_with(method: str, name: str, seed: int) -> Simulation:
    federation, model = FEDERATIONS[name](seed)
    return simulation(METHODS[method](train=TRAIN), federation, model, rounds=ROUNDS, seed=seed)


@cache
def studied(method: str, name: str, seed: int) -> GuardedModels:
    sim = made_with(method, name, seed)
    candidates = GuardCandidates(sim, selected(sim), alone_like(sim, TRAIN), local_of(name, seed), TRAIN)
    return guarded(candidates, torch.arange(sim.setup.clients), ("validation", "test"))


@dataclass(frozen=True)
class Hits:
    """Which test samples are classified correctly, and whose they are; clients of different seeds are different."""

    client: Tensor
    hit: Tensor

    @property
    def accuracy(self) -> float:
        return float(self.hit.mean())

    def standard_error(self) -> float:
        """Of the mean over samples, of which those of a client belong together."""
        sums = torch.zeros(int(self.client.max()) + 1, dtype=torch.float64)
        sums.index_add_(0, self.client, self.hit - self.hit.mean())
        return float(sums.square().sum().sqrt() / len(self.hit))

    def minus(self, other: "Hits") -> "Hits":
        return Hits(self.client, self.hit - other.hit)

    def share_worse(self) -> float:
        """Of a difference: the share of clients for whom it is below minus its standard error."""
        clients, worse = self.client.unique().tolist(), 0
        for client in clients:
            mine = self.hit[self.client == client]
            worse += float(mine.mean()) < -float(mine.std() / len(mine) ** 0.5) - 1e-9
        return worse / len(clients)


def hits(method: str, name: str, candidate: str | None) -> Hits:
    """Of a candidate, or of what the guard takes, all seeds together."""
    parts = []
    for seed in SEEDS:
        made = studied(method, name, seed)
        given = made.predictions("test") if candidate is None else made.all_predictions["test"][candidate]
        parts.append(Hits(given.client + 1000 * SEEDS.index(seed), given.hits().double()))
    return Hits(torch.cat([each.client for each in parts]), torch.cat([each.hit for each in parts]))


def taken(method: str, name: str) -> Counter[str]:
    return Counter(choice.candidate for seed in SEEDS for choice in studied(method, name, seed).choices.values())


@dataclass(frozen=True)
class Verdict:
    """Of a method on a federation: whether its guarded models are near the best candidate, and harm few clients."""

    near: bool
    harmless: bool
    line: str


def judged(name: str, method: str) -> Verdict:
    candidates = {each: hits(method, name, each) for each in studied(method, name, 0).all_predictions["test"]}
    mine, alone = hits(method, name, None), candidates["local"]
    best = max(candidates, key=lambda each: candidates[each].accuracy)
    behind, error = mine.minus(candidates[best]), candidates[best].standard_error()
    fedper_worse = hits("fedper", name, "received").minus(alone).share_worse()
    worse = mine.minus(alone).share_worse()
    near, harmless = behind.accuracy >= -error, worse <= max(FEW, HALF * fedper_worse)
    scores = " | ".join(f"{100 * each.accuracy:.1f}" for each in candidates.values())
    counts = ", ".join(f"{count} {each}" for each, count in taken(method, name).most_common())
    line = (
        f"| {name} | {method} | {scores} | **{100 * mine.accuracy:.1f}** "
        f"| {100 * behind.accuracy:+.1f} ± {100 * behind.standard_error():.1f} | {100 * error:.1f} "
        f"| {'yes' if near else '**no**'} | {100 * candidates['received'].minus(alone).share_worse():.1f} "
        f"| {100 * fedper_worse:.1f} | {100 * worse:.1f} | {'yes' if harmless else '**no**'} | {counts} |"
    )
    return Verdict(near, harmless, line)


@pytest.mark.nightly
def test_guarded_is_close_to_the_best_and_harms_few_in_ten_of_twelve_cases() -> None:
    """Eleven and twelve were seen; one or two more may fail, because machines round differently."""
    found = [judged(name, method) for name in FEDERATIONS for method in METHODS]
    print("\n".join(each.line for each in found))
    assert sum(each.near for each in found) >= 10
    assert sum(each.harmless for each in found) >= 10
