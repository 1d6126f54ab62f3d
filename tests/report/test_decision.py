"""The decision: what to use, who gains, how sure; and doubts, which come first."""

from seen import axis_range, series
from written_runs import EVIL, as_regression, rewrite, write_run

from stratafl.report import gather
from stratafl.report.decision import decision
from stratafl.report.decision_chart import decision_chart
from stratafl.report.doubts import doubts, tuned_before_use
from stratafl.report.page import page


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


def test_a_method_that_is_far_behind_is_not_recommended_for_its_price(tmp_path):
    write(tmp_path, "fedavg", [0.9, 0.4, 0.9])  # noisy, so nothing can be told
    write(tmp_path, "local", [0.6, 0.5, 0.5])
    for seed in range(3):
        spending(tmp_path / f"local{seed}", 0)
    made = decision(gather([tmp_path]))
    assert made.use.label == "fedavg"
    assert made.headline == "Use fedavg: one model for everybody. Its lead may be chance."
    assert "It cannot be told from local." in dict(made.answers)["How sure"]


def test_alone_may_be_best(tmp_path):
    write(tmp_path, "local", [0.8, 0.81, 0.82])
    write(tmp_path, "fedavg", [0.5, 0.51, 0.52])
    assert decision(gather([tmp_path])).headline == (
        "Train every client alone (local): no federated method here is clearly better."
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
    assert "Worse off: Cork" in said


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
    made = decision(gather([tmp_path]))
    assert (made.use, made.headline) == (None, "Use none of these models: they have learned nothing of use.")
    assert made.cautions[0] == "Every method is no better than always giving a client its most frequent class (87.5 %)."


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


def test_names_of_clients_are_text(tmp_path):
    rows = [[2, 2]] * 4
    held = {"classes": 2, "clients": 4, "counts": {"train": rows, "test": rows}, "class_names": [EVIL, "b"]}
    held |= {"client_names": [EVIL, "Bergen", "Cork", "Delft"]}
    write(tmp_path, "fedper", [0.5, 0.51, 0.52], holdings=held)
    write(tmp_path, "local", [0.4, 0.7, 0.42], holdings=held)
    assert EVIL not in page(gather([tmp_path]))
