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
from stored_runs import TINY, abandoned, experiment, finish, finished, left, whole

from stratafl.algorithms import fedavg, fedper
from stratafl.algorithms.local import alone
from stratafl.config.assemble import completed
from stratafl.config.experiment import TABLES, Experiment, load_experiment, with_settings
from stratafl.config.migrations import FORMAT
from stratafl.core.phased import Phase, Phased
from stratafl.core.records import keys_of
from stratafl.errors import BusyError, RunError, StrataError, UnknownNameError
from stratafl.models import build, save_weights
from stratafl.runs import Run, checkpoint, is_run, read_run
from stratafl.runs.comparison import Comparison
from stratafl.runs.json_files import Journal
from stratafl.runs.run import uninterrupted


def forward(run, rounds):
    return list(islice(run.rounds(), rounds))


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
def example():
    return finished()


def test_the_directory_holds_what_is_documented(example):
    names = {"config.toml", "environment.json", "class_counts.json", "preprocessing.json", "checkpoint"}
    names |= {"predictions.safetensors"}
    journals = {"rounds.jsonl", "clients.jsonl", "layers.jsonl"}
    assert {path.name for path in example.iterdir()} == names | journals
    assert sorted(os.listdir(example / "checkpoint")) == ["000003", "000004"]
    assert is_run(example)


def test_the_configuration_written_is_complete_and_means_the_same(example):
    stored = load_experiment(example / "config.toml")
    definite = ["evaluate.metric=accuracy", "evaluate.average=samples", "evaluate.better=larger"]
    assert stored == completed(with_settings(experiment(), definite))
    written = tomllib.loads((example / "config.toml").read_text())
    assert set(written) == {"format", *TABLES}
    for name, table in TABLES.items():
        given = getattr(stored, name)
        known = {name for name, key in keys_of(table).items() if getattr(given, key.field) is not None}
        assert set(written[name]) == known | set(getattr(given, "options", {}))
    defaults = {"personal": "head", "initial": "common", "finetune": 0, "linear_base": False}
    assert written["algorithm"] == {"name": "fedper", **defaults}
    assert written["model"] == {"name": "mlp", "frozen": "none", "hidden": [8], "norm": False}


def test_the_environment_says_what_a_reader_needs(example):
    environment = json.loads((example / "environment.json").read_text())
    assert environment["format"] == FORMAT
    assert environment["torch"] == torch.__version__
    assert (environment["seed"], environment["clients"], environment["columns"]) == (0, 4, 64 * 8 + 8 + 8 * 10 + 10)
    assert environment["resumed"] == []


def test_one_line_per_round_client_and_layer(example):
    rounds, clients, layers = (lines(example, name) for name in ("rounds", "clients", "layers"))
    assert [line["round"] for line in rounds] == [1, 2, 3, 4]
    assert [(line["round"], line["client"]) for line in clients] == [(t, i) for t in (1, 2, 3, 4) for i in range(4)]
    assert [(line["round"], line["layer"]) for line in layers] == [(t, n) for t in (1, 2, 3, 4) for n in ("fc1", "fc")]


def test_layer_lines_have_the_bytes_that_travelled(example):
    base = 4 * 4 * (64 * 8 + 8)
    for line in lines(example, "layers"):
        assert (line["bytes.down"], line["bytes.up"]) == ((base, base) if line["layer"] == "fc1" else (0, 0))
    for line in lines(example, "rounds"):
        assert (line["bytes.down"], line["bytes.up"]) == (base, base + 4 * 8)


def test_client_lines_add_up_to_the_line_of_their_round(example):
    for line in lines(example, "rounds"):
        clients = [each for each in lines(example, "clients") if each["round"] == line["round"]]
        for place in ("validation.received", "validation.trained", "test.received", "test.trained", "test.deployed"):
            samples = np.array([each[f"{place.split('.')[0]}.samples"] for each in clients])
            shares = np.array([each[f"{place}.accuracy"] for each in clients])
            assert line[f"{place}.accuracy"] == pytest.approx((shares * samples).sum() / samples.sum())
            assert line[f"{place}.client_accuracy"] == pytest.approx(shares.mean())
            assert line[f"{place}.std"] == pytest.approx(shares.std())
            assert line[f"{place}.worst10"] == shares.min()


