"""The decision: what to use, who gains, how sure; and doubts, which come first."""

from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
from seen import axis_range, series
from written_runs import EVIL, as_regression, rewrite, write_run

from stratafl.cli import main as strata
from stratafl.errors import RunError
from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.predictions import Predictions
from stratafl.report import gather, read_outcome
from stratafl.report import sentences as say
from stratafl.report.chance import LARGE_LEAD, probabilities
from stratafl.report.decision import decision, decision_chart, ranking_lead, what_would_show
from stratafl.report.intervals import Interval
from stratafl.report.notes import doubts, doubts_of_learning, tuned_before_use
from stratafl.report.outcome import measured_by, what_counts
from stratafl.report.page import page
from stratafl.report.pair_tables import whom_verdicts_are_about
from stratafl.report.paired import Paired
from stratafl.report.sentences import finding
from stratafl.runs.prediction_file import read_predictions, write_predictions


def write(place, name, values, *, seeds=3, **more):
    """Runs of a method with these scores, one for each seed."""
    for seed, value in zip(range(seeds), values, strict=True):
        write_run(place / f"{name}{seed}", [value], name=name, seed=seed, **more)


def values_of(findings, sentence):
    """The values in a sentence; None if it is not said."""
    return next((dict(each.values) for each in findings if each.sentence == sentence), None)


def spending(folder, bytes_):
    rewrite(folder / "rounds.jsonl", lambda line: line | {"bytes.down": bytes_, "bytes.up": 0})


def test_the_best_is_recommended(tmp_path):
    write(tmp_path, "fedper", [0.8, 0.81, 0.82])
    write(tmp_path, "fedavg", [0.5, 0.51, 0.52])
    made = decision(gather([tmp_path]))
    assert [each.sentence for each in made.headline] == [say.USE_KIND]
    assert made.headline[0].values["method"] == made.use.label == "fedper"
    assert values_of(made.answers["Why"], say.BEST) == {"metric": "accuracy", "score": "81.0 %"}
    assert values_of(made.answers["Why"], say.RUNNER_UP) == {"method": "fedavg", "score": "51.0 %"}
    assert made.answers["Who gains"] == [finding(say.NO_LOCAL, local="local")]
    assert values_of(made.answers["How sure"], say.SURELY_BETTER_THAN) == {"methods": ["fedavg"]}
    assert values_of(made.answers["How sure"], say.RESTS_ON)["seeds"] == "3 seeds"
    assert "What would change it" not in made.answers


def test_the_guard_changes_no_verdict_on_the_methods_and_is_used_only_if_it_helps(tmp_path):
    write(tmp_path / "runs", "fedper", [0.8, 0.81, 0.82])
    write(tmp_path / "runs", "fedavg", [0.5, 0.51, 0.52])
    before = gather([tmp_path])
    write(tmp_path / "guards", "fedper", [0.8, 0.81, 0.821])
    write(tmp_path / "guards", "fedavg", [0.79, 0.8, 0.81])
    for folder in (tmp_path / "guards").iterdir():
        (folder / "guard.json").write_text("{}")
    study = gather([tmp_path])
    assert {rank.label for rank in study.ranks if rank.is_guarded} == {"guarded fedper", "guarded fedavg"}
    plain = [pair for pair in study.pairs if "guarded" not in pair.first + pair.second]
    assert plain == before.pairs
    assert [(pair.planned, pair.pairs) for pair in plain] == [(True, 1)]
    assert {(pair.planned, pair.pairs) for pair in study.pairs if pair not in plain} == {(True, 2), (False, 3)}
    made = decision(study)
    assert made.use is not None
    assert made.use.label == "fedper"
    assert values_of(made.answers["Why"], say.NEEDS_NO_GUARD)["method"] == "fedper"


