"""Blocks that a site has are not sent again, are counted, and are never replaced by something else."""

import os
from dataclasses import replace

import pytest
import torch
from small_federation import DOWN_FORM, FEDERATION, LAYOUT, SITES, ArithmeticServer, Federation

from stratafl.core import wire
from stratafl.core.parcel import Field, Parcel
from stratafl.errors import WireError
from stratafl.execute.exchange import SiteExchange, open_site, state_form
from stratafl.execute.exchange.blocks import BlockCache, block_digest, pack_download, unpack_download
from stratafl.execute.exchange.protocol import (
    MAX_OFFERED_BLOCKS,
    Address,
    DownloadMessage,
    Piece,
    SendAll,
    decode_reply,
    decode_request,
)

ANNA = SITES[0]
ADDRESS = Address(FEDERATION, ANNA, 0, 1)
PARCEL = ArithmeticServer().download(0, ArithmeticServer().start(), ANNA)
FROZEN = 6 * 50 * 4  # bytes of the block that never changes


def download(have=()):
    found = pack_download(PARCEL, have)
    return found, DownloadMessage(ADDRESS, "", found.pieces, found.body)


def test_a_parcel_is_its_pieces():
    found, message = download()
    assert unpack_download(message, lambda piece: None) == PARCEL
    assert found.saved == 0
    blocks = [piece for piece in found.pieces if piece.digest]
    assert [piece.size for piece in blocks] == [FROZEN, FROZEN]
    assert sum(piece.size for piece in found.pieces) == len(PARCEL)
    assert len(PARCEL) - 2 * FROZEN > 100  # the header and the small tensors, always sent


def test_pieces_of_parcels_without_blocks_or_tensors():
    for parcel in (Parcel({}), Parcel({"x": Field(torch.tensor(1.0), common=True)})):
        data = wire.encode(parcel, LAYOUT)
        found = pack_download(data, {})
        assert found.pieces == (Piece(len(data)),)


def test_what_the_site_has_is_left_out_and_put_back():
    whole, _ = download()
    kept = {piece.digest: data for piece, data in zip(whole.pieces, stretches(whole), strict=True) if piece.digest}
    for have in ({next(iter(kept))}, set(kept)):
        found, message = download(have)
        assert found.saved == FROZEN * len(have)
        assert len(found.body) == len(PARCEL) - found.saved
        assert unpack_download(message, lambda piece: kept[piece.digest]) == PARCEL
        assert unpack_download(message, lambda piece: None) is None


def stretches(found):
    begin = 0
    for piece in found.pieces:
        yield found.body[begin : begin + piece.size]
        begin += piece.size


def test_a_federation_saves_the_bytes_that_it_counts(tmp_path):
    federation, sizes = Federation(tmp_path), []
    with federation.server() as server:

        def answer(site, data):
            sizes.append(len(data))
            return federation.answer(site, data)

        federation.all_rounds(server, answer)
        assert server.bytes_saved == 8 * FROZEN  # two sites in two further rounds, one in one, and three commits
    asked = [line for line in federation.log() if line["event"] in ("asked", "commit")]
    assert [line["bytes"] for line in asked] == sizes
    assert sum(line["saved"] for line in asked) == 8 * FROZEN
    assert max(sizes[3:8]) < min(sizes[:3]) - FROZEN + 200


@pytest.mark.parametrize("how", ["removed", "changed", "cut", "longer", "a link", "a folder"])
def test_a_block_that_is_not_there_is_asked_for_and_never_guessed(tmp_path, how):
    federation = Federation(tmp_path)
    with federation.server() as server:
        assert server.take(ANNA, federation.answer(ANNA, server.ask(ANNA))).kind == "accepted"
        server.absorb()
        message = server.ask(ANNA)
        (digest,) = [piece.digest for piece in decode_request(message).pieces if not piece.sent]
        path = tmp_path / "sites" / FEDERATION / ANNA / "blocks" / digest
        data = path.read_bytes()
        path.unlink()
        if how == "a link":
            (tmp_path / "data").write_bytes(data)
            path.symlink_to(tmp_path / "data")
        elif how == "a folder":
            path.mkdir()
        elif how != "removed":
            path.write_bytes({"changed": data[:-1] + b"x", "cut": data[:-1], "longer": data + b"x"}[how])
        trained = list(federation.trained)
        reply = federation.answer(ANNA, message)
        assert isinstance(decode_reply(reply), SendAll)
        assert federation.trained == trained
        assert server.take(ANNA, reply).kind == "send all"
        again = server.ask(ANNA)  # nothing is known of what it has
        assert all(piece.sent for piece in decode_request(again).pieces)
        assert server.take(ANNA, federation.answer(ANNA, again)).kind == "accepted"


def test_wrong_digests_in_a_message_reach_neither_the_cache_nor_the_work(tmp_path):
    """The checksum of the parcel is that of its bytes: a block of another parcel in its place is noticed."""
    found, message = download()
    theta = next(piece for piece in found.pieces if piece.digest)
    cache = BlockCache(tmp_path / "blocks").prepare()
    cache.add([(theta.digest, memoryview(b"y" * FROZEN))], [])
    assert cache.get(theta) is None
    pieces = tuple(piece if piece != theta else Piece(FROZEN, theta.digest, False) for piece in found.pieces)
    rest = [data for piece, data in zip(found.pieces, stretches(found), strict=True) if piece != theta]
    other = unpack_download(replace(message, pieces=pieces, body=b"".join(rest)), lambda piece: b"y" * FROZEN)
    with pytest.raises(WireError, match="checksum"):
        wire.decode(other, LAYOUT, DOWN_FORM)


# The cache


def blocks(*sizes):
    data = [bytes([number]) * size for number, size in enumerate(sizes)]
    return [(block_digest(each), memoryview(each)) for each in data]


def test_a_cache_is_bounded_and_forgets_the_oldest(tmp_path):
    cache, made = BlockCache(tmp_path / "blocks", 3000).prepare(), blocks(1000, 1000, 1000, 1000, 4000)
    names = [digest for digest, _ in made]
    for number, block in enumerate(made):
        cache.add([block], [])
        if number < 4:
            os.utime(cache.folder / names[number], ns=(number, number))
    assert set(cache.offered()) == set(names[1:4])
    cache.add([], [names[1]])  # used again
    cache.add([blocks(1000, 500)[1]], [])
    assert names[1] in cache.offered()
    assert names[2] not in cache.offered()
    cache.clear()
    assert cache.offered() == ()
    assert BlockCache(tmp_path / "none", 0).prepare().add(made, names) is None
    assert list((tmp_path / "none").iterdir()) == []


def test_a_cache_offers_no_more_than_a_message_holds(tmp_path):
    cache = BlockCache(tmp_path / "blocks").prepare()
    cache.add(((f"{number:032x}", memoryview(b"x")) for number in range(MAX_OFFERED_BLOCKS + 9)), [])
    assert len(cache.offered()) == len(os.listdir(cache.folder)) == MAX_OFFERED_BLOCKS


def test_a_site_without_a_cache_gets_everything(tmp_path):
    federation = Federation(tmp_path)
    work = federation.site_works[ANNA]
    with federation.server() as server:
        for _ in range(2):
            with open_site(tmp_path / "sites", FEDERATION, ANNA, state_form(work.enrol()), cache_bytes=0) as store:
                reply = SiteExchange(store, work, 3).answer(server.ask(ANNA))
            assert decode_reply(reply).have == ()
            assert server.take(ANNA, reply).kind == "accepted"
            server.absorb()
        assert server.bytes_saved == 0
