"""Compression on methods: what is compressed from which base, bytes by hand, error feedback, what is refused."""

import json
from dataclasses import replace

import pytest
import torch

from simulations import built
from stratafl.algorithms import algorithm, fedamp, fedavg, fedper, heurpfedla, ifca, pfedla, scaffold
from stratafl.algorithms.compress_on import compressed, with_q4, with_q8, with_topk
from stratafl.algorithms.special_cases import SpecialCase
from stratafl.cli.list_command import print_catalogue
from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment, from_tables, to_tables, with_settings
from stratafl.core import wire
from stratafl.core.fields import Filled, Start
from stratafl.core.layers import select
from stratafl.core.parcel import Field, Parcel, count_bytes
from stratafl.errors import RecordError
from stratafl.execute import Matrix
from stratafl.policies import Median
from stratafl.policies.codecs import Quantise, TopK
from stratafl.policies.compress import Compress, Received
from stratafl.policies.robust import robust
from stratafl.runtime import engine
from stratafl.testing import check_special_case

SAMPLES = 8  # bytes of n_k
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def untraced(monkeypatch):
    """Steps are not traced: that takes most of the time of a short run."""
    monkeypatch.setattr(engine, "patience", lambda _: float("inf"), raising=False)


def made(method, **options):
    """A small one: one step of each client."""
    return built(method, sizes=(9, 8, 7, 6, 5, 4), **{"batchnorm": False, "rounds": 3, **options})


# Bytes: the model has tensors of 288, 8, 24 and 3 numbers


