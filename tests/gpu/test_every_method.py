"""On a GPU every method of the catalogue is captured, none falls back to launching step by step, and all agree.

PYTHONPATH=src python tests/gpu/test_every_method.py      without pytest, where there is a GPU and nothing else
"""

import time
import traceback
from functools import partial
from unittest import SkipTest

import torch

from stratafl.algorithms import ALGORITHMS, algorithm
from stratafl.execute import Matrix, simulation
from stratafl.runtime.speed import Speed
from stratafl.testing import difference, tiny_federation, tiny_model, within_reach


def run(method, device, rounds=3):
    method, rounds = within_reach(method, rounds)
    speed = Speed(graphs="on", compile="off") if device == "cuda" else Speed()
    options = {"participation": 0.7, "dtype": torch.float64, "device": device, "speed": speed}
    sim = simulation(method, tiny_federation(), tiny_model(), rounds=rounds, **options)
    return sim, sim.run(Matrix())


def test_every_method_is_captured_and_agrees_with_the_cpu():
    if not torch.cuda.is_available():
        raise SkipTest("there is no GPU here")
    failed = {}
    packed = {name: partial(algorithm, name, min_size=1) for name in ("fedper+q4", "heurpfedla+topk", "scaffold+q8")}
    for name, builder in {**ALGORITHMS, **packed}.items():
        begin = time.perf_counter()
        try:
            expected = run(builder(), "cpu")[1].tensors()
            sim, there = run(builder(), "cuda")
            captured = sim.runtime.captured
            assert len(captured), "no step was captured"
            assert not captured._refused, f"{len(captured._refused)} steps fell back"
            gap = difference(expected, {key: x.cpu() for key, x in there.tensors().items()})
            assert gap < 1e-8, f"differs by {gap:.1e}"
            print(f"{name:16} {len(captured)} captured, {gap:.1e}  {time.perf_counter() - begin:5.1f} s", flush=True)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"{name:16} FAILED {failed[name]}", flush=True)
            traceback.print_exc(limit=-3)
    assert not failed, failed


if __name__ == "__main__":
    test_every_method_is_captured_and_agrees_with_the_cpu()
