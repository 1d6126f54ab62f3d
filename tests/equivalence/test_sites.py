"""Sites and a server that exchange bytes end where the simulation of the same blueprint and seed ends."""

import re
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch

from deployed import Deployed, own_samples, saved
from methods import MECHANISMS, PAPERS, SLOW
from stratafl.algorithms import ALGORITHMS, algorithm, fedcp, fedper, gpfl
from stratafl.core.keys import Seeds
from stratafl.core.records import record
from stratafl.core.state import flatten, pick, unflatten
from stratafl.data import Federation, from_splits
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import DataError, StageError, WireError
from stratafl.evaluation.evaluate import client_models, deployed, score_new_clients
from stratafl.execute import Messages, simulation
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.roster import Roster, RosterEntry
from stratafl.execute.server import Server
from stratafl.execute.site import Site
from stratafl.execute.uploads import STATE_NOT_FINITE
from stratafl.models import build
from stratafl.policies import LocalTraining, Mean
from stratafl.runtime.engine import LoopEngine, StackedEngine
from stratafl.testing import difference
from tiers import slow_and_nightly

SIZES, SHAPE, CLASSES = (14, 31, 4, 23, 12, 7), (1, 6, 6), 3  # not in the order in which they are summed up
LACKING = {1: 2, 3: 0, 4: 1}  # a class that a client has no samples of
# Options with which the mechanism acts within a few rounds.
ACTING = {
    "fedalp": {"groups": 2, "warmup": 1},
    "fedavg30local": {"warmup": 2},
    "fedlag": {"k": 2, "xi": 0.0, "warmup": 0},
    "flayer": {"s": 1},
    "heurpfedla": {"k": 2, "hyper_lr": 50.0, "initial": "uniform"},
    "pfedla": {"hyper_lr": 50.0, "initial": "uniform"},
}
ROUNDS = 4


@cache
def federation(dtype: torch.dtype, sizes: tuple[int, ...] = SIZES) -> Federation:
    """Clients of other sizes, each with validation and test samples; some lack a class."""
    rng = np.random.default_rng(3)

    def samples(count, client):
        y = rng.choice([label for label in range(CLASSES) if label != LACKING.get(client)], count)
        return rng.standard_normal((count, *SHAPE)) + y[:, None, None, None] / 2, y

    clients = [
        {"train": samples(n, k), "validation": samples(3 + k, k), "test": samples(4, k)} for k, n in enumerate(sizes)
    ]
    return from_splits(clients, classes=CLASSES, dtype=dtype, name="sites")


def model():
    """With convolution, BatchNorm and dropout."""
    return build("convnorm", shape=SHAPE, classes=CLASSES, channels=4, dropout=0.3)


def blueprint(method, dtype, **options):
    clients = options.pop("clients", len(SIZES))
    given = {"rounds": ROUNDS, "participation": 0.5, "seeds": Seeds.of(5), "dtype": dtype, **options}
    return Blueprint(method, given.pop("model", model), SampleFormat.of(federation(dtype)), clients, **given)


def both(method, dtype, sizes=SIZES, **options):
    """What sites and the simulation end with."""
    data = federation(dtype, sizes)
    given = {"rounds": ROUNDS, "participation": 0.5, "seed": 5, "dtype": dtype, **options}
    sim = simulation(method, data, given.pop("model", model), **given)
    sites = Deployed(
        partial(blueprint, method, dtype, **options, clients=len(sizes)),
        {client: own_samples(data, client) for client in range(len(sizes))},
    )
    progress = sim.run(Messages())
    # One client at a time, as `Messages` does: a server that mixes the rows of several at once may round otherwise.
    each = [deployed(sim, progress, ids) for ids in torch.arange(len(sizes)).split(1)]
    models = {name: torch.cat([rows[name] for rows in each]) for name in each[0]}
    return sites.run().everything(), {**progress.tensors(), **flatten({"deployed": models})}


