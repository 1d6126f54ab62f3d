"""Several processes are one: the same states, the same lines, one error, on one machine and over a network."""

import json
import os
import signal
import subprocess
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
import torch
from rank_helpers import STRATA, TORCHRUN, ended, ranks, started
from rank_worker import EVERY, SOME, far_away
from safetensors.torch import load_file
from thread_ranks import by_two_ranks

from processes import wait_until
from simulations import built, finished
from stratafl.algorithms import fedavg
from stratafl.cli import compare_command
from stratafl.cli import main as strata
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Parcel
from stratafl.core.state import flatten
from stratafl.errors import RankError, RunError, WireError
from stratafl.evaluation.trial import Trial
from stratafl.execute import Distributed, Matrix
from stratafl.execute.packing import from_buffer, pack, to_buffer, value_of, words
from stratafl.execute.ranks import Ranks, world_size
from stratafl.execute.simulated_time import SimulatedTime
from stratafl.testing import Case, difference
from stratafl.testing.watch import Tampered, claiming, not_finite

pytestmark = pytest.mark.long
SETTINGS = (
    "model.name=mlp",
    "model.hidden=[8]",
    "model.norm=true",
    "data.clients=7",
    "data.new_clients=1",
    "train.batch=40",
    "run.rounds=30",
    "run.participation=0.7",
    "run.checkpoint=1",
    "evaluate.lab=10",
)


def command(*settings):
    return (*STRATA, "run", *(part for setting in settings for part in ("--set", setting)))


RUN = command(*SETTINGS)
# A new client is scored after training it for a round, by one of the ranks: in round 1 as if it were round 2.
FAILING = (*command(*(s for s in SETTINGS if "new_clients" not in s)), "--algorithm", "rank_failing:failing")


@pytest.mark.parametrize(
    ("which", "methods"),
    [
        pytest.param("some", SOME, marks=pytest.mark.slow),
        pytest.param("all", EVERY, marks=pytest.mark.nightly),
    ],
)
def test_methods_are_the_same_by_two_processes(tmp_path, which, methods):
    done = ended(ranks(2, "-m", "rank_worker", tmp_path / "found.json", which))
    assert [each.code for each in done] == [0, 0], done
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(methods) < set(found)
    for name, gap in found.items():
        assert gap["server"] <= 1e-10, name
        assert gap["clients"] <= 1e-10, name
        assert gap["between"] == 0, name
        first, second = map(set, gap["held"])
        assert not first & second, name
    assert len(found["local"]["held"][0]) == len(found["local"]["held"][1]) == 3
    assert sum(map(len, found["fedlag, alone"]["held"])) < 6
    assert sorted(client for held in found["fedper, one too long"]["held"] for client in held) == [0, 1, 3, 4, 5]


# The command


def lines(folder, name):
    """A journal, without what depends on the clock."""
    read = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if not key.startswith(("seconds.", "checksum"))} for line in read
    ]


def assert_same(folder, expected):
    """The same lines and the same state, up to the order of sums (in float32, which nearly always rounds it away)."""
    for name in ("rounds", "clients", "layers"):
        found, wanted = lines(folder, name), lines(expected, name)
        assert len(found) == len(wanted) > 0
        for one, other in zip(found, wanted, strict=True):
            assert set(one) == set(other)
            for key, value in other.items():
                close = isinstance(value, float)
                assert one[key] == (pytest.approx(value, rel=1e-5, abs=1e-6) if close else value), (name, key)
    states = [load_file(max((f / "checkpoint").glob("[0-9]*")) / "state.safetensors") for f in (folder, expected)]
    assert difference(*states) <= 1e-5
    assert any(name.startswith("client/") for name in states[0])


