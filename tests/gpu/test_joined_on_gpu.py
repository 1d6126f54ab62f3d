"""On a GPU joined runs compute what each of them computes alone, captured and compiled, and give back their memory.

PYTHONPATH=src python tests/gpu/test_joined_on_gpu.py      without pytest, where there is a GPU and nothing else
"""

import gc
import time
from functools import partial
from unittest import SkipTest

import torch

from stratafl.algorithms import algorithm
from stratafl.evaluation.trial import Trial
from stratafl.execute import simulation
from stratafl.policies import LocalTraining
from stratafl.runtime.joining import Joining
from stratafl.runtime.speed import Speed
from stratafl.testing import difference, tiny_federation, tiny_model

METHODS = ("local", "fedavg", "fedper", "fedrep", "lgfedavg", "fedbn", "ditto", "fedala", "flayer")
WAYS = {"captured": "off", "compiled": "on"}
SLACK = 16 * 2**20


def need_gpu():
    if not torch.cuda.is_available():
        raise SkipTest("there is no GPU here")


def made(name, seed, compile, rate=0.1):
    method = algorithm(name, train=LocalTraining(lr=rate)) if rate != 0.1 else algorithm(name)
    speed = Speed(graphs="on", compile=compile)
    given = {"rounds": 3, "seed": seed, "participation": 0.7, "dtype": torch.float64, "device": "cuda", "speed": speed}
    return simulation(method, tiny_federation(seed=seed), tiny_model(), **given)


def run(make, kept, name):
    sim = make()
    trial, progress, scores = Trial(sim), sim.start(), []
    while progress.t < sim.rounds:
        progress, entry = trial.round(progress)
        scores.append({key: x for key, x in entry.round.items() if not key.startswith("seconds")})
    kept[name] = {key: x.cpu() for key, x in progress.tensors().items()}, scores
    sim.runtime.close()


def makes_of(compile):
    makes = {(name, seed): partial(made, name, seed, compile) for name in METHODS for seed in (0, 1)}
    return makes | {("fedavg", 0, rate): partial(made, "fedavg", 0, compile, rate) for rate in (0.05, 0.2)}


def together(makes, most=None):
    kept = {}
    Joining(lambda: most or len(makes)).drive(iter([partial(run, make, kept, name) for name, make in makes.items()]))
    return kept


def check(compile):
    need_gpu()
    makes, alone = makes_of(compile), {}
    for name, make in makes.items():
        run(make, alone, name)
    for most in (None, 4):
        joined = together(makes, most)
        for name, (tensors, scores) in alone.items():
            gap = difference(tensors, joined[name][0])
            assert gap < 1e-12, f"{name} differs by {gap:.1e} beside others"
            for line, other in zip(scores, joined[name][1], strict=True):
                apart = {key: (x, other[key]) for key, x in line.items() if abs(x - other[key]) > 1e-12}
                assert not apart, f"{name} scores otherwise beside others: {apart}"


def test_captured_runs_are_what_they_are_alone():
    check("off")


def test_compiled_runs_are_what_they_are_alone():
    check("on")


def test_nothing_stays_behind():
    need_gpu()
    makes, seen = makes_of("off"), []
    for _ in range(3):
        together(makes)
        gc.collect()
        torch.cuda.synchronize()
        seen.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    (live, taken), (live_then, taken_then) = seen[0], seen[-1]
    assert live_then - live < SLACK, f"{live_then - live} bytes of tensors stayed behind"
    assert taken_then - taken < SLACK, f"{taken_then - taken} bytes of memory stayed behind"


if __name__ == "__main__":
    for each in (
        test_captured_runs_are_what_they_are_alone,
        test_compiled_runs_are_what_they_are_alone,
        test_nothing_stays_behind,
    ):
        begin = time.perf_counter()
        each()
        print(f"{each.__name__}: passed in {time.perf_counter() - begin:.1f} s", flush=True)
