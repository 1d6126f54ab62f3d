"""The settings in which deployed methods are compared with the simulation: in them each mechanism acts.

Without this, equal tensors would say little: two runs of FedLAG in which no layer becomes personal are equal too.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from hosted import ACTING, SITES, acting, simulated_models, simulation, write_samples
from stratafl.core.parcel import ColumnMask, LayerMask, Parcel
from stratafl.core.state import flatten
from stratafl.execute import Progress, Simulation
from stratafl.execute.executors import InOneProcess

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Seen(InOneProcess):
    """The executor of a simulation, which keeps every parcel."""

    parcels: list[Parcel]

    def groups(self, sim, ids):
        yield ids

    def carry(self, parcel, layout, form=None):
        self.parcels.append(parcel)
        return parcel


@dataclass(frozen=True)
class Ran:
    sim: Simulation
    after: list[Progress]  # the start, and each round
    downs: list[Parcel]
    ups: list[Parcel]

    def server(self, field: str) -> list[Tensor]:
        return [flatten(progress.server)[field] for progress in self.after]

    def clients(self, field: str) -> list[Tensor]:
        return [flatten(state)[field] for state in self.after[-1].clients.values()]


def ran(folder, method: str) -> Ran:
    sim = simulation(folder, acting(method))
    after, downs, ups = [sim.start()], [], []
    while after[-1].t < sim.rounds:
        seen = Seen([])
        progress, _ = sim.round(after[-1], seen)
        after.append(progress)
        down, up = seen.parcels
        downs.append(down)
        ups.append(up)
    return Ran(sim, after, downs, ups)


def heads_are_personal(run: Ran) -> None:
    heads = run.clients("theta/fc.weight")
    assert not any(torch.equal(heads[0], other) for other in heads[1:])
    assert all("fc.weight" not in parcel["theta"].rows for parcel in run.ups)


def masks_and_accuracies(run: Ran) -> None:
    for parcel in run.ups:
        mask = parcel["theta"].mask
        assert isinstance(mask, ColumnMask)
        first, last = mask.sent["fc1.weight"], mask.sent["fc.weight"]
        share = float(torch.cat([first.flatten(1), mask.sent["fc1.bias"]], 1).double().mean())
        assert 0.3 <= share < 0.32  # `least` of 4 layers: without it 1/4
        assert bool(last.all())
    assert all(0 < float(value) < 1 for value in run.clients("accuracy"))


def weights_learn(run: Ran) -> None:
    serve = run.sim.algorithm.serve[0]
    first, last = (serve.tell(run.sim.at(0), run.after[place].server)["alpha"] for place in (0, -1))
    assert float((first - last).abs().max()) > 0.01
    assert float(last.std(2).max()) > 0.01  # other weights for other clients


def layers_are_retained(run: Ran) -> None:
    weights_learn(run)
    kept = set()
    for parcel in run.downs:
        mask = parcel["theta"].mask
        assert isinstance(mask, LayerMask)
        assert (~mask.sent).sum(1).tolist() == [1] * len(mask.sent)
        kept |= set((~mask.sent).nonzero()[:, 1].tolist())
    assert len(kept) > 1  # not the same layer for all


def groups_are_formed(run: Ran) -> None:
    members, psi, active = (run.server(name) for name in ("member", "psi", "active"))
    assert sorted(members[-1].tolist()) == [0, 0, 1, 1]
    assert float(psi[2].min()) > 0
    assert [float(number) for number in active] == [0, 0, 0, 2, 2, 2, 2]  # four rounds after the warm-up
    group = run.server("group/fc.weight")[-1]
    assert float((group[0] - group[1]).abs().max()) > 0.01


def layers_become_personal(run: Ran) -> None:
    personal = [tuple(each.tolist()) for each in run.server("personal")]
    assert not any(map(any, personal[:2]))  # the start and the warm-up
    assert all(map(any, personal[2:]))
    assert len(set(personal[2:])) > 1  # a layer becomes personal, and is shared again
    assert all((~parcel["theta"].mask.sent).any() for parcel in run.downs[2:])


def models_are_beside_each_other(run: Ran) -> None:
    shared, own = run.server("theta/fc.weight")[-1], run.clients("personal/fc.weight")
    assert all(float((mine - shared).abs().max()) > 0.01 for mine in own)


def variates_correct(run: Ran) -> None:
    variates = [*run.clients("c_i/fc.weight"), run.server("c/fc.weight")[-1]]
    assert all(float(c.abs().max()) > 0.005 for c in variates)


def models_are_tuned(run: Ran) -> None:
    drawn = run.clients("theta/fc.weight")
    assert all(torch.equal(drawn[0], other) for other in drawn[1:])  # the head stays as it was drawn


ACTS: dict[str, Callable[[Ran], None]] = {
    "fedper": heads_are_personal,
    "flayer": masks_and_accuracies,
    "pfedla": weights_learn,
    "heurpfedla": layers_are_retained,
    "fedalp": groups_are_formed,
    "fedlag": layers_become_personal,
    "ditto": models_are_beside_each_other,
    "scaffold": variates_correct,
    "fedbabu": models_are_tuned,
}


@pytest.mark.parametrize("method", ACTING)
def test_the_mechanism_acts(tmp_path, method):
    write_samples(tmp_path)
    ACTS[method](ran(tmp_path, method))


def test_the_models_that_fedbabu_ends_with_are_tuned(tmp_path):
    write_samples(tmp_path)
    models, run = simulated_models(tmp_path, acting("fedbabu")), ran(tmp_path, "fedbabu")
    drawn = run.clients("theta/fc.weight")[0]
    assert all(float((models[f"{site}/fc.weight"] - drawn).abs().max()) > 0.01 for site in SITES)


@pytest.mark.parametrize("method", ACTING)
def test_every_site_is_away_and_takes_part(tmp_path, method):
    write_samples(tmp_path)
    sim = simulation(tmp_path, acting(method))
    cohorts = [set(sim.cohort(sim.at(t)).tolist()) for t in range(sim.rounds)]
    everybody = set(range(len(SITES)))
    asks_everybody = [t for t, cohort in enumerate(cohorts) if cohort == everybody]
    assert asks_everybody == ([1] if method == "fedalp" else [])
    assert set.union(*cohorts) == everybody
    assert set.intersection(*cohorts) == set()
