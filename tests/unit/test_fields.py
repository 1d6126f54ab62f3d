"""Declared fields: what they start as, and that a client stores what it declares and no more."""

import pytest
import torch

from stratafl.algorithms import fedavg, fedbn, fedper, lgfedavg, local
from stratafl.core.describe import describe
from stratafl.core.fields import Filled, Number, Start, Together
from stratafl.core.layers import select
from stratafl.core.layout import Rows
from stratafl.core.round import Setup
from stratafl.core.state import stored_bytes
from stratafl.errors import RecordError
from stratafl.execute import Matrix
from stratafl.models import build
from stratafl.testing import Case

CLIENTS = 6
IDS = torch.tensor([4, 1])
STATISTICS = ["bn1.running_mean", "bn1.running_var", "bn2.running_mean", "bn2.running_var"]


def setup(buffers: str = "follow", channels: int = 2, classes: int = 3, dtype: torch.dtype = torch.float32) -> Setup:
    """A setup whose common model is 100 everywhere and whose own models are the client's number."""
    layout = describe(build("convnorm", shape=(1, 4, 4), classes=classes, channels=channels), buffers=buffers)
    start = {name: torch.full(spec.shape, 100.0, dtype=dtype) for name, spec in layout.specs.items()}

    def fresh(ids: torch.Tensor) -> Rows:
        return {n: ids.to(dtype).reshape(-1, *(1,) * x.ndim).expand(-1, *x.shape) for n, x in start.items()}

    return Setup(layout, start, fresh, CLIENTS, 10)


def values(rows: Rows) -> dict[str, list[float]]:
    """The number each row is filled with, tensor by tensor."""
    assert all((x == x.flatten(1)[:, :1].reshape(-1, *(1,) * (x.ndim - 1))).all() for x in rows.values())
    return {name: x.flatten(1)[:, 0].tolist() for name, x in rows.items()}


def test_a_server_starts_from_the_common_model_without_a_client_axis():
    given = setup()
    rows = Start(select("head")).create(given, None, "server")
    assert list(rows) == ["fc.weight", "fc.bias"]
    assert all(torch.equal(x, given.start[name]) for name, x in rows.items())


def test_clients_start_from_the_common_model():
    rows = Start(select("head")).create(setup(), IDS, "client")
    assert {n: tuple(x.shape) for n, x in rows.items()} == {"fc.weight": (2, 3, 2), "fc.bias": (2, 3)}
    assert values(rows) == {"fc.weight": [100.0, 100.0], "fc.bias": [100.0, 100.0]}


def test_own_models_belong_to_the_clients_asked_for():
    assert values(Start(select("head"), own=True).create(setup(), IDS, "client")) == {
        "fc.weight": [4.0, 1.0],
        "fc.bias": [4.0, 1.0],
    }


@pytest.mark.parametrize(("own", "expected"), [(False, [100.0] * CLIENTS), (True, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])])
def test_a_server_may_keep_a_row_per_client(own, expected):
    rows = Start(select("conv1"), own=own, per_client=True).create(setup(), None, "server")
    assert values(rows) == {"conv1.weight": expected}


def test_a_server_cannot_have_an_own_model_of_nobody():
    with pytest.raises(RecordError, match=r"Start\(own=True\).*per_client"):
        Start(own=True).create(setup(), None, "server")


@pytest.mark.parametrize(
    ("buffers", "side", "names"),
    [
        ("follow", "client", ["fc.weight", "fc.bias"]),
        ("follow", "server", ["fc.weight", "fc.bias"]),
        ("local", "client", [*STATISTICS, "fc.weight", "fc.bias"]),
        ("local", "server", ["fc.weight", "fc.bias"]),
    ],
)
def test_local_statistics_are_the_clients(buffers, side, names):
    field = Start(select("head"))
    assert list(field.names(setup(buffers).layout, side)) == names
    assert list(field.create(setup(buffers), IDS if side == "client" else None, side)) == names


def test_what_a_server_can_know_of_a_whole_model():
    assert not set(STATISTICS) & set(Start().create(setup("local"), None, "server"))
    assert set(STATISTICS) <= set(Start().create(setup("follow"), None, "server"))


