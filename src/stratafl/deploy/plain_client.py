"""The ClientApp of `strata flower-app`, for a SuperNode that somebody else runs: nothing but Flower's public names.

Name, folder and samples of the site come from the node's configuration. Flower may start a process for each message, so
everything is read from the site's folder, which its owner has prepared with `strata join`.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from stratafl.deploy.consent import check_consent
from stratafl.deploy.courier import Kind
from stratafl.deploy.member import SiteMember
from stratafl.deploy.messages import answer_all, content_of, read_content
from stratafl.deploy.processes import log_to_stderr
from stratafl.deploy.signatures import SignedMember
from stratafl.errors import BusyError, StrataError, WireError, told_to_others
from stratafl.files import private_folder

log = logging.getLogger("stratafl.deploy")
app = ClientApp()
SETTINGS = ("site", "folder", "data")  # of the node's configuration
TURN_SECONDS = 600.0  # seconds for which a message waits for the process of an earlier one
_PAUSE = 0.5


def answered(kind: Kind, message: Message, context: Context) -> Message:
    log_to_stderr()
    try:
        config = {name: str(context.node_config.get(name, "")) for name in SETTINGS}
        missing = [f"'{name}'" for name, value in config.items() if not value]
        if missing:
            raise WireError(f"the node configuration lacks {', '.join(missing)}: 'strata join' says what it needs")
        folder = Path(config["folder"])
        check_consent(folder)
        with _turn(folder):
            trust = bool(context.node_config.get("trust", False))
            member = SignedMember(SiteMember(folder, config["site"], config["data"], trust))
            reply = member.answer(kind, read_content(message.content), context.node_id)
    except Exception as error:
        unforeseen = None if isinstance(error, StrataError) else error
        log.warning("refused '%s': %s", message.metadata.message_type, error, exc_info=unforeseen)
        raise _FailedError(told_to_others(error)) from None  # the host must not learn where a site keeps its files
    return Message(content_of(reply), reply_to=message)


class _FailedError(Exception):
    """What Flower tells the host."""


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Its folder alone: an earlier message may still be answered, by a process of a SuperNode that was killed."""
    latest = time.monotonic() + TURN_SECONDS
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(private_folder(folder))
                break
            except BusyError:
                if time.monotonic() > latest:
                    raise
            time.sleep(_PAUSE)
        yield


answer_all(app, answered)
