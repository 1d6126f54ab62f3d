"""pFedHN: what the hypernetwork starts as, what it takes, and what it makes for whom."""

from dataclasses import replace

import pytest
import torch

from stratafl.algorithms import pfedhn, pfedhnpc
from stratafl.algorithms.model_generator import GeneratorField, ModelGenerator
from stratafl.core.keys import Seeds
from stratafl.core.state import flatten, stored_bytes
from stratafl.errors import MemoryLimitError
from stratafl.execute import Matrix, simulation
from stratafl.execute.memory import server_bytes
from stratafl.testing import tiny_federation, tiny_model


def made(method, clients=6, **options):
    return simulation(method, tiny_federation([4] * clients), tiny_model(), rounds=2, **options)


@pytest.mark.slow
def test_the_hypernetwork_has_the_papers_sizes():
    sim = made(pfedhn(), clients=9)
    server, P = sim.start().server, sim.setup.layout.columns
    shapes = {name: tuple(server[name].shape) for name in ("v", "psi0.weight", "psi3.weight", "psi3.bias")}
    assert shapes == {"v": (9, 3), "psi0.weight": (100, 3), "psi3.weight": (100, 100), "psi3.bias": (100,)}
    assert "psi4.weight" not in server
    assert sum(x.numel() for x in server["out.weight"].values()) == 100 * P
    assert server_bytes(sim.algorithm, sim.setup) == stored_bytes(server)
    without = made(pfedhn(momentum=0.0), clients=9)
    assert 2 * server_bytes(without.algorithm, without.setup) == stored_bytes(server)


@pytest.mark.parametrize("initial", ["model", "drawn"])
def test_layers_start_as_torch_draws_them_and_output_biases_as_the_model(initial):
    sim = made(pfedhn(hidden=25, initial=initial))
    server = sim.start().server
    for name, x in flatten(server).items():
        if "velocity" in name:
            assert not x.any()
        elif name != "v" and not name.startswith(("psi0", "out.bias")):
            assert 0.15 < float(x.abs().max()) <= 0.2, name
    same = all(torch.equal(x, sim.setup.start[n]) for n, x in server["out.bias"].items())
    assert same == (initial == "model")


def test_embeddings_are_normal_and_keyed_by_the_client():
    setup, part = made(pfedhn()).setup, GeneratorField(ModelGenerator(embedding=5), "v")
    many = part.create(replace(setup, clients=4000), None, "server")
    assert torch.equal(many[:6], part.create(setup, None, "server"))
    assert abs(float(many.mean())) < 0.03
    assert abs(float(many.std()) - 1) < 0.03
    assert not torch.equal(many, part.create(replace(setup, clients=4000, seeds=Seeds.of(1)), None, "server"))


def test_a_clients_model_has_the_same_bits_whoever_else_is_served():
    sim = made(pfedhn())
    server, rnd, everybody = sim.start().server, sim.at(0), torch.arange(6)
    together = sim.algorithm.download(rnd, server, everybody)["theta"].rows
    for k in everybody.split(1):
        alone = sim.algorithm.download(rnd, server, k)["theta"].rows
        assert all(torch.equal(alone[n], x[k]) for n, x in together.items())


def test_new_clients_get_the_model_of_the_mean_embedding():
    sim = made(pfedhn(), clients=8, new_clients=2)
    progress = sim.run(Matrix())
    new = sim.algorithm.download(sim.at(2), progress.server, torch.tensor([6, 7]), new=True)["theta"].rows
    mean = {**progress.server, "v": progress.server["v"].mean(0, keepdim=True)}
    expected = sim.algorithm.download(sim.at(2), mean, torch.tensor([0]))["theta"].rows
    for n, x in new.items():
        torch.testing.assert_close(x, expected[n].expand_as(x))


def test_personal_layers_are_neither_generated_nor_sent():
    sim = made(pfedhnpc())
    server = sim.start().server
    assert not any(n.startswith("fc") for n in server["out.weight"])
    task = sim.task(torch.arange(2), sim.at(0))
    down = sim.algorithm.download(sim.at(0), server, torch.arange(2))
    client = sim.algorithm.receive(sim.at(0), sim.client_states({}, torch.arange(2)), down, task)
    kept, upload, _ = sim.algorithm.work(sim.at(0), client, task)
    assert set(upload) == {"theta"}
    assert set(upload["theta"].rows) == set(server["out.weight"])
    statistics = {n for n, spec in sim.setup.layout.specs.items() if not spec.trainable}
    assert set(kept["theta"]) == {"fc.weight", "fc.bias"} | statistics


def test_a_hypernetwork_that_does_not_fit_is_refused_before_the_first_round(monkeypatch):
    monkeypatch.setattr("stratafl.execute.executors.device_memory", lambda device: 10**7)
    with pytest.raises(MemoryLimitError, match=r"\dGB"):
        made(pfedhn(hidden=4000))
