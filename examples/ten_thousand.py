"""Ten thousand clients on two cores: seconds a round, memory, disk, and what a kill costs.

python examples/ten_thousand.py [--clients 1000 10000] [--rounds 30] [--memory-limit 4GB] [--folder DIR]

Every client holds 20 images of 28 × 28 pixels, shifted digits of two classes; 100 clients are sampled a round; FedPer
on the CNN keeps a head per client; 100 clients, always the same, are evaluated every fifth round. Each federation runs
in a process of its own, and they take turns, a round each, so that whatever else the machine does slows down both. The
largest is run once more, killed with SIGKILL in the middle and resumed, to the same lines and bits.
"""

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from stratafl.config.experiment import Experiment, with_settings
from stratafl.data.digits import digits_arrays
from stratafl.runs import Run, stored

COHORT, EVALUATED, SAMPLES, CLASSES = 100, 100, 20, 2
WARM_UP = 5  # rounds in which steps are traced


def write_images(path: Path, clients: int, seed: int = 0) -> None:
    """Digits enlarged to 24 × 24 and shifted on 28 × 28, black and white; each client has two classes of them."""
    rng = np.random.default_rng(seed)
    small, labels = digits_arrays()
    large = np.kron(small[:, 0] > 0.5, np.ones((1, 3, 3), dtype=bool))
    by_class = [np.flatnonzero(labels == digit) for digit in range(10)]
    x = np.zeros((clients * SAMPLES, 1, 28, 28), dtype=np.uint8)
    y = np.empty(len(x), dtype=np.int64)
    for client in range(clients):
        digits = rng.choice(10, CLASSES, replace=False)
        for i in range(client * SAMPLES, (client + 1) * SAMPLES):
            y[i] = digits[i % CLASSES]
            down, right = rng.integers(0, 5, 2)
            x[i, 0, down : down + 24, right : right + 24] = large[rng.choice(by_class[y[i]])]
    np.savez(path, x=x, y=y, client=np.repeat(np.arange(clients), SAMPLES))


def work(folder: Path, data: Path, clients: int, rounds: int, memory: str, store: str) -> None:
    """Run, or go on with, one federation, a round for each line that comes in; print what it took."""
    settings = [f"data.name={data}", "model.name=cnn", "algorithm.name=fedper", f"run.rounds={rounds}"]
    settings += [f"run.participation={COHORT / clients}", f"run.memory_limit={memory}", f"run.store={store}"]
    settings += [f"evaluate.clients={EVALUATED}", "evaluate.every=5", "run.device=cpu"]
    begin = time.perf_counter()
    run = Run.open(folder) if folder.exists() else Run.create(with_settings(Experiment(), settings), folder)
    print(time.perf_counter() - begin, flush=True)
    with run:
        rounds_left = run.rounds()
        for _ in sys.stdin:
            begin, busy = time.perf_counter(), time.process_time()
            next(rounds_left)  # training, evaluation and checkpoint
            print(time.perf_counter() - begin, time.process_time() - busy, flush=True)
            if run.finished:
                break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peak": peak, "memory": run.sim.state_format.size, "store": run.sim.store}))