def test_of_two_that_cannot_be_told_apart_the_cheaper_is_recommended(tmp_path):
    write(tmp_path, "fedavg", [0.803, 0.81, 0.82])
    write(tmp_path, "fedper", [0.8, 0.812, 0.818])
    for seed in range(3):
        spending(tmp_path / f"fedper{seed}", 50)
    made = decision(gather([tmp_path]))
    assert made.use.label == "fedper"
    assert [each.sentence for each in made.headline] == [say.USE_KIND]  # and not that its lead may be chance
    said = values_of(made.answers["Why"], say.SENDS_LESS)
    assert (said["best"], said["top"], said["size"], said["more"]) == ("fedavg", "81.1 %", "50 B", "110 B")


def test_a_method_that_is_chance_is_not_chosen_and_that_is_the_reason(tmp_path):
    rows = [[2, 2]] * 4
    held = {"classes": 2, "clients": 4, "counts": {"train": rows, "test": rows}}
    write(tmp_path, "fedavg", [0.45, 0.75, 0.62], holdings=held)  # 10.7 points above 50 %, and noisy
    write(tmp_path, "fedper", [0.595, 0.6, 0.605], holdings=held)
    write(tmp_path, "local", [0.55, 0.56, 0.57], holdings=held)
    for seed in range(3):
        spending(tmp_path / f"fedper{seed}", 500)
    made = decision(gather([tmp_path]))
    assert made.use.label == "fedper"
    assert made.answers["Why"] == [
        finding(say.SKIPPED, methods=["fedavg (60.7 %)"]),
        finding(say.BEST_OF_REST, metric="accuracy", score="60.0 %"),
        finding(say.RUNNER_UP, method="local", score="56.0 %"),
        finding(say.SENDS, size="500 B"),
    ]
    for seed in range(3):
        spending(tmp_path / f"local{seed}", 0)
        rewrite(tmp_path / f"local{seed}" / "rounds.jsonl", lambda line: line | {"test.deployed.accuracy": 0.599})
    said = values_of(decision(gather([tmp_path])).answers["Why"], say.SENDS_LESS)
    assert (said["best"], said["top"], said["method"], said["score"]) == ("fedper", "60.0 %", "local", "59.9 %")


def test_a_method_that_is_far_behind_is_not_recommended_for_its_price(tmp_path):
    write(tmp_path, "fedavg", [0.9, 0.4, 0.9])  # noisy, so nothing can be told
    write(tmp_path, "local", [0.6, 0.5, 0.5])
    for seed in range(3):
        spending(tmp_path / f"local{seed}", 0)
    made = decision(gather([tmp_path]))
    assert made.use.label == "fedavg"
    assert made.headline[1:] == [finding(say.MAY_BE_AS_GOOD, methods=["local"])]
    assert values_of(made.answers["How sure"], say.NOT_SIGNIFICANT) == {"methods": ["local"]}


def test_a_cheaper_method_that_is_surely_worse_is_not_recommended(tmp_path):
    write(tmp_path, "fedavg", [0.81, 0.82, 0.83])
    write(tmp_path, "fedper", [0.805, 0.815, 0.825])  # half a point below, with every seed and for every client
    for seed in range(3):
        spending(tmp_path / f"fedper{seed}", 50)
    assert decision(gather([tmp_path])).use.label == "fedavg"


def test_a_pair_is_turned_where_the_method_comes_second(tmp_path):
    """The cheapest is as good as the noisy first, and surely worse than the second."""
    write(tmp_path, "fedavg", [0.803, 0.81, 0.82])
    write(tmp_path, "fedrep", [0.8075, 0.8085, 0.8095])
    write(tmp_path, "fedper", [0.805, 0.806, 0.807])
    for seed in range(3):
        spending(tmp_path / f"fedper{seed}", 50)
    made = decision(gather([tmp_path]))
    assert made.use.label == "fedper"
    assert values_of(made.answers["How sure"], say.SURELY_WORSE_THAN) == {"methods": ["fedrep"]}


def test_what_more_of_would_tell_is_named():
    limited = Paired("fedper", "fedavg", Interval(0.1, -0.1, 0.3), 0.5, 0.5, "unclear", None, 3, 4, limited=True)
    assert what_would_show(limited) == finding(say.CLIENTS_DISAGREE, method="fedavg")
    here = replace(limited, about_these_clients=True)
    assert what_would_show(here) == finding(say.TOO_FEW_SAMPLES, method="fedavg")
    unlimited = replace(limited, limited=False, more_seeds=4)
    assert what_would_show(unlimited) == finding(say.FURTHER_SEEDS, method="fedavg", seeds="4 further seeds")
    assert what_would_show(replace(unlimited, more_seeds=None)).sentence == say.TOO_SMALL_TO_SHOW
    assert what_would_show(replace(unlimited, seeds=1)).sentence == say.REPEAT


