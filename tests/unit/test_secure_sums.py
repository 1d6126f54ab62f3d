"""Secure sums: which methods allow them, numbers in fixed point, and rounds that stay closed."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from simulations import built, federation, finished, outcome
from stratafl.algorithms import ALGORITHMS, algorithm, fedavg, fedper
from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.core.algorithm import Total
from stratafl.core.form import form_of
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.secure_sums import (
    COMPLETE,
    MIN_SITES,
    SecureSums,
    check_secure,
    limit_bits,
    most_colluding,
    opening_threshold,
    too_few,
)
from stratafl.core.state import flatten, tensors
from stratafl.core.steps import MergeSums
from stratafl.errors import RecordError, WireError, told_to_others
from stratafl.execute import Debug, Matrix, Messages, simulation
from stratafl.policies import Broadcast, Mean
from stratafl.testing import tiny_model
from stratafl.testing.case import within_reach
from stratafl.testing.watch import Tampered, Watched

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "secure.md"
WHOLE, UNIFORM = "top", "sum"


def refusal(method) -> str:
    """Why a method is refused; "" if it is not."""
    short, rounds = within_reach(method, 2)
    sim = built(short, batchnorm=False, rounds=rounds)
    try:
        check_secure(sim.algorithm, sim.setup)
    except RecordError as error:
        return str(error)
    return ""


@pytest.mark.budget(12, "every method of the catalogue is built and rehearsed")
def test_the_guide_lists_the_methods_whose_uploads_can_be_summed_unseen():
    refusals = {name: refusal(algorithm(name)) for name in sorted(ALGORITHMS)}
    for name, why in refusals.items():
        print(f"{name:14s} {why or 'eligible'}")
        assert "\n" not in why
    listed = re.search(r"<!-- eligible -->(.*?)<!-- /eligible -->", GUIDE.read_text(), re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == {name for name, why in refusals.items() if not why}


@record
class OwnCopies(Broadcast):
    """To each client a model that could be another one."""

    def __call__(self, rnd, server, ids):
        copies = {name: x.expand(len(ids), *x.shape) for name, x in self.sent(rnd, server).items()}
        return {self.field: Field(copies)}


@record
class SumOfServer(MergeSums):
    """A sum into which a value of the server goes."""

    reads = ("up.theta", "theta")
    writes = ("theta",)

    def fold(self, rnd, server, sums, up, ids):
        return {"top": {name: (x * server["theta"][name]).sum(0) for name, x in up["theta"].rows.items()}}

    def finish(self, rnd, server, sums):
        return {"theta": sums["top"]}


@record
class SumOfForm(SumOfServer):
    """A sum for which the server's names are enough."""

    def fold(self, rnd, server, sums, up, ids):
        before = sums or {"top": {}}
        rows = {name: up["theta"].rows[name] for name in server["theta"]}
        return {"top": {name: x.sum(0).double() + before["top"].get(name, 0) for name, x in rows.items()}}


def test_a_merge_that_reads_a_value_of_the_server_is_refused_and_one_that_reads_names_is_not():
    plain = fedavg()
    assert "SumOfServer" in refusal(replace(plain, merge=(SumOfServer(),)))
    assert refusal(replace(plain, merge=(SumOfForm(),))) == ""
    assert "Mean" in refusal(replace(plain, merge=(Mean(clip=1.0),)))
    assert refusal(replace(plain, merge=(Mean(),))) == ""
    assert "theta" in refusal(replace(plain, serve=(OwnCopies(),)))


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("pfedfda", "RefitGaussians"),
        ("fedper+median", "Median"),
        ("fedper+q8", "Compress"),
        ("flayer", "theta"),
        ("ifca", "MeanOfGroups"),
    ],
)
def test_what_cannot_be_summed_unseen_is_refused_with_the_step_or_field_that_forbids_it(name, names):
    assert names in refusal(algorithm(name))


def test_settings_that_compare_single_uploads_are_refused_with_it():
    for settings in ({"server.merge": "median"}, {"server.norm_limit": 5.0}, {"run.participation": 0.1}):
        experiment = with_values(Experiment(), {"server.secure": True, **settings})
        with pytest.raises(RecordError, match=r"server\.secure"):
            simulation_of(experiment)


# Fixed point


def one_number(cohort: int, value: float, weight: int = 1) -> tuple[SecureSums, Round, Parcel]:
    """The sums of a FedAvg, and an upload in which every value is this."""
    sim = built("fedavg", batchnorm=False)
    rnd, state = sim.at(0), sim.start().server
    form = sim.algorithm.upload_form(rnd, state)
    blocks = {
        name: torch.full((1, *x.shape), value, dtype=torch.float64) for name, x in form.fields["theta"].value.items()
    }
    upload = Parcel({"theta": Field(blocks), "samples": Field(torch.tensor([weight]))})
    assert form_of(upload, rnd.layout).digest == form.digest
    return SecureSums.of(sim.algorithm, rnd, state, cohort), rnd, upload


