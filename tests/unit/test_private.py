"""A private mean: values by hand, bounded influence, the size of its noise, its ends, refusals, a deployed server."""

from dataclasses import replace

import pytest
import torch

from deployed import own_samples
from simulations import built, federation, finished
from stratafl.algorithms import ALGORITHMS, algorithm, fedavg, fedper
from stratafl.algorithms.composition import with_median, with_private
from stratafl.core.parcel import ColumnMask, Field, Parcel
from stratafl.core.phased import Phase, Phased
from stratafl.core.records import stored_repr
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import RecordError
from stratafl.evaluation.trial import Trial
from stratafl.execute import Matrix, Messages, simulation
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.roster import Roster, RosterEntry
from stratafl.execute.server import Server
from stratafl.execute.site import Site
from stratafl.policies import Mean, PrivateMean
from stratafl.policies.accountant import epsilon_of, most_rounds
from stratafl.policies.keyed_noise import gaussian, noise_key
from stratafl.testing import check_algorithm, difference, tiny_federation, tiny_model
from stratafl.testing.watch import Tampered, not_finite

UNIFORM = replace(fedavg(), merge=(Mean(weights="uniform"),))
ENDLESS = 1e30


def made(method, batchnorm=False, **options):
    return built(method, batchnorm=batchnorm, **options)


def folded(merge, sim, server, up, ids):
    """One upload after the other."""
    total = {}
    for place in ids:
        total = merge.fold(sim.at(0), server, total, up.pick(slice(place, place + 1)), ids[place : place + 1])
    return merge.finish(sim.at(0), server, total)["theta"]


def uploads(sim, changes):
    """A server that holds 7 everywhere, and clients that sent it with these changes of `fc.bias`."""
    name = next(n for n in sim.setup.layout.specs if n.endswith("bias"))
    held = {n: torch.full(s.shape, 7.0, dtype=torch.float64) for n, s in sim.setup.layout.specs.items()}
    rows = {n: x.expand(len(changes), *x.shape).clone() for n, x in held.items()}
    for row, change in zip(rows[name], changes, strict=True):
        row[: len(change)] += torch.tensor(change, dtype=torch.float64)
    return name, {"theta": held}, rows


# By hand: a cohort of six, of which three uploads are there


@pytest.mark.parametrize(
    ("norm", "first", "second"),
    [(ENDLESS, (3 + 6 - 30) / 6, (4 + 8 - 40) / 6), (5.0, (3 + 3 - 3) / 6, (4 + 4 - 4) / 6)],
)
def test_three_of_six_clients_by_hand(norm, first, second):
    sim = made(fedavg())
    name, server, rows = uploads(sim, [[3.0, 4.0], [6.0, 8.0], [-30.0, -40.0]])
    found = folded(PrivateMean(clip=norm, noise=0.0), sim, server, Parcel({"theta": Field(rows)}), torch.arange(3))
    assert found[name][:2].tolist() == pytest.approx([7 + first, 7 + second], rel=1e-14)
    assert all(bool((x == 7).all()) for n, x in found.items() if n != name)


def test_columns_that_a_client_did_not_send_are_no_change():
    sim = made(fedavg())
    name, server, rows = uploads(sim, [[3.0, 4.0], [6.0, 8.0]])
    sent = {n: torch.ones_like(x, dtype=torch.bool) for n, x in rows.items()}
    sent[name][0, 1] = False
    up = Parcel({"theta": Field(rows, mask=ColumnMask(sent)).poisoned(sim.setup.layout)})
    found = folded(PrivateMean(clip=5.0, noise=0.0), sim, server, up, torch.arange(2))
    assert found[name][:2].tolist() == pytest.approx([7 + (3 + 3) / 6, 7 + 4 / 6], rel=1e-14)  # 3 alone is short enough


# What the guarantee rests on


def test_no_client_moves_the_server_by_more_than_its_share():
    """Whatever one client sends instead, also NaN: at most norm/D from where it is without its update."""
    norm, sim = 0.05, made(with_private(fedavg(), norm=0.05, noise=2.0))
    before = sim.start()

    def after(change):
        inner = sim if change is None else replace(sim, algorithm=Tampered(sim.algorithm, {2: change}))
        return inner.round(before, Matrix())[0].server["theta"]

    def times(factor):
        return lambda up: Parcel({n: f.apply(lambda x: factor * x) for n, f in up.items()})

    def nothing(up):
        return Parcel({"theta": Field({n: x[None] for n, x in before.server["theta"].items()})})

    without = after(nothing)
    for change in (None, times(1e6), times(-1e6), times(0.0)):
        distance = sum(float((x - without[n]).square().sum()) for n, x in after(change).items()) ** 0.5
        assert 0 < distance <= norm / 6 * (1 + 1e-9)
    assert difference(after(not_finite()), without) <= 1e-15  # left out is an update of 0


