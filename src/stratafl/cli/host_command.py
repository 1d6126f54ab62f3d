"""`strata host` runs SuperLink, gate and ServerApp of a federation and shows it, `strata join` takes part in one."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from stratafl.cli.command_options import HostOptions
from stratafl.cli.console import note_console, print_note, result_console, show_warnings
from stratafl.cli.federation_command import shown_facts, sites_table
from stratafl.cli.interrupt import INTERRUPTED, interruptible
from stratafl.config.deployment import read_federation
from stratafl.config.experiment import read_toml
from stratafl.deploy.consent import (
    data_doubts,
    has_consent,
    keep_consent,
    since_last_consent,
    summed_with,
    what_leaves_site,
)
from stratafl.deploy.federation_report import REPORT, FederationReport
from stratafl.deploy.flower_app import node_configuration
from stratafl.deploy.folders import (
    HostFolder,
    SiteFolder,
    check_own_key,
    prepare_host,
    prepare_site,
    read_invitation,
)
from stratafl.deploy.host import Host, HostAddress
from stratafl.deploy.local_federation import divided, rehearsed
from stratafl.deploy.member import AGREED, STATE
from stratafl.deploy.prometheus import MetricsFile
from stratafl.deploy.serving import forget_site
from stratafl.deploy.signing_keys import key_digests
from stratafl.deploy.site_processes import CLIENT_APP, SiteProcesses, SiteStatus
from stratafl.deploy.status import NAME as STATUS
from stratafl.deploy.status import read_status
from stratafl.errors import DataError, DeployError, LabelError, OutageError, UnknownNameError
from stratafl.execute.exchange import site_folder
from stratafl.execute.exchange.site_store import DELIVERED, read_standing
from stratafl.files import changed_at, private_folder, write_atomically
from stratafl.runs.loggers import check_loggers

SERVER_APP = "stratafl.deploy.server_app:app"
LOOK = 0.5  # seconds between two looks
LOOKS_PER_REQUEST = 4  # looks, of which one asks the SuperLink how the run is: each request costs it 15 ms of CPU
STARTS, WITHIN = 5, 600.0  # starts of the ServerApp within this many seconds, after which the host gives up


def host_federation(config: Path, options: HostOptions) -> int:
    """Host a federation until it is finished; exit code 0, or the reason in one line."""
    local, trust = options.local, options.trust
    file = rehearsed(read_toml(config), local) if local else read_federation(config)
    folder = options.out or Path("federations") / file.deploy.name
    place = HostAddress.parse("127.0.0.1:0" if local else options.address)
    check_loggers(file.experiment.log.to)
    for site in (*(options.forget or ()), *(options.unregister or ()), *(each.stem for each in options.register or ())):
        file.deploy.number(site)  # raises if there is no such site
    measured = MetricsFile(options.metrics, folder, file.deploy.name) if options.metrics else None
    console = note_console()
    with ExitStack() as stack:
        stack.enter_context(private_folder(folder))  # before anything in it is changed
        console.print(f"starting federation '{file.deploy.name}' …", markup=False)
        prepared = prepare_host(folder, file, place, trust, options.keys)
        for site in options.forget or ():
            forget_site(folder, site, trust=trust)
            print_note(f"site '{site}' is forgotten: it starts over, without its personal layers", console)
        for site in prepared.shut_out():
            print_note(_is_shut_out(site, prepared.keys), console)
        files = (prepared.certificate, prepared.authority)
        flower = stack.enter_context(Host(folder / "flower", place.listens, *files, prepared.quota))
        place = HostAddress(place.host, flower.address.port)

        def invite() -> Path:
            return prepared.invite(place, options.invitation)

        for name in options.unregister or ():
            flower.unregister(name)
            print_note(f"the key of site '{name}' is no longer registered", console)
        for path in options.register or ():
            flower.register(path.stem, prepared.store_keys(path.stem, path))
        invitation = invite()
        sites = [stack.enter_context(site) for site in _local_sites(prepared, flower, invite)] if local else []
        console.print(f"federation '{file.deploy.name}' in '{folder}', sites reach it at {place}")
        if prepared.changes:
            print_note(f"changed: {'; '.join(prepared.changes)}; each site joins again with the new invitation")
        if not local:
            print_note(
                f"send '{invitation}' to every site, and put the file NAME.pub of each site into '{prepared.keys}'"
            )
            if prepared.file.experiment.server.secure and not prepared.site_keys:
                print_note("server.secure: once all keys are there, send the invitation again, which then has them")
        return _Watch(prepared, flower, sites, trust, measured, invite).until_it_ends()


def _local_sites(prepared: HostFolder, flower: Host, invite: Callable[[], Path]) -> Iterator[SiteProcesses]:
    """Sites of a rehearsal, each in processes of its own."""
    invitation, samples = invite(), divided(prepared.file, prepared.path)
    folders = {name: prepared.path / "sites" / name for name in samples}
    for name, path in folders.items():
        folder = prepare_site(path, invitation, name)
        flower.register(name, prepared.store_keys(name, folder.key.public))
    invitation = invite()  # which now has the keys of all sites, if they sum up what they send
    for name, path in folders.items():
        yield SiteProcesses(prepare_site(path, invitation, name), {"data": str(samples[name].absolute())})


def _is_shut_out(site: str, keys: Path) -> str:
    return f"site '{site}' is shut out: its key in '{keys}' was removed or changed; a key that is put there is let in"


class _Watch:
    """Keeps a federation going and shows it."""

    def __init__(
        self,
        prepared: HostFolder,
        flower: Host,
        sites: Sequence[SiteProcesses],
        trust: bool,
        metrics: MetricsFile | None,
        invite: Callable[[], Path],
    ) -> None:
        self._prepared, self._flower, self._sites, self._metrics = prepared, flower, sites, metrics
        self._invite = invite  # writes the invitation
        self._unwritten = ""  # why metrics were not written
        self._settings: dict[str, str | bool] = {"trust": trust}
        self._starts = list[float]()
        self._refused = dict[str, str]()  # keys that were not taken, and why
        self._console = note_console()
        self._round, self._looks = -1, 0
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
        self._console.print(self._table(shown_facts(self._prepared.path, running=end is not None)))
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
            self._show(live, status)
            self._repeat(status)
            self._measure()
            return self._ended(status)
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
        """Shut out sites whose key was removed from the folder, and register keys that were put there.

        A key that cannot be read may still be under way.
        """
        events = [_is_shut_out(site, self._prepared.keys) for site in self._prepared.shut_out()]
        for site, path in self._prepared.waiting_keys(self._flower.registered).items():
            try:
                self._prepared.file.deploy.number(site)  # raises if there is no such site
                self._flower.register(site, self._prepared.store_keys(site, path))
                events.append(f"site '{site}' is registered")
                events += self._invited_again()
            except OutageError:
                raise
            except (DeployError, UnknownNameError) as error:
                if self._refused.get(site) != str(error):
                    events.append(f"'{path.name}' cannot be registered: {error}")
                self._refused[site] = str(error)
        return events

    def _invited_again(self) -> list[str]:
        """Once the keys of all sites of secure sums are there: the invitation with them."""
        keys = self._prepared.site_keys
        if not keys:
            return []
        todo = f"send '{self._invite()}' to every site, which joins with it; compare the keys with the sites"
        return [f"the keys of all sites are there: {todo}", *key_digests(keys)]

    def _repeat(self, status: dict[str, Any]) -> None:
        """What the ServerApp has said since the last look: who is set aside, whose upload is left out."""
        new, self._heard = status.get("lines", 0) - self._heard, status.get("lines", 0)
        for line in status["said"][-new:] if new > 0 else ():
            print_note(line, self._console)

    def _show(self, live: Live, status: dict[str, Any]) -> None:
        if self._console.is_terminal:
            live.update(self._table(status), refresh=True)
        elif status.get("rounds") and status["round"] not in (0, self._round):
            self._round = status["round"]
            self._console.print(f"round {self._round} of {status['rounds']}")

    def _table(self, status: dict[str, Any]) -> Table:
        return sites_table(self._prepared.file, status, self._flower.counts())

    def _ended(self, status: dict[str, Any]) -> str | None:
        self._looks += 1
        if status.get("state") not in ("finished", "failed") and self._looks % LOOKS_PER_REQUEST:
            return None
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


# A site


def join_federation(
    invitation: Path,
    site: str,
    data: str,
    out: Path | None,
    public_key: Path | None,
    keep_scores: bool,
    yes: bool,
    trust: bool,
) -> int:
    """Join a federation, once its owner has agreed to what leaves the site, and stay until Ctrl-C."""
    place, folder = Path(data).absolute(), out or Path("sites") / site
    if not place.exists():
        raise DeployError(f"'{data}' does not exist: name the file or folder with this site's samples")
    invited = read_invitation(invitation, site)
    server, file = invited.server, invited.file
    console = note_console()
    if invited.lacks_keys and site in file.deploy.sites:
        return _make_keys(prepare_site(folder, invited, site), public_key, console)
    check_own_key(folder, invited, site)
    try:
        with show_warnings(console):
            leaves = what_leaves_site(file, site, str(place), trust=trust, keeps_scores=keep_scores)
    except LabelError as error:
        todo = f"give the column of labels the name '{error.label}', or ask the host to set data.label to another name"
        raise DataError(f"{error.wrong}; {todo}, which all sites then use") from error
    except DataError as error:
        if "data." not in str(error):
            raise
        settings = "the settings data.… are the host's: correct this file, or ask the host for another invitation"
        raise DataError(f"{error} ({settings})") from error
    leaves += summed_with(file, invited.sites) if invited.sites else []
    for line in data_doubts(file, str(place)):
        print_note(line, console)
    agreed = has_consent(folder, file, leaves, invited.key)
    if not agreed:
        _ask(
            [*since_last_consent(folder, file), *leaves],
            f"site '{site}' in federation '{file.deploy.name}'{server and f' at {server}'}",
            yes,
            console,
        )
    prepared = prepare_site(folder, invited, site)  # the file may have changed since it was read
    if not agreed:
        keep_consent(folder, file, leaves, invited.key, keep_scores)
    if not server:
        return _prepared_for_flower(prepared, str(place), trust, console)
    console.print(f"site '{site}' of federation '{file.deploy.name}' at {server}, in '{folder}'", markup=False)
    public = prepared.copy_public_key(public_key)
    if not invited.sites and not (folder / AGREED).exists():
        print_note(f"send '{public}' to the host, which then lets this site in; keep the other files here")
    return _stay(prepared, str(place), trust, console)


def _stay(prepared: SiteFolder, place: str, trust: bool, console: Console) -> int:
    """Take part until Ctrl-C, and say what happens to this site."""
    folder, file, site = prepared.path, prepared.file, prepared.name
    standing = site_folder(folder / STATE, file.deploy.name, site)
    shown_status, delivered, reported = dict[str, str](), 0, changed_at(folder / REPORT)
    is_finished = False  # the host may end, which is no outage then
    with (
        SiteProcesses(prepared, {"data": place, "trust": trust}) as running,
        interruptible(console, quiet=True) as interrupt,
    ):
        while not interrupt.asked:
            lines, ended = running.tend(), is_finished and running.status is SiteStatus.UNREACHABLE
            for line in lines if not ended else ():
                print_note(line, console)
            state = "finished" if ended else running.status.value
            now = {"state": state, "reason": running.reason, "refused": running.refusal}
            if now != shown_status:
                shown_status = now
                write_atomically(folder / STATUS, json.dumps(now).encode())
            if (changed := changed_at(standing / DELIVERED)) != delivered:
                delivered, (_, rounds) = changed, read_standing(standing)
                print_note(
                    f"this site has its model after round {rounds}: strata predict {folder} --data FILE", console
                )
            if (changed := changed_at(folder / REPORT)) != reported:
                reported, report = changed, FederationReport.load(folder, file)
                if report is not None and report.heard > {site} and not is_finished:  # its own scores come first
                    is_finished = True
                    todo = f"strata report {folder}; nothing is left to do, so you may end this with Ctrl-C"
                    print_note(f"the federation is finished, and its report is here: {todo}", console)
            time.sleep(LOOK)
        console.print("leaving; the personal state is kept. Run the same command to join again.")
    return INTERRUPTED


def _make_keys(prepared: SiteFolder, public_key: Path | None, console: Console) -> int:
    """Before the keys of all sites are known: those of this site, and how to go on."""
    public = prepared.copy_public_key(public_key)
    console.print(f"site '{prepared.name}' has its keys in '{prepared.path}'; nothing was sent", markup=False)
    print_note(f"send '{public}' to the host, and join again with its invitation that has the keys of all sites")
    for line in key_digests({prepared.name: public.read_text(encoding="utf-8").splitlines()[1]}):
        print_note(line, console)
    return 0


def _prepared_for_flower(folder: SiteFolder, place: str, trust: bool, console: Console) -> int:
    """Say what to do with a site's folder whose federation is a Flower app."""
    config = node_configuration(folder.name, folder.path, place, trust)
    folder.write_node({"data": place, "trust": trust})  # for `strata predict`, `export` and `status`
    console.print(f"site '{folder.name}' of federation '{folder.file.deploy.name}' is ready in '{folder.path}'")
    print_note(f"send '{folder.key.public}' to the host; keep the other files here", console)
    print_note("start this site's SuperNode with this configuration:", console)
    result_console().print(f"--node-config '{config}'", markup=False, soft_wrap=True)
    return 0


def _ask(leaves: Sequence[str], who: str, yes: bool, console: Console) -> None:
    """Say what leaves the site; raises unless its owner agrees."""
    if not yes and not sys.stdin.isatty():
        raise DeployError("joining needs your consent, but there is no terminal to ask for it: add --yes")
    console.print(f"{who}:", markup=False)
    for line in leaves:
        console.print(f"  {line}", markup=False)
    if not yes and not typer.confirm("Join?", err=True):
        raise DeployError("you did not agree, so this site does not join: nothing was created or sent")
