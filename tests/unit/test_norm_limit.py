"""Updates that are absurdly long are left out of the round and named, if there is a limit."""

import re
from dataclasses import replace

import pytest
import torch

from deployed import Deployed, own_samples, restored
from stratafl.algorithms import algorithm, fedavg, fedper
from stratafl.config.assemble import simulation_of
from stratafl.config.deployment import blueprint_of, server_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.core import wire
from stratafl.core.keys import Seeds
from stratafl.core.parcel import ColumnMask, Field, Parcel
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import RecordError
from stratafl.evaluation.diagnostics import LayerDiagnostics
from stratafl.evaluation.metrics import named_metric
from stratafl.evaluation.trial import Trial
from stratafl.execute import Matrix, Messages, simulation
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.roster import Roster
from stratafl.execute.server import Server
from stratafl.execute.uploads import (
    ENDLESS,
    USUAL_NORM_CLIP,
    USUAL_NORM_LIMIT,
    Inspection,
    LeftOut,
    flagged,
    shortening,
    too_long,
    with_shorter_updates,
)
from stratafl.testing import difference, tiny_federation, tiny_model
from stratafl.testing.watch import Tampered, Watched
from tiers import slow_except

WRONG, LIMIT = 2, 50.0
SAYS = r".*\bupdate\b.* [\d.e+]+ .*\b50\b.*"


class Scaled(Watched):
    """A method in which one client sends many times what it has learned."""

    def __init__(self, inner, times=1000.0):
        super().__init__(inner)
        self.times = times

    def work(self, rnd, client, task):
        done, start = super().work(rnd, client, task), client["theta"]
        theta = done.upload["theta"]

        def sent(name, x):
            there = (task.ids == WRONG).reshape(-1, *(1,) * (x.ndim - 1))
            return torch.where(there, start[name] + self.times * (x - start[name]), x)

        value = {name: sent(name, x) for name, x in theta.rows.items()}
        return done._replace(upload=Parcel({**done.upload, "theta": replace(theta, value=value)}))


def made(method, *, limit=LIMIT, clip=None, times=1000.0, **options):
    options = {"rounds": 2, "dtype": torch.float32, "buffers": "local", "engine": "stacked"} | options
    data = tiny_federation(dtype=options["dtype"])
    sim = simulation(method, data, tiny_model(batchnorm=False), norm_limit=limit, norm_clip=clip, **options)
    return sim, replace(sim, algorithm=Scaled(sim.algorithm, times))


# Who is above the limit


def updates(*norms):
    return [{"update": norm} for norm in norms]


def test_the_limit_is_a_multiple_of_the_median_norm():
    found = too_long([3, 1, 4, 2], updates(1.0, 2.0, 3.0, 126.0), 50.0)
    assert [each.client for each in found] == [2]
    assert re.search(r"update.* 50\.4 .* 50$", found[0].reason)
    assert too_long([3, 1, 4, 2], updates(1.0, 2.0, 3.0, 125.0), 50.0) == ()  # the limit itself is allowed
    assert too_long([3, 1, 4, 2], updates(1.0, 2.0, 3.0, 126.0), None) == ()
    assert too_long([0, 1], updates(1.0, 1e9), 50.0) == ()  # of two nobody can say which one is wrong
    assert [each.client for each in too_long(range(5), updates(0.0, 0.0, 1.0, 1.0, 80.0), 50.0)] == [4]


def test_every_part_of_an_upload_has_a_median_of_its_own():
    each = [{"update": moved, "field 'c'": c} for moved, c in ((1.0, 100.0), (1.0, 90.0), (60.0, 95.0))]
    (found,) = too_long([0, 1, 2], each, 50.0)
    assert found.client == 2
    assert re.search(r"update.* 60 ", found.reason)
    each[2] |= {"update": 1.0, "field 'c'": 9500.0}
    (found,) = too_long([0, 1, 2], each, 50.0)
    assert re.search(r"'c'.* 95 ", found.reason)


# In a simulation


