"""A site's process without a server: what it answers, what it tries again, and how it ends."""

import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

import httpx
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.task_identity import TaskIdentity

from stratafl.deploy import flower_node
from stratafl.deploy.flower_internals import APP_FAILED
from stratafl.deploy.flower_node import BEAT, PAUSES, Retries, SiteNode, load_app
from stratafl.deploy.processes import BAD_CERTIFICATE, FOUND, LOST, RETRY, log_to_stderr
from stratafl.deploy.site_processes import SiteProcesses


class Ended(BaseException):
    """In place of the end of this process."""


def refused(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError("", request=None, response=httpx.Response(status))


class FakeNode:
    """A server that hands out these messages, one after the other: an exception is raised."""

    number = 7

    def __init__(self, *messages: Message | Exception | None) -> None:
        self.messages, self.sent = list(messages), list[Message]()
        self.while_sending = lambda: None

    def message(self) -> Message | None:
        message = self.messages.pop(0)
        if isinstance(message, Exception):
            raise message
        return message

    def send(self, reply: Message) -> None:
        self.while_sending()
        self.sent.append(reply)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept = list[float]()
    monkeypatch.setattr(flower_node, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append))

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(flower_node, "os", SimpleNamespace(_exit=end))
    return slept


@pytest.fixture
def message(monkeypatch: pytest.MonkeyPatch) -> Message:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    message = Message(RecordDict({"a": ConfigRecord({"x": 1})}), 7, "train")
    message.metadata.__dict__["_message_id"] = "m"
    return message


def app(fails: bool = False) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if fails:
            raise ValueError("no\ndata: Jane Roe")
        site = ConfigRecord({"site": context.node_config["site"]})
        return Message(RecordDict({"told": site}), reply_to=message)

    return app


def test_a_message_is_answered_with_what_the_site_configured(message: Message, pauses: list[float]) -> None:
    node = FakeNode(message)
    SiteNode(node, app(), {"site": "north"}).work()
    (reply,) = node.sent
    assert reply.content["told"]["site"] == "north"
    assert reply.metadata.reply_to_message_id == "m"
    assert pauses == []


def test_an_exception_of_the_app_is_a_reply_of_one_line(message: Message, pauses: list[float]) -> None:
    node = FakeNode(message)
    SiteNode(node, app(fails=True), {"site": "north"}).work()
    told = "it failed (ValueError); its own log has the reason"  # which may quote samples
    assert (node.sent[0].error.reason, node.sent[0].error.code) == (told, APP_FAILED)


def test_without_messages_the_pauses_grow_and_after_an_answer_they_begin_again(
    message: Message, pauses: list[float]
) -> None:
    site = SiteNode(FakeNode(None, None, None, None, None, message, None), app(), {"site": "north"})
    for _ in range(7):
        site.work()
    assert pauses == [*PAUSES, PAUSES[-1], PAUSES[0]]


def test_a_gate_that_let_the_request_wait_is_asked_again_at_once(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((0.0, 10.0))
    monkeypatch.setattr(flower_node.time, "monotonic", lambda: next(times))
    SiteNode(FakeNode(None), app(), {}).work()
    assert pauses == []


@pytest.mark.parametrize("wrong", [refused(403), refused(413), ObjectPullError("o", "the object could not be found")])
def test_a_message_whose_run_is_over_or_that_is_lost_costs_nothing_else(
    wrong: Exception, message: Message, pauses: list[float]
) -> None:
    node = FakeNode(wrong, message)
    site = SiteNode(node, app(), {"site": "north"})
    site.work()
    site.work()
    assert len(node.sent) == 1


@pytest.mark.parametrize("status", [403, 413])
def test_the_owner_is_told_of_a_reply_that_was_not_taken(
    status: int, message: Message, pauses: list[float], capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    """Its process logs it, and `strata join` reads that log."""
    monkeypatch.setattr(logging.root, "handlers", [])
    log_to_stderr()
    SiteNode(FakeNode(refused(status)), app(), {"site": "north"}).work()
    logged = capsys.readouterr().err
    site = SiteProcesses.__new__(SiteProcesses)
    site.name, site.refusal = "north", ""
    (line,) = site._refused(logged)
    assert line.startswith("site 'north': ")
    assert site.refusal
    assert site._refused(logged) == []


@pytest.mark.parametrize("status", [400, 401, 500])
def test_another_refusal_ends_the_process(status: int, pauses: list[float]) -> None:
    with pytest.raises(httpx.HTTPStatusError):
        SiteNode(FakeNode(refused(status)), app(), {}).work()


def test_it_ends_at_once_but_sends_a_reply_that_is_on_its_way(message: Message, pauses: list[float]) -> None:
    node = FakeNode(message)
    site = SiteNode(node, app(), {"site": "north"})
    with pytest.raises(Ended):
        site.end()
    site = SiteNode(node, app(), {"site": "north"})
    node.while_sending = site.end
    with pytest.raises(Ended):
        site.work()
    assert len(node.sent) == 1


def test_a_server_that_is_away_is_asked_again_with_pauses_that_grow(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "stratafl.deploy")
    slept, answers = list[float](), [httpx.ConnectError("refused"), refused(503), refused(502), refused(504), 5, 6]
    answers += [httpx.ReadTimeout("")] * 9 + [7]

    def target(asked: str) -> int:
        assert asked == "asked"
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    retries = Retries(slept.append)
    assert retries.invoke(target, "asked") == 5
    assert slept == [0.5, 1.0, 2.0, 4.0]
    said = [record.getMessage() for record in caplog.records]
    assert [said[0].startswith(LOST), said[1]] == [True, FOUND]
    assert len(said) == 2
    assert retries.invoke(target, "asked") == 6
    assert len(caplog.records) == 2
    slept.clear()
    assert retries.invoke(target, "asked") == 7
    assert max(slept) == flower_node.RETRY


@pytest.mark.parametrize("error", [refused(401), refused(403), refused(500), httpx.ConnectError(BAD_CERTIFICATE)])
def test_what_another_try_cannot_mend_is_raised(error: httpx.HTTPError) -> None:
    def target() -> None:
        raise error

    with pytest.raises(type(error)):
        Retries(lambda seconds: pytest.fail("it tries again")).invoke(target)


def test_only_a_clientapp_is_loaded() -> None:
    assert isinstance(load_app("flower_echo:client"), ClientApp)
    with pytest.raises(TypeError, match="flower_echo:server"):
        load_app("flower_echo:server")


def test_a_heartbeat_that_was_lost_is_soon_repeated(pauses: list[float]) -> None:
    """Two that are lost in a row are all that Flower forgives."""
    answers = [True, httpx.ConnectError("down"), refused(503), True, False]

    def beat() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(Ended):
        flower_node._beat(SimpleNamespace(beat=beat))
    assert pauses == [BEAT, BEAT, RETRY, RETRY, BEAT]
