"""Who gains: methods against training alone on the same test samples, in records, on the console, in page and CSV."""

import csv
import io

import numpy as np
import pytest
import torch
from rich.console import Console
from seen import options, series
from written_runs import write_run

from stratafl.cli.gains import gains_parts
from stratafl.cli.report import print_ranking
from stratafl.evaluation.predictions import Predictions
from stratafl.report import gather
from stratafl.report.gains import client_gains
from stratafl.report.gains_charts import clients_csv, dependence_table, gains_chart, gains_table, losers_table
from stratafl.report.page import page
from stratafl.runs.predictions import write_predictions

NAMES = ["Bergen", "Oslo", "Trondheim", "Voss"]


def counts_of(clients, names=()):
    """Client i has 10 + i training samples, mostly of class i mod 2."""
    rows = [[10 + i, 1] if i % 2 == 0 else [1, 10 + i] for i in range(clients)]
    held = {"classes": 2, "clients": clients, "counts": {"train": rows, "test": [[4, 4]] * clients}}
    return held | ({"client_names": list(names)} if names else {})


def predicted(client, y, right):
    """Two classes; a sample that is right has the probability 0.9 for its class."""
    y, right = torch.as_tensor(y), torch.as_tensor(np.asarray(right, dtype=bool))
    given = torch.where(right, y, 1 - y)
    scores = torch.full((len(y), 2), 0.1).scatter(1, given[:, None], 0.9)
    return Predictions(torch.as_tensor(client), y, scores)


def write(place, method, seed, test, names=(), **tables):
    clients = int(test.client.max()) + 1
    run = write_run(
        place / f"{method}-{seed}", [0.5, 0.6], name=method, seed=seed, clients=clients,
        holdings=counts_of(clients, names), **tables,
    )  # fmt: skip
    write_predictions(run, {"test": test}, 2, "deployed")
    return run


def eight(right):
    """Two clients with four samples each, and which of them are right."""
    return predicted([0] * 4 + [1] * 4, [0, 1] * 4, right)


def gains_in(place, method="fedper"):
    return next(each for each in client_gains(gather([place])) if each.label == method)


def test_differences_of_two_clients_by_hand(tmp_path):
    write(tmp_path, "local", 0, eight([1, 1, 1, 0, 1, 0, 0, 0]))
    write(tmp_path, "fedper", 0, eight([1, 1, 0, 0, 1, 1, 1, 0]))
    found = gains_in(tmp_path)
    assert [(each.score, each.alone, each.difference) for each in found.clients] == [
        (0.5, 0.75, -0.25),
        (0.75, 0.25, 0.5),
    ]
    assert (found.mean, found.median, found.worse, found.better) == (0.125, 0.125, 0.5, 0.5)
    first, second = found.clients
    own = np.array([0.75, 1.0])  # sums of squares of (0, 0, −1, 0) and (0, 1, 1, 0) about their means
    for each, square in ((first, own[0]), (second, own[1])):
        half = 2.5706 * ((square + 2 + 2 * 4 * each.difference**2 / 6) / 36) ** 0.5
        centre = each.difference * 4 / 6
        assert (each.low, each.high) == pytest.approx((max(-1, centre - half), min(1, centre + half)), rel=1e-4)
    assert {each.verdict for each in found.clients} == {"cannot be told"}
    assert found.surely_worse == found.surely_better == 0
    assert found.worst is first
    assert (first.training_samples, first.test_samples) == (11, 4)
    assert first.skew == pytest.approx(10 / 11 - 11 / 23)


def many(rng, clients, samples, right):
    client = np.repeat(np.arange(clients), samples)
    return client, rng.integers(0, 2, len(client)), rng.random(len(client)) < np.repeat(right, samples)


def test_pairing_finds_what_two_scores_apart_do_not(tmp_path):
    """Both models fail on the same third of the samples; one also fails on 6 of 100 others."""
    rng = np.random.default_rng(0)
    client, y, right = many(rng, 4, 100, [0.65] * 4)
    worse = right.copy()
    for each in range(4):
        worse[np.flatnonzero(right & (client == each))[:8]] = False
    write(tmp_path, "local", 0, predicted(client, y, worse))
    write(tmp_path, "fedper", 0, predicted(client, y, right))
    found = gains_in(tmp_path)
    assert [each.verdict for each in found.clients] == ["gains"] * 4
    apart = 1.96 * (2 * 0.65 * 0.35 / 100) ** 0.5  # half the interval of two independent shares
    assert all(each.difference < apart for each in found.clients)


