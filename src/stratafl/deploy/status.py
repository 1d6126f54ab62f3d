"""The progress of a federation: the ServerApp writes it, `strata host` shows it."""

import json
import logging
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from stratafl.errors import DamagedError, DeployError, shown
from stratafl.files import json_value, read_plain, write_atomically

log = logging.getLogger("stratafl.deploy")
NAME = "status.json"
MAX_STATUS_BYTES = 1 << 24  # bytes
MAX_REASON_LETTERS = 300  # letters of a reason
MAX_LINES = 50  # lines that were said last
LASTING = ("set aside", "has its model")  # states of a site, connected or not


class Status:
    """The file `status.json` of a host's folder."""

    def __init__(self, folder: Path, sites: Sequence[str]) -> None:
        self._path = folder / NAME
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
                self._sites[site]["state"] = "asked"
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
        if changed:
            self._save()

    def uploaded(self, site: str, round: int, seconds: float, score: float | None, size: int) -> None:
        fields = {"state": "uploaded", "round": round + 1, "seconds": round_to(seconds), "bytes": size, "reason": ""}
        self._site(site, **fields, score=score, seen=time.time())

    def left_out(self, site: str, round: int, reason: str) -> None:
        self.say(f"round {round}: the upload of '{site}' was left out: {reason}")
        self._site(site, reason=shown(reason, MAX_REASON_LETTERS))

    def absorbed(self, round: int, seconds: float, uploads: int) -> None:
        log.info("round %d: %d uploads absorbed in %.1f s", round, uploads, seconds)
        self._note(round=round, seconds=round_to(seconds), uploads=uploads)

    def committed(self, site: str) -> None:
        self._site(site, state="has its model", reason="")

    def failed(self, site: str, reason: str) -> None:
        log.warning("site '%s': %s", site, reason)
        self._site(site, state="failed", reason=shown(reason, MAX_REASON_LETTERS))

    def aside(self, site: str, reason: str) -> None:
        self.say(f"'{site}' is set aside: {reason}")
        self._site(site, state="set aside", reason=f"{reason}; {self._sites[site]['reason']}".strip("; "))

    def back(self, site: str) -> None:
        """A site that was gone is connected again, and is no longer set aside."""
        if self._sites[site]["state"] == "set aside":
            self._site(site, state="connected", reason="")

    def reason(self, site: str) -> str:
        return str(self._sites[site]["reason"] or self._sites[site]["state"])

    def say(self, line: str) -> None:
        log.info("%s", line)
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
