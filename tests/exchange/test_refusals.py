"""Messages that are old, of others, reordered, repeated or wrong: refused, logged, and nothing is changed."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from small_federation import FEDERATION, SITES, Federation, delivered

from stratafl.errors import RecordError, RunError, UnknownNameError, WireError
from stratafl.execute.exchange import open_server, open_site, protocol
from stratafl.execute.exchange.protocol import (
    Commit,
    Committed,
    DownloadMessage,
    Refusal,
    SendAll,
    UploadMessage,
    decode_reply,
    decode_request,
    encode_message,
    upload_digest,
)

ANNA, BELA, CARL = SITES


def files(folder: Path, *, but: str = "") -> dict[str, str]:
    """What is on a disk."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != but)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


class Unchanged:
    """Checks that a reply is refused: with a line in the log, and nothing else."""

    def __init__(self, federation: Federation, server) -> None:
        self.federation, self.server = federation, server

    def __call__(self, sender: str, data: bytes, *values: str) -> None:
        folder, server = self.federation.folder, self.server
        before, told = files(folder, but="audit.jsonl"), len(self.federation.log())
        standing = (server.round, server.absorbed, server.arrived, server.bytes_saved)
        answer = server.take(sender, data)
        assert answer.kind == "refused"
        assert all(value in answer.reason for value in values)
        assert (server.round, server.absorbed, server.arrived, server.bytes_saved) == standing
        assert files(folder, but="audit.jsonl") == before
        line = self.federation.log()[-1]
        assert len(self.federation.log()) == told + 1
        assert (line["event"], line["site"], line["bytes"]) == ("refused", sender, len(data))
        assert line["reason"] == answer.reason


@pytest.fixture
def federation(tmp_path):
    return Federation(tmp_path)


def refused_by_site(federation: Federation, site: str, data: bytes, *values: str) -> None:
    before = files(federation.folder)
    reply = decode_reply(federation.answer(site, data))
    assert isinstance(reply, Refusal)
    assert all(value in reply.reason for value in values)
    assert files(federation.folder) == before


def one_round(federation: Federation, server, *sites: str) -> dict[str, bytes]:
    messages = {}
    for site in sites or SITES:
        messages[site] = server.ask(site)
        assert server.take(site, federation.answer(site, messages[site])).kind == "accepted"
    server.absorb()
    return messages


# Replies


def test_replies_that_do_not_count_are_refused_and_logged(federation):
    with federation.server() as server:
        refused = Unchanged(federation, server)
        one_round(federation, server)
        old = server.ask(ANNA)
        first = federation.answer(ANNA, old)
        refused(ANNA, first[:-1])
        refused(ANNA, b"", "b''")
        again = server.ask(ANNA)
        refused(ANNA, first, "attempt 4", "attempt 5")  # of an old attempt
        reply = decode_reply(federation.answer(ANNA, again))
        assert isinstance(reply, UploadMessage)
        assert encode_message(reply) != first
        assert reply.body == decode_reply(first).body
        refused(BELA, encode_message(reply), "'anna'", "'bela'")
        refused("mallory", encode_message(reply), "'anna'", "'mallory'")
        refused(CARL, encode_message(replace(reply, address=replace(reply.address, site=CARL))), "'carl'")
        refused(
            ANNA,
            encode_message(replace(reply, address=replace(reply.address, federation="other"))),
            "'other'",
            f"'{FEDERATION}'",
        )
        refused(ANNA, encode_message(replace(reply, address=replace(reply.address, round=0))), "round 0", "round 1")
        refused(ANNA, encode_message(replace(reply, address=replace(reply.address, attempt=6))), "attempt 6")
        refused(ANNA, encode_message(replace(reply, body=reply.body + b"x")))
        refused(ANNA, encode_message(replace(reply, digest="0" * 64)))
        refused(ANNA, encode_message(Committed(reply.address, "0" * 64)))
        refused(ANNA, old, "'download'")
        assert server.take(ANNA, encode_message(reply)).kind == "accepted"
        refused(ANNA, encode_message(reply), "attempt 5", "'anna'")  # replayed
        server.absorb()
        refused(ANNA, encode_message(reply), "attempt 5", "'anna'")  # late


