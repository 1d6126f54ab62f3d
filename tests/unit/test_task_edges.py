"""Edges of the task and the waist that are easy to get wrong without noticing."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stratafl.algorithms import fedavg, fedper, fedrep, local
from stratafl.algorithms.local import alone
from stratafl.core import wire
from stratafl.core.fields import Number
from stratafl.core.form import form_of
from stratafl.core.layers import Select, select
from stratafl.core.objectives import CrossEntropy
from stratafl.core.parcel import Field, LayerMask, Parcel, count_bytes
from stratafl.core.phased import Phase, Phased
from stratafl.core.records import record
from stratafl.core.reduce import add_rows
from stratafl.core.state import rows_of
from stratafl.core.steps import Serve
from stratafl.errors import DataError, ModelError, RecordError, UnknownNameError
from stratafl.evaluation.evaluate import received_models, score, score_stages, state_dict
from stratafl.execute import Matrix, simulation
from stratafl.policies import Cosine, LocalTraining, Mean, Take
from stratafl.runtime import engine as engine_module
from stratafl.runtime.cohort_task import CohortTask
from stratafl.testing import SIZES, difference, everything, tiny_federation, tiny_model


def tiny(alg=None, model=None, **options):
    options = {"rounds": 2, "dtype": torch.float64} | options
    return simulation(alg or fedavg(), tiny_federation(), model or tiny_model(), **options)


# Traces


@dataclass(frozen=True, repr=False)
class Scaled:
    """Objectives of one class that print alike and mean different things."""

    factor: float
    frozen = constants = carries = ()

    def __repr__(self):
        return "Scaled()"

    def __call__(self, net, row, frozen, batch, constants, carry):
        loss, carry, metrics = CrossEntropy()(net, row, frozen, batch, constants, carry)
        return self.factor * loss, carry, metrics


def flat(method):
    return simulation(method, tiny_federation(), tiny_model(batchnorm=False), rounds=2, dtype=torch.float64)


def test_a_trace_belongs_to_its_objective_not_to_its_name(monkeypatch):
    both = replace(fedavg(), train=tuple(LocalTraining(objective=Scaled(f), purpose=f"p{f}") for f in (1.0, -1.0)))
    outcomes = []
    for patience in (10**9, 1):
        monkeypatch.setattr(engine_module, "PATIENCE", patience)
        sim = flat(both)
        outcomes.append(sim.run(Matrix()).tensors())
    assert sim.runtime.engine._traced
    assert difference(*outcomes) == 0


CONSTANT = torch.ones(2)


@record
class LooksAtAConstant:
    """Legal when it is run, impossible to trace."""

    frozen = constants = carries = ()

    def __call__(self, net, row, frozen, batch, constants, carry):
        assert float((CONSTANT * 2).sum()) == 4.0
        return CrossEntropy()(net, row, frozen, batch, constants, carry)


@pytest.mark.slow
def test_a_step_that_cannot_be_traced_goes_on_as_it_is(monkeypatch):
    monkeypatch.setattr(engine_module, "PATIENCE", 1)
    sims = [flat(fedavg(train=LocalTraining(objective=each))) for each in (LooksAtAConstant(), None)]
    assert difference(*(sim.run(Matrix()).tensors() for sim in sims)) == 0


# Modes


class Plain(nn.Module):
    """Convolution, a BatchNorm without parameters, and a head."""

    def __init__(self, track=True):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2, affine=False, track_running_stats=track)
        self.fc = nn.Linear(2 * 16, 3)

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)).flatten(1))


@pytest.mark.slow
def test_a_batchnorm_without_parameters_trains_with_what_it_normalises():
    sim = tiny(fedrep(), Plain())
    after = received_models(sim, sim.run(Matrix()), torch.tensor([0]))
    assert after["norm.running_mean"].abs().min() > 0
    head_only = tiny(replace(fedper(), train=(LocalTraining(layers=select("head")),)), Plain())
    frozen = received_models(head_only, head_only.run(Matrix()), torch.tensor([0]))
    assert torch.equal(frozen["norm.running_mean"], torch.zeros(1, 2, dtype=torch.float64))


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_scores_do_not_depend_on_company_even_without_running_statistics(engine):
    federation = tiny_federation()
    sim = simulation(fedavg(), federation, Plain(track=False), rounds=1, dtype=torch.float64, engine=engine)
    progress, ids = sim.start(), torch.arange(len(SIZES))
    rows = received_models(sim, progress, ids)
    together = score(sim, progress, rows, ids, "train").loss
    for i in ids:
        one = {n: x[i : i + 1] for n, x in rows.items()}
        assert torch.allclose(score(sim, progress, one, ids[i : i + 1], "train").loss, together[i], rtol=1e-12)


class MyDropout(nn.Dropout):
    """A dropout that drops nothing."""

    def forward(self, x):
        return x


class MyNorm(nn.BatchNorm2d):
    """A subclass, with a forward of its own."""

    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.slow
def test_subclasses_keep_their_own_forward():
    model = tiny_model()
    model.drop = MyDropout(0.9)
    silent = tiny_model()
    silent.drop.p = 0.0
    outcomes = [everything(s, s.run(Matrix())) for s in (tiny(model=model), tiny(model=silent))]
    assert difference(*outcomes) == 0
    norm = tiny_model()
    norm.bn1 = MyNorm(4)
    with pytest.raises(ModelError, match="'bn1' is a MyNorm"):
        tiny(model=norm, engine="stacked")
    assert type(tiny(model=norm).runtime.engine).__name__ == "LoopEngine"


# The model inside an objective


@record
class WithCopy:
    """Uses a copy of the row whose head is detached."""

    train: bool | None = None
    frozen = constants = carries = ()

    def __call__(self, net, row, frozen, batch, constants, carry):
        copy = {n: x.detach() if n.startswith("fc") else x for n, x in row.items()}
        loss = batch.mean(F.cross_entropy(net(copy, batch.x, train=self.train), batch.y, reduction="none"))
        return loss, carry, {}


def test_a_row_that_is_not_known_must_say_how_it_runs():
    sim = tiny(fedavg(train=LocalTraining(objective=WithCopy())))
    with pytest.raises(ModelError, match="pass train=True or train=False"):
        sim.run(Matrix())


def test_a_detached_copy_trains_the_rest():
    sim = tiny(fedavg(train=LocalTraining(objective=WithCopy(train=True))), rounds=1)
    after = received_models(sim, sim.run(Matrix()), torch.tensor([0]))
    assert torch.equal(after["fc.weight"][0], sim.setup.start["fc.weight"])
    assert not torch.equal(after["conv1.weight"][0], sim.setup.start["conv1.weight"])


@record
class ByParts:
    """The head applied to features, by its name."""

    frozen = constants = carries = ()

    def __call__(self, net, row, frozen, batch, constants, carry):
        logits = net.part("fc", row, net.features(row, batch.x))
        return batch.mean(F.cross_entropy(logits, batch.y, reduction="none")), carry, {}


@pytest.mark.slow
def test_a_part_of_the_model_runs_alone():
    outcomes = [
        everything(s, s.run(Matrix())) for s in (tiny(fedavg(train=LocalTraining(objective=ByParts()))), tiny())
    ]
    assert difference(*outcomes) < 1e-12


# Fields, parcels, sums


def test_own_heads_leave_given_local_statistics_alone():
    model = tiny_model()
    model.bn1.running_mean.fill_(5.0)
    sim = tiny(fedper(initial="own"), model, buffers="local")
    rows = received_models(sim, sim.start(), torch.tensor([0, 1]))
    assert torch.equal(rows["bn1.running_mean"], torch.full((2, 4), 5.0, dtype=torch.float64))
    assert not torch.equal(rows["fc.weight"][0], rows["fc.weight"][1])


@pytest.mark.parametrize(("width", "size"), [("clients", 6), ("layers", 5), ("classes", 3), ("features", 4), (7, 7)])
def test_numbers_as_wide_as_what_the_federation_knows(width, size):
    assert Number(width=width).create(tiny().setup, torch.arange(2), "client").shape == (2, size)


def test_an_unknown_width_is_refused():
    with pytest.raises(UnknownNameError, match="unknown width 'client'; did you mean 'clients'"):
        Number(width="client").create(tiny().setup, None, "server")


def test_several_rows_for_one_client_cross_the_wire():
    layout = tiny().setup.layout
    rows = {n: torch.randn(1, 3, *s.shape) for n, s in layout.specs.items()}
    parcel = Parcel({"pool": Field(rows)})
    data = wire.encode(parcel, layout)
    again = wire.decode(data, layout, form_of(parcel, layout))
    assert difference(again["pool"].rows, rows) == 0
    assert wire.body_bytes(data) == count_bytes(parcel, layout, 1).total


def test_sums_keep_blocks_that_a_later_chunk_does_not_hold():
    one = add_rows({}, torch.tensor([2.0]), {"a": torch.ones(1, 2)}, None)
    both = add_rows(one, torch.tensor([3.0]), {"b": torch.ones(1, 2)}, None)
    assert {n: x.tolist() for n, x in both.items()} == {"a": [2.0, 2.0], "b": [3.0, 3.0]}


def test_weights_of_a_mean_are_checked():
    says = r"merge: Mean .*'up\.smaples'.*: theta, up\.samples, up\.theta"
    with pytest.raises(RecordError, match=says):
        replace(fedavg(), merge=(Mean(weights="smaples"),))


# Rounds


@pytest.mark.slow
def test_models_right_after_training_can_be_examined():
    sim, seen = tiny(local()), {}
    progress, _ = sim.round(
        sim.start(), Matrix(chunk=2), examine=lambda ids, _, rows: seen.update({int(i): rows for i in ids})
    )
    assert set(seen) == set(range(len(SIZES)))
    sim = tiny(fedper())
    got = {}
    progress, _ = sim.round(sim.start(), Matrix(chunk=1), examine=lambda ids, _, rows: got.update({int(ids): rows}))
    for client, rows in got.items():
        assert torch.equal(rows["fc.weight"][0], progress.clients[client]["theta"]["fc.weight"])
        assert not torch.equal(rows["conv1.weight"][0], progress.server["theta"]["conv1.weight"])


@pytest.mark.slow
def test_a_finish_has_a_clock_of_its_own():
    train = LocalTraining(schedule=Cosine())
    alg = Phased((Phase(fedavg(train=train)),), finish=Phase(alone(train=train), participation="all"))
    sim = tiny(alg, rounds=2)
    progress, seen = sim.start(), []
    for _ in range(3):
        before = progress
        progress, report = sim.round(progress, Matrix())
        seen.append(report.notes["train/loss"].mean())
    moved = [progress.clients[i]["theta"]["fc.weight"] - before.clients[i]["theta"]["fc.weight"] for i in range(6)]
    assert all(m.abs().max() > 1e-6 for m in moved)


def test_fine_tuning_counts_epochs_even_where_training_counts_steps():
    first, second = fedper(finetune=1, train=LocalTraining(steps=3)).train
    assert (first.steps, first.epochs, second.steps) == (None, 1, 3)
    assert fedrep(head_epochs=2, train=LocalTraining(steps=3)).train[0].steps is None


@record
class Selective:
    """An edit that names layers."""

    layers: Select = select("conv9")
    reads = ()

    def __call__(self, gradients, row, client, layout):
        return gradients


def test_steps_are_taken_even_where_no_epoch_is():
    sim = tiny(fedavg(train=LocalTraining(epochs=0, steps=2)))
    assert sim.round(sim.start(), Matrix())[1].notes["train/steps"].tolist() == [2] * 6


def test_layers_named_deep_inside_a_record_are_checked():
    with pytest.raises(UnknownNameError, match="unknown layer 'conv9'"):
        tiny(fedavg(train=LocalTraining(edits=(Selective(),))))


@record
class Summing:
    """An edit that loses the client axis."""

    reads = ()

    def __call__(self, gradients, row, client, layout):
        return {n: g.sum(0) for n, g in gradients.items()}


def test_an_edit_that_loses_the_client_axis_is_refused():
    sim = tiny(fedavg(train=LocalTraining(edits=Summing())))
    with pytest.raises(RecordError, match=r"Summing returns \(4, 1, 3, 3\) for 'conv1.weight', which has shape \(6, 4"):
        sim.run(Matrix())


@pytest.mark.parametrize(("ids", "says"), [([0, 9], "no client 9"), ([1, 1, 0], "client 1 .* 2 times")])
def test_cohorts_that_cannot_be_are_refused(ids, says):
    sim = tiny()
    with pytest.raises(DataError, match=says):
        sim.round(sim.start(), Matrix(), torch.tensor(ids))


def test_a_share_of_the_clients_is_not_lost_to_rounding():
    federation = tiny_federation([4] * 100)
    sim = simulation(fedavg(), federation, tiny_model(), rounds=1, participation=0.29)
    assert len(sim.cohort(sim.at(0))) == 29


def test_evaluation_keeps_to_the_memory_limit(monkeypatch):
    sizes = []
    scores = CohortTask.scores

    def counting(self, rows, split):
        sizes.append(len(self))
        return scores(self, rows, split)

    monkeypatch.setattr(CohortTask, "scores", counting)
    sim = tiny()
    limited = replace(sim, round_limit=sim.needs(len(SIZES)).evaluating(2))
    ids = torch.arange(len(SIZES))
    cut = score_stages(limited, limited.start(), ids, ["test"])["test.deployed"]
    whole = score_stages(sim, sim.start(), ids, ["test"])["test.deployed"]
    assert sizes == [2, 2, 2, 6]
    assert torch.equal(cut.loss, whole.loss)


def test_a_clients_model_comes_back_as_a_state_dict():
    sim = tiny(fedper())
    progress = sim.run(Matrix())
    module = tiny_model().double()
    missing, unexpected = module.load_state_dict(state_dict(sim, progress, 3), strict=False)
    assert not unexpected
    assert all("num_batches_tracked" in name for name in missing)
    assert torch.equal(module.fc.weight, progress.clients[3]["theta"]["fc.weight"])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lr": "fast"}, "lr must be a number"),
        ({"lr": True}, "lr must be a number"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"steps": -3}, "steps must"),
        ({"steps": 0}, "steps must be at least 1"),
    ],
)
def test_kinds_of_numbers_are_checked(given, says):
    with pytest.raises(RecordError, match=says):
        LocalTraining(**given)


def test_a_masked_download_needs_the_clients_own_row():
    @record
    class Masked(Serve):
        reads = ("theta",)
        writes = ("down.theta",)

        def __call__(self, rnd, server, ids):
            return {"theta": Field(rows_of(server, "theta"), True, LayerMask(rnd.layout.layer_mask("base")))}

    sim = tiny(replace(fedavg(), serve=(Masked(),), mix=(Take(),)))
    with pytest.raises(RecordError, match=r"Take.*'conv1'"):
        sim.run(Matrix())


@pytest.mark.budget(1, "the first use of a model")
@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_small_clients_do_not_wait_for_large_ones_in_an_evaluation(monkeypatch, engine):
    """Three samples at a time of clients of all sizes: the same numbers as all at once."""
    sim = tiny(engine=engine)
    task, rows = sim.task(torch.arange(6), sim.at(0)), received_models(sim, sim.start(), torch.arange(6))
    whole = [task.scores(rows, "train").loss, task.scores(rows, "train").hits, *task.features(rows, "train")]
    monkeypatch.setattr("stratafl.runtime.cohort_task.EVALUATION_BATCH", 3)
    parts = [task.scores(rows, "train").loss, task.scores(rows, "train").hits, *task.features(rows, "train")]
    left = [sum(size > start for size in SIZES) for start in range(0, max(SIZES), 3)]
    assert [len(here) for here, *_ in task.sweep(rows, "train")] == left
    weight = whole[-1]
    assert torch.equal(weight, parts[-1])
    for a, b in zip(whole[:2], parts[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    torch.testing.assert_close(whole[2] * weight[..., None], parts[2] * weight[..., None], rtol=0, atol=1e-12)
    assert torch.equal(whole[3] * weight, parts[3] * weight)
