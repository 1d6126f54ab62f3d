"""Frozen parameters: no columns, but one tensor that all clients share, whichever way a step is computed."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn

import stratafl
from simulations import federation
from stratafl.algorithms import fedavg, fedper
from stratafl.api import Fitted
from stratafl.config.experiment import from_tables, to_tables, with_values
from stratafl.config.setting_tables import parse_settings
from stratafl.core.describe import columns, describe, freeze, frozen_tensors, light_copy
from stratafl.core.layers import select
from stratafl.core.objectives import default_objective
from stratafl.core.task import Inputs, Stack
from stratafl.data.sample_format import SampleFormat
from stratafl.deploy.agreement import check_digests
from stratafl.errors import ModelError, RecordError, RunError, UnknownNameError
from stratafl.evaluation.evaluate import deployed
from stratafl.execute import Executor, Matrix, Messages, simulation
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.memory import peak_bytes
from stratafl.policies import LocalTraining
from stratafl.runs.environment import model_digest
from stratafl.runtime.likeness import likeness
from stratafl.runtime.model import Model
from stratafl.runtime.speed import Speed
from stratafl.testing import everything

SIZES = (5, 3)  # training samples of the clients
TRAIN = LocalTraining(lr=0.1, batch=3)


class Adapted(nn.Module):
    """A linear layer with a low-rank addition that starts at zero, as LoRA has it."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.lora_A, self.lora_B = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_B(self.lora_A(x))


def adapted(frozen: bool = True, dropout: float = 0.2) -> nn.Module:
    """A convolution and a normalisation, two adapted layers and a head, of which adapters and head are trained."""
    torch.manual_seed(1)
    net = nn.Sequential()
    net.conv, net.norm = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)
    net.flat, net.drop = nn.Flatten(), nn.Dropout(dropout)
    net.first, net.relu, net.second = Adapted(72, 8), nn.ReLU(), Adapted(8, 8)
    net.head = nn.Linear(8, 3)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(not frozen or "lora" in name or name.startswith("head"))
    return net.double()


def run(module: nn.Module, train: LocalTraining = TRAIN, executor: Executor | None = None, **options: object) -> dict:
    options = {"engine": "stacked", "dtype": torch.float64, **options}
    sim = simulation(fedavg(train=train), federation(SIZES), module, rounds=1, **options)
    return everything(sim, sim.run(executor or Matrix()))


@cache
def usual() -> dict[str, Tensor]:
    return run(adapted())


def test_frozen_parameters_are_no_columns_and_neither_are_the_buffers_beside_them():
    module = adapted()
    layout = describe(module)
    assert list(columns(module)) == list(layout.specs)
    assert layout.names == ("first.lora_A", "first.lora_B", "second.lora_A", "second.lora_B", "head")
    assert layout.frozen == tuple(frozen_tensors(module))
    assert {"conv.weight", "norm.weight", "norm.running_mean", "first.base.bias"} <= set(layout.frozen)


def test_a_layer_may_be_frozen_in_part():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].weight.requires_grad_(False)
    assert list(columns(module)) == ["0.bias", "1.weight", "1.bias"]


def test_a_frozen_model_trains_as_one_of_which_a_method_trains_these_layers():
    # without dropout, which a layer that the method does not train leaves out
    frozen = run(adapted(dropout=0.0))
    lora = replace(TRAIN, layers=select("*.lora_?+head"))
    whole = run(adapted(frozen=False, dropout=0.0), lora)
    common = [name for name in whole if name in frozen]
    assert any("lora_B" in name for name in common)
    assert all(torch.equal(frozen[name], whole[name]) for name in common)


@pytest.mark.parametrize(
    ("executor", "options", "exact"),
    [
        (Messages(), {}, True),
        (Matrix(), {"speed": Speed(graphs="on")}, True),
        (Matrix(), {"engine": "loop"}, False),
    ],
    ids=["messages", "captured", "loop"],
)
def test_frozen_tensors_are_shared_in_every_way_that_a_step_is_computed(executor, options, exact):
    other = run(adapted(), executor=executor, **options)
    assert other.keys() == usual().keys()
    for name, x in usual().items():
        torch.testing.assert_close(other[name], x, rtol=0 if exact else 1e-9, atol=0 if exact else 1e-12)


