"""Krum and Multi-Krum: scores worked out by hand, against plain loops, their ends, an attacker, refusals."""

import itertools
import re
from dataclasses import replace

import pytest
import torch
from plain_robust import drawn

from simulations import built, outcome
from stratafl.algorithms import algorithm, fedavg, fedper, flayer
from stratafl.algorithms.composition import with_krum
from stratafl.algorithms.special_cases import special_cases_of
from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Parcel
from stratafl.errors import RecordError
from stratafl.execute import Matrix, Messages
from stratafl.policies import Krum, Mean
from stratafl.policies.krum import nearest, scores
from stratafl.testing import check_algorithm, check_special_case, difference
from stratafl.testing.watch import Tampered, not_finite


def made(method, batchnorm=True, dtype=torch.float32, **options):
    return built(method, batchnorm=batchnorm, dtype=dtype, **options)


# Six clients on a line, all by hand

LINE = torch.tensor([[0.0], [1.0], [3.0], [4.0], [6.0], [100.0]], dtype=torch.float64)
# With f = 1 each client's 6 − 1 − 2 = 3 nearest, squared: 0: 1, 9, 16; 1: 1, 4, 9; 3: 1, 4, 9; 4: 1, 4, 9; 6: 4, 9, 25
SCORES = [26.0, 14.0, 14.0, 14.0, 38.0, 94.0**2 + 96.0**2 + 97.0**2]


def on_the_line(merge, values=LINE, counts=(1, 2, 3, 4, 5, 6), held=50.0):
    up = Parcel({"w": Field(values), "samples": Field(torch.tensor(counts))})
    server = {"w": torch.full((1,), held, dtype=torch.float64)}
    return {**server, **merge.absorb(made(fedavg()).at(0), server, up, torch.arange(len(values)))}["w"]


def test_scores_by_hand():
    squares = (LINE - LINE.T).square()
    assert scores(squares, 1).tolist() == SCORES
    assert scores(squares, 0)[0] == 1 + 9 + 16 + 36  # n − 2 = 4 of them
    assert nearest(squares, torch.arange(6), 1, 1).tolist() == [1]  # of equal scores the smallest id
    assert nearest(squares, torch.arange(6).flip(0), 1, 1).tolist() == [3]
    assert nearest(squares, torch.arange(6), 1, 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"f": 1, "keep": 1}, 1.0),
        ({"f": 1, "keep": 2}, (2 * 1 + 3 * 3) / 5),
        ({"f": 1, "keep": 4}, (0 + 2 * 1 + 3 * 3 + 4 * 4) / 10),
        ({"f": 1, "keep": 4, "weights": "uniform"}, 2.0),
        ({"f": 1, "keep": 2**40}, (2 + 9 + 16 + 30) / 15),  # never more than n − f
        ({"f": 0, "keep": 6}, (2 + 9 + 16 + 30 + 600) / 21),
    ],
)
def test_merges_by_hand(options, expected):
    assert on_the_line(Krum("w", **options)).tolist() == pytest.approx([expected], rel=1e-14)


def test_with_too_few_uploads_the_server_keeps_its_state_and_says_so(caplog):
    assert on_the_line(Krum("w", f=2)).tolist() == [50.0]
    assert re.search(r"round 1\b.*\b6 uploads.*f=2.*\b7\b", caplog.text)
    assert on_the_line(Krum("w", f=1), LINE[:5], (1, 1, 1, 1, 1)).tolist() == [1.0]  # five are enough


# Against plain loops, with masks


def columns(rows, draw):
    return ColumnMask({n: torch.rand(x.shape, generator=draw) < 0.9 for n, x in rows.items()})


def layers(rows, draw):
    clients, count = len(next(iter(rows.values()))), len({name.partition(".")[0] for name in rows})
    sent = torch.rand(clients, count, generator=draw) < 0.5
    sent[:, 0] = True
    return LayerMask(sent)