def test_lines_come_one_by_one_and_checkpoints_every_so_many_rounds_and_at_the_end(tmp_path):
    folder, generations = tmp_path / "run", []
    with Run.create(experiment("run.rounds=5", "run.checkpoint=2"), folder) as run:
        for number, line in enumerate(run.rounds(), 1):
            written = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
            assert written == {**line, "checksum": written["checksum"]}
            assert line["round"] == number == run.progress.t == len(run.history)
            generations.append([path.name for path in checkpoint.generations(folder / "checkpoint")])
            if number == 3:  # reading does not touch a run, nor wait for it
                before = everything_in(folder)
                _, progress, history = read_run(folder)
                assert everything_in(folder) == before
                assert (progress.t, history) == (2, run.history[:2])
    second, fourth, last = "000002", "000004", "000005"
    assert generations == [[], [second], [second], [fourth, second], [last, fourth]]
    assert run.finished
    assert run.stopped is None


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


def slow_but(fast, names):
    return [name if name == fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("way", slow_but("fedper", WAYS))
def test_a_run_that_was_left_ends_like_one_that_was_not(tmp_path, way):
    straight = finished(*WAYS[way])
    run = Run.open(left(tmp_path / "left", 2, *WAYS[way]), trust=True)
    assert (run.progress.t, len(run.history), run.notes) == (2, 2, [])
    finish(run)
    assert outcome(run.folder) == outcome(straight)
    then, now = read_run(straight, trust=True)[1].tensors(), run.progress.tensors()
    assert set(then) == set(now)
    assert all(torch.equal(then[name], now[name]) for name in then)
    assert json.loads((run.folder / "environment.json").read_text())["resumed"][0]["round"] == 2


@pytest.mark.parametrize("way", slow_but("fedper", ["fedper", "some of them, norm", "phases"]))
def test_a_run_that_was_abandoned_ends_like_one_that_was_not(tmp_path, way):
    folder = abandoned(tmp_path / "left", 3, *WAYS[way], "run.checkpoint=2")
    assert len(lines(folder, "rounds")) == 3
    run = Run.open(folder, trust=True)
    assert (run.progress.t, len(run.history), run.notes) == (2, 2, [])
    assert {line["round"] for name in ("rounds", "clients", "layers") for line in lines(folder, name)} == {1, 2}
    assert outcome(finish(run).folder) == outcome(finished(*WAYS[way]))


@pytest.mark.parametrize("rounds", slow_but(2, [2, 0]))
def test_a_run_that_was_abandoned_before_its_first_checkpoint_begins_again(tmp_path, example, rounds):
    run = Run.open(abandoned(tmp_path / "run", rounds, "run.checkpoint=3"))
    assert (run.progress.t, run.history) == (0, [])
    assert outcome(finish(run).folder) == outcome(example)


@pytest.mark.slow
def test_a_copy_of_the_folder_at_any_round_can_be_resumed(tmp_path, example):
    run = Run.create(experiment("run.checkpoint=2"), tmp_path / "run")
    for line in run.rounds():
        shutil.copytree(run.folder, tmp_path / f"copy-{line['round']}")
    run.close()
    for number in range(1, 5):
        assert outcome(finish(Run.open(tmp_path / f"copy-{number}")).folder) == outcome(example)


@pytest.mark.slow
def test_left_after_every_round(tmp_path, example):
    folder = left(tmp_path / "run", 1)
    while not (run := Run.open(folder)).finished:
        with run:
            forward(run, 1)
    run.close()
    assert outcome(folder) == outcome(example)
    resumed = json.loads((folder / "environment.json").read_text())["resumed"]
    assert [entry["round"] for entry in resumed] == [1, 2, 3]


def test_a_finished_run_stays_as_it_is(tmp_path, example):
    folder = shutil.copytree(example, tmp_path / "run")
    again = Run.open(folder)
    assert again.finished
    assert list(again.rounds()) == []
    again.close()
    assert outcome(folder) == outcome(example)


def test_torn_lines_behind_the_last_checkpoint_are_cut_off(tmp_path, example):
    folder = left(tmp_path / "run", 2)
    for name in ("rounds", "clients", "layers"):
        with (folder / f"{name}.jsonl").open("a") as file:
            file.write('{"round":3,"client":0}\n{"round":3,"cli')
    assert outcome(finish(Run.open(folder)).folder) == outcome(example)


def test_a_run_goes_on_from_the_previous_checkpoint_when_the_newest_is_damaged(tmp_path, example):
    folder = left(tmp_path / "run", 3)
    damage(folder / "checkpoint" / "000003")
    run = Run.open(folder)
    assert run.progress.t == 2
    damaged, goes_on = run.notes
    assert "000003'" in damaged
    assert goes_on.endswith(" 2")
    assert outcome(finish(run).folder) == outcome(example)
    assert len(list((folder / "checkpoint").glob("damaged-000003-*"))) == 1


def test_a_run_begins_again_when_all_checkpoints_are_damaged(tmp_path, example):
    folder = left(tmp_path / "run", 3)
    for generation in ("000002", "000003"):
        damage(folder / "checkpoint" / generation)
    run = Run.open(folder)
    assert (run.progress.t, run.history, len(run.notes)) == (0, [], 4)
    (aside,) = folder.glob("aside-*")
    assert f"'{aside.name}'" in run.notes[3]
    assert (aside / "rounds.jsonl").read_bytes().count(b"\n") == 3
    assert outcome(finish(run).folder) == outcome(example)
    assert len(list((folder / "checkpoint").glob("damaged-*"))) == 2


def test_an_error_inside_a_round_loses_no_round_before_it(tmp_path, monkeypatch, example):
    run = Run.create(experiment("run.checkpoint=4"), tmp_path / "run")
    forward(run, 2)
    monkeypatch.setattr(type(run.trial), "round", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        finish(run)
    monkeypatch.undo()
    run = Run.open(tmp_path / "run")
    assert run.progress.t == 2
    assert outcome(finish(run).folder) == outcome(example)


@pytest.mark.slow
def test_a_disk_that_refuses_is_said_and_the_run_can_go_on_later(tmp_path, monkeypatch, example):
    run = Run.create(experiment("run.checkpoint=2"), tmp_path / "run")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    forward(run, 3)
    monkeypatch.setattr(checkpoint, "save_file", refuse)
    with pytest.raises(RunError, match=r"000004': No space left"):
        finish(run)
    monkeypatch.undo()
    run = Run.open(tmp_path / "run")
    assert run.progress.t == 2
    assert outcome(finish(run).folder) == outcome(example)


# Refused


def test_only_one_process_works_in_a_directory(tmp_path):
    folder = left(tmp_path / "run", 1)
    with Run.open(folder):
        for _ in range(2):
            with pytest.raises(BusyError, match=f"'{folder}'"):
                Run.open(folder)
    Run.open(folder).close()


def test_a_changed_configuration_is_refused_by_key_and_values(tmp_path):
    folder = left(tmp_path / "run", 1)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.05", "lr = 0.06"))
    before = everything_in(folder)
    with pytest.raises(RunError, match=r"config\.toml'.* train\.lr .*0\.05 .*0\.06"):
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
    left(tmp_path / "run", 2, "data.split=random")
    without_split(tmp_path / "run")
    assert read_run(tmp_path / "run")[1].t == 2
    again = Run.open(tmp_path / "run")
    assert again.experiment.data.split == "random"
    again.close()
    left(tmp_path / "new", 2)
    without_split(tmp_path / "new")
    with pytest.raises(RunError, match=rf"data of '{tmp_path}/new'"):
        Run.open(tmp_path / "new")


def test_a_comparison_that_does_not_say_how_it_is_split_is_split_as_it_was(tmp_path):
    folder = tmp_path / "compare"
    made = Comparison.create(folder, with_settings(Experiment(), [*TINY, "data.split=random"]), ["fedavg"], 1, {})
    (member,) = made.members()
    member.run().close()
    file = folder / "compare.toml"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("split =")))
    without_split(member.folder)
    (again,) = Comparison.open(folder).members()
    assert again.experiment.data.split == "random"
    again.run().close()