def acting(name):
    return algorithm(name, **ACTING.get(name, {}))


BITS = PAPERS | MECHANISMS  # the others may round otherwise
CHECKED = PAPERS | set(sorted(MECHANISMS)[::4])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=SLOW if name in CHECKED else pytest.mark.nightly) for name in sorted(ALGORITHMS)],
)
def test_every_method_ends_where_the_simulation_ends(name):
    sites, simulated = both(acting(name), torch.float32 if name in BITS else torch.float64, rounds=3)
    assert difference(sites, simulated) <= (0 if name in BITS else 1e-12)


@pytest.mark.budget(2, "every message builds its side anew")
def test_sites_have_the_simulations_bits():
    sites, simulated = both(acting("fedper"), torch.float32, rounds=2)
    assert difference(sites, simulated) == 0


ROBUST = [("fedper+median", {}), ("fedper+krum", {"f": 0, "keep": 2}), ("flayer+clipped", {"norm": 0.05})]


@pytest.mark.parametrize(("name", "options"), slow_and_nightly(ROBUST))
def test_robust_merges_have_the_simulations_bits(name, options):
    sites, simulated = both(algorithm(name, **options), torch.float32, participation=0.7)
    assert difference(sites, simulated) == 0


# Initial weights


@pytest.mark.parametrize(
    ("method", "given"),
    [(fedper(initial="own"), model), (fedper(initial="own"), model()), (fedcp(), model), (gpfl(), model())],
    ids=["own heads", "own heads of a module", "fedcp", "gpfl of a module"],
)
def test_a_site_draws_the_weights_that_the_simulation_draws(method, given):
    data = federation(torch.float32)
    sim = simulation(method, data, given, rounds=ROUNDS, participation=0.5, seed=5)
    for client in (0, 4):
        made = blueprint(method, torch.float32, model=given)
        site = Site.of(made, made.samples.client(own_samples(data, client)), client)
        assert difference(site.setup.start, sim.setup.start) == 0
        assert site.setup.features == sim.setup.features == made.features
        enrolled = sim.algorithm.enrol(sim.setup, torch.tensor([client]))
        assert difference(flatten(pick(enrolled, 0)), flatten(site.enrol())) == 0
        assert difference(site.setup.fresh(torch.tensor([client])), sim.setup.fresh(torch.tensor([client]))) == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", [fedper(initial="own"), gpfl()], ids=["own heads", "gpfl"])
def test_methods_that_draw_weights_of_their_own_end_where_the_simulation_ends(method):
    sites, simulated = both(method, torch.float32)
    assert difference(sites, simulated) == 0


def test_members_that_agree_have_the_same_digests_and_the_others_differ_in_what_they_do_not_share():
    made = blueprint(fedper(), torch.float32).digests
    assert made == blueprint(fedper(), torch.float32).digests

    def differing(other):
        return {part for part in made if made[part] != other.digests[part]}

    assert differing(blueprint(fedper(personal="last:2"), torch.float32)) == {"method"}
    assert differing(blueprint(fedper(), torch.float32, rounds=9)) == {"rounds"}
    assert differing(blueprint(fedper(), torch.float32, engine="loop")) == {"rounds"}
    assert differing(blueprint(fedper(), torch.float32, seeds=Seeds.of(5, weights=6))) == {"rounds", "weights"}
    assert differing(blueprint(fedper(), torch.float32, buffers="local")) == {"model"}
    named = replace(SampleFormat.of(federation(torch.float32)), columns=())
    classes = replace(named.preprocessing, classes=("a", "b", "c"))
    other = replace(blueprint(fedper(), torch.float32), samples=replace(named, preprocessing=classes))
    assert differing(other) == {"samples"}


# The same bits on every machine


WIDE = fedper(train=LocalTraining(batch=64, epochs=2))  # more than the largest client has


