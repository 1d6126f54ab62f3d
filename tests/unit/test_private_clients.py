"""Noise of clients, in the local and the distributed model: sizes measured on uploads and sums, refusals, a site."""

from dataclasses import replace

import pytest
import torch

from deployed import own_samples
from simulations import built, finished
from stratafl.algorithms import ALGORITHMS, algorithm, fedavg, fedper
from stratafl.algorithms.private_on import with_private
from stratafl.core.phased import Phase, Phased
from stratafl.core.secure_sums import opening_threshold
from stratafl.core.state import rows_of
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import RecordError
from stratafl.execute import Debug, Matrix, Messages
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.roster import Roster, RosterEntry
from stratafl.execute.server import Server
from stratafl.execute.site import Site
from stratafl.policies.accountant import discrete_epsilon_of, epsilon_of
from stratafl.policies.keyed_noise import DEVIATION_BITS
from stratafl.testing import difference, tiny_federation, tiny_model
from stratafl.testing.watch import Tampered

NORM, NOISE = 0.05, 3.0


def local(host=None, **options):
    return with_private(host or fedavg(), norm=NORM, dp="local", **options)


def distributed(host=None, **options):
    return with_private(host or fedavg(), norm=NORM, dp="distributed", **options)


def made(method, **options):
    return built(method, batchnorm=False, **options)


def uploaded(method, rounds=1, **options):
    """What every client uploads of its update, `[clients, columns]`, in each of some rounds from the same state."""
    sim = made(method, rounds=rounds, **options)
    start = sim.start()
    return sim, [one_round(sim, replace(start, t=t)) for t in range(rounds)]


def one_round(sim, progress):
    rows = {}

    def keep(client):
        def change(up):
            rows[client] = torch.cat([x.flatten() for x in up["theta.update"].rows.values()])
            return up

        return change

    watched = replace(sim, algorithm=Tampered(sim.algorithm, {client: keep(client) for client in range(6)}))
    watched.round(progress, Matrix())
    return torch.stack([rows[client] for client in sorted(rows)])


def assert_normal(numbers, deviation):
    count = numbers.numel()
    assert float(numbers.mean()) == pytest.approx(0, abs=4 * deviation / count**0.5)
    assert float(numbers.std()) == pytest.approx(deviation, rel=4 / (2 * count) ** 0.5)


# Local


@pytest.mark.budget(1, "eight rounds of a federation")
def test_every_client_shortens_its_update_and_adds_all_of_the_noise_to_every_column():
    _, plain = uploaded(local(noise=0.0), rounds=4)
    _, noisy = uploaded(local(noise=NOISE), rounds=4)
    for update in plain:
        assert 0.999 * NORM < float(update.norm(dim=1).max()) <= NORM  # long ones are shortened, not dropped
    noise = torch.stack([a - b for a, b in zip(noisy, plain, strict=True)])
    assert_normal(noise, NOISE * NORM)
    assert float(noise.square().mean((0, 1)).min()) > 0.03 * (NOISE * NORM) ** 2  # every column
    flat = noise.reshape(-1, noise.shape[-1])
    others = torch.corrcoef(flat) - torch.eye(len(flat))
    assert float(others.abs().max()) < 6 / noise.shape[-1] ** 0.5  # no client and no round repeats another's


def test_the_server_moves_by_the_sum_of_updates_over_the_size_of_the_cohort():
    sim, (updates,) = uploaded(local(noise=NOISE))
    start = sim.start()
    after, _ = sim.round(start, Matrix())
    moved = torch.cat([(x - start.server["theta"][n]).flatten() for n, x in after.server["theta"].items()])
    assert torch.allclose(moved, updates.sum(0) / 6, atol=1e-12)


def test_an_update_that_is_not_finite_counts_as_0_and_is_not_missing():
    sim = made(local(noise=0.0))
    (send,) = sim.algorithm.send
    rows = {name: x.expand(2, *x.shape).clone() for name, x in sim.setup.start.items()}
    base = {name: x.clone() for name, x in rows.items()}
    next(iter(rows.values()))[0] += torch.inf

    class Task:
        ids = torch.arange(2)

        def sizes(self, split):
            return torch.ones(2)

    update = send(sim.at(0), {"theta": rows, "theta.received": base}, Task())["theta.update"]
    assert all(bool((x == 0).all()) for x in update.rows.values())


def test_the_guarantee_of_a_client_is_for_any_two_of_its_data_sets():
    sim = made(local(noise=8.0, dp_delta=1e-6), rounds=5)
    assert sim.algorithm.spent(sim.at(5)) == {
        "privacy.epsilon": epsilon_of(4.0, 5, 1e-6),
        "privacy.delta": 1e-6,
    }


# Distributed


def sums(noise, rounds, drop=(), **options):
    """The server's steps times D: the sums that were opened, `[rounds, columns]`, each from the same state."""
    sim = made(distributed(noise=noise, **options), rounds=rounds, secure=True)
    start, steps = sim.start(), []
    present = torch.tensor([client for client in range(6) if client not in drop])
    for t in range(rounds):
        after, report = sim.round(replace(start, t=t), Matrix(), present)
        assert not report.left_out
        steps.append(torch.cat([(x - start.server["theta"][n]).flatten() for n, x in after.server["theta"].items()]))
    return torch.stack(steps) * 6


