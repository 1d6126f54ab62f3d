"""The contract catches what it is for: each mutant breaks the law that is there for it, its healthy twin does not."""

import pytest

import mutants
from stratafl import testing
from stratafl.algorithms import fedavg, fedper
from stratafl.algorithms.compress_on import with_q8
from stratafl.errors import ContractError, RecordError
from stratafl.evaluation.evaluate import score_new_clients
from stratafl.execute import Matrix
from stratafl.testing import laws

CAUGHT = [
    ("reads an unsent head", mutants.reads_unsent_head, laws.poison),
    ("reads an unsent head", mutants.reads_unsent_head, laws.messages),
    ("keys randomness by cohort position", lambda: mutants.noise(by_position=True), laws.order),
    ("keys randomness by cohort position", lambda: mutants.noise(by_position=True), laws.chunks),
    ("keys randomness by cohort position", lambda: mutants.noise(by_position=True), laws.messages),
    ("mutates its input", mutants.mutates_its_input, laws.purity),
    ("reads what it does not declare", lambda: mutants.undeclared(mutants.Sneaky()), laws.declared),
    ("gives what it does not declare", lambda: mutants.undeclared(mutants.Generous()), laws.declared),
    ("declares wrong bytes", mutants.declares_wrong_bytes, laws.bytes_counted),
    ("uploads what nobody reads", lambda: mutants.SendsWhatNobodyReads(fedavg(), "up"), laws.bytes_counted),
    ("downloads what nobody reads", lambda: mutants.SendsWhatNobodyReads(fedavg(), "down"), laws.bytes_counted),
    ("sends types of its own", lambda: mutants.SendsTypesOfItsOwn(fedavg()), laws.bytes_counted),
    ("stores an undeclared layer", lambda: mutants.StoresAnUndeclaredLayer(fedper()), laws.bytes_counted),
    ("draws from torch's own generator", lambda: mutants.AmbientRandomness(fedavg()), laws.seeds),
    ("ignores padding", mutants.ignores_padding, laws.padding),
    ("reads a value back to the host", mutants.reads_the_host, laws.trace),
    ("takes the last upload", mutants.last_one_wins, laws.order),
    ("averages chunks", mutants.mean_of_chunk_means, laws.chunks),
    ("writes into what it opens", lambda: mutants.WritesIntoWhatItOpens(fedavg()), laws.purity),
    ("hides state in an attribute", lambda: mutants.HidesState(fedavg()), laws.messages),
    ("writes into what it evaluates", lambda: mutants.TouchesOutsiders(fedper()), laws.purity),
    ("has no row for a new client", mutants.keeps_rows, laws.new_clients),
    ("has no number for a new client", mutants.looks_up_numbers_by_id, laws.new_clients),
    ("gives a new client NaN", lambda: mutants.ForgetsNewClients(fedavg(), "nan"), laws.new_clients),
    ("gives a new client a group's", lambda: mutants.ForgetsNewClients(fedavg(), "group"), laws.new_clients),
    ("remembers a new client", lambda: mutants.RemembersNewClients(fedavg()), laws.new_clients),
    ("is not a record", lambda: mutants.Delegate(fedavg()), laws.record),
]


@pytest.mark.parametrize(("fault", "build", "law"), CAUGHT, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_mutant_is_caught_by_its_law(fault, build, law):
    with pytest.raises(ContractError) as caught:
        law(testing.Case(build(), "follow", 1.0, 2))
    assert caught.value.law.replace(" ", "_") in (law.__name__, "bytes")


def test_a_delegate_opens_uploads_as_its_method_does():
    folded = []

    class Folding(mutants.Delegate):
        def fold(self, rnd, server, total, uploads, ids):
            folded.append(set(uploads))
            return super().fold(rnd, server, total, uploads, ids)

    testing.Case(Folding(with_q8(fedavg(), min_size=8)), "follow", 1.0, 1).simulation().run(Matrix())
    assert folded
    assert all(names == {"theta", "samples"} for names in folded)


@pytest.mark.parametrize(
    "build",
    [
        mutants.honest_reader,
        lambda: mutants.noise(by_position=False),
        lambda: mutants.keeps_rows(welcome=(mutants.FirstRow(),)),
    ],
)
def test_healthy_twins_pass(build):
    testing.check_algorithm(build(), settings=[("follow", 1.0)])


def test_a_broken_law_says_where_and_what_is_usually_wrong():
    with pytest.raises(ContractError, match=r"most in 'server/theta/.*usual cause: a mean over the batch") as caught:
        laws.padding(testing.Case(mutants.ignores_padding(), "follow", 1.0, 2))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("build", [mutants.keeps_rows, mutants.looks_up_numbers_by_id])
def test_a_method_with_nothing_for_new_clients_is_told_to_declare_it(build):
    with pytest.raises(ContractError, match="declare `welcome`, the steps that serve ") as caught:
        laws.new_clients(testing.Case(build(), "follow", 1.0, 2))
    assert "\n" not in str(caught.value)


def test_a_run_with_new_clients_that_cannot_be_served_is_refused_in_one_line():
    sim = testing.Case(mutants.keeps_rows(), "follow", 1.0, 2).joined
    with pytest.raises(RecordError, match=r"serve: Deliver reads 'theta', of which the server has no row .*`welcome`"):
        score_new_clients(sim, sim.start(), ("test",))


def test_check_algorithm_stops_at_a_mutant():
    with pytest.raises(ContractError, match="law 'messages'"):
        testing.check_algorithm(mutants.reads_unsent_head())


def test_a_wrong_degenerate_law_is_caught():
    law = testing.SpecialCase("FedPer is FedAvg", fedper(), fedavg())
    with pytest.raises(ContractError, match="FedPer is FedAvg, but models differ"):
        testing.check_special_case(law)
