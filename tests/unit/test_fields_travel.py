"""Any declared field travels: rows whole or partial, tensors of any shape, statistics alone; values by hand."""

from dataclasses import replace

import pytest
import torch

import simulations
from stratafl.algorithms import fedavg
from stratafl.core.fields import Filled, Number, Start
from stratafl.core.layers import select
from stratafl.core.parcel import Field, Parcel
from stratafl.core.round import Round
from stratafl.core.state import pick
from stratafl.errors import RecordError
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix, Messages
from stratafl.policies import Adopt, Broadcast, Deliver, Fresh, Increment, LocalTraining, Mean, StoreRows, Take, Upload
from stratafl.testing import CLASSES

D = torch.float64
IDS = torch.tensor([0, 2, 5])


def built(method, participation=1.0):
    return simulations.built(method, sizes=(9, 8, 7, 6, 5, 4), participation=participation)


def with_control(layers="all", **more):
    """FedAvg whose clients also send a row `c` of trainable columns and get the server's back."""
    fields = {"c": Filled(1.0, select(layers))}
    return replace(
        fedavg(),
        serve=(Broadcast(), Broadcast(field="c")),
        mix=(Take(), Take("c")),
        send=(Upload(), Upload(field="c")),
        merge=(Mean(), Increment("c", by="c")),
        server={**fedavg().server, **fields},
        client={**fedavg().client, **fields},
        **more,
    )


@pytest.mark.parametrize("executor", [Matrix(), Messages()], ids=["matrix", "messages"])
@pytest.mark.parametrize("layers", ["all", "fc"])
def test_a_row_of_trainable_columns_goes_down_and_up(layers, executor):
    """Six clients send the ones they were sent: c grows by 6/6 of itself in each of two rounds."""
    sim = built(with_control(layers))
    server = sim.run(executor).server
    assert set(server["c"]) == set(sim.setup.layout.trainable(layers))
    assert all(bool((x == 4).all()) for x in server["c"].values())


def test_an_increment_is_over_all_clients_whoever_took_part():
    server = built(with_control(), participation=0.5).run(Matrix()).server
    assert all(bool((x == 2.25).all()) for x in server["c"].values())  # 1 + 3/6, then 1.5 + 3·1.5/6


def test_statistics_alone_travel():
    statistics = replace(
        fedavg(),
        serve=(Broadcast(columns="statistics"),),
        send=(Upload(columns="statistics"),),
        client={"theta": Start()},
    )
    sim = built(replace(statistics, server={"theta": Start(columns="statistics")}))
    progress = sim.run(Matrix())
    assert set(progress.server["theta"]) == {n for n, s in sim.setup.layout.specs.items() if not s.trainable}
    rows = received_models(sim, progress, torch.arange(6))
    assert all(bool((x == x[:1]).all()) for n, x in rows.items() if n in progress.server["theta"])
    assert not bool((rows["fc.weight"] == rows["fc.weight"][:1]).all())


def toy(sim, server, uploads, merge):
    rnd = Round(sim.setup, 0)
    up = Parcel({name: Field(value) for name, value in uploads.items()})
    return merge.finish(rnd, server, merge.fold(rnd, server, {}, up, IDS))


def test_the_mean_of_tensors_is_weighted_entry_by_entry():
    """Prototypes of two classes: the first class 1·10 and 3·20, the second nobody has: it is held."""
    sim = built(fedavg())
    sent = torch.tensor([[[10.0, 1.0], [7.0, 7.0]], [[20.0, 2.0], [7.0, 7.0]], [[9.0, 9.0], [7.0, 7.0]]], dtype=D)
    counts = torch.tensor([[1, 0], [3, 0], [0, 0]])
    held = {"prototypes": torch.full((2, 2), 5.0, dtype=D)}
    after = toy(sim, held, {"prototypes": sent, "counts": counts}, Mean("prototypes", weights="counts"))
    assert after["prototypes"].tolist() == [[17.5, 1.75], [5.0, 5.0]]