def plain(sim, held, up, f, keep):
    """Client by client and column by column, in Python's own numbers."""
    layout, clients = sim.setup.layout, len(up["samples"].tensor)
    sent = up["theta"].sent(layout)

    def numbers(name, client):
        block = up["theta"].rows[name]
        there = torch.ones_like(block, dtype=torch.bool) if sent is None else sent[name].expand_as(block)
        pairs = zip(block[client].flatten().tolist(), there[client].flatten().tolist(), strict=True)
        return [value if was_sent else None for value, was_sent in pairs]

    each = {name: [numbers(name, c) for c in range(clients)] for name in layout.specs}
    distance = {}
    for a, b in itertools.permutations(range(clients), 2):
        distance[a, b] = sum(
            (values[a][i] - values[b][i]) ** 2
            for name, values in each.items()
            if layout.specs[name].trainable
            for i in range(len(values[0]))
            if all(values[c][i] is not None for c in range(clients))
        )
    score = [sum(sorted(distance[a, b] for b in range(clients) if b != a)[: clients - f - 2]) for a in range(clients)]
    chosen = sorted(range(clients), key=lambda c: score[c])[:keep]
    new = {}
    for name, values in each.items():
        new[name] = held[name].clone()
        for i in range(len(values[0])):
            who = [c for c in chosen if values[c][i] is not None]
            if who:
                new[name].view(-1)[i] = sum((c + 1) * values[c][i] for c in who) / sum(c + 1 for c in who)
    return new, chosen


@pytest.mark.parametrize("mask", [None, columns, layers], ids=["whole", "columns", "layers"])
@pytest.mark.parametrize(
    ("clients", "f", "keep", "piece"), [(3, 0, 1, 5), (5, 1, 2, 2**16), (7, 2, 1, 5), (8, 1, 5, 2**16)]
)
def test_krum_is_the_plain_one(clients, f, keep, mask, piece, monkeypatch):
    monkeypatch.setattr("stratafl.policies.robust_merge.PIECE", piece)
    sim = made(fedavg(), dtype=torch.float64)
    held, up = drawn(sim, clients, mask, seed=clients)
    found = Krum(f=f, keep=keep).absorb(sim.at(0), {"theta": held}, up, torch.arange(clients))["theta"]
    expected, _ = plain(sim, held, up, f, keep)
    assert difference(found, expected) <= 1e-12


def test_columns_that_one_client_did_not_send_and_statistics_are_no_distance():
    """Clients are as far apart as they like in both, and the choice stays the same."""
    sim = made(fedavg(), dtype=torch.float64)
    held, up = drawn(sim, 5)
    _, chosen = plain(sim, held, up, 1, 1)
    rows = {n: x.clone() for n, x in up["theta"].rows.items()}
    rows["bn1.running_var"][chosen[0]] += 1e6
    sent = {n: torch.ones_like(x, dtype=torch.bool) for n, x in rows.items()}
    rows["fc.bias"][chosen[0], 0] += 1e6
    sent["fc.bias"][(chosen[0] + 1) % 5, 0] = False
    wild = Parcel({**up, "theta": Field(rows, mask=ColumnMask(sent)).poisoned(sim.setup.layout)})
    found = Krum().absorb(sim.at(0), {"theta": held}, wild, torch.arange(5))["theta"]
    assert difference(found, {n: x[chosen[0]] for n, x in rows.items()}) == 0
    rows["fc.bias"][chosen[0], 1] += 1e6  # which all have sent
    found = Krum().absorb(sim.at(0), {"theta": held}, Parcel({**up, "theta": Field(rows)}), torch.arange(5))["theta"]
    assert difference(found, {n: x[chosen[0]] for n, x in rows.items()}) > 1e5


