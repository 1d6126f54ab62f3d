"""`strata audit`: a host's audit log, checked line by line."""

import json
import sys
from pathlib import Path

from stratafl.cli.console import note_console, result_console, titled_table
from stratafl.deploy.host_log import checked_log
from stratafl.errors import counted, unknown

COLUMNS = ("line", "time", "event", "site", "round", "attempt", "bytes", "upload", "reason")


def audit(folder: Path, site: str | None, as_json: bool) -> None:
    """Print the log; an error says what is wrong with it."""
    lines = checked_log(folder)
    sites = sorted({line["site"] for line in lines if line.get("site")})
    if site is not None and site not in sites:
        raise unknown("site of this log", site, sites)
    chosen = [line for line in lines if site is None or line.get("site") == site]
    if as_json:
        json.dump(chosen, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    table = titled_table("", COLUMNS, names=("time", "event", "site", "upload"), text=("reason",))
    for line in chosen:
        about = {**line, "upload": str(line.get("upload", ""))[:12], "time": str(line["time"])[:19]}
        about |= {"reason": line.get("reason") or ", ".join(line.get("absorbed", ()))}
        table.add_row(*(str(about.get(column, "")) for column in COLUMNS))
    result_console().print(table)
    note_console().print(f"{counted(len(lines), 'line')}, whole: none was changed, cut out or put in", markup=False)