def test_numbers_are_rounded_to_the_nearest_of_their_scale():
    # Twelve clients leave 58 of 62 bits; 16 are for a value and 16 for the samples it is multiplied by.
    sums, rnd, upload = one_number(12, 0.75 + 2.0**-27 + 2.0**-40)
    assert {entry.bits for entry in sums.entries} == {26}
    contribution = sums.contribution(rnd, upload, 0)
    tops = torch.cat([torch.full((e.shape.numel(),), e.name.startswith(WHOLE)) for e in sums.entries])
    assert set(contribution[tops].tolist()) == {0.75 * 2**26 + 1}  # 0.5 + 2⁻¹⁴ of a unit is rounded up
    assert set(contribution[~tops].tolist()) == {2**26}  # the weight, one sample
    negative = sums.contribution(rnd, one_number(12, -0.75)[2], 0)
    assert set(negative[tops].tolist()) == {-0.75 * 2**26}


def test_a_value_that_could_overflow_the_sum_is_refused_and_one_at_the_limit_is_not(caplog):
    reasons = set()
    for cohort in (3, 12, 100):
        sums, rnd, _ = one_number(cohort, 0.0)
        bits = sums.entries[0].bits
        most = 2.0 ** (limit_bits(cohort) - bits)
        at_limit = sums.contribution(rnd, one_number(cohort, most)[2], 0)
        assert int(at_limit.max()) * cohort < 2**63  # even if all clients send the largest value
        for value in (most * (1 + 2.0**-40), -2 * most, float("nan"), float("inf")):
            with pytest.raises(WireError) as error:
                sums.contribution(rnd, one_number(cohort, value)[2], 0)
            reasons.add(told_to_others(error.value))
    assert len(reasons) == 1  # which the server is told: neither the value nor the layer
    assert "'top/" in caplog.text  # the client's own log has both


def test_opened_sums_are_those_of_floats_to_the_stated_precision():
    sim = built("scaffold", batchnorm=False)
    rnd, state = sim.at(0), sim.start().server
    sums, form = sim.secure_sums(rnd, state), sim.algorithm.upload_form(rnd, state)
    generator = torch.Generator().manual_seed(0)
    uploads = [
        Parcel(
            {
                name: Field(
                    {
                        k: torch.randn((1, *x.shape), generator=generator, dtype=torch.float64)
                        for k, x in f.value.items()
                    }
                )
                if isinstance(f.value, Mapping)
                else Field(torch.tensor([client + 1]))
                for name, f in form.fields.items()
            }
        )
        for client in range(5)
    ]
    total, vector = Total(), torch.zeros(sums.size, dtype=torch.int64)
    for client, upload in enumerate(uploads):
        total = sim.algorithm.fold(rnd, state, total, upload, torch.tensor([client]))
        vector += sums.contribution(rnd, upload, client)
    opened = sums.opened(vector, torch.device("cpu"))
    for entry in sums.entries:
        exact, found = (flatten(each.sums[entry.merge])[entry.name] for each in (total, opened))
        assert float((exact - found).abs().max()) <= 5 * 2.0 ** -(entry.bits + 1) + 1e-13
    assert any(entry.name.startswith(UNIFORM) and entry.bits > 40 for entry in sums.entries)  # no bits for samples


@pytest.mark.parametrize("method", ["fedper", "scaffold"])
def test_a_total_that_clients_cannot_come_to_is_refused(method):
    """One that sends random numbers, or another weight than that of its samples, makes it such a total."""
    sim = built(method, batchnorm=False, secure=True)
    rnd, state, clients, uploads = sim.at(0), sim.start().server, torch.arange(6), {}
    keep = {client: lambda up, client=client: uploads.setdefault(client, up) for client in range(6)}
    replace(sim, algorithm=Tampered(sim.algorithm, keep)).round(sim.start(), Matrix())
    sums, form = sim.secure_sums(rnd, state), sim.upload_form(rnd, state)
    vectors = [sums.contribution(rnd, uploads[client], client) for client in range(6)]
    honest = torch.stack(vectors).sum(0)
    sums.check_total(rnd, form, honest, sim.samples[clients])
    sums.check_total(rnd, form, honest - vectors[2], sim.samples[clients[clients != 2]])
    noise = torch.randint(-(2**63), 2**63 - 1, honest.shape, generator=torch.Generator().manual_seed(0))
    lowest = honest.clone()
    lowest[0] = -(2**63)
    weights, at = honest.clone(), 0
    for entry in sums.entries:
        if not entry.name.startswith(WHOLE):  # "top", the values; the others are weights
            weights[at] += 2 << entry.bits
        at += entry.shape.numel()
    for total in (honest + noise, lowest, weights):
        with pytest.raises(WireError):
            sums.check_total(rnd, form, total, sim.samples[clients])
    with pytest.raises(WireError):
        sums.check_total(rnd, form, honest, sim.samples[clients[1:]])


# Rounds


