"""Runs in directories: what they write, and that one which was left in any way ends like one that never was."""

import json
import os
import shutil
import signal
import tomllib
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from kill import lines, outcome

from stratafl.algorithms import fedavg, fedper
from stratafl.algorithms.local import alone
from stratafl.config.experiment import TABLES, Experiment, load_experiment, with_settings
from stratafl.core.phased import Phase, Phased
from stratafl.core.records import keys_of
from stratafl.errors import BusyError, RunError, StrataError, UnknownNameError
from stratafl.models import build, save_weights
from stratafl.runs import Run, checkpoint, is_run, read_run
from stratafl.runs.comparison import Comparison
from stratafl.runs.journal import Journal
from stratafl.runs.run import uninterrupted

TINY = ("run.rounds=4", "data.clients=4", "data.partition=iid", "model.hidden=[8]", "train.batch=100")


def made(*settings):
    return with_settings(Experiment(), [*TINY, "run.checkpoint=1", *settings])


def forward(run, rounds):
    return list(islice(run.rounds(), rounds))


def finish(run):
    with run:
        list(run.rounds())
    return run


def whole(folder, *settings):
    return finish(Run.create(made(*settings), folder, trust=True))


def left(folder, rounds, *settings):
    """A run that was interrupted and closed."""
    with Run.create(made(*settings), folder, trust=True) as run:
        forward(run, rounds)
    return run


def abandoned(folder, rounds, *settings):
    """A run whose process ended without a word."""
    run = Run.create(made(*settings), folder, trust=True)
    forward(run, rounds)
    os.close(run._lock)
    return run


def damage(generation):
    data = bytearray((generation / "state.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (generation / "state.safetensors").write_bytes(data)


def edit(path, change):
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | change(value)))


def everything_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def phases(*, train):
    """An algorithm of this file: `test_run:phases`."""
    return Phased(
        (Phase(fedavg(train=train), rounds=2), Phase(fedper(train=train))),
        finish=Phase(alone(train=train), participation="all"),
    )


# What a run writes


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return whole(tmp_path_factory.mktemp("example") / "run")


def test_the_directory_holds_what_is_documented(example):
    names = {"config.toml", "environment.json", "class_counts.json", "preprocessing.json", "checkpoint"}
    names |= {"predictions.safetensors"}
    journals = {"rounds.jsonl", "clients.jsonl", "layers.jsonl"}
    assert {path.name for path in example.folder.iterdir()} == names | journals
    assert sorted(os.listdir(example.folder / "checkpoint")) == ["000003", "000004"]
    assert is_run(example.folder)


def test_the_configuration_written_is_complete_and_means_the_same(example):
    assert load_experiment(example.folder / "config.toml") == example.experiment
    written = tomllib.loads((example.folder / "config.toml").read_text())
    assert set(written) == {"format", *TABLES}
    for name, table in TABLES.items():
        given = getattr(example.experiment, name)
        known = {name for name, key in keys_of(table).items() if getattr(given, key.field) is not None}
        assert set(written[name]) == known | set(getattr(given, "options", {}))


def test_the_environment_says_what_a_reader_needs(example):
    environment = json.loads((example.folder / "environment.json").read_text())
    assert environment["format"] == 4
    assert environment["torch"] == torch.__version__
    assert (environment["seed"], environment["clients"], environment["columns"]) == (0, 4, 64 * 8 + 8 + 8 * 10 + 10)
    assert environment["resumed"] == []


def test_one_line_per_round_client_and_layer(example):
    rounds, clients, layers = (lines(example.folder, name) for name in ("rounds", "clients", "layers"))
    assert [line["round"] for line in rounds] == [1, 2, 3, 4]
    assert [(line["round"], line["client"]) for line in clients] == [(t, i) for t in (1, 2, 3, 4) for i in range(4)]
    assert [(line["round"], line["layer"]) for line in layers] == [(t, n) for t in (1, 2, 3, 4) for n in ("fc1", "fc")]


def test_layer_lines_have_the_bytes_that_travelled(example):
    base = 4 * 4 * (64 * 8 + 8)
    for line in lines(example.folder, "layers"):
        assert (line["bytes.down"], line["bytes.up"]) == ((base, base) if line["layer"] == "fc1" else (0, 0))
    for line in lines(example.folder, "rounds"):
        assert (line["bytes.down"], line["bytes.up"]) == (base, base + 4 * 8)


