"""A ServerApp and a ClientApp that send tensors to and fro, for tests of what surrounds a federation.

The server asks all sites `rounds` times to add one to an array, and writes what happened into `log`, a line per event.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from stratafl.deploy.flower_internals import HostGrid
from stratafl.deploy.processes import FLOWER_FOLDER
from stratafl.deploy.replies import SiteHints, nodes_of_sites
from stratafl.deploy.server_app import HostRound
from stratafl.deploy.signals import Signals

server, client = ServerApp(), ClientApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    given = context.run_config
    tell(given["log"], event="start", pid=os.getpid())
    values = np.arange(int(given["size"]), dtype=np.float32)  # no two pieces are equal: Flower sends such once
    for number in range(int(given["rounds"])):
        latest = time.monotonic() + float(given["deadline"])
        while len(sites := nodes_of_sites(grid)) < given["sites"]:
            assert time.monotonic() < latest, f"only {sorted(sites)} are connected"
            time.sleep(0.5)
        messages = [Message(content(values, number), node, "train") for node in sites.values()]
        tell(given["log"], event="round", number=number, sites=sorted(sites))
        names = {node: site for site, node in sites.items()}
        hints = SiteHints(Signals(Path(os.environ[FLOWER_FOLDER])), names)
        done = HostRound(HostGrid(grid), float(given["deadline"]), hints=hints).run(messages)
        answers = {names[node]: reply.content["told"] for node, reply in done.replies.items()}
        if done.replies:
            values = np.mean([reply.content["values"]["x"].numpy() for reply in done.replies.values()], axis=0)
        tell(
            given["log"],
            event="done",
            number=number,
            value=float(values[0]),
            sites={site: dict(answer) for site, answer in sorted(answers.items())},
            failed={names[node]: reason for node, reason in done.failures.items()},
        )
    tell(given["log"], event="end")


@client.train()
def train(message: Message, context: Context) -> Message:
    folder = Path(os.environ["STRATAFL_SITE_FOLDER"])
    tell(folder / "messages.jsonl", number=message.content["asked"]["number"], pid=os.getpid())
    hold = folder / "hold"  # a test puts this file there to catch the app at work
    while hold.exists():
        time.sleep(0.02)
    if (folder / "raise").exists():
        raise ValueError("this site was told to fail")
    answer = {"site": context.node_config["site"], "pid": os.getpid()}
    values = message.content["values"]["x"].numpy() + 1
    records = {"values": ArrayRecord({"x": Array(values)}), "told": ConfigRecord(answer)}
    return Message(RecordDict(records), reply_to=message)


def content(values: np.ndarray, number: int) -> RecordDict:
    return RecordDict({"values": ArrayRecord({"x": Array(values)}), "asked": ConfigRecord({"number": number})})


def tell(path: str | Path, **event: object) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(event) + "\n")
