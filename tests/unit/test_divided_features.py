"""FedCP, GPFL and FedAS beyond their plain loops: padding, what is kept, and data without classes."""

import pytest
import torch
from torch import nn

from stratafl.algorithms import algorithm
from stratafl.algorithms.fedcp import discrepancy
from stratafl.algorithms.fisher import TRACE_FLOOR
from stratafl.core.state import rows_of, tensor_of
from stratafl.data import from_splits
from stratafl.errors import StrataError
from stratafl.execute import Matrix, simulation
from stratafl.testing import CLASSES, tiny_federation, tiny_model


def test_padding_is_no_part_of_a_discrepancy():
    a, b = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    padded = [torch.cat([x, 7 * torch.ones(2, 3)]) for x in (a, b)]
    weight = torch.tensor([1.0] * 5 + [0.0] * 2, dtype=torch.float64)
    torch.testing.assert_close(discrepancy(*padded, weight), discrepancy(a, b, torch.ones(5)))
    assert float(discrepancy(a, a, torch.ones(5))) == pytest.approx(0, abs=1e-15)
    assert float(discrepancy(a, b, torch.ones(5))) > 0.01


@pytest.mark.parametrize("name", ["fedcp", "gpfl", "fedas"])
def test_data_without_classes_is_refused(name):
    numbers = from_splits([{"train": ([[0.0], [1.0]], [[0.5], [1.0]])}])
    module = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
    with pytest.raises(StrataError, match="classes"):
        simulation(algorithm(name), numbers, module, rounds=1)


def test_gpfl_knows_class_frequencies_and_never_trains_them():
    data = tiny_federation()
    sim = simulation(algorithm("gpfl"), data, tiny_model, rounds=1, dtype=torch.float64)
    progress = sim.run(Matrix())
    (name,) = sim.setup.layout.trainable("head.frequencies")
    for k, client in progress.clients.items():
        counts = torch.bincount(data.y[data.split("train").of(k)], minlength=CLASSES).double()
        torch.testing.assert_close(rows_of(client, "theta")[name].reshape(-1), counts / counts.sum())
    assert not any("frequencies" in n or "classifier" in n for n in rows_of(progress.server, "theta"))


def test_fedcp_shares_a_head_and_keeps_one():
    sim = simulation(algorithm("fedcp"), tiny_federation(), tiny_model, rounds=1, dtype=torch.float64)
    progress = sim.run(Matrix())
    kept = {n for _, client in progress.clients.items() for n in rows_of(client, "theta")}
    assert kept == set(sim.setup.layout.trainable("head.personal"))
    assert all(float(tensor_of(client, "met")) == 1 for _, client in progress.clients.items())
    assert not kept & set(rows_of(progress.server, "theta"))


def test_a_trace_that_counts_hides_the_sizes_behind_it():
    assert 1.0 + TRACE_FLOOR * 1e6 == 1.0
    assert torch.tensor(TRACE_FLOOR, dtype=torch.float32) > 0
