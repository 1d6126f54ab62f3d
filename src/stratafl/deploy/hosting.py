"""The host's part in a federation: who is there, what is agreed on, round after round, and the last models.

`server_app.py` gives it Flower's messages as a courier. Everything that must survive is in the host's folder:

    federation.toml    the experiment and [deploy]
    agreement.json     what was agreed on when all sites had introduced themselves
    server/            the state after the last absorbed round, and the audit log (execute/exchange)
    rounds.jsonl       a line for each absorbed round, as of a run (round_journal.py)
    status.json        for whoever looks on
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stratafl.config.deployment import read_federation
from stratafl.deploy.agreement import Agreement, Introduction, agreement
from stratafl.deploy.courier import REFUSED, Content, Courier, Kind
from stratafl.deploy.round_journal import RoundJournal, Traffic
from stratafl.deploy.serving import served
from stratafl.deploy.status import Status
from stratafl.errors import DeployError, WireError, shown
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.exchange import ServerExchange, open_server
from stratafl.execute.roster import RosterEntry
from stratafl.execute.server import Server

FILE, AGREED, SERVER = "federation.toml", "agreement.json", "server"
LOOK = 0.5  # seconds between two looks at who is connected
TRIES = 3  # of a site in one round, after which it has missed it
PAUSE = 2.0  # seconds before a site that failed is asked again


class Hosting:
    """A federation under way; `run` returns when it is finished, and raises a `DeployError` when it stops before."""

    def __init__(
        self,
        folder: Path,
        courier: Courier,
        *,
        trust: bool = False,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder, self._courier, self._trust, self._clock, self._pause = folder, courier, trust, clock, pause
        self.file = read_federation(folder / FILE, plain=True)
        self.deploy = self.file.deploy
        self.sites = (*self.deploy.sites, *self.deploy.predict)
        self.status = Status(folder, self.sites)
        self._in_agreement = set[str]()  # sites that have the agreement
        self._failed = dict.fromkeys(self.sites, 0)  # times that each failed in this round
        self._missed = dict.fromkeys(self.sites, 0)  # rounds in a row that each missed
        self._next = dict.fromkeys(self.sites, 0.0)  # when each may be asked again
        self._traffic = Traffic()  # of this round
        self._gone = set[str]()  # sites that were not connected when last looked at

    def run(self) -> None:
        try:
            agreed = self._agreed()
            blueprint, serving = served(self.file, agreed, self._trust)
            server = serving.server
            with open_server(self._folder / SERVER, self.deploy.name, self.sites, serving) as exchange:
                self.status.begin(exchange.round, server.rounds)
                with self._journal(agreed) as journal:
                    while exchange.round < server.rounds:
                        self._round(exchange, server, agreed, blueprint, journal)
                left = self._commit(exchange, server, agreed, blueprint)
        except BaseException as error:
            self.status.end("failed", str(error) or type(error).__name__)
            raise
        self.status.end("finished", f"without its last model: {', '.join(left)}; host again to send it" if left else "")

    def _journal(self, agreed: Agreement) -> RoundJournal:
        server, experiment = self._folder / SERVER, self.file.experiment
        return RoundJournal(self._folder, server, experiment, agreed.format.classes, self._clock)

    # Agreement

    def _agreed(self) -> Agreement:
        """What was agreed on; if nothing was, all sites that train introduce themselves first."""
        path = self._folder / AGREED
        saved = Agreement.load(path)
        if saved is not None:
            return saved
        self.status.say("waiting for sites to introduce themselves")
        found = self._introductions(self.deploy.sites, self.deploy.wait)
        missing = [site for site in self.deploy.sites if site not in found]
        if missing:
            raise self._stopped(f"these sites have not introduced themselves: {self._why(missing)}")
        numbers = {site: number for number, site in enumerate(self.sites)}
        made = agreement({site: found[site] for site in self.deploy.sites}, numbers, len(self.deploy.sites))
        made.save(path)
        return made

    def _introductions(self, sites: Sequence[str], seconds: float) -> dict[str, Introduction]:
        """What these sites say of themselves, as far as they do within so many seconds."""
        found, latest = dict[str, Introduction](), self._clock() + seconds
        while len(found) < len(sites) and self._clock() < latest:
            asked = self._there([site for site in sites if site not in found])
            found |= self._introduced(asked, latest - self._clock())
            if not asked:
                self._pause(LOOK)
        return found

    def _introduced(self, sites: Sequence[str], left: float) -> dict[str, Introduction]:
        """What these sites answer when they are asked once."""
        found = dict[str, Introduction]()
        for site, (table, _) in self._sent("introduce", sites, left).items():
            try:
                found[site] = Introduction.from_table(table)
            except WireError as error:
                self._fail(site, str(error))
        return found

    def _agree(
        self, sites: Sequence[str], server: Server, agreed: Agreement, blueprint: Blueprint, left: float
    ) -> None:
        """Send the agreement to sites that do not have it from this process."""
        new = [site for site in sites if site not in self._in_agreement]
        about = {"agreement": agreed.to_table(), "widest": dict(server.widest), "digests": dict(blueprint.digests)}
        for site, (table, _) in self._sent("agree", new, left, about).items():
            theirs = table.get("digests")
            if not isinstance(theirs, dict):
                self._fail(site, "its answer to the agreement has no digests")
                continue
            if theirs.get("weights") != blueprint.digests["weights"]:
                self.status.say(
                    f"'{site}' draws initial weights that differ in the last bits: it starts from the host's"
                )
            self._in_agreement.add(site)

    # Rounds

    def _round(
        self, exchange: ServerExchange, server: Server, agreed: Agreement, blueprint: Blueprint, journal: RoundJournal
    ) -> None:
        """One round, until enough uploads are there and absorbed."""
        t = exchange.round
        cohort = [self.sites[client] for client in server.cohort(server.at(t)).tolist()]
        self._failed, self._traffic = dict.fromkeys(self.sites, 0), Traffic()
        self.status.round(t, cohort)
        begin = self._clock()
        while missing := [site for site in cohort if site not in exchange.arrived and self._takes_part(site)]:
            left = begin + self.deploy.deadline - self._clock()
            if left <= 0:
                break
            asked = self._there(missing)
            self._agree(asked, server, agreed, blueprint, left)
            self._ask(exchange, [site for site in asked if site in self._in_agreement], left)
            if not asked:
                self._pause(LOOK)
        self._close(exchange, cohort, begin, journal)

    def _takes_part(self, site: str) -> bool:
        return self._failed[site] < TRIES and self._missed[site] < self.deploy.failures

    def _ask(self, exchange: ServerExchange, sites: Sequence[str], left: float, *, whole: bool = False) -> None:
        if not sites:
            return
        bodies = {site: exchange.ask(site, whole=whole) for site in sites}
        self._traffic.down += sum(map(len, bodies.values()))
        begin = self._clock()
        replies = self._sent("round", sites, left, bodies=bodies)
        again = []
        for site, (table, body) in replies.items():
            answer = exchange.take(site, body)
            if answer.kind == "accepted":
                self._traffic.uploaded(site, len(body), _score(table))
                self.status.uploaded(site, exchange.round, self._clock() - begin, _score(table), len(body))
            elif answer.kind == "send all":
                again.append(site)
            else:
                self._fail(site, answer.reason)
        if again:
            self._ask(exchange, again, left - (self._clock() - begin), whole=True)

    def _close(self, exchange: ServerExchange, cohort: Sequence[str], begin: float, journal: RoundJournal) -> None:
        """Absorb the round if enough have arrived, or stop; who missed it is noted."""
        arrived = exchange.arrived
        for site in cohort:
            self._missed[site] = 0 if site in arrived else self._missed[site] + 1
            if self._missed[site] == self.deploy.failures:
                self.status.aside(site, f"it missed {self.deploy.failures} rounds in a row")
        least = min(self.deploy.least, len(cohort))
        if len(arrived) < least:
            wanted = f"round {exchange.round + 1} has {len(arrived)} of {least} uploads"
            raise self._stopped(f"{wanted}: {self._why([site for site in cohort if site not in arrived])}")
        closed = self._clock()
        left_out = exchange.absorb()
        for site, reason in left_out.items():
            self.status.say(f"round {exchange.round}: the upload of '{site}' was left out: {reason}")
        uploads = len(arrived) - len(left_out)
        counts = {"cohort": len(cohort), "uploads": uploads, "left_out": len(left_out)}
        journal.absorbed(exchange.round, self._traffic, begin, closed, counts)
        self.status.absorbed(exchange.round, self._clock() - begin, uploads)

    # The end

    def _commit(self, exchange: ServerExchange, server: Server, agreed: Agreement, blueprint: Blueprint) -> list[str]:
        """Give every site what it ends with; returns those that were not there."""
        self.status.say("all rounds are absorbed; every site gets what it ends with")
        missing, latest = list(self.sites), self._clock() + self.deploy.deadline
        self._failed = dict.fromkeys(self.sites, 0)
        while missing and (left := latest - self._clock()) > 0:
            asked = self._there([site for site in missing if self._failed[site] < TRIES])
            train = [site for site in asked if site in self.deploy.sites]
            self._agree(train, server, agreed, blueprint, left)
            self._give(exchange, train, left, missing)
            new = [site for site in asked if site not in train]  # last, because these may take their time
            self._agree_with_new(new, server, agreed, blueprint, left)
            self._give(exchange, new, left, missing)
            if not asked:
                if not any(self._failed[site] < TRIES for site in missing):
                    break
                self._pause(LOOK)
        return missing

    def _give(self, exchange: ServerExchange, sites: Sequence[str], left: float, missing: list[str]) -> None:
        """Send the last message to those that have the agreement; who confirms it is no longer missing."""
        asked = [site for site in sites if site in self._in_agreement]
        bodies = {site: exchange.commit(site, whole=bool(self._failed[site])) for site in asked}
        for site, (_, body) in self._sent("round", asked, left, bodies=bodies).items():
            answer = exchange.take(site, body)
            if answer.kind == "committed":
                missing.remove(site)
                self.status.committed(site)
            else:
                self._fail(site, answer.reason or answer.kind)

    def _agree_with_new(
        self, sites: Sequence[str], server: Server, agreed: Agreement, blueprint: Blueprint, left: float
    ) -> None:
        """The agreement for sites that only predict, which introduce themselves now."""
        strangers = [site for site in sites if site not in self._in_agreement]
        for site, found in self._introduced(strangers, left).items():
            entry = RosterEntry(site, self.sites.index(site), found.samples, found.validation)
            theirs = replace(agreed, roster=agreed.roster.joined(entry))
            self._agree([site], server, theirs, blueprint, left)

    # Messages

    def _there(self, sites: Sequence[str]) -> list[str]:
        """Those of the sites that are connected and may be asked now."""
        connected, now = self._courier.connected(), self._clock()
        self.status.seen(connected)
        for site in self._gone & connected:
            self._missed[site] = 0  # one that was set aside has come back
        self._gone = set(self.sites) - connected
        return [site for site in sites if site in connected and self._next[site] <= now]

    def _sent(
        self,
        kind: Kind,
        sites: Sequence[str],
        left: float,
        table: Mapping[str, Any] = MappingProxyType({}),
        bodies: Mapping[str, bytes] = MappingProxyType({}),
    ) -> Mapping[str, Content]:
        """The replies of these sites that are no refusal; what is wrong with the others is noted.

        A message can be lost with the process that carries it, and nobody would say so: a site that is silent is asked
        again before the deadline. One that is at work answers both messages, and trains once.
        """
        if not sites:
            return {}
        about = {"federation": self.deploy.name, **table}
        messages = {site: (about, bodies.get(site, b"")) for site in sites}
        done = self._courier.carry(kind, messages, max(min(left, self.deploy.deadline / TRIES), 1.0))
        for site, reason in done.failures.items():
            self._fail(site, reason)
        refused = {site: table[REFUSED] for site, (table, _) in done.replies.items() if REFUSED in table}
        for site, reason in refused.items():
            self._fail(site, shown(reason, 300))
        return {site: content for site, content in done.replies.items() if site not in refused}

    def _fail(self, site: str, reason: str) -> None:
        self._failed[site] += 1
        self._next[site] = self._clock() + PAUSE
        self.status.failed(site, reason)

    def _why(self, sites: Sequence[str]) -> str:
        return ", ".join(f"'{site}' ({self.status.reason(site)})" for site in sites)

    def _stopped(self, why: str) -> DeployError:
        return DeployError(f"{why}; nothing is lost: host again to go on")


def _score(table: Mapping[str, Any]) -> float | None:
    found = table.get("score")
    return float(found) if isinstance(found, int | float) and isfinite(found) else None