@pytest.mark.parametrize(
    ("name", "executor"),
    slow_except(
        [("fedper", Matrix()), ("fedavg+median", Matrix(chunk=2))], [("ditto", Messages()), ("scaffold", Matrix())]
    ),
)
def test_the_round_is_the_one_in_which_that_client_was_not_asked(name, executor):
    sim, wrong = made(algorithm(name))
    before, _ = sim.round(sim.start(), Matrix())
    cohort = sim.cohort(sim.at(1))
    without, _ = sim.round(before, executor, cohort[cohort != WRONG])
    after, report = wrong.round(before, executor)
    assert difference(after.tensors(), without.tensors()) == 0
    (one,) = report.left_out
    assert one.client == WRONG
    assert re.fullmatch(SAYS, one.reason)
    assert not report.outliers
    assert report.cohort.tolist() == cohort.tolist()
    assert report.up.clients.min() > 0  # all have sent their bytes
    assert WRONG not in report.present.tolist()


@pytest.mark.parametrize(("name", "field"), [("scaffold", "c_change"), ("ifca", "theta"), ("fedpac", "prototypes")])
def test_fields_that_the_server_did_not_send_count_from_0(name, field):
    sim, _ = made(algorithm(name))

    def change(upload):
        return Parcel({**upload, field: upload[field].apply(lambda x: 1e20 * x)})

    _, report = replace(sim, algorithm=Tampered(sim.algorithm, {WRONG: change})).round(sim.start(), Matrix())
    assert [each.client for each in report.left_out] == [WRONG]
    assert f"field '{field}'" in report.left_out[0].reason


def test_statistics_have_a_limit_of_their_own():
    data = tiny_federation(dtype=torch.float32)
    sim = simulation(fedavg(), data, tiny_model(batchnorm=True), norm_limit=LIMIT, rounds=1, dtype=torch.float32)

    def change(upload):
        rows = {n: x * 1e6 if "running_mean" in n else x for n, x in upload["theta"].rows.items()}
        return Parcel({**upload, "theta": replace(upload["theta"], value=rows)})

    _, report = replace(sim, algorithm=Tampered(sim.algorithm, {WRONG: change})).round(sim.start(), Matrix())
    assert ["statistics of 'theta'" in each.reason for each in report.left_out] == [True]


def test_what_was_packed_is_measured_as_it_arrives():
    """Codes are as ever, and the scale that they are multiplied by is a thousand times as large."""

    def change(upload):
        scale = upload["theta.scale"]
        return Parcel({**upload, "theta.scale": scale.apply(lambda x: 1000 * x)})

    sim, _ = made(algorithm("fedper+q8", min_size=1))
    _, report = replace(sim, algorithm=Tampered(sim.algorithm, {WRONG: change})).round(sim.start(), Matrix())
    assert [each.client for each in report.left_out] == [WRONG]
    assert re.fullmatch(SAYS, report.left_out[0].reason)


def test_without_a_limit_it_takes_part_and_is_named():
    sim, wrong = made(fedper(), limit=None)
    after, report = wrong.round(sim.start(), Matrix())
    assert not report.left_out
    assert [each.client for each in report.outliers] == [WRONG]
    assert difference(after.server["theta"], sim.start().server["theta"]) > 1


def test_where_nobody_is_above_the_limit_nothing_changes():
    (sim, _), (plain, _) = made(fedper()), made(fedper(), limit=None)
    assert difference(sim.run(Matrix()).tensors(), plain.run(Matrix()).tensors()) == 0


@pytest.mark.slow
def test_a_limit_that_nobody_reaches_changes_no_report_of_outliers():
    """Even of a method whose clients mix what they receive, so that updates differ in length by where they start."""
    reports = []
    for limit in (None, 1e9):
        sim, wrong = made(algorithm("fedala"), limit=limit, times=30.0)
        progress, _ = sim.round(sim.start(), Matrix())
        reports.append(wrong.round(progress, Matrix())[1])
    assert reports[0].outliers == reports[1].outliers
    assert [each.client for each in reports[0].outliers] == [WRONG]