@pytest.mark.slow
def test_padded_batches_have_the_simulations_bits():
    sites, simulated = both(WIDE, torch.float32, rounds=1)
    assert difference(sites, simulated) == 0


def test_short_batches_are_padded_as_in_the_simulation():
    method, data = WIDE, federation(torch.float32)
    sim = simulation(method, data, model, rounds=1)
    made = blueprint(method, torch.float32)
    small = made.samples.client(own_samples(data, 2))
    assert Site.of(made, small, 2).runtime.batch_size(64) == 4
    told = Deployed(lambda: made, {client: own_samples(data, client) for client in range(6)}).widest
    assert Site.of(made, small, 2, widest=told).runtime.batch_size(64) == sim.runtime.batch_size(64) == 31


def test_a_site_learns_of_the_largest_client_only_whether_it_fills_a_batch():
    made = blueprint(fedper(train=LocalTraining(batch=300)), torch.float32)
    big, small = RosterEntry("a", 0, 100_000, 5_000), RosterEntry("b", 1, 20, 3)
    assert Server.of(made, Roster.of(6, [big, small])).widest == {"train": 300, "validation": 300}
    assert Server.of(made, Roster.of(6, [small])).widest == {"train": 20, "validation": 3}


def test_a_site_never_measures_which_engine_is_faster(monkeypatch):
    def measured(*given):
        raise AssertionError("a site chose its engine by the clock")

    monkeypatch.setenv("STRATAFL_MEASURE", "on")
    monkeypatch.setattr("stratafl.runtime.build.measured", measured)
    data, made = federation(torch.float32), blueprint(fedper(), torch.float32)
    assert isinstance(Site.of(made, made.samples.client(own_samples(data, 0)), 0).runtime.engine, StackedEngine)
    loop = replace(made, engine="loop")
    assert isinstance(Site.of(loop, made.samples.client(own_samples(data, 0)), 0).runtime.engine, LoopEngine)
    with pytest.raises(AssertionError, match="clock"):  # a simulation does
        simulation(fedper(), data, model, rounds=1)


@pytest.mark.slow
def test_the_engine_of_the_blueprint_is_that_of_all_sites():
    sites, simulated = both(fedper(), torch.float32, engine="loop")
    assert difference(sites, simulated) == 0


# Sites that only predict


def joined(method, dtype, train):
    """The simulation with a seventh client that never takes part, and the sites with one that has its samples."""
    data = federation(dtype, (*SIZES, 9))
    sim = simulation(method, data, model, rounds=ROUNDS, participation=0.5, seed=5, dtype=dtype, new_clients=1)
    samples = {client: own_samples(data, client) for client in range(7)}
    if not train:
        samples[6] = {"test": samples[6]["test"]}
    sites = Deployed(partial(blueprint, method, dtype), samples)
    return sim, sim.run(Messages()), sites


NEW = {
    "fedper": pytest.mark.budget(1.5, "a simulation and seven sites"),
    "fedavgft": SLOW,
    "pfedla": SLOW,
    "fedalp": SLOW,
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=NEW.get(name, pytest.mark.nightly)) for name in sorted(ALGORITHMS)]
)
def test_a_site_that_only_predicts_has_the_model_of_a_new_client(name):
    sim, progress, sites = joined(acting(name), torch.float64, train=True)
    sites.server = saved(progress.server)
    (new,) = client_models(sim, progress, sim.new_clients, new=True)
    site = sites.a_site(6)
    assert not site.trains
    model = sites.deployed(site)
    assert difference(model, new.rows("deployed")) <= 1e-12
    simulated, scored = score_new_clients(sim, progress, ("test",)), site.scores(ROUNDS, model, "test")
    assert (scored.hits.item(), scored.count.item()) == (simulated["test.deployed"].hits.item(), 4)
    with pytest.raises(DataError, match=r"\b6\b.*\b5\b"):
        site.work(0, None, b"")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedbn", "fedrep", "pfedla", "fedcp"])
