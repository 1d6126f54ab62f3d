"""The workload of the benchmarks: 20,000 images of CIFAR-10's size in 20 Dirichlet shares, batches of 10, one epoch.

The images are drawn: a pattern per class under noise, so that a model learns something and accuracies can be compared.
What they show does not change the speed. `--data FILE.npz` takes your own (bytes `x` [n, 3, 32, 32], labels `y`).
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES, SIDE, CELL = 10, 32, 4
SIGNAL, NOISE = 20.0, 50.0  # of pixels from 0 to 255


def add_options(parser: argparse.ArgumentParser) -> None:
    """Sizes of the workload; the defaults are those of the published figures."""
    add = parser.add_argument_group("workload").add_argument
    add("--data", type=Path, metavar="NPZ", help="images as bytes [n, 3, 32, 32] in `x`, labels in `y`; else drawn")
    add("--images", type=int, default=20_000, help="how many are drawn (20,000)")
    add("--clients", type=int, default=20)
    add("--alpha", type=float, default=0.1, help="concentration of the Dirichlet shares (0.1)")
    add("--batch", type=int, default=10)
    add("--lr", type=float, default=0.005, help="learning rate (0.005)")
    add("--seed", type=int, default=0)


def images(count: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    coarse = rng.standard_normal((CLASSES, 3, SIDE // CELL, SIDE // CELL), dtype=np.float32)
    patterns = SIGNAL * coarse.repeat(CELL, 2).repeat(CELL, 3)
    x = np.empty((count, 3, SIDE, SIDE), np.uint8)
    for at in range(0, count, 1000):  # in parts, to save memory
        here = labels[at : at + 1000]
        noise = NOISE * rng.standard_normal((len(here), 3, SIDE, SIDE), dtype=np.float32)
        x[at : at + 1000] = np.clip(128 + patterns[here] + noise, 0, 255)
    return x, labels


def data_file(given: argparse.Namespace, folder: Path) -> Path:
    """The file with the images: the given one, or a new one with drawn images."""
    if given.data is not None:
        return Path(given.data).absolute()
    path = folder / f"images-{given.images}-{given.seed}.npz"
    if not path.exists():
        x, y = images(given.images, given.seed)
        np.savez(path, x=x, y=y)
    return path.absolute()


def settings(given: argparse.Namespace, data: Path, model: str, device: str, rounds: int) -> list[str]:
    """Settings of a run on this workload, as `--set` takes them.

    The protocol is PFLlib's: no validation samples, last batches are dropped, statistics stay with the clients. All
    seeds share one partition, so that runs with other seeds take as many steps.
    """
    said = {
        "run.protocol": "pfllib",
        "data.name": data,
        "data.partition": "dirichlet",
        "data.clients": given.clients,
        "data.alpha": given.alpha,
        "data.seed": given.seed,
        "model.name": model,
        "train.lr": given.lr,
        "train.batch": given.batch,
        "train.epochs": 1,
        "run.rounds": rounds,
        "run.seed": given.seed,
        "run.device": device,
        "run.precision": "tf32" if device.startswith("cuda") else "fp32",
    }
    return [f"{key}={value}" for key, value in said.items()]