@pytest.mark.budget(2, "many rounds of a federation, so that a deviation can be measured")
@pytest.mark.parametrize(("drop", "colluding"), [((), 0), pytest.param((5,), 2, marks=pytest.mark.slow)])
def test_noise_measured_on_the_sums_is_that_of_all_clients_together(drop, colluding):
    """Five of six open a sum. Their noise is the promised one, or larger by those who may tell theirs."""
    noise = sums(NOISE, 8, drop, dp_colluding=colluding) - sums(0.0, 8, drop)
    helpers = 5 - max(1, colluding)  # of six clients five open a sum, and an observer knows the noise of one of them
    assert_normal(noise, NOISE * NORM * ((6 - len(drop)) / helpers) ** 0.5)
    assert float(noise.square().mean(0).min()) > 0.03 * (NOISE * NORM) ** 2  # every column
    assert len(noise.unique(dim=0)) == 8


def test_a_client_adds_its_part_as_whole_numbers_to_its_shortened_update():
    sim = made(distributed(noise=NOISE), secure=True)
    state, rnd = sim.start().server, sim.at(0)
    secure = sim.secure_sums(rnd, state)
    unit = NOISE * NORM / 4**0.5 / 2**DEVIATION_BITS  # by hand: σ/√h is 2^24 units
    assert {entry.unit for entry in secure.entries} == {unit}
    uploads = []
    watched = replace(sim, algorithm=Tampered(sim.algorithm, {3: lambda up: uploads.append(up) or up}))
    watched.round(sim.start(), Matrix())
    up = uploads[0]
    exact = secure.numbers(rnd, up, 3)
    flat = torch.cat([x.flatten() for x in up["theta.update"].rows.values()])
    assert torch.equal(exact, (flat / unit).round().long())
    noise = secure.contribution(rnd, up, 3) - exact
    assert noise.dtype == torch.int64
    assert_normal(noise.double(), 2.0**DEVIATION_BITS)
    other = secure.contribution(rnd, up, 4) - exact
    assert not bool((noise == other).any())
    largest = float(exact.double().norm()) * unit
    assert largest <= NORM + exact.numel() ** 0.5 / 2 * unit  # what the accountant counts with


def test_the_guarantee_counts_helpers_columns_and_rounding():
    sim = made(distributed(noise=2.0, dp_colluding=1), rounds=4, secure=True)
    columns = sum(x.numel() for x in sim.setup.start.values())
    assert sim.algorithm.spent(sim.at(4))["privacy.epsilon"] == discrete_epsilon_of(
        2.0, 4, 1e-5, helpers=4, columns=columns
    )
    assert "1 client" in sim.algorithm.promise


@pytest.mark.parametrize("colluding", [0, 1, 3])
def test_noise_that_an_observer_knows_is_not_counted(colluding):
    """A site knows its own: without it, the rest of the least sum still has the noise of the guarantee."""
    sim = made(distributed(noise=NOISE, dp_colluding=colluding), secure=True)
    (entry, *_) = sim.secure_sums(sim.at(0), sim.start().server).entries
    of_one = (entry.unit * 2**DEVIATION_BITS) ** 2  # variance
    unknown = opening_threshold(6) - max(1, colluding)
    assert unknown * of_one == pytest.approx((NOISE * NORM) ** 2)


@pytest.mark.budget(1.5, "several runs of a simulation")
@pytest.mark.parametrize(("method", "secure"), [(local(), False), (distributed(), True)])
def test_all_executors_have_the_same_bits(method, secure):
    options = {"dtype": torch.float32, "batchnorm": False, "secure": secure, "participation": 0.7}
    sim, whole = finished(method, **options)
    for executor in (Matrix(chunk=2), Messages(), Debug()):
        assert difference(sim.run(executor).tensors(), whole.tensors()) == 0


# By layer


def layer_norms(sim, update):
    """The norm of each layer of some clients' updates, from their columns side by side."""
    layers, at = {}, 0
    for name in sim.setup.layout.trainable():
        spec = sim.setup.layout.specs[name]
        square = update[:, at : at + spec.size].square().sum(1)
        layers[spec.layer], at = layers.get(spec.layer, 0) + square, at + spec.size
    assert at == update.shape[1]
    return torch.stack(list(layers.values())).sqrt()


def test_each_layer_is_shortened_to_its_share_of_the_norm_and_the_guarantee_stays():
    sim, (update,) = uploaded(local(noise=0.0, dp_by_layer=True))
    norms, share = layer_norms(sim, update), NORM / len(sim.setup.layout.layers) ** 0.5
    assert bool((norms <= share).all())
    assert bool((norms > 0.999 * share).any(1).all())  # some update of every layer was longer
    assert 0.999 * NORM < float(update.norm(dim=1).max()) <= NORM
    one, each = (made(local(noise=2.0, dp_by_layer=by_layer)) for by_layer in (False, True))
    assert one.algorithm.spent(one.at(2)) == each.algorithm.spent(each.at(2))
    assert not {n for n in upload_names(made(local(fedper(), dp_by_layer=True))) if n.startswith("fc.")}