def test_a_site_without_any_training_samples_predicts(name):
    _, progress, sites = joined(acting(name), torch.float64, train=False)
    sites.server = saved(progress.server)
    rows = sites.deployed(sites.a_site(6))
    assert all(bool(torch.isfinite(x).all()) for x in rows.values())
    sites.samples[6] = {}
    assert difference(rows, sites.deployed(sites.a_site(6))) == 0  # nor any other samples


# What a server leaves out, and what both refuse


@pytest.mark.budget(1, "six sites")
def test_uploads_that_a_simulation_would_leave_out_are_left_out():
    sites = Deployed(
        partial(blueprint, fedper(), torch.float32, participation=1.0),
        {client: own_samples(federation(torch.float32), client) for client in range(6)},
    )
    server = sites.a_server()
    before, cohort = server.start(), server.cohort(server.at(0)).tolist()
    assert cohort == [1, 3, 0, 4, 5, 2]  # larger ones first
    done = {client: sites.work(0, client, server.download(0, before, client)).upload for client in cohort}
    entry = RosterEntry("site 1", 1, samples=30)  # has 31
    doubted = server.joined(entry)
    found = doubted.absorb(0, before, {**done, 2: done[2][:-1] + b"x", 3: done[4]})
    assert found.present == (0, 4, 5)
    reasons = {each.client: each.reason for each in found.left_out}
    assert re.search(r"\b31\b.*\b30\b", reasons[1])
    assert "checksum" in reasons[2]
    assert re.search(r"\b12\b.*\b23\b", reasons[3])
    alone = server.absorb(0, before, {client: done[client] for client in (5, 0, 4)})
    assert difference(flatten(found.server), flatten(alone.server)) == 0
    nobody = server.absorb(0, before, {2: b"parcel 1"})
    assert (nobody.present, nobody.server is before) == ((), True)
    unknown = replace(server, roster=Roster(6), samples=Roster(6).samples).absorb(0, before, {0: done[0]})
    assert [each.client for each in unknown.left_out] == [0]
    assert not re.search(r"\d", unknown.left_out[0].reason)  # not for its number of samples, which others do not send
    with pytest.raises(DataError, match=r"\b6\b"):
        server.absorb(0, before, {6: done[0]})
    with pytest.raises(DataError, match=r"\b6\b"):
        server.download(0, before, 6)


def test_other_uploads_of_a_round_get_other_noise():
    """The difference of two models with the same noise would show what was added."""
    plan = blueprint(algorithm("fedper+private", norm=0.1), torch.float32, buffers="local")
    server = Server.of(plan, Roster(6), norm_limit=None, norm_clip=None, secret=bytes(range(32)))
    both = {0: b"one", 1: b"two"}
    uploads = (both, dict(reversed(both.items())), {**both, 1: b"three"}, {0: b"one"})
    secrets = [server._keyed(server.at(0), given).setup.secret for given in uploads]
    assert secrets[0] == secrets[1]
    assert len(set(secrets)) == 3


@record
class Noted(Mean):
    """A mean that notes whose uploads are folded into it, in their order."""

    def fold(self, rnd, server, sums, up, ids):
        FOLDED.extend(ids.tolist())
        return super().fold(rnd, server, sums, up, ids)


FOLDED: list[int] = []


@pytest.mark.budget(1.2, "a simulation and six sites")
def test_uploads_are_summed_up_in_the_order_of_the_simulation_however_they_arrive():
    method, data = replace(fedper(), merge=(Noted(),)), federation(torch.float32)
    sim = simulation(method, data, model, rounds=1)
    orders = []
    for run in (
        lambda: sim.run(Messages()),
        lambda: Deployed(
            partial(blueprint, method, torch.float32, participation=1.0),
            {client: own_samples(data, client) for client in range(6)},
        ).round(0, arriving=sorted),
    ):
        FOLDED.clear()
        run()
        orders.append(list(FOLDED))
    assert orders == [[1, 3, 0, 4, 5, 2]] * 2


