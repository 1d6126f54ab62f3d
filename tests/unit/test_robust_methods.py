"""Methods with a robust merge: values worked out by hand, the same bits however a round is executed, an attacker."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from simulations import built, outcome
from stratafl.algorithms import algorithm, fedavg, fedopt, fedper, flayer
from stratafl.algorithms.composition import PARTS, with_clipped, with_krum, with_median, with_trimmed
from stratafl.algorithms.special_cases import special_cases_of
from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.core.parcel import ColumnMask, Field, Parcel
from stratafl.data import from_splits
from stratafl.errors import RecordError
from stratafl.evaluation.evaluate import deployed
from stratafl.execute import Matrix, Messages, simulation
from stratafl.models import build
from stratafl.policies import ClippedMean, LocalTraining, Mean, Median, ServerOptimizer, TrimmedMean
from stratafl.policies.robust import robust
from stratafl.testing import check_algorithm, check_special_case, difference
from stratafl.testing.watch import Watched
from tiers import slow_except

MERGES = ("median", "trimmed", "clipped")


OPTIONS = {"rounds": 2, "participation": 0.7, "dtype": torch.float32}


def made(method, **options):
    return built(method, **OPTIONS | options)


def ended(name, executor, dtype=torch.float32, **options):
    return outcome(algorithm(name, **options), executor, **OPTIONS | {"dtype": dtype})


# Three clients with 1, 2 and 5 samples, a server that holds (0, 0), all by hand

THREE = [[3.0, 4.0], [1.0, -6.0], [60.0, 80.0]]  # norms 5, √37 and 100
BY_HAND = {
    "mean": (Mean("w"), [305 / 8, 392 / 8]),
    "median": (Median("w"), [3.0, 4.0]),
    "nothing trimmed": (TrimmedMean("w", share=0.0), [305 / 8, 392 / 8]),
    "trimmed": (TrimmedMean("w", share=1 / 3), [3.0, 4.0]),  # 1 and 60, −6 and 80 go
    "norm 10": (Mean("w", clip=10.0), [(3 + 2 + 5 * 6) / 8, (4 - 12 + 5 * 8) / 8]),
    "norm 1": (Mean("w", clip=1.0), [(0.6 + 2 / 37**0.5 + 5 * 0.6) / 8, (0.8 - 12 / 37**0.5 + 5 * 0.8) / 8]),
    "norm 200": (Mean("w", clip=200.0), [305 / 8, 392 / 8]),
    "the median norm": (ClippedMean("w"), [(5 + 3 * 37**0.5) / 8, (-8 + 4 * 37**0.5) / 8]),  # 5·0.6·√37, 5·0.8·√37
    "twice a norm of 10, halfway": (
        ServerOptimizer("w", clip=20.0, lr=0.5),
        [(3 + 2 + 5 * 12) / 16, (4 - 12 + 5 * 16) / 16],
    ),
}


def after(merge, up, held, ids):
    rnd, server = made(fedavg()).at(0), {merge.field: held}
    if isinstance(merge, Mean):
        total = {}
        for place in ids:  # one upload after the other
            total = merge.fold(rnd, server, total, up.pick(slice(place, place + 1)), ids[place : place + 1])
        return merge.finish(rnd, server, total)[merge.field]
    return merge.absorb(rnd, server, up, ids)[merge.field]


def test_the_median_norm_is_of_clients_that_moved():
    up = Parcel({"w": Field(torch.tensor([[0.0, 0.0], [3.0, 4.0], [60.0, 80.0]])), "samples": Field(torch.ones(3))})
    found = after(ClippedMean("w"), up, torch.zeros(2), torch.arange(3))
    assert found.tolist() == pytest.approx([(3 + 31.5) / 3, (4 + 42) / 3])  # 100 becomes (5 + 100)/2


@pytest.mark.parametrize("case", BY_HAND)
def test_three_clients_by_hand(case):
    merge, expected = BY_HAND[case]
    up = Parcel({"w": Field(torch.tensor(THREE, dtype=torch.float64)), "samples": Field(torch.tensor([1, 2, 5]))})
    found = after(merge, up, torch.zeros(2, dtype=torch.float64), torch.arange(3))
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("poisoned", [True, False])
def test_a_norm_is_of_what_was_sent_from_what_the_server_holds(poisoned):
    """The first client did not send the 80, which is NaN on the other side; the server holds 7 everywhere."""
    layout = made(fedavg(), batchnorm=False).setup.layout
    held = {n: torch.full(s.shape, 7.0, dtype=torch.float64) for n, s in layout.specs.items()}
    rows = {n: torch.stack([x, x]) for n, x in held.items()}
    sent = {n: torch.ones_like(x, dtype=torch.bool) for n, x in rows.items()}
    name = "fc.bias"
    rows[name][0] += torch.tensor([60.0, 80.0, 0.0])
    sent[name][0, 1] = False
    theta = Field(rows, mask=ColumnMask(sent))
    up = Parcel({"theta": theta.poisoned(layout) if poisoned else theta, "samples": Field(torch.tensor([1, 3]))})
    rnd, merge = made(fedavg(), batchnorm=False).at(0), Mean(clip=6.0)
    server = {"theta": held}
    found = merge.finish(rnd, server, merge.fold(rnd, server, {}, up, torch.arange(2)))["theta"]
    assert found[name].tolist() == pytest.approx([7 + 6 / 4, 7.0, 7.0])  # 60 becomes 6, of which a quarter
    assert all(bool((x == 7).all()) for n, x in found.items() if n != name)


def test_statistics_have_a_norm_of_their_own():
    sim = made(fedavg(), dtype=torch.float64)
    layout = sim.setup.layout
    held = {n: torch.zeros(s.shape, dtype=torch.float64) for n, s in layout.specs.items()}
    rows = {n: torch.zeros(1, *s.shape, dtype=torch.float64) for n, s in layout.specs.items()}
    rows["bn1.running_var"][0, 0], rows["fc.bias"][0, 0] = 500.0, 0.5
    up = Parcel({"theta": Field(rows), "samples": Field(torch.tensor([1]))})
    server, merge = {"theta": held}, Mean(clip=2.0)
    found = merge.finish(sim.at(0), server, merge.fold(sim.at(0), server, {}, up, torch.arange(1)))["theta"]
    assert (float(found["bn1.running_var"][0]), float(found["fc.bias"][0])) == (2.0, 0.5)


# The same bits


BITS = [(f"{host}+{part}", {}) for host in ("fedper", "flayer") for part in MERGES]
BITS += [("fedper+clipped", {"norm": 0.05}), ("flayer+clipped", {"norm": 0.05}), ("fedexp+clipped", {"norm": 0.05})]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), BITS)
def test_matrix_chunks_and_messages_have_the_same_bits(name, options):
    whole = ended(name, Matrix(), **options)
    for executor in (Matrix(chunk=2), Messages()):
        assert difference(ended(name, executor, **options), whole) == 0
    assert difference(ended(name.partition("+")[0], Matrix()), whole) > 1e-5  # the merge acts


OFF = [("trimmed", {"trim": 0.0}), ("clipped", {"norm": 1e30}), ("clipped", {"factor": 1e30})]
SAME = [
    pytest.param(host, *off, marks=() if number == place else pytest.mark.slow)
    for number, host in enumerate(("fedper", "flayer", "fedavg"))
    for place, off in enumerate(OFF)
]


@pytest.mark.budget(1.5, "two runs of one method")
@pytest.mark.parametrize(("host", "part", "options"), SAME)
def test_nothing_trimmed_and_nothing_clipped_is_the_method_to_the_bit(host, part, options):
    """In float64: sums are in float64, so that the rounding of another formula would not show in float32."""
    plain = ended(host, Matrix(chunk=3), torch.float64)
    assert difference(ended(f"{host}+{part}", Matrix(chunk=3), torch.float64, **options), plain) == 0


@pytest.mark.budget(1, "two runs of one method")
@pytest.mark.parametrize("host", ["fedopt", *(pytest.param(n, marks=pytest.mark.slow) for n in ("fedexp", "pfedme"))])
def test_a_norm_that_nobody_reaches_leaves_server_optimisers_as_they_are(host):
    assert difference(ended(f"{host}+clipped", Matrix(), norm=1e30), ended(host, Matrix())) == 0


@pytest.mark.parametrize("part", MERGES)
def test_personal_layers_are_untouched(part):
    """After a round every client's head is what it is with the mean, and the server has none."""
    robust_one, plain = (made(algorithm(name), participation=1.0) for name in (f"fedper+{part}", "fedper"))
    found, expected = (sim.round(sim.start(), Matrix())[0] for sim in (robust_one, plain))
    for client in range(6):
        assert difference(found.clients[client]["theta"], expected.clients[client]["theta"]) == 0
    assert not [name for name in found.server["theta"] if name.startswith("fc.")]
    assert difference(found.server["theta"], expected.server["theta"]) > 1e-6