def test_client_lines_add_up_to_the_line_of_their_round(example):
    for line in lines(example.folder, "rounds"):
        clients = [each for each in lines(example.folder, "clients") if each["round"] == line["round"]]
        for place in ("validation.received", "validation.trained", "test.received", "test.trained", "test.deployed"):
            samples = np.array([each[f"{place.split('.')[0]}.samples"] for each in clients])
            shares = np.array([each[f"{place}.accuracy"] for each in clients])
            assert line[f"{place}.accuracy"] == pytest.approx((shares * samples).sum() / samples.sum())
            assert line[f"{place}.client_accuracy"] == pytest.approx(shares.mean())
            assert line[f"{place}.std"] == pytest.approx(shares.std())
            assert line[f"{place}.worst10"] == shares.min()


def test_rounds_come_one_by_one_with_what_was_written(tmp_path):
    with Run.create(made(), tmp_path / "run") as run:
        for number, line in enumerate(run.rounds(), 1):
            written = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[-1])
            assert written == {**line, "checksum": written["checksum"]}
            assert line["round"] == number == run.progress.t == len(run.history)
    assert run.finished
    assert run.stopped is None


def test_checkpoints_come_every_so_many_rounds_and_at_the_end(tmp_path):
    run, seen = Run.create(made("run.rounds=5", "run.checkpoint=2"), tmp_path / "run"), []
    for _ in run.rounds():
        seen.append([path.name for path in checkpoint.generations(run.folder / "checkpoint")])
    run.close()
    second, fourth, last = "000002", "000004", "000005"
    assert seen == [[], [second], [second], [fourth, second], [last, fourth]]


def test_reading_a_run_does_not_touch_it_nor_wait_for_it(tmp_path):
    with Run.create(made(), tmp_path / "run") as run:
        forward(run, 2)
        before = everything_in(run.folder)
        _, progress, history = read_run(run.folder)
        assert everything_in(run.folder) == before
        assert (progress.t, history) == (2, run.history)


# Resuming