def test_alone_may_be_best(tmp_path):
    write(tmp_path, "local", [0.8, 0.81, 0.82])
    write(tmp_path, "fedavg", [0.5, 0.51, 0.52])
    assert decision(gather([tmp_path])).headline == [finding(say.TRAIN_ALONE, method="local")]


def test_a_lead_of_training_alone_may_be_chance_as_any_other(tmp_path):
    write(tmp_path, "local", [0.9, 0.4, 0.9])
    write(tmp_path, "fedavg", [0.6, 0.5, 0.5])
    said = [each.sentence for each in decision(gather([tmp_path])).headline]
    assert said == [say.TRAIN_ALONE_UNCLEAR, say.MAY_BE_AS_GOOD]


def test_only_the_rivals_that_are_in_doubt_are_named(tmp_path):
    write(tmp_path, "flayer", [0.94, 0.93, 0.95])
    write(tmp_path, "fedalp", [0.95, 0.90, 0.96])
    write(tmp_path, "fedavg", [0.80, 0.79, 0.81])
    write(tmp_path, "local", [0.70, 0.69, 0.71])
    study = gather([tmp_path])
    assert decision(study).headline[1:] == [finding(say.MAY_BE_AS_GOOD, methods=["fedalp"])]
    noisy = [(name, [0.9 - i / 50, 0.5 + i / 25, 0.7]) for i, name in enumerate(("fedper", "fedrep", "fedbabu"))]
    for name, values in noisy:
        write(tmp_path / "noisy", name, values)
    assert decision(gather([tmp_path / "noisy"])).headline[1:] == [finding(say.LEAD_MAY_BE_CHANCE)]


def perfect(place, name, seeds=1, **sizes):
    """Runs whose probabilities put the samples of every named client in order: AUROC 1 everywhere."""
    guessing(place, name, areas=[0.5] * seeds, seeds=seeds, **sizes)
    for seed in range(seeds):
        folder = place / f"{name}{seed}"
        stored = read_predictions(folder)
        sure = torch.where(stored.y == 1, 0.9, 0.1)
        write_predictions(folder, {"test": replace(stored, scores=torch.stack([1 - sure, sure], 1))}, 1, "deployed")


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_perfect_model_is_better_than_chance(tmp_path, seeds):
    """Every sample tells the same, so their variance is 0, which is not the absence of evidence."""
    perfect(tmp_path, "fedavg", seeds)
    study = gather([tmp_path], METRICS["auroc"])
    assert study.chance.base == 0.5
    assert study.chance.unsure == frozenset()
    assert study.no_choice is None
    assert decision(study).use.label == "fedavg"


def test_a_single_positive_in_order_proves_nothing(tmp_path):
    perfect(tmp_path, "fedavg", clients=1, samples=10)
    assert gather([tmp_path], METRICS["auroc"]).chance.unsure == {"fedavg"}


def test_who_gains_is_said_by_name(tmp_path):
    rows = [[2, 2]] * 4
    held = {"classes": 2, "clients": 4, "counts": {"train": rows, "test": rows}, "class_names": ["a", "b"]}
    held |= {"client_names": ["Aarau", "Bergen", "Cork", "Delft"]}
    write(tmp_path, "fedper", [0.8, 0.81, 0.82], holdings=held)
    write(tmp_path, "local", [0.6, 0.61, 0.62], holdings=held)
    for seed in range(3):
        path = tmp_path / f"fedper{seed}" / "clients.jsonl"
        rewrite(path, lambda line: line | ({"test.deployed.accuracy": 0.1} if line["client"] == 2 else {}))
    said = decision(gather([tmp_path])).answers["Who gains"]
    assert values_of(said, say.AGAINST_ALONE)["better"] == 3
    assert values_of(said, say.CHANCE_UNKNOWN) == {}
    assert values_of(said, say.LOWER_SCORES)["names"].startswith("Cork (−")