def test_a_site_whose_model_diverges_sends_nothing():
    data = federation(torch.float32)
    made = blueprint(fedper(train=LocalTraining(lr=1e30)), torch.float32)
    sites = Deployed(lambda: made, {client: own_samples(data, client) for client in range(6)})
    server = sites.a_server()
    with pytest.raises(StageError, match=STATE_NOT_FINITE):
        sites.work(0, 0, server.download(0, server.start(), 0))


def test_a_site_refuses_a_download_of_another_round_or_method():
    data = federation(torch.float32)
    samples = {client: own_samples(data, client) for client in range(6)}
    mine = Deployed(partial(blueprint, fedper(), torch.float32), samples)
    server = Deployed(partial(blueprint, acting("scaffold"), torch.float32), samples).a_server()
    with pytest.raises(WireError):
        mine.work(0, 0, server.download(0, server.start(), 0))
    own = mine.a_server()
    broken = flatten(own.start())
    broken["theta/conv1.weight"] = broken["theta/conv1.weight"] * torch.nan
    with pytest.raises(WireError, match="finite"):
        mine.work(0, 0, own.download(0, unflatten(broken), 0))


def test_samples_of_another_format_are_refused_before_anything_is_computed():
    made, data = blueprint(fedper(), torch.float32), federation(torch.float32)
    with pytest.raises(DataError, match=r"\b0\b.*\b6\b"):
        Site.of(made, data, 0)
    x, y = own_samples(data, 0)["train"]
    with pytest.raises(DataError, match=r"\[n, 1, 6, 6\]"):
        made.samples.client({"train": (x[:, :, :3], y)})
    with pytest.raises(DataError, match=r"\b3\b.*0\.\.2"):
        made.samples.client({"train": (x, y + 1)})
    other = replace(made.samples, classes=2)
    with pytest.raises(DataError, match=r"\b2\b.*\b3\b"):
        Site.of(made, other.client({"train": (x, y.clamp(max=1))}), 0)
    with pytest.raises(DataError, match="'train'"):
        Site.of(made, made.samples.client({"test": (x, y)}), 0)


def test_a_roster_names_every_site_once():
    for wrong, entries in (
        ("name 'a'", [("a", 0, 5), ("a", 1, 5)]),
        ("client '0'", [("a", 0, 5), ("b", 0, 5)]),
        (r"'a'.*\b1\b", [("a", 1, 0)]),
        ("'samples'.*'a'.*-1", [("a", 0, -1)]),
        (r"a\\x0a", [("a\n", 0, 5)]),
    ):
        with pytest.raises(DataError, match=wrong):
            Roster.of(2, [RosterEntry(*entry) for entry in entries])
    roster = Roster.of(2, [RosterEntry("a", 1, 5), RosterEntry("b", 3, 0)])
    assert roster.samples.tolist() == [0, 5, 0, 0]
    assert roster.joined(RosterEntry("a", 1, 7)).samples.tolist() == [0, 7, 0, 0]
    with pytest.raises(DataError, match=r"'c'.*a, b"):
        roster.entry("c")
    with pytest.raises(DataError, match=r"\b2\b.*\b6\b"):
        Server.of(blueprint(fedper(), torch.float32), roster)


def test_batches_that_no_client_fills_are_refused_when_all_have_joined():
    made = blueprint(fedper(train=LocalTraining(batch=64, drop_last=True)), torch.float32)
    entries = [RosterEntry(f"site {k}", k, size) for k, size in enumerate(SIZES)]
    assert not Roster.of(6, entries[:5]).complete
    Server.of(made, Roster.of(6, entries[:5]))
    with pytest.raises(DataError, match=r"\b64\b.*\b31\b"):
        Server.of(made, Roster.of(6, entries))
