"""The decision: what to use, who gains, how sure; and doubts, which come first."""

from dataclasses import replace
from statistics import NormalDist
from types import SimpleNamespace

import pytest
import torch
from seen import axis_range, series
from written_runs import EVIL, as_regression, rewrite, write_run

from stratafl.cli import main as strata
from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.predictions import Predictions
from stratafl.report import gather, read_outcome
from stratafl.report.chance import CLEAR, probabilities
from stratafl.report.decision import _change, decision
from stratafl.report.decision_chart import decision_chart
from stratafl.report.doubts import doubts, of_learning, tuned_before_use
from stratafl.report.intervals import Interval
from stratafl.report.outcome import measured_by, what_counts
from stratafl.report.page import page
from stratafl.report.paired import Paired, about
from stratafl.report.summary import summary
from stratafl.runs.prediction_file import read_predictions, write_predictions


def write(place, name, values, *, seeds=3, **more):
    """Runs of a method with these scores, one for each seed."""
    for seed, value in zip(range(seeds), values, strict=True):
        write_run(place / f"{name}{seed}", [value], name=name, seed=seed, **more)


def spending(folder, bytes_):
    rewrite(folder / "rounds.jsonl", lambda line: line | {"bytes.down": bytes_, "bytes.up": 0})


def test_the_best_is_recommended_in_plain_words(tmp_path):
    write(tmp_path, "fedper", [0.8, 0.81, 0.82])
    write(tmp_path, "fedavg", [0.5, 0.51, 0.52])
    made = decision(gather([tmp_path]))
    assert made.headline == "Use fedper: some parts are shared, the others stay with the client."
    answers = dict(made.answers)
    assert answers["Why"].startswith("It has the best test accuracy: 81.0 %. fedavg follows with 51.0 %.")
    assert answers["Who gains"] == "Unknown, because no run trains every client alone. Add local to the methods."
    assert answers["How sure"].startswith("It is better than fedavg, beyond chance. This rests on 3 seeds")
    assert "What would change it" not in answers


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
    assert {pair.pairs for pair in study.pairs} == {1, 5}
    made = decision(study)
    assert made.use is not None
    assert made.use.label == "fedper"
    assert "sends as much and needs no guard" in dict(made.answers)["Why"]


def test_of_two_that_cannot_be_told_apart_the_cheaper_is_recommended(tmp_path):
    write(tmp_path, "fedavg", [0.803, 0.81, 0.82])
    write(tmp_path, "fedper", [0.8, 0.812, 0.818])
    for seed in range(3):
        spending(tmp_path / f"fedper{seed}", 50)
    made = decision(gather([tmp_path]))
    assert made.use.label == "fedper"
    assert "lead" not in made.headline
    assert dict(made.answers)["Why"].startswith("fedavg has the best test accuracy (81.1 %), but")
    assert "50 B against 110 B" in dict(made.answers)["Why"]


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
    assert dict(made.answers)["Why"] == (
        "fedavg (60.7 %) comes first in the ranking, but cannot be told from always giving the most frequent class. "
        "It has the best test accuracy of the others: 60.0 %. local follows with 56.0 %. "
        "All clients together send and receive 500 B."
    )
    for seed in range(3):
        spending(tmp_path / f"local{seed}", 0)
        rewrite(tmp_path / f"local{seed}" / "rounds.jsonl", lambda line: line | {"test.deployed.accuracy": 0.599})
    assert dict(decision(gather([tmp_path])).answers)["Why"].endswith(
        "Of the others, fedper has the best test accuracy (60.0 %), but that cannot be told from the 59.9 % of local, "
        "which sends less: 0 B against 500 B in all."
    )