def test_one_run_of_each_is_a_doubt_and_comes_first(tmp_path):
    write(tmp_path, "fedper", [0.8], seeds=1)
    write(tmp_path, "fedavg", [0.5], seeds=1)
    made = decision(gather([tmp_path]))
    assert made.cautions[0] == finding(say.RAN_ONCE)


def test_models_that_give_one_answer_are_not_recommended(tmp_path):
    rows = [[7, 1]] * 4
    held = {"classes": 2, "clients": 4, "counts": {"train": rows, "test": rows}}
    write(tmp_path, "fedper", [0.875] * 3, holdings=held)
    write(tmp_path, "fedavg", [0.875] * 3, holdings=held)
    study = gather([tmp_path])
    made = decision(study)
    assert (made.use, made.headline) == (None, [finding(say.USE_NONE_BY, metric="accuracy")])
    assert made.answers["What the probabilities show"] == [finding(say.NO_PREDICTIONS)]
    (doubt,) = doubts_of_learning(study)
    assert doubt == finding(say.NOT_BETTER, methods=["fedavg", "fedper"], base="87.5 %")
    assert doubt not in made.cautions  # the headline says it already


def test_a_method_that_trains_before_use_is_said_to(tmp_path):
    write(tmp_path, "fedbabu", [0.8, 0.81, 0.82])
    write(tmp_path, "fedper", [0.5, 0.51, 0.52])
    for seed in range(3):
        rewrite(tmp_path / f"fedbabu{seed}" / "rounds.jsonl", lambda line: line | {"test.received.accuracy": 0.1})
    study = gather([tmp_path])
    assert [tuned_before_use(rank) for rank in study.ranks] == [True, False]
    assert values_of(doubts(study), say.TRAINED_BEFORE_USE) == {"methods": ["fedbabu"]}


def test_unequal_steps_unfinished_runs_leaks_and_one_rate_are_doubts(tmp_path):
    write(tmp_path, "fedrep", [0.8, 0.81, 0.82], asked=9)
    write(tmp_path, "fedavg", [0.5, 0.51, 0.52], environment={"leaks": "sees tests"})
    for seed in range(3):
        rewrite(tmp_path / f"fedrep{seed}" / "rounds.jsonl", lambda line: line | {"train.steps": 30})
        rewrite(tmp_path / f"fedavg{seed}" / "rounds.jsonl", lambda line: line | {"train.steps": 10})
    said = doubts(gather([tmp_path]))
    assert values_of(said, say.LEAKING) == {"methods": ["fedavg †"]}
    assert values_of(said, say.UNFINISHED) == {"methods": ["fedrep"]}
    assert values_of(said, say.ONE_RATE) == {"rate": "0.05"}
    assert values_of(said, say.UNEQUAL_STEPS) == {"most": "fedrep", "least": "fedavg †", "ratio": "3.0"}


def test_a_loss_is_lower_when_it_is_better(tmp_path):
    for name, best in (("fedavg", 1.2), ("fedper", 1.5)):
        for seed in range(2):
            as_regression(write_run(tmp_path / f"{name}{seed}", [best], name=name, seed=seed))
    study = gather([tmp_path])
    assert decision(study).use.label == "fedper"  # 2 − 1.5


def test_the_picture_has_every_seed_and_an_axis_that_shows_the_differences(tmp_path):
    write(tmp_path, "fedper", [0.8, 0.81, 0.82])
    write(tmp_path, "fedavg", [0.77, 0.78, 0.79])
    study = gather([tmp_path])
    chart = decision_chart(study, study.ranks[0])
    shown = series(chart)
    assert shown["mean"] == [(0.81, "fedper"), (0.78, "fedavg")]
    assert [x for x, _ in shown["seeds"]] == [0.8, 0.81, 0.82, 0.77, 0.78, 0.79]
    low, high = axis_range(chart, "xaxis")
    assert 0.76 < low < 0.77
    assert 0.82 < high < 0.83


