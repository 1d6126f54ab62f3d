"""What the folder of a federation says: `strata status` of a host or a site, `strata audit` of a host."""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from stratafl.cli.console import fitting_columns, note_console, result_console, titled_table
from stratafl.config.deployment import FederationFile
from stratafl.deploy.certificates import CA
from stratafl.deploy.federation_page import federation_page, report_of
from stratafl.deploy.federation_report import HEAD, FederationReport, cells, report_sentences
from stratafl.deploy.member import NODE, STATE, SiteMember
from stratafl.deploy.serving import FILE, checked_log
from stratafl.deploy.site_model import member_in
from stratafl.deploy.site_scores import report_metric
from stratafl.deploy.status import LASTING, read_counts, read_status
from stratafl.errors import BusyError, DeployError, counted, unknown
from stratafl.execute.exchange import site_folder
from stratafl.execute.exchange.site_store import read_standing
from stratafl.files import lock
from stratafl.report.formats import size_text
from stratafl.report.page import REPORT as PAGE
from stratafl.report.page import check_report_file, write_page

AUDIT_COLUMNS = ("line", "time", "event", "site", "round", "attempt", "bytes", "upload", "reason")
SPARE_COLUMNS = ("as received", "test samples", HEAD[-1])  # of the report, left out of a narrow console
NOT_JOINED = "not running: join again to take part"
SITE_COLUMNS = ("site", "state", "round", "seconds", "MB up", "score", "last seen")


def print_status(folder: Path, as_json: bool, trust: bool) -> None:
    """Print where a federation stands, from the folder of its host or of a site; nothing is changed."""
    if (folder / NODE).exists():
        facts = site_status(member_in(folder, trust=trust))
        lines = [f"{key}: {value}" for key, value in facts.items()]
    elif (folder / FILE).exists():
        facts = shown_facts(folder, is_running(folder))
        lines = host_lines(facts, carried=is_carried(folder))
    else:
        raise DeployError(f"'{folder}' is neither a host's nor a site's folder: name federations/NAME or sites/NAME")
    file, report = report_of(folder)
    if as_json:
        facts |= {"report": report.to_table()} if report.scores else {}
        json.dump(facts, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    console = result_console()
    if not (folder / NODE).exists():
        console.print(sites_table(file, facts, read_counts(folder / "flower")))
    for line in lines:
        console.print(line, markup=False)
    if report.scores:
        console.print(report_table(file, report, console.width))


def is_carried(folder: Path) -> bool:
    """Whether Flower carries the messages of this host or site (`strata flower-app`): it has no certificates then."""
    return not (folder / CA).exists()


def is_running(folder: Path) -> bool:
    """Whether `strata host` or `strata join` runs in this folder, which it keeps locked."""
    try:
        os.close(lock(folder))
    except BusyError:
        return True
    return False


def shown_facts(folder: Path, running: bool) -> dict[str, Any]:
    """The status of a host; one that does not run is connected to no site, whatever it wrote last."""
    facts = {"running": running, **(read_status(folder) or {})}
    if not running and facts.get("state", "starting") in ("starting", "running"):
        facts["state"] = "stopped"
        for site in facts.get("sites", {}).values():
            if site["state"] not in LASTING:
                site["state"] = "not connected"
    return facts


def host_lines(facts: Mapping[str, Any], *, carried: bool = False) -> list[str]:
    """Who does not take part and why, what was said last, and whether the host runs, or a run that Flower carries."""
    lines = [
        f"'{name}': {site['state']}, {site['reason']}"
        for name, site in facts.get("sites", {}).items()
        if site.get("reason")
    ]
    lines += [str(facts["reason"])] if facts.get("reason") else []
    what, again = ("no run is in progress", "flwr run") if carried else ("the host is not running", "host again")
    if facts["running"]:
        return [*lines, "a run is in progress" if carried else "the host is running"]
    rest = "all rounds are done" if facts.get("state") == "finished" else f"{again} to continue"
    return [*lines, f"{what}: {rest}"]


def site_status(member: SiteMember) -> dict[str, Any]:
    """Where a site stands, from its own folder."""
    last, final = read_standing(site_folder(member.folder / STATE, member.file.deploy.name, member.name))
    running = is_running(member.folder)
    state = read_status(member.folder) if running else None
    facts: dict[str, Any] = {"site": member.name, "federation": member.file.deploy.name}
    idle = "the host's status says whether its SuperNode is connected" if is_carried(member.folder) else NOT_JOINED
    facts["state"] = state["state"] if state else idle
    for key in ("reason", "refused"):
        if state and state.get(key):
            facts[key] = state[key]
    facts["round"] = f"{0 if last is None else last + 1} of {member.file.experiment.run.rounds}"
    facts["model"] = "none yet" if final is None else f"after round {final}: strata predict {member.folder} --data FILE"
    return facts


def sites_table(file: FederationFile, status: Mapping[str, Any], counts: Mapping[str, Mapping[str, float]]) -> Table:
    """A row for each site of a host, from its status and what passed the gate."""
    rounds = status.get("rounds") or file.experiment.run.rounds  # known before the ServerApp has begun
    state = status.get("state", "starting")
    standing = f"round {status['round']} of {rounds}, " if status.get("rounds") else f"{rounds} rounds, "
    title = f"{file.deploy.name}: {standing}{state}"
    table, now = titled_table(title, SITE_COLUMNS, names=("site", "state")), time.time()
    for name in file.deploy.all_sites:
        site = status.get("sites", {}).get(name, {})
        passed, seen = counts.get(name, {}), site.get("seen")
        table.add_row(
            name,
            site.get("state", "not connected"),
            str(site.get("round", "")),
            _number(site.get("seconds"), 1),
            _number(passed.get("received", 0) / 1e6, 1) if passed else "",
            _number(site.get("score"), 3),
            "" if seen is None else _ago(now - seen),
        )
    return table


def report_table(file: FederationFile, report: FederationReport, width: int) -> Table:
    """The scores of the sites that share them, at the end."""
    metric = report_metric(file.experiment)
    title = f"{metric.title} on each site's test samples after {counted(report.rounds, 'round')}"
    rows = [dict(zip(HEAD, cells(site, scores, metric), strict=True)) for site, scores in report.scores.items()]
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in HEAD}
    columns = fitting_columns(widths, SPARE_COLUMNS, width)
    table = titled_table(title, columns, names=("site", HEAD[-1]))
    for row in rows:
        table.add_row(*(row[column] for column in columns))
    return table


