"""What is on the disks of sites and server: private, locked, verified; damage and a full disk are one line each."""

import errno
import logging
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from crashes import Disk
from safetensors.torch import load_file
from small_federation import FEDERATION, SITES, Federation, bits, delivered

from stratafl.errors import BusyError, DamagedError, RunError
from stratafl.execute.exchange import open_server, open_site, read_site, state_form
from stratafl.execute.exchange.protocol import Refusal, SendAll, UploadMessage, decode_reply, upload_digest
from stratafl.execute.exchange.site_store import CURRENT, DAMAGED, DELIVERED, PENDING
from stratafl.execute.exchange.state_file import DiskFullError, read_state, write_state

ANNA, BELA, CARL = SITES


@pytest.fixture
def federation(tmp_path):
    return Federation(tmp_path)


def place(federation, site):
    return federation.folder / "sites" / FEDERATION / site


def rounds(federation, server, count):
    for _ in range(count):
        for site in SITES:
            assert server.take(site, federation.answer(site, server.ask(site))).kind == "accepted"
        server.absorb()


def damage(path, at=-20):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# Files


def test_a_state_is_a_safetensors_file_that_proves_itself(tmp_path):
    path, tensors = tmp_path / "state.safetensors", {"a": torch.arange(6.0).reshape(2, 3), "b/": torch.empty(0)}
    tensors["c"] = torch.tensor(True)
    write_state(path, {"round": 3}, tensors)
    record, found = read_state(path, 1 << 20)
    assert record == {"format": 1, "round": 3}
    assert bits(found) == bits(tensors) == bits(load_file(path))
    whole = path.read_bytes()
    for at in (*range(120), *range(120, len(whole), 7)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DamagedError, match=r"^'.*state\.safetensors'"):
            read_state(path, 1 << 20)
    for end in (*range(0, len(whole), 7), len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(DamagedError):
            read_state(path, 1 << 20)
    path.write_bytes(whole + b"x")
    with pytest.raises(DamagedError):
        read_state(path, 1 << 20)
    with pytest.raises(DamagedError, match="100"):
        read_state(path, 100)


def test_a_newer_format_is_refused(tmp_path):
    write_state(tmp_path / "state", {"format": 2}, {})
    with pytest.raises(RunError, match=r"format 2\b.*\b1\b"):
        read_state(tmp_path / "state", 1 << 20)


def test_a_type_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(RunError, match=r"'x' is torch.complex64.*F64"):
        write_state(tmp_path / "state", {}, {"x": torch.zeros(2, dtype=torch.complex64)})


# Folders


def test_folders_are_private_and_locked(federation):
    with federation.server() as server:
        rounds(federation, server, 1)
        with pytest.raises(BusyError), federation.server():
            pass
    for folder in (place(federation, ANNA), place(federation, ANNA).parent, federation.folder / "server"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    place(federation, ANNA).chmod(0o755)
    with federation.site(ANNA), pytest.raises(BusyError), federation.site(ANNA):
        pass
    assert stat.S_IMODE(place(federation, ANNA).stat().st_mode) == 0o700


def test_a_link_is_not_a_folder(federation, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    place(federation, ANNA).parent.mkdir(parents=True)
    place(federation, ANNA).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedError, match=f"'{place(federation, ANNA)}'"), federation.site(ANNA):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_interrupted_writes_left_is_removed(federation):
    with federation.site(ANNA):
        pass
    left = place(federation, ANNA) / f".{PENDING}.0123.partial"
    left.write_bytes(b"half")
    with federation.site(ANNA):
        assert not left.exists()


def test_what_a_site_was_told_survives_a_power_cut(federation):
    with Disk()() as disk, federation.server() as server:
        rounds(federation, server, 1)
        with federation.site(ANNA) as store:
            pending = store.pending()
            store.promote()
            disk.cut_power()
            assert store.current().digest == pending.digest
            assert store.pending() is None
            store.keep(replace(pending, round=1, digest=upload_digest(FEDERATION, ANNA, 1, pending.upload)))
            disk.cut_power()
            assert store.pending().round == 1


# Damage at a site


def refused(federation, site, server, reason, *, lost=True):
    reply = decode_reply(federation.answer(site, server.ask(site)))
    assert isinstance(reply, Refusal)
    assert reason in reply.reason
    assert "\n" not in reply.reason
    assert reply.lost is lost


def test_a_damaged_state_is_an_error_and_stays_where_it_is(federation):
    with federation.server() as server:
        rounds(federation, server, 2)
        message = server.ask(ANNA)
        federation.answer(ANNA, message)
        damage(place(federation, ANNA) / CURRENT)
        trained = list(federation.trained)
        for path in (place(federation, ANNA) / PENDING, None):
            refused(federation, ANNA, server, "'anna'")
            if path is not None:
                damage(path)
                before = path.read_bytes()
        assert (place(federation, ANNA) / PENDING).read_bytes() == before
        assert federation.trained == trained


def test_a_confirmed_pending_state_replaces_a_damaged_one(federation):
    with federation.server() as server:
        rounds(federation, server, 2)
        damage(place(federation, ANNA) / CURRENT)
        rounds(federation, server, 1)
    assert federation.trained.count((ANNA, 2)) == 1


def test_a_damaged_pending_state_is_dropped_and_said(federation, caplog):
    with federation.server() as server:
        rounds(federation, server, 1)
        message = server.ask(ANNA)
        first = decode_reply(federation.answer(ANNA, message))
        damage(place(federation, ANNA) / PENDING)
        with caplog.at_level(logging.WARNING):
            reply = federation.answer(ANNA, server.ask(ANNA))
        assert f"'{DAMAGED}'" in caplog.text
        assert decode_reply(reply).body == first.body
        assert server.take(ANNA, reply).kind == "accepted"
        server.absorb()
    # Trained twice, and absorbed once.
    with federation.site(ANNA) as store:
        assert store.pending().attempt == 5
    assert (place(federation, ANNA) / DAMAGED).exists()


def test_a_pending_state_that_was_absorbed_and_is_lost_is_an_error(federation):
    with federation.server() as server:
        rounds(federation, server, 2)
        damage(place(federation, ANNA) / PENDING)
        refused(federation, ANNA, server, server.absorbed[ANNA][:12])
        assert federation.trained.count((ANNA, 2)) == 0


@pytest.mark.parametrize("name", [CURRENT, PENDING])
def test_the_state_of_another_site_or_model_is_refused_and_kept(federation, name):
    with federation.server() as server:
        rounds(federation, server, 2)
        mine, others = place(federation, ANNA) / name, place(federation, BELA) / name
        shutil.copy(mine, others)
        data = mine.read_bytes()
        trained = list(federation.trained)
        if name == PENDING:
            refused(federation, BELA, server, "'anna'", lost=False)
        else:
            with federation.site(BELA) as store, pytest.raises(RunError, match=r"'bela'.*'anna'"):
                store.current()
        assert others.read_bytes() == data
        assert federation.trained == trained
    form = state_form({"theta": torch.zeros(3)})
    with open_site(federation.folder / "sites", FEDERATION, ANNA, form) as store:
        for read in (store.current, store.pending):
            with pytest.raises(RunError, match=r"'state/theta'"):
                read()
    assert mine.read_bytes() == data


def test_a_state_of_another_form_is_not_saved(federation):
    with federation.server() as server:
        rounds(federation, server, 1)
        with federation.site(ANNA) as store:
            kept = store.pending()
            with pytest.raises(RunError, match="'steps'"):
                store.keep(replace(kept, state={"theta": kept.state["theta"]}))


def test_a_damaged_parcel_is_replaced_by_the_next_commit(federation):
    with federation.server() as server:
        rounds(federation, server, 1)
        federation.answer(ANNA, server.commit(ANNA))
        path = place(federation, ANNA) / DELIVERED
        whole = path.read_bytes()
        damage(path)
        with federation.site(ANNA) as store, pytest.raises(DamagedError, match=DELIVERED):
            delivered(store)
        assert server.take(ANNA, federation.answer(ANNA, server.commit(ANNA))).kind == "committed"
        assert len(path.read_bytes()) == len(whole)
        with federation.site(ANNA) as store:
            assert delivered(store) is not None
        shutil.copy(path, place(federation, BELA))
        with federation.site(BELA) as store, pytest.raises(RunError, match="'bela'"):
            delivered(store)


def test_a_folder_is_read_while_another_process_has_it_open(federation):
    with federation.server() as server:
        rounds(federation, server, 2)
        form = state_form(federation.site_works[ANNA].enrol())
        with federation.site(ANNA) as store:
            seen = read_site(federation.folder / "sites", FEDERATION, ANNA, form)
            assert bits(seen.current().state) == bits(store.current().state)
    assert read_site(federation.folder / "nowhere", FEDERATION, ANNA, form).current() is None
    assert not (federation.folder / "nowhere").exists()


def test_where_a_site_keeps_its_files_is_not_told(federation):
    with federation.server() as server:
        rounds(federation, server, 2)
        damage(place(federation, ANNA) / PENDING)
        damage(place(federation, ANNA) / CURRENT)
        reply = decode_reply(federation.answer(ANNA, server.ask(ANNA)))
        assert reply.reason.startswith(f"'{CURRENT}' ")
        assert str(federation.folder) not in reply.reason


# Damage at the server


def test_a_damaged_server_is_an_error_and_stays_where_it_is(federation):
    with federation.server() as server:
        rounds(federation, server, 1)
    folder = federation.folder / "server"
    shutil.copytree(folder, federation.folder / "copy")
    damage(folder / "state.safetensors")
    with (
        pytest.raises(DamagedError, match=r"state\.safetensors'.* '.*server'$"),
        federation.server(),
    ):
        pass
    (folder / "state.safetensors").unlink()
    with (
        pytest.raises(DamagedError, match=r"state\.safetensors'.*audit\.jsonl"),
        federation.server(),
    ):
        pass
    shutil.rmtree(folder)
    shutil.copytree(federation.folder / "copy", folder)
    (folder / "audit.jsonl").unlink()
    with (
        pytest.raises(DamagedError, match=r"audit\.jsonl'.* 8 lines"),
        federation.server(),
    ):
        pass
    shutil.copy(federation.folder / "copy" / "audit.jsonl", folder)
    with federation.server() as server:
        assert server.round == 1


def test_a_folder_of_another_federation_is_refused(federation):
    with federation.server() as server:
        rounds(federation, server, 1)
    other = open_server(federation.folder / "server", "other", SITES, federation.server_work)
    with (
        pytest.raises(DamagedError, match=r"'other'.*'digits-2026'"),
        other,
    ):
        pass


# A full disk


def test_a_full_disk_at_a_site_loses_nothing(federation):
    with federation.server() as server:
        rounds(federation, server, 1)
        message = server.ask(ANNA)
        counting = Disk()
        shutil.copytree(federation.folder / "sites", federation.folder / "before")
        with counting():
            expected = decode_reply(federation.answer(ANNA, message))
        kept, refusals = states(federation), 0
        for number in range(len(counting.seen)):
            shutil.rmtree(federation.folder / "sites")
            shutil.copytree(federation.folder / "before", federation.folder / "sites")
            with Disk(full=number)():
                reply = decode_reply(federation.answer(ANNA, message))
            if isinstance(reply, Refusal):
                refusals += 1
                assert not reply.lost
                assert os.strerror(errno.ENOSPC) in reply.reason
            reply = decode_reply(federation.answer(ANNA, message))
            if isinstance(reply, SendAll):  # the blocks made room
                reply = decode_reply(federation.answer(ANNA, server.ask(ANNA, whole=True)))
            assert isinstance(reply, UploadMessage)
            assert (reply.digest, reply.body) == (expected.digest, expected.body)
            assert states(federation) == kept
        assert refusals > 3


def states(federation):
    with federation.site(ANNA) as store:
        return [(kept.round, kept.digest, bits(kept.state)) for kept in (store.current(), store.pending())]


def test_blocks_make_room_for_a_state(federation):
    """The disk has just as much too little space as the blocks take."""
    with federation.server() as server:
        rounds(federation, server, 1)
        with federation.site(ANNA) as store:
            store.promote()
        message, blocks, real = server.ask(ANNA, whole=True), place(federation, ANNA) / "blocks", os.fsync

        def sync(handle):
            if list(blocks.iterdir()):
                raise OSError(28, "No space left on device")
            real(handle)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", sync)
            assert isinstance(decode_reply(federation.answer(ANNA, message)), UploadMessage)
        assert list(blocks.iterdir()) == []


def test_a_full_disk_at_the_server_loses_nothing(federation, tmp_path):
    refusals = 0

    def done(step):
        """Do it when there is space at last: the disk is full from the first operation on, from the second …"""
        nonlocal refusals
        saved, number = tmp_path / "server" / "state.safetensors", 0
        while True:
            standing, before = (server.round, server.absorbed, server.arrived), saved.read_bytes()
            with suppress(DiskFullError), Disk(full=number)():
                return step()
            assert (server.round, server.absorbed, server.arrived) == standing
            assert saved.read_bytes() == before
            refusals, number = refusals + 1, number + 1

    with federation.server() as server:
        rounds(federation, server, 1)
        with Disk(full=0)(), pytest.raises(DiskFullError, match=os.strerror(errno.ENOSPC)):
            server.ask(ANNA)
        message = done(lambda: server.ask(ANNA))
        reply = federation.answer(ANNA, message)
        assert done(lambda: server.take(ANNA, reply)).kind == "accepted"
        assert done(server.absorb) == {}
        reply = federation.answer(ANNA, done(lambda: server.commit(ANNA)))
        assert done(lambda: server.take(ANNA, reply)).kind == "committed"
        done(lambda: server.forget(BELA))
    assert refusals > 12
    with federation.server() as server:
        assert server.round == 2
        assert BELA not in server.absorbed
