"""Who gains: methods against training alone on the same test samples, in records, on the console, in page and CSV."""

import csv
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from seen import options, series
from written_runs import rewrite, write_run

from stratafl.cli.command_options import ReportOptions
from stratafl.cli.report_command import print_ranking
from stratafl.cli.result_tables import gains_renderables
from stratafl.core.keys import Seeds
from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.predictions import Predictions
from stratafl.report import gather
from stratafl.report import sentences as say
from stratafl.report.client_scores import client_scores, worst_table
from stratafl.report.decision import decision, gain_counts
from stratafl.report.gains import ClientGain, Gains, client_gains, verdict
from stratafl.report.gains.gain_records import SeedGain
from stratafl.report.gains.gain_text import mean_text, reading
from stratafl.report.gains_tables import clients_csv, dependence_table, gains_chart, gains_table, losers_table
from stratafl.report.layer_charts import by_method_and_seed
from stratafl.report.page import page
from stratafl.runs.prediction_file import write_predictions

NAMES = ["Bergen", "Oslo", "Trondheim", "Voss"]


def counts_of(clients, names=()):
    """Client i has 10 + i training samples, mostly of class i mod 2."""
    rows = [[10 + i, 1] if i % 2 == 0 else [1, 10 + i] for i in range(clients)]
    held = {"classes": 2, "clients": clients, "counts": {"train": rows, "test": [[2, 2]] * clients}}
    return held | ({"client_names": list(names)} if names else {})


def predicted(client, y, right):
    """Two classes; a sample that is right has the probability 0.9 for its class."""
    y, right = torch.as_tensor(y), torch.as_tensor(np.asarray(right, dtype=bool))
    given = torch.where(right, y, 1 - y)
    scores = torch.full((len(y), 2), 0.1).scatter(1, given[:, None], 0.9)
    return Predictions(torch.as_tensor(client), y, scores)


def write(place, method, seed, test, names=(), **tables):
    clients = int(test.client.max()) + 1
    accuracy, held = float(test.hits().double().mean()), counts_of(clients, names)
    cells = torch.bincount(2 * test.client + test.y, minlength=2 * clients)
    held["counts"]["test"] = cells.view(clients, 2).tolist()
    run = write_run(
        place / f"{method}-{seed}", [0.0, accuracy], name=method, seed=seed, clients=clients,
        holdings=held, **tables,
    )  # fmt: skip
    write_predictions(run, {"test": test}, 2, "deployed")
    return run


def eight(right):
    """Two clients with four samples each, and which of them are right."""
    return predicted([0] * 4 + [1] * 4, [0, 1] * 4, right)


def gains_in(place, method="fedper"):
    return next(each for each in client_gains(gather([place]).ranks) if each.label == method)


def test_differences_of_two_clients_by_hand(tmp_path):
    write(tmp_path, "local", 0, eight([1, 1, 1, 0, 1, 0, 0, 0]))
    write(tmp_path, "fedper", 0, eight([1, 1, 0, 0, 1, 1, 1, 0]))
    found = gains_in(tmp_path)
    assert [(each.score, each.alone, each.difference) for each in found.clients] == [
        (0.5, 0.75, -0.25),
        (0.75, 0.25, 0.5),
    ]
    assert (found.client_mean, found.median, found.worse, found.better) == (0.125, 0.125, 0.5, 0.5)
    first, second = found.clients
    own = np.array([0.75, 1.0])  # sums of squares of (0, 0, −1, 0) and (0, 1, 1, 0) about their means
    for each, square in ((first, own[0]), (second, own[1])):
        half = 2.5706 * ((square + 2 + 2 * 4 * each.difference**2 / 6) / 36) ** 0.5
        centre = each.difference * 4 / 6
        assert (each.low, each.high) == pytest.approx((max(-1, centre - half), min(1, centre + half)), rel=1e-4)
    assert {each.verdict for each in found.clients} == {"unclear"}
    assert found.surely_worse == found.surely_better == 0
    assert found.worst is first
    assert (first.training_samples, first.test_samples) == (11, 4)
    assert first.skew == pytest.approx(10 / 11 - 11 / 23)