def test_a_reply_counts_for_the_round_that_asked(federation):
    with federation.server() as server:
        refused = Unchanged(federation, server)
        late = federation.answer(CARL, server.ask(CARL))
        one_round(federation, server, ANNA, BELA)
        refused(CARL, late, "'carl'")
        server.ask(CARL)
        refused(CARL, late, "round 0", "round 1")


def test_what_a_site_kept_is_checked(federation):
    with federation.server() as server:
        one_round(federation, server)
        reply = decode_reply(federation.answer(ANNA, server.commit(ANNA)))
        wrong = replace(reply, absorbed="0" * 64)
        Unchanged(federation, server)(ANNA, encode_message(wrong))
        assert server.take(ANNA, encode_message(reply)).kind == "committed"
        assert federation.log()[-1]["upload"] == server.absorbed[ANNA]


def test_an_old_commit_does_not_replace_a_later_parcel(federation):
    with federation.server() as server:
        one_round(federation, server)
        first = server.commit(ANNA)
        assert server.take(ANNA, federation.answer(ANNA, first)).kind == "committed"
        one_round(federation, server, BELA)
        last = server.commit(ANNA)
        assert server.take(ANNA, federation.answer(ANNA, last)).kind == "committed"
        with federation.site(ANNA) as store:
            assert delivered(store) == federation.server_work.download(2, server.state, ANNA)
        refused_by_site(federation, ANNA, first, "round 1, attempt 4", "round 2, attempt 6")
        assert isinstance(decode_reply(federation.answer(ANNA, last)), Committed)


def test_a_site_that_never_took_part_gets_the_last_parcel(federation):
    with federation.server() as server:
        one_round(federation, server, BELA)
        assert server.take(ANNA, federation.answer(ANNA, server.commit(ANNA))).kind == "committed"
        with federation.site(ANNA) as store:
            assert store.current() is store.pending() is None
            assert delivered(store) == federation.server_work.download(1, server.state, ANNA)
    assert federation.trained == [(BELA, 0)]


def test_a_reply_of_another_session_is_old(federation):
    """The server was started again: attempts go on from where they were."""
    with federation.server() as server:
        first = federation.answer(ANNA, server.ask(ANNA))
    with federation.server() as server:
        message = server.ask(ANNA)
        assert decode_request(message).address.attempt == 2
        Unchanged(federation, server)(ANNA, first, "round 0, attempt 1", "round 0, attempt 2")
        assert server.take(ANNA, federation.answer(ANNA, message)).kind == "accepted"
    assert federation.trained == [(ANNA, 0)]


def test_the_reason_of_a_site_is_passed_on(federation):
    with federation.server() as server:
        address = decode_request(server.ask(ANNA)).address
        answer = server.take(ANNA, encode_message(Refusal(address, "its disk is full\n\x1b[2J")))
        assert (answer.kind, answer.reason, answer.lost) == ("declined", "its disk is full\\x0a\\x1b[2J", False)
        assert federation.log()[-1]["event"] == "declined"
        with pytest.raises(RunError, match="round 0"):
            server.absorb()


def test_a_site_is_not_asked_again_once_its_upload_is_here(federation):
    with federation.server() as server:
        server.take(ANNA, federation.answer(ANNA, server.ask(ANNA)))
        with pytest.raises(RunError, match=r"'anna'.*round 0"):
            server.ask(ANNA)
        with pytest.raises(UnknownNameError, match=r"'ana'.*'anna'"):
            server.ask("ana")


# Messages to a site