def test_no_copy_is_made_of_a_frozen_tensor():
    sim = simulation(fedavg(train=TRAIN), federation(SIZES), adapted, rounds=1, dtype=torch.float64)
    assert sim.template is not None
    addresses = {x.data_ptr() for x in sim.template.parameters() if not x.requires_grad}
    assert addresses <= {x.data_ptr() for x in sim.runtime.engine.model.frozen}
    assert addresses <= {x.data_ptr() for x in light_copy(sim.template).parameters()}


def test_a_round_carries_the_trained_tensors_alone():
    sim = simulation(fedavg(train=TRAIN), federation(SIZES), adapted(), rounds=1, dtype=torch.float64)
    _, report = sim.round(sim.start(), Matrix())
    trained = sum(p.numel() for p in adapted().parameters() if p.requires_grad)
    assert report.down.total == len(SIZES) * 8 * trained
    assert report.up.total == len(SIZES) * 8 * (trained + 1)  # and how many samples a client has


def test_dropout_of_frozen_layers_drops_and_their_batchnorm_does_not_train():
    module = adapted()
    model = Model(module, describe(module), head=None, stacked=True, device=torch.device("cpu"))
    modes = model.modes(describe(module).trainable())
    assert "drop" in modes
    assert "norm" not in modes
    assert "first.base" in modes


def test_members_and_runs_do_not_go_on_with_another_base():
    def begun(module: nn.Module) -> tuple[Mapping[str, str], str]:
        sim = simulation(fedavg(train=TRAIN), federation(SIZES), module, rounds=1, dtype=torch.float64)
        format = SampleFormat.of(federation(SIZES))
        return Blueprint(fedavg(), module, format, 2, 1, dtype=torch.float64).digests, model_digest(sim)

    other = adapted()
    other.conv.bias.data += 1
    (digests, digest), (other_digests, other_digest) = begun(adapted()), begun(other)
    assert digest != other_digest
    assert [part for part in digests if digests[part] != other_digests[part]] == ["frozen"]
    assert check_digests(digests, digests) == "" != check_digests(digests, other_digests)


def test_own_draws_of_adapters_begin_at_zero_and_leave_the_base_alone():
    module = adapted()
    nn.init.zeros_(module.first.lora_B.weight)
    method = fedper(personal="all", initial="own", train=replace(TRAIN, epochs=0))
    sim = simulation(method, federation(SIZES), module, rounds=1, dtype=torch.float64)
    drawn = sim.setup.fresh(torch.arange(2))
    assert not drawn["first.lora_B.weight"].any()
    assert not torch.equal(*drawn["first.lora_A.weight"])
    assert not torch.equal(drawn["second.lora_B.weight"][0], module.second.lora_B.weight)


def test_a_step_takes_no_memory_for_frozen_weights_of_each_client():
    wide = nn.Sequential(nn.Flatten(), nn.Linear(36, 400), nn.Linear(400, 400), nn.Linear(400, 3))
    wide[2].requires_grad_(False)
    sim = simulation(fedavg(train=TRAIN), federation(SIZES), wide, rounds=1, dtype=torch.float64, engine="stacked")
    engine, layout, count = sim.runtime.engine, sim.setup.layout, 4
    rows = {name: x.expand(count, *x.shape).contiguous() for name, x in sim.setup.start.items()}
    x, y = federation(SIZES).x[:3].expand(count, -1, -1, -1, -1), torch.zeros(count, 3, dtype=torch.int64)
    stack = Stack(x, y, torch.ones(count, 3).double(), torch.zeros(count, dtype=torch.int64), (3,) * count)
    modes = engine.model.modes(layout.trainable())
    step = partial(engine.gradients, default_objective(3), rows, stack, layout.trainable(), Inputs(), modes)
    one = wide[2].weight.numel() * 8
    trained = sum(block.nbytes for block in rows.values())
    assert peak_bytes(step, *rows.values(), *engine.model.frozen, x) < 2 * trained < one