def counts_of_validation(each, clients=4):
    """Class counts in which every client has so many validation samples, of one class."""
    counts = {"train": [[9, 9]] * clients, "validation": [[each, 0]] * clients, "test": [[5, 5]] * clients}
    return {"classes": 2, "clients": clients, "counts": counts}


@pytest.mark.parametrize(
    ("each", "accuracies", "tables", "doubted", "advised"),
    [
        (12, [0.5, 0.6], {}, "48", True),
        (12, [0.5, 0.6], {"data": {"validation": 0.2}}, "48", False),
        (13, [0.5, 0.6], {}, None, False),
        (12, [0.5], {}, None, False),  # nothing to select from
        (12, [0.5, 0.6], {"evaluate": {"select": "last"}}, None, False),
    ],
)
def test_rounds_that_few_validation_samples_selected_are_doubted(tmp_path, each, accuracies, tables, doubted, advised):
    write_run(tmp_path / "run", accuracies, holdings=counts_of_validation(each), **tables)
    said = doubts(gather([tmp_path]))
    assert values_of(said, say.FEW_VALIDATION_SAMPLES) == (None if doubted is None else {"count": doubted})
    assert values_of(said, say.MORE_VALIDATION) == ({"share": "0.2"} if advised else None)


def test_names_of_clients_are_text(tmp_path):
    rows = [[2, 2]] * 4
    held = {"classes": 2, "clients": 4, "counts": {"train": rows, "test": rows}, "class_names": [EVIL, "b"]}
    held |= {"client_names": [EVIL, "Bergen", "Cork", "Delft"]}
    write(tmp_path, "fedper", [0.5, 0.51, 0.52], holdings=held)
    write(tmp_path, "local", [0.4, 0.7, 0.42], holdings=held)
    assert EVIL not in page(gather([tmp_path]))


# Answers that are chance


