"""Clients' memories: versions that stay what they are, in RAM and on disk, and where they are kept."""

import errno
import gc
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from simulations import finished
from stratafl.algorithms import fedper
from stratafl.core.machine import ram
from stratafl.core.state import flatten, pick
from stratafl.data import IID, digits_federation
from stratafl.errors import DamagedError, MemoryLimitError, RunError, UnknownNameError
from stratafl.evaluation.evaluate import score_stages
from stratafl.execute import Matrix, disk, simulation
from stratafl.execute import memory as memory_module
from stratafl.execute.client_states import InMemory
from stratafl.execute.disk import Index, OnDisk, StateFile
from stratafl.execute.memory import MAX_REWRITTEN_BYTES as WHOLE
from stratafl.execute.memory import choose_store, device_memory
from stratafl.execute.simulation import SavedForm
from stratafl.execute.state_format import StateFormat
from stratafl.models import build

CPU, GPU = torch.device("cpu"), torch.device("cuda")
N = 20


def rows(*values):
    values = torch.tensor(values)
    return {
        "theta": {"w": values[:, None, None] * torch.ones(2, 3, dtype=torch.float64), "h": values[:, None].bfloat16()},
        "empty": {},
        "flag": values > 1,
        "count": values.long(),
    }


def one(value):
    return {k: {n: x[0] for n, x in v.items()} if isinstance(v, dict) else v[0] for k, v in rows(value).items()}


def bits(memory):
    return {
        name: (x.dtype, tuple(x.shape), x.contiguous().reshape(-1).view(torch.uint8).tolist())
        for name, x in flatten(memory).items()
    }


def held(clients):
    return {client: bits(memory) for client, memory in clients.items()}


def on_disk(path=None, clients=N):
    layout = StateFormat(one(0.0))
    return OnDisk(StateFile(path, layout.size), layout, Index.empty(clients))


@pytest.fixture(params=["ram", "disk"])
def clients(request, tmp_path):
    return InMemory(CPU, {}) if request.param == "ram" else on_disk(tmp_path / "memories.bin")


def test_nobody_has_a_memory_at_first(clients):
    assert (len(clients), list(clients), 3 in clients) == (0, [], False)
    with pytest.raises(KeyError):
        clients[3]


def test_memories_come_back_bit_by_bit(clients):
    after = clients.updated([7, 3], rows(0.1, 2.5))
    assert held(after) == {3: bits(one(2.5)), 7: bits(one(0.1))}
    assert (len(after), sorted(after), 3 in after, 4 in after) == (2, [3, 7], True, False)
    assert after.has(torch.tensor([7, 4, 3])).tolist() == [True, False, True]


@pytest.mark.parametrize("store", ["device", "disk"])
def test_states_of_clients_never_met_are_not_stored(store):
    """Although all clients are evaluated, for which those without a state enrol."""
    sim, progress = finished("fedper", sizes=(9, 9, 8, 8, 7, 7), batchnorm=False, participation=0.34, store=store)
    met = sorted({client for t in range(2) for client in sim.cohort(sim.at(t)).tolist()})
    everyone = torch.arange(6)
    before = sim.client_states(progress.clients, everyone)
    score_stages(sim, progress, everyone, ("test",))
    assert sorted(progress.clients) == met != everyone.tolist()
    for client in met:
        assert bits(pick(before, client)) == bits(progress.clients[client])
    new = [client for client in everyone.tolist() if client not in met]
    enrolled = sim.algorithm.enrol(sim.setup, torch.tensor(new))
    assert bits(pick(before, torch.tensor(new))) == bits(enrolled)
    stored = {int(name.split("/")[1]) for name in progress.clients.tensors() if name.startswith("client/")}
    assert stored == (set(met) if store == "device" else set())  # on disk a checkpoint has an index of slots


def test_a_version_stays_what_it_is_while_others_succeed_it(clients):
    versions, expected = [clients], [{}]
    for t in range(40):
        ids = [(3 * t + i) % N for i in range(4)]
        versions.append(versions[-1].updated(ids, rows(*(t + 0.1 * i for i in ids))))
        expected.append(expected[-1] | {i: bits(one(t + 0.1 * i)) for i in ids})
    assert [held(version) for version in versions] == expected
    assert [len(version) for version in versions] == [len(each) for each in expected]


