"""The seams that later methods need, each proven by a small throw-away method."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stratafl.algorithms import fedavg, fedper, local
from stratafl.core.fields import Number, Start
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.core.parcel import ColumnMask, Field, LayerMask
from stratafl.core.phased import Phase, Phased
from stratafl.core.records import record
from stratafl.core.round import Plan
from stratafl.core.state import rows_of
from stratafl.core.steps import MergeRows, Mix, Send, Serve, Train
from stratafl.errors import MemoryLimitError, StrataError
from stratafl.evaluation.evaluate import deployed, received_models
from stratafl.execute import Matrix, Messages, simulation
from stratafl.policies import Broadcast, Deliver, LocalTraining, Mean, Take, Upload
from stratafl.testing import CLASSES, SIZES, check_algorithm, difference, tiny_federation, tiny_model

ONE = [("follow", 0.5)]
N = len(SIZES)


def run(algorithm, *, rounds=2, executor=None, **options):
    options = {"dtype": torch.float64, "engine": "stacked"} | options
    sim = simulation(algorithm, tiny_federation(), tiny_model(), rounds=rounds, **options)
    return sim, sim.run(executor or Matrix())


# An objective with features, a frozen row and a carry (MOON, FedDBE)


@record
class FeaturePull:
    """Cross-entropy plus the distance of features to a frozen model's, and a running mean of the features."""

    strength: float = 0.5
    frozen = ("anchor",)
    constants = ("bias",)
    carries = ("mean",)

    def __call__(self, net, row, frozen, batch, constants, carry):
        logits, z = net.both(row, batch.x)
        with torch.no_grad():
            target = net.features(frozen["anchor"], batch.x)
        mean = 0.5 * carry["mean"] + 0.5 * batch.average(z)
        loss = batch.mean(F.cross_entropy(logits + constants["bias"], batch.y, reduction="none"))
        loss = loss + self.strength * batch.mean((z - target).square()) + mean.square().sum()
        return loss, {"mean": mean.detach()}, {"distance": batch.mean((z - target).square())}


@record
class Anchor(Mix):
    reads = ("theta",)
    writes = ("anchor", "bias")

    def __call__(self, rnd, client, down, task):
        counts = task.class_counts("train").to(torch.float64)
        return {"anchor": client["theta"], "bias": (counts + 1).log()}


def feature_pull():
    return replace(
        fedavg(),
        mix=(Take(), Anchor()),
        train=(LocalTraining(objective=FeaturePull()),),
        client={**fedavg().client, "mean": Number(width=4)},
    )


@pytest.mark.nightly  # slow: methods of the catalogue with this seam
def test_objective_with_features_frozen_row_and_carry_keeps_the_contract():
    check_algorithm(feature_pull(), settings=ONE)


def test_objective_with_features_frozen_row_and_carry_is_what_plain_torch_computes():
    federation = tiny_federation([10])
    module = tiny_model()
    module.drop.p = 0.0
    sim = simulation(feature_pull(), federation, module, rounds=1, dtype=torch.float64)
    progress = sim.run(Matrix())
    ours = received_models(sim, progress, torch.tensor([0]))

    live, frozen = (tiny_model().double() for _ in range(2))
    live.drop.p = frozen.drop.p = 0.0
    live.train()
    frozen.eval()
    own = federation.split("train").of(0)
    x, y = federation.x[own], federation.y[own]
    bias = (torch.bincount(y, minlength=CLASSES).double() + 1).log()
    z = live.features(x)
    mean = 0.5 * z.mean(0)
    loss = F.cross_entropy(live.fc(z) + bias, y) + 0.5 * (z - frozen.features(x).detach()).square().mean()
    loss = loss + mean.square().sum()
    loss.backward()
    with torch.no_grad():
        for p in live.parameters():
            p -= 0.05 * p.grad
    theirs = {n: t.unsqueeze(0) for n, t in live.state_dict().items() if t.is_floating_point()}
    assert difference(ours, theirs) < 1e-12
    assert torch.allclose(progress.clients[0]["mean"], mean.detach(), atol=1e-12)


# An extended model (FedRoD, FedDBE)


class WithBias(nn.Module):
    """The given model with a private vector added to its features."""

    def __init__(self, inner, width):
        super().__init__()
        self.inner = inner
        self.shift = nn.Linear(width, width, bias=False)
        self.head_name = "inner.fc"
        nn.init.eye_(self.shift.weight)

    def forward(self, x):
        return self.inner.fc(self.shift(self.inner.features(x)))