def test_runs_with_other_frozen_tensors_are_not_alike():
    module, same, other = adapted(), adapted(), adapted()
    other.conv.bias.data += 1
    assert likeness(module) == likeness(same) != likeness(other)


# What is refused


@pytest.mark.parametrize(
    "text",
    [
        *("*.lora_C", "encoder.layer.[0-5].*", "*.lora_b", "[", "[]", "head.*.lora_A", "", "+", "first:9"),
        *("conv", "norm", "norm*", "first.base", "*.base", "*.base.weight", "n?rm.running_*", "layer:conv"),  # frozen
        *("*.bias", "head.bias", "he?d.weight"),  # tensors of a layer that has others
    ],
)
def test_a_selection_without_a_trained_layer_is_refused_in_one_line(text):
    with pytest.raises((RecordError, UnknownNameError)) as refused:
        describe(adapted()).resolve(text)
    assert "\n" not in str(refused.value)


@cache
def plain(frozen: tuple[str, ...]) -> nn.Module:
    """A chain of layers of which these are frozen."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)).double()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    return net


ALL = ("1", "3")


@pytest.mark.parametrize(
    ("method", "frozen", "options"),
    [
        (fedavg(), ALL, {}),
        (fedper(), ("3",), {}),
        (fedper(personal="1+head"), ("3",), {"head": "3"}),
        (fedper(personal="1.bias"), ("1.weight",), {}),
        (fedper(personal="1"), ("1",), {}),
        (fedper(personal="*.1"), ("3",), {"granularity": "block"}),
        (fedavg(), ("1",), {"head": "4"}),
    ],
    ids=["all", "head", "its head", "bias", "layer", "blocks", "no head"],
)
def test_a_method_without_a_part_that_it_trains_is_refused_in_one_line(method, frozen, options):
    with pytest.raises((ModelError, RecordError, UnknownNameError)) as refused:
        simulation(method, federation(SIZES), plain(frozen), rounds=1, dtype=torch.float64, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("made", [False, True], ids=["module", "function"])
def test_ffa_lora_is_fedavg_on_b_and_the_head_of_a_model_as_it_comes(made):
    by_hand = adapted()
    for name, parameter in by_hand.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and "lora_A" not in name)
    model = adapted() if not made else adapted
    chosen = run(model, frozen="*.lora_A")
    expected = run(by_hand if not made else lambda: by_hand)
    assert chosen.keys() == expected.keys()
    assert all(torch.equal(chosen[name], x) for name, x in expected.items())
    assert not any("lora_A" in name for name in chosen)
    assert adapted().first.lora_A.weight.requires_grad  # the user's own model is not edited
    if not made:
        assert model.first.lora_A.weight.requires_grad


def test_freezing_twice_changes_nothing_and_an_unknown_pattern_is_refused_with_the_nearest_layer():
    module = adapted()
    for _ in range(2):
        freeze(module, select("*.lora_A+conv"))
        assert describe(module).names == ("first.lora_B", "second.lora_B", "head")
    with pytest.raises(UnknownNameError, match=r"first\.lora_A"):
        run(adapted(), frozen="first.lora_a")
    with pytest.raises(ModelError, match="requires_grad"):
        run(adapted(), frozen="all")


def test_frozen_layers_are_a_setting_of_runs_sites_and_saved_folders(tmp_path):
    format = SampleFormat.of(federation(SIZES))
    settings = parse_settings(["model.frozen=*.lora_A"])
    experiment = with_values(from_tables({}), settings)
    assert str(experiment.model.frozen) == "*.lora_A"
    assert from_tables(to_tables(experiment)) == experiment
    site = Blueprint(fedavg(), adapted, format, 2, 1, dtype=torch.float64, frozen=experiment.model.frozen)
    trains_a = Blueprint(fedavg(), adapted, format, 2, 1, dtype=torch.float64)
    assert check_digests(site.digests, site.digests) == "" != check_digests(site.digests, trains_a.digests)
    clients = [(torch.randn(12, 1, 6, 6).double(), torch.arange(12) % 3) for _ in range(2)]
    done = stratafl.fit(fedper(), clients, adapted(), rounds=1, dtype=torch.float64, frozen="*.lora_A")
    again = stratafl.load(done.save(tmp_path / "saved"), model=adapted())
    x = clients[0][0]
    assert torch.equal(again.client(1).outputs(x), done.client(1).outputs(x))
    assert "first.lora_A.weight" in again.sim.setup.layout.frozen


@cache
def small_fit() -> Fitted:
    clients = [(torch.randn(12, 1, 6, 6).double(), torch.arange(12) % 3) for _ in range(2)]
    return stratafl.fit(fedper(), clients, plain(("1",)), rounds=1, dtype=torch.float64)


@pytest.mark.parametrize("name", ["adapter", "adapter.peft", "taken"])
def test_an_adapter_that_cannot_be_written_leaves_nothing_behind(name, tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(RunError) as refused:
        small_fit().client(0).export(tmp_path / name)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_saved_folder_knows_what_is_frozen_and_refuses_a_model_with_other_frozen_parameters(tmp_path):
    done, x = small_fit(), torch.ones(2, 1, 6, 6).double()
    folder = done.save(tmp_path / "saved")
    again = stratafl.load(folder)
    assert again.sim.setup.layout.frozen == ("1.weight", "1.bias")
    assert torch.equal(again.client(1).outputs(x), done.client(1).outputs(x))
    for other in ((), ("1.weight",)):
        with pytest.raises(ModelError):
            stratafl.load(folder, model=plain(other))
    with pytest.raises(RecordError, match="'cudaa'"):
        stratafl.load(folder, device="cudaa")


# The mean of factors


def trained_factors(steps: int, frozen_a: bool = False) -> tuple[Tensor, Tensor]:
    """A and B of every client after training alone from a common start, as FedAvg would add them up."""
    module = adapted(dropout=0.0)
    nn.init.zeros_(module.first.lora_B.weight)
    module.first.lora_A.requires_grad_(not frozen_a)
    method = fedper(personal="all", train=replace(TRAIN, lr=0.5, batch=5, epochs=steps))
    sim = simulation(method, federation(SIZES), module, rounds=1, dtype=torch.float64, engine="stacked")
    rows = deployed(sim, sim.run(Matrix()), torch.arange(len(SIZES)))
    a = module.first.lora_A.weight.detach().expand(len(SIZES), -1, -1) if frozen_a else rows["first.lora_A.weight"]
    return a, rows["first.lora_B.weight"]


def share_lost(a: Tensor, b: Tensor) -> float:
    """‖B̄Ā − mean of B_k·A_k‖ as a share of the latter."""
    mean = (b @ a).mean(0)
    return float((b.mean(0) @ a.mean(0) - mean).norm() / mean.norm())


def test_the_mean_of_factors_is_not_the_mean_of_products():
    a, b = torch.eye(2).reshape(2, 1, 2), torch.eye(2).reshape(2, 2, 1)
    # by hand: the mean of products is ½·I, the product of means ¼ everywhere
    assert share_lost(a, b) == pytest.approx(0.5**0.5)
    assert share_lost(*trained_factors(8)) == pytest.approx(0.042, abs=6e-4)  # docs/guide/adapters.md
    assert share_lost(*trained_factors(2, frozen_a=True)) < 1e-12  # where A is the same everywhere, it is


@pytest.mark.parametrize("frozen", ["*", "all"])
def test_freezing_every_layer_is_refused_by_the_name_of_the_option(frozen):
    with pytest.raises(ModelError, match="all 4 tensors are frozen; name fewer layers in `frozen`"):
        stratafl.fit("fedavg", {"a": (torch.zeros(8, 3), [0, 1] * 4)}, "mlp", rounds=1, frozen=frozen)