BYTES = {
    "as it is": (fedavg(), (288 + 8 + 24 + 3) * 4),
    "8 bits": (with_q8(fedavg(), min_size=8), (288 + 4) + (8 + 4) + (24 + 4) + 3 * 4),
    "4 bits": (with_q4(fedavg(), min_size=8), (144 + 4) + (4 + 4) + (12 + 4) + 3 * 4),
    "4 bits, an odd number": (with_q4(fedavg(), min_size=1), (144 + 4) + (4 + 4) + (12 + 4) + (2 + 4)),
    "a tenth": (with_topk(fedavg(), min_size=8), (36 + 29 * 4) + (1 + 4) + (3 + 3 * 4) + 3 * 4),
    "a hundredth": (with_topk(fedavg(), keep=0.01, min_size=8), (3 * 4 + 3 * 4) + (1 + 4) + (3 + 4) + 3 * 4),
    "the base": (with_q4(fedper(), min_size=8), (144 + 4) + (4 + 4)),
    "only what is large": (with_q8(fedavg(), min_size=25), (288 + 4) + (8 + 24 + 3) * 4),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_by_hand_are_counted_and_are_those_of_the_message(name):
    method, expected = BYTES[name]
    sim = made(method, dtype=torch.float32)
    _, report = sim.round(sim.start(), Matrix())
    assert report.up.clients.tolist() == [expected + SAMPLES] * 6
    assert int(report.up.layers.sum()) == 6 * expected
    rnd, ids = sim.at(0), torch.tensor([2])
    task, server = sim.task(ids, rnd), sim.start().server
    client = method.receive(rnd, method.enrol(sim.setup, ids), method.download(rnd, server, ids), task)
    upload = method.work(rnd, client, task).upload
    assert wire.body_bytes(wire.encode(upload, rnd.layout)) == expected + SAMPLES
    assert count_bytes(upload, rnd.layout, 1).total == expected + SAMPLES


@pytest.mark.parametrize(("name", "values"), [("8 bits", 323), ("4 bits, an odd number", 323), ("a tenth", 36)])
def test_how_many_values_are_sent(name, values):
    """Of all of them, in however few bits; a scale is none, and neither is a place."""
    sim = made(BYTES[name][0], dtype=torch.float32)
    assert int(sim.round(sim.start(), Matrix())[1].up.values.sum()) == 6 * values


def test_statistics_and_small_tensors_are_sent_as_they_are():
    sim = made(with_q8(fedavg(), min_size=5), batchnorm=True)
    rnd, ids = sim.at(0), torch.tensor([2])
    method, task = sim.algorithm, sim.task(ids, rnd)
    state = method.receive(rnd, method.enrol(sim.setup, ids), method.download(rnd, sim.start().server, ids), task)
    sent = method.work(rnd, state, task).upload
    small = {n for n, s in rnd.layout.specs.items() if not s.trainable or s.size < 5}
    assert set(sent["theta"].rows) == small
    assert {"bn1.running_mean", "bn1.running_var", "bn1.weight", "fc.bias"} <= small
    assert set(sent["theta.codes"].rows) == set(sent["theta.scale"].rows) == set(rnd.layout.specs) - small


# From which base


def packs(method):
    return {step.field: (step.base, step.rows, step.feedback) for step in method.pack}


def test_the_base_follows_from_the_record():
    assert packs(with_topk(fedavg())) == {"theta": ("received", None, True)}
    assert packs(with_q8(fedavg())) == {"theta": ("received", None, False)}
    assert packs(with_topk(scaffold())) == {"theta": ("received", None, True), "c_change": ("none", None, True)}
    assert packs(with_topk(pfedla())) == {"theta": ("received", None, True)}
    assert packs(with_topk(heurpfedla())) == {"theta": ("received or latest", "rows", True)}
    assert packs(with_topk(fedamp())) == {"theta": ("latest", "rows", False)}  # what was left out is in the next one
    assert packs(with_q8(ifca(), feedback=True)) == {"theta": ("none", None, False)}  # values do not add up
    (phase,) = with_q8(algorithm("fedlag", warmup=0)).phases
    assert packs(phase.algorithm) == {"theta": ("received or latest", "rows", False)}


def test_the_record_says_what_is_compressed():
    made = with_topk(fedper(personal="last:2"), keep=0.2, min_size=7)
    (step,) = made.pack
    assert step == Compress(TopK(0.2), "theta", ~select("last:2"), feedback=True, min_size=7)
    assert made.mix == (*fedper(personal="last:2").mix, Received("theta", None, "theta.residual"))
    assert step.keeps == {"theta.residual": Filled(0.0, ~select("last:2"))}
    assert made.client_fields["theta.residual"] == step.keeps["theta.residual"]
    (kept,) = with_topk(heurpfedla()).pack
    assert kept.keeps["theta.latest"] == Start(columns="trainable")
    own = with_topk(algorithm("fedper", initial="own"))
    assert set(own.client_fields) == {"theta", "theta.residual"}


def test_phases_without_a_model_to_compress_stay_as_they_are():
    first, then = with_q8(algorithm("feddbe")).phases
    assert first == algorithm("feddbe").phases[0]
    assert packs(then.algorithm) == {"theta": ("received", None, False)}


def test_robust_merges_see_what_is_compressed():
    method = robust(with_q8(fedavg(), min_size=1), "median")
    assert method.merge == (Median(),)
    sim = made(method)
    after, report = sim.round(sim.start(), Matrix())
    assert not report.left_out
    assert not torch.equal(after.server["theta"]["fc.weight"], sim.start().server["theta"]["fc.weight"])


# What arrives


def worked(sim, progress, ids):
    """What these clients send in the next round, and the state before and after."""
    rnd, alg, task = sim.at(progress.t), sim.algorithm, sim.task(ids, sim.at(progress.t))
    client = alg.receive(rnd, sim.client_states(progress.clients, ids), alg.download(rnd, progress.server, ids), task)
    return rnd, client, alg.work(rnd, client, task)


@pytest.mark.parametrize("codec", [Quantise(8), Quantise(4), Quantise(4, "stochastic"), TopK(0.1)], ids=repr)
def test_what_is_sent_and_the_residual_are_what_should_have_been_sent(codec):
    """In every round, with the residual of the round before; of top-k bit by bit."""
    sim, ids = made(compressed(fedavg(), codec, feedback=True, min_size=1)), torch.arange(6)
    progress = sim.start()
    for t in range(3):
        rnd, client, work = worked(sim, progress, ids)
        opened = sim.algorithm.open(rnd, progress.server, work.upload, ids).uploads["theta"].rows
        for name in rnd.layout.trainable():
            received, before = client["theta.received"][name], client["theta.residual"][name]
            owed, after = work.trained[name] - received + before, work.client["theta.residual"][name]
            codes = {part: work.upload[f"theta.{part}"].rows[name] for part in codec.parts}
            sent = codec.decode(codes, rnd.layout.specs[name].size).x.reshape(owed.shape)
            assert torch.equal(opened[name], received + sent)
            assert torch.equal(after, owed - sent)
            if isinstance(codec, TopK):
                assert torch.equal(sent + after, owed)
            assert (after != 0).any() or rnd.layout.specs[name].size == 1
            assert t == 0 or (before != 0).any()
        progress, _ = sim.round(progress, Matrix())


def test_errors_of_values_are_not_added_to_the_next_ones():
    """FedPAC's server sends no head, so that heads are sent as values."""
    sim = made(with_q4(algorithm("fedpac"), feedback=True, min_size=1))
    progress, _ = sim.round(sim.start(), Matrix())
    for kept in progress.clients.values():
        residual = kept["theta.residual"]
        assert not residual["fc.weight"].any()
        assert residual["fc1.weight"].any()


def test_over_rounds_nothing_is_lost_exactly():
    """Σ sent + residual = Σ owed, in whole numbers, which float64 adds without rounding."""
    sim = made(with_topk(fedavg(), min_size=1))
    (step,), rnd, ids = sim.algorithm.pack, sim.at(0), torch.arange(6)
    draw = torch.Generator().manual_seed(0)
    shapes = {n: (6, *s.shape) for n, s in rnd.layout.specs.items()}
    state = {"theta.residual": step.keeps["theta.residual"].create(sim.setup, ids, "client")}
    owed, sent = ({n: torch.zeros(shape, dtype=torch.float64) for n, shape in shapes.items()} for _ in range(2))
    none = {n: torch.zeros_like(x) for n, x in owed.items()}
    for _ in range(7):
        change = {n: torch.randint(-99, 99, shape, generator=draw).double() for n, shape in shapes.items()}
        fields, kept = step.pack(rnd, {"theta.received": none, **state}, Field(change), sim.task(ids, rnd))
        down = Parcel({"theta": Field({n: x[0] for n, x in none.items()}, common=True)})
        arrived = step.unpack(rnd, {}, Parcel(fields), down, ids).field.rows
        owed = {n: x + change[n] for n, x in owed.items()}
        sent, state = {n: x + arrived[n] for n, x in sent.items()}, kept
    for name, x in owed.items():
        assert torch.equal(sent[name] + state["theta.residual"][name], x)
        assert not torch.equal(sent[name], x)


@pytest.mark.budget(1.5, "a server that learns")
def test_of_a_retained_layer_the_difference_is_from_what_was_sent_last():
    method = with_topk(heurpfedla(retained="fc", embedding=3, width=3, depth=1), min_size=1)
    sim, ids = made(method), torch.arange(6)
    progress, _ = sim.round(sim.start(), Matrix())
    for i, kept in progress.clients.items():  # both sides have the same of it
        for name, x in kept["theta.latest"].items():
            assert torch.equal(x.reshape(sim.setup.layout.specs[name].shape), progress.server["rows"][name][i])
    rnd, client, _ = worked(sim, progress, ids)
    down = method.download(rnd, progress.server, ids)["theta"].rows
    for name in rnd.layout.specs:
        retained = name.startswith("fc.")
        expected = progress.server["rows"][name] if retained else down[name]
        assert torch.equal(client["theta.received"][name], expected)
        assert bool((client["theta.residual"][name] == 0).all()) == retained
    assert not torch.equal(client["theta"]["fc.weight"], client["theta.received"]["fc.weight"])  # it trained its own


def test_both_sides_start_from_the_same_latest_where_clients_draw_their_own():
    host = replace(fedamp(), server={"rows": Start(own=True, per_client=True)})
    sim, ids = made(with_topk(host, min_size=1)), torch.arange(6)
    start = sim.start()
    mine = sim.client_states(start.clients, ids)["theta.latest"]
    assert all(torch.equal(x, start.server["rows"][name]) for name, x in mine.items())
    assert not torch.equal(mine["fc.weight"][0], mine["fc.weight"][1])


def test_stochastic_rounding_does_not_depend_on_company():
    sim = made(with_q4(fedavg(), rounding="stochastic", min_size=1))
    everybody, alone = (worked(sim, sim.start(), ids)[2].upload for ids in (torch.arange(6), torch.tensor([4])))
    for name, x in alone["theta.codes"].rows.items():
        assert torch.equal(everybody["theta.codes"].rows[name][4:5], x)


def test_every_round_client_field_and_tensor_has_draws_of_its_own():
    sim, like = made(with_q4(fedavg(), rounding="stochastic")), torch.zeros(2, 24, dtype=torch.float64)
    (theta,), ids = sim.algorithm.pack, torch.tensor([4, 1])
    first, second = sim.at(0), sim.at(1)
    drawn = [
        theta._draws(first, ids, "fc.weight", like),
        theta._draws(second, ids, "fc.weight", like),
        theta._draws(first, ids, "fc1.weight", like),
        replace(theta, field="c_change")._draws(first, ids, "fc.weight", like),
    ]
    rows = torch.cat(drawn)
    assert rows.unique(dim=0).shape == (8, 24)
    assert torch.equal(drawn[0][1:], theta._draws(first, torch.tensor([1]), "fc.weight", like[:1]))


def test_opening_again_changes_nothing():
    sim, ids = made(with_q8(fedavg(), min_size=1)), torch.arange(6)
    progress = sim.start()
    rnd, _, work = worked(sim, progress, ids)
    opened = sim.algorithm.open(rnd, progress.server, work.upload, ids)
    assert set(opened.uploads) == {"theta", "samples"}
    assert sim.algorithm.open(rnd, progress.server, opened.uploads, ids).uploads is opened.uploads


# Degenerate


MORE = ("fedper", "fedamp", "scaffold", "apple", "fedfomo", "pfedla", "pfedme")


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("fedavg", Quantise(32)),
        *(pytest.param(n, TopK(1.0), marks=SLOW) for n in ("heurpfedla", *MORE)),
        *(pytest.param(n, Quantise(32), marks=pytest.mark.nightly) for n in MORE),
    ],
)
def test_all_numbers_in_32_bits_are_the_method(name, codec):
    host = algorithm(name)
    law = SpecialCase("everything is sent", compressed(host, codec, feedback=True, min_size=1), host)
    check_special_case(law, rounds=2, participation=0.5)