WAYS = {
    "fedper": (),
    "traced": ("train.batch=10",),
    "fedavg": ("algorithm.name=fedavg",),
    "some of them, norm": ("run.participation=0.5", "data.clients=6", "model.norm=true", "train.momentum=0.9"),
    "local norm": ("algorithm.name=fedbn", "model.norm=true", "run.buffers=local", "run.participation=0.5"),
    "decay": ("train.decay=0.5", "evaluate.every=2"),
    "new_clients": ("data.new_clients=1", "evaluate.clients=2", "data.validation=0"),
    "phases": ("algorithm.name=test_run:phases", "run.participation=0.5"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_was_left_ends_like_one_that_was_not(tmp_path, way):
    straight = whole(tmp_path / "straight", *WAYS[way])
    left(tmp_path / "left", 2, *WAYS[way])
    run = Run.open(tmp_path / "left", trust=True)
    assert (run.progress.t, len(run.history), run.notes) == (2, 2, [])
    finish(run)
    assert outcome(run.folder) == outcome(straight.folder)
    then, now = straight.progress.tensors(), run.progress.tensors()
    assert set(then) == set(now)
    assert all(torch.equal(then[name], now[name]) for name in then)
    assert json.loads((run.folder / "environment.json").read_text())["resumed"][0]["round"] == 2


@pytest.mark.parametrize("way", ["fedper", "some of them, norm", "phases"])
def test_a_run_that_was_abandoned_ends_like_one_that_was_not(tmp_path, way):
    settings = (*WAYS[way], "run.checkpoint=2")
    straight = whole(tmp_path / "straight", *settings)
    abandoned(tmp_path / "left", 3, *settings)
    assert len(lines(tmp_path / "left", "rounds")) == 3
    run = Run.open(tmp_path / "left", trust=True)
    assert (run.progress.t, len(run.history), run.notes) == (2, 2, [])
    assert {line["round"] for name in ("rounds", "clients", "layers") for line in lines(run.folder, name)} == {1, 2}
    assert outcome(finish(run).folder) == outcome(straight.folder)


@pytest.mark.parametrize("when", ["before the first checkpoint", "before the first round"])
def test_a_run_that_was_abandoned_early_begins_again(tmp_path, example, when):
    rounds = 2 if when == "before the first checkpoint" else 0
    abandoned(tmp_path / "run", rounds, "run.checkpoint=3")
    run = Run.open(tmp_path / "run")
    assert (run.progress.t, run.history) == (0, [])
    assert outcome(finish(run).folder) == outcome(example.folder)


def test_a_copy_of_the_folder_at_any_round_can_be_resumed(tmp_path, example):
    run = Run.create(made("run.checkpoint=2"), tmp_path / "run")
    for line in run.rounds():
        shutil.copytree(run.folder, tmp_path / f"copy-{line['round']}")
    run.close()
    for number in range(1, 5):
        assert outcome(finish(Run.open(tmp_path / f"copy-{number}")).folder) == outcome(example.folder)


def test_left_after_every_round(tmp_path, example):
    folder = left(tmp_path / "run", 1).folder
    while not (run := Run.open(folder)).finished:
        with run:
            forward(run, 1)
    run.close()
    assert outcome(folder) == outcome(example.folder)
    resumed = json.loads((folder / "environment.json").read_text())["resumed"]
    assert [entry["round"] for entry in resumed] == [1, 2, 3]


def test_a_finished_run_stays_as_it_is(tmp_path):
    run = whole(tmp_path / "run")
    before = outcome(run.folder)
    again = Run.open(run.folder)
    assert again.finished
    assert list(again.rounds()) == []
    again.close()
    assert outcome(run.folder) == before


def test_torn_lines_behind_the_last_checkpoint_are_cut_off(tmp_path, example):
    left(tmp_path / "run", 2)
    for name in ("rounds", "clients", "layers"):
        with (tmp_path / "run" / f"{name}.jsonl").open("a") as file:
            file.write('{"round":3,"client":0}\n{"round":3,"cli')
    assert outcome(finish(Run.open(tmp_path / "run")).folder) == outcome(example.folder)


def test_a_run_goes_on_from_the_previous_checkpoint_when_the_newest_is_damaged(tmp_path, example):
    folder = left(tmp_path / "run", 3).folder
    damage(folder / "checkpoint" / "000003")
    run = Run.open(folder)
    assert run.progress.t == 2
    assert len(run.notes) == 2
    assert "000003' is damaged" in run.notes[0]
    assert run.notes[1] == "continuing from the previous checkpoint, after round 2"
    assert outcome(finish(run).folder) == outcome(example.folder)
    assert len(list((folder / "checkpoint").glob("damaged-000003-*"))) == 1


def test_a_run_begins_again_when_all_checkpoints_are_damaged(tmp_path, example):
    folder = left(tmp_path / "run", 3).folder
    for generation in ("000002", "000003"):
        damage(folder / "checkpoint" / generation)
    run = Run.open(folder)
    assert (run.progress.t, run.history) == (0, [])
    assert run.notes[2] == "continuing from the beginning"
    (aside,) = folder.glob("aside-*")
    assert run.notes[3:] == [f"the previous lines are kept in '{aside.name}'"]
    assert (aside / "rounds.jsonl").read_bytes().count(b"\n") == 3
    assert outcome(finish(run).folder) == outcome(example.folder)
    assert len(list((folder / "checkpoint").glob("damaged-*"))) == 2


def test_an_error_inside_a_round_loses_no_round_before_it(tmp_path, monkeypatch, example):
    run = Run.create(made("run.checkpoint=4"), tmp_path / "run")
    forward(run, 2)
    monkeypatch.setattr(type(run.trial), "round", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        finish(run)
    monkeypatch.undo()
    run = Run.open(tmp_path / "run")
    assert run.progress.t == 2
    assert outcome(finish(run).folder) == outcome(example.folder)


def test_a_disk_that_refuses_is_said_and_the_run_can_go_on_later(tmp_path, monkeypatch, example):
    run = Run.create(made("run.checkpoint=2"), tmp_path / "run")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    forward(run, 3)
    monkeypatch.setattr(checkpoint, "save_file", refuse)
    with pytest.raises(RunError, match=r"cannot save the checkpoint .*000004': No space left on device"):
        finish(run)
    monkeypatch.undo()
    run = Run.open(tmp_path / "run")
    assert run.progress.t == 2
    assert outcome(finish(run).folder) == outcome(example.folder)


# Refused


def test_only_one_process_works_in_a_directory(tmp_path):
    with Run.create(made(), tmp_path / "run") as run:
        for _ in range(2):
            with pytest.raises(BusyError, match=r"^another process is writing to '.*run'"):
                Run.open(run.folder)
        forward(run, 1)
    Run.open(run.folder).close()


def test_a_changed_configuration_is_refused_by_key_and_values(tmp_path):
    folder = left(tmp_path / "run", 1).folder
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.05", "lr = 0.06"))
    before = everything_in(folder)
    with pytest.raises(RunError, match=r"config.toml' was changed: train.lr was 0.05 and is 0.06;"):
        Run.open(folder)
    assert everything_in(folder) == before
    config.write_text(config.read_text().replace("lr = 0.06", "lr = 0.05"))
    Run.open(folder).close()


def without_split(folder):
    """The directory as it was written before a configuration said how clients' samples are split."""
    config = folder / "config.toml"
    config.write_text("".join(line for line in config.read_text().splitlines(True) if not line.startswith("split =")))

    def older(value):
        del value["identity"]["config"]["data"]["split"]
        return value

    edit(folder / "environment.json", older)


def test_a_run_that_does_not_say_how_it_is_split_is_split_as_it_was(tmp_path):
    reference = whole(tmp_path / "whole", "data.split=random")
    left(tmp_path / "run", 2, "data.split=random")
    without_split(tmp_path / "run")
    assert read_run(tmp_path / "run")[1].t == 2
    again = finish(Run.open(tmp_path / "run"))
    assert again.experiment.data.split == "random"
    assert outcome(again.folder) == outcome(reference.folder)
    left(tmp_path / "new", 2)
    without_split(tmp_path / "new")
    with pytest.raises(RunError, match=r"the data of '.*new' is not what the run began with"):
        Run.open(tmp_path / "new")


def test_a_comparison_that_does_not_say_how_it_is_split_is_split_as_it_was(tmp_path):
    folder = tmp_path / "compare"
    made = Comparison.create(folder, with_settings(Experiment(), [*TINY, "data.split=random"]), ["fedavg"], 1, {})
    (member,) = made.members()
    finish(member.run())
    file = folder / "compare.toml"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("split =")))
    without_split(member.folder)
    (again,) = Comparison.open(folder).members()
    assert again.experiment.data.split == "random"
    assert again.run().finished


@pytest.mark.parametrize("call", [Run.open, read_run])
def test_changed_data_is_refused(tmp_path, call):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((40, 3)), "y": rng.integers(0, 2, 40), "client": np.arange(40) % 2}
    np.savez(tmp_path / "own.npz", **arrays)
    settings = (f"data.name={tmp_path}/own.npz", "data.partition=auto", "data.clients=2", "train.batch=5")
    folder = left(tmp_path / "run", 1, *settings).folder
    Run.open(folder).close()
    arrays["x"][0, 0] += 1e-3
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(RunError, match=r"the data of '.*run' is not what the run began with"):
        call(folder)