@pytest.mark.parametrize("changed", ["x", "y"])
def test_changed_data_is_refused(tmp_path, changed):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((40, 3)), "y": rng.integers(0, 2, 40), "client": np.arange(40) % 2}
    np.savez(tmp_path / "own.npz", **arrays)
    settings = (f"data.name={tmp_path}/own.npz", "data.partition=auto", "data.clients=2", "train.batch=5")
    folder = left(tmp_path / "run", 1, *settings)
    Run.open(folder).close()
    if changed == "x":
        arrays["x"][0, 0] += 1e-3
    else:
        arrays["y"] = 1 - arrays["y"]
    np.savez(tmp_path / "own.npz", **arrays)
    for call in (Run.open, read_run):
        with pytest.raises(RunError, match=f"data of '{folder}'"):
            call(folder)


def test_changed_initial_weights_are_refused(tmp_path):
    model = build("mlp", shape=(1, 8, 8), classes=10, hidden=[8])
    save_weights(model, tmp_path / "start.safetensors")
    folder = left(tmp_path / "run", 1, f"model.weights={tmp_path}/start.safetensors")
    Run.open(folder).close()
    torch.nn.init.zeros_(model.fc.bias)
    save_weights(model, tmp_path / "start.safetensors")
    with pytest.raises(RunError, match=f"model of '{folder}'"):
        Run.open(folder)