def test_a_verdict_needs_an_interval_without_0():
    ends = [(0.01, 0.2), (-0.2, -0.01), (0.0, 0.2), (-0.2, 0.0), (None, None)]
    assert [verdict(*each) for each in ends] == ["gains", "loses", *["unclear"] * 3]


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
    assert "local (seed 0)" in found.why
    study = gather([tmp_path])
    assert gains_table(study) is None
    assert found.why in page(study)


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
    assert found.partitions == 3
    met = [(each.client, each.seeds[0].seeds.run) for each in found.clients]
    assert met == [(k, s) for s in range(3) for k in range(4)]
    assert found.client_label(found.clients[5]) == "client 1, seed 1"
    assert (found.surely_better, found.worse) == (0.75, 0)
    assert say.PARTITIONS.format(partitions=3) in page(gather([tmp_path]))


def test_a_loss_is_a_number_in_the_csv(tmp_path):
    client, y, right = many(np.random.default_rng(0), 4, 60, [0.6] * 4)
    write(tmp_path, "local", 0, predicted(client, y, right))
    write(tmp_path, "fedper", 0, predicted(client, y, right & (client != 3)))
    study = gather([tmp_path])
    lines = list(csv.DictReader(clients_csv(study.ranks, study.gains).splitlines()))
    assert min(float(line["difference"]) for line in lines if line["difference"]) < -0.3


def test_runs_are_paired_by_all_their_seeds(tmp_path):
    """Two comparisons with the same `run.seed` on two partitions: no run is lost, and a partition has its clients."""
    for partition in (7, 8):
        three_seeds(tmp_path / str(partition), same=True, data={"seed": partition})
    found = gains_in(tmp_path)
    assert found.partitions == 2
    assert [(each.client, len(each.seeds)) for each in found.clients] == [(k, 3) for _ in range(2) for k in range(4)]
    assert found.client_label(found.clients[5]) == "client 1, data.seed 8"
    study = gather([tmp_path])
    lines = list(csv.DictReader(clients_csv(study.ranks, study.gains).splitlines()))
    assert len(lines) == 2 * 6 * 4
    assert sum(line["difference"] != "" for line in lines) == 6 * 4
    assert {(line["seed"], line["data_seed"], line["batch_seed"]) for line in lines} == {
        (str(seed), partition, str(seed)) for seed in range(3) for partition in "78"
    }
    assert {row[2].shown for row in worst_table(study).rows} == {"mean of 3"}
    runs = by_method_and_seed(study, lambda run: run.folder)
    assert len(set(runs["local"].values())) == 6
    assert client_scores(study.ranks[0].members)[0][0] == "client 0, seed 0, data.seed 7"


def test_a_client_without_samples_with_one_seed_is_compared_with_the_others(tmp_path):
    for seed, right in enumerate(([1, 1, 1, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1])):
        there = 8 if seed == 0 else 4  # the second seed has no test samples of client 1
        for method, given in (("local", [1] * 8), ("fedper", right)):
            test = predicted(([0] * 4 + [1] * 4)[:there], ([0, 1] * 4)[:there], given[:there])
            write(tmp_path, method, seed, test, NAMES[:2] if seed == 0 else NAMES[:1])
    for run in tmp_path.iterdir():
        (run / "class_counts.json").write_text(json.dumps(counts_of(2, NAMES[:2])))
    found = gains_in(tmp_path)
    assert [(each.label, len(each.seeds), each.difference) for each in found.clients] == [
        ("Bergen", 2, -0.125),
        ("Oslo", 1, -0.75),
    ]
    first, second = found.clients
    assert first.low is not None
    assert (second.low, second.verdict) == (None, "unclear")
    assert second.seeds[0].low is not None


@pytest.mark.parametrize("case", ["one partition", "named"])
def test_a_client_that_is_the_same_with_every_seed_has_one_interval(tmp_path, case):
    if case == "named":
        found = gains_in(three_seeds(tmp_path, NAMES))
    else:
        found = gains_in(three_seeds(tmp_path, same=True, data={"seed": 0}))
    assert found.partitions == 1
    assert [each.verdict for each in found.clients] == ["gains"] * 3 + ["unclear"]
    one = found.clients[0]
    assert [each.seeds.run for each in one.seeds] == [0, 1, 2]
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


def test_auroc_is_undefined_for_one_class_and_uncertain_with_one_positive(tmp_path):
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
    assert small.verdict == "unclear"  # one positive sample
    assert small.high - small.low > 0.6
    assert gains_in(tmp_path).clients == found.clients


