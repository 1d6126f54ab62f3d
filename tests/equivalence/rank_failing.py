"""FedAvg with a step that fails in the second process, in the second round."""

import os
import signal
from dataclasses import replace

from stratafl.algorithms import fedavg
from stratafl.core.records import record
from stratafl.core.steps import Train
from stratafl.errors import DataError


@record
class Failing(Train):
    """Fails as it is told."""

    how: str
    reads = writes = ("theta",)

    def __call__(self, rnd, client, task):
        if os.environ.get("RANK") == "1" and rnd.t == 1:
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise DataError("no data left") if self.how == "refused" else ValueError("a bug\nof two lines")
        return {}


def failing(*, how: str = "bug"):
    method = fedavg()
    return replace(method, train=(Failing(how), *method.train))