def test_test_samples_that_are_not_the_same_are_not_paired(tmp_path):
    write(tmp_path, "local", 0, eight([1] * 8))
    other = predicted([0] * 4 + [1] * 4, [1, 0] * 4, [1] * 8)
    write(tmp_path, "fedper", 0, other)
    found = gains_in(tmp_path)
    assert found.clients == ()
    assert found.why == "its test samples are not those of local (seed 0)"
    study = gather([tmp_path])
    assert gains_table(study) is None
    assert "test samples are not those of local" in page(study)


def three_seeds(place, names=(), same=False, **tables):
    for seed in range(3):
        rng = np.random.default_rng(0 if same else seed)
        client, y, right = many(rng, 4, 60, [0.6] * 4)
        noise = np.random.default_rng(100 + seed)
        better = right | (noise.random(len(right)) < 0.5) & (client != 3)
        write(place, "local", seed, predicted(client, y, right), names, **tables)
        write(place, "fedper", seed, predicted(client, y, better), names, **tables)
    return place


def test_clients_of_other_partitions_are_other_clients(tmp_path):
    found = gains_in(three_seeds(tmp_path))
    assert found.by_seed
    assert [(each.client, each.seeds[0].seed) for each in found.clients] == [(k, s) for s in range(3) for k in range(4)]
    assert found.client_label(found.clients[5]) == "client 1, seed 1"
    assert (found.surely_better, found.worse) == (0.75, 0)
    assert "Every seed has a partition of its own" in page(gather([tmp_path]))


@pytest.mark.parametrize("case", ["one partition", "named"])
def test_a_client_that_is_the_same_with_every_seed_has_one_interval(tmp_path, case):
    if case == "named":
        found = gains_in(three_seeds(tmp_path, NAMES))
    else:
        found = gains_in(three_seeds(tmp_path, same=True, data={"seed": 0}))
    assert not found.by_seed
    assert [each.verdict for each in found.clients] == ["gains"] * 3 + ["cannot be told"]
    one = found.clients[0]
    assert [each.seed for each in one.seeds] == [0, 1, 2]
    assert one.difference == pytest.approx(np.mean([each.difference for each in one.seeds]))
    assert one.low > 0
    assert found.client_label(one) == ("Bergen" if case == "named" else "client 0")


def test_more_seeds_on_the_same_samples_do_not_make_a_difference_sure(tmp_path):
    """The same two models three times: the interval is that of one seed."""
    right = np.random.default_rng(1).random((2, 40)) < 0.6
    client, y = [0] * 40, [0, 1] * 20
    for seed in range(3):
        write(tmp_path / "three", "local", seed, predicted(client, y, right[0]), data={"seed": 5})
        write(tmp_path / "three", "fedper", seed, predicted(client, y, right[1]), data={"seed": 5})
    (three,) = gains_in(tmp_path / "three").clients
    assert (three.low, three.high) == pytest.approx((three.seeds[0].low, three.seeds[0].high))


def scored(client, y, score):
    score = torch.as_tensor(score, dtype=torch.float32)
    return Predictions(torch.as_tensor(client), torch.as_tensor(y), torch.stack([1 - score, score], dim=1))


def test_auroc_is_resampled_and_is_undefined_for_one_class(tmp_path):
    rng = np.random.default_rng(0)
    client = np.repeat([0, 1, 2], [200, 6, 10])
    y = np.concatenate([rng.integers(0, 2, 200), [1, 0, 0, 0, 0, 0], np.zeros(10, int)])
    noise = rng.random(len(y))
    write(tmp_path, "local", 0, scored(client, y, noise), evaluate={"metric": "auroc"})
    write(tmp_path, "fedper", 0, scored(client, y, 0.5 * noise + 0.4 * y), evaluate={"metric": "auroc"})
    found = gains_in(tmp_path)
    assert [each.client for each in found.clients] == [0, 1]
    assert found.undefined == 1
    large, small = found.clients
    assert large.verdict == "gains"
    assert 0.03 < large.high - large.low < 0.25
    assert small.verdict == "cannot be told"  # one positive sample
    assert small.high - small.low > 0.6
    assert gains_in(tmp_path).clients == found.clients  # the same draws


def test_a_loss_is_turned_so_that_positive_is_better(tmp_path):
    write(tmp_path, "local", 0, eight([0] * 8), evaluate={"metric": "log_loss"})
    write(tmp_path, "fedper", 0, eight([1] * 8), evaluate={"metric": "log_loss"})
    found = gains_in(tmp_path)
    assert found.clients[0].score < found.clients[0].alone
    assert found.clients[0].difference == pytest.approx(np.log(9))
    assert found.better == 1


def test_of_several_local_configurations_the_best_in_validation_counts(tmp_path):
    for lr, right, validated in ((0.1, [1] * 8, [0] * 8), (0.2, [0] * 8, [1] * 8)):
        run = write(tmp_path / str(lr), "local", 0, eight(right), train={"lr": lr})
        write_predictions(run, {"test": eight(right), "validation": eight(validated)}, 2, "deployed")
    write(tmp_path, "fedper", 0, eight([1] * 8))
    assert gains_in(tmp_path).alone == "local train.lr=0.2"