def test_a_loss_is_turned_so_that_positive_is_better(tmp_path):
    write(tmp_path, "local", 0, eight([0] * 8), evaluate={"metric": "log_loss"})
    write(tmp_path, "fedper", 0, eight([1] * 8), evaluate={"metric": "log_loss"})
    found = gains_in(tmp_path)
    assert found.clients[0].score < found.clients[0].alone
    assert found.clients[0].difference == pytest.approx(np.log(9))
    assert found.better == 1


def validated(run, **values):
    """The run with these validation scores in its last round, or without any."""

    def change(line):
        kept = {key: value for key, value in line.items() if not key.startswith("validation.")}
        scores = {f"validation.deployed.{key}": value for key, value in values.items()}
        return kept | (scores if line["round"] == 2 else {})

    rewrite(run / "rounds.jsonl", change)


@pytest.mark.parametrize("average", ["samples", "clients"])
def test_of_several_local_configurations_the_best_in_validation_counts(tmp_path, average):
    """The best on test samples is 0.1, the best over all validation samples 0.2, and in the mean over clients 0.3."""
    scores = {0.1: (1, 0.5, 0.5), 0.2: (0, 0.9, 0.4), 0.3: (0, 0.4, 0.9)}
    for lr, (right, pooled, each) in scores.items():
        evaluate = {"average": average, "metric": "accuracy"}
        run = write(tmp_path / str(lr), "local", 0, eight([right] * 8), train={"lr": lr}, evaluate=evaluate)
        validated(run, loss=1.0, accuracy=pooled, client_accuracy=each)
    write(tmp_path, "fedper", 0, eight([1] * 8))
    assert gains_in(tmp_path).alone == f"local train.lr={0.2 if average == 'samples' else 0.3}"


def test_without_validation_the_local_configuration_with_the_settings_of_the_method_counts(tmp_path):
    for lr, right in ((0.1, 1), (0.2, 0)):
        validated(write(tmp_path / str(lr), "local", 0, eight([right] * 8), train={"lr": lr}))
    write(tmp_path, "fedper", 0, eight([1] * 8), train={"lr": 0.2})
    assert gains_in(tmp_path).alone == "local train.lr=0.2"


def of_two_sizes(place, **tables):
    """A client with two test samples gains, one with eight loses: +50 and −25 points."""
    client, y = [0] * 2 + [1] * 8, [0, 1] * 5
    write(place, "local", 0, predicted(client, y, [1, 0] + [1] * 8), **tables)
    write(place, "fedper", 0, predicted(client, y, [1, 1] + [1] * 6 + [0] * 2), **tables)
    return place


def test_the_mean_is_that_of_the_ranking(tmp_path):
    study = gather([of_two_sizes(tmp_path)])
    first, second = study.ranks
    (found,) = study.gains
    assert (
        found.mean == pytest.approx(second.numbers["score"].mean - first.numbers["score"].mean) == pytest.approx(-0.1)
    )
    assert found.client_mean == pytest.approx(0.125)
    assert "−10.0" in next(line for line in shown(tmp_path).splitlines() if "fedper" in line)
    (said,) = [dict(each.values) for each in decision(study).answers["Who gains"] if each.sentence == say.AGAINST_ALONE]
    assert (said["better"], said["worse"], said["mean"]) == (1, 1, mean_text(found))
    assert all(number in mean_text(found) for number in ("−10.0 points", "+12.5"))  # they point apart
    assert gains_table(study).rows[0][2].shown == "−10.0"


def test_the_mean_over_clients_is_that_of_a_ranking_over_clients(tmp_path):
    of_two_sizes(tmp_path, evaluate={"metric": "accuracy", "average": "clients"})
    for run, value in (("local-0", 0.75), ("fedper-0", 0.875)):
        rewrite(tmp_path / run / "rounds.jsonl", lambda line, v=value: line | {"test.deployed.client_accuracy": v})
    (found,) = gather([tmp_path]).gains
    assert found.mean == found.client_mean == pytest.approx(0.125)
    assert mean_text(found).endswith("+12.5 points")
    assert reading([found])[0].values == {"average": "over clients"}


