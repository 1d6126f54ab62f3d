"""The contract catches what it is for: each mutant breaks the law that is there for it, its healthy twin does not."""

import pytest
import torch

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
    ("keys randomness by place", lambda: mutants.noise(by_position=True), laws.order),
    ("keys randomness by place", lambda: mutants.noise(by_position=True), laws.chunks),
    ("mutates its input", mutants.mutates_its_input, laws.purity),
    ("reads what it does not declare", lambda: mutants.undeclared(mutants.Sneaky()), laws.declared),
    ("gives what it does not declare", lambda: mutants.undeclared(mutants.Generous()), laws.declared),
    ("declares wrong bytes", mutants.declares_wrong_bytes, laws.bytes_counted),
    ("uploads what nobody reads", lambda: mutants.SendsWhatNobodyReads(fedavg(), "up"), laws.bytes_counted),
    ("downloads what nobody reads", lambda: mutants.SendsWhatNobodyReads(fedavg(), "down"), laws.bytes_counted),
    ("sends types of its own", lambda: mutants.SendsTypesOfItsOwn(fedavg()), laws.bytes_counted),
    ("stores an undeclared layer", lambda: mutants.StoresAnUndeclaredLayer(fedper()), laws.bytes_counted),
    ("draws from torch's own generator", lambda: mutants.AmbientRandomness(fedavg()), laws.seeds),
    ("draws nothing", mutants.draws_nothing, laws.seeds),
    ("ignores padding", mutants.ignores_padding, laws.padding),
    ("reads a value back to the host", mutants.reads_the_host, laws.trace_law),
    ("takes the last upload", mutants.last_one_wins, laws.order),
    ("averages chunks", mutants.mean_of_chunk_means, laws.chunks),
    ("writes into what it opens", lambda: mutants.WritesIntoWhatItOpens(fedavg()), laws.purity),
    ("writes into what it evaluates", lambda: mutants.TouchesOutsiders(fedper()), laws.purity),
    ("counts whom it served", lambda: mutants.CountsWhomItServed(fedavg()), laws.left_out),
    ("hides state in an attribute", lambda: mutants.HidesState(fedavg()), laws.messages),
    ("marks its tensors", lambda: mutants.MarksItsTensors(fedavg()), laws.resume_law),
    ("has no row for a new client", mutants.keeps_rows, laws.new_clients),
    ("has no number for a new client", mutants.looks_up_numbers_by_id, laws.new_clients),
    ("gives a new client NaN", lambda: mutants.ForgetsNewClients(fedavg(), "nan"), laws.new_clients),
    ("gives a new client a group's", lambda: mutants.ForgetsNewClients(fedavg(), "group"), laws.new_clients),
    ("remembers a new client", lambda: mutants.RemembersNewClients(fedavg()), laws.new_clients),
    ("is not a record", lambda: mutants.Delegate(fedavg()), laws.record_law),
]
TWO_ROUNDS = (laws.resume_law, laws.messages, laws.purity)  # what is remembered shows in the next round


@pytest.mark.budget(3, "tracing imports torch._dynamo")
@pytest.mark.parametrize(
    ("build", "law"),
    [each[1:] for each in CAUGHT],
    ids=[f"{fault}: {law.__name__.removesuffix('_law')}" for fault, _, law in CAUGHT],
)
def test_mutant_is_caught_by_its_law(build, law):
    with pytest.raises(ContractError) as caught:
        law(testing.Case(build(), "follow", 1.0, 2 if law in TWO_ROUNDS else 1))
    assert caught.value.law.replace(" ", "_") in (law.__name__.removesuffix("_law"), "bytes")


def test_an_evaluation_that_writes_into_a_client_is_caught(monkeypatch):
    def careless(sim, progress, ids):
        progress.clients[0]["theta"]["fc.bias"].add_(1.0)

    monkeypatch.setattr(laws, "deployed", careless)
    with pytest.raises(ContractError, match="client 0") as caught:
        laws.outsiders(testing.Case(fedper(), "follow", 1.0, 1))
    assert caught.value.law == "outsiders"


def test_a_delegate_opens_uploads_as_its_method_does():
    folded = []

    class Folding(mutants.Delegate):
        def fold(self, rnd, server, total, uploads, ids):
            folded.append(set(uploads))
            return super().fold(rnd, server, total, uploads, ids)

    testing.Case(Folding(with_q8(fedavg(), min_size=8)), "follow", 1.0, 1).simulation().run(Matrix())
    assert folded
    assert all(names == {"theta", "samples"} for names in folded)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "caught_by"),
    [
        (mutants.honest_reader, (laws.poison, laws.messages)),
        (lambda: mutants.noise(by_position=False), (laws.order, laws.chunks)),
        (lambda: mutants.keeps_rows(welcome=(mutants.FirstRow(),)), (laws.new_clients,)),
    ],
)
def test_healthy_twins_pass(build, caught_by):
    """The laws that catch their mutants."""
    case = testing.Case(build(), "follow", 1.0, 2)
    for law in caught_by:
        law(case)


def test_a_broken_law_says_where_and_what_is_usually_wrong():
    with pytest.raises(ContractError, match=r"'server/theta/.*participation 1\.0.*batch\.mean") as caught:
        laws.padding(testing.Case(mutants.ignores_padding(), "follow", 1.0, 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("build", [mutants.keeps_rows, mutants.looks_up_numbers_by_id])
def test_a_method_with_nothing_for_new_clients_is_told_to_declare_it(build):
    with pytest.raises(ContractError, match="`welcome`") as caught:
        laws.new_clients(testing.Case(build(), "follow", 1.0, 1))
    assert "\n" not in str(caught.value)


def test_a_run_with_new_clients_that_cannot_be_served_is_refused_in_one_line():
    sim = testing.Case(mutants.keeps_rows(), "follow", 1.0, 2).joined
    with pytest.raises(RecordError, match=r"Deliver .*'theta'.*`welcome`"):
        score_new_clients(sim, sim.start(), ("test",))


def test_check_algorithm_stops_at_a_mutant():
    with pytest.raises(ContractError, match="law 'messages'"):
        testing.check_algorithm(mutants.reads_unsent_head(), rounds=1)


def test_a_wrong_degenerate_law_is_caught():
    law = testing.SpecialCase("FedPer is FedAvg", fedper(), fedavg())
    with pytest.raises(ContractError, match=law.says):
        testing.check_special_case(law)


def test_a_difference_sees_nan():
    zeros, spoilt = torch.zeros(2), torch.tensor([0.0, torch.nan])
    assert testing.difference({"x": zeros}, {"x": spoilt}) == float("inf")
    assert testing.difference({"x": spoilt}, {"x": spoilt.clone()}) == 0
