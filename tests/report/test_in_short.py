"""A study in two sentences and one picture: alone, shared, personalised."""

import pytest
from seen import options, series
from written_runs import rewrite, write_run

from stratafl.cli.compare_command import print_next
from stratafl.cli.report_command import pair_lines, print_ranking
from stratafl.report import gather
from stratafl.report import sentences as say
from stratafl.report.guards import guard_option
from stratafl.report.in_short import in_short, kinds_chart, kinds_of
from stratafl.report.page import sections
from stratafl.report.sentences import finding


def write(place, seeds=3, **scores):
    for name, score in scores.items():
        for seed in range(seeds):
            write_run(place / f"{name}{seed}", [score + seed / 100], name=name, seed=seed)
    return gather([place])


def test_a_personalised_method_that_leads_is_compared_with_alone_and_shared(tmp_path):
    study = write(tmp_path, flayer=0.9, fedper=0.8, fedavg=0.7, fedprox=0.65, local=0.6)
    first, second = in_short(study)
    assert first == finding(
        say.PERSONALISED_LEADS,
        method="flayer",
        score="91.0 %",
        against="61.0 % alone and 71.0 % for one shared model",
        doubt="",
    )
    assert second.values == {"method": "flayer", "better": "about 4", "clients": "4 clients", "worse": 0}
    assert [rank.label for rank in kinds_of(study)] == ["local", "fedavg", "flayer"]


def test_methods_that_may_be_as_good_are_named(tmp_path):
    study = write(tmp_path, flayer=0.9, fedavg=0.6, local=0.5)
    for seed, score in enumerate((0.99, 0.80, 0.91)):
        write_run(tmp_path / f"fedalp{seed}", [score], name="fedalp", seed=seed)
    first, _ = in_short(study := gather([tmp_path]))
    assert first.values["doubt"] == say.AS_GOOD_CLAUSE.format(methods="fedalp")
    assert study.ranks[0].label == "flayer"


@pytest.mark.parametrize(
    ("scores", "sentence", "others", "gaining"),
    [
        (("local", "fedper", "fedavg"), say.ALONE_LEADS, "fedper 81.0 % and one shared model 71.0 %", "fedper"),
        (("fedavg", "fedper", "local"), say.SHARED_LEADS, "fedper 81.0 % and training alone 71.0 %", "fedavg"),
        (("fedavg", "local"), say.SHARED_LEADS, "training alone 81.0 %", "fedavg"),
    ],
)
def test_alone_or_shared_may_be_best(tmp_path, scores, sentence, others, gaining):
    """Who gains is said of the shared model if that is best: a reader would use it."""
    scores = dict(zip(scores, (0.9, 0.8, 0.7), strict=False))
    first, second = in_short(write(tmp_path, **scores))
    assert second.values["method"] == gaining
    assert (first.sentence, first.values["others"], first.values["score"]) == (sentence, others, "91.0 %")


def test_one_seed_cannot_tell_and_one_kind_has_nothing_to_compare(tmp_path):
    first, second = in_short(write(tmp_path / "one", seeds=1, fedper=0.9, local=0.5))
    assert first.values["doubt"] == say.ONE_SEED_CLAUSE
    assert second.values["better"] == "4"
    assert in_short(write(tmp_path / "kind", fedper=0.9, fedrep=0.5)) == []
    assert in_short(write(tmp_path / "alone", fedper=0.9)) == []


def test_the_report_leads_with_every_client_alone_shared_and_personalised(tmp_path):
    study = write(tmp_path, flayer=0.9, fedavg=0.7, local=0.6)
    chart = kinds_chart(study)
    assert options(chart) == ["0", "1", "2"]  # each seed has clients of its own
    drawn = series(chart, "1")
    assert list(drawn) == ["alone (local)", "shared (fedavg)", "personalised (flayer)"]
    # Client i is i hundredths below the score of its seed; the worst alone comes first.
    assert drawn["personalised (flayer)"] == [("3", 0.88), ("2", 0.89), ("1", 0.9), ("0", 0.91)]
    decision, ranked = sections(study)[:2]
    assert chart in decision.parts
    assert [part.name for part in ranked.parts if hasattr(part, "controls")] == ["decision"]
    assert kinds_chart(write(tmp_path / "kind", fedper=0.9, fedrep=0.5)) is None