def test_what_was_read_or_given_may_be_written_to(clients):
    given = rows(1.5)
    after = clients.updated([0], given)
    given["theta"]["w"].zero_()
    assert bits(after[0]) == bits(one(1.5))
    after[0]["theta"]["w"].zero_()
    if isinstance(after, OnDisk):
        assert bits(after[0]) == bits(one(1.5))


def test_in_ram_a_round_does_not_copy_an_entry_per_client():
    base = {i: one(1.0) for i in range(1000)}
    after = InMemory(CPU, base).updated([3], rows(2.0))
    assert after._below is base
    assert len(after) == 1000
    assert (bits(after[3]), bits(after[4])) == (bits(one(2.0)), bits(one(1.0)))


def test_tensors_on_disk_are_read_into_memory_of_their_own():
    memory = on_disk().updated([0], rows(1.0))[0]
    assert len({x.untyped_storage().data_ptr() for x in flatten(memory).values() if x.numel()}) == 4


# Slots


@pytest.mark.slow
def test_slots_that_nobody_refers_to_are_used_again(tmp_path):
    path = tmp_path / "memories.bin"
    clients = on_disk(path).updated(range(N), rows(*([1.0] * N)))
    for t in range(50):
        clients = clients.updated([t % N, (t + 7) % N], rows(t, t))
    gc.collect()
    assert path.stat().st_size <= (N + 4) * StateFormat(one(0.0)).size


@pytest.mark.slow
def test_a_lease_alone_keeps_records_from_being_written_over(tmp_path):
    clients = on_disk(tmp_path / "memories.bin").updated([0, 1], rows(1.0, 2.0))
    lease, file, layout = clients.lease(), clients._file, clients._format
    for t in range(20):
        clients = clients.updated([0, 1], rows(t, t))
    assert held(OnDisk(file, layout, lease)) == {0: bits(one(1.0)), 1: bits(one(2.0))}
    slots = lease.slots.copy()
    again = Index(slots, lease.sums.copy())
    del lease
    gc.collect()
    for t in range(20):
        clients = clients.updated([0, 1], rows(t, t))
    with pytest.raises(DamagedError, match=r"client \d"):
        OnDisk(file, layout, again).check()


def test_a_write_that_fails_leaves_the_version_and_no_hole(tmp_path, monkeypatch):
    path = tmp_path / "memories.bin"
    clients = on_disk(path).updated([0, 1], rows(1.0, 2.0))
    before, write = held(clients), os.pwrite

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunError, match=r"memories\.bin.*No space left"):
        clients.updated([0, 1], rows(3.0, 4.0))
    monkeypatch.setattr(os, "pwrite", write)
    assert held(clients) == before
    clients = clients.updated([0, 1], rows(3.0, 4.0))
    assert path.stat().st_size == 4 * StateFormat(one(0.0)).size


def test_a_write_may_take_several_calls(monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(disk.os, "pwrite", lambda handle, data, at: write(handle, data[:5], at))
    assert held(on_disk().updated([4], rows(0.3))) == {4: bits(one(0.3))}


def test_a_memory_of_another_shape_is_refused():
    other = rows(1.0)
    other["count"] = other["count"].int()
    with pytest.raises(RunError, match="changed its shape"):
        on_disk().updated([0], other)


# Damage


def test_a_record_of_another_client_is_not_taken_for_ones_own(tmp_path):
    clients = on_disk(tmp_path / "memories.bin").updated([0, 1], rows(1.0, 2.0))
    index = clients.lease()
    index.slots[[0, 1]] = index.slots[[1, 0]]
    with pytest.raises(DamagedError, match="state of client 0"):
        clients[0]


@pytest.mark.parametrize("place", [0, 30, -1])
def test_a_flipped_bit_is_found(tmp_path, place):
    path = tmp_path / "memories.bin"
    clients = on_disk(path).updated([5], rows(1.0))
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=r"client 5 in '.*memories\.bin'"):
        clients[5]


def test_a_cut_file_is_found(tmp_path):
    path = tmp_path / "memories.bin"
    clients = on_disk(path).updated([5, 6], rows(1.0, 2.0))
    os.truncate(path, path.stat().st_size - 1)
    assert bits(clients[5]) == bits(one(1.0))
    with pytest.raises(DamagedError, match=r"memories\.bin'.* client 6 "):
        clients.check()


