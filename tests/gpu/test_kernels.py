"""On a GPU the Triton kernels compute what stock convolutions do in float64, captured and compiled, always the same.

PYTHONPATH=src python tests/gpu/test_kernels.py      without pytest, where there is a GPU and nothing else
"""

import sys
import time
import traceback
from pathlib import Path
from unittest import SkipTest

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))
from plain_convolutions import error, factors, product

from stratafl.runtime import kernels
from stratafl.runtime.captured_step import capture
from stratafl.runtime.grouped import teach_compiler
from stratafl.runtime.kernels import Geometry
from stratafl.runtime.products import MatmulConv2d, fusing
from stratafl.runtime.speed import precision

#             C  B   in  out  image    kernel  out     stride  start
GEOMETRIES = [
    Geometry(3, 5, 7, 9, (6, 7), (3, 3), (6, 7), (1, 1), (-1, -1)),
    Geometry(5, 10, 3, 32, (32, 32), (5, 5), (28, 28), (1, 1), (0, 0)),
    Geometry(5, 10, 32, 64, (14, 14), (5, 5), (10, 10), (1, 1), (0, 0)),
    Geometry(3, 10, 3, 64, (32, 32), (7, 7), (16, 16), (2, 2), (-3, -3)),
    Geometry(13, 10, 64, 64, (8, 8), (3, 3), (8, 8), (1, 1), (-1, -1)),
    Geometry(13, 10, 64, 128, (8, 8), (3, 3), (4, 4), (2, 2), (-1, -1)),
    Geometry(13, 10, 64, 128, (8, 8), (1, 1), (4, 4), (2, 2), (0, 0)),
    Geometry(13, 10, 256, 512, (2, 2), (2, 2), (1, 1), (2, 2), (0, 0)),
    Geometry(4, 16, 64, 64, (32, 32), (3, 3), (32, 32), (1, 1), (-1, -1)),
    Geometry(2, 3, 17, 33, (11, 13), (3, 2), (5, 6), (3, 2), (-2, -1)),
]
TOLERANCES = {"fp32": 3e-6, "tf32": 5e-3, "bf16": 3e-2}


def need_gpu():
    if not torch.cuda.is_available():
        raise SkipTest("there is no GPU here")


SHARE = 4  # each geometry checks one of so many tiles, because each is a kernel to compile; together they check all


def tiles_to_check(kind, geometry, number, name):
    """For TF32 the estimated tiles and a share of the others; for the rest, which differ in the product, the former."""
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    estimated = kernels.tiles_for(kind, geometry, processors)
    others = kernels.candidates(kind, geometry, processors)[number % SHARE :: SHARE] if name == "tf32" else []
    return {estimated, *others}


def test_all_tiles_agree_with_float64():
    need_gpu()
    failed = []
    for number, geometry in enumerate(GEOMETRIES):
        begin = time.perf_counter()
        worst = dict.fromkeys(TOLERANCES, 0.0)
        for kind in ("output", "image", "weight"):
            a, b = factors(kind, geometry, "cuda")
            expected = product(kind, a, b, geometry)
            for name, tolerance in TOLERANCES.items():
                for tiles in tiles_to_check(kind, geometry, number, name):
                    kernels.MEASURED[kind, geometry] = tiles
                    try:
                        found = [kernels.multiply(kind, a, b, geometry, name) for _ in range(2)]
                        gap = error(found[0], expected)
                        same = torch.equal(*found)
                    except Exception as problem:
                        gap, same = float("inf"), str(problem).splitlines()[0][:150]
                    worst[name] = max(worst[name], gap)
                    if not (gap < tolerance and same is True):
                        failed.append((kind, name, tiles, gap, same))
                        print("FAILED", geometry, *failed[-1], flush=True)
            kernels.MEASURED.pop((kind, geometry), None)
        errors = ", ".join(f"{name} {gap:.1e}" for name, gap in worst.items())
        print(f"{geometry}: {errors}  {time.perf_counter() - begin:.1f} s", flush=True)
    assert not failed, f"{len(failed)} products are wrong or not repeatable"


def network():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.Flatten()
    )
    for sub in net:
        if isinstance(sub, nn.Conv2d):
            sub.__class__ = MatmulConv2d
    return net.cuda().requires_grad_(False)


def test_a_captured_and_a_compiled_step_agree_with_products():
    need_gpu()
    net = network()
    rows = {name: torch.randn(6, *x.shape, device="cuda") * 0.1 for name, x in net.named_parameters()}
    x = torch.randn(6, 10, 3, 16, 16, device="cuda")

    def step(*tensors):
        row, images = dict(zip(rows, tensors[1:], strict=True)), tensors[0]
        found = vmap(grad(lambda row, x: functional_call(net, row, (x,)).pow(2).sum()))(row, images)
        return tuple(found.values())

    given = (x, *rows.values())
    with precision("fp32"):
        expected = step(*given)
        for way in ("kernel", "stock"):
            check_way(net, way, step, given, expected)


def check_way(net, way, step, given, expected):
    for sub in net:
        if isinstance(sub, MatmulConv2d):
            sub.product = way
    for kind, make in (("launched", lambda step, given: lambda: step(*given)), *MAKERS.items()):
        found = make(step, given)()
        torch.cuda.synchronize()
        gap = max(error(mine, theirs.double()) for mine, theirs in zip(found, expected, strict=True))
        print(f"{way}, {kind}: {gap:.1e}", flush=True)
        assert gap < 1e-5, (way, kind)


def captured(step, given):
    results = []

    def once():
        results[:] = step(*given)

    replay = capture(once)

    def run():
        replay()
        return results

    return run


def compiled(step, given):
    from torch._inductor.compile_fx import compile_fx
    from torch.fx.experimental.proxy_tensor import make_fx

    teach_compiler()
    with fusing():
        run = compile_fx(make_fx(step)(*given), list(given))
    return captured(run, given)


MAKERS = {"captured": captured, "compiled": compiled}

if __name__ == "__main__":
    wrong = 0
    for test in (test_all_tiles_agree_with_float64, test_a_captured_and_a_compiled_step_agree_with_products):
        try:
            test()
        except Exception:
            wrong += 1
            traceback.print_exc()
    sys.exit(wrong)
