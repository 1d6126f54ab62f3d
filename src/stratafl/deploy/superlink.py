"""Flower's SuperLink, with a control API that needs a token, sites that speak only for themselves, and patience.

flwr serves the control API to every client of its port, and a run is code: on a shared machine, loopback is no
protection. And it takes a run for dead if no heartbeat reached it for a minute, even if it was down itself; our
`server_tasks.py` says when a ServerApp dies, so half an hour does no harm. A request that finds the database locked for
5 seconds fails, which large messages on a slow disk can take. What the host asks twice a second is not logged, which
would be 40 MB a day. `python -m stratafl.deploy.superlink TOKENFILE …` takes the options of `flower-superlink`.

`flower_internals.py` has what is replaced in flwr, and why.
"""

import gc
import logging
import sys
from pathlib import Path

from stratafl.deploy.certificates import read_key
from stratafl.deploy.flower_internals import be_patient, run_superlink

PATIENCE = 60  # intervals of 30 s without a heartbeat, after which a ServerApp counts as dead; in flwr 2
LOCKED = 30_000  # milliseconds that a request waits for the database
ASKED_OFTEN = ("ControlServicer.ListNodes", "ControlServicer.ListRuns", "/v1/control/list-")


def worth_a_line(line: logging.LogRecord) -> bool:
    """Whether something is not what the host asks all the time, or was refused."""
    message = line.getMessage()
    return not any(each in message for each in ASKED_OFTEN) or (
        line.name == "uvicorn.access" and not message.endswith("200")
    )


def main() -> None:
    for logger in ("flwr", "uvicorn.access"):
        logging.getLogger(logger).addFilter(worth_a_line)
    token = read_key(Path(sys.argv.pop(1))).decode()
    be_patient(PATIENCE, LOCKED)
    gc.set_threshold(50_000, 20, 50)  # each request makes thousands of objects: a tenth of its time went into this
    run_superlink(token)


if __name__ == "__main__":
    main()
