"""The progress of a federation: the ServerApp writes it, `strata host` shows it (`status.json`).

The rounds of a host are written as a run writes them: a line each in `rounds.jsonl`, and to the loggers that `[log]`
names. A host sees no sample: of scores it has one number of each site that took part (`deploy.scores`), so there are
means over clients, and none over samples.
"""

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from stratafl.config.experiment import Experiment, to_tables
from stratafl.deploy.serving import SERVER
from stratafl.errors import DamagedError, DeployError, shown
from stratafl.evaluation.measure import Line, client_spread
from stratafl.execute.exchange.server_store import AUDIT
from stratafl.files import json_value, read_plain, write_atomically
from stratafl.runs.json_files import Journal
from stratafl.runs.loggers import About, Loggers, refuse_linked

log = logging.getLogger("stratafl.deploy")
NAME = "status.json"
MAX_STATUS_BYTES = 1 << 24  # bytes
MAX_REASON_LETTERS = 300  # letters of a reason
MAX_LINES = 50  # lines that were said last
MAX_NAMED = 8  # sites in a line
LASTING = ("set aside", "has its model")  # states of a site, connected or not
ROUNDS = "rounds.jsonl"
PLACE = "test.received"  # what sites score: the model that they received, on their test samples


class Status:
    """The file `status.json` of a host's folder."""

    def __init__(self, folder: Path, sites: Sequence[str]) -> None:
        self._path = folder / NAME
        self._connected: frozenset[str] | None = None
        self._without: Sequence[str] = ()  # of the cohort of the last round
        self._sites: dict[str, dict[str, Any]] = {site: {"state": "not connected", "reason": ""} for site in sites}
        self._about: dict[str, Any] = {
            "state": "starting",
            "reason": "",
            "round": 0,
            "rounds": 0,
            "started": time.time(),
            "said": [],  # the last lines, and how many there were
            "lines": 0,
        }
        self._save()

    def begin(self, round: int, rounds: int) -> None:
        self._note(state="running", round=round, rounds=rounds)

    def round(self, t: int, cohort: Sequence[str]) -> None:
        for site in cohort:
            if self._sites[site]["state"] != "set aside":
                self._sites[site]["state"] = "training"
        self._note(round=t)

    def seen(self, connected: Collection[str]) -> None:
        changed = False
        for site, fields in self._sites.items():
            is_connected = site in connected
            if is_connected == (fields["state"] == "not connected") and fields["state"] not in LASTING:
                fields["state"] = "connected" if is_connected else "not connected"
                changed = True
            if is_connected:
                fields["seen"] = time.time()
        if frozenset(connected) != self._connected:
            self._connected = frozenset(connected)
            missing = [f"'{site}'" for site in self._sites if site not in connected]
            not_there = f"; not connected: {few(missing)}" if missing else ""
            self.say(f"{len(self._sites) - len(missing)} of {len(self._sites)} sites are connected{not_there}")
        elif changed:
            self._save()

    def uploaded(self, site: str, round: int, seconds: float, score: float | None, size: int) -> None:
        fields = {"state": "uploaded", "round": round + 1, "seconds": round_to(seconds), "bytes": size, "reason": ""}
        self._site(site, **fields, score=score, seen=time.time())

    def left_out(self, site: str, round: int, reason: str) -> None:
        self.say(f"round {round}: the upload of '{site}' was left out: {reason}")
        self._site(site, reason=shown(reason, MAX_REASON_LETTERS))

    def shortened(self, site: str, round: int, length: str) -> None:
        self.say(f"round {round}: the update of '{site}' is {length}: shortened")

    def absorbed(self, round: int, seconds: float, uploads: int, without: Sequence[str] = ()) -> None:
        log.info("round %d: %d uploads absorbed in %.1f s", round, uploads, seconds)
        if without and without != self._without:
            reasons = [f"'{site}' ({self.reason(site)})" for site in without]
            self.say(f"round {round} ended without {few(reasons)}")
        self._without = without
        self._note(round=round, seconds=round_to(seconds), uploads=uploads)

    def committed(self, site: str) -> None:
        self._site(site, state="has its model", reason="")

    def failed(self, site: str, reason: str) -> None:
        """Say why, once until it has answered as it should."""
        before, reason = self._sites[site]["reason"], shown(reason, MAX_REASON_LETTERS)
        line = f"site '{site}' failed: {reason}"
        log.warning("%s", line)
        self._site(site, state="failed", reason=reason)
        if reason != before:
            self._tell(line)

    def aside(self, site: str, reason: str) -> None:
        self.say(f"'{site}' is set aside: {reason}")
        self._site(site, state="set aside", reason=f"{reason}; {self._sites[site]['reason']}".strip("; "))

    def back(self, site: str) -> None:
        """A site that was gone is connected again, and is no longer set aside."""
        if self._sites[site]["state"] == "set aside":
            self._site(site, state="connected", reason="")
            self.say(f"'{site}' is connected again and takes part")

    def reason(self, site: str) -> str:
        return str(self._sites[site]["reason"] or self._sites[site]["state"])

    def say(self, line: str) -> None:
        log.info("%s", line)
        self._tell(line)

    def _tell(self, line: str) -> None:
        self._note(said=[*self._about["said"], line][-MAX_LINES:], lines=self._about["lines"] + 1)

    def end(self, state: str, reason: str) -> None:
        self._note(state=state, reason=shown(reason, MAX_REASON_LETTERS), ended=time.time())

    def _site(self, site: str, **fields: Any) -> None:
        self._sites[site] |= fields
        self._save()

    def _note(self, **fields: Any) -> None:
        self._about |= fields
        self._save()

    def _save(self) -> None:
        write_atomically(self._path, json.dumps({**self._about, "sites": self._sites}).encode())


