"""Speed: one FedAvg round of the engine against a plain hand-written loop, on the same batches in one run.

python -m stratafl.bench [--models mlp,mlp784,cnn,resnet18] [--clients 20] [--batch 10] [--repeats 3] [--json FILE]

The loop is what one writes without a library: a model and an optimiser per client, tensors in memory, no DataLoader;
it runs with one thread and with all, and the better of the two counts (small models are faster with one).
Times on a shared machine are noisy; the ratio of the two, measured one after the other in one process, is the figure
to look at.
"""

import argparse
import copy
import json
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stratafl.algorithms import fedavg
from stratafl.data import Federation, federate
from stratafl.errors import StrataError, unknown
from stratafl.execute import Matrix, simulation
from stratafl.models import build
from stratafl.policies import SGD

SHAPES = {"mlp": (1, 8, 8), "mlp784": (1, 28, 28), "cnn": (3, 32, 32), "resnet18": (3, 32, 32)}
CLASSES = {"mlp": 10, "mlp784": 10, "cnn": 100, "resnet18": 100}
STEPS = {"mlp": 40, "mlp784": 40, "cnn": 20, "resnet18": 4}  # per client and round
WARM_UP = 3  # rounds of the engine before the clock runs: steps that come back are traced
RATE = 0.01


def random_federation(shape: tuple[int, ...], classes: int, clients: int, samples: int, seed: int = 0) -> Federation:
    """Random images, the same number for each client: speed does not depend on what they show."""
    rng = np.random.default_rng(seed)
    total = clients * (samples + 1)
    x = rng.standard_normal((total, *shape), dtype=np.float32)
    y = rng.integers(0, classes, total)
    owners = np.split(np.arange(total), clients)
    return federate(x, y, owners, classes=classes, test=1 / (samples + 1), minimum_test=1, seed=seed)


def plain_round(models: list[nn.Module], batches: list[list[tuple[Tensor, Tensor]]], weights: list[float]) -> None:
    """FedAvg by hand: each client trains with torch's SGD, then parameters and buffers are averaged into all models."""
    for model, own in zip(models, batches, strict=True):
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        for x, y in own:
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()
    states = [model.state_dict() for model in models]
    mean = {
        k: sum(w * s[k] for w, s in zip(weights, states, strict=True))
        for k in states[0]
        if states[0][k].is_floating_point()
    }
    for model in models:
        model.load_state_dict(mean, strict=False)


def compare(name: str, clients: int, batch: int, repeats: int) -> dict[str, Any]:
    """Seconds of a round of the loop and of the engine, the best of `repeats` after the engine's warm-up."""
    shape, classes, steps = SHAPES[name], CLASSES[name], STEPS[name]
    federation = random_federation(shape, classes, clients, steps * batch)
    torch.manual_seed(0)
    module = build("mlp" if name == "mlp784" else name, shape=shape, classes=classes)
    sim = simulation(fedavg(train=SGD(lr=RATE, batch=batch)), federation, module, rounds=repeats + WARM_UP)
    models = [copy.deepcopy(module).train() for _ in range(clients)]
    split = federation.split("train")
    batches = [[(federation.x[i], federation.y[i]) for i in split.of(c).split(batch)] for c in range(clients)]
    weights = [1 / clients] * clients
    progress, executor = sim.start(), Matrix()
    plain_round(models, [own[:1] for own in batches], weights)
    warm = time.perf_counter()
    for _ in range(WARM_UP):
        progress, _ = sim.round(progress, executor)
    warm = time.perf_counter() - warm
    loops: dict[int, list[float]] = {threads: [] for threads in {1, torch.get_num_threads()}}
    for threads, times in loops.items():
        times.extend(_timed(lambda: plain_round(models, batches, weights), threads) for _ in range(repeats))
    engine_times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        progress, _ = sim.round(progress, executor)
        engine_times.append(time.perf_counter() - begin)
    best = {threads: min(times) for threads, times in loops.items()}
    loop, engine = min(best.values()), min(engine_times)
    per_step = 1e3 / (clients * steps)
    return {
        "model": name,
        "clients": clients,
        "batch": batch,
        "steps": steps,
        "warm_up_seconds": warm,
        "loop_seconds_by_threads": best,
        "loop_seconds": loop,
        "engine_seconds": engine,
        "loop_ms_per_client_step": loop * per_step,
        "engine_ms_per_client_step": engine * per_step,
        "ratio": loop / engine,
    }


def _timed(work: Callable[[], None], threads: int) -> float:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    work()
    seconds = time.perf_counter() - begin
    torch.set_num_threads(before)
    return seconds


def machine() -> dict[str, Any]:
    """What it was measured on."""
    return {
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    """Measure and print one line per model."""
    parser = argparse.ArgumentParser(
        prog="python -m stratafl.bench", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--models", default="mlp,mlp784,cnn,resnet18", help="which models, by comma")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many rounds counts")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    try:
        measure(args.models.split(","), args.clients, args.batch, args.repeats, args.json)
    except StrataError as error:
        parser.error(str(error))


def measure(models: Sequence[str], clients: int, batch: int, repeats: int, path: Path | None) -> None:
    """Measure these models, print a line for each, and write all figures to a file if one is given."""
    for name in models:
        if name not in SHAPES:
            raise unknown("model of the bench", name, SHAPES)
    rows = []
    for name in models:
        row = compare(name, clients, batch, repeats)
        rows.append(row)
        print(
            f"{name:10} loop {row['loop_ms_per_client_step']:8.2f} ms   engine {row['engine_ms_per_client_step']:8.2f}"
            f" ms   per client-step: {row['ratio']:5.1f}×",
            flush=True,
        )
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
