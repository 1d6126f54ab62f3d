"""Where to cut a model: both rules by hand, and the gradients against plain PyTorch."""

import pytest
import torch
from torch.nn import functional

from simulations import built
from stratafl.advice.cuts import (
    Cut,
    conflict_cut,
    cut_layers,
    cuts_of,
    first_gradients,
    sensitivities,
    sensitivity_cut,
)
from stratafl.algorithms import fedavg
from stratafl.execute import Matrix
from stratafl.testing import SIZES


def test_sensitivity_is_the_mean_of_squared_weight_times_gradient() -> None:
    sim = built(fedavg(), batchnorm=False)
    layout = sim.setup.layout
    rows = {name: torch.zeros(2, *layout.specs[name].shape).double() for name in layout.specs}
    gradients = {name: torch.ones_like(x) for name, x in rows.items()}
    rows["fc1.weight"][0, 0, 0], rows["fc1.weight"][1, 0, 1] = 3.0, -2.0
    gradients["fc1.weight"][0, 0, 0], gradients["fc1.weight"][1, 0, 1] = 2.0, 5.0
    rows["fc1.bias"] += 7  # biases do not count
    rows["fc.weight"] += 2.0
    expected = [(36 + 100) / 2 / rows["fc1.weight"][0].numel(), 4.0]
    assert sensitivities(layout, rows, gradients).tolist() == pytest.approx(expected)


def test_gradients_are_those_of_plain_pytorch() -> None:
    sim = built(fedavg(), batchnorm=False)
    ids = torch.tensor([0, 3])
    rows = {
        name: x.expand(2, *x.shape) * torch.tensor([1.0, 0.5]).view(2, *[1] * x.ndim)
        for name, x in sim.setup.start.items()
    }
    gradients = first_gradients(sim.task(ids, sim.at(0)), rows)
    assert {*gradients} == {"fc1.weight", "fc.weight"}
    federation = sim.runtime.federation
    for place, client in enumerate(ids.tolist()):
        row = {name: x[place].clone().requires_grad_() for name, x in rows.items()}
        samples = federation.split("train").of(client)
        hidden = functional.relu(federation.x[samples].flatten(1) @ row["fc1.weight"].T + row["fc1.bias"])
        loss = functional.cross_entropy(hidden @ row["fc.weight"].T + row["fc.bias"], federation.y[samples])
        loss.backward()
        for name, gradient in gradients.items():
            assert torch.allclose(gradient[place], row[name].grad, atol=1e-10)


def test_the_rules_by_hand() -> None:
    assert sensitivity_cut([1.0, 2.0, 10.0, 11.0]) == 2  # ratios 2, 5, 1.1: the layers before the jump to the third
    assert sensitivity_cut([1e-9, 1e-3, 1e-2]) == 1
    assert sensitivity_cut([3.0, 2.0, 1.0]) == 3  # nothing jumps
    assert conflict_cut([0.1, 0.2, 0.6, 0.7]) == 2
    assert conflict_cut([0.7, 0.2, 0.5]) == 0
    assert conflict_cut([0.05, 0.0, 0.09]) == 3  # few conflicts


def test_normalisations_and_their_layers_are_cut_together() -> None:
    layout = built(fedavg()).setup.layout
    layers = cut_layers(layout)
    assert not any("bn" in name for name in layers)
    sharp, conflicts = cuts_of(layout, [1.0] * (len(layers) - 1) + [9.0], dict.fromkeys(layers, 0.0))
    assert (sharp.shared, sharp.personal) == (len(layers) - 1, "last:1")
    assert (conflicts.shared, conflicts.personal) == (len(layers), "none")
    assert Cut("x", tuple(layers), 0).personal == "all"


def test_looking_at_the_cut_changes_no_bit_of_the_round() -> None:
    sim = built(fedavg(), batchnorm=False)
    plain, _ = sim.round(sim.start(), Matrix())
    rnd = sim.at(0)
    looked, _ = sim.round(
        sim.start(), Matrix(), examine=lambda ids, _, trained: first_gradients(sim.task(ids, rnd), trained)
    )
    assert len(SIZES) == sim.setup.clients
    for name, x in plain.tensors().items():
        assert torch.equal(x, looked.tensors()[name])