def test_a_method_that_is_far_behind_is_not_recommended_for_its_price(tmp_path):
    write(tmp_path, "fedavg", [0.9, 0.4, 0.9])  # noisy, so nothing can be told
    write(tmp_path, "local", [0.6, 0.5, 0.5])
    for seed in range(3):
        spending(tmp_path / f"local{seed}", 0)
    made = decision(gather([tmp_path]))
    assert made.use.label == "fedavg"
    assert made.headline == "Use fedavg: one model for everybody. Its lead may be chance."
    assert "It cannot be told from local." in dict(made.answers)["How sure"]


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
    assert "worse than fedrep" in dict(made.answers)["How sure"]


def test_what_more_of_would_tell_is_named():
    use, other = (SimpleNamespace(label=name, settings={"algorithm.name": name}) for name in ("fedper", "fedavg"))
    limited = Paired("fedper", "fedavg", Interval(0.1, -0.1, 0.3), 0.5, 0.5, "unclear", None, 3, 4, limited=True)
    said = "More seeds may not tell it from fedavg, because "
    assert _change(use, [other], [limited]) == f"{said}clients differ too much; more clients might."
    here = replace(limited, about_these_clients=True)
    assert _change(use, [other], [here]) == f"{said}test samples are too few; more test samples might."


def test_alone_may_be_best(tmp_path):
    write(tmp_path, "local", [0.8, 0.81, 0.82])
    write(tmp_path, "fedavg", [0.5, 0.51, 0.52])
    headline = decision(gather([tmp_path])).headline
    assert headline == "Train every client alone (local): every federated method here is worse."


def test_a_lead_of_training_alone_may_be_chance_as_any_other(tmp_path):
    write(tmp_path, "local", [0.9, 0.4, 0.9])
    write(tmp_path, "fedavg", [0.6, 0.5, 0.5])
    assert decision(gather([tmp_path])).headline == (
        "Train every client alone (local): no federated method here is clearly better. Its lead may be chance."
    )


def test_who_gains_is_said_by_name(tmp_path):
    rows = [[2, 2]] * 4
    held = {"classes": 2, "clients": 4, "counts": {"train": rows, "test": rows}, "class_names": ["a", "b"]}
    held |= {"client_names": ["Aarau", "Bergen", "Cork", "Delft"]}
    write(tmp_path, "fedper", [0.8, 0.81, 0.82], holdings=held)
    write(tmp_path, "local", [0.6, 0.61, 0.62], holdings=held)
    for seed in range(3):
        path = tmp_path / f"fedper{seed}" / "clients.jsonl"
        rewrite(path, lambda line: line | ({"test.deployed.accuracy": 0.1} if line["client"] == 2 else {}))
    said = dict(decision(gather([tmp_path])).answers)["Who gains"]
    assert said.startswith("Compared with training alone, ")
    assert "which of these are chance is unknown. Lower scores: Cork" in said


def test_one_run_of_each_is_a_doubt_and_comes_first(tmp_path):
    write(tmp_path, "fedper", [0.8], seeds=1)
    write(tmp_path, "fedavg", [0.5], seeds=1)
    made = decision(gather([tmp_path]))
    assert made.cautions[0].startswith("Every method ran once")


def test_models_that_give_one_answer_are_not_recommended(tmp_path):
    rows = [[7, 1]] * 4
    held = {"classes": 2, "clients": 4, "counts": {"train": rows, "test": rows}}
    write(tmp_path, "fedper", [0.875] * 3, holdings=held)
    write(tmp_path, "fedavg", [0.875] * 3, holdings=held)
    study = gather([tmp_path])
    made = decision(study)
    assert (made.use, made.headline) == (None, "Use none of these models: their accuracy shows nothing.")
    assert "compare again with --metric auroc" in dict(made.answers)["What the probabilities show"].lower()
    assert of_learning(study) == ["No method is better than always giving a client its most frequent class (87.5 %)."]
    assert not set(of_learning(study)) & set(made.cautions)  # the headline says it already