def test_those_who_were_left_out_for_another_reason_stay_so():
    """In the order of the cohort, each with its own reason."""

    class Two(Scaled):
        def work(self, rnd, client, task):
            done = super().work(rnd, client, task)
            counts = done.upload["samples"].tensor
            claimed = torch.where(task.ids == 4, counts + 1, counts)
            return done._replace(
                upload=Parcel({**done.upload, "samples": replace(done.upload["samples"], value=claimed)})
            )

    sim, _ = made(fedavg())
    cohort = sim.cohort(sim.at(0))
    after, report = replace(sim, algorithm=Two(sim.algorithm)).round(sim.start(), Matrix())
    away = [each.client for each in report.left_out]
    assert away == [client for client in cohort.tolist() if client in (WRONG, 4)]
    without, _ = sim.round(sim.start(), Matrix(), cohort[(cohort != WRONG) & (cohort != 4)])
    assert difference(after.tensors(), without.tensors()) == 0


def test_a_limit_that_leaves_everybody_out_changes_nothing_but_the_round():
    executor = Messages()
    sim, _ = made(fedper(), limit=1e-3)
    before = sim.start()
    after, report = sim.round(before, executor)
    assert len(report.left_out) == len(report.cohort) > 0
    assert after.t == before.t + 1
    assert difference(after.server["theta"], before.server["theta"]) == 0
    _, entry = Trial(sim, lab=LayerDiagnostics(every=1), executor=executor).round(before)
    assert len(entry.round["left_out"]) == len(report.cohort)


def test_a_norm_that_is_not_finite_is_left_out_with_or_without_a_limit():
    for limit in (None, LIMIT):
        sim, wrong = made(fedper(), limit=limit, times=1e200, dtype=torch.float64)
        _, report = wrong.round(sim.start(), Matrix())
        assert report.left_out == (LeftOut(WRONG, ENDLESS),)


def test_scores_and_layer_diagnostics_are_as_if_it_had_not_been_asked():
    sim, wrong = made(fedper(), limit=LIMIT)
    cohort = sim.cohort(sim.at(0))
    others = cohort[cohort != WRONG]

    class Asked(type(sim)):
        def round(self, progress, executor, ids=None, examine=None, watched=False):
            return super().round(progress, executor, others, examine, watched)

    asked = Asked(**{name: getattr(sim, name) for name in sim.__dataclass_fields__})
    for metric in (None, named_metric("macro_f1")):
        lab = LayerDiagnostics(every=1)
        _, entry = Trial(wrong, lab=lab, metric=metric, executor=Matrix(chunk=2)).round(sim.start())
        _, expected = Trial(asked, lab=lab, metric=metric, executor=Matrix(chunk=2)).round(sim.start())
        assert [each["client"] for each in entry.round["left_out"]] == [WRONG]
        trained = [line["client"] for line in entry.clients if "test.trained.loss" in line]
        assert trained == list(range(sim.setup.clients))  # the one left out as received, like one that was not asked
        for key in ("test.trained.loss", "train.loss", "test.deployed.loss"):
            assert entry.round[key] == pytest.approx(expected.round[key], rel=1e-6)
        for mine, plain in zip(entry.layers, expected.layers, strict=True):
            assert mine["update_norm"] == pytest.approx(plain["update_norm"], rel=1e-6)


# Shorter, but not left out


def test_an_update_is_multiplied_by_what_makes_it_as_long_as_the_limit():
    scales = shortening([3, 1, 4, 2], updates(1.0, 2.0, 3.0, 25.0), 5.0)  # the median is 2.5, and 25 is ten of it
    assert scales == {2: {"update": 0.5}}
    assert shortening([3, 1, 4, 2], updates(1.0, 2.0, 3.0, 12.5), 5.0) == {}  # the limit itself is allowed
    assert shortening([3, 1, 4, 2], updates(1.0, 2.0, 3.0, 25.0), None) == {}
    assert shortening([0, 1], updates(1.0, 1e9), 5.0) == {}
    parts = [{"statistics of 'theta'": x, "field 'counts'": x} for x in (1.0, 1.0, 20.0)]
    assert shortening([0, 1, 2], parts, 5.0) == {2: {"statistics of 'theta'": 0.25}}


