"""The rounds of a host, as a run writes them: a line each in `rounds.jsonl`, and to the loggers that `[log]` names.

A host sees no sample: of scores it has one number of each site that took part (`deploy.scores`), so there are means
over clients, and none over samples.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import torch

from stratafl.config.experiment import Experiment, to_tables
from stratafl.deploy.status import round_to
from stratafl.evaluation.measure import Line, client_spread
from stratafl.execute.exchange.server_store import AUDIT
from stratafl.runs.json_files import Journal
from stratafl.runs.loggers import About, Loggers, refuse_linked

ROUNDS = "rounds.jsonl"
PLACE = "test.received"  # what sites score: the model that they received, on their test samples


@dataclass
class Traffic:
    """What came and went in a round so far."""

    up: int = 0
    down: int = 0
    scores: dict[str, float] = field(default_factory=dict)

    def uploaded(self, site: str, size: int, score: float | None) -> None:
        self.up += size
        if score is not None:
            self.scores[site] = score


class RoundJournal:
    """The journal of a host's folder, open for writing."""

    def __init__(
        self, folder: Path, server: Path, experiment: Experiment, classes: int | None, clock: Callable[[], float]
    ) -> None:
        refuse_linked(folder)
        self._clock, self._classes, self._journal = clock, classes, Journal(folder / ROUNDS)
        self._journal.cut(_whole(folder / ROUNDS))  # a line that a kill has torn
        self._loggers = Loggers(experiment.log.to, _about(folder, server, experiment))

    def __enter__(self) -> "RoundJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self._loggers.close()

    def absorbed(self, number: int, traffic: Traffic, begin: float, closed: float, counts: Mapping[str, float]) -> None:
        """Write the line of a round that was absorbed: `cohort`, `uploads`, `left_out`, and privacy."""
        line: Line = {"round": number, **counts, "bytes.down": traffic.down, "bytes.up": traffic.up}
        line |= {"seconds.train": round_to(closed - begin), "seconds.server": round_to(self._clock() - closed)}
        line |= site_score_line(traffic.scores, self._classes)
        self._journal.append([line])
        self._loggers.log(line)


def site_score_line(scores: Mapping[str, float], classes: int | None) -> Line:
    """Mean, deviation and worst tenth over the sites that said how good the model is that they received."""
    if not scores:
        return {}
    values = torch.tensor(list(scores.values()), dtype=torch.float64)
    name = "loss" if classes is None else "accuracy"
    spread = client_spread(name, values, larger_is_better=classes is not None)
    return {f"{PLACE}.{key}": value for key, value in spread.items()}


def _whole(path: Path) -> int:
    """Where the last whole line ends."""
    with suppress(FileNotFoundError):
        return path.read_bytes().rfind(b"\n") + 1
    return 0


def _about(folder: Path, server: Path, experiment: Experiment) -> About:
    """The federation as loggers see it; its key comes from the first line of its audit log, which has a time."""
    with (server / AUDIT).open("rb") as file:
        first = file.readline()
    tables = to_tables(experiment)
    flat = {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
    return About(folder, sha256(first).hexdigest()[:16], flat)
