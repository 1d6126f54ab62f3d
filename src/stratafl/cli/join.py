"""`strata join`: a site's part in a federation, for as long as it lasts."""

import time
from pathlib import Path

from stratafl.cli.console import note_console, print_note
from stratafl.cli.host import CLIENT_APP
from stratafl.cli.interrupt import INTERRUPTED, interruptible
from stratafl.deploy.folders import SiteFolder, prepare_site
from stratafl.deploy.site import Site
from stratafl.errors import DeployError

LOOK = 0.5  # seconds between two looks


def join(invitation: Path, site: str, data: str, out: Path | None, trust: bool) -> int:
    """Join a federation and stay until Ctrl-C."""
    place = Path(data)
    if not place.exists():
        raise DeployError(f"there is no '{data}': give the file or folder with this site's samples")
    mine = prepare_site(out or Path("sites") / site, invitation, site)
    console = note_console()
    console.print(f"site '{site}' of federation '{mine.file.deploy.name}' at {mine.server}, in '{mine.path}'")
    print_note(f"the host lets this site in when it has '{mine.key.public}'; the other files stay here")
    with _site(mine, place, trust) as running, interruptible(console) as interrupt:
        while not interrupt.asked:
            for line in running.tend():
                print_note(line, console)
            time.sleep(LOOK)
    return INTERRUPTED


def _site(mine: SiteFolder, place: Path, trust: bool) -> Site:
    return Site(
        mine.path,
        mine.name,
        server=mine.server,
        key=mine.key.key,
        authority=mine.authority,
        client_app=CLIENT_APP,
        settings={"data": str(place.absolute()), "trust": trust},
    )
