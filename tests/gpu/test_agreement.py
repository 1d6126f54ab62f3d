"""A GPU computes what the CPU computes: the whole catalogue, with BatchNorm and dropout, captured and compiled.

PYTHONPATH=src python tests/gpu/test_agreement.py      without pytest, where there is a GPU and nothing else
"""

import time
from unittest import SkipTest

import torch

from stratafl.algorithms import algorithm, fedalp, fedavg30local, fedlag, flayer, heurpfedla, pfedla
from stratafl.execute import Matrix, simulation
from stratafl.task.speed import Speed
from stratafl.testing import difference, tiny_federation, tiny_model

METHODS = {name: algorithm(name) for name in ("fedavg", "fedbn", "fedper", "fedprox", "fedrep", "lgfedavg", "local")}
METHODS |= {
    "fedalp": fedalp(groups=2, warmup=1),
    "fedavg30local": fedavg30local(warmup=1),
    "fedlag": fedlag(k=2, xi=0.0, warmup=0),
    "flayer": flayer(s=1),
    "flayer official": flayer(preset="official"),
    "heurpfedla": heurpfedla(k=1, hyper_lr=50.0),
    "pfedla": pfedla(hyper_lr=50.0),
    "simmix": algorithm("simmix"),
}
WAYS = {
    "captured": Speed(graphs="on", compile="off"),
    "plain": Speed(graphs="off", compile="off"),
    "stock convolutions": Speed(graphs="on", compile="off", convolutions="stock"),
    "compiled": Speed(graphs="on", compile="on"),
}


def run(method, device, speed=None, dtype=torch.float64, rounds=4):
    sim = simulation(
        method,
        tiny_federation(dtype=dtype),
        tiny_model(),
        rounds=rounds,
        participation=0.7,
        dtype=dtype,
        device=device,
        speed=speed or Speed(),
    )
    return sim, sim.run(Matrix())


def on_cpu(tensors):
    return {name: x.cpu() for name, x in tensors.items()}


def need_gpu():
    if not torch.cuda.is_available():
        raise SkipTest("there is no GPU here")


def test_gpu_and_cpu_agree_in_float64():
    need_gpu()
    for name, method in METHODS.items():
        expected = run(method, "cpu")[1].tensors()
        for way, speed in WAYS.items():
            begin = time.perf_counter()
            gap = difference(expected, on_cpu(run(method, "cuda", speed)[1].tensors()))
            print(f"{name:16} {way:18} {gap:.1e}  {time.perf_counter() - begin:5.1f} s", flush=True)
            assert gap < 1e-8, (name, way, gap)


def decisions(sim, progress):
    """What a method decided: masks of what was sent, personal layers, groups."""
    server, found = progress.server, []
    for name in ("personal", "member"):
        if name in server:
            found.append(server[name].cpu().flatten())
    rnd, ids = sim.at(progress.t), sim.cohort(sim.at(progress.t))
    task = sim.task(ids, rnd)
    parcel = sim.algorithm.download(rnd, server, ids)
    desk = sim.algorithm.receive(rnd, sim.memories(progress.clients, ids), parcel, task)
    upload = sim.algorithm.work(rnd, desk, task).upload
    for field in upload.values():
        sent = field.sent(rnd.layout) or {}
        found += [x.cpu().flatten() for x in sent.values()]
    return torch.cat([x.double() for x in found]) if found else torch.empty(0)


def test_decisions_agree_in_float32():
    need_gpu()
    for name in ("flayer", "flayer official", "fedlag", "fedalp", "heurpfedla"):
        there, here = (decisions(*run(METHODS[name], device, dtype=torch.float32)) for device in ("cuda", "cpu"))
        same = float((there == here).double().mean()) if len(here) else 1.0
        print(f"{name:16} {len(here)} decisions, {same:.5f} the same", flush=True)
        assert same >= 0.999, (name, same)


if __name__ == "__main__":
    test_gpu_and_cpu_agree_in_float64()
    test_decisions_agree_in_float32()