@pytest.mark.parametrize(("method", "executors"), [("fedper", (Matrix(chunk=2), Messages())), ("scaffold", (Debug(),))])
@pytest.mark.budget(1, "two or three runs of a simulation")
def test_a_secure_simulation_ends_close_to_a_plain_one_and_all_executors_with_the_same_bits(method, executors):
    plain = outcome(method, batchnorm=False)
    secure = outcome(method, batchnorm=False, secure=True)
    gap = max(float((plain[name] - x).abs().max()) for name, x in secure.items() if x.numel() and x.is_floating_point())
    assert 0 < gap < 1e-7
    for executor in executors:
        other = outcome(method, executor, batchnorm=False, secure=True)
        assert all(torch.equal(x, other[name]) for name, x in secure.items())


def test_the_threshold_exceeds_two_thirds_and_no_two_sums_of_a_round_can_both_reach_it():
    assert [opening_threshold(n) for n in (1, 2, 3, 4, 5, 6, 9, 12, 50, 100)] == [3, 3, 3, 3, 4, 5, 7, 9, 34, 67]
    for n in range(MIN_SITES, 200):
        # Two sums share 2·T − n sites at least; each honest one of them opens one sum, so a third may be dishonest.
        assert 2 * opening_threshold(n) - n > (n - 1) // 3 if n > 3 else opening_threshold(n) == n
        assert too_few(opening_threshold(n), n) == ""
        assert too_few(opening_threshold(n) - 1, n) != ""


def test_as_many_may_collude_as_cannot_open_two_sums_of_a_round():
    assert [most_colluding(n) for n in (3, 6, 12, 50, 51, 100)] == [2, 3, 5, 17, 10, 20]
    for n in range(MIN_SITES, COMPLETE + 1):
        needed = [2 * (opening_threshold(n) - colluding) for colluding in range(n + 1)]  # honest sites, for two sums
        fit = [honest <= n - colluding for colluding, honest in enumerate(needed)]
        assert fit.index(True) == most_colluding(n) + 1
        assert most_colluding(n) < opening_threshold(n)


def test_a_round_with_too_few_uploads_changes_nothing(caplog):
    sim = built("fedper", batchnorm=False, secure=True)
    progress = finished("fedper", batchnorm=False, secure=True).progress
    after, report = sim.round(progress, Matrix(), torch.tensor([0, 1, 2, 3]))  # of six clients, of which five must be
    assert after.t == progress.t + 1
    assert all(torch.equal(a, b) for a, b in zip(tensors(progress.server), tensors(after.server), strict=True))
    assert all(after.clients[k] is state for k, state in progress.clients.items())
    assert len(report.left_out) == 4
    assert any("round 3" in each.message for each in caplog.records)
    opened, report = sim.round(progress, Matrix(), torch.tensor([0, 1, 2, 3, 4]))
    assert not report.left_out
    assert not torch.equal(next(iter(tensors(progress.server))), next(iter(tensors(opened.server))))


class Huge(Watched):
    """A method in which client 2 sends a number that could overflow the sum."""

    def work(self, rnd, client, task):
        done = super().work(rnd, client, task)
        rows = {
            n: torch.where((task.ids == 2).reshape(-1, *(1,) * (x.ndim - 1)), 1e9 + x, x)
            for n, x in done.upload["theta"].rows.items()
        }
        return done._replace(upload=Parcel({**done.upload, "theta": Field(rows)}))


def test_a_client_whose_values_could_overflow_is_left_out_and_the_others_are_summed():
    sim = built("fedper", batchnorm=False, secure=True)
    wrong = replace(sim, algorithm=Huge(sim.algorithm))
    progress = sim.start()
    after, report = wrong.round(progress, Matrix())
    assert [each.client for each in report.left_out] == [2]
    without, _ = sim.round(progress, Matrix(), torch.tensor([0, 1, 3, 4, 5]))
    assert all(torch.equal(a, b) for a, b in zip(tensors(after.server), tensors(without.server), strict=True))


def test_every_number_of_a_secure_upload_takes_eight_bytes():
    plain, secure = (built("fedper", batchnorm=False, secure=on, dtype=torch.float32) for on in (False, True))
    up = [sim.round(sim.start(), Matrix())[1].up for sim in (plain, secure)]
    tensors_sent = 2  # weight and bias of the hidden layer, with the denominator of each
    assert int(up[1].clients[0]) == 2 * (int(up[0].clients[0]) - 8) + 8 * tensors_sent
    assert up[1].total == int(up[1].layers.sum()) + up[1].other


def test_a_method_that_uploads_nothing_runs_with_any_number_of_clients():
    sim = simulation(
        algorithm("local"), federation((8, 9)), tiny_model(False), rounds=1, dtype=torch.float64, secure=True
    )
    after, report = sim.round(sim.start(), Matrix())
    assert not report.left_out
    assert len(after.clients) == 2
    with pytest.raises(RecordError, match="2"):
        simulation(fedper(), federation((8, 9)), tiny_model(False), rounds=1, dtype=torch.float64, secure=True)
