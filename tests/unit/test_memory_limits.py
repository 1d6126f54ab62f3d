"""A memory limit asks the method before the first round, and what runs keeps to it."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stratafl.algorithms import fedalp, fedavg, fedlag, flayer, pfedla
from stratafl.core.fields import Filled
from stratafl.core.footprint import Footprint
from stratafl.core.state import stored_bytes
from stratafl.errors import MemoryLimitError
from stratafl.execute import Matrix, simulation
from stratafl.execute.memory import Needs, peak_bytes, server_bytes
from stratafl.policies import LocalTraining
from stratafl.testing import tiny_federation, tiny_model

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from memory_limits import measured


def made(method, clients=6, **options):
    return simulation(method, tiny_federation([4] * clients), tiny_model(), rounds=2, **options)


def row_bytes(sim):
    return sum(spec.size for spec in sim.setup.layout.specs.values()) * 4


@pytest.mark.slow
def test_the_servers_state_is_counted_without_making_it():
    """By hand: a row per client, one of everybody, or one per group."""
    for method, rows in ((fedavg(), 1), (fedlag(warmup=0), 7), (fedalp(groups=3, warmup=1), 4)):
        sim = made(method)
        assert 0 <= sim.server_bytes - rows * row_bytes(sim) < 400  # and some numbers
    sim = made(pfedla())
    assert server_bytes(sim.algorithm, sim.setup) == stored_bytes(sim.start().server)


@pytest.mark.slow
def test_a_limit_grows_with_what_the_method_keeps():
    methods = {"fedavg": fedavg(), "fedlag": fedlag(warmup=0), "pfedla": pfedla(), "flayer": flayer()}
    needs = {name: made(method).needs(6) for name, method in methods.items()}
    row = row_bytes(made(fedavg()))
    assert needs["fedlag"].merging() - needs["fedavg"].merging() > 16 * row  # twice six rows, and six uploads
    assert needs["pfedla"].merging() > needs["fedavg"].merging() + 16 * row
    assert needs["flayer"].method.sums == 2 * needs["fedavg"].method.sums  # weights per column
    assert made(fedavg(train=LocalTraining(momentum=0.9))).client_bytes > made(fedavg()).client_bytes + 3 * row


@pytest.mark.slow
def test_what_does_not_fit_is_refused_before_anything_is_computed():
    sim = made(pfedla(), clients=40)
    limited = replace(sim, round_limit=sim.needs(40).least - 1, memory_limit=10**9)
    says = r"^a round needs about .*the server's state .*uploads.*: raise it to \d[^\n]*$"
    with pytest.raises(MemoryLimitError, match=says):
        limited.round(limited.start(), Matrix())


@pytest.mark.slow
def test_without_a_limit_half_of_the_machine_is_the_limit(monkeypatch):
    """100 clients of pFedLA have 100 hypernetworks with 100 outputs for each layer."""
    monkeypatch.setattr("stratafl.execute.executors.device_memory", lambda device: 10**7)
    with pytest.raises(MemoryLimitError, match="10MB"):
        made(pfedla(), clients=100)


@pytest.mark.slow
def test_client_states_go_to_disk_where_a_limit_leaves_no_room_for_them(monkeypatch):
    monkeypatch.setattr("stratafl.execute.memory.resident", lambda: 0)
    least = made(fedlag(warmup=0), store="disk").needs(6).least
    monkeypatch.setattr("stratafl.execute.build_simulation.choose_store", lambda *given, **options: "ram")
    assert made(fedlag(warmup=0), memory_limit=least).store == "disk"
    assert made(fedlag(warmup=0), memory_limit=10 * least).store == "ram"
    with pytest.raises(MemoryLimitError):
        made(fedlag(warmup=0), memory_limit=least - 1)


def test_an_own_field_is_counted_too():
    method = replace(fedavg(), server={**fedavg().server, "drift": Filled(per_client=True)})
    sim = made(method)
    trainable = sum(sim.setup.layout.specs[n].size for n in sim.setup.layout.trainable()) * 4
    assert sim.server_bytes == row_bytes(sim) + 6 * trainable


def test_peaks_are_counted_as_tensors_come_and_go():
    x = torch.zeros(1000)

    def compute():
        a = x + 1
        b = a * 2
        del a
        return b + 1

    assert peak_bytes(compute, x) == 8000
    assert peak_bytes(lambda: compute()[:10] + 1, x) == 8000  # what is left at the end is less


def test_uploads_that_are_kept_side_by_side_count_until_all_are_merged():
    needs = Needs(6, server=1, states=10, client=100, evaluated=0, method=Footprint(upload=1000, sums=10_000))
    assert needs.working(2) == 1 + 10 + 2 * 100 + 4 * 1000 + 2 * 10_000  # four clients have sent theirs
    assert needs.merging() == 2 * 1 + 10 + 6 * 1000 + 10_000


@pytest.mark.slow
def test_a_run_keeps_to_its_limit():
    found = measured("fedlag", "800MB", "1000, 500")
    assert "refused" not in found
    assert found["share"] <= 1.1


MEASURED = ("fedalp", "fedavg", "fedavg30local", "fedbn", "fedlag", "fedper", "fedprox", "fedrep", "flayer")
MEASURED += ("heurpfedla", "lgfedavg", "local", "pfedla", "simmix")
MEASURED += ("apple", "fedala", "fedamp", "fedcac", "fedfomo", "heurfedamp")
LARGE = ("apple", "fedamp", "flayer", "heurpfedla", "pfedla", "simmix")  # whose servers or clients hold most
LIMITED = [*((name, "800MB") for name in MEASURED), *((name, "2GB") for name in LARGE)]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "limit"), LIMITED)
def test_every_algorithm_keeps_to_its_limit_or_is_refused(name, limit):
    """Over rounds of which an early one is selected, so that its state is held as well."""
    found = measured(name, limit, "1500, 1500", rounds=4)
    assert "refused" in found or found["share"] <= 1.1
    assert "refused" not in found or limit == "800MB"
