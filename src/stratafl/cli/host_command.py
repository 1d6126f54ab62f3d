"""`strata host` runs SuperLink, gate and ServerApp of a federation and shows it, `strata join` takes part in one.

`strata audit` checks the log of a host.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from stratafl.cli.command_options import HostOptions
from stratafl.cli.console import note_console, print_note, result_console, show_warnings, titled_table
from stratafl.cli.interrupt import INTERRUPTED, interruptible
from stratafl.config.deployment import read_federation
from stratafl.config.experiment import read_toml
from stratafl.deploy.consent import data_doubts, has_consent, keep_consent, what_leaves_site
from stratafl.deploy.folders import HostFolder, prepare_host, prepare_site, read_invitation
from stratafl.deploy.host import Host, HostAddress
from stratafl.deploy.local_federation import divided, rehearsed
from stratafl.deploy.member import STATE
from stratafl.deploy.prometheus import MetricsFile
from stratafl.deploy.serving import checked_log, forget_site
from stratafl.deploy.site_processes import CLIENT_APP, SiteProcesses
from stratafl.deploy.status import read_status
from stratafl.errors import DeployError, OutageError, counted, unknown
from stratafl.execute.exchange import site_folder
from stratafl.execute.exchange.site_store import DELIVERED
from stratafl.files import private_folder
from stratafl.runs.loggers import check_loggers

SERVER_APP = "stratafl.deploy.server_app:app"
LOOK = 0.5  # seconds between two looks
STARTS, WITHIN = 5, 600.0  # starts of the ServerApp within this many seconds, after which the host gives up
AUDIT_COLUMNS = ("line", "time", "event", "site", "round", "attempt", "bytes", "upload", "reason")
SITE_COLUMNS = ("site", "state", "round", "seconds", "MB up", "score", "last seen")


def host_federation(config: Path, options: HostOptions) -> int:
    """Host a federation until it is finished; exit code 0, or the reason in one line."""
    local, trust = options.local, options.trust
    file = rehearsed(read_toml(config), local) if local else read_federation(config)
    folder = options.out or Path("federations") / file.deploy.name
    place = HostAddress.parse("127.0.0.1:0" if local else options.address)
    check_loggers(file.experiment.log.to)
    measured = MetricsFile(options.metrics, folder, file.deploy.name) if options.metrics else None
    console = note_console()
    with ExitStack() as stack:
        stack.enter_context(private_folder(folder))  # before anything in it is changed
        prepared = prepare_host(folder, file, place)
        for site in options.forget or ():
            forget_site(folder, site, trust=trust)
            print_note(f"site '{site}' is forgotten: it starts over, without its personal layers", console)
        files = (prepared.certificate, prepared.authority)
        flower = stack.enter_context(Host(folder / "flower", place.listens, *files, prepared.quota))
        place = HostAddress(place.host, flower.address.port)
        invitation = prepared.invite(place)
        for name in options.unregister or ():
            flower.unregister(name)
            print_note(f"the key of site '{name}' is no longer registered", console)
        for path in options.register or ():
            flower.register(path.stem, prepared.store_keys(path.stem, path))
        sites = [stack.enter_context(site) for site in _local_sites(prepared, flower, invitation)] if local else []
        console.print(f"federation '{file.deploy.name}' in '{folder}', sites reach it at {place}")
        if not local:
            print_note(
                f"send '{invitation}' to every site, and put the file NAME.pub of each site into '{prepared.keys}'"
            )
        return _Watch(prepared, flower, sites, trust, measured).until_it_ends()


def _local_sites(prepared: HostFolder, flower: Host, invitation: Path) -> Iterator[SiteProcesses]:
    """Sites of a rehearsal, each in processes of its own."""
    for name, samples in divided(prepared.file, prepared.path).items():
        folder = prepare_site(prepared.path / "sites" / name, invitation, name)
        flower.register(name, prepared.store_keys(name, folder.key.public))
        yield SiteProcesses(folder, {"data": str(samples.absolute())})


class _Watch:
    """Keeps a federation going and shows it."""

    def __init__(
        self,
        prepared: HostFolder,
        flower: Host,
        sites: Sequence[SiteProcesses],
        trust: bool,
        metrics: MetricsFile | None = None,
    ) -> None:
        self._prepared, self._flower, self._sites, self._metrics = prepared, flower, sites, metrics
        self._unwritten = ""  # why metrics were not written
        self._settings: dict[str, str | bool] = {"trust": trust}
        self._starts = list[float]()
        self._refused = dict[str, str]()  # keys that were not taken, and why
        self._console = note_console()
        self._round = -1
        self._heard = 0  # lines of the ServerApp that were shown
        self._run = self._start()

    def until_it_ends(self) -> int:
        try:
            code = self._watched()
        except BaseException:
            self._measure("failed")
            raise
        self._measure("stopped" if code == INTERRUPTED else "finished")
        return code

    def _watched(self) -> int:
        quietly = interruptible(self._console, quiet=True)
        with quietly as interrupt, Live(console=self._console, auto_refresh=False, transient=True) as live:
            while (end := self._look(live)) is None and not interrupt.asked:
                time.sleep(LOOK)
        self._console.print(_table(self._prepared, self._flower, read_status(self._prepared.path) or {}))
        if end is None:
            self._console.print("stopping; completed rounds are saved. Run the same command to continue.")
            return INTERRUPTED
        result_console().print(end)
        return 0

    def _look(self, live: Live) -> str | None:
        """Check everything once; the final message if the run has ended."""
        with suppress(OutageError):  # of a SuperLink that is busy, or starts again at the next look
            events = [*self._flower.tend(), *(line for site in self._sites for line in site.tend())]
            events += self._let_in()
            for line in events:
                print_note(line, self._console)
            status = read_status(self._prepared.path) or {}
            self._repeat(status)
            self._show(live, status)
            self._measure()
            return self._ended()
        return None

    def _measure(self, state: str | None = None) -> None:
        """Metrics as of now; if they cannot be written, the federation goes on and says so once."""
        if self._metrics is None:
            return
        wrong = self._metrics.write(self._flower.counts(), state)
        if wrong and wrong != self._unwritten:
            print_note(wrong, self._console)
        self._unwritten = wrong

    def _let_in(self) -> list[str]:
        """Register keys that were put into the folder; one that cannot be read may still be under way."""
        events = []
        for site, path in self._prepared.waiting_keys(self._flower.registered).items():
            try:
                self._flower.register(site, self._prepared.store_keys(site, path))
                events.append(f"site '{site}' is registered")
            except OutageError:
                raise
            except DeployError as error:
                if self._refused.get(site) != str(error):
                    events.append(f"'{path.name}' cannot be registered: {error}")
                self._refused[site] = str(error)
        return events

    def _repeat(self, status: dict[str, Any]) -> None:
        """What the ServerApp has said since the last look: who is set aside, whose upload is left out."""
        new, self._heard = status.get("lines", 0) - self._heard, status.get("lines", 0)
        for line in status["said"][-new:] if new > 0 else ():
            print_note(line, self._console)

    def _show(self, live: Live, status: dict[str, Any]) -> None:
        if self._console.is_terminal:
            live.update(_table(self._prepared, self._flower, status), refresh=True)
        elif status.get("round", 0) != self._round:
            self._round = status.get("round", 0)
            self._console.print(f"round {self._round} of {_rounds(self._prepared, status)}")

    def _ended(self) -> str | None:
        state = self._flower.control.run_state(self._run)
        if not state.finished:
            return None
        status = read_status(self._prepared.path) or {}
        self._repeat(status)
        if status.get("state") == "finished":
            rest = f" ({status['reason']})" if status.get("reason") else ""
            return f"finished: {status['rounds']} rounds{rest}; '{self._prepared.path}'"
        if status.get("state") == "failed":
            raise DeployError(f"the federation stopped: {status.get('reason') or state.reason or state.end}")
        print_note(f"{state.reason or 'the ServerApp has ended'}; it restarts and continues", self._console)
        self._run = self._start()
        return None

    def _start(self) -> int:
        now = time.monotonic()
        self._starts = [then for then in self._starts if now - then < WITHIN]
        if len(self._starts) >= STARTS:
            raise DeployError(
                f"the ServerApp ended {STARTS} times in {WITHIN / 60:.0f} minutes: see its log in 'flower/'"
            )
        (self._prepared.path / "status.json").unlink(missing_ok=True)
        self._heard = 0
        run = self._flower.start_run(SERVER_APP, CLIENT_APP, self._settings)
        self._starts.append(now)
        return run


def _table(prepared: HostFolder, flower: Host, status: dict[str, Any]) -> Table:
    done = f"round {status.get('round', 0)} of {_rounds(prepared, status)}, {status.get('state', 'starting')}"
    title = f"{prepared.file.deploy.name}: {done}"
    table, counts, now = titled_table(title, SITE_COLUMNS, names=("site", "state")), flower.counts(), time.time()
    for name in prepared.file.deploy.all_sites:
        site = status.get("sites", {}).get(name, {})
        passed, seen = counts.get(name, {}), site.get("seen")
        table.add_row(
            name,
            site.get("state", "not connected"),
            str(site.get("round", "")),
            _number(site.get("seconds"), 1),
            _number(passed.get("received", 0) / 1e6, 1) if passed else "",
            _number(site.get("score"), 3),
            "" if seen is None else f"{max(0, now - seen):.0f} s ago",
        )
    return table


def _rounds(prepared: HostFolder, status: dict[str, Any]) -> int:
    """Rounds in all, also before the ServerApp has begun."""
    return status.get("rounds") or prepared.file.experiment.run.rounds


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


# A site


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
    agreed = has_consent(folder, file, leaves, invited.key)
    if not agreed:
        _ask(leaves, f"site '{site}' in federation '{file.deploy.name}' at {server}", yes, console)
    prepared = prepare_site(folder, invited, site)  # the file may have changed since it was read
    if not agreed:
        keep_consent(folder, file, leaves, invited.key)
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