def test_changed_initial_weights_are_refused(tmp_path):
    model = build("mlp", shape=(1, 8, 8), classes=10, hidden=[8])
    save_weights(model, tmp_path / "start.safetensors")
    folder = left(tmp_path / "run", 1, f"model.weights={tmp_path}/start.safetensors").folder
    Run.open(folder).close()
    torch.nn.init.zeros_(model.fc.bias)
    save_weights(model, tmp_path / "start.safetensors")
    with pytest.raises(RunError, match=r"the model of '.*run' is not what the run began with"):
        Run.open(folder)


def test_files_are_named_in_full_so_that_a_run_is_resumed_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("own.npz", x=rng.standard_normal((40, 3)), y=rng.integers(0, 2, 40))
    left(Path("run"), 1, "data.name=own.npz", "data.clients=2", "train.batch=5")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert finish(Run.open(Path("../run"))).finished


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder", "half a run"])
def test_what_is_not_a_run_is_not_opened(tmp_path, what):
    folder = tmp_path / "run"
    if what == "a file":
        folder.write_text("")
    elif what != "nothing":
        folder.mkdir()
    if what == "half a run":
        (folder / "config.toml").write_text("")
    for call in (Run.open, read_run):
        with pytest.raises(RunError, match=r"run' is not a run directory"):
            call(folder)
    assert not is_run(folder)


