"""A run directory is data: links, pipes, edited journals, copied checkpoints and forged numbers are one line each."""

import json
import os
import shutil
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file, save_file

from stratafl.config.experiment import Experiment, with_settings
from stratafl.config.migrations import FORMAT
from stratafl.errors import DamagedError, RunError, StrataError
from stratafl.report.outcome import read_outcome
from stratafl.report.study import gather
from stratafl.runs import Comparison, Run, read_run
from stratafl.runs.checkpoint import _body_digest, _file_digest

TINY = ("run.rounds=4", "data.clients=3", "data.partition=iid", "model.hidden=[2]", "train.batch=400")
JOURNALS = ("rounds.jsonl", "clients.jsonl", "layers.jsonl")


def begun(folder, *settings):
    return Run.create(with_settings(Experiment(), [*TINY, "run.checkpoint=2", *settings]), folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three of four rounds, of which two were saved, as a killed process leaves them; in RAM and on disk."""
    made = {}
    for store in ("ram", "disk"):
        run = begun(tmp_path_factory.mktemp(store) / "run", f"run.store={store}")
        list(islice(run.rounds(), 3))
        os.close(run._lock)
        made[store] = run.folder
    return made


@pytest.fixture(params=["ram"])
def folder(request, runs, tmp_path):
    return shutil.copytree(runs[request.param], tmp_path / "run")


on_disk = pytest.mark.parametrize("folder", ["disk"], indirect=True)


def refusal(call, *given):
    with pytest.raises(StrataError) as found:
        call(*given)
    assert "\n" not in str(found.value)
    return str(found.value)


def edit(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def forge(generation, manifest=None, tensors=None):
    """Change a generation and compute its checksums anew."""
    body = json.loads((generation / "manifest.json").read_text())
    del body["manifest_sha256"]
    if tensors is not None:
        state = load_file(generation / "state.safetensors")
        tensors(state)
        save_file(state, generation / "state.safetensors")
        size = (generation / "state.safetensors").stat().st_size
        body |= {"sha256": _file_digest(generation / "state.safetensors"), "bytes": size}
    if manifest is not None:
        manifest(body)
    (generation / "manifest.json").write_text(json.dumps({**body, "manifest_sha256": _body_digest(body)}))


# Links and other kinds of files


@on_disk
@pytest.mark.parametrize("kind", ["link", "second name"])
@pytest.mark.parametrize("name", [*JOURNALS, "memories.bin"])
def test_no_link_is_followed_when_writing(folder, tmp_path, name, kind):
    canary = tmp_path / "canary"
    shutil.copyfile(folder / name, canary)
    with canary.open("ab") as file:
        file.write(b"years of work")
    before = canary.read_bytes()
    (folder / name).unlink()
    if kind == "link":
        (folder / name).symlink_to(canary)
    else:
        os.link(canary, folder / name)
    assert f"{name}' " in refusal(Run.open, folder)
    assert canary.read_bytes() == before


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint/000002", "checkpoint/000002/manifest.json"])
def test_no_link_is_followed_to_a_checkpoint(folder, tmp_path, name):
    (folder / name).rename(tmp_path / "canary")
    (folder / name).symlink_to(tmp_path / "canary")
    before = sorted(os.listdir(tmp_path / "canary")) if (tmp_path / "canary").is_dir() else None
    refusal(read_run, folder)
    if name == "checkpoint":
        assert "checkpoint' " in refusal(Run.open, folder)
    else:
        run = Run.open(folder)  # a damaged one costs what it held
        os.close(run._lock)
        assert run.progress.t == 0
    assert before is None or sorted(os.listdir(tmp_path / "canary")) == before


@pytest.mark.parametrize("name", [*JOURNALS, "config.toml", "environment.json", "checkpoint/000002/state.safetensors"])
def test_a_pipe_is_one_line_and_nobody_waits(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    for call in (
        (read_run, Run.open) if name == "rounds.jsonl" else (read_run,) if "checkpoint" in name else (Run.open,)
    ):
        refusal(call, folder)
    if "checkpoint" not in name:
        refusal(gather, [folder])


def test_a_file_without_end_is_not_read(folder):
    os.truncate(folder / "config.toml", 10 << 30)
    assert "config.toml' is too large" in refusal(Run.open, folder)
    os.truncate(folder / "environment.json", 10 << 30)
    assert "environment.json' is too large" in refusal(read_run, folder)


def test_values_nested_without_end_are_one_line(folder):
    (folder / "environment.json").write_text("[" * 200_000)
    assert "nested too deeply" in refusal(Run.open, folder)


def test_what_loggers_write_does_not_leave_the_run(folder, tmp_path):
    (folder / "tensorboard").symlink_to(tmp_path)
    assert "tensorboard' " in refusal(Run.open, folder)


def test_a_comparison_does_not_leave_its_folder(tmp_path):
    base = with_settings(Experiment(), TINY)
    made = Comparison.create(tmp_path / "mine", base, ["fedavg"], 1, {})
    (tmp_path / "theirs").mkdir()
    (tmp_path / "mine" / "fedavg").symlink_to(tmp_path / "theirs")
    assert f"'{tmp_path}/mine/fedavg' " in refusal(next(made.members()).run)
    assert os.listdir(tmp_path / "theirs") == []


# A directory that is moved


@pytest.mark.parametrize("replaced", [True, False])
def test_a_run_that_is_moved_writes_to_nobody_else(tmp_path, replaced):
    run = begun(tmp_path / "run")
    rounds = run.rounds()
    next(rounds)
    (tmp_path / "run").rename(tmp_path / "moved")
    if replaced:
        shutil.copytree(tmp_path / "moved", tmp_path / "run")
    there = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=f"'{tmp_path}/run'"), run:
        next(rounds)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == there
    Run.open(tmp_path / "moved").close()


# Journals


@pytest.mark.parametrize("name", JOURNALS)
def test_an_edited_journal_is_neither_resumed_nor_reported(folder, name):
    line = json.loads((folder / name).read_text().splitlines()[0])
    key = "bytes.down" if "layers" in name else "test.deployed.accuracy"
    edit(folder / name, f'"{key}":{json.dumps(line[key])}', f'"{key}":0.939')
    for call in (Run.open, lambda folder: gather([folder])):
        assert f"{name}' was changed: the line" in refusal(call, folder)
    if name == "rounds.jsonl":
        assert "was changed" in refusal(read_run, folder)


def test_a_line_that_was_edited_after_the_newest_checkpoint_is_not_reported_and_is_repeated(folder):
    edit(folder / "rounds.jsonl", '{"round":3,', '{"round":3,"note":1,')
    assert 'was changed: the line \'{"round":3,' in refusal(read_outcome, folder)
    with Run.open(folder) as run:
        list(run.rounds())
    assert len(read_outcome(folder).lines) == 4


def test_lines_that_are_missing_are_said(folder):
    text = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(text[:1]))
    assert "was cut" in refusal(read_outcome, folder)


def test_checksums_that_are_stripped_are_said(folder):
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    (folder / "rounds.jsonl").write_text("".join(f"{json.dumps(line | {'checksum': None})}\n" for line in lines))
    shutil.rmtree(folder / "checkpoint")
    assert "has no checksum" in refusal(read_outcome, folder)


def test_a_run_of_the_first_format_is_read_resumed_and_said(folder):
    for name in JOURNALS:
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        plain = [{key: value for key, value in line.items() if key != "checksum"} for line in lines]
        texts = [json.dumps(line, separators=(",", ":")) + "\n" for line in plain]
        (folder / name).write_text("".join(texts))
        saved = len("".join(text for line, text in zip(plain, texts, strict=True) if line["round"] <= 2))

        def as_then(body, name=name, saved=saved):
            body["journals"][name.removesuffix(".jsonl")] = saved
            body.pop("checksums", None)

        forge(folder / "checkpoint" / "000002", as_then)
    edit(folder / "environment.json", f'"format": {FORMAT}', '"format": 1')
    edit(folder / "config.toml", f"format = {FORMAT}\n", "")
    assert read_run(folder)[1].t == 2
    with Run.open(folder) as run:
        list(run.rounds())
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert ["checksum" in line for line in lines] == [False, False, True, True]
    assert len(read_outcome(folder).lines) == 4
    assert not read_outcome(folder).checked
    edit(folder / "rounds.jsonl", '{"round":3,', '{"round":3,"note":1,')
    assert "was changed" in refusal(read_outcome, folder)


# Checkpoints


def test_a_copied_checkpoint_is_the_one_that_its_manifest_means(folder, caplog):
    shutil.copytree(folder / "checkpoint" / "000002", folder / "checkpoint" / "000999")
    assert read_run(folder)[1].t == 2
    assert "000999'" in caplog.text
    run = Run.open(folder)
    os.close(run._lock)
    assert run.progress.t == 2


def lose(name):
    return lambda state: state.pop(name)


def put(name, tensor):
    return lambda state: state.update({name: tensor})


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        (lose("t"), "'t' is missing"),
        (lose("server/theta/fc1.bias"), "'server/theta/fc1.bias' is missing"),
        (put("server/theta/fc1.bias", torch.zeros(3)), r"is torch.float32 \[3\], not torch.float32 \[2\]"),
        (put("server/theta/fc1.bias", torch.zeros(2).double()), "is torch.float64"),
        (put("server/more", torch.zeros(2)), "'server/more' is not part of it"),
        (put("client/3/theta/fc.bias", torch.zeros(10)), "there is no client 3: the 3 clients are numbered from 0"),
        (put("client/x/theta/fc.bias", torch.zeros(10)), "there is no client 'x'"),
        (put("client/0/theta/fc.bias", torch.zeros(9)), "client 0: 'theta/fc.bias' is"),
        (put("memories/slots", torch.zeros(3).long()), "'memories/sums' is missing"),
        (put("t", torch.tensor(1)), "is from round 1, not from round 2"),
    ],
)
def test_a_forged_state_is_refused_in_one_line(folder, tensors, says):
    forge(folder / "checkpoint" / "000002", tensors=tensors)
    with pytest.raises(RunError, match=says):
        read_run(folder)
    run = Run.open(folder)
    os.close(run._lock)
    assert run.progress.t == 0


@on_disk
@pytest.mark.parametrize("slot", [-2, 10**9, 2**62, -(2**63), 1])
def test_a_forged_slot_is_refused_in_one_line(folder, slot):
    def change(state):
        state["memories/slots"][:2] = slot

    forge(folder / "checkpoint" / "000002", tensors=change)
    assert "000002' " in refusal(read_run, folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("round", 999),
        ("round", None),
        ("round", 2.5),
        ("journals", {}),
        ("journals", []),
        ("sha256", None),
        ("bytes", -1),
    ],
)
def test_a_forged_manifest_is_refused_in_one_line(folder, key, value):
    forge(folder / "checkpoint" / "000002", lambda body: body.update({key: value}))
    assert "000002' " in refusal(read_run, folder)


@pytest.mark.parametrize("length", [10**18, 0, 5])
def test_a_forged_length_is_refused_in_one_line(folder, length):
    forge(folder / "checkpoint" / "000002", lambda body: body["journals"].update(rounds=length))
    for call in (read_run, Run.open):
        with pytest.raises(DamagedError, match=r"rounds.jsonl' was (cut|changed)"):
            call(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("resumed", 3), ("resumed", [3]), ("identity", []), ("tuning", [1]), ("format", True), ("clients", "many")],
)
def test_an_environment_that_cannot_be_meant_is_one_line(folder, key, value):
    about = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**about, key: value}))
    refusal(Run.open, folder)
    refusal(read_outcome, folder)