def test_models_right_after_training_have_no_intervals_and_it_is_said_why(tmp_path):
    for method, values in (("local", [0.5, 0.6]), ("fedper", [0.5, 0.7])):
        run = write_run(tmp_path / method, values, name=method, evaluate={"stage": "trained"})
        rewrite(run / "clients.jsonl", lambda line: line | {"test.trained.accuracy": line["test.deployed.accuracy"]})
    found = gains_in(tmp_path)
    assert found.client_mean == pytest.approx(0.1)
    assert "evaluate.stage" in found.why


def test_your_own_metric_counts_clients_once_and_says_once_that_there_are_no_intervals(tmp_path):
    own = {"metric": "costs:cost", "average": "clients", "better": "smaller"}
    for seed in (0, 1):
        for method, cost in (("local", 0.5), ("fedper", 0.4), ("fedavg", 0.6)):
            run = write_run(tmp_path / f"{method}{seed}", [0.5], name=method, seed=seed, evaluate=own,
                            holdings=counts_of(4, NAMES))  # fmt: skip
            score = {"test.deployed.costs:cost": cost, "test.deployed.client_costs:cost": cost}
            for journal in ("rounds", "clients"):
                rewrite(run / f"{journal}.jsonl", lambda line, score=score: line | score)
    found = gains_in(tmp_path)
    assert [found.client_label(each) for each in found.clients] == NAMES
    assert [each.difference for each in found.clients] == pytest.approx([0.1] * 4)
    said = " ".join(shown(tmp_path).split())
    assert said.count("fedper, fedavg against local: ") == said.count(found.why) == 1


def test_older_runs_have_differences_without_intervals(tmp_path):
    write_run(tmp_path / "a", [0.5, 0.6], name="local", holdings=counts_of(4))
    write_run(tmp_path / "b", [0.5, 0.7], name="fedper", holdings=counts_of(4))
    found = gains_in(tmp_path)
    assert found.mean == found.client_mean == pytest.approx(0.1)
    assert not found.sure
    assert "strata resume" in found.why
    assert "+10.0" in shown(tmp_path)


def shown(place, width=80):
    study = gather([place])
    console = Console(width=width, file=io.StringIO(), highlight=False)
    for part in gains_renderables(study.ranks, client_gains(study.ranks), width):
        console.print(part)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [50, 80, 120])
def test_the_console_has_a_row_per_method_and_names_the_worst_client(tmp_path, width):
    said = shown(three_seeds(tmp_path, NAMES), width)
    row = next(line for line in said.splitlines() if "fedper" in line)
    assert "75% (75% sure)" in row
    assert "(0% sure)" not in row
    assert ("Voss 0.0" in row) == (width > 50)
    assert max(map(len, said.splitlines())) <= width


def test_without_local_a_line_says_how_to_get_it_and_a_single_method_says_nothing(tmp_path):
    write(tmp_path, "fedper", 0, eight([1] * 8))
    assert shown(tmp_path) == ""
    write(tmp_path, "fedavg", 0, eight([1] * 8))
    hint = say.ADD_LOCAL.format(local="local")
    assert " ".join(shown(tmp_path).split()) == hint
    assert hint in page(gather([tmp_path]))


def test_a_single_method_with_its_guard_is_not_told_of_an_option_that_it_has_not(tmp_path):
    write(tmp_path, "fedper", 0, eight([1] * 8))
    guard = write(tmp_path / "fedper-0", "fedper", 0, eight([1] * 8)).rename(tmp_path / "fedper-0" / "guard")
    (guard / "guard.json").write_text("{}")
    assert [rank.label for rank in gather([tmp_path]).ranks] == ["fedper", "guarded fedper"]
    assert shown(tmp_path) == ""


def test_the_csv_has_a_line_per_method_seed_and_client(tmp_path, capsys):
    three_seeds(tmp_path / "runs", NAMES)
    print_ranking([tmp_path / "runs"], ReportOptions(clients=tmp_path / "clients.csv"))
    lines = list(csv.DictReader((tmp_path / "clients.csv").read_text().splitlines()))
    assert len(lines) == 2 * 3 * 4
    assert {line["name"] for line in lines} == set(NAMES)
    first = next(line for line in lines if (line["method"], line["seed"], line["client"]) == ("fedper", "1", "2"))
    one = gains_in(tmp_path / "runs").clients[2]
    assert float(first["difference"]) == pytest.approx(one.seeds[1].difference, abs=2e-6)
    assert float(first["score"]) - float(first["alone"]) == pytest.approx(one.seeds[1].difference, abs=2e-6)
    assert float(first["low"]) == pytest.approx(one.seeds[1].low, rel=5e-6)
    assert (first["client_low"], first["client_verdict"]) == (f"{one.low:.6g}", "gains")
    assert (first["against"], first["metric"], first["training_samples"]) == ("local", "accuracy", "13")
    numbers = [value for line in lines for value in line.values() if value.lstrip("-")[:1].isdigit()]
    assert max(len(value.replace(".", "").lstrip("-0")) for value in numbers) <= 6
    alone = next(line for line in lines if line["method"] == "local")
    assert alone["difference"] == alone["verdict"] == ""
    assert alone["score"]
    assert "clients: " in capsys.readouterr().out