def test_messages_for_others_and_of_others_are_refused(federation):
    with federation.server() as server:
        messages = one_round(federation, server)
        message = decode_request(server.ask(ANNA))
    refused_by_site(federation, BELA, encode_message(message), "'anna'", "'bela'")
    other = replace(message, address=replace(message.address, federation="other"))
    refused_by_site(federation, ANNA, encode_message(other), "'other'", f"'{FEDERATION}'")
    federation.answer(ANNA, encode_message(message))
    refused_by_site(federation, ANNA, messages[ANNA], "round 0, attempt 1")  # replayed
    with pytest.raises(WireError):
        federation.answer(ANNA, encode_message(message)[:-1])


def test_old_messages_do_not_replace_what_may_have_been_absorbed(federation):
    """Round 0 of Carl was not absorbed; its message comes again when round 1 is done, and its digest still counts."""
    with federation.server() as server:
        old = server.ask(CARL)
        federation.answer(CARL, old)
        one_round(federation, server, ANNA, BELA)
        assert server.take(CARL, federation.answer(CARL, server.ask(CARL))).kind == "accepted"
        refused_by_site(federation, CARL, old, "round 0, attempt 1", "round 1, ")
        server.absorb()
        refused_by_site(federation, CARL, old, "round 0, attempt 1")
        answer = federation.answer(CARL, server.commit(CARL))
        assert server.take(CARL, answer).kind == "committed"
        refused_by_site(federation, CARL, old, "round 0, attempt 1")
    assert federation.trained == [(CARL, 0), (ANNA, 0), (BELA, 0), (CARL, 1)]


@pytest.mark.parametrize("round", [0, 1])
def test_a_round_that_was_absorbed_is_not_asked_for_again(federation, round):
    with federation.server() as server:
        one_round(federation, server)
        one_round(federation, server)
        message = decode_request(server.ask(ANNA))
    again = replace(message, address=replace(message.address, round=round))
    refused_by_site(federation, ANNA, encode_message(again), f"round {round}, ")


def test_an_attempt_that_was_absorbed_is_not_answered_again(federation):
    """Not even for a later round: attempts number all messages that a server ever sent."""
    with federation.server() as server:
        absorbed = decode_request(one_round(federation, server)[ANNA]).address.attempt
        message = decode_request(server.ask(ANNA))
        again = replace(message, address=replace(message.address, attempt=absorbed))
        refused_by_site(federation, ANNA, encode_message(again), f"round 1, attempt {absorbed}")
        assert server.take(ANNA, federation.answer(ANNA, encode_message(message))).kind == "accepted"
        refused_by_site(
            federation, ANNA, encode_message(again), f"round 1, attempt {absorbed}"
        )  # now of a pending state
    assert federation.trained.count((ANNA, 1)) == 1


def test_a_repeated_message_is_answered_from_the_disk(federation):
    with federation.server() as server:
        message = server.ask(ANNA)
        replies = [federation.answer(ANNA, message) for _ in range(3)]
        assert len({decode_reply(reply).body for reply in replies}) == 1
        assert federation.trained == [(ANNA, 0)]


def test_a_server_that_was_put_back_is_refused(federation):
    with federation.server() as server:
        one_round(federation, server)
        message = decode_request(server.ask(ANNA))
        assert isinstance(message, DownloadMessage)
        federation.answer(ANNA, encode_message(message))
        later = replace(message.address, attempt=99, round=5)
    for absorbed in ("", "0" * 64):
        commit = Commit(later, absorbed, message.pieces, message.body)
        for request in (commit, replace(message, address=later, absorbed=absorbed)):
            refused_by_site(federation, ANNA, encode_message(request), server.absorbed[ANNA][:12])


