"""A GPU has as much memory free after twelve runs in one process as before: captured, compiled, plain, by `fit`.

PYTHONPATH=src python tests/gpu/test_memory.py      without pytest, where there is a GPU and nothing else
"""

import gc
from functools import partial
from unittest import SkipTest

import numpy as np
import torch

import stratafl
from stratafl.algorithms import algorithm, fedlag, flayer
from stratafl.data import from_clients
from stratafl.models import build
from stratafl.runtime.captured_step import capture
from stratafl.runtime.speed import Speed

SLACK = 16 * 2**20
METHODS = {
    "fedavg": algorithm("fedavg"),
    "fedper": algorithm("fedper"),
    "flayer": flayer(),
    "fedlag": fedlag(warmup=0),
    "pfedla": algorithm("pfedla"),
    "fedrep": algorithm("fedrep"),
}
WAYS = {"captured": Speed(graphs="on", compile="off"), "compiled": Speed(graphs="on", compile="on")}


def noise(clients=20, samples=200):
    """Images of CIFAR's size with random labels: what is left behind is about memory, not about learning."""
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal((samples, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, samples))
        for _ in range(clients)
    ]


def memory():
    """Bytes of live tensors, and bytes that torch has taken from the GPU."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def once(method, speed, federation):
    model = build("cnn", shape=tuple(federation.x.shape[1:]), classes=10)
    ways = {name: getattr(speed, name) for name in ("precision", "graphs", "compile", "convolutions")}
    fitted = stratafl.fit(method, federation, model, rounds=3, device="cuda", **ways)
    assert fitted.history[-1]["round"] == 3


def measured():
    """Memory before all runs, and after each; the first run of each way is a warm-up, which loads libraries."""
    if not torch.cuda.is_available():
        raise SkipTest("there is no GPU")
    federation = from_clients(noise())
    for speed in WAYS.values():
        once(METHODS["fedavg"], speed, federation)
    rows = [("before", *memory())]
    for way, speed in WAYS.items():
        for name, method in METHODS.items():
            once(method, speed, federation)
            rows.append((f"{name}, {way}", *memory()))
    return rows


def check(rows):
    _, allocated, reserved = rows[0]
    for name, now, taken in rows[1:]:
        assert now - allocated <= SLACK, f"after {name} {now - allocated:,} bytes of tensors are left"
        assert taken - reserved <= SLACK, f"after {name} {taken - reserved:,} bytes more are reserved"


def test_runs_leave_no_memory_behind():
    check(measured())


def test_a_graph_works_after_another_was_freed():
    """A product of few rows and many terms is summed in parts, in a workspace of cuBLAS."""
    if not torch.cuda.is_available():
        raise SkipTest("there is no GPU")
    left, right = torch.ones(64, 2**17, device="cuda"), torch.ones(2**17, 64, device="cuda")
    outputs = [torch.zeros(64, 64, device="cuda") for _ in range(2)]
    first, second = (capture(partial(torch.mm, left, right, out=each)) for each in outputs)
    second()
    del first
    torch._C._cuda_clearCublasWorkspaces()
    memory()  # gives the memory of the first graph back
    outputs[1].zero_()
    second()
    torch.cuda.synchronize()
    assert torch.equal(outputs[1], torch.full_like(outputs[1], 2**17))


if __name__ == "__main__":
    found = measured()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'':24}{'allocated, MiB':>16}{'reserved, MiB':>16}")
    for name, now, taken in found:
        print(f"{name:24}{now / 2**20:16.1f}{taken / 2**20:16.1f}", flush=True)
    check(found)
    test_a_graph_works_after_another_was_freed()
    print("the same before and after, within 16 MiB")
