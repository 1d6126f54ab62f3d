"""The ClientApp of every federation: it passes Flower's messages to the member in this process.

Its name and where its samples are come from the site's own node configuration, its folder from the environment.
"""

import os
from functools import cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from stratafl.deploy.courier import Kind
from stratafl.deploy.member import SiteMember
from stratafl.deploy.messages import answer_all, content_of, read_content
from stratafl.deploy.processes import SITE_FOLDER
from stratafl.deploy.signatures import SignedMember

app = ClientApp()


@cache
def _member(folder: str, name: str, place: str, trust: bool) -> SignedMember:
    return SignedMember(SiteMember(Path(folder), name, place, trust))


def _answered(kind: Kind, message: Message, context: Context) -> Message:
    config = context.node_config
    trust = bool(config.get("trust", False))
    member = _member(os.environ[SITE_FOLDER], str(config["site"]), str(config["data"]), trust)
    return Message(content_of(member.answer(kind, read_content(message.content))), reply_to=message)


answer_all(app, _answered)