def test_a_method_that_trains_before_use_is_said_to(tmp_path):
    write(tmp_path, "fedbabu", [0.8, 0.81, 0.82])
    write(tmp_path, "fedper", [0.5, 0.51, 0.52])
    for seed in range(3):
        rewrite(tmp_path / f"fedbabu{seed}" / "rounds.jsonl", lambda line: line | {"test.received.accuracy": 0.1})
    study = gather([tmp_path])
    assert [tuned_before_use(rank) for rank in study.ranks] == [True, False]
    assert any(said.startswith("fedbabu trains each client's model once more") for said in doubts(study))


def test_unequal_steps_unfinished_runs_leaks_and_one_rate_are_doubts(tmp_path):
    write(tmp_path, "fedrep", [0.8, 0.81, 0.82], asked=9)
    write(tmp_path, "fedavg", [0.5, 0.51, 0.52], environment={"leaks": "sees tests"})
    for seed in range(3):
        rewrite(tmp_path / f"fedrep{seed}" / "rounds.jsonl", lambda line: line | {"train.steps": 30})
        rewrite(tmp_path / f"fedavg{seed}" / "rounds.jsonl", lambda line: line | {"train.steps": 10})
    said = " ".join(doubts(gather([tmp_path])))
    assert "fedavg †: test data influences its training" in said
    assert "fedrep is not finished" in said
    assert "All methods used one learning rate" in said
    assert "A round of fedrep has 3.0 times the training steps of a round of fedavg" in said


def test_a_loss_is_lower_when_it_is_better(tmp_path):
    for name, best in (("fedavg", 1.2), ("fedper", 1.5)):
        for seed in range(2):
            as_regression(write_run(tmp_path / f"{name}{seed}", [best], name=name, seed=seed))
    study = gather([tmp_path])
    assert decision(study).use.label == "fedper"  # 2 − 1.5
    assert "lower is better" in decision_chart(study).caption


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
    ("each", "accuracies", "tables", "says"),
    [
        (12, [0.5, 0.6], {}, "selected on 48 validation samples of all clients together, so"),
        (12, [0.5, 0.6], {"data": {"validation": 0.2}}, "partly chance."),  # there is nothing to advise
        (13, [0.5, 0.6], {}, None),
        (12, [0.5], {}, None),  # nothing to select from
        (12, [0.5, 0.6], {"evaluate": {"select": "last"}}, None),
    ],
)
def test_rounds_that_few_validation_samples_selected_are_doubted(tmp_path, each, accuracies, tables, says):
    write_run(tmp_path / "run", accuracies, holdings=counts_of_validation(each), **tables)
    found = [said for said in doubts(gather([tmp_path])) if "validation samples" in said]
    assert len(found) == (says is not None)
    assert says is None or says in found[0]
    advised = says is not None and says.startswith("selected")
    assert ("set data.validation=0.2" in "".join(found)) == advised


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


def test_nothing_is_recommended_by_answers_that_are_chance_and_probabilities_are_shown(tmp_path):
    guessing(tmp_path, "fedavg", areas=[0.8, 0.81, 0.82])
    guessing(tmp_path, "local", areas=[0.6, 0.61, 0.59])
    study = gather([tmp_path])
    made = decision(study)
    answers = dict(made.answers)
    assert (made.use, made.headline) == (
        None,
        "Do not choose by balanced accuracy: the answers of these models show nothing.",
    )
    assert (
        "By balanced accuracy no method can be told from always giving the most frequent class (50.0 %)"
        in answers["Why"]
    )
    assert "AUROC fedavg 0.8" in answers["What the probabilities show"]
    assert "fedavg is better than local by" in answers["What the probabilities show"]
    assert f"strata report {tmp_path} --metric auroc" in answers["What to do"]
    assert "no method can be told from" in summary(study)
    again = gather([tmp_path], METRICS["auroc"])
    by_auroc = decision(again)
    assert by_auroc.use.label == "fedavg"
    assert by_auroc.headline == "Use fedavg: one model for everybody."
    (pair,) = again.pairs
    assert (pair.about_these_clients, pair.verdict) == (True, "better")
    assert pair.sentence.startswith("fedavg is better than local by 0.19")
    assert " for these clients (" in pair.sentence
    assert "about these clients, not about others" in dict(by_auroc.answers)["How sure"]
    gains = dict(by_auroc.answers)["Who gains"]  # a client with 4 positives that scores lower is not named for it
    assert "surely gain: " in gains
    assert "; none loses. By chance alone fewer than one would gain, and as many lose. In all, " in gains
    assert "(−" not in gains
    assert any(said.startswith("Rounds were selected by balanced accuracy") for said in by_auroc.cautions)