def test_a_site_keeps_to_the_rounds_that_it_agreed_to(federation):
    """Neither a round beyond them, nor a final model after more of them, and no round before its final model."""
    federation.agreed = 2
    with federation.server() as server:
        one_round(federation, server)
        message = decode_request(server.ask(ANNA))
        for number in (2, 3, 99, 10**6):
            late = replace(message, address=replace(message.address, round=number))
            for request in (late, Commit(replace(late.address, round=number + 1), late.absorbed, (), b"")):
                refused_by_site(federation, ANNA, encode_message(request), " 2 rounds")
        one_round(federation, server, ANNA, BELA)
        assert server.take(CARL, federation.answer(CARL, server.commit(CARL))).kind == "committed"
        missed = decode_request(server.ask(CARL)).address
        for number, said in ((0, "round 0"), (1, " 2 rounds")):  # Carl has not answered round 1
            asked = replace(message, address=replace(missed, round=number), absorbed=server.absorbed[CARL])
            refused_by_site(federation, CARL, encode_message(asked), said)
        refused_by_site(federation, CARL, server.ask(CARL), " 2 rounds")
        federation.agreed = 3  # more, and its final model is that of fewer
        assert server.take(CARL, federation.answer(CARL, server.ask(CARL))).kind == "accepted"


# A method that leaves uploads out, and sites that are forgotten


def test_what_is_left_out_is_dropped_at_the_site(federation):
    federation.server_work.left_out = {(1, BELA): "it is not finite"}
    with federation.server() as server:
        one_round(federation, server)
        with federation.site(BELA) as store:
            assert store.current() is None  # nobody told it yet
        before = server.absorbed[BELA]
        one_round(federation, server)
        assert server.absorbed[BELA] == before
        assert federation.log()[-1]["left_out"] == {BELA: "it is not finite"}
        federation.answer(BELA, server.commit(BELA))
        with federation.site(BELA) as store:
            assert store.current().digest == before
        one_round(federation, server)
    assert federation.trained.count((BELA, 1)) == federation.trained.count((BELA, 2)) == 1


def test_a_site_that_lost_its_folder_starts_anew_only_if_the_host_says_so(federation, tmp_path):
    with federation.server() as server:
        one_round(federation, server)
        (tmp_path / "sites" / FEDERATION / CARL).rename(tmp_path / "lost")
        refused_by_site_without_folder = decode_reply(federation.answer(CARL, server.ask(CARL)))
        assert server.absorbed[CARL][:12] in refused_by_site_without_folder.reason
        answer = server.take(CARL, encode_message(refused_by_site_without_folder))
        assert (answer.kind, answer.lost, federation.log()[-1]["lost"]) == ("declined", True, True)
        server.forget(CARL)
        assert CARL not in server.absorbed
        assert server.take(CARL, federation.answer(CARL, server.ask(CARL))).kind == "accepted"
        server.absorb()
    with federation.server() as server:
        assert CARL in server.absorbed
    assert "forget" in [line["event"] for line in federation.log()]


# Names and digests


def test_equal_uploads_of_two_rounds_have_two_digests():
    """Otherwise a method that sends nothing could not tell a pending state from the current one."""
    assert upload_digest(FEDERATION, ANNA, 0, b"") != upload_digest(FEDERATION, ANNA, 1, b"")
    assert upload_digest(FEDERATION, ANNA, 0, b"x") != upload_digest(FEDERATION, BELA, 0, b"x")
    assert upload_digest("a", "b", 0, b"x") != upload_digest("ab", "", 0, b"x")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "a\0b", "ä", "x" * 65, "-x", "a b"])
def test_a_name_is_no_way_out_of_a_folder(tmp_path, name):
    for federation, site in ((FEDERATION, name), (name, ANNA)):
        with pytest.raises(RecordError), open_site(tmp_path, federation, site, {}):
            pass
        with pytest.raises(RecordError), open_server(tmp_path, federation, [site], None):
            pass
    assert list(tmp_path.iterdir()) == []


def test_messages_have_one_encoding():
    address = protocol.Address(FEDERATION, ANNA, 3, 7)
    piece = protocol.Piece(3, "a" * 32)
    pieces = (piece, replace(piece, sent=False))
    for request in (DownloadMessage(address, "", pieces, b"abc"), Commit(address, "0" * 64, pieces, b"abc")):
        assert decode_request(encode_message(request)) == request
    for reply in (
        UploadMessage(address, "1" * 64, ("b" * 32,), b"data"),
        SendAll(address),
        Committed(address, ""),
        Refusal(address, "why"),
    ):
        assert decode_reply(encode_message(reply)) == reply
