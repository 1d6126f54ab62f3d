"""FedPer as in its paper: the split, what travels and what stays, and its variants."""

import pytest
import torch

from stratafl.algorithms import fedavg, fedper, fedprox, lgfedavg
from stratafl.core.describe import describe
from stratafl.core.fields import Start
from stratafl.core.layers import select
from stratafl.core.parcel import count_bytes
from stratafl.errors import ModelError, RecordError
from stratafl.execute import Matrix, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining, Pull
from stratafl.testing import tiny_federation, tiny_model

PERSONAL = {1: 5_130, 2: 4_725_770, 3: 9_446_410, 4: 13_119_498}  # P_H of ResNet-34, ten classes


@pytest.fixture(scope="module")
def resnet34():
    with torch.device("meta"):
        return describe(build("resnet34cifar", shape=(3, 32, 32), classes=10))


@pytest.mark.parametrize(("blocks", "columns"), PERSONAL.items())
def test_the_split_of_the_paper(resnet34, blocks, columns):
    alg = fedper(personal=f"blocks:{blocks}")
    kept = alg.client["theta"].names(resnet34, "client")
    shared = alg.server["theta"].names(resnet34, "server")
    trainable = [name for name in kept if resnet34.specs[name].trainable]
    assert sum(resnet34.specs[name].size for name in trainable) == columns
    assert set(kept) | set(shared) == set(resnet34.specs)
    assert not set(kept) & set(shared)
    assert resnet34.columns == 21_282_122


def test_without_personal_layers_the_record_is_fedavg():
    assert fedper(personal="none") == fedavg()


@pytest.mark.parametrize("alg", [fedper(), lgfedavg()], ids=["fedper", "lgfedavg"])
def test_bytes_are_those_of_the_shared_layers(alg):
    sim = simulation(alg, tiny_federation(), tiny_model(), rounds=1)
    ids = torch.tensor([0])
    down = count_bytes(alg.download(sim.at(0), alg.init(sim.setup), ids), sim.setup.layout, 1)
    shared = alg.server["theta"].names(sim.setup.layout, "server")
    assert down.total == 4 * sum(sim.setup.layout.specs[name].size for name in shared)


def test_fine_tuning_trains_the_personal_layers_first():
    first, second = fedper(personal="blocks:2", finetune=3).train
    assert (first.layers, first.epochs, second.layers, second.epochs) == (select("blocks:2"), 3, select("all"), 1)
    assert first.purpose != second.purpose


def test_a_linear_base_is_shared_and_the_personal_blocks_keep_their_names():
    sim = simulation(fedper(personal="head", linear_base=True), tiny_federation(), tiny_model(), rounds=1)
    progress = sim.run(Matrix())
    assert sim.setup.layout.names == ("base", "fc")
    assert progress.server["theta"]["base.weight"].shape == (4, 36)
    assert set(progress.clients[0]["theta"]) == {"fc.weight", "fc.bias"}


@pytest.mark.parametrize(("personal", "kept"), [("blocks:1", {"fc"}), ("blocks:2", {"conv2", "bn2", "fc"})])
def test_a_linear_base_replaces_all_but_the_personal_blocks_and_is_shared(personal, kept):
    alg = fedper(personal=personal, linear_base=True)
    layout = simulation(alg, tiny_federation(), tiny_model(), rounds=1).setup.layout
    assert set(layout.names) == {"base", *kept}
    assert set(alg.server["theta"].names(layout, "server")) == {"base.weight", "base.bias"}


def test_a_linear_base_needs_blocks_and_stages():
    with pytest.raises(RecordError, match="'conv1'"):
        fedper(personal="conv1", linear_base=True)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 3))
    with pytest.raises(ModelError, match="Sequential"):
        simulation(fedper(linear_base=True), tiny_federation(), module, rounds=1)


def test_own_heads_are_declared():
    assert fedper(initial="own").client == {"theta": Start(select("head"), own=True)}


def test_fedprox_adds_its_pull_to_edits_that_were_there():
    first = Pull(0.5, anchor="theta")
    assert fedprox(strength=0.3, train=LocalTraining(edits=first)).train[0].edits == (first, Pull(0.3))