# What is refused


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("local+q8", "local.*q8"),
        ("flayer+q4", "TopChange"),
        ("fedlag+topk", "PersonaliseConflicts.*q8.*q4"),
        ("fedalp+topk", "FormGroups"),
        ("fedcac+topk", "Customise"),
        ("fedexp+topk", "Extrapolate"),
        ("ifca+topk", "'theta'"),
        ("fedpac+topk", "'base'.*q8.*q4"),
        ("fedper+q8+topk", "q8"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(name, says):
    with pytest.raises(RecordError, match=says) as error:
        algorithm(name)
    assert "\n" not in str(error.value)


def test_twice_is_refused():
    with pytest.raises(RecordError):
        with_q8(with_topk(fedavg()))
    with pytest.raises(RecordError):
        with_q8(with_q8(algorithm("fedlag")))


@pytest.mark.parametrize("options", [{"keep": 0.0}, {"keep": 1.5}, {"keep": float("nan")}, {"min_size": 0}])
def test_options_have_limits(options):
    with pytest.raises(RecordError, match=r"keep|min_size"):
        with_topk(fedavg(), **options)


def test_a_field_that_is_sent_in_parts_is_refused_before_the_first_round():
    whole = with_q8(fedavg(), min_size=1)
    masked = replace(whole, send=algorithm("flayer").send, mix=(*algorithm("flayer").mix, *whole.mix[1:]),
                     client=algorithm("flayer").client, train=algorithm("flayer").train)  # fmt: skip
    with pytest.raises(RecordError):
        with_topk(masked)  # which does not drop the steps of a record in which it finds nothing to compress
    sim = made(masked)
    with pytest.raises(RecordError, match="'theta'"):
        sim.round(sim.start(), Matrix())


# Names


def test_a_configuration_names_a_compression():
    made = with_settings(Experiment(), ["algorithm.name=heurpfedla+topk", "topk.keep=0.01", "heurpfedla.k=2"])
    assert dict(made.algorithm.options) == {"keep": 0.01, "k": 2}
    assert from_tables(to_tables(made)) == made
    assert algorithm_of(made).pack[0].codec == TopK(0.01)


@pytest.mark.slow
def test_the_catalogue_says_what_travels(capsys):
    print_catalogue("heurpfedla+topk", as_json=True, settings={})
    (entry,) = json.loads(capsys.readouterr().out)["algorithms"]
    assert entry["label"] == "HeurpFedLA + top-k uploads"
    assert "theta" in entry["sends"]
    assert {"keep", "feedback", "min_size", "k"} <= set(entry["options"])
    print_catalogue("fedper+q4", as_json=False, settings={})
    assert "4 bits" in capsys.readouterr().out