def test_the_page_has_tables_and_a_chart_with_the_names_of_sites(tmp_path):
    study = gather([three_seeds(tmp_path, NAMES)])
    table, worst, chart = gains_table(study), losers_table(study), gains_chart(study)
    assert table.rows[0][-1].shown == "Voss: 0.0"
    assert worst.rows[0][1].shown == "Voss"
    assert worst.csv == clients_csv(study.ranks, study.gains)
    assert options(chart) == ["fedper"]
    assert options(chart, "fedper") == ["difference", "training samples"]
    drawn = series(chart, "fedper", "training samples")
    assert set(drawn) == {"gains", "unclear"}
    assert [name for name, _ in drawn["gains"]] == NAMES[:3]
    assert drawn["unclear"] == [("Voss", 0.0)]
    written = page(study)
    assert written.count('id="gains"') == written.count('id="gaining"') == 1


def of_clients(*limits):
    """Gains of fedper for clients with these limits, the difference in the middle; None: 0.1 without limits."""
    made = []
    for client, each in enumerate(limits):
        low, high = each or (None, None)
        apart = 0.1 if each is None else (low + high) / 2
        seed = SeedGain(Seeds(0), 0.5 + apart, 0.5, apart, low, high, 10)
        made.append(ClientGain(client, "", (seed,), low, high))
    return Gains("fedper", "local", METRICS["accuracy"], "clients", mean=0.1, clients=tuple(made))


def test_a_client_without_an_interval_takes_no_bars_from_the_others():
    chart = gains_chart(SimpleNamespace(gains=[of_clients(None, (-0.1, 0.5))]))
    (drawn,) = chart.tree["fedper"]["difference"]["data"]
    assert drawn["error_y"]["array"] == [0, pytest.approx(30)]
    assert drawn["error_y"]["arrayminus"] == [0, pytest.approx(30)]
    (drawn,) = gains_chart(SimpleNamespace(gains=[of_clients(None, None)])).tree["fedper"]["difference"]["data"]
    assert "error_y" not in drawn


def test_the_decision_says_how_many_clients_chance_gives():
    few = [(0.1, 0.2)] * 4 + [(-0.4, -0.2)] * 4
    overall, better, worse, chance = gain_counts(of_clients(*few, *[(-0.1, 0.2)] * 52))
    assert (overall.values["better"], overall.values["worse"], overall.values["clients"]) == (56, 4, "60 clients")
    assert (better.values["count"], better.values["names"][:17]) == (4, "client 0 (+15.0),")
    assert (worse.values["count"], worse.values["names"][:17]) == (4, "client 4 (−30.0),")
    assert (chance.sentence, chance.values) == (say.BY_CHANCE, {"count": 2})
    sentences = [each.sentence for each in gain_counts(of_clients((-0.1, 0.2)))]
    assert sentences == [say.AGAINST_ALONE, say.TOO_FEW_TO_NAME]


def test_clients_that_chance_alone_could_have_named_are_not_named():
    """Of 100 clients about 2 seem to gain by chance: one that seems to is no news, nor are three."""
    for sure in (1, 3):
        overall, why = gain_counts(of_clients(*[(0.1, 0.2)] * sure, *[(-0.1, 0.2)] * (100 - sure)))
        assert (overall.values["better"], overall.values["clients"]) == (100, "100 clients")
        assert (why.sentence, why.values) == (say.TOO_FEW_TO_NAME, {"samples": "10"})
    _, better = gain_counts(of_clients((0.1, 0.2), *[(-0.1, 0.2)] * 5))  # of six clients chance gives none
    assert (better.sentence, better.values["count"]) == (say.SURELY_BETTER, 1)


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