def test_columns_that_travelled_both_ways_are_shortened_and_statistics_by_their_own_part():
    layout = simulation(fedavg(), tiny_federation(), tiny_model(batchnorm=True), rounds=1).setup.layout
    held = {name: torch.ones(spec.shape) for name, spec in layout.specs.items()}
    sent = {name: torch.full((2, *x.shape), 9.0) for name, x in held.items()}
    columns = {name: torch.ones_like(x, dtype=torch.bool) for name, x in sent.items()}
    first = next(name for name in layout.specs if layout.specs[name].trainable)
    columns[first].view(2, -1)[1, 0] = False
    up = Parcel({"theta": Field(sent, mask=ColumnMask(columns)), "counts": Field(torch.full((2, 3), 9.0))})
    down = Parcel({"theta": Field(held, common=True)})
    shorter = with_shorter_updates(up, down, [{}, {"update": 0.25}], layout)
    for name, x in shorter["theta"].rows.items():
        assert torch.equal(x[0], sent[name][0])
        expected = torch.full_like(x[1], 3.0 if layout.specs[name].trainable else 9.0)  # 1 + (9 − 1) / 4
        expected[~columns[name][1]] = 9.0
        assert torch.equal(x[1], expected)
    assert torch.equal(shorter["counts"].tensor, up["counts"].tensor)
    statistics = with_shorter_updates(up, down, [{"statistics of 'theta'": 0.5}, {}], layout)["theta"].rows
    assert {(layout.specs[name].trainable, float(x[0].max())) for name, x in statistics.items()} == {
        (True, 9.0),
        (False, 5.0),
    }


@pytest.mark.parametrize("executor", [Matrix(), Matrix(chunk=2), Messages()])
def test_a_round_is_the_one_in_which_that_client_sent_no_more_than_the_limit(executor):
    sim, wrong = made(fedper(), limit=None, clip=3.0)
    after, report = wrong.round(sim.start(), executor)
    (one,) = report.shortened
    assert one.client == WRONG
    assert not report.left_out
    short = replace(sim, algorithm=Scaled(sim.algorithm, 1000.0 * 3.0 / one.ratio), norm_clip=None)
    expected, _ = short.round(sim.start(), Matrix())
    moved = difference(expected.server["theta"], sim.start().server["theta"])
    assert difference(after.server["theta"], expected.server["theta"]) < 2e-3 * moved  # the ratio has three digits
    assert difference(after.server["theta"], wrong.round(sim.start(), Matrix())[0].server["theta"]) == 0


def test_where_nobody_is_shortened_nothing_changes_and_who_is_left_out_counts_for_no_median():
    (sim, _), (plain, _) = made(fedper(), clip=1e6), made(fedper(), limit=None)
    assert difference(sim.run(Matrix()).tensors(), plain.run(Matrix()).tensors()) == 0
    inspections = [(range(5), Inspection([""] * 5, [0.0] * 5, {"update": [1.0, 2.0, 4.0, 12.0, 900.0]}))]
    flags = flagged(inspections, range(5), 50.0, 3.0)
    assert [each.client for each in flags.too_long] == [4]
    assert flags.scales == {3: {"update": 0.75}}  # of the others the median is 3


def test_a_deployment_shortens_as_a_simulation_does():
    sim, wrong = made(fedper(), limit=None, clip=3.0, rounds=2, seed=0, buffers="follow")
    found, _, _ = absorbed(None, clip=3.0)
    after, report = wrong.round(sim.start(), Messages())
    assert report.shortened == found.shortened != ()
    assert difference(after.server["theta"], found.server["theta"]) == 0


# In a deployment


def federated(limit=USUAL_NORM_LIMIT, clip=None, dtype=torch.float32):
    data = tiny_federation(dtype=dtype)

    def blueprint():
        return Blueprint(
            fedper(),
            lambda: tiny_model(batchnorm=False),
            SampleFormat.of(data),
            6,
            2,
            seeds=Seeds.of(0),
            dtype=dtype,
            engine="stacked",
        )

    sites = Deployed(blueprint, {client: own_samples(data, client) for client in range(6)})
    sites.a_server = lambda: replace(type(sites).a_server(sites), norm_limit=limit, norm_clip=clip)
    return sites