def test_files_are_named_in_full_so_that_a_run_is_resumed_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("own.npz", x=rng.standard_normal((40, 3)), y=rng.integers(0, 2, 40))
    left(Path("run"), 1, "data.name=own.npz", "data.clients=2", "train.batch=5")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    Run.open(Path("../run")).close()


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
        with pytest.raises(RunError, match=f"'{folder}'.*config\\.toml"):
            call(folder)
    assert not is_run(folder)


def test_an_existing_run_is_not_written_over(tmp_path):
    folder = left(tmp_path / "run", 1)
    before = everything_in(folder)
    with pytest.raises(RunError, match=f"'strata resume {folder}'"):
        Run.create(experiment(), folder)
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
    with pytest.raises(RunError, match=f"'{path}'.*--out"):
        Run.create(experiment(), path)
    assert everything_in(tmp_path) == before


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "run").mkdir()
    Run.create(experiment(), tmp_path / "run").close()
    assert is_run(tmp_path / "run")


def test_an_experiment_that_does_not_fit_leaves_no_directory(tmp_path):
    with pytest.raises(UnknownNameError, match="conv9"):
        Run.create(experiment("algorithm.personal=conv9"), tmp_path / "runs" / "first")
    assert os.listdir(tmp_path) == []


def test_a_shortened_journal_is_refused(tmp_path):
    folder = left(tmp_path / "run", 2)
    os.truncate(folder / "clients.jsonl", 100)
    with pytest.raises(RunError, match=r"clients\.jsonl'.* 100 bytes"):
        Run.open(folder)


def test_a_changed_environment_is_noted(tmp_path):
    folder = left(tmp_path / "run", 1)
    edit(folder / "environment.json", lambda _: {"torch": "1.0"})
    with Run.open(folder) as run:
        (note,) = run.notes
        assert f": torch 1.0 → {torch.__version__}" in note
    resumed = json.loads((folder / "environment.json").read_text())["resumed"]
    assert resumed[-1]["changed"] == [f"torch 1.0 → {torch.__version__}"]


# Evaluation and the end


@pytest.mark.slow
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


@pytest.mark.slow
def test_new_clients_leave_no_trace_in_what_the_others_learn(tmp_path):
    x, y, client = np.linspace(0, 1, 180).reshape(60, 3), np.arange(60) % 2, np.repeat([0, 1, 2], 20)
    runs = []
    for shift in (0, 5):
        np.savez(tmp_path / f"{shift}.npz", x=x + shift * (client == 2)[:, None], y=y, client=client)
        settings = (f"data.name={tmp_path}/{shift}.npz", "data.partition=auto", "data.clients=3", "run.rounds=2")
        runs.append(whole(tmp_path / f"run-{shift}", *settings, "data.new_clients=1"))
    first, second = (outcome(run.folder) for run in runs)
    assert first["state"] == second["state"]
    assert first["clients"] != second["clients"]