def few(texts: Sequence[str]) -> str:
    """The first of these texts, and how many more there are."""
    more = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return ", ".join(texts[:MAX_NAMED]) + more


def round_to(seconds: float) -> float:
    return round(seconds, 2)


def read_status(folder: Path) -> dict[str, Any] | None:
    """What the ServerApp wrote last; None before it has."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        status = json_value(read_plain(path, MAX_STATUS_BYTES))
    except ValueError as error:
        raise DamagedError(f"'{path}' is damaged: the next round rewrites it") from error
    if not isinstance(status, dict):
        raise DeployError(f"'{path}' is not the status of a federation")
    return status


def read_counts(folder: Path) -> dict[str, dict[str, float]]:
    """What passed the gate, by site: `requests`, bytes `received` and `sent`, last `seen` (seconds since 1970)."""
    with suppress(OSError, ValueError):
        return dict(json_value(read_plain(folder / "counts.json", MAX_STATUS_BYTES))["sites"])
    return {}


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

    def __init__(self, folder: Path, experiment: Experiment, classes: int | None, clock: Callable[[], float]) -> None:
        refuse_linked(folder)
        self._clock, self._classes, self._journal = clock, classes, Journal(folder / ROUNDS)
        self._journal.cut(_whole(folder / ROUNDS))  # a line that a kill has torn
        self._loggers = Loggers(experiment.log.to, _about(folder, experiment))

    def __enter__(self) -> "RoundJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self._loggers.close()

    def absorbed(self, number: int, traffic: Traffic, begin: float, closed: float, counts: Mapping[str, float]) -> None:
        """Write the line of a round that was absorbed: `cohort`, `uploads`, `left_out`, `shortened`, and privacy."""
        line: Line = {"round": number, **counts, "bytes.down": traffic.down, "bytes.up": traffic.up}
        line |= {"seconds.train": round_to(closed - begin), "seconds.server": round_to(self._clock() - closed)}
        line |= site_score_line(traffic.scores, self._classes)
        if 0 < len(traffic.scores) < counts.get("cohort", 0):
            line[f"{PLACE}.clients"] = len(traffic.scores)  # the mean is over these alone
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


def _about(folder: Path, experiment: Experiment) -> About:
    """The federation as loggers see it; its key comes from the first line of its audit log, which has a time."""
    with (folder / SERVER / AUDIT).open("rb") as file:
        first = file.readline()
    return About(folder, sha256(first).hexdigest()[:16], to_tables(experiment))
