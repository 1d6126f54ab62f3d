"""What descents say of themselves, and parts of a model inside an objective."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from stratafl.algorithms import fedavg, fedrep
from stratafl.core.fields import Number
from stratafl.core.layers import select
from stratafl.core.records import record
from stratafl.core.state import rows_of, tensor_of
from stratafl.core.steps import Train
from stratafl.data import from_clients
from stratafl.errors import RecordError
from stratafl.execute import Matrix, simulation
from stratafl.policies import Cosine, LocalTraining
from stratafl.policies.train import tuning
from stratafl.testing import tiny_federation, tiny_model

SIZES = [7, 3]


def after(algorithm, dtype=torch.float64):
    """What is on the client's side after training, client by client."""
    sim = simulation(algorithm, tiny_federation(SIZES, dtype=dtype), tiny_model(), rounds=1, dtype=dtype)
    rnd, ids, server = sim.at(0), torch.arange(2), sim.start().server
    task = sim.task(ids, rnd)
    client = algorithm.receive(rnd, sim.client_states({}, ids), algorithm.download(rnd, server, ids), task)
    for step in algorithm.train:
        client = {**client, **step(rnd, client, task)}
    return client


@pytest.mark.slow
def test_two_descents_of_a_round_keep_their_counts_apart():
    """By hand: batches of 2 are 4 and 2 of an epoch, the head takes three epochs and the base one."""
    found = after(fedrep(head_epochs=3, train=LocalTraining(batch=2, lr=0.1)))
    assert found["head/steps"].tolist() == [12, 6]
    assert found["steps"].tolist() == [4, 2]
    assert not torch.equal(found["head/loss"], found["loss"])


@pytest.mark.slow
def test_a_rate_is_as_exact_as_the_run():
    for dtype in (torch.float64, torch.float32):
        rate = tensor_of(after(fedavg(train=LocalTraining(lr=0.1)), dtype), "rate")
        assert rate.dtype == dtype
        assert rate.tolist() == torch.tensor([0.1, 0.1], dtype=dtype).tolist()
    none = after(fedavg(train=LocalTraining(lr=0.1, epochs=0)))
    assert none["rate"].dtype == torch.float64


@record
class ReadSteps(Train):
    """Keeps how many steps a client took."""

    reads = ("steps",)
    writes = ("seen",)

    def __call__(self, rnd, client, task):
        return {"seen": tensor_of(client, "steps").double()}


def test_two_descents_with_one_purpose_are_refused_where_their_counts_are_read():
    twice = (LocalTraining(batch=2), LocalTraining(batch=2))
    replace(fedavg(), train=twice)  # nobody asks
    kept = {**fedavg().client, "seen": Number()}
    with pytest.raises(RecordError, match=r"^train: two descents .*'steps', .*ReadSteps .* purpose"):
        replace(fedavg(), train=(*twice, ReadSteps()), client=kept)
    apart = (replace(twice[0], purpose="first"), twice[1])
    sim = simulation(
        replace(fedavg(), train=(*apart, ReadSteps()), client=kept), tiny_federation(SIZES), tiny_model(), rounds=1
    )
    progress = sim.run(Matrix())
    assert [float(progress.clients[i]["seen"]) for i in range(2)] == [4.0, 2.0]


class Normed(nn.Module):
    """Two parts, both of which normalise."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.fc = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))

    def forward(self, x):
        return self.fc(self.base(x))


@record
class InParts:
    """The cross-entropy, with the model taken part by part."""

    frozen = constants = carries = ()

    def __call__(self, net, row, frozen, batch, constants, carry):
        logits = net.part("fc", row, net.part("base", row, batch.x))
        losses = nn.functional.cross_entropy(logits, batch.y, reduction="none")
        return batch.mean(losses), {}, {}


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_parts_with_batchnorm_train_as_the_whole_model_does(engine):
    """Against stock modules: one step of one client, by torch's own SGD."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 3, generator=draw, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1])
    torch.manual_seed(0)
    module = Normed().double()
    federation = from_clients([(x, y)], validation=0.0, test=0.0, dtype=torch.float64)
    method = fedavg(train=LocalTraining(lr=0.5, batch=5, objective=InParts()))
    sim = simulation(method, federation, module, rounds=1, engine=engine, dtype=torch.float64, head="fc")
    found = rows_of(sim.run(Matrix()).server, "theta")
    stock = torch.optim.SGD(module.train().parameters(), lr=0.5)
    nn.functional.cross_entropy(module(x), y).backward()
    stock.step()
    for name, expected in module.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-12)


def test_tuning_is_training_at_the_full_rate_of_which_nothing_is_kept():
    momentum = LocalTraining(lr=0.3, momentum=0.9, layers=select("head"))
    train = replace(momentum, decay=0.5, schedule=Cosine(), optimizer_state="kept", steps=4)
    assert tuning(train, 3) == replace(momentum, epochs=3, layers=select("all"), purpose="tune")
