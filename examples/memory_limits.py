"""Peak memory against the limit, for every algorithm of the catalogue, each in a process of its own.

    python examples/memory_limits.py [--limits 2GB 8GB] [--hidden 3700 3700 3700] [--rounds 4] [--algorithms fedavg …]

Ten clients with 19 training samples each, an MLP on 784 numbers (with the hidden layers above: 30 million parameters),
batches of 10, four rounds (an early one stays selected), evaluation and checkpoints. The peak is what Linux reports for
the process (VmHWM).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from stratafl.algorithms import ALGORITHMS
from stratafl.config.experiment import Experiment, with_settings
from stratafl.errors import MemoryLimitError
from stratafl.runs import Run

EARLY = {"fedalp": "warmup=1", "fedavg30local": "warmup=1", "fedlag": "warmup=0"}  # so that their last phase is reached
CLIENTS, SAMPLES, INPUTS = 10, 28, 784


def write_samples(path: Path) -> None:
    """Noise with random labels."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CLIENTS * SAMPLES, INPUTS)).astype(np.float32)
    np.savez(path, x=x, y=rng.integers(0, 10, len(x)), client=np.repeat(np.arange(CLIENTS), SAMPLES))


def peak() -> int:
    """The peak resident memory of this process, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def work(name: str, limit: str, hidden: str, rounds: int, folder: Path) -> dict[str, object]:
    """One run under a limit: its peak, or why it was refused."""
    write_samples(folder / "samples.npz")
    settings = [f"data.name={folder / 'samples.npz'}", "model.name=mlp", f"model.hidden=[{hidden}]"]
    settings += [f"algorithm.name={name}", f"run.rounds={rounds}", f"run.memory_limit={limit}", "run.device=cpu"]
    settings += ["train.lr=0.3"]  # on noise: an early round stays the selected one
    settings += [f"algorithm.{EARLY[name]}"] if name in EARLY else []
    try:
        with Run.create(with_settings(Experiment(), settings), folder / "run") as run:
            for _ in run.rounds():
                pass
            allowed = run.sim.memory_limit
    except MemoryLimitError as error:
        return {"refused": str(error), "peak": peak()}
    return {"peak": peak(), "share": peak() / (allowed or 1)}


def measured(name: str, limit: str, hidden: str, rounds: int = 2) -> dict[str, object]:
    """The same in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker", name, limit, hidden, str(rounds), folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", nargs="+", default=["2GB", "8GB"])
    parser.add_argument("--hidden", nargs="+", default=["3700", "3700", "3700"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--algorithms", nargs="+", default=sorted(ALGORITHMS))
    given = parser.parse_args()
    print("| algorithm | limit | peak | of the limit |\n|---|---|---|---|")
    for name in given.algorithms:
        for limit in given.limits:
            found = measured(name, limit, ", ".join(given.hidden), given.rounds)
            if "refused" in found:
                print(f"| {name} | {limit} | | refused: {found['refused']} |", flush=True)
            else:
                print(f"| {name} | {limit} | {found['peak'] / 1e9:.2f} GB | {found['share']:.0%} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(work(*sys.argv[2:5], int(sys.argv[5]), Path(sys.argv[6]))))
    else:
        main()
