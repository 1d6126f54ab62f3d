"""Metrics of a federation for Prometheus: a file in its text format, which node_exporter's textfile collector reads.

A file and no port: what listens can be reached. `strata host --metrics FILE.prom` writes it, because a host's folder is
private (mode 0700) and a collector runs as another user. Everything comes from what the host has on its disk: the
status, the journal of rounds and the gate's counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from stratafl.deploy.status import PLACE, ROUNDS, read_status
from stratafl.errors import DeployError, StrataError, shown
from stratafl.files import write_atomically
from stratafl.runs.json_files import read_lines

Kind = Literal["gauge", "counter"]
Labels = Mapping[str, str]
Status = Mapping[str, Any]
Counts = Mapping[str, Mapping[str, float]]  # of the gate, by site
STATES = ("starting", "running", "finished", "stopped", "failed")
SUFFIX = ".prom"  # the collector reads no others


@dataclass(frozen=True)
class Family:
    """The samples of one metric; those without a number are left out."""

    name: str
    kind: Kind
    help: str
    samples: Sequence[tuple[Labels, float | None]]

    def lines(self, common: Labels) -> list[str]:
        samples = [({**common, **labels}, value) for labels, value in self.samples if value is not None]
        head = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.kind}"]
        return [*head, *(f"{self.name}{{{_labels(labels)}}} {value!r}" for labels, value in samples)] if samples else []


def _labels(labels: Labels) -> str:
    return ",".join(f'{name}="{escaped_label(value)}"' for name, value in labels.items())


def escaped_label(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def text_of(federation: str, families: Iterable[Family]) -> str:
    """Every sample says of which federation it is: a collector reads the files of several hosts as one."""
    return "".join(f"{line}\n" for family in families for line in family.lines({"federation": federation}))


def families(status: Status, rounds: Sequence[Mapping[str, Any]], counts: Counts) -> list[Family]:
    """The metrics of a host; `rounds` are the lines of its journal."""
    last = rounds[-1] if rounds else {}
    sites: Mapping[str, Mapping[str, Any]] = status.get("sites", {})
    states = [site.get("state") for site in sites.values()]
    present = len(states) - states.count("not connected") - states.count("set aside")
    seen = {name: _seen(site, counts.get(name, {})) for name, site in sites.items()}
    scores = {name: _number(site.get("score")) for name, site in sites.items()}
    up, down, both = last.get("bytes.up"), last.get("bytes.down"), _duration(last)
    return [
        _one("strata_round", "Rounds absorbed so far.", status.get("round", 0)),
        _one("strata_rounds", "Total number of rounds; 0 before the sites have agreed.", status.get("rounds", 0)),
        Family("strata_state", "gauge", "1 for the current state of the federation.", _states(status.get("state"))),
        _one("strata_sites_present", "Sites that are connected and not set aside.", present),
        _one("strata_sites_set_aside", "Sites that missed too many rounds.", states.count("set aside")),
        _one("strata_last_round_duration_seconds", "Time that the last absorbed round took.", both),
        _one("strata_last_round_received_bytes", "Bytes of the last absorbed round's uploads.", up),
        _one("strata_last_round_sent_bytes", "Bytes of the last absorbed round's downloads.", down),
        Family("strata_score", "gauge", "Mean score over sites in the last round with scores.", _scores(rounds)),
        _total("strata_uploads_absorbed_total", "Uploads absorbed into the model.", rounds, "uploads"),
        _total("strata_uploads_left_out_total", "Uploads that were left out of a round.", rounds, "left_out"),
        _total("strata_received_bytes_total", "Bytes of uploads of absorbed rounds.", rounds, "bytes.up"),
        _total("strata_sent_bytes_total", "Bytes of downloads of absorbed rounds.", rounds, "bytes.down"),
        _by_site(
            "strata_site_last_seen_timestamp_seconds", "When a site last sent anything, in seconds since 1970.", seen
        ),
        _by_site("strata_site_score", "The score that a site last reported.", scores),
    ]


def _one(name: str, help: str, value: Any) -> Family:
    return Family(name, "gauge", help, [({}, _number(value))])


def _by_site(name: str, help: str, values: Mapping[str, float | None]) -> Family:
    return Family(name, "gauge", help, [({"site": site}, value) for site, value in values.items()])


def _total(name: str, help: str, rounds: Sequence[Mapping[str, Any]], key: str) -> Family:
    return Family(name, "counter", help, [({}, sum(_number(line.get(key)) or 0 for line in rounds))])


def _states(now: Any) -> list[tuple[Labels, float | None]]:
    return [({"state": state}, int(state == now)) for state in STATES]


def _duration(line: Mapping[str, Any]) -> float | None:
    train, server = (_number(line.get(f"seconds.{part}")) for part in ("train", "server"))
    return None if train is None or server is None else round(train + server, 2)


def _scores(rounds: Sequence[Mapping[str, Any]]) -> list[tuple[Labels, float | None]]:
    """From the last round in which a site reported a score."""
    for line in reversed(rounds):
        scores = {key: _number(line.get(f"{PLACE}.client_{key}")) for key in ("accuracy", "loss")}
        if any(value is not None for value in scores.values()):
            return [({"metric": key}, value) for key, value in scores.items()]
    return []


def _seen(site: Mapping[str, Any], count: Mapping[str, float]) -> float | None:
    times = [_number(each.get("seen")) for each in (site, count)]
    return max((time for time in times if time is not None), default=None)


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) and isfinite(value) else None


class MetricsFile:
    """The file of a host, written when something has changed."""

    def __init__(self, path: Path, folder: Path, federation: str) -> None:
        if path.suffix != SUFFIX or not path.absolute().parent.is_dir():
            raise DeployError(f"'{shown(path)}' cannot be written: name a {SUFFIX} file in an existing folder")
        self._path, self._folder, self._federation = path, folder, federation
        self._written, self._lines, self._size = "", list[dict[str, Any]](), -1

    def write(self, counts: Counts, state: str | None = None) -> str:
        """Write what the host knows, in this `state` if one is given; what went wrong, because no round fails of it."""
        try:
            status = read_status(self._folder) or {}
            current = status if state is None else {**status, "state": state}
            text = text_of(self._federation, families(current, self._rounds(), counts))
            if text != self._written:
                write_atomically(self._path, text.encode())
        except (StrataError, OSError) as error:
            return f"metrics are not written: {error}"
        self._written = text
        return ""

    def _rounds(self) -> list[dict[str, Any]]:
        """The lines of the journal, which are read again when there are more: it is looked at twice a second."""
        path = self._folder / ROUNDS
        size = path.stat().st_size if path.exists() else 0
        if size != self._size:
            self._lines, self._size = read_lines(path), size
        return self._lines