@pytest.mark.parametrize(("participation", "cohort"), [(1.0, 6), (0.5, 3)])
def test_noise_has_the_stated_size_on_every_trainable_column(participation, cohort):
    """N(0, (noise·norm)²), divided by the clients of a round and not by all, and new in every round."""
    norm, z, rounds = 0.05, 3.0, 30
    sim = made(with_private(fedavg(), norm=norm, noise=z), participation=participation, rounds=rounds)
    (merge,), server = sim.algorithm.merge, sim.start().server
    drawn = []
    for t in range(rounds):
        noisy = merge.finish(sim.at(t), server, {})["theta"]
        drawn.append(torch.cat([(noisy[n] - x).flatten() for n, x in server["theta"].items()]))
    scaled = torch.stack(drawn) / (z * norm / cohort)
    count = scaled.numel()
    assert float(scaled.mean()) == pytest.approx(0, abs=4 / count**0.5)
    assert float(scaled.std()) == pytest.approx(1, abs=4 / (2 * count) ** 0.5)
    assert float(scaled.square().mean(0).min()) > 0.2  # every column
    assert len(scaled.unique(dim=0)) == rounds
    expected = gaussian(noise_key(sim.setup), 1, "theta/fc.bias", 3)
    assert scaled[1, -3:].tolist() == pytest.approx(expected.tolist(), abs=1e-10)


def test_a_round_without_any_upload_has_noise_too():
    """Else the model would tell whether the only client that could be read was there."""
    sim = made(with_private(fedavg(), norm=0.1, noise=1.0))
    nobody = replace(sim, algorithm=Tampered(sim.algorithm, {client: not_finite() for client in range(6)}))
    before = sim.start()
    after, report = nobody.round(before, Matrix())
    assert len(report.left_out) == 6
    for name, x in after.server["theta"].items():
        drawn = gaussian(noise_key(sim.setup), 0, f"theta/{name}", x.numel()).reshape(x.shape) * (0.1 / 6)
        assert difference({name: x}, {name: before.server["theta"][name] + drawn}) <= 1e-12


def test_only_layers_that_are_sent_have_noise_and_no_counts_are_sent():
    method = with_private(fedper())
    sim = made(method)
    after, _ = sim.round(sim.start(), Matrix())
    assert not [name for name in after.server["theta"] if name.startswith("fc.")]
    assert set(method.upload_form(sim.at(0), sim.start().server).fields) == {"theta"}


# The ends, and bits


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_noise_and_a_norm_that_nobody_reaches_it_is_the_uniform_mean_to_the_bit(participation):
    plain, private = (
        made(method, participation=participation).run(Matrix(chunk=2)).tensors()
        for method in (UNIFORM, with_private(fedavg(), norm=ENDLESS, noise=0.0))
    )
    assert difference(plain, private) == 0


@pytest.mark.budget(1.5, "four runs")
@pytest.mark.parametrize("name", ["fedper+private", pytest.param("flayer+private", marks=pytest.mark.slow)])
def test_matrix_chunks_messages_and_a_resumed_run_have_the_same_bits(name):
    options = {"dtype": torch.float32, "participation": 0.7, "batchnorm": False}
    sim, whole = finished(algorithm(name, norm=0.1), **options)
    for executor in (Matrix(chunk=2), Messages()):
        assert difference(sim.run(executor).tensors(), whole.tensors()) == 0
    progress = sim.start()
    for _ in range(2):  # each by a simulation of its own
        data, model = federation(dtype=torch.float32), tiny_model(False)
        again = simulation(sim.algorithm, data, model, rounds=2, participation=0.7, engine="stacked")
        progress, _ = again.round(progress, Matrix())
    assert difference(progress.tensors(), whole.tensors()) == 0


@pytest.mark.slow
def test_a_private_method_obeys_the_contract():
    check_algorithm(algorithm("fedper+private", norm=0.1), rounds=2, settings=[("local", 0.5)])


@pytest.mark.slow
def test_every_round_says_what_it_cost():
    sim = made(with_private(fedavg(), noise=2.0, dp_delta=1e-6), participation=0.5, rounds=8, sizes=(4,) * 6)
    trial, progress = Trial(sim), sim.start()
    for t in range(1, 9):
        progress, lines = trial.round(progress)
        expected = epsilon_of(2.0, most_rounds(sim.setup, t), 1e-6)
        assert (lines.round["privacy.epsilon"], lines.round["privacy.delta"]) == (expected, 1e-6)
    assert most_rounds(sim.setup, 8) < 8
    progress, lines = Trial(made(fedavg())).round(made(fedavg()).start())
    assert not [key for key in lines.round if key.startswith("privacy")]


def test_what_came_later_does_not_change_the_digest_of_a_stored_run():
    old = "weights='uniform', unsent='held', clip=1.0, noise=1.0, delta=1e-05, layers=select('all')"
    assert stored_repr(PrivateMean()) == f"PrivateMean(field='theta', {old})"
    assert "budget=2.0" in stored_repr(PrivateMean(budget=2.0))


