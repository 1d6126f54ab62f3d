"""What is forged, replayed or sent under another name is refused, and costs its victim nothing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from test_hosting import Clock

from hosted import SITES, SignedLocal, deployed, largest, simulated, with_tables, write_file, write_folders
from stratafl.deploy.courier import REFUSED, SignedMessage
from stratafl.deploy.hosting import Hosting
from stratafl.deploy.member import AGREED
from stratafl.deploy.serving import checked_log
from stratafl.deploy.signatures import INBOX, LAST, STARTS, HostSignatures, SignedCourier, _statement
from stratafl.deploy.signing_keys import (
    KEYS,
    SIGNING_KEY,
    create_signing_key,
    public_line,
    read_signing_key,
    site_verifying_key,
)
from stratafl.deploy.status import read_status
from stratafl.errors import DamagedError, DeployError, WireError

ASKED = {"federation": "test"}, b""


def prepared(folder: Path, **tables):
    file = with_tables(**tables)
    sites = write_folders(folder, file, keys=True)
    return file, SignedLocal(folder, sites), sites


def host(folder: Path, transport: SignedLocal) -> Hosting:
    clock = Clock()
    courier = SignedCourier(transport, HostSignatures(folder / "host"))
    return Hosting(folder / "host", courier, clock=clock, pause=clock.pause)


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1]) if data else b"\0"


@pytest.mark.budget(2.5, "a federation of four sites in this process, and the simulation")
def test_forged_replayed_and_misattributed_replies_cost_their_victim_nothing(tmp_path: Path) -> None:
    """One site is attacked in every way at every kind of message; it takes part in every round all the same."""
    file, transport, sites = prepared(tmp_path, run={"rounds": 2, "participation": 1.0}, deploy={"least": 1})
    earlier, thief = dict[str, SignedMessage](), transport.member("b")
    thief._key, thief._note = transport.member("c")._key, lambda *_: None  # site c signs in the name of b

    def ways(kind, request, reply):
        yield "forged table", replace(reply, table=b'{"score": 1.0}')
        yield "forged body", replace(reply, body=flipped(reply.body))
        yield "forged signature", replace(reply, signature=flipped(reply.signature))
        yield "no signature", replace(reply, signature=b"")
        yield "another number", replace(reply, number=reply.number + 1)
        yield "another site's", thief.answer(kind, request)
        if kind in earlier:
            yield "replayed", earlier[kind]

    done = set()

    def attacked(kind, site, request, reply):
        if site != "b":
            return reply
        for name, changed in ways(kind, request, reply):
            if (kind, name) not in done:
                done.add((kind, name))
                return changed
        earlier.setdefault(kind, reply)
        return reply

    transport.change = attacked
    host(tmp_path, transport).run()
    assert len(done) == 6 * 3 + 1  # a site introduces itself and agrees once
    status, log = read_status(tmp_path / "host"), checked_log(tmp_path / "host")
    assert status["state"] == "finished"
    assert [sorted(line["absorbed"]) for line in log if line["event"] == "absorb"] == [list(SITES)] * 2
    refused = [line for line in log if line["event"] == "refused"]
    assert {line["site"] for line in refused} == {"b"}
    assert len(refused) == sum(kind != "introduce" for kind, _ in done)  # before the first round there is no log
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) == 0


def test_a_request_that_is_not_the_hosts_is_refused_before_anything_is_read_or_stored(tmp_path: Path) -> None:
    _, transport, sites = prepared(tmp_path)
    signatures = HostSignatures(tmp_path / "host")
    request = signatures.request("introduce", "a", ASKED)
    other = tmp_path / "other"
    write_file(other, with_tables())
    create_signing_key(other / SIGNING_KEY)
    forged = [
        ("introduce", replace(request, table=b'{"federation": "test" }')),
        ("introduce", replace(request, body=b"x")),
        ("introduce", replace(request, number=request.number + 1)),
        ("introduce", replace(request, signature=flipped(request.signature))),
        ("agree", request),  # another kind
        ("introduce", signatures.request("introduce", "b", ASKED)),  # another site
        ("introduce", HostSignatures(other).request("introduce", "a", ASKED)),  # another host
    ]
    write_file(other, with_tables(deploy={"name": "elsewhere"}))
    (other / SIGNING_KEY).write_bytes((tmp_path / "host" / SIGNING_KEY).read_bytes())
    forged.append(("introduce", HostSignatures(other).request("introduce", "a", ASKED)))  # another federation
    reply = transport.member("a").answer("introduce", request)
    forged.append(("introduce", reply))  # a reply is no request
    (tmp_path / "a.csv").unlink()  # the samples
    (sites["a"] / INBOX / LAST).unlink()
    before = sorted(sites["a"].rglob("*"))
    for kind, message in forged:
        with pytest.raises(WireError):
            transport.member("a").answer(kind, message)
    assert sorted(sites["a"].rglob("*")) == before


@pytest.mark.budget(1.2, "a federation of four sites in this process")
def test_a_request_is_answered_again_and_an_earlier_one_is_refused_whoever_has_restarted(tmp_path: Path) -> None:
    _, transport, sites = prepared(tmp_path, run={"rounds": 1, "participation": 1.0})
    host(tmp_path, transport).run()
    by_kind = {kind: request for kind, site, request in transport.requests if site == "b"}
    assert list(by_kind) == ["introduce", "agree", "round"]
    before = {path: path.read_bytes() for path in sites["b"].rglob("*") if path.is_file()}
    again, last = transport.member("b"), by_kind.pop("round")
    first, second = again.answer("round", last), again.answer("round", last)
    assert first == second  # the last one is answered as before
    signatures = HostSignatures(tmp_path / "host")
    for kind, request in by_kind.items():
        assert list(signatures.reply(kind, "b", request, again.answer(kind, request))[0]) == [REFUSED]
    assert {path: path.read_bytes() for path in sites["b"].rglob("*") if path.is_file()} == before
    # A host that has started again goes on with larger numbers, and one that is an old copy is refused.
    assert signatures.request("introduce", "b", ASKED).number > last.number
    (tmp_path / "host" / STARTS).unlink()
    old = HostSignatures(tmp_path / "host").request("introduce", "b", ASKED)
    assert REFUSED in json.loads(again.answer("introduce", old).table)


def test_the_same_number_for_another_request_is_refused(tmp_path: Path) -> None:
    _, transport, _ = prepared(tmp_path)
    signatures = HostSignatures(tmp_path / "host")
    transport.member("a").answer("introduce", signatures.request("introduce", "a", ASKED))
    signatures._next -= 1
    reply = transport.member("a").answer("introduce", signatures.request("introduce", "a", ({**ASKED[0], "x": 1}, b"")))
    assert REFUSED in json.loads(reply.table)


def test_a_reply_counts_for_no_other_request_and_for_no_other_host_of_this_name(tmp_path: Path) -> None:
    """Requests of one number come from a host that was put back; one key of a site may be known to two hosts."""
    _, transport, _ = prepared(tmp_path)
    signatures, member = HostSignatures(tmp_path / "host"), transport.member("a")
    request = signatures.request("introduce", "a", ASKED)
    reply = member.answer("introduce", request)
    signatures._next -= 1
    other = signatures.request("introduce", "a", ({**ASKED[0], "x": 1}, b""))
    assert other.number == request.number
    with pytest.raises(WireError):
        signatures.reply("introduce", "a", other, reply)
    (tmp_path / "host" / SIGNING_KEY).unlink()
    create_signing_key(tmp_path / "host" / SIGNING_KEY)
    with pytest.raises(WireError):
        HostSignatures(tmp_path / "host").reply("introduce", "a", request, reply)


def test_a_request_is_no_reply_although_one_key_signed_both(tmp_path: Path) -> None:
    """As if the owner of a site, who may host too, had given one file to both."""
    _, transport, sites = prepared(tmp_path)
    shutil.copy(tmp_path / "host" / SIGNING_KEY, sites["a"] / SIGNING_KEY)
    key = public_line(read_signing_key(sites["a"] / SIGNING_KEY), "a")
    (tmp_path / "host" / KEYS / "a.pub").write_text(f"first\n{key}\n")
    signatures = HostSignatures(tmp_path / "host")
    request = signatures.request("introduce", "a", ASKED)
    assert signatures.reply("introduce", "a", request, transport.member("a").answer("introduce", request))
    facts = signatures._key.public_key(), "test", "introduce", "a", request.number, b"{}", b""
    assert _statement(*facts[:2], "request", *facts[2:]) != _statement(*facts[:2], "reply", *facts[2:])


@pytest.mark.parametrize("damage", [b"", b"{}", b"nothing", b'{"number": "1", "request": ""}'])
def test_a_damaged_memory_of_requests_is_said_and_not_guessed(tmp_path: Path, damage: bytes) -> None:
    _, transport, sites = prepared(tmp_path)
    signatures = HostSignatures(tmp_path / "host")
    transport.member("a").answer("introduce", signatures.request("introduce", "a", ASKED))
    (sites["a"] / INBOX / LAST).write_bytes(damage)
    reply = transport.member("a").answer("introduce", signatures.request("introduce", "a", ASKED))
    assert LAST in json.loads(reply.table)[REFUSED]
    assert str(tmp_path) not in json.loads(reply.table)[REFUSED]
    (tmp_path / "host" / STARTS).write_bytes(damage)
    with pytest.raises(DamagedError, match=STARTS):
        HostSignatures(tmp_path / "host")
    assert not (sites["a"] / AGREED).exists()


def test_a_public_file_of_an_earlier_version_has_no_signing_key(tmp_path: Path) -> None:
    """One line, or a second one of another kind; the error says what to do at the site."""
    line = public_line(create_signing_key(tmp_path / SIGNING_KEY), "north")
    path = tmp_path / "north.pub"
    for text in ("first\n", "first", "first\nsecond\n", ""):
        path.write_text(text)
        with pytest.raises(DeployError, match=r"north\.pub.*strata join"):
            site_verifying_key(path)
    path.write_text(f"first\n{line}\n")
    assert site_verifying_key(path)
    path.unlink()
    with pytest.raises(DeployError, match=r"north\.pub"):
        site_verifying_key(path)


def test_a_site_whose_key_is_taken_away_is_not_heard(tmp_path: Path) -> None:
    _, transport, _ = prepared(tmp_path)
    signatures = HostSignatures(tmp_path / "host")
    request = signatures.request("introduce", "a", ASKED)
    reply = transport.member("a").answer("introduce", request)
    assert signatures.reply("introduce", "a", request, reply)
    (tmp_path / "host" / KEYS / "a.pub").unlink()
    with pytest.raises(WireError, match=r"a\.pub"):
        signatures.reply("introduce", "a", request, reply)