def test_evaluation_every_so_many_rounds_and_at_the_end(tmp_path):
    run = whole(tmp_path / "run", "evaluate.every=3", "evaluate.clients=1")
    assert [line["round"] for line in run.history if "test.deployed.accuracy" in line] == [3, 4]
    assert sorted({line["round"] for line in lines(run.folder, "clients")}) == [3, 4]
    assert {line["round"] for line in lines(run.folder, "layers")} == {1, 2, 3, 4}
    for name, tensor in read_run(finished())[1].tensors().items():  # it does not change what is learned
        assert name.startswith("trained/") or torch.equal(tensor, run.progress.tensors()[name])


def test_a_sample_of_clients_stays_the_same(tmp_path):
    settings = ("data.clients=8", "evaluate.clients=3", "run.participation=0.5", "run.rounds=2")
    run = finish(Run.open(left(tmp_path / "run", 1, *settings)))
    by_round = {t: [line["client"] for line in lines(run.folder, "clients") if line["round"] == t] for t in (1, 2)}
    assert len(set(by_round[1])) == 3
    assert by_round[2] == by_round[1]
    other = left(tmp_path / "other", 1, *settings, "algorithm.name=fedavg")
    assert [line["client"] for line in lines(other, "clients")] == by_round[1]


@pytest.mark.parametrize(
    ("settings", "rounds", "limit"),
    [
        (("stop.target=0.01", "evaluate.every=2"), 2, "1.0%"),
        (("stop.patience=2", "stop.margin=1.0"), 3, "1.000"),
    ],
)
def test_a_run_that_stops_early_is_finished_and_stays_so(tmp_path, settings, rounds, limit):
    run = whole(tmp_path / "run", "run.checkpoint=0", *settings)
    assert (run.progress.t, len(lines(run.folder, "rounds"))) == (rounds, rounds)
    assert limit in run.stopped
    with Run.open(run.folder) as again:
        assert again.finished
        assert again.stopped == run.stopped
        assert again.progress.t == rounds
        assert list(again.rounds()) == []


def test_the_finish_of_phases_is_one_more_round_with_everybody(tmp_path):
    run = whole(tmp_path / "run", *WAYS["phases"], "evaluate.every=9")
    assert [line["phase"] for line in run.history] == [0, 0, 1, 1, 2]
    assert [line["cohort"] for line in run.history] == [2, 2, 2, 2, 4]


def test_interrupted_while_a_round_is_committed_it_counts_whole_or_not_at_all(tmp_path, monkeypatch, example):
    run = Run.create(experiment("run.checkpoint=4"), tmp_path / "run")
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
    assert outcome(finish(run).folder) == outcome(example)


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
    folder = left(tmp_path / "run", 2)

    def refuse(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint, "_file_digest", refuse)
    with pytest.raises(RunError, match=r"000002': Input/output error"):
        Run.open(folder)
    monkeypatch.undo()
    assert Run.open(folder).notes == []


def test_a_setting_that_came_later_had_its_default(tmp_path):
    folder = left(tmp_path / "run", 2)
    about = json.loads((folder / "environment.json").read_text())
    del about["identity"]["config"]["data"]["new_clients"]
    (folder / "environment.json").write_text(json.dumps(about))
    Run.open(folder).close()


def test_batches_must_fit_somebody_who_takes_part(tmp_path):
    x = np.zeros((60, 3), np.float32)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(60) % 2, client=np.repeat([0, 1, 2], [10, 10, 40]))
    settings = ("data.new_clients=1", "train.batch=20", "train.drop_last=true", "data.partition=auto", "data.clients=3")
    with pytest.raises(StrataError, match=r"largest client has 6\b"):
        Run.create(experiment(f"data.name={tmp_path / 'mine.npz'}", *settings), tmp_path / "run")
