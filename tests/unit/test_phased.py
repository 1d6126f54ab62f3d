"""Phases: which record a round belongs to, and that all work on the union of their fields."""

from dataclasses import dataclass, replace
from hashlib import sha256

import pytest
import torch
from torch import nn

from stratafl.algorithms import algorithm, fedavg, fedper, fedprox, local
from stratafl.algorithms.local import alone
from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.core.algorithm import Total
from stratafl.core.describe import describe
from stratafl.core.fields import Number, Start, Together
from stratafl.core.layers import select
from stratafl.core.parcel import Field, Parcel
from stratafl.core.phased import Phase, Phased, ShareOfRounds, warm_up
from stratafl.core.records import record, stored_repr
from stratafl.core.round import Plan, Round, Setup
from stratafl.core.state import rows_of
from stratafl.core.steps import MergeRows, MergeSums, Mix, Send, Serve, Train
from stratafl.errors import ContractError, RecordError
from stratafl.execute import Matrix, simulation
from stratafl.policies import LocalTraining
from stratafl.testing import Case, laws, tiny_federation, tiny_model, within_reach
from wording import mentions

LAYOUT = describe(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)))
SETUP = Setup(LAYOUT, {n: torch.ones(s.shape) for n, s in LAYOUT.specs.items()}, lambda ids: {}, 4, 6)
THREE = Phased(
    (Phase(fedavg(), rounds=2), Phase(fedprox(), rounds=1, participation="all", evaluated=False), Phase(fedper()))
)


def phases(alg: Phased, rounds: int) -> list[int]:
    return [alg.plan(t, rounds).phase for t in range(rounds + alg.requires.extra_rounds)]


def test_rounds_fall_into_their_phases():
    assert phases(THREE, 6) == [0, 0, 1, 2, 2, 2]
    assert phases(THREE, 2) == [0, 0]


def test_the_last_phase_goes_on_even_if_it_has_a_number_of_rounds():
    alg = Phased((Phase(fedavg(), rounds=1), Phase(fedper(), rounds=2)))
    assert phases(alg, 6) == [0, 1, 1, 1, 1, 1]


def test_a_phase_of_no_rounds_is_passed_over():
    assert phases(Phased((Phase(fedavg(), rounds=0), Phase(fedper()))), 2) == [1, 1]


@pytest.mark.parametrize(("rounds", "before"), [(1, 0), (3, 0), (4, 1), (20, 5), (31, 7), (100, 25)])
def test_a_share_of_the_rounds_is_rounded_down_and_leaves_the_last_phase_a_round(rounds, before):
    alg = Phased((Phase(fedavg(), rounds=ShareOfRounds(0.25)), Phase(fedper())))
    assert alg.before(rounds) == before
    assert phases(alg, rounds) == [0] * before + [1] * (rounds - before)


def test_a_share_leaves_room_for_the_rounds_that_follow_it():
    assert [ShareOfRounds(0.29, less=1).of(rounds) for rounds in (1, 10, 100)] == [0, 1, 28]
    assert [warm_up(rounds, 0.25, less=1) for rounds in (None, 5, 0)] == [ShareOfRounds(0.25, 1), 4, 0]
    for share in (1.0, -0.1):
        with pytest.raises(RecordError):
            ShareOfRounds(share)


@pytest.mark.parametrize(("name", "warm"), [("fedlag", 5), ("fedavg30local", 5), ("fedalp", 10), ("fedavg+lag", 5)])
def test_a_warm_up_is_a_share_of_the_default_rounds(name, warm):
    assert algorithm(name).before(20) == warm
    assert algorithm(name, warmup=3).before(20) == 3


def test_runs_with_a_warm_up_in_rounds_are_what_they_were():
    """What an older run stored of its method, whose configuration has a number of rounds."""
    digests = {"fedlag": "510c9760dffe8299", "fedavg30local": "206a7f82fe0cc182", "fedalp": "da08ba7891b68790"}
    for name, digest in digests.items():
        options = {"warmup": 10, "groups": 4} if name == "fedalp" else {"warmup": 30}
        text = stored_repr(algorithm(name, **options))
        assert sha256(text.encode()).hexdigest().startswith(digest)