def test_the_mean_is_weighted_by_any_field_that_is_sent():
    sim = built(fedavg())
    sent = {"c": torch.tensor([1.0, 2.0, 6.0], dtype=D), "fisher": torch.tensor([1.0, 1.0, 2.0], dtype=D)}
    assert toy(sim, {"c": torch.tensor(0.0, dtype=D)}, sent, Mean("c", weights="fisher"))["c"].item() == 15 / 4
    assert toy(sim, {"c": torch.tensor(0.0, dtype=D)}, sent, Mean("c", weights="uniform"))["c"].item() == 3.0


def test_columns_that_the_server_does_not_keep_are_left_out_of_the_mean():
    sim = built(
        replace(fedavg(), server={"theta": Start(select("base"))}, serve=(Broadcast(),), client={"theta": Start()})
    )
    assert not any(name.startswith("fc") for name in sim.run(Matrix()).server["theta"])


def test_rows_and_tensors_are_stored_by_client():
    server = {"rows": torch.zeros(6, 2, dtype=D)}
    up = Parcel({"v": Field(torch.tensor([[1.0, 1], [2, 2], [3, 3]], dtype=D))})
    stored = StoreRows("rows", "v").absorb(None, server, up, IDS)["rows"]
    assert stored.tolist() == [[1, 1], [0, 0], [2, 2], [0, 0], [0, 0], [3, 3]]
    rnd = Round(built(fedavg()).setup, 0)
    assert Deliver(field="rows")(rnd, {"rows": stored}, IDS)["rows"].tensor.tolist() == [[1, 1], [2, 2], [3, 3]]


def test_a_number_may_have_several_axes():
    setup = built(fedavg()).setup
    spec = Number(2.0, width=("classes", "features"))
    assert spec.create(setup, None, "server").shape == (CLASSES, setup.features)
    assert spec.create(setup, IDS, "client").shape == (3, CLASSES, setup.features)
    assert Number(width=("clients", 3), per_client=True).create(setup, None, "server").shape == (6, 6, 3)


def test_a_model_without_all_layers_is_refused():
    method = replace(fedavg(), serve=(Broadcast(select("base")),))
    with pytest.raises(RecordError, match=r"mix: .*'fc'"):
        built(method).run(Matrix())


def test_the_first_time_a_client_is_met_it_starts_from_what_it_receives():
    """A client that is sampled later, or never, has the server's model and not the initial one; then its own."""
    method = replace(
        fedavg(train=LocalTraining(lr=0.1)), mix=(Take(), Adopt(("own",))), client={"own": Start()}, row="own"
    )
    sim = built(method, participation=0.5)
    progress = sim.run(Matrix())
    rows = received_models(sim, progress, torch.arange(6))
    met = {i for t in range(2) for i in sim.setup.sampled(t).tolist()}
    shared, start = progress.server["theta"]["fc.weight"], sim.setup.start["fc.weight"]
    first = sim.setup.sampled(0).tolist()
    assert {i for i in range(6) if torch.equal(rows["fc.weight"][i], shared)} == set(range(6)) - met
    assert all(torch.equal(rows["fc.weight"][i], start) for i in first)  # `own` is not trained here
    assert {int(state["met"]) for state in progress.clients.values()} == {1}


def test_a_field_starts_anew_in_every_round():
    sim = built(fedavg())
    task = sim.task(IDS, sim.at(1))
    fresh = Fresh("m", Number(0.5, width="features"))(sim.at(1), {}, Parcel({}), task)["m"]
    assert fresh.shape == (3, sim.setup.features)
    assert bool((fresh == 0.5).all())


def test_what_all_clients_share_is_stored_once_however_they_are_picked():
    cores = torch.arange(12.0).reshape(4, 3).expand(6, 4, 3)
    picked = pick({"cores": {"w": cores}}, torch.tensor([5, 0, 3]))["cores"]["w"]
    assert torch.equal(picked, cores[:3])
    assert picked.untyped_storage().nbytes() == 12 * 4
    assert picked.stride(0) == 0
    own = torch.arange(6.0).reshape(6, 1)
    assert pick({"x": own}, torch.tensor([5, 0]))["x"].tolist() == [[5], [0]]
