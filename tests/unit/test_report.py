"""Reports of run directories that were written by hand."""

import json
from math import sqrt

import pytest
import tomli_w

from stratafl.cli.result_tables import target_table
from stratafl.errors import RunError
from stratafl.report import INCOMPARABLE, Spread, ranking, read_outcome, run_folders, to_csv
from stratafl.report.formats import span
from stratafl.report.ranking import has_column
from stratafl.runs.summary import evaluated


def line(number, test=None, validation=None, metric="accuracy", **more):
    """A round of 2 seconds with the clients, 0.5 with the server, 100 bytes down and 10 up."""
    made = {"round": number, "seconds.train": 2.0, "seconds.server": 0.5, "bytes.down": 100, "bytes.up": 10}
    for split, value in (("test", test), ("validation", validation)):
        if value is not None:
            made |= {f"{split}.deployed.loss": 1.0, f"{split}.deployed.{metric}": value}
    return made | more


def written(folder, lines, *, seed=0, rounds=3, clients=7, torn="", leaks=None, **tables):
    """A run directory."""
    folder.mkdir(parents=True)
    config = {"algorithm": {"name": "fedper"}, "train": {"lr": 0.1}, "run": {"rounds": rounds, "seed": seed}}
    for name, table in tables.items():
        config[name] = {**config.get(name, {}), **table}
    (folder / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    (folder / "environment.json").write_text(
        json.dumps({"format": 1, "clients": clients, "leaks": leaks}), encoding="utf-8"
    )
    journal = "".join(json.dumps(each) + "\n" for each in lines) + torn
    (folder / "rounds.jsonl").write_text(journal, encoding="utf-8")
    return folder


def run(folder, *accuracies, **options):
    """The outcome of a run with these test accuracies, which validation repeats."""
    lines = [line(i + 1, accuracy, accuracy) for i, accuracy in enumerate(accuracies)]
    return read_outcome(written(folder, lines, **options))


# One run


def test_an_outcome_is_read_from_its_directory(tmp_path):
    folder = written(tmp_path / "run", [line(1, 0.5), line(2, 0.6)], seed=4)
    given = read_outcome(folder)
    assert (given.folder, given.seed, given.rounds, given.clients) == (folder, 4, 2, 7)
    assert given.lines == [line(1, 0.5), line(2, 0.6)]
    assert (given.config["train"]["lr"], given.config["train"]["epochs"]) == (0.1, 1)  # the file and the defaults


def test_all_numbers_of_a_run(tmp_path):
    chosen = line(
        2,
        0.7,
        0.8,
        **{
            "test.received.accuracy": 0.4,
            "test.trained.accuracy": 0.65,
            "test.deployed.client_accuracy": 0.72,
            "test.deployed.std": 0.11,
            "test.deployed.worst10": 0.3,
            "new.test.received.accuracy": 0.1,
            "new.test.trained.accuracy": 0.55,
        },
    )
    lines = [line(1, 0.898, 0.6), chosen, line(3), line(4, 0.9, 0.7), line(5, 0.8, 0.75), line(6)]
    assert read_outcome(written(tmp_path / "run", lines)).numbers() == {
        "score": 0.7,
        "received": 0.4,
        "trained": 0.65,
        "deployed": 0.7,  # of the round with the best validation accuracy
        "client_mean": 0.72,
        "spread": 0.11,
        "worst10": 0.3,
        "new_received": 0.1,
        "new_trained": 0.55,
        "best": 0.9,
        "last": 0.8,
        "selected_round": 2.0,
        "converged_round": 1.0,  # 0.898 is within half a point of 0.9
        "converged_seconds": 2.5,
        "converged_bytes": 110.0,
        "bytes": 6 * 110.0,
        "seconds": 6 * 2.5,
        "rounds": 6.0,
    }


def test_numbers_over_clients_and_over_rounds_are_of_the_models_that_count(tmp_path):
    """As received 0.6 and 0.5, the spread over clients 0.2; deployed the other way round, with a spread of 0.1."""
    lines = [line(1, 0.5, **{"test.deployed.std": 0.1, "test.deployed.worst10": 0.3}), line(2, 0.7)]
    for each, accuracy in zip(lines, (0.6, 0.5), strict=True):
        each |= {"test.received.accuracy": accuracy, "test.received.std": 0.2, "test.received.worst10": 0.4}
    counts = {"select": "best", "stage": "received"}
    numbers = read_outcome(written(tmp_path / "run", lines, evaluate=counts)).numbers()
    found = {name: numbers[name] for name in ("score", "best", "last", "converged_round", "spread", "worst10")}
    wanted = {"score": 0.6, "best": 0.6, "last": 0.5, "converged_round": 1.0, "spread": 0.2, "worst10": 0.4}
    assert found == wanted


def test_what_was_not_measured_is_left_out(tmp_path):
    numbers = run(tmp_path / "run", 0.5).numbers()
    missing = {"received", "trained", "client_mean", "spread", "worst10", "new_received", "new_trained"}
    assert not missing & set(numbers)
    assert numbers["deployed"] == 0.5


def test_a_regression_is_reported_by_its_loss(tmp_path):
    lines = [line(i, 3.0 - i, 1.0 * i, metric="loss", **{"test.deployed.client_loss": 9.0}) for i in (1, 2)]
    numbers = read_outcome(written(tmp_path / "run", lines)).numbers()
    assert (numbers["deployed"], numbers["best"], numbers["last"]) == (2.0, 1.0, 1.0)
    assert (numbers["selected_round"], numbers["client_mean"]) == (1.0, 9.0)


def test_a_run_without_an_evaluated_round_has_nothing_to_report(tmp_path):
    for name, lines in (("new", []), ("young", [line(1), line(2)])):
        assert not evaluated(read_outcome(written(tmp_path / name, lines)).lines)


def test_the_same_configuration_and_seed_counts_once(tmp_path, caplog):
    outcomes = [run(tmp_path / name, 0.5, seed=3) for name in ("once", "twice")]
    (rank,) = ranking(outcomes)
    assert rank.seeds == (3,)
    assert "twice'" in caplog.text


def test_a_score_that_is_not_a_number_is_damage(tmp_path):
    folder = written(tmp_path / "run", [line(1, 0.5) | {"test.deployed.accuracy": "high"}])
    with pytest.raises(RunError, match=r"rounds\.jsonl"):
        read_outcome(folder)


def test_a_line_that_is_torn_is_left_out(tmp_path):
    folder = written(tmp_path / "run", [line(1, 0.5)], torn='{"round": 2, "test.dep')
    assert read_outcome(folder).rounds == 1


def test_a_journal_that_is_damaged_is_refused(tmp_path):
    folder = written(tmp_path / "run", [line(1, 0.5)], torn='{"round": 2, "test.dep\n')
    with pytest.raises(RunError, match=r"rounds.jsonl' is damaged") as error:
        read_outcome(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["round", "bytes.down", "bytes.up", "seconds.train", "seconds.server"])
def test_a_line_that_lacks_a_number_is_refused(tmp_path, key):
    broken = line(1, 0.5)
    del broken[key]
    folder = written(tmp_path / "run", [broken, line(2, 0.5)])
    with pytest.raises(RunError, match=r"rounds.jsonl'.* round, bytes.down,") as error:
        read_outcome(folder)
    assert "\n" not in str(error.value)


def test_an_environment_without_clients(tmp_path):
    folder = written(tmp_path / "run", [line(1, 0.5)])
    (folder / "environment.json").write_text('{"format": 1}', encoding="utf-8")
    assert read_outcome(folder).clients == 0


# Where runs are


def test_runs_at_and_below_places_once_and_in_order(tmp_path):
    for name in ("b/seed-1", "b/seed-0", "a"):
        written(tmp_path / name, [line(1, 0.5)])
    (tmp_path / "b" / "half").mkdir()
    (tmp_path / "b" / "half" / "config.toml").write_text("", encoding="utf-8")
    below = [tmp_path / name for name in ("a", "b/seed-0", "b/seed-1")]
    assert run_folders([tmp_path]) == below
    assert run_folders([tmp_path / "b" / "seed-1", tmp_path]) == [below[2], below[0], below[1]]


def test_places_without_runs_are_refused(tmp_path):
    with pytest.raises(RunError, match=f"'{tmp_path}'"):
        run_folders([tmp_path])
    with pytest.raises(RunError, match=r"'.*none'"):
        run_folders([tmp_path / "none"])


# Many runs


def test_mean_and_standard_deviation_of_a_sample_over_seeds(tmp_path):
    outcomes = [run(tmp_path / str(seed), accuracy, seed=seed) for seed, accuracy in enumerate((0.5, 0.6, 0.8))]
    (rank,) = ranking(outcomes)
    mean = 1.9 / 3
    std = sqrt(((0.5 - mean) ** 2 + (0.6 - mean) ** 2 + (0.8 - mean) ** 2) / 2)  # by one less than there are
    assert (rank.label, rank.seeds) == ("fedper", (0, 1, 2))
    assert rank.numbers["deployed"].mean == pytest.approx(mean)
    assert rank.numbers["deployed"].std == pytest.approx(std)
    assert rank.numbers["bytes"] == Spread(110.0, 0.0)


def test_one_seed_has_no_deviation(tmp_path):
    (rank,) = ranking([run(tmp_path / "run", 0.5)])
    assert rank.numbers["deployed"] == Spread(0.5, None)


def test_configurations_are_equal_but_for_the_seed(tmp_path):
    a = [run(tmp_path / f"a{seed}", 0.5, seed=seed) for seed in (0, 1)]
    b = [run(tmp_path / f"b{seed}", 0.6, seed=seed, train={"lr": 0.2}) for seed in (0, 1)]
    ranks = ranking([a[0], b[1], b[0], a[1]])
    assert [(rank.label, rank.seeds) for rank in ranks] == [
        ("fedper train.lr=0.2", (1, 0)),
        ("fedper train.lr=0.1", (0, 1)),
    ]


@pytest.mark.parametrize("key", ["data.seed", "model.seed", "run.batch_seed"])
def test_runs_that_differ_in_the_seed_of_a_part_are_one_configuration(tmp_path, key):
    table, _, name = key.partition(".")
    outcomes = [run(tmp_path / str(seed), 0.5 + seed / 10, **{table: {name: seed}}) for seed in (0, 1)]
    (rank,) = ranking([*outcomes, run(tmp_path / "again", 0.5, **{table: {name: 1}})])  # the last one repeats a run
    assert (rank.label, len(rank.members)) == ("fedper", 2)
    assert rank.scores == [0.5, 0.6]


def test_how_often_layers_are_looked_at_makes_no_other_method(tmp_path):
    outcomes = [run(tmp_path / str(seed), 0.5, seed=seed, evaluate={"lab": seed}) for seed in (0, 1)]
    assert [(rank.label, rank.seeds) for rank in ranking(outcomes)] == [("fedper", (0, 1))]
    others = [run(tmp_path / f"lr{lab}", 0.4, evaluate={"lab": lab}, train={"lr": lab + 0.2}) for lab in (0, 1)]
    assert {rank.label for rank in ranking(others)} == {"fedper train.lr=0.2", "fedper train.lr=1.2"}


def test_the_best_comes_first_and_equals_stay_in_order(tmp_path):
    def of(name, accuracy):
        return run(tmp_path / name, accuracy, algorithm={"name": name})

    ranks = ranking([of("fedavg", 0.5), of("fedper", 0.7), of("fedrep", 0.6), of("local", 0.7)])
    assert [rank.label for rank in ranks] == ["fedper", "local", "fedrep", "fedavg"]


def test_of_a_regression_the_lowest_loss_comes_first(tmp_path):
    def of(name, loss):
        lines = [line(1, loss, loss, metric="loss")]
        return read_outcome(written(tmp_path / name, lines, algorithm={"name": name}))

    ranks = ranking([of("fedavg", 2.0), of("fedper", 1.0), of("local", 3.0)])
    assert [rank.label for rank in ranks] == ["fedper", "fedavg", "local"]


@pytest.mark.parametrize(
    ("tables", "labels"),
    [
        ([{"algorithm": {"name": "fedavg"}}, {"train": {"lr": 0.5}}], ["fedavg", "fedper"]),
        ([{"train": {"lr": 0.5}}, {}], ["fedper train.lr=0.5", "fedper train.lr=0.1"]),
        ([{"algorithm": {"personal": "last:2"}}, {}], ["fedper personal=last:2", "fedper"]),
        (
            [{"train": {"lr": 0.5}}, {"model": {"hidden": [4]}}, {}],
            ["fedper train.lr=0.5", "fedper train.lr=0.1 model.hidden=[4]", "fedper train.lr=0.1"],
        ),
        (
            [{"train": {"lr": 0.5}}, {}, {"algorithm": {"name": "local"}, "train": {"lr": 0.7}}],
            ["fedper train.lr=0.5", "fedper train.lr=0.1", "local"],
        ),
    ],
)
def test_labels_tell_configurations_of_one_method_apart(tmp_path, tables, labels):
    outcomes = [run(tmp_path / str(i), 0.9 - i / 10, **each) for i, each in enumerate(tables)]
    assert [rank.label for rank in ranking(outcomes)] == labels


def test_unfinished_runs_show_how_far_they_are(tmp_path):
    done = run(tmp_path / "0", 0.5, 0.6, 0.7, seed=0)
    behind = read_outcome(written(tmp_path / "1", [line(1, 0.5, 0.5), line(2)], seed=1))
    (rank,) = ranking([done, behind])
    assert rank.rounds == (2, 3)
    (whole,) = ranking([done])
    assert whole.rounds == (3, 3)


def test_numbers_that_some_seed_lacks_are_left_out(tmp_path):
    with_new_clients = read_outcome(written(tmp_path / "0", [line(1, 0.5, **{"new.test.trained.accuracy": 0.4})]))
    without = run(tmp_path / "1", 0.6, seed=1)
    (rank,) = ranking([with_new_clients, without])
    assert "new_trained" not in rank.numbers
    assert rank.numbers["deployed"].mean == pytest.approx(0.55)


def test_a_regression_that_diverged_comes_last(tmp_path):
    def of(name, loss):
        lines = [line(1, 1.0, 1.0) | {"test.deployed.loss": loss, "validation.deployed.loss": loss}]
        for key in ("test.deployed.accuracy", "validation.deployed.accuracy"):
            del lines[0][key]
        return read_outcome(written(tmp_path / name, lines, algorithm={"name": name}))

    ranks = ranking([of("fedavg", None), of("fedper", 1.0)])
    assert [rank.label for rank in ranks] == ["fedper", "fedavg"]


def diverging(folder, *, seed=0, name="fedavg", numbers=(1.0, None)):
    """A regression whose loss is no number any more from some round on."""
    lines = [line(i + 1) | {"test.deployed.loss": loss, "test.received.loss": loss} for i, loss in enumerate(numbers)]
    return read_outcome(written(folder, lines, rounds=len(lines), seed=seed, algorithm={"name": name}))


def test_what_diverged_is_shown_with_what_there_is(tmp_path):
    lost = [diverging(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    (rank,) = ranking(lost)
    assert rank.title == "fedavg (diverged)"
    assert "score" not in rank.numbers
    assert rank.numbers["best"] == Spread(1.0, 0.0)
    assert [has_column(name, [rank]) for name in ("received", "deployed", "worst10", "new_trained")] == [True] * 3 + [
        False
    ]
    (rank,) = ranking([lost[0], diverging(tmp_path / "fine", seed=1, numbers=(1.0, 0.5))])
    assert rank.title == "fedavg (1 of 2 seeds diverged)"
    fine = diverging(tmp_path / "other", name="local", numbers=(1.0, 0.5))
    assert ranking([fine])[0].title == "local"


def test_what_is_neither_finished_nor_well_says_both(tmp_path):
    lines = [line(1) | {"test.deployed.loss": None}]
    assert (
        ranking([read_outcome(written(tmp_path / "run", lines, rounds=3))])[0].title
        == "fedper (1 of 3 rounds, diverged)"
    )


# What should be


def test_a_last_round_that_was_not_evaluated_does_not_turn_the_ranking_around(tmp_path):
    outcomes = []
    for name, accuracy in (("fedavg", 0.5), ("fedper", 0.7)):
        folder = written(tmp_path / name, [line(1, accuracy), line(2)], algorithm={"name": name})
        outcomes.append(read_outcome(folder))
    assert [rank.label for rank in ranking(outcomes)] == ["fedper", "fedavg"]


def test_options_in_another_order_are_the_same_configuration(tmp_path):
    one = run(tmp_path / "0", 0.5, seed=0, algorithm={"personal": "head", "finetune": 1})
    other = run(tmp_path / "1", 0.6, seed=1, algorithm={"finetune": 1, "personal": "head"})
    assert [rank.seeds for rank in ranking([one, other])] == [(0, 1)]


def test_a_directory_that_was_never_completed_is_no_run(tmp_path):
    whole = written(tmp_path / "run", [line(1, 0.5)])
    written(tmp_path / ".other.0123abcd.partial", [])
    assert run_folders([tmp_path]) == [whole]


# CSV


def test_the_ranking_as_csv(tmp_path):
    outcomes = [run(tmp_path / str(seed), accuracy, seed=seed) for seed, accuracy in enumerate((0.25, 0.75))]
    extra = line(1, 0.25, **{"new.test.trained.accuracy": 0.125})
    outcomes.append(read_outcome(written(tmp_path / "new", [extra], algorithm={"name": "own:mine, too"})))
    header, first, second = to_csv(ranking(outcomes)).splitlines()
    names = [
        "score",
        "deployed",
        "best",
        "last",
        "selected_round",
        "converged_round",
        "converged_seconds",
        "converged_bytes",
    ]
    names += ["bytes", "seconds", "rounds", "new_trained"]
    assert header.split(",") == ["method", "seeds", *(f"{n}_{part}" for n in names for part in ("mean", "std"))]
    std = sqrt(0.125)  # of 0.25 and 0.75
    assert first.startswith(
        f"fedper,2,0.5,{std},0.5,{std},0.5,{std},0.5,{std},1.0,0.0,1.0,0.0,2.5,0.0,110.0,0.0,110.0,0.0,"
    )
    assert first.endswith(",1.0,0.0,,")  # it has no new clients
    assert second.startswith('"own:mine, too",1,0.25,,')
    assert second.endswith(",0.125,")  # one seed has no deviation


def test_a_method_that_leaks_is_marked(tmp_path):
    honest = run(tmp_path / "0", 0.5)
    leaking = run(tmp_path / "1", 0.9, leaks="test split", algorithm={"name": "flayer"})
    assert (honest.leaks, leaking.leaks) == (None, "test split")
    ranks = ranking([honest, leaking])
    assert [(rank.label, rank.leaks) for rank in ranks] == [("flayer †", True), ("fedper", False)]
    header, first, second = to_csv(ranks).splitlines()
    assert header.endswith(",leaks")
    assert first.startswith("flayer †,1,0.9,")
    assert first.endswith(f",{INCOMPARABLE}")
    assert second.endswith(",")
    assert "leaks" not in to_csv(ranks[1:])


def test_an_empty_ranking_is_a_header():
    assert to_csv([]) == "method,seeds\n"


def test_a_loss_that_is_no_number_is_a_run_that_diverged(tmp_path):
    fine = run(tmp_path / "fine", 0.5)
    lost = read_outcome(written(tmp_path / "lost", [line(1, 0.25, **{"test.deployed.loss": None})]))
    assert (fine.diverged, lost.diverged) == (False, True)
    assert read_outcome(written(tmp_path / "too", [line(1, 0.25, **{"train.loss": None})])).diverged


def test_a_target_is_reached_by_the_models_that_count(tmp_path):
    lines = [line(t, 0.9, **{"test.received.accuracy": t / 10, "test.received.loss": 1.0}) for t in (1, 2, 3)]
    folder = written(tmp_path / "run", lines, evaluate={"stage": "received"})
    table = target_table([read_outcome(folder)], 0.2)
    assert list(table.columns[1].cells) == ["2"]


def test_a_span_is_from_the_first_to_the_last_in_any_order():
    times = [f"2026-01-0{day}T10:00:00+00:00" for day in (2, 3, 1)]
    assert span(times) == "2026-01-01 10:00 to 2026-01-03 10:00 UTC"
    assert (span(times[:1]), span([])) == ("2026-01-02 10:00 UTC", "")