def alone_in(folder, *more):
    """The run in this process."""
    assert strata([*map(str, RUN[2:]), *more, "--algorithm", "fedper", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return alone_in(tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.slow
def test_torchrun_writes_what_one_process_writes(tmp_path):
    torchrun, few = (*TORCHRUN, "--standalone", "--nproc-per-node", 2), ("--set", "run.rounds=3")
    (done,) = ended([started([*torchrun, *RUN, *few, "--algorithm", "fedper", "--out", tmp_path / "run"])])
    assert done.code == 0, done
    assert done.out.count("┏") == 1  # the table, once
    assert_same(tmp_path / "run", alone_in(tmp_path / "alone", *few))
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["ranks"] == 2


def wait_for_rounds(folder, count, process):
    journal = folder / "rounds.jsonl"
    wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= count, process)


@pytest.mark.slow
def test_stopped_killed_and_resumed_by_other_numbers_of_processes(tmp_path, alone, capsys):
    folder = tmp_path / "run"
    processes = ranks(2, *RUN, "--algorithm", "fedper", "--out", folder)
    wait_for_rounds(folder, 1, processes[0])
    processes[1].send_signal(signal.SIGTERM)
    first, second = ended(processes)
    assert (first.code, second.code) == (130, 130), (first, second)  # a signal to one of them stops all
    assert "strata resume" in first.err
    done = len(lines(folder, "rounds"))

    processes = ranks(3, *STRATA, "resume", folder)
    wait_for_rounds(folder, done + 1, processes[0])
    processes[0].kill()
    first, *others = ended(processes)
    assert first.code == -signal.SIGKILL
    for each in others:  # they noticed, and it is not theirs to say
        assert (each.code, each.out, each.complaints) == (1, "", [])

    assert strata(["resume", str(folder)]) == 0
    assert "ranks 2 → 1" in capsys.readouterr().err
    assert_same(folder, alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "says"),
    [pytest.param("refused", 2, "rank 1: no data left", marks=pytest.mark.nightly), ("killed", 1, "rank 0: ")],
)
def test_one_that_fails_ends_all(tmp_path, how, code, says):
    first, second = ended(ranks(2, *FAILING, "--set", f"algorithm.how={how}", "--out", tmp_path / "run"))
    assert first.code == code, first
    assert second.code == (-signal.SIGKILL if how == "killed" else code), second
    assert (second.out, second.err) == ("", "")
    assert first.err.startswith(f"strata: {says}")
    assert first.err.count("\n") == 1
    assert len(lines(tmp_path / "run", "rounds")) == 1


@pytest.mark.nightly
def test_under_torchrun_one_line_says_what_failed(tmp_path):
    two = (*TORCHRUN, "--standalone", "--nproc-per-node", 2)
    (done,) = ended([started([*two, *FAILING, "--out", tmp_path / "run"])])
    assert done.code == 1
    assert [line.partition(" (")[0] for line in done.complaints] == ["rank 1: ValueError: a bug"]


def test_a_comparison_is_refused(tmp_path, monkeypatch, capsys):
    process_group = Ranks(None, 0, 2, False)
    monkeypatch.setattr(compare_command, "torchrun_group", lambda: nullcontext(process_group))
    for arguments in (["compare"], ["resume", str(tmp_path)]):
        (tmp_path / "compare.toml").touch()
        assert strata(arguments) == 2
        said = capsys.readouterr().err
        assert " 2 " in said
        assert "--jobs" in said


# Two ranks in one process


def who_stays(name, changes, limit=None):
    """The clients whose states are kept after a round, the same by two ranks as by one process."""
    plain = built(EVERY[name], batchnorm=False, rounds=1)
    sim = replace(plain, algorithm=Tampered(plain.algorithm, changes), norm_limit=limit)
    parts = by_two_ranks(lambda group: sim.run(Distributed(group, Matrix(chunk=2))))
    alone = sim.run(Matrix())
    assert all(difference(flatten(part.server), flatten(alone.server)) <= 1e-12 for part in parts)
    assert sorted(client for part in parts for client in part.clients) == sorted(alone.clients)
    return sorted(alone.clients)


@pytest.mark.slow
def test_ranks_leave_out_what_one_process_leaves_out():
    assert who_stays("fedlag", {1: not_finite(), 4: claiming(10**12)}) == [0, 2, 3, 5]
    assert who_stays("fedper", {client: not_finite() for client in range(6)}) == []
    assert who_stays("fedper", {2: far_away}, limit=50.0) == [0, 1, 3, 4, 5]


@pytest.mark.slow
def test_ranks_have_the_drop_outs_and_the_simulated_times_of_one_process():
    sim = built("fedper", batchnorm=False, rounds=3, drop=0.4, time=SimulatedTime(1.0))

    def lines(executor):
        trial, progress, made = Trial(sim, executor=executor), sim.start(), []
        while progress.t < trial.rounds:
            progress, entry = trial.round(progress)
            made.append({key: entry.round[key] for key in ("cohort", "dropped_out", "simulated.seconds", "bytes.up")})
        return made

    alone = lines(Matrix())
    assert any(line["dropped_out"] for line in alone)
    assert by_two_ranks(lambda group: lines(Distributed(group, Matrix(chunk=2)))) == [alone, alone]


def test_client_states_are_collected_in_the_first_rank_and_dealt_again():
    sim, progress = finished("fedper")

    def work(group):
        dealt = group.deal(sim, progress.clients if group.rank == 0 else {})
        return sorted(dealt), {client: flatten(state) for client, state in group.collect(dealt).items()}

    (first, collected), (second, nothing) = by_two_ranks(work)
    assert not nothing
    assert (len(first), len(second), sorted(first + second)) == (3, 3, list(range(6)))
    assert all(difference(flatten(state), collected[client]) == 0 for client, state in progress.clients.items())


def test_a_rank_is_told_what_the_first_says_and_of_the_failure_of_another():
    def work(group):
        values = group.told({"a": torch.arange(3) + group.rank}), group.gather((group.rank, torch.ones(group.rank)))
        try:
            with group.together():
                return (*values, group.gather(0) if group.rank == 0 else 1 / 0)
        except RankError as error:
            return (*values, str(error))

    for told, gathered, failure in by_two_ranks(work):
        assert told["a"].tolist() == [0, 1, 2]
        assert [(rank, len(x)) for rank, x in gathered] == [(0, 0), (1, 1)]
        assert failure.startswith("rank 1: ZeroDivisionError")


# Over a network

NETWORK = "10.213.77"


@contextmanager
def two_networks():
    """Two namespaces, joined by a cable, each with an address of its own."""
    tag = os.getpid()
    names, ends = [f"strata-{tag}-{side}" for side in "ab"], [f"s{tag}{side}" for side in "ab"]

    def ip(*words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    made = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "address", "add", f"{NETWORK}.{number}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield list(zip(names, ends, strict=True))
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def on_a_side(number, name, end, folder):
    meeting = ("--nnodes", 2, "--node-rank", number, "--nproc-per-node", 1)
    meeting += ("--master-addr", f"{NETWORK}.1", "--master-port", 29500)
    out = ("--algorithm", "fedper", "--out", folder / f"side-{number}")
    where = {"GLOO_SOCKET_IFNAME": end}
    return started([*TORCHRUN, *meeting, *RUN, *out], where, ("ip", "netns", "exec", name))


@pytest.mark.nightly
def test_two_machines_with_addresses_of_their_own(tmp_path, alone):
    try:
        with two_networks() as sides:
            done = ended([on_a_side(number, *side, tmp_path) for number, side in enumerate(sides)])
    except OSError as error:
        pytest.skip(f"no network namespaces here: {error}")
    assert [each.code for each in done] == [0, 0], done
    assert_same(tmp_path / "side-0", alone)
    assert not (tmp_path / "side-1").exists()  # only the first writes
    assert done[1].out == ""


# Parts


def test_clients_are_dealt_by_size_and_stay_where_they_are():
    sim = Case(fedavg(), "follow", 1.0, 1).simulation(sizes=(50, 4, 40, 30, 6, 20, 10))
    shares = [Ranks(None, rank, 3, False).share(sim, torch.tensor([6, 5, 4, 3, 2, 1, 0])) for rank in range(3)]
    assert [share.tolist() for share in shares] == [[4, 1, 0], [6, 2], [5, 3]]  # 60, 50 and 50 samples
    assert Ranks(None, 1, 3, False).share(sim, shares[1][:1]).tolist() == shares[1][:1].tolist()


def test_values_of_any_kind_are_packed_and_unpacked():
    parcel = Parcel(
        {
            "a": Field({"w": torch.randn(2, 3).expand(4, 2, 3)}, mask=LayerMask(torch.ones(4, 1, dtype=torch.bool))),
            "b": Field({"w": torch.randn(4, 5)[:, ::2]}, mask=ColumnMask({"w": torch.rand(4, 3) > 0.5})),
            "c": Field(torch.tensor(3.5, dtype=torch.float64), common=True),
            "d": Field(torch.empty(0, 2, dtype=torch.int64)),
        }
    )
    label, tensors = pack({"parcel": dict(parcel), "others": (1, None, [2.5, "x"], {3: True}, torch.float16)})
    buffer = to_buffer(tensors, label.size + 5, "cpu")
    assert len(buffer) == label.size + 5
    back = value_of(label.body, from_buffer(buffer, label.specs))
    assert back["others"] == (1, None, [2.5, "x"], {3: True}, torch.float16)
    for name, field in parcel.items():
        found = back["parcel"][name]
        assert found.common == field.common
        assert type(found.mask) is type(field.mask)
    assert torch.equal(back["parcel"]["a"].rows["w"], parcel["a"].rows["w"])
    assert torch.equal(back["parcel"]["b"].mask.sent["w"], parcel["b"].mask.sent["w"])
    assert torch.equal(back["parcel"]["c"].tensor, parcel["c"].tensor)
    assert back["parcel"]["d"].tensor.shape == (0, 2)


def test_only_what_was_declared_can_be_sent_and_can_arrive():
    with pytest.raises(WireError, match="Matrix"):
        pack([Matrix()])
    with pytest.raises(WireError, match="'Popen'"):
        value_of('{"record": "Popen", "fields": {}}')
    with pytest.raises(WireError, match="'load'"):
        value_of('{"dtype": "load"}')
    with pytest.raises(WireError, match="pack"):
        words(torch.zeros(1))


def test_what_the_environment_says(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "8")  # some clusters set it for everything
    assert world_size() == 1
    monkeypatch.setenv("RANK", "0")
    assert world_size() == 8
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(RunError, match=r"RANK.*'first'"):
        world_size()


@pytest.mark.slow
def test_a_rank_that_has_done_its_work_does_not_abort_when_python_ends():
    program = """
import atexit, os
from stratafl.cli import end_rank
class Held:
    def __del__(self):
        os.abort()
held = Held()
atexit.register(print, "said")
end_rank(3)
"""
    (done,) = ended([started(["-c", program])])
    assert (done.code, done.out) == (3, "said\n")