def test_without_a_column_of_all_clients_the_server_keeps_its_state_and_says_so(caplog):
    sim = made(fedavg(), dtype=torch.float64)
    held, up = drawn(sim, 5)
    sent = torch.eye(5, dtype=torch.bool)[:, : len(sim.setup.layout.layers)]
    alone = Parcel({**up, "theta": Field(up["theta"].rows, mask=LayerMask(sent)).poisoned(sim.setup.layout)})
    assert Krum().absorb(sim.at(0), {"theta": held}, alone, torch.arange(5)) == {}
    assert caplog.text


# Bits, ends and the contract


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("fedper+krum", {}), ("fedavg+krum", {"keep": 3}), ("flayer+krum", {})])
def test_matrix_chunks_and_messages_have_the_same_bits(name, options):
    setting, method = {"participation": 0.84, "dtype": torch.float32}, algorithm(name, **options)
    whole = outcome(method, **setting)
    for executor in (Matrix(chunk=2), Messages()):
        assert difference(outcome(method, executor, **setting), whole) == 0
    assert difference(outcome(name.partition("+")[0], **setting), whole) > 1e-5


@pytest.mark.budget(2, "four runs of one method")
@pytest.mark.parametrize("host", ["fedper", *(pytest.param(n, marks=pytest.mark.slow) for n in ("flayer", "fedavg"))])
def test_nobody_wrong_and_all_kept_is_the_method_to_the_bit(host):
    method = algorithm(f"{host}+krum", f=0, keep=6)
    assert difference(outcome(method, Matrix(chunk=3)), outcome(host, Matrix(chunk=3))) == 0
    (case,) = special_cases_of(f"{host}+krum")
    check_special_case(case, rounds=2, participation=0.5)


@pytest.mark.nightly
def test_krum_obeys_the_contract():
    check_algorithm(algorithm("fedper+krum", f=0), rounds=2, settings=[("follow", 0.5)])


def test_uploads_that_are_left_out_are_not_counted(caplog):
    sim = made(with_krum(fedavg()))
    before = sim.start()
    one = replace(sim, algorithm=Tampered(sim.algorithm, {1: not_finite()}))
    after, report = one.round(before, Matrix())
    assert [each.client for each in report.left_out] == [1]
    assert difference(after.server["theta"], before.server["theta"]) > 1e-5
    two = replace(sim, algorithm=Tampered(sim.algorithm, {1: not_finite(), 2: not_finite()}))
    after, _ = two.round(before, Matrix())
    assert difference(after.server["theta"], before.server["theta"]) == 0
    assert "4 uploads" in caplog.text


# Names and refusals


def test_names_are_the_function_and_the_setting():
    def of(*typed):
        return algorithm_of(with_settings(Experiment(), ["algorithm.name=fedper", *typed]))

    assert algorithm("fedper+krum", f=2, keep=3) == with_krum(fedper(), f=2, keep=3)
    assert with_krum(fedper(), f=2, keep=3).merge == (Krum(f=2, keep=3),)
    assert with_krum(replace(fedavg(), merge=(Mean(weights="uniform"),))).merge == (Krum(weights="uniform"),)
    assert of("server.merge=krum", "server.f=2", "server.keep=3").merge == (Krum(f=2, keep=3),)
    with pytest.raises(RecordError, match=r"server\.keep .*'median'.*'krum'"):
        of("server.merge=median", "server.keep=3")
    with pytest.raises(RecordError, match=r"unsent='zero'"):
        with_krum(flayer(unsent="zero"))
    with pytest.raises(RecordError, match=r"fedopt\+krum: .*ServerOptimizer"):
        algorithm("fedopt+krum")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"f": 2}, r"f=2.*\b7 clients.*\b6\b.*\b1\b"),
        ({"f": 1, "keep": 6}, r"\b5 of 6 clients.*keep=6"),
    ],
)
def test_too_few_clients_are_refused_before_the_first_round(options, says):
    with pytest.raises(RecordError, match=says) as error:
        made(algorithm("fedper+krum", **options))
    assert "\n" not in str(error.value)