@record
class AddShift:
    def __call__(self, module, example, classes, head):
        return WithBias(module, module.features(example).shape[1])


SHIFTED = replace(fedper(personal="shift"), extension=AddShift())


def test_extended_model_keeps_its_names():
    sim, progress = run(SHIFTED)
    assert sim.setup.layout.names == ("conv1", "bn1", "conv2", "bn2", "fc", "shift")
    assert [layer.name for layer in sim.setup.layout.layers if layer.head] == ["fc"]
    assert set(progress.clients[0]["theta"]) == {"shift.weight"}
    assert not any(name.startswith("shift") for name in progress.server["theta"])
    assert (progress.clients[0]["theta"]["shift.weight"] - torch.eye(4)).abs().max() > 1e-4


@pytest.mark.nightly  # slow: methods of the catalogue with this seam
def test_extended_model_keeps_the_contract():
    check_algorithm(SHIFTED, settings=ONE)


def test_extension_leaves_the_common_start_as_it_is():
    plain = simulation(fedavg(), tiny_federation(), lambda: tiny_model(), rounds=1)
    extended = simulation(replace(fedavg(), extension=AddShift()), tiny_federation(), lambda: tiny_model(), rounds=1)
    for name, tensor in plain.setup.start.items():
        assert torch.equal(tensor, extended.setup.start["inner." + name])


# A phase change with all clients taking part once (FedALP's probe, FedBABU's finish)


def probed():
    """FedAvg, a probe of everybody that nobody learns from, and a phase with private heads."""
    probe = replace(fedavg(train=LocalTraining(lr=0.0)), train=())
    return Phased(
        (Phase(fedavg(), rounds=1), Phase(probe, rounds=1, participation="all", evaluated=False), Phase(fedper())),
        finish=Phase(local().phases[0].algorithm, participation="all"),
    )


@pytest.mark.slow
def test_phases_change_who_takes_part_and_carry_fields_over():
    sim = simulation(probed(), tiny_federation(), tiny_model(), rounds=4, participation=0.5, dtype=torch.float64)
    progress, cohorts = sim.start(), []
    for _ in range(sim.rounds):
        progress, report = sim.round(progress, Matrix())
        cohorts.append(len(report.cohort))
    assert cohorts == [3, 6, 3, 3, 6]
    assert [sim.at(t).plan for t in (1, 4)] == [Plan(1, "all", False), Plan(3, "all", True, schedule=(0, 1))]
    assert report.up.total == 0  # the finish is local
    assert set(progress.clients) == set(range(N))


def test_after_a_probe_of_everybody_every_client_has_the_global_head():
    sim = simulation(probed(), tiny_federation(), tiny_model(), rounds=4, participation=0.5, dtype=torch.float64)
    progress = sim.start()
    for _ in range(2):
        progress, _ = sim.round(progress, Matrix())
    for memory in progress.clients.values():
        assert torch.allclose(memory["theta"]["fc.weight"], progress.server["theta"]["fc.weight"], rtol=1e-14)


@pytest.mark.nightly  # slow: methods of the catalogue with this seam
def test_phased_keeps_the_contract():
    check_algorithm(probed(), rounds=4, settings=ONE)


# A per-client download, and a server that keeps a row per client (pFedLA, APPLE, FedFomo)


@record
class KeepRows(MergeRows):
    """Each upload replaces the row of who sent it."""

    reads = ("up.theta", "models")
    writes = ("models",)

    def absorb(self, rnd, server, up, ids):
        models = {}
        for name, block in rows_of(server, "models").items():
            models[name] = block.clone()
            models[name][ids] = up["theta"].rows[name]
        return {"models": models}


@record
class DeliverMix(Serve):
    """To each client the mean of its own row and the mean of all rows."""

    reads = ("models",)
    writes = ("down.theta",)

    def __call__(self, rnd, server, ids):
        count = rnd.setup.clients
        weights = 0.5 * torch.eye(count, dtype=torch.float64) + 0.5 / count
        return {"theta": Field(rnd.layout.blend(weights[ids], rows_of(server, "models")))}


@record
class MeanModel(Serve):
    """To a client without a row the mean of all rows."""

    reads = ("models",)
    writes = ("down.theta",)

    def __call__(self, rnd, server, ids):
        return {"theta": Field({n: x.mean(0) for n, x in rows_of(server, "models").items()}, common=True)}


def row_keeper(serve, mix=Take()):
    return Layerwise(
        serve=(serve,),
        mix=(mix,),
        train=(LocalTraining(),),
        send=(Upload(),),
        merge=(KeepRows(),),
        server={"models": Start(per_client=True)},
        client={"theta": Start(select("none"))},
    )