# Refusals


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fedopt+private", "ServerOptimizer"),
        ("scaffold+private", "Increment"),
        ("fedpac+private", "MixHeads"),
        ("local+private", "local"),
        ("fedlag+private", "fedlag"),
        ("pfedla+private", "LearnFromCosines"),
    ],
)
def test_methods_that_share_anything_else_are_refused_in_one_line(name, says):
    with pytest.raises(RecordError) as error:
        algorithm(name)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_of_every_private_method_the_server_writes_the_noisy_model_alone():
    accepted = []
    for name in ALGORITHMS:
        try:
            method = algorithm(f"{name}+private")
        except RecordError:
            continue
        accepted.append(name)
        (merge,) = method.merge
        assert type(merge) is PrivateMean
        assert merge.writes == (merge.field,)
        assert "up.samples" not in merge.reads
    assert {"fedavg", "fedper", "fedrep", "fedprox", "lgfedavg", "ditto", "flayer"} <= set(accepted)


def test_what_would_void_the_guarantee_is_refused(caplog):
    with pytest.raises(RecordError, match=r"'bn1\.running_mean'.*run\.buffers"):
        made(with_private(fedavg()), batchnorm=True)
    made(with_private(fedavg()), batchnorm=True, buffers="local")
    with pytest.raises(RecordError, match=r"delta=0\.2.*\b6 clients.*0\.166"):
        made(with_private(fedavg(), dp_delta=0.2))
    with pytest.raises(RecordError, match=r"norm_limit"):
        made(with_private(fedavg()), norm_limit=100.0)
    with pytest.raises(RecordError):
        with_private(Phased((Phase(fedavg(), rounds=1), Phase(fedper()))))
    with pytest.raises(RecordError):
        Phased((Phase(with_private(fedavg()), rounds=1), Phase(fedper())))
    with pytest.raises(RecordError, match=r"\bMean\b"):
        replace(fedavg(), merge=(PrivateMean(), Mean()))
    with pytest.raises(RecordError, match=r"PrivateMean"):
        with_median(with_private(fedavg()))
    with pytest.raises(RecordError):
        with_private(replace(fedavg(), merge=(Mean(clip=1.0),)))
    with pytest.raises(RecordError, match=r"unsent='held'"):
        made(replace(fedavg(), merge=(PrivateMean(weights="samples"),)))
    made(with_private(fedavg(), noise=0.0))
    assert "noise=0" in caplog.text


# The server of a deployment


def deployment(noise=1.0):
    data = tiny_federation(dtype=torch.float32)
    blueprint = Blueprint(
        with_private(fedavg(), norm=0.1, noise=noise), tiny_model(False), SampleFormat.of(data), 6, rounds=2
    )
    own = [blueprint.samples.client(own_samples(data, client)) for client in range(6)]
    roster = Roster.of(6, [RosterEntry.of(f"site {k}", k, each) for k, each in enumerate(own)])
    sites = [Site.of(blueprint, each, client) for client, each in enumerate(own)]
    return blueprint, roster, sites


@pytest.mark.slow
def test_noise_of_a_deployed_server_follows_from_its_secret_and_never_repeats():
    blueprint, roster, sites = deployment()

    def served(secret):
        return Server.of(blueprint, roster, norm_limit=None, norm_clip=None, secret=secret)

    server = served(b"a" * 32)
    start = server.start()
    bodies = {k: site.work(0, None, server.download(0, start, k)).upload for k, site in enumerate(sites)}
    first = server.absorb(0, start, bodies).server["theta"]
    assert difference(served(b"a" * 32).absorb(0, start, bodies).server["theta"], first) == 0
    assert difference(served(b"b" * 32).absorb(0, start, bodies).server["theta"], first) > 1e-3
    without = server.absorb(0, start, {k: body for k, body in bodies.items() if k != 5}).server["theta"]
    apart = sum(float((without[n] - x).double().square().sum()) for n, x in first.items()) ** 0.5
    assert apart > 2 * 0.1 / 6  # one update alone cannot move it so far: the noise is another
    quiet = Server.of(deployment(noise=0.0)[0], roster, norm_limit=None, norm_clip=None, secret=b"a" * 32)
    mean = quiet.absorb(0, start, bodies).server["theta"]
    guess = {
        n: gaussian(noise_key(sites[0].setup), 0, f"theta/{n}", x.numel()).reshape(x.shape) for n, x in mean.items()
    }
    known = {n: (x + guess[n] * (0.1 / 6)).float() for n, x in mean.items()}
    assert difference(known, first) > 1e-3  # what a site can compute is not it
    for damaged in ({}, dict.fromkeys(bodies, b"nothing")):
        assert difference(server.absorb(0, start, damaged).server["theta"], start["theta"]) > 1e-3


def test_a_deployed_server_adds_no_noise_without_a_secret_and_leaves_nobody_out_by_length():
    blueprint, roster, sites = deployment()
    server = Server.of(blueprint, roster, norm_limit=None, norm_clip=None)
    start = server.start()
    bodies = {0: sites[0].work(0, None, server.download(0, start, 0)).upload}
    with pytest.raises(RecordError, match=r"secret"):
        server.absorb(0, start, bodies)
    with pytest.raises(RecordError, match=r"norm_limit"):
        Server.of(blueprint, roster, secret=b"a" * 32)