def started(folder: Path, data: Path, clients: int, given: argparse.Namespace) -> "subprocess.Popen[str]":
    """A process that runs one federation."""
    arguments = [str(folder), str(data), str(clients), str(given.rounds), given.memory, given.store]
    command = [sys.executable, __file__, "--work", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def in_turns(processes: "list[subprocess.Popen[str]]", rounds: int) -> list[dict]:
    """Let them do a round each, again and again; what each took."""
    starts = [float(process.stdout.readline()) for process in processes]
    seconds = [[] for _ in processes]
    for _ in range(rounds):
        for process, mine in zip(processes, seconds, strict=True):
            process.stdin.write("\n")
            process.stdin.flush()
            mine.append(tuple(map(float, process.stdout.readline().split())))
    found = [json.loads(process.stdout.readline()) for process in processes]
    assert [process.wait() for process in processes] == [0] * len(processes)
    return [{"start": a, "seconds": b, **c} for a, b, c in zip(starts, seconds, found, strict=True)]


def show(clients: int, took: dict, folder: Path) -> float:
    """One line; the median of the seconds."""
    steady, busy = zip(*took["seconds"][WARM_UP:], strict=True)
    median = statistics.median(steady)
    size = {path.name: sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) for path in folder.iterdir()}
    size |= {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    kept = size.get("memories.bin", 0) + size["checkpoint"]
    touched = len(stored(folder)[1].clients)
    print(
        f"{clients:6,} clients: start {took['start']:.1f} s; a round {median:.2f} s median, {min(steady):.2f} best, "
        f"{statistics.fmean(steady):.2f} mean of {len(steady)}, "
        f"{statistics.median(busy):.2f} s of CPU; peak {took['peak'] / 1e6:,.0f} MB; memories in "
        f"{took['store']}: {touched:,} clients × {took['memory']:,} bytes = {touched * took['memory'] / 1e6:.1f} MB, "
        f"on disk {kept / 1e6:.1f} MB"
    )
    print("        " + ", ".join(f"{name} {each / 1e6:.2f} MB" for name, each in sorted(size.items())), flush=True)
    return median


def outcome(folder: Path) -> dict:
    """All lines without their times, and the bits of the last state."""
    _, progress, _ = stored(folder)
    lines = {
        name: [
            {k: v for k, v in json.loads(line).items() if not k.startswith("seconds.")}
            for line in (folder / name).read_text().splitlines()
        ]
        for name in ("rounds.jsonl", "clients.jsonl", "layers.jsonl")
    }
    state = load_file(max((folder / "checkpoint").glob("[0-9]*")) / "state.safetensors")
    server = {name: x.numpy().tobytes() for name, x in state.items() if name.startswith("server/")}
    memories = {
        client: {name: x.numpy().tobytes() for name, x in memory["theta"].items()}
        for client, memory in progress.clients.items()
    }
    return {"lines": lines, "server": server, "memories": memories}


def killed(folder: Path, data: Path, clients: int, given: argparse.Namespace) -> int:
    """Start it, kill it in the middle, and let it go on; how many rounds were done when it was killed."""
    process, journal = started(folder, data, clients, given), folder / "rounds.jsonl"
    process.stdin.write("\n" * given.rounds)
    process.stdin.flush()
    while not (journal.exists() and len(journal.read_bytes().splitlines()) >= given.rounds // 2):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.7)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = len(journal.read_bytes().splitlines())
    again = started(folder, data, clients, given)
    again.communicate("\n" * given.rounds)
    assert again.returncode == 0
    return done


def main() -> None:
    """What a process that was started does, or what starts them."""
    if sys.argv[1:2] == ["--work"]:
        folder, data, clients, rounds, memory, store = sys.argv[2:]
        work(Path(folder), Path(data), int(clients), int(rounds), memory, store)
    else:
        measure(_arguments())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--memory-limit", default="4GB")
    parser.add_argument("--store", default="auto")
    parser.add_argument("--folder", type=Path)
    return parser.parse_args()


def measure(given: argparse.Namespace) -> None:
    """All federations, and the kill."""
    place = given.folder or Path(tempfile.mkdtemp())
    data = {clients: place / f"{clients}.npz" for clients in given.clients}
    folders = {clients: place / f"run-{clients}" for clients in given.clients}
    for clients in given.clients:
        write_images(data[clients], clients)
    took = in_turns([started(folders[n], data[n], n, given) for n in given.clients], given.rounds)
    medians = [show(n, each, folders[n]) for n, each in zip(given.clients, took, strict=True)]
    print(f"seconds a round, last to first: {medians[-1] / medians[0]:.3f}", flush=True)
    largest, again = given.clients[-1], place / "killed"
    done = killed(again, data[largest], largest, given)
    resumed = json.loads((again / "environment.json").read_text())["resumed"][0]["round"]
    same = outcome(again) == outcome(folders[largest])
    print(f"killed after round {done}, resumed from round {resumed}: same lines and bits: {same}")


if __name__ == "__main__":
    main()