def test_an_existing_run_is_not_written_over(tmp_path):
    folder = left(tmp_path / "run", 1).folder
    before = everything_in(folder)
    with pytest.raises(RunError, match=r"already holds a run: continue it with 'strata resume .*run'"):
        Run.create(made(), folder)
    assert everything_in(folder) == before


@pytest.mark.parametrize("what", ["a file", "a folder with a file"])
def test_anything_else_that_exists_is_not_written_over(tmp_path, what):
    path = tmp_path / "thesis"
    file = path
    if what == "a folder with a file":
        path.mkdir()
        file = path / "chapter"
    file.write_text("years of work")
    before = everything_in(tmp_path)
    with pytest.raises(RunError, match=r"exists and is not (empty|a folder): choose another --out"):
        Run.create(made(), path)
    assert everything_in(tmp_path) == before


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "run").mkdir()
    assert whole(tmp_path / "run").finished


def test_an_experiment_that_does_not_fit_leaves_no_directory(tmp_path):
    with pytest.raises(UnknownNameError, match="conv9"):
        Run.create(made("algorithm.personal=conv9"), tmp_path / "runs" / "first")
    assert os.listdir(tmp_path) == []


def test_a_shortened_journal_is_refused(tmp_path):
    folder = left(tmp_path / "run", 2).folder
    os.truncate(folder / "clients.jsonl", 100)
    with pytest.raises(RunError, match=r"clients.jsonl' was cut: it holds 100 bytes"):
        Run.open(folder)


def test_a_changed_environment_is_noted(tmp_path):
    folder = left(tmp_path / "run", 1).folder
    edit(folder / "environment.json", lambda _: {"torch": "1.0"})
    with Run.open(folder) as run:
        assert run.notes == [
            f"not bit-identical with a run that was never interrupted: torch 1.0 → {torch.__version__}"
        ]
    resumed = json.loads((folder / "environment.json").read_text())["resumed"]
    assert resumed[-1]["changed"] == [f"torch 1.0 → {torch.__version__}"]


# Evaluation and the end


def test_new_clients_never_take_part_and_are_evaluated(tmp_path):
    run = whole(tmp_path / "run", "data.clients=6", "data.new_clients=2")
    assert set(run.progress.clients) == {0, 1, 2, 3}
    for line in lines(run.folder, "rounds"):
        assert line["cohort"] == 4
        stages = {key for key in line if key.startswith("new.") and key.endswith(".accuracy")}
        assert {f"new.test.{stage}.accuracy" for stage in ("received", "trained", "deployed")} <= stages
    clients = lines(run.folder, "clients")
    assert {line["client"] for line in clients if line.get("new")} == {4, 5}
    assert {line["client"] for line in clients if "new" not in line} == {0, 1, 2, 3}


def test_new_clients_leave_no_trace_in_what_the_others_learn(tmp_path):
    x, y, client = np.linspace(0, 1, 180).reshape(60, 3), np.arange(60) % 2, np.repeat([0, 1, 2], 20)
    runs = []
    for shift in (0, 5):
        np.savez(tmp_path / f"{shift}.npz", x=x + shift * (client == 2)[:, None], y=y, client=client)
        settings = (f"data.name={tmp_path}/{shift}.npz", "data.partition=auto", "data.clients=3", "train.batch=5")
        runs.append(whole(tmp_path / f"run-{shift}", *settings, "data.new_clients=1"))
    first, second = (outcome(run.folder) for run in runs)
    assert first["state"] == second["state"]
    assert first["clients"] != second["clients"]


def test_evaluation_every_so_many_rounds_and_at_the_end(tmp_path):
    run = whole(tmp_path / "run", "run.rounds=5", "evaluate.every=2")
    assert [line["round"] for line in run.history if "test.deployed.accuracy" in line] == [2, 4, 5]
    assert sorted({line["round"] for line in lines(run.folder, "clients")}) == [2, 4, 5]
    assert {line["round"] for line in lines(run.folder, "layers")} == {1, 2, 3, 4, 5}


def test_evaluation_does_not_change_what_is_learned(tmp_path, example):
    run = whole(tmp_path / "run", "evaluate.every=4", "evaluate.clients=1")
    for name, tensor in example.progress.tensors().items():
        assert torch.equal(tensor, run.progress.tensors()[name])