@pytest.mark.parametrize(
    ("per_client", "ids", "lead"), [(False, None, ()), (False, IDS, (2,)), (True, None, (CLIENTS,))]
)
def test_zeros_have_the_shape_of_trainable_tensors(per_client, ids, lead):
    rows = Filled(0.0, select("bn1+fc"), per_client).create(setup(dtype=torch.float64), ids, "server")
    assert {n: tuple(x.shape) for n, x in rows.items()} == {
        "bn1.weight": (*lead, 2),
        "bn1.bias": (*lead, 2),
        "fc.weight": (*lead, 3, 2),
        "fc.bias": (*lead, 3),
    }
    assert all(x.dtype == torch.float64 and not x.any() for x in rows.values())


@pytest.mark.parametrize(
    ("field", "ids", "expected"),
    [
        (Number(2.5), None, 2.5),
        (Number(2.5), IDS, [2.5, 2.5]),
        (Number(1.0, width=3), None, [1.0, 1.0, 1.0]),
        (Number(1.0, width=3), IDS, [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]),
        (Number(0.5, per_client=True), None, [0.5] * CLIENTS),
    ],
)
def test_numbers(field, ids, expected):
    value = field.create(setup(dtype=torch.float64), ids, "client")
    assert value.tolist() == expected
    assert value.dtype == torch.float64
    assert field.names(setup().layout, "client") is None


def test_together_keeps_the_layers_of_all_parts_and_the_first_decides_the_start():
    field = Together((Start(select("head"), own=True), Start(select("conv1+fc"))))
    rows = field.create(setup(), IDS, "client")
    assert set(rows) == {"conv1.weight", "fc.weight", "fc.bias"} == set(field.names(setup().layout, "client"))
    assert values(rows) == {"conv1.weight": [100.0, 100.0], "fc.weight": [4.0, 1.0], "fc.bias": [4.0, 1.0]}


def test_the_names_of_together_are_in_the_layouts_order():
    field = Together((Start(select("fc")), Start(select("conv1"))))
    assert field.names(setup().layout, "client") == ("conv1.weight", "fc.weight", "fc.bias")


def test_numbers_together_are_the_first_number():
    field = Together((Number(1.0), Number(2.0)))
    assert field.create(setup(), IDS, "client").tolist() == [1.0, 1.0]
    assert field.names(setup().layout, "client") is None


# With eight channels and ten classes: a head of 8·10 + 10 columns, two BatchNorms of 2·8 columns and 2·8 statistics,
# convolutions of 8·1·9 and 8·8·9 columns, each of four bytes.
HEAD, NORM, STATISTIC, CONVOLUTIONS = 4 * 90, 4 * 32, 4 * 32, 4 * (72 + 576)


@pytest.mark.parametrize(
    ("algorithm", "buffers", "expected"),
    [
        (fedper(), "follow", HEAD),
        (fedper(), "local", HEAD + STATISTIC),
        (fedper(personal="blocks:2"), "follow", HEAD + 4 * 576 + (NORM + STATISTIC) // 2),
        (fedbn(), "follow", NORM + STATISTIC),
        (fedbn(), "local", NORM + STATISTIC),
        (fedavg(), "follow", 0),
        (fedavg(), "local", STATISTIC),
        (lgfedavg(), "follow", CONVOLUTIONS + NORM + STATISTIC),
        (local(), "follow", HEAD + NORM + STATISTIC + CONVOLUTIONS),
    ],
)
def test_a_client_stores_its_own_layers_and_no_more(algorithm, buffers, expected):
    given = setup(buffers, channels=8, classes=10)
    assert stored_bytes(algorithm.enrol(given, torch.tensor([3]))) == expected
    assert stored_bytes(algorithm.enrol(given, torch.arange(5))) == 5 * expected


@pytest.mark.parametrize(("buffers", "expected"), [("follow", 8 * 15), ("local", 8 * (15 + 16))])
def test_after_a_round_fedper_stores_the_head_and_local_statistics(buffers, expected):
    # The contract's model in float64: a head 4→3 with its bias, and two BatchNorms of four channels.
    sim = Case(fedper(), buffers, 0.5, 1).plain
    progress, _ = sim.round(sim.start(), Matrix())
    assert [stored_bytes(memory) for memory in progress.clients.values()] == [expected] * 3
    assert "fc.weight" not in progress.server["theta"]