@pytest.mark.nightly  # slow: methods of the catalogue with this seam
def test_server_that_keeps_a_row_per_client_keeps_the_contract():
    algorithm = replace(row_keeper(DeliverMix()), welcome=(MeanModel(),))
    check_algorithm(algorithm, settings=ONE)


@pytest.mark.slow
def test_delivering_own_rows_is_local_training():
    sim, progress = run(row_keeper(Deliver(field="models"), Take("models", "theta")))
    alone, alone_progress = run(local())
    ids = torch.arange(N)
    assert difference(received_models(sim, progress, ids), received_models(alone, alone_progress, ids)) < 1e-12


def test_stored_rows_belong_to_who_sent_them():
    sim, progress = run(row_keeper(DeliverMix()), participation=0.5, rounds=1)
    cohort = set(sim.cohort(sim.at(0)).tolist())
    start = sim.setup.start["fc.weight"]
    for client in range(N):
        row = progress.server["models"]["fc.weight"][client]
        assert torch.equal(row, start) == (client not in cohort)


def test_rows_are_refused_above_the_memory_limit():
    sim = simulation(row_keeper(DeliverMix()), tiny_federation(), tiny_model(), rounds=1, dtype=torch.float64)
    limited = replace(sim, round_limit=10_000)
    with pytest.raises(MemoryLimitError, match=r"\b6 clients.*\b1\d(\.\d)?KB.*\b10KB"):
        limited.round(limited.start(), Matrix(chunk=2))
    progress, _ = replace(sim, round_limit=1_000_000).round(sim.start(), Matrix(chunk=2))
    assert progress.t == 1


def test_sums_need_no_more_memory_than_a_chunk():
    sim = simulation(fedavg(), tiny_federation(), tiny_model(), rounds=1, dtype=torch.float64)
    progress, _ = replace(sim, round_limit=10_000).round(sim.start(), Matrix(chunk=2))
    assert progress.t == 1


# A deploy that tunes a copy (FedBABU, Per-FedAvg)


def tuned():
    return replace(fedavg(), tune=(LocalTraining(lr=0.1, purpose="tune"),))


def test_deploy_tunes_a_copy():
    sim, progress = run(tuned())
    before = {k: x.clone() for k, x in progress.tensors().items()}
    ids = torch.arange(N)
    plain, tuned_rows = received_models(sim, progress, ids), deployed(sim, progress, ids)
    assert difference(before, progress.tensors()) == 0
    assert all(torch.equal(plain["fc.weight"][0], row) for row in plain["fc.weight"])
    assert len({tuple(row.flatten().tolist()) for row in tuned_rows["fc.weight"]}) == N


@pytest.mark.slow
def test_tuning_is_a_round_of_local_training():
    sim, progress = run(tuned())
    alone = replace(
        sim, algorithm=replace(fedavg(), train=(LocalTraining(lr=0.1, purpose="tune"),), client={"theta": Start()})
    )
    trained, _ = alone.round(progress, Matrix(), torch.arange(N))
    ids = torch.arange(N)
    kept = {n: torch.stack([trained.clients[i]["theta"][n] for i in range(N)]) for n in sim.setup.layout.specs}
    assert difference(deployed(sim, progress, ids), kept) < 1e-12


@pytest.mark.nightly  # slow: methods of the catalogue with this seam
def test_tuned_keeps_the_contract():
    check_algorithm(tuned(), settings=ONE)


# Several rows on one batch (FedRoD, pFedMe), several independent batches per step (Per-FedAvg)


@record
class MetaStep(Train):
    """First-order MAML: θ̃ = θ − α∇L(θ; D), θ ← θ − β∇L(θ̃; D′), with D and D′ drawn independently."""

    alpha: float = 0.05
    beta: float = 0.1
    reads = writes = ("theta",)

    def __call__(self, rnd, client, task):
        def step(carry, held, first, second):
            theta = carry["theta"]
            inner = task.gradients(theta, first)
            ahead = {n: x - self.alpha * inner.rows[n] if n in inner.rows else x for n, x in theta.items()}
            outer = task.gradients(ahead, second)
            moved = {n: x - self.beta * outer.rows[n] if n in outer.rows else x for n, x in theta.items()}
            return {"theta": {**moved, **outer.statistics}}

        return task.scan(step, {"theta": client["theta"]}, batch=10, draws=2)


@pytest.mark.nightly  # slow: methods of the catalogue with this seam
def test_independent_batches_keep_the_contract():
    check_algorithm(replace(fedavg(), train=(MetaStep(),)), settings=ONE)