def test_older_runs_have_differences_without_intervals(tmp_path):
    write_run(tmp_path / "a", [0.5, 0.6], name="local", holdings=counts_of(4))
    write_run(tmp_path / "b", [0.5, 0.7], name="fedper", holdings=counts_of(4))
    found = gains_in(tmp_path)
    assert found.mean == pytest.approx(0.1)
    assert not found.sure
    assert "no stored predictions" in found.why
    assert "+10.0" in shown(tmp_path)


def shown(place, width=80):
    study = gather([place])
    console = Console(width=width, file=io.StringIO(), highlight=False)
    for part in gains_parts(study.ranks, client_gains(study), width):
        console.print(part)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_console_has_a_row_per_method_and_names_the_worst_client(tmp_path, width):
    said = shown(three_seeds(tmp_path, NAMES), width)
    assert "clients against local: accuracy, percentage points" in " ".join(said.split())
    row = next(line for line in said.splitlines() if "fedper" in line)
    assert "75% (75% sure)" in row
    assert "0% (0% sure)" in row
    assert ("Voss +0.0" in row) == (width > 60)
    assert max(map(len, said.splitlines())) <= width


def test_without_local_a_line_says_how_to_get_it_and_a_single_method_says_nothing(tmp_path):
    write(tmp_path, "fedper", 0, eight([1] * 8))
    assert shown(tmp_path) == ""
    write(tmp_path, "fedavg", 0, eight([1] * 8))
    assert "add local to --algorithms" in " ".join(shown(tmp_path).split())
    assert "add local to --algorithms" in page(gather([tmp_path]))


def test_the_csv_has_a_line_per_method_seed_and_client(tmp_path, capsys):
    three_seeds(tmp_path / "runs", NAMES)
    print_ranking([tmp_path / "runs"], clients=tmp_path / "clients.csv")
    lines = list(csv.DictReader((tmp_path / "clients.csv").read_text().splitlines()))
    assert len(lines) == 2 * 3 * 4
    assert {line["name"] for line in lines} == set(NAMES)
    first = next(line for line in lines if (line["method"], line["seed"], line["client"]) == ("fedper", "1", "2"))
    one = gains_in(tmp_path / "runs").clients[2]
    assert float(first["difference"]) == one.seeds[1].difference
    assert float(first["score"]) - float(first["alone"]) == pytest.approx(one.seeds[1].difference)
    assert float(first["low"]) == one.seeds[1].low
    assert (float(first["client_low"]), first["client_verdict"]) == (one.low, "gains")
    assert (first["against"], first["metric"], first["training_samples"]) == ("local", "accuracy", "13.0")
    alone = next(line for line in lines if line["method"] == "local")
    assert alone["difference"] == alone["verdict"] == ""
    assert alone["score"]
    assert "clients: " in capsys.readouterr().out


def test_the_page_has_tables_and_a_chart_with_the_names_of_sites(tmp_path):
    study = gather([three_seeds(tmp_path, NAMES)])
    table, worst, chart = gains_table(study), losers_table(study), gains_chart(study)
    assert table.rows[0][-1].shown == "Voss: +0.0"
    assert worst.rows[0][1].shown == "Voss"
    assert worst.csv == clients_csv(study.ranks, study.gains)
    assert options(chart) == ["fedper"]
    assert options(chart, "fedper") == ["difference", "training samples"]
    drawn = series(chart, "fedper", "training samples")
    assert set(drawn) == {"gains", "cannot be told"}
    assert [name for name, _ in drawn["gains"]] == NAMES[:3]
    assert drawn["cannot be told"] == [("Voss", 0.0)]
    written = page(study)
    assert written.count('id="gains"') == written.count('id="gaining"') == 1


def test_differences_by_size(tmp_path):
    """Twelve clients; the larger, the more they gain."""
    rng = np.random.default_rng(0)
    client, y, right = many(rng, 12, 50, [0.4] * 12)
    write(tmp_path, "local", 0, predicted(client, y, right))
    write(tmp_path, "fedper", 0, predicted(client, y, right | (rng.random(600) < client / 15)))
    (size, *_) = gains_in(tmp_path).dependences
    assert size.trait == "training samples"
    assert size.correlation.low > 0.5
    assert [third.name for third in size.thirds] == ["smallest", "middle", "largest"]
    assert size.thirds[0].gain < size.thirds[1].gain < size.thirds[2].gain
    table = dependence_table(gather([tmp_path]))
    assert [row[1].shown for row in table.rows] == ["training samples", "class skew", "distance from the others"]
    assert table.rows[0][3].below == "smallest: 11 to 14"
