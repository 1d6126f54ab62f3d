"""Torch's compiler front end is imported only where it is needed."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, torch
from stratafl.algorithms import fedavg
from stratafl.execute import Matrix, simulation
from stratafl.leak.attacks import matched_inputs
from stratafl.runtime import engine
from stratafl.testing import tiny_federation, tiny_model

sim = simulation(fedavg(), tiny_federation(), tiny_model(), rounds=2)
engine.PATIENCE = 1
sim.run(Matrix())
assert sim.runtime.engine.traces
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
leaves = {name: x.detach() for name, x in model.named_parameters()}
matched_inputs(model, leaves, leaves, torch.ones(2, 4), torch.tensor([0, 1]))
assert "torch._dynamo" not in sys.modules, "a run or an attack imported it"
assert torch._dynamo.config.suppress_errors is False  # whoever asks for it gets it
assert torch._dynamo is sys.modules["torch._dynamo"]
assert torch.func.grad(lambda x: x**2)(torch.tensor(3.0)) == 6
"""


@pytest.mark.slow
def test_a_run_does_not_import_it_and_others_still_can():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