def test_clients_that_are_the_same_with_every_seed_are_drawn_once(tmp_path):
    for name, score in (("fedper", 0.8), ("local", 0.6)):
        for seed in range(2):
            write_run(tmp_path / f"{name}{seed}", [score + seed / 10], name=name, seed=seed, data={"seed": 0})
    rewrite(tmp_path / "local0" / "clients.jsonl", lambda line: line | {"test.deployed.accuracy": 0.5})
    drawn = series(kinds_chart(gather([tmp_path])))
    assert drawn["alone (local)"][-1] == ("0", 0.6)  # (0.5 + 0.7) / 2
    assert drawn["personalised (fedper)"][-1] == ("0", pytest.approx(0.85))


@pytest.mark.parametrize("data", ["digits", "my own.csv"])
def test_a_comparison_ends_with_what_it_means_and_what_to_do_next(tmp_path, capsys, data):
    """With data of one's own the settings of the run are taken as well: without `data.label` a command would fail."""
    folder = tmp_path / "my runs"
    for name, score in (("fedper", 0.8), ("fedavg", 0.7), ("local", 0.85)):
        write_run(folder / name, [score], name=name, data={"name": data})
    study = print_ranking([folder], details=False)
    print_next(study, folder)
    printed = capsys.readouterr().out
    assert " ".join(map(str, in_short(study))) in " ".join(printed.split())
    assert "clients against local" not in printed  # `strata report` has that table
    *_, tune, run = printed.strip().splitlines()
    source = "--data my.csv" if data == "digits" else f"--config '{folder / 'fedper' / 'config.toml'}'"
    assert f"strata tune {source} -a local,fedavg,fedper " in tune
    assert f"strata run {source} -a fedper{guard_option(study.outcomes[0].config['data']['validation'])} " in run
    assert ("strata advise" in printed) == (data == "digits")


def test_a_comparison_of_one_kind_of_method_ends_with_its_paired_difference(tmp_path, capsys):
    """As one's own method and its rival: there is no other kind that a sentence could name."""
    for name, score in (("fedper", 0.8), ("fedrep", 0.7)):
        for seed in range(3):
            write_run(tmp_path / f"{name}{seed}", [score + seed / 100], name=name, seed=seed)
    lines = pair_lines(study := print_ranking([tmp_path], details=False))
    assert in_short(study) == []
    assert " ".join(str(lines[0]).split()) in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("validation", "more"), [(0.1, " --guard --set data.validation=0.2"), (0.25, " --guard")])
def test_a_guard_is_suggested_with_enough_validation_samples(validation, more):
    """With fewer it keeps most clients on models of their own."""
    assert guard_option(validation) == more


def test_local_training_is_not_guarded_from_itself(tmp_path, capsys):
    for name, score in (("fedavg", 0.7), ("local", 0.85)):
        write_run(tmp_path / name, [score], name=name, data={"name": "digits"})
    print_next(gather([tmp_path]), tmp_path)
    *_, run = capsys.readouterr().out.strip().splitlines()
    assert "strata run --data my.csv -a local " in run
    assert "guard" not in run


@pytest.mark.parametrize(("seeds", "notes"), [(1, 0), (2, 1)])
def test_lines_without_an_interval_have_no_note_on_intervals(tmp_path, seeds, notes):
    """One seed gives no interval, so there is nothing in brackets to explain."""
    study = write(tmp_path, seeds, fedper=0.9, fedavg=0.7, local=0.5)
    assert len(pair_lines(study)) == 2 + notes