def scaled_upload(server, t, state, data, times):
    """A site's upload with an update so many times as long."""
    layout, rnd = server.setup.layout, server.at(t)
    parcel = wire.decode(data, layout, server.upload_form(rnd, state))
    theta, held = parcel["theta"], state["theta"]
    value = {n: held[n] + times * (x - held[n]) for n, x in theta.rows.items()}
    return wire.encode(Parcel({**parcel, "theta": replace(theta, value=value)}), layout)


def absorbed(limit, times=1000.0, clip=None):
    """A first round in which one site sends an absurd update; and the same without that site."""
    sites = federated(limit, clip)
    server = sites.a_server()
    before = restored(sites.server)
    uploads = {k: sites.work(0, k, server.download(0, before, k)).upload for k in range(6)}
    wrong = {**uploads, WRONG: scaled_upload(server, 0, before, uploads[WRONG], times)}
    without = {k: upload for k, upload in uploads.items() if k != WRONG}
    return server.absorb(0, before, wrong), server.absorb(0, before, without), before


def test_a_server_leaves_it_out_and_names_it():
    found, without, _ = absorbed(USUAL_NORM_LIMIT)
    assert difference(found.server["theta"], without.server["theta"]) == 0
    assert [each.client for each in found.left_out] == [WRONG]
    assert found.left_out[0].reason.endswith(" 20")
    assert sorted(found.present) == [0, 1, 3, 4, 5]
    assert not found.outliers


def test_a_server_without_a_limit_only_names_it():
    found, without, before = absorbed(None)
    assert not found.left_out
    assert [each.client for each in found.outliers] == [WRONG]
    assert difference(found.server["theta"], before["theta"]) > 1 > difference(without.server["theta"], before["theta"])


@pytest.mark.slow
def test_a_deployment_leaves_out_whom_a_simulation_with_its_limit_leaves_out():
    sim, wrong = made(fedper(), limit=USUAL_NORM_LIMIT, rounds=2, seed=0, buffers="follow")
    found, _, _ = absorbed(USUAL_NORM_LIMIT)
    after, report = wrong.round(sim.start(), Messages())
    assert [each.client for each in report.left_out] == [each.client for each in found.left_out]
    assert difference(after.server["theta"], found.server["theta"]) == 0


# From a configuration


def test_it_is_on_in_simulations_and_deployments_unless_a_configuration_says_otherwise():
    def limits(*typed):
        experiment = with_settings(Experiment(), ["data.clients=4", "run.rounds=1", *typed])
        sim = simulation_of(experiment)
        made = blueprint_of(experiment, SampleFormat.of(sim.runtime.federation), 4)
        server = server_of(experiment, made, Roster.of(4, []))
        assert (sim.norm_limit, sim.norm_clip) == (server.norm_limit, server.norm_clip)
        if not typed:
            default = Server.of(made, Roster.of(4, []))
            assert (default.norm_limit, default.norm_clip) == (server.norm_limit, server.norm_clip)
        return sim.norm_limit, sim.norm_clip

    assert limits() == (USUAL_NORM_LIMIT, USUAL_NORM_CLIP)
    assert limits("algorithm.name=fedavg+private", "private.noise=1") == (None, None)
    assert limits("run.protocol=pfllib") == (None, None)
    assert limits("server.norm_limit=7") == (7.0, USUAL_NORM_CLIP)
    assert limits("server.norm_limit=0") == (None, None)
    assert limits("server.norm_limit=0", "server.norm_clip=3") == (None, 3.0)
    assert limits("server.norm_clip=0") == (USUAL_NORM_LIMIT, None)
    with pytest.raises(RecordError, match=r"norm_clip"):
        limits("algorithm.name=fedavg+private", "private.noise=1", "server.norm_clip=5")
    with pytest.raises(RecordError, match=r"server.norm_limit must be at least 0"):
        limits("server.norm_limit=-1")
