"""The command of a site, `strata join`."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from stratafl.cli.console import note_console, print_note, show_warnings
from stratafl.cli.interrupt import INTERRUPTED, interruptible
from stratafl.deploy.consent import data_doubts, has_consent, keep_consent, what_leaves_site
from stratafl.deploy.folders import prepare_site, read_invitation
from stratafl.deploy.member import STATE
from stratafl.deploy.site_processes import SiteProcesses
from stratafl.errors import DeployError
from stratafl.execute.exchange import site_folder
from stratafl.execute.exchange.site_store import DELIVERED

LOOK = 0.5  # seconds between two looks


def join_federation(invitation: Path, site: str, data: str, out: Path | None, yes: bool, trust: bool) -> int:
    """Join a federation, once its owner has agreed to what leaves the site, and stay until Ctrl-C."""
    place, folder = Path(data).absolute(), out or Path("sites") / site
    if not place.exists():
        raise DeployError(f"'{data}' does not exist: name the file or folder with this site's samples")
    invited = read_invitation(invitation, site)
    server, file = invited.server, invited.file
    console = note_console()
    with show_warnings(console):
        leaves = what_leaves_site(file, site, str(place), trust=trust)
    for line in data_doubts(file, str(place)):
        print_note(line, console)
    agreed = has_consent(folder, file, leaves)
    if not agreed:
        _ask(leaves, f"site '{site}' in federation '{file.deploy.name}' at {server}", yes, console)
    prepared = prepare_site(folder, invited, site)  # the file may have changed since it was read
    if not agreed:
        keep_consent(folder, file, leaves)
    console.print(f"site '{site}' of federation '{file.deploy.name}' at {server}, in '{folder}'", markup=False)
    print_note(f"send '{prepared.key.public}' to the host, which then lets this site in; keep the other files here")
    delivered, has_model = site_folder(prepared.path / STATE, file.deploy.name, site) / DELIVERED, False
    with (
        SiteProcesses(prepared, {"data": str(place), "trust": trust}) as running,
        interruptible(console, quiet=True) as interrupt,
    ):
        while not interrupt.asked:
            for line in running.tend():
                print_note(line, console)
            if not has_model and (has_model := delivered.exists()):
                print_note(f"this site has its model: strata predict {folder} --data FILE", console)
            time.sleep(LOOK)
        console.print("leaving; the personal state is kept. Run the same command to join again.")
    return INTERRUPTED


def _ask(leaves: Sequence[str], who: str, yes: bool, console: Console) -> None:
    """Say what leaves the site; raises unless its owner agrees."""
    if not yes and not sys.stdin.isatty():
        raise DeployError("joining needs your consent, but there is no terminal to ask for it: add --yes")
    console.print(f"{who}:", markup=False)
    for line in leaves:
        console.print(f"  {line}", markup=False)
    if not yes and not typer.confirm("Join?", err=True):
        raise DeployError("you did not agree, so this site does not join: nothing was created or sent")