def print_federation_report(folder: Path, out: Path | None) -> None:
    """Print the scores of the sites of a federation, and write its report."""
    path = out or folder / PAGE
    check_report_file(path)
    file, report = report_of(folder)
    page, console = federation_page(folder), result_console()
    if report.scores:
        console.print(report_table(file, report, console.width))
    for line in report_sentences(report, file):
        console.print(line, markup=False)
    console.print(f"report: {path} ({size_text(write_page(page, path))}, opens in any browser)", markup=False)


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0, seconds):.0f} s ago"


def _number(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"


def print_audit(folder: Path, site: str | None, as_json: bool) -> None:
    """Print the log, or raise an error that names its first bad line."""
    lines = checked_log(folder)
    sites = sorted({line["site"] for line in lines if line.get("site")})
    if site is not None and site not in sites:
        raise unknown("site of this log", site, sites)
    chosen = [line for line in lines if site is None or line.get("site") == site]
    if as_json:
        json.dump(chosen, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    table = titled_table("", AUDIT_COLUMNS, names=("time", "event", "site", "upload"), text=("reason",))
    for line in chosen:
        about = {**line, "upload": str(line.get("upload", ""))[:12], "time": str(line["time"])[:19]}
        about |= {"reason": line.get("reason") or ", ".join(line.get("absorbed", ()))}
        table.add_row(*(str(about.get(column, "")) for column in AUDIT_COLUMNS))
    result_console().print(table)
    note_console().print(
        f"{counted(len(lines), 'line')}, intact: no line was changed, removed or inserted", markup=False
    )
