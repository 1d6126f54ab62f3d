"""Phases: which record a round belongs to, and that all work on the union of their fields."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from stratafl.algorithm import Plan, Round, Setup, Total
from stratafl.algorithms import fedavg, fedper, fedprox, local
from stratafl.algorithms.local import alone
from stratafl.describe import describe
from stratafl.errors import RecordError
from stratafl.execute import Matrix, simulation
from stratafl.fields import Number, Start, Together
from stratafl.layers import select
from stratafl.parcel import Field, Parcel
from stratafl.phased import Phase, Phased
from stratafl.policies import SGD
from stratafl.testing import Case, tiny_federation, tiny_model

LAYOUT = describe(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)))
SETUP = Setup(LAYOUT, {n: torch.ones(s.shape) for n, s in LAYOUT.specs.items()}, lambda ids: {}, 4, 6)
THREE = Phased(
    (Phase(fedavg(), rounds=2), Phase(fedprox(), rounds=1, participation="all", evaluated=False), Phase(fedper()))
)


def phases(alg: Phased, rounds: int) -> list[int]:
    return [alg.plan(t, rounds).phase for t in range(alg.rounds(rounds))]


def test_rounds_fall_into_their_phases():
    assert phases(THREE, 6) == [0, 0, 1, 2, 2, 2]
    assert phases(THREE, 2) == [0, 0]


def test_the_last_phase_goes_on_even_if_it_has_a_number_of_rounds():
    alg = Phased((Phase(fedavg(), rounds=1), Phase(fedper(), rounds=2)))
    assert phases(alg, 6) == [0, 1, 1, 1, 1, 1]


def test_a_phase_of_no_rounds_is_passed_over():
    assert phases(Phased((Phase(fedavg(), rounds=0), Phase(fedper()))), 2) == [1, 1]


def test_a_plan_says_who_takes_part_and_whether_it_is_evaluated():
    assert [THREE.plan(t, 6) for t in range(1, 4)] == [Plan(0, "sampled", True), Plan(1, "all", False), Plan(2)]


@pytest.mark.parametrize("requested", [1, 3, 6])
def test_a_finish_is_one_more_round(requested):
    alg = replace(THREE, finish=Phase(fedavg(), participation="all"))
    assert (THREE.rounds(requested), alg.rounds(requested)) == (requested, requested + 1)
    assert phases(alg, requested) == [*phases(THREE, requested), 3]
    assert alg.plan(requested, requested) == Plan(3, "all", True, clock=(0, 1))


def test_a_whole_cohort_takes_part_where_the_phase_says_so():
    alg = Phased((Phase(fedavg(), rounds=1), Phase(fedavg(), participation="all")))
    sim = Case(alg, "follow", 0.5, 2).plain
    assert [len(sim.cohort(sim.at(t))) for t in range(2)] == [3, 6]


# Fields


def test_the_phases_share_the_union_of_their_fields():
    first, second, third = THREE.records
    assert first.server == second.server == third.server
    assert first.client == second.client == third.client
    everything, nothing = Start(), Start(select("none"))
    assert first.server == {"theta": Together((everything, Start(select("base"))))}
    assert first.client == {"theta": Together((nothing, Start(select("head"))))}
    assert [record.train for record in THREE.records] == [phase.algorithm.train for phase in THREE.phases]


def test_equal_declarations_stay_as_they_are():
    alg = Phased((Phase(fedavg(), rounds=1), Phase(fedprox())))
    assert alg.records[0].server == fedavg().server
    assert alg.records[0].client == fedavg().client


def test_fields_of_the_finish_belong_to_the_union():
    counting = replace(fedavg(), client={**fedavg().client, "count": Number(7.0)})
    alg = Phased((Phase(fedavg()),), finish=Phase(counting))
    assert alg.enrol(SETUP, torch.arange(2))["count"].tolist() == [7.0, 7.0]


def test_states_hold_what_some_phase_declares():
    assert set(THREE.init(SETUP)["theta"]) == set(LAYOUT.specs)
    assert set(THREE.enrol(SETUP, torch.arange(2))["theta"]) == {"1.weight", "1.bias"}


def test_an_early_phase_keeps_up_what_a_later_one_needs():
    # FedAvg alone keeps no layer; before FedPer it keeps the head that it received and trained.
    sim = Case(Phased((Phase(fedavg(), rounds=1), Phase(fedper()))), "follow", 1.0, 2).plain
    progress, _ = sim.round(sim.start(), Matrix())
    assert all(set(memory["theta"]) == {"fc.weight", "fc.bias"} for memory in progress.clients.values())
    heads = torch.stack([memory["theta"]["fc.bias"] for memory in progress.clients.values()])
    assert heads.unique(dim=0).shape[0] == 6


@dataclass(frozen=True)
class Mark:
    """A step of any slot that leaves the number of its phase."""

    phase: float
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ("mark",)

    def __call__(self, rnd: Round, state: object, *rest: object) -> dict:
        mark = torch.tensor([self.phase])
        return {"mark": Field(mark) if self.writes[0].startswith(("down", "up")) else mark}

    def fold(self, rnd: Round, server: object, sums: object, up: Parcel, ids: torch.Tensor) -> dict:
        return {"folded": torch.tensor([self.phase])}

    def finish(self, rnd: Round, server: object, sums: dict) -> dict:
        return {"mark": 10 * self.phase + sums["folded"]}


@dataclass(frozen=True)
class MarkModel(Mark):
    """A tune step that leaves the number of its phase in the model."""

    def __call__(self, rnd: Round, state: object, *rest: object) -> dict:
        return {"theta": {"mark": torch.tensor([self.phase])}}


def marked(phase: float) -> Phase:
    alg = replace(
        fedavg(),
        serve=(Mark(phase, writes=("down.mark",)),),
        mix=(Mark(phase),),
        train=(Mark(phase),),
        send=(Mark(phase, writes=("up.mark",)),),
        merge=(Mark(phase, reads=("up.mark",)),),
        tune=(MarkModel(phase, writes=("theta",)),),
        server={"mark": Number()},
        client={"mark": Number(), "theta": Start(select("none"))},
    )
    return Phase(alg, rounds=1)


@pytest.mark.parametrize("t", [0, 1, 2])
def test_every_function_of_the_waist_is_that_of_the_rounds_phase(t):
    alg = Phased((marked(0.0), marked(1.0)), finish=marked(2.0))
    rnd, ids = Round(SETUP, t, alg.plan(t, 2)), torch.tensor([0])
    down = alg.download(rnd, alg.init(SETUP), ids)
    desk = alg.receive(rnd, alg.enrol(SETUP, ids), down, None)
    memory, up, _ = alg.work(rnd, desk, None)
    server = alg.absorb(rnd, alg.init(SETUP), alg.fold(rnd, alg.init(SETUP), Total(), up, ids))
    marks = (down["mark"].tensor, desk["mark"], memory["mark"], up["mark"].tensor, alg.deploy(rnd, desk, None)["mark"])
    assert [mark.item() for mark in marks] == [float(t)] * 5
    assert server["mark"].item() == 11.0 * t


# Derived properties


def test_splits_rows_and_extensions_are_those_of_some_phase():
    @dataclass(frozen=True)
    class Asking(Mark):
        splits: tuple[str, ...] = ("validation",)

    class Rows(Mark):
        def absorb(self, rnd: Round, server: object, up: Parcel, ids: torch.Tensor) -> dict:
            return {}

    asking = replace(fedavg(), train=(SGD(), Asking(0.0)))
    extended = replace(fedavg(), extension=lambda module, example, classes: "extended")
    assert Phased((Phase(fedavg(), rounds=1), Phase(asking))).splits == ("train", "validation")
    assert Phased((Phase(fedavg()),), finish=Phase(asking)).splits == ("train", "validation")
    assert not THREE.keeps_rows
    assert Phased((Phase(fedavg(), rounds=1), Phase(replace(fedavg(), merge=(Rows(0.0, writes=()),))))).keeps_rows
    assert Phased((Phase(fedavg(), rounds=1), Phase(extended))).extend(None, None, 2) == "extended"
    assert THREE.extend("as given", None, 2) == "as given"
    assert THREE.row == "theta"


# Refusals


def test_a_phase_without_rounds_must_be_the_last():
    with pytest.raises(RecordError, match="phase 1 has no number of rounds, so phase 2 would never begin"):
        Phased((Phase(fedavg(), rounds=1), Phase(fedavg()), Phase(fedper())))


@pytest.mark.parametrize("finish", [False, True])
def test_phases_that_deploy_different_fields_are_refused(finish):
    other = Phase(replace(fedprox(), row="anchor"))
    with pytest.raises(RecordError, match="the phases deploy different fields: theta, anchor"):
        Phased((Phase(fedavg()),), finish=other) if finish else Phased((Phase(fedavg(), rounds=1), other))


def test_no_phase_at_all_is_refused():
    with pytest.raises(RecordError, match="at least one phase"):
        Phased(())


def test_a_phase_of_phases_is_refused():
    with pytest.raises(RecordError, match="phase 0 is a Phased: a phase is one record of slots"):
        Phased((Phase(local()),))


def test_thirty_rounds_of_fedavg_and_then_local_training():
    alg = Phased((Phase(fedavg(), rounds=30), Phase(alone(), participation="all")))
    assert set(alg.init(SETUP)["theta"]) == set(LAYOUT.specs)


def test_a_last_phase_that_never_begins_is_said(caplog):
    method = Phased((Phase(fedavg(), rounds=3), Phase(fedavg())))
    for rounds, said in ((4, 0), (3, 1), (2, 1)):
        caplog.clear()
        simulation(method, tiny_federation(), tiny_model(), rounds=rounds)
        assert len([line for line in caplog.messages if "last phase, which begins after 3" in line]) == said