def guessing(place, name, *, areas, seeds=3, clients=6, samples=40, named=True, level=0.2):
    """Runs on data with 10 % positives whose answers are 0, nearly always; their AUROC is about that of `areas`."""
    rows = [[samples * 9 // 10, samples // 10]] * clients
    held = {"classes": 2, "clients": clients, "counts": {"train": rows, "test": rows}}
    held |= {"client_names": [f"site {i}" for i in range(clients)]} if named else {}
    chosen = {"metric": "balanced_accuracy", "average": "samples", "better": "larger"}
    for seed, area in zip(range(seeds), areas, strict=True):
        folder = write_run(
            place / f"{name}{seed}", [0.5], name=name, seed=seed, clients=clients, holdings=held, evaluate=chosen
        )
        for journal in ("rounds", "clients"):
            rewrite(folder / f"{journal}.jsonl", balanced)
        generator = torch.Generator().manual_seed(seed)
        y = torch.tensor([0] * rows[0][0] + [1] * rows[0][1]).repeat(clients)
        shift = 1.41 * NormalDist().inv_cdf(area)  # of the positives, in deviations
        sure = level + 0.05 * (torch.randn(len(y), generator=generator) + shift * y)
        client = torch.arange(clients).repeat_interleave(samples)
        found = Predictions(client, y, torch.stack([1 - sure, sure], 1).float())
        write_predictions(folder, {"test": found}, 1, "deployed")


def balanced(line):
    """With a balanced accuracy of 50 %."""
    new = {key.replace("accuracy", "balanced_accuracy"): 0.5 for key in line if key.endswith(".accuracy")}
    return {**line, **new}


@pytest.mark.slow
def test_nothing_is_recommended_by_answers_that_are_chance_and_probabilities_are_shown(tmp_path):
    guessing(tmp_path, "fedavg", areas=[0.8, 0.81, 0.82])
    guessing(tmp_path, "local", areas=[0.6, 0.61, 0.59])
    study = gather([tmp_path])
    made = decision(study)
    assert (made.use, made.headline) == (None, [finding(say.NOT_BY_ANSWERS, metric="balanced accuracy")])
    chance = finding(say.AT_CHANCE, metric="balanced accuracy", base="50.0 %", methods=["fedavg", "local"])
    assert made.answers["Why"] == [chance]
    assert chance in ranking_lead(study)
    scores, pair = made.answers["What the probabilities show"]
    assert scores.values["scores"][0].startswith("fedavg 0.8")
    assert pair.values["pair"].startswith(say.PAIR_BETTER.format(first="fedavg", second="local", evidence="0.19")[:-1])
    assert values_of(made.answers["What to do"], say.RANK_BY_AUROC)["folders"] == str(tmp_path)


def test_by_auroc_the_better_probabilities_are_recommended_for_these_clients(tmp_path):
    guessing(tmp_path, "fedavg", areas=[0.8, 0.81, 0.82])
    guessing(tmp_path, "local", areas=[0.6, 0.61, 0.59])
    study = gather([tmp_path], METRICS["auroc"])
    made = decision(study)
    assert made.use.label == "fedavg"
    assert [each.sentence for each in made.headline] == [say.USE_KIND]
    (pair,) = study.pairs
    assert (pair.about_these_clients, pair.verdict) == (True, "better")
    assert pair.difference.mean == pytest.approx(0.19, abs=0.01)
    assert finding(say.ABOUT_THESE_CLIENTS) in made.answers["How sure"]
    gains = made.answers["Who gains"]  # a client with 4 positives that scores lower is not named for it
    assert values_of(gains, say.SURELY_BETTER)["count"] >= 1
    assert values_of(gains, say.SURELY_WORSE) is None
    assert values_of(gains, say.BY_CHANCE) is None
    assert values_of(made.cautions, say.OTHER_METRIC) == {"selected": "balanced accuracy", "ranked": "AUROC"}


def test_only_what_rests_on_the_test_samples_of_both_is_about_these_clients(tmp_path):
    for name, area in (("fedavg", 0.8), ("fedper", 0.7), ("local", 0.6)):
        guessing(tmp_path, name, areas=[area, area + 0.01, area - 0.01])
        for seed in range(3):
            value = {"test.deployed.balanced_accuracy": area + seed / 100}
            for journal in ("rounds", "clients"):
                rewrite(tmp_path / f"{name}{seed}" / f"{journal}.jsonl", lambda line, value=value: line | value)
    for seed in range(3):
        (tmp_path / f"local{seed}" / "predictions.safetensors").unlink()
    study = gather([tmp_path])
    assert {(pair.first, pair.second): pair.about_these_clients for pair in study.pairs} == {
        ("fedavg", "fedper"): True,
        ("fedavg", "local"): False,
        ("fedper", "local"): False,
    }
    apart = [f"{pair.first} and {pair.second}" for pair in study.pairs[1:]]
    assert ", ".join(apart) in whom_verdicts_are_about(study.pairs)
    assert finding(say.ABOUT_THESE_CLIENTS) not in decision(study).answers["How sure"]


def test_probabilities_that_are_chance_too_recommend_nothing(tmp_path):
    guessing(tmp_path, "fedavg", areas=[0.5] * 3)
    guessing(tmp_path, "local", areas=[0.5] * 3)
    made = decision(gather([tmp_path]))
    assert (made.use, made.headline) == (None, [finding(say.USE_NONE)])
    assert values_of(made.answers["What the probabilities show"], say.AUROC_AT_CHANCE) is not None


def test_a_slight_lead_by_answers_does_not_outweigh_probabilities(tmp_path):
    guessing(tmp_path, "fedavg", areas=[0.8, 0.81, 0.82], named=False)
    guessing(tmp_path, "local", areas=[0.6, 0.61, 0.59], named=False, level=0.42)
    slight = {"test.deployed.balanced_accuracy": 0.53}
    for seed in range(3):
        for journal in ("rounds", "clients"):
            rewrite(tmp_path / f"local{seed}" / f"{journal}.jsonl", lambda line: line | slight)
    study = gather([tmp_path])
    assert study.ranks[0].label == "local"
    assert study.chance.unsure == {"fedavg"}  # 3 points more with every seed and client
    made = decision(study)
    assert made.use is None
    why = values_of(made.answers["Why"], say.CONTRADICTED)
    assert (why["method"], why["better"]) == ("local", ["fedavg"])
    assert made.headline == [finding(say.NOT_BY_METRIC, metric="balanced accuracy")]


def test_probabilities_that_cannot_be_told_apart_take_no_recommendation_away(tmp_path):
    guessing(tmp_path, "fedavg", areas=[0.701, 0.7, 0.7], named=False)
    guessing(tmp_path, "local", areas=[0.7, 0.7, 0.7], named=False, level=0.42)
    for seed in range(3):
        for journal in ("rounds", "clients"):
            path = tmp_path / f"local{seed}" / f"{journal}.jsonl"
            rewrite(path, lambda line: line | {"test.deployed.balanced_accuracy": 0.53})
    study = gather([tmp_path])
    shown = probabilities(study.ranks)
    assert shown.ranks[0].label == "fedavg"  # by 0.001
    assert shown.findings[0].sentence == say.AUROC_SCORES
    assert decision(study).use.label == "local"


def test_a_large_lead_over_chance_of_few_samples_is_not_believed(tmp_path):
    """AUROCs of 0.64 with 4 positives at each of 4 sites: less than two standard errors above 0.5."""
    for name in ("fedavg", "fedper", "local", "ditto"):
        guessing(tmp_path, name, areas=[0.55], seeds=1, clients=4)
    found = gather([tmp_path], METRICS["auroc"]).chance
    assert all(way >= LARGE_LEAD for way in found.ahead.values())
    assert found.unsure == {"fedavg", "fedper", "local", "ditto"}


def test_a_large_lead_over_chance_is_believed_with_noisy_seeds(tmp_path):
    guessing(tmp_path, "fedavg", areas=[0.75, 0.99], seeds=2)
    found = gather([tmp_path], METRICS["auroc"]).chance
    assert found.ahead["fedavg"] > LARGE_LEAD
    assert found.unsure == set()


def counts_of(train, test, clients=4):
    """Class counts of clients that are all alike."""
    return {"classes": 2, "clients": clients, "counts": {"train": [train] * clients, "test": [test] * clients}}


def test_a_lead_of_a_tenth_of_a_point_over_the_majority_class_is_none(tmp_path):
    """With every seed and for every client, so that there is no doubt about the tenth."""
    for name, accuracy in (("fedavg", 0.601), ("fedper", 0.61)):
        write(tmp_path, name, [accuracy] * 3, holdings=counts_of([3, 2], [600, 400]))
        for seed in range(3):
            path = tmp_path / f"{name}{seed}" / "clients.jsonl"
            rewrite(path, lambda line, value=accuracy: line | {"test.deployed.accuracy": value})
    assert gather([tmp_path]).chance.unsure == {"fedavg"}


def test_the_majority_class_is_that_of_training(tmp_path):
    write_run(tmp_path / "run", [0.5], holdings=counts_of([1, 3], [3, 1]))
    study = gather([tmp_path])
    assert study.majority.numbers["score"].mean == study.chance.base == 0.25


def test_a_run_measured_by_another_metric_keeps_its_round_and_needs_predictions(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    guessing(tmp_path, "fedavg", areas=[0.8, 0.81, 0.82])
    one = read_outcome(tmp_path / "fedavg0")
    again = measured_by(one, METRICS["auroc"])
    stored = read_predictions(one.folder)
    assert again.numbers()["score"] == pytest.approx(stored.average(METRICS["auroc"], "clients"), abs=1e-12)
    assert again.by_client() == stored.by_client(METRICS["auroc"])
    assert again.numbers()["selected_round"] == one.numbers()["selected_round"]
    assert "balanced accuracy" in what_counts([again])  # which selected the round
    assert strata(["report", str(tmp_path), "--metric", "auroc"]) == 0
    assert "AUROC" in capsys.readouterr().out
    assert strata(["report", str(tmp_path), "--metric", "auroc", "--target", "0.7"]) == 2
    assert "--metric" in capsys.readouterr().err
    write_run(tmp_path / "bare", [0.5], name="fedper")
    with pytest.raises(RunError, match=r"bare'.*AUROC"):
        gather([tmp_path], METRICS["auroc"])