def test_only_what_rests_on_the_test_samples_of_both_is_about_these_clients(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
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
    assert "for these clients" not in study.pairs[1].sentence
    assert about(study.pairs).endswith(
        "Only those on fedavg and local, fedper and local are about other clients like these."
    )
    assert "not about others" not in dict(decision(study).answers)["How sure"]
    assert "these clients" not in summary(study)
    strata(["report", str(tmp_path)])
    assert "intervals over seeds and clients or seeds and the test samples of these clients" in capsys.readouterr().out


def test_probabilities_that_are_chance_too_recommend_nothing(tmp_path):
    guessing(tmp_path, "fedavg", areas=[0.5] * 3)
    guessing(tmp_path, "local", areas=[0.5] * 3)
    made = decision(gather([tmp_path]))
    assert (made.use, made.headline) == (None, "Use none of these models: they are not better than chance.")
    assert "no method can be told from chance: AUROC" in dict(made.answers)["What the probabilities show"]


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
    assert "local is hardly better than" in dict(made.answers)["Why"]
    assert "fedavg cannot be told from that but has better probabilities." in dict(made.answers)["Why"]
    assert made.headline == "Do not choose by balanced accuracy: the probabilities say otherwise."


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
    assert shown.sentences[0].startswith("By their probabilities, AUROC fedavg 0.7")
    assert decision(study).use.label == "local"


def test_a_large_lead_over_chance_of_few_samples_is_not_believed(tmp_path):
    """AUROCs of 0.64 with 4 positives at each of 4 sites: less than two standard errors above 0.5."""
    for name in ("fedavg", "fedper", "local", "ditto"):
        guessing(tmp_path, name, areas=[0.55], seeds=1, clients=4)
    found = gather([tmp_path], METRICS["auroc"]).chance
    assert all(way >= CLEAR for way in found.ahead.values())
    assert found.unsure == {"fedavg", "fedper", "local", "ditto"}


def test_a_large_lead_over_chance_is_believed_with_noisy_seeds(tmp_path):
    guessing(tmp_path, "fedavg", areas=[0.75, 0.99], seeds=2)
    found = gather([tmp_path], METRICS["auroc"]).chance
    assert found.ahead["fedavg"] > CLEAR
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
    assert again.numbers()["score"] == stored.average(METRICS["auroc"], "clients")
    assert again.by_client() == stored.by_client(METRICS["auroc"])
    assert again.numbers()["selected_round"] == one.numbers()["selected_round"]
    assert "at the round with the best validation balanced accuracy" in what_counts([again])
    assert strata(["report", str(tmp_path), "--metric", "auroc", "-o", str(tmp_path / "r.html")]) == 0
    assert "test AUROC of deployed models, mean over clients, at the round" in capsys.readouterr().out
    assert strata(["report", str(tmp_path), "--metric", "auroc", "--target", "0.7"]) == 2
    assert "leave out --metric" in capsys.readouterr().err
    write_run(tmp_path / "bare", [0.5], name="fedper")
    assert strata(["report", str(tmp_path), "--metric", "auroc"]) == 2
    assert "bare' has no stored predictions to measure AUROC of" in capsys.readouterr().err