def test_independent_batches_are_independent():
    seen = []

    @record
    class Look(Train):
        reads = writes = ("theta",)

        def __call__(self, rnd, client, task):
            def step(carry, held, first, second):
                seen.append(torch.equal(first.x, second.x))
                return carry

            return task.scan(step, {"theta": client["theta"]}, batch=10, draws=2)

    run(replace(fedavg(), train=(Look(),)), rounds=1)
    assert seen
    assert not any(seen)


@record
class TwoRows(Train):
    """Two models on the same batch: one shared, one personal that is pulled to it (Ditto in one loop)."""

    pull: float = 0.5
    reads = writes = ("theta", "personal")

    def __call__(self, rnd, client, task):
        def step(carry, held, stack):
            theta, own = carry["theta"], carry["personal"]
            shared, personal = task.gradients(theta, stack), task.gradients(own, stack)
            moved = {n: x - 0.05 * shared.rows[n] if n in shared.rows else x for n, x in theta.items()}
            pulled = {n: g + self.pull * (own[n] - theta[n]) for n, g in personal.rows.items()}
            nearer = {n: x - 0.05 * pulled[n] if n in pulled else x for n, x in own.items()}
            return {"theta": {**moved, **shared.statistics}, "personal": {**nearer, **personal.statistics}}

        return task.scan(step, {k: client[k] for k in ("theta", "personal")}, batch=10)


def two_rows(pull):
    return replace(fedavg(), train=(TwoRows(pull),), client={**fedavg().client, "personal": Start()}, row="personal")


@pytest.mark.nightly  # slow: methods of the catalogue with this seam
def test_several_rows_on_one_batch_keep_the_contract():
    check_algorithm(two_rows(0.5), settings=ONE)


@pytest.mark.slow
def test_without_a_pull_the_second_row_is_local_training():
    sim, progress = run(two_rows(0.0))
    alone, alone_progress = run(local())
    ids = torch.arange(N)
    assert difference(received_models(sim, progress, ids), received_models(alone, alone_progress, ids)) < 1e-12


# Masks per client


@record
class BroadcastAlternating(Serve):
    """Even clients get the base, odd ones the head: a layer mask per client."""

    reads = ("theta",)
    writes = ("down.theta",)

    def __call__(self, rnd, server, ids):
        base, head = rnd.layout.layer_mask("base"), rnd.layout.layer_mask("head")
        sent = torch.where((ids % 2 == 0)[:, None], base, head)
        rows = rows_of(server, "theta")
        return {"theta": Field({n: x.expand(len(ids), *x.shape) for n, x in rows.items()}, mask=LayerMask(sent))}


@record
class UploadLargest(Send):
    """The larger half of each tensor's values: a column mask."""

    reads = ("theta",)
    writes = ("up.theta", "up.samples")

    def __call__(self, rnd, client, task):
        rows = {n: x for n, x in rows_of(client, "theta").items() if n in rnd.layout.travelling()}
        sent = {n: x >= x.flatten(1).median(1).values.reshape(-1, *(1,) * (x.ndim - 1)) for n, x in rows.items()}
        return {"theta": Field(rows, mask=ColumnMask(sent)), "samples": Field(task.sizes("train"))}


def masked():
    return replace(
        fedavg(),
        serve=(BroadcastAlternating(),),
        send=(UploadLargest(),),
        merge=(Mean(),),
        client={"theta": Start()},
    )


@pytest.mark.nightly  # slow: methods of the catalogue with this seam
def test_masks_per_client_and_column_keep_the_contract():
    check_algorithm(masked(), settings=ONE)


def test_masks_per_client_are_counted():
    sim = simulation(masked(), tiny_federation(), tiny_model(), rounds=1, dtype=torch.float64)
    _, report = sim.round(sim.start(), Messages(), torch.tensor([0, 1]))
    layout = sim.setup.layout
    size = {name: sum(layout.specs[t].size for t in layout.layer(name).tensors) for name in layout.names}
    base = 8 * sum(size[name] for name in layout.names if name != "fc")
    assert report.down.clients.tolist() == [base + 1, 8 * size["fc"] + 1]


def test_broadcast_of_a_part_needs_the_rest_from_the_client():
    broken = replace(fedavg(), serve=(Broadcast(select("base")),))
    sim = simulation(broken, tiny_federation(), tiny_model(), rounds=1)
    with pytest.raises(StrataError, match="'fc'"):
        sim.round(sim.start(), Matrix())
