"""Server optimisers on numbers that are computed by hand: the mean of the uploads goes to 1, then to −2 from there."""

import pytest
import torch

from stratafl.algorithms import fedavg
from stratafl.core.parcel import Field, Parcel
from stratafl.errors import RecordError
from stratafl.execute import simulation
from stratafl.policies import ServerOptimizer
from stratafl.testing import tiny_federation, tiny_model

HALVES = {"beta1": 0.5, "beta2": 0.5, "tau": 0.5, "lr": 2.0}


def merged(step, changes, statistic=7.0):
    """A trained number after each of some rounds, which begins at 0, and the server's state after the last."""
    rnd = simulation(fedavg(), tiny_federation(), tiny_model(), rounds=1, dtype=torch.float64).at(0)
    zeros = {name: torch.zeros_like(x) for name, x in rnd.setup.start.items()}
    server = {"theta": zeros, **{n: spec.create(rnd.setup, None, "server") for n, spec in step.keeps.items()}}
    ids, found = torch.tensor([0, 1]), []
    for change in changes:
        # With weights 1 and 3, the mean of (change + 6) and (change − 2) is `change`.
        held, trained = server["theta"], rnd.layout.trainable()
        sent = {n: torch.stack([held[n] + change + 6, held[n] + change - 2]) for n in trained}
        sent |= {n: x.new_full((2, *x.shape), statistic) for n, x in held.items() if n not in trained}
        up = Parcel({"theta": Field(sent), "samples": Field(torch.tensor([1, 3]))})
        server = {**server, **step.finish(rnd, server, step.fold(rnd, server, {}, up, ids))}
        found.append(float(server["theta"]["fc.bias"][0]))
    assert float(server["theta"]["bn1.running_mean"][0]) == pytest.approx(statistic)
    return found, server


@pytest.mark.parametrize(
    ("optimizer", "first", "second"),
    [
        ("sgd", 1.0, -2.0),
        ("momentum", 1.0, 0.5 - 2.0),
        # m: 0.5·0 + 0.5·1 = 0.5, 0.5·0.5 − 0.5·2 = −0.75. v begins at τ² = 0.25.
        ("adam", 0.5 / (0.625**0.5 + 0.5), -0.75 / (2.3125**0.5 + 0.5)),  # v: 0.125 + 0.5, 0.3125 + 2
        ("yogi", 0.5 / (0.75**0.5 + 0.5), -0.75 / (2.75**0.5 + 0.5)),  # v: 0.25 + 0.5·1, 0.75 + 0.5·4
    ],
)
def test_two_rounds_by_hand(optimizer, first, second):
    found, _ = merged(ServerOptimizer(optimizer=optimizer, **HALVES), [1.0, -2.0])
    assert found == pytest.approx([2 * first, 2 * (first + second)], abs=1e-12)


def test_yogi_lets_v_fall_by_no_more_than_the_square():
    _, server = merged(ServerOptimizer(optimizer="yogi", beta2=0.5, tau=2.0), [1.0])
    assert float(server["theta.square"]["fc.bias"][0]) == pytest.approx(4 - 0.5 * 1)


def test_statistics_have_no_moments():
    for optimizer in ("momentum", "adam", "yogi"):
        step = ServerOptimizer(optimizer=optimizer)
        _, server = merged(step, [1.0])
        assert list(step.keeps) == ["theta.moment"] + ["theta.square"] * (optimizer != "momentum")
        assert all("running" not in name for kept in step.keeps for name in server[kept])


def test_what_nobody_sent_is_held():
    step = ServerOptimizer(optimizer="sgd", lr=0.5)
    rnd = simulation(fedavg(), tiny_federation(), tiny_model(), rounds=1, dtype=torch.float64).at(0)
    server = {"theta": dict(rnd.setup.start)}
    sent = {"fc.bias": torch.ones(1, 3, dtype=torch.float64)}
    up = Parcel({"theta": Field(sent), "samples": Field(torch.tensor([2]))})
    after = step.finish(rnd, server, step.fold(rnd, server, {}, up, torch.tensor([0])))["theta"]
    torch.testing.assert_close(after["fc.bias"], (server["theta"]["fc.bias"] + 1) / 2)
    assert all(torch.equal(after[name], x) for name, x in server["theta"].items() if name != "fc.bias")


def test_a_rate_of_zero_is_refused():
    with pytest.raises(RecordError, match="lr must be above 0"):
        ServerOptimizer(lr=0.0)