# Where


def test_of_a_gpu_there_is_what_other_processes_leave(monkeypatch):
    """Of 100 bytes others hold 60 and this process 10, of which it may use all again."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10)
    assert device_memory(GPU) == 40
    assert device_memory(CPU) == ram()


def test_by_size_and_by_who_takes_part(monkeypatch):
    monkeypatch.setattr(memory_module, "ram", lambda: 1000 * WHOLE)
    monkeypatch.setattr(
        memory_module,
        "device_memory",
        lambda device: 100 * WHOLE if device == GPU else 1000 * WHOLE,
    )

    def auto(size, device=CPU, limit=None, participation=1.0, saved=True):
        return choose_store(
            "auto",
            size * WHOLE,
            device,
            limit and limit * WHOLE,
            participation=participation,
            saved=saved,
        )

    assert [auto(size) for size in (1, 250, 251)] == ["ram", "ram", "disk"]
    assert [auto(size, GPU) for size in (1, 25, 26, 250, 251)] == ["device", "device", "ram", "ram", "disk"]
    assert [auto(size, limit=40) for size in (10, 11)] == ["ram", "disk"]
    assert [auto(size, GPU, limit=40) for size in (10, 11)] == ["device", "disk"]
    assert [auto(size, participation=0.1) for size in (1, 2)] == ["ram", "disk"]
    assert auto(2, participation=0.1, saved=False) == "ram"
    assert auto(2, participation=0.2) == "ram"


def test_what_is_asked_for_is_done_or_refused():
    given = {"participation": 1.0, "saved": True}
    assert choose_store("disk", 1, CPU, None, **given) == "disk"
    assert choose_store("device", 1, CPU, None, **given) == "ram"
    with pytest.raises(MemoryLimitError, match=r"2KB.*1KB"):
        choose_store("ram", 2000, CPU, 1000, **given)
    with pytest.raises(UnknownNameError, match="'tape'"):
        choose_store("tape", 1, CPU, None, **given)


# Simulations


def made(algorithm, kept):
    federation = digits_federation(clients=6, partition=IID(), validation=0.1)
    model = lambda: build("mlp", shape=(1, 8, 8), classes=10, hidden=(8,))  # noqa: E731
    return simulation(algorithm, federation, model, rounds=3, participation=0.5, store=kept)


def everything(progress):
    return bits(progress.server), held(progress.clients)


def test_a_simulation_on_disk_is_restored_from_its_index(tmp_path):
    sim = made(fedper(initial="own"), "disk")
    file = StateFile(tmp_path / "memories.bin", sim.state_format.size)
    whole = sim.run(Matrix())
    progress, _ = sim.round(sim.start(file), Matrix())
    progress, _ = sim.round(progress, Matrix())
    tensors = {name: x.clone() for name, x in progress.tensors().items()}
    assert not any(name.startswith("client/") for name in tensors)
    progress = sim.restored(tensors, StateFile(tmp_path / "memories.bin", sim.state_format.size))
    progress, _ = sim.round(progress, Matrix())
    assert everything(progress) == everything(whole)


def test_an_index_costs_sixteen_bytes_a_client():
    progress = replace(made(fedper(), "disk")).start()
    assert sum(x.nbytes for x in progress.clients.tensors().values()) == 16 * 6
    assert np.all(progress.clients.lease().slots == disk.NO_SLOT)


def test_a_state_of_another_round_is_refused():
    sim, progress = finished("fedper", batchnorm=False)
    form = SavedForm.of(sim)
    form.check(2, progress.tensors())
    for t in (1, 3):
        with pytest.raises(DamagedError, match=rf"\b2\b.*\b{t}\b"):
            form.check(t, progress.tensors())


def test_checksums_are_those_of_files_that_older_versions_wrote():
    """Numbers computed by an older version: a class that is renamed must not change them."""
    large = {"theta": {"w": torch.arange(3.0)}, "seen": torch.tensor([2], dtype=torch.int64)}
    for state, expected in ((large, 2047798297), ({"theta": {"w": torch.arange(3.0)}}, 3625359394)):
        layout = StateFormat(state)
        assert layout.sum(layout.encode(state)) == expected
