"""The ClientApp of every federation: it passes Flower's messages to the member in this process.

Its name and where its samples are come from the site's own node configuration, its folder from the environment.
"""

import logging
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from stratafl.deploy.courier import REFUSED
from stratafl.deploy.member import SiteMember
from stratafl.deploy.messages import content_of, read_content
from stratafl.deploy.processes import SITE_FOLDER
from stratafl.errors import StrataError, told_to_others

log = logging.getLogger("stratafl.deploy")
app = ClientApp()


@cache
def _member(folder: str, name: str, place: str, trust: bool) -> SiteMember:
    return SiteMember(Path(folder), name, place, trust)


def member_of(context: Context) -> SiteMember:
    config = context.node_config
    return _member(os.environ[SITE_FOLDER], str(config["site"]), str(config["data"]), bool(config.get("trust", False)))


def _answered(message: Message, answer: Callable[[Mapping[str, Any], bytes], tuple[dict[str, Any], bytes]]) -> Message:
    """The reply. An error in the message or at this site becomes a reply, too."""
    try:
        table, body = answer(*read_content(message.content))
    except StrataError as error:
        log.warning("refused: %s", error)
        table, body = {REFUSED: told_to_others(error).replace(f"{os.environ[SITE_FOLDER]}{os.sep}", "")}, b""
    return Message(content_of(table, body), reply_to=message)


@app.query("introduce")
def introduce(message: Message, context: Context) -> Message:
    return _answered(message, lambda table, _: (member_of(context).introduce(table), b""))


@app.query("agree")
def agree(message: Message, context: Context) -> Message:
    return _answered(message, lambda table, _: (member_of(context).agree(table), b""))


@app.train("round")
def work(message: Message, context: Context) -> Message:
    return _answered(message, lambda _, body: member_of(context).round(body))