def upload_names(sim):
    return set(sim.algorithm.upload_form(sim.at(0), sim.start().server).fields["theta.update"].value)


def test_the_server_shortens_layers_as_clients_do():
    """Without noise, and so that it makes a difference, central and local end with the same model."""
    ends = [
        made(with_private(fedavg(), norm=NORM, noise=0.0, dp=dp, dp_by_layer=by_layer)).run(Matrix()).server["theta"]
        for dp, by_layer in (("central", True), ("local", True), ("central", False))
    ]
    assert difference(ends[0], ends[1]) < 1e-6 * NORM * 2
    assert difference(ends[0], ends[2]) > 1e-4


# Budget


def test_a_budget_ends_the_rounds_and_one_that_allows_none_is_refused():
    budget = epsilon_of(2.0, 2, 1e-5) * 1.001
    for method in (with_private(fedavg(), noise=2.0, dp_budget=budget), local(noise=4.0, dp_budget=budget)):
        sim = made(method, rounds=4)
        progress = sim.start()
        for _ in range(2):
            progress, _ = sim.round(progress, Matrix())
        spent = sim.algorithm.spent(sim.at(2))
        assert spent["privacy.epsilon"] <= spent["privacy.budget"] < spent["privacy.next"]
        with pytest.raises(RecordError, match=r"round 3\b.*dp_budget"):
            sim.round(progress, Matrix())
    with pytest.raises(RecordError, match=r"dp_budget=1\b.*epsilon = 1\.99"):
        made(with_private(fedavg(), noise=2.0, dp_budget=1.0))


# Refusals


@pytest.mark.parametrize(
    ("name", "dp", "says"),
    [
        ("flayer+private", "local", r"mask"),
        ("fedper+flayer+private", "distributed", r"mask"),
        ("fedper+q8+private", "local", r"compression"),
        ("fedper+private+median", "local", r"SumOfPrivateUpdates"),
        ("fedopt+private", "local", r"ServerOptimizer"),
    ],
)
def test_what_would_tell_more_than_a_noisy_update_is_refused_in_one_line(name, dp, says):
    with pytest.raises(RecordError, match=says) as error:
        algorithm(name, dp=dp)
    assert "\n" not in str(error.value)


def test_settings_that_would_void_the_guarantee_are_refused(caplog):
    with pytest.raises(RecordError, match=r"server\.secure"):
        made(distributed())
    with pytest.raises(RecordError, match=r"run\.buffers"):
        built(local(), batchnorm=True)
    made(distributed(dp_colluding=3), secure=True)
    for colluding in (4, 5):
        with pytest.raises(RecordError, match=rf"dp_colluding={colluding}\b.*\b3\b"):
            made(distributed(dp_colluding=colluding), secure=True)
    with pytest.raises(RecordError, match=r"dp_colluding"):
        local(dp_colluding=1)
    with pytest.raises(RecordError):
        Phased((Phase(local(), rounds=1), Phase(fedavg())))
    made(with_private(fedavg(), norm=0.07, noise=0.0, dp="local"))
    assert "noise=0" in caplog.text


def test_methods_that_take_noise_of_clients_upload_nothing_else():
    accepted = []
    for name in ALGORITHMS:
        try:
            method = algorithm(f"{name}+private", dp="local")
        except RecordError:
            continue
        accepted.append(name)
        assert {field for step in method.send for field in step.writes} == {f"up.{method.merge[0].field}.update"}
    assert {"fedavg", "fedper", "fedrep", "fedprox", "lgfedavg", "ditto"} <= set(accepted)
    assert "flayer" not in accepted


# A site


def deployment(method):
    data = tiny_federation(dtype=torch.float32)
    blueprint = Blueprint(method, tiny_model(False), SampleFormat.of(data), 6, rounds=2)
    own = [blueprint.samples.client(own_samples(data, client)) for client in range(6)]
    roster = Roster.of(6, [RosterEntry.of(f"site {k}", k, each) for k, each in enumerate(own)])
    return blueprint, roster, own


@pytest.mark.slow
def test_noise_of_a_site_follows_from_its_own_secret():
    blueprint, roster, own = deployment(local(noise=1.0))
    server = Server.of(blueprint, roster)
    start = server.start()

    def sent(secret):
        site = Site.of(blueprint, own[0], 0)
        site = site if secret is None else site.with_secret(secret)
        return site.work(0, None, server.download(0, start, 0)).upload

    first = sent(b"a" * 32)
    assert sent(b"a" * 32) == first  # asked again, it answers alike
    assert sent(b"b" * 32) != first
    with pytest.raises(RecordError, match=r"secret"):
        sent(None)
    after = server.absorb(0, start, {0: first}).server
    assert difference(rows_of(after, "theta"), rows_of(start, "theta")) > 1e-3