def test_a_plan_says_who_takes_part_and_whether_it_is_evaluated():
    assert [THREE.plan(t, 6) for t in range(1, 4)] == [Plan(0, "sampled", True), Plan(1, "all", False), Plan(2)]


@pytest.mark.parametrize("requested", [1, 3, 6])
def test_a_finish_is_one_more_round(requested):
    alg = replace(THREE, finish=Phase(fedavg(), participation="all"))
    assert (THREE.requires.extra_rounds, alg.requires.extra_rounds) == (0, 1)
    assert phases(alg, requested) == [*phases(THREE, requested), 3]
    assert alg.plan(requested, requested) == Plan(3, "all", True, schedule=(0, 1))


@pytest.mark.parametrize(("clients", "share", "cohort"), [(100, 0.29, 29), (10, 0.04, 1), (10, 0.99, 9), (3, 1.0, 3)])
def test_a_share_of_the_clients_is_rounded_down_and_never_nobody(clients, share, cohort):
    assert Setup(None, {}, None, clients, rounds=1, participation=share).cohort == cohort


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
class Mark(Serve, Mix, Train, Send, MergeSums):
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
        client={"mark": Number(), "theta": Start()},
    )
    return Phase(alg, rounds=1)


@pytest.mark.parametrize("t", [0, 1, 2])
def test_every_function_of_the_waist_is_that_of_the_rounds_phase(t):
    alg = Phased((marked(0.0), marked(1.0)), finish=marked(2.0))
    rnd, ids = Round(SETUP, t, alg.plan(t, 2)), torch.tensor([0])
    down = alg.download(rnd, alg.init(SETUP), ids)
    client = alg.receive(rnd, alg.enrol(SETUP, ids), down, None)
    kept, up, _ = alg.work(rnd, client, None)
    server = alg.absorb(rnd, alg.init(SETUP), alg.fold(rnd, alg.init(SETUP), Total(), up, ids))
    marks = (
        down["mark"].tensor,
        client["mark"],
        kept["mark"],
        up["mark"].tensor,
        alg.deploy(rnd, client, None)["mark"],
    )
    assert [mark.item() for mark in marks] == [float(t)] * 5
    assert server["mark"].item() == 11.0 * t


# Derived properties


def test_splits_rows_and_extensions_are_those_of_some_phase():
    @dataclass(frozen=True)
    class Asking(Mark):
        splits: tuple[str, ...] = ("validation",)

    class Rows(Mark, MergeRows):
        def absorb(self, rnd: Round, server: object, up: Parcel, ids: torch.Tensor) -> dict:
            return {}

    asking = replace(fedavg(), train=(LocalTraining(), Asking(0.0)))
    extended = replace(fedavg(), extension=lambda module, example, classes, head: head)
    assert Phased((Phase(fedavg(), rounds=1), Phase(asking))).requires.splits == ("train", "validation")
    assert Phased((Phase(fedavg()),), finish=Phase(asking)).requires.splits == ("train", "validation")
    assert not THREE.requires.rows
    assert Phased((Phase(fedavg(), rounds=1), Phase(replace(fedavg(), merge=(Rows(0.0, writes=()),))))).requires.rows
    assert Phased((Phase(fedavg(), rounds=1), Phase(extended))).extend(None, None, 2, "fc") == "fc"
    assert THREE.extend("as given", None, 2, "fc") == "as given"
    assert THREE.row == "theta"


# Refusals


def test_a_phase_without_rounds_must_be_the_last():
    with pytest.raises(RecordError, match=r"\bphase 1\b.*\bphase 2\b"):
        Phased((Phase(fedavg(), rounds=1), Phase(fedavg()), Phase(fedper())))


