"""What a run had in memory is given back: kept steps as soon as it is done, everything when it is dropped."""

import gc

import pytest
import torch
from torch._C._functorch import is_functorch_wrapped_tensor

import stratafl
from stratafl.algorithms import fedper
from stratafl.runtime import Runtime
from stratafl.runtime.captured_step import CapturedStep
from stratafl.testing import tiny_federation, tiny_model


@pytest.fixture
def no_collector():
    """Captured steps hold GPU memory, and a GPU is full long before Python collects cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(kind):
    return sum(type(each) is kind for each in gc.get_objects())


def tensor_bytes():
    """Of tensors with memory of their own; another test may have left some inside `vmap` in a traceback."""
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    tensors = [x for x in tensors if not is_functorch_wrapped_tensor(x)]
    return sum({x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors}.values())


def fitted(graphs):
    return stratafl.fit(
        fedper(), tiny_federation(dtype=torch.float32), tiny_model(batchnorm=False), rounds=2, device="cpu",
        graphs=graphs, compile="off",
    )  # fmt: skip


@pytest.mark.budget(4, "looks at all objects")
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("graphs", ["on", pytest.param("off", marks=pytest.mark.slow)])
def test_a_run_that_is_dropped_leaves_nothing(graphs):
    before, steps, runtimes = tensor_bytes(), alive(CapturedStep), alive(Runtime)
    done = fitted(graphs)
    assert alive(CapturedStep) == steps  # as soon as it is done, although its models can still be asked for
    assert done.client(0).model is not None
    del done
    gc.collect()
    assert alive(Runtime) == runtimes
    assert tensor_bytes() - before < 2**20


@pytest.mark.slow
def test_a_run_goes_on_after_its_steps_were_let_go_of():
    """CapturedSteps and traces are made anew, and give the same bits."""
    outcomes = []
    for closes in (False, True):
        sim = fitted("on").sim
        progress = sim.start()
        for _ in range(2):
            progress, _ = sim.round(progress, stratafl.execute.Matrix())
            if closes:
                sim.runtime.close()
                assert sim.runtime.kept == 0
        outcomes.append(progress.tensors())
    assert all(torch.equal(x, outcomes[1][name]) for name, x in outcomes[0].items())