def test_a_sample_of_clients_stays_the_same(tmp_path):
    settings = ("data.clients=8", "evaluate.clients=3", "run.participation=0.5")
    left(tmp_path / "run", 2, *settings)
    run = finish(Run.open(tmp_path / "run"))
    by_round = {t: [line["client"] for line in lines(run.folder, "clients") if line["round"] == t] for t in range(1, 5)}
    assert len(set(by_round[1])) == 3
    assert all(ids == by_round[1] for ids in by_round.values())
    other = whole(tmp_path / "other", *settings, "algorithm.name=fedavg")
    assert [line["client"] for line in lines(other.folder, "clients")][:3] == by_round[1]


@pytest.mark.parametrize(
    ("settings", "rounds", "says"),
    [
        (("stop.target=0.01", "evaluate.every=2"), 2, "reached the target 1.0%"),
        (("stop.patience=2", "stop.margin=1.0"), 3, "no gain above 1.000 in 2 evaluated rounds"),
    ],
)
def test_a_run_that_stops_early_is_finished_and_stays_so(tmp_path, settings, rounds, says):
    run = whole(tmp_path / "run", "run.checkpoint=0", *settings)
    assert (run.progress.t, len(lines(run.folder, "rounds"))) == (rounds, rounds)
    assert says in run.stopped
    with Run.open(run.folder) as again:
        assert again.finished
        assert again.stopped == run.stopped
        assert again.progress.t == rounds
        assert list(again.rounds()) == []


def test_a_target_that_is_not_reached_does_not_stop(tmp_path):
    assert whole(tmp_path / "run", "stop.target=1.0").stopped is None


def test_the_finish_of_phases_is_one_more_round_with_everybody(tmp_path):
    run = whole(tmp_path / "run", *WAYS["phases"])
    assert [line["phase"] for line in run.history] == [0, 0, 1, 1, 2]
    assert [line["cohort"] for line in run.history] == [2, 2, 2, 2, 4]


def test_interrupted_while_a_round_is_committed_it_counts_whole_or_not_at_all(tmp_path, monkeypatch, example):
    run = Run.create(made("run.checkpoint=4"), tmp_path / "run")
    append = Journal.append

    def interrupted(journal, lines):
        append(journal, lines)
        if journal.path.name == "layers.jsonl" and len(run.history) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "append", interrupted)
    with pytest.raises(KeyboardInterrupt), run:
        forward(run, 4)
    monkeypatch.undo()
    run = Run.open(tmp_path / "run")
    assert (run.progress.t, len(run.history)) == (1, 1)
    assert outcome(finish(run).folder) == outcome(example.folder)


def test_a_signal_waits_until_a_checkpoint_is_whole(tmp_path):
    events = []
    before = signal.signal(signal.SIGINT, lambda *_: events.append("signal"))
    try:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            events.append("saved")
    finally:
        signal.signal(signal.SIGINT, before)
    assert events == ["saved", "signal"]


def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_damaged(tmp_path, monkeypatch):
    folder = left(tmp_path / "run", 2).folder

    def refuse(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint, "_file_digest", refuse)
    with pytest.raises(RunError, match=r"cannot read .*000002': Input/output error"):
        Run.open(folder)
    monkeypatch.undo()
    assert Run.open(folder).notes == []


def test_the_configuration_is_complete(tmp_path):
    run = Run.create(made(), tmp_path / "run")
    run.close()
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["algorithm"] == {
        "name": "fedper",
        "personal": "head",
        "initial": "common",
        "finetune": 0,
        "linear_base": False,
    }
    assert config["model"] == {"name": "mlp", "hidden": [8], "norm": False}


def test_a_setting_that_came_later_had_its_default(tmp_path, example):
    folder = left(tmp_path / "run", 2).folder
    about = json.loads((folder / "environment.json").read_text())
    del about["identity"]["config"]["data"]["new_clients"]
    (folder / "environment.json").write_text(json.dumps(about))
    assert outcome(finish(Run.open(folder)).folder) == outcome(example.folder)


def test_batches_must_fit_somebody_who_takes_part(tmp_path):
    x = np.zeros((60, 3), np.float32)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(60) % 2, client=np.repeat([0, 1, 2], [10, 10, 40]))
    settings = ("data.new_clients=1", "train.batch=20", "train.drop_last=true", "data.partition=auto", "data.clients=3")
    with pytest.raises(StrataError, match="leaves nothing to train on: the largest client has 6"):
        Run.create(made(f"data.name={tmp_path / 'mine.npz'}", *settings), tmp_path / "run")