def test_only_clipping_to_a_norm_keeps_no_uploads():
    kept = {name: algorithm(f"fedper+{name}").requires.rows for name in MERGES}
    assert kept == dict.fromkeys(MERGES, True)
    assert not algorithm("fedper+clipped", norm=1.0).requires.rows
    sims = [made(algorithm("fedper+clipped", norm=1.0)), made(fedper()), made(algorithm("fedper+median"))]
    uploads = [sim.footprint.upload for sim in sims]
    assert uploads == [0, 0, sims[0].setup.row_bytes()]
    assert sims[0].footprint.client > sims[1].footprint.client


# The contract


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedper+clipped", "flayer+clipped"])
def test_clipping_to_a_norm_obeys_the_contract(name):
    check_algorithm(algorithm(name, norm=0.05), rounds=2, settings=[("follow", 0.5)])


@pytest.mark.parametrize("part", ["trimmed", "clipped"])
def test_a_part_that_does_nothing_is_the_method(part):
    (case,) = special_cases_of(f"fedper+{part}")
    check_special_case(case, rounds=2, participation=0.5)
    assert special_cases_of("fedper+median") == ()


# Names and refusals


def test_names_are_the_functions_and_the_setting():
    assert algorithm("fedper+median") == with_median(fedper()) == robust(fedper(), "median")
    assert algorithm("fedper+trimmed", trim=0.3) == with_trimmed(fedper(), trim=0.3)
    assert with_trimmed(fedper(), trim=0.3).merge == (TrimmedMean(share=0.3),)
    assert algorithm("fedper+clipped", norm=2.0).merge == with_clipped(fedper(), norm=2).merge == (Mean(clip=2.0),)
    assert algorithm("fedopt+clipped", norm=2.0).merge == (replace(fedopt().merge[0], clip=2.0),)
    given = with_settings(Experiment(), ["algorithm.name=fedper+q8", "server.merge=clipped", "server.norm=2"])
    both = algorithm_of(given)
    assert both.merge == (Mean(clip=2.0),)
    assert both.pack
    assert algorithm("fedas+clipped", norm=1.0).merge[0].weights == "uniform"  # fisher is what a client claims
    assert set(MERGES) < set(PARTS)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("pfedla+median", {}, "pfedla+median: .*'median'.*Mean.*LearnFromCosines"),
        ("fedopt+trimmed", {}, "'trimmed'.*ServerOptimizer"),
        ("fedamp+clipped", {"norm": 1.0}, "'clipped'.*StoreRows"),
        ("local+clipped", {"norm": 1.0}, "local.clipped: .*'clipped'"),
        ("fedper+trimmed", {"trim": 0.5}, r"trim .*below 0\.5.*0\.5"),
        ("fedper+clipped", {"norm": 0.0}, r"norm .*above 0.*0\.0"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(name, options, says):
    with pytest.raises(RecordError, match=says.replace("+", "[+]")) as error:
        algorithm(name, **options)
    assert "\n" not in str(error.value)


def test_a_mean_that_is_clipped_is_not_replaced():
    with pytest.raises(RecordError, match="'median'"):
        robust(with_clipped(fedper(), norm=1.0), "median")
    assert with_clipped(flayer(unsent="zero"), norm=1.0).merge == (Mean(unsent="zero", clip=1.0),)


def test_merges_that_stay_are_named(caplog):
    algorithm("scaffold+clipped", norm=1.0)
    assert "Increment" in caplog.text


def test_a_configuration_clips_to_a_norm():
    def of(*typed):
        return algorithm_of(with_settings(Experiment(), ["algorithm.name=fedper", *typed]))

    assert of("server.merge=clipped", "server.norm=2").merge == (Mean(clip=2.0),)
    with pytest.raises(RecordError, match=r"server\.norm .*'mean'"):
        of("server.norm=2")
    with pytest.raises(RecordError, match=r"server\.factor .*server\.norm"):
        of("server.merge=clipped", "server.norm=2", "server.factor=3")


# An attacker

ATTACKER, TIMES = 6, 1000.0


class Attacked(Watched):
    """A method in which one client sends a thousand times what it has learned, the other way."""

    def work(self, rnd, client, task):
        done, start = super().work(rnd, client, task), client["theta"]
        theta, factor = done.upload["theta"], torch.where(task.ids == ATTACKER, -TIMES, 1.0)
        value = {n: start[n] + factor.reshape(-1, *(1,) * (x.ndim - 1)) * (x - start[n]) for n, x in theta.rows.items()}
        return done._replace(upload=Parcel({**done.upload, "theta": replace(theta, value=value)}))


def clusters():
    """Seven clients with points around three centres, which a small network tells apart."""
    draw = torch.Generator().manual_seed(0)
    centres = 3 * torch.eye(3, 4)

    def samples(count):
        y = torch.randint(0, 3, (count,), generator=draw)
        return (centres[y] + torch.randn(count, 4, generator=draw)).numpy(), y.numpy()

    return from_splits([{"train": samples(40), "test": samples(30)} for _ in range(7)], classes=3)


def network():
    return build("mlp", shape=(4,), classes=3, hidden=(8,))


HOSTS = {"fedavg": fedavg, "fedper": fedper}


@cache
def honest_accuracy(host, defence, attacked):
    """Of the six others after eight rounds, and how far the server's model is from where it began."""
    method = DEFENCES[defence](HOSTS[host](train=LocalTraining(lr=0.2, batch=20)))
    sim = simulation(method, clusters(), network, rounds=8, seed=1)
    sim = replace(sim, algorithm=Attacked(method)) if attacked else sim
    progress, others = sim.run(Matrix()), torch.arange(6)
    scores = sim.task(others, sim.at(7), splits=("train", "test")).scores(deployed(sim, progress, others), "test")
    theta = progress.server["theta"]  # without a personal head
    return float(scores.hits.sum() / scores.count.sum()), difference(theta, {n: sim.setup.start[n] for n in theta})


DEFENCES = {
    "mean": lambda host: host,
    "median": with_median,
    "trimmed": with_trimmed,
    "clipped": with_clipped,
    "krum": with_krum,
    "multi-krum": lambda host: with_krum(host, f=2, keep=4),
    "clipped to 0.3": lambda host: with_clipped(host, norm=0.3),
}


@pytest.mark.budget(1, "eight rounds, three times")
@pytest.mark.parametrize(
    "defence", slow_except(["median", "clipped to 0.3"], [name for name in DEFENCES if name != "mean"])
)
@pytest.mark.parametrize("host", ["fedavg", pytest.param("fedper", marks=pytest.mark.slow)])
def test_one_attacker_spoils_the_mean_and_no_robust_merge(host, defence):
    honest, _ = honest_accuracy(host, "mean", attacked=False)
    spoilt, far = honest_accuracy(host, "mean", attacked=True)
    kept, near = honest_accuracy(host, defence, attacked=True)
    assert honest > 0.9
    assert spoilt < 0.6
    assert kept > honest - 0.1
    assert near < 5 < 100 < far