@pytest.mark.parametrize("finish", [False, True])
def test_phases_that_deploy_different_fields_are_refused(finish):
    other = Phase(replace(fedprox(), row="anchor"))
    with pytest.raises(RecordError, match="theta, anchor"):
        Phased((Phase(fedavg()),), finish=other) if finish else Phased((Phase(fedavg(), rounds=1), other))


def test_no_phase_at_all_is_refused():
    with pytest.raises(RecordError, match="at least one phase"):
        Phased(())


def test_a_phase_of_phases_is_refused():
    with pytest.raises(RecordError, match=r"Phase\.algorithm must be a Layerwise"):
        Phased((Phase(local()),))


def test_thirty_rounds_of_fedavg_and_then_local_training():
    alg = Phased((Phase(fedavg(), rounds=30), Phase(alone(), participation="all")))
    assert set(alg.init(SETUP)["theta"]) == set(LAYOUT.specs)


NEVER = "take 3 rounds and the run has {}, so the last phase never begins"


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_last_phase_that_never_begins_is_refused(rounds, caplog):
    method = Phased((Phase(fedavg(), rounds=3), Phase(fedavg())))
    with pytest.raises(RecordError, match=NEVER.format(rounds)):
        simulation(method, tiny_federation(), tiny_model(), rounds=rounds)
    simulation(method, tiny_federation(), tiny_model(), rounds=4)
    assert caplog.messages == []


def test_a_run_that_has_begun_goes_on_although_its_last_phase_never_begins(caplog):
    method = Phased((Phase(fedavg(), rounds=3), Phase(fedavg())))
    simulation(method, tiny_federation(), tiny_model(), rounds=3, begun=True)
    assert NEVER.format(3) in caplog.messages[0]


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        (
            ["algorithm.name=fedlag", "algorithm.warmup=30"],
            ("fedlag", "30 rounds", "20", "31 rounds", "--set fedlag.warmup=5"),
        ),
        (
            ["algorithm.name=fedalp", "run.rounds=1", "algorithm.warmup=1"],
            ("fedalp", "1 round", "1", "2 rounds"),
        ),
        (["algorithm.name=fedavg30local", "run.rounds=30", "algorithm.warmup=30"], ("fedavg30local", "30 rounds")),
    ],
)
def test_a_method_of_the_catalogue_that_would_never_act_is_refused_by_its_name(settings, values):
    with pytest.raises(RecordError) as error:
        simulation_of(with_settings(Experiment(), settings))
    assert mentions(str(error.value), *values)


def broken_after(rounds: int) -> Phased:
    """A method whose last phase breaks a law of the contract, after so many rounds of FedAvg."""
    wrong = replace(fedavg(), train=(ReadsBack(),))
    return Phased((Phase(fedavg(), rounds=rounds), Phase(wrong)))


@record
class ReadsBack(Train):
    """Reads a value back to the host in every step."""

    reads = writes = ("theta",)

    def __call__(self, rnd, client, task):
        def step(carry, constants, stack):
            rate = 0.1 if stack.x.sum().item() > 1e9 else 0.0
            return {"theta": {name: x - rate for name, x in carry["theta"].items()}}

        return task.scan(step, {"theta": rows_of(client, "theta")}, batch=10)


@pytest.mark.slow
def test_the_contract_reaches_every_phase():
    short, rounds = within_reach(broken_after(30), 2)
    with pytest.raises(ContractError, match="'trace'"):
        laws.trace_law(Case(short, "follow", 1.0, rounds))


def test_phases_are_shortened_and_rounds_are_as_many_as_it_takes():
    short, rounds = within_reach(Phased((*THREE.phases[:2], Phase(fedavg(), rounds=30), Phase(fedper()))), 2)
    assert [phase.rounds for phase in short.phases] == [2, 1, 2, None]
    assert rounds == 7
    assert within_reach(fedavg(), 2) == (fedavg(), 2)
    case = Case(short, "follow", 1.0, rounds)
    assert [progress.t for progress in case.entries] == [0, 2, 3, 5]
