"""The host of a federation: it agrees with its sites, runs the rounds and sends every site its final model.

`server_app.py` gives it Flower's messages as a courier. Everything that must survive is in the host's folder:

    federation.toml    the experiment and [deploy]
    agreement.json     what was agreed on when all sites had introduced themselves
    server/            the state after the last absorbed round, and the audit log (execute/exchange)
    rounds.jsonl       a line for each absorbed round, as of a run (status.py)
    report.json        the scores of sites that share them (federation_report.py)
    status.json        the progress that `strata host` shows
    rejoining.json     the sites that have not agreed yet to its extension
    noise.key          the secret of a method whose server adds noise (docs/guide/privacy.md)
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratafl.config.deployment import read_federation
from stratafl.deploy.agreement import Agreement, Introduction, Offer, agreement
from stratafl.deploy.attendance import POLL_SECONDS, Attendance
from stratafl.deploy.courier import Content, Courier
from stratafl.deploy.extending import read_rejoining, write_rejoining
from stratafl.deploy.federation_report import FederationReport, report_sentences
from stratafl.deploy.secure.secure_round import SecureRounds
from stratafl.deploy.serving import AGREED, FILE, SERVER, served
from stratafl.deploy.signing_keys import keys_folder, registered_keys
from stratafl.deploy.site_scores import SiteScores
from stratafl.deploy.status import RoundJournal, Status, Traffic
from stratafl.errors import DeployError, WireError
from stratafl.execute.exchange import ServerExchange, open_server
from stratafl.execute.roster import RosterEntry
from stratafl.execute.server import Server
from stratafl.policies.accountant import in_words, over_budget

MAX_SQUARED_ERROR = 1e30  # of which a mean can be taken


class Hosting:
    """A federation under way; `run` returns when it is finished, and raises a `DeployError` when it stops before."""

    def __init__(
        self,
        folder: Path,
        courier: Courier[Content],
        *,
        trust: bool = False,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        limit_replies: Callable[[int], None] = lambda most: None,
    ) -> None:
        self._folder, self._trust, self._clock, self._pause = folder, trust, clock, pause
        self.file = read_federation(folder / FILE, plain=True)
        self.deploy = self.file.deploy
        self.status = Status(folder, self.deploy.all_sites)
        self._sites = Attendance(self.deploy, courier, self.status, clock, self._shut_out)
        self._in_agreement = set[str]()  # sites that have the agreement
        self._traffic = Traffic()  # of this round
        self._classes: int | None = None
        self._agreement: Agreement | None = None
        self._shortened: Mapping[str, str] = {}  # the sites whose update the last round shortened, and how long it was
        self._secure: SecureRounds | None = None  # if the server sees sums of uploads alone
        self._limit_replies = limit_replies  # told what an upload takes at most, before sites are asked

    def run(self) -> None:
        try:
            self._limit_replies(0)
            self._agreement = agreed = self._agreed()
            self._classes = agreed.format.classes
            blueprint, serving = served(self.file, agreed, self._trust, self._folder)
            if Agreement.load(self._folder / AGREED) != agreed:  # what cannot be served must not be agreed on for good
                agreed.save(self._folder / AGREED)
            server, self._shortened = serving.server, serving.shortened
            offer = Offer(agreed, server.widest, blueprint.digests)
            with open_server(self._folder / SERVER, self.deploy.name, self._sites.sites, serving) as exchange:
                self._sites.on_unverified = exchange.refuse
                if server.secure:
                    signers = registered_keys(keys_folder(self._folder), self.deploy.sites)
                    place = self._folder / SERVER
                    parts = (signers, self._sites, self.deploy, self._clock, self._pause)
                    self._secure = SecureRounds(place, server, agreed.format.to_table(), *parts)
                self.status.begin(exchange.round, server.rounds)
                self._agree_again(offer)
                with RoundJournal(self._folder, self.file.experiment, self._classes, self._clock) as journal:
                    spent = server.algorithm.spent(server.at(exchange.round))
                    while exchange.round < server.rounds and not over_budget(spent):
                        self._round(exchange, server, offer, journal)
                        spent = server.algorithm.spent(server.at(exchange.round))
                if spent:
                    self.status.say(in_words(spent, exchange.round, server.algorithm.promise))
                left = [site for site in self._commit(exchange, offer) if site not in self._shut_out()]
                self._report(exchange)
        except BaseException as error:
            self.status.end("failed", str(error) or type(error).__name__)
            raise
        again = self._sites.again(left, "run the same command to send it")
        self.status.end("finished", f"sites without their final model: {', '.join(left)}; {again}" if left else "")

    def _shut_out(self) -> frozenset[str]:
        """The sites that took part and whose key is no longer in the folder `keys`."""
        keys, agreed = keys_folder(self._folder), self._agreement
        if agreed is None or not keys.is_dir():
            return frozenset()
        registered = {path.stem for path in keys.glob("*.pub")}
        return frozenset(agreed.roster.names) - registered

    # Agreement

    def _agreed(self) -> Agreement:
        """What was agreed on; sites that train and are not part of it introduce themselves first."""
        saved = Agreement.load(self._folder / AGREED)
        new = [site for site in self.deploy.sites if saved is None or site not in saved.roster.names]
        if saved is not None and not new:
            return saved
        self.status.say(f"waiting for sites to join: {', '.join(new)}")
        introductions = self._introductions(new, self.deploy.wait)
        missing = [site for site in new if site not in introductions]
        if missing:
            why = f"these sites have not joined: {self._sites.why(missing)}"
            raise DeployError(f"{why}; {self._sites.again(missing)}, or first take them out of deploy.sites")
        numbers = {site: number for number, site in enumerate(self._sites.sites)}
        return agreement({site: introductions[site] for site in new}, numbers, len(self.deploy.sites), saved)

    def _introductions(self, sites: Sequence[str], seconds: float) -> dict[str, Introduction]:
        """The introductions of these sites that arrive within `seconds`."""
        introductions, latest = dict[str, Introduction](), self._clock() + seconds
        while len(introductions) < len(sites) and self._clock() < latest:
            asked = self._sites.there([site for site in sites if site not in introductions])
            introductions |= self._introduced(asked, latest - self._clock())
            if not asked:
                self._pause(POLL_SECONDS)
        return introductions

    def _introduced(self, sites: Sequence[str], left: float) -> dict[str, Introduction]:
        """What these sites answer when they are asked once."""
        introductions = dict[str, Introduction]()
        for site, (table, _) in self._sites.sent("introduce", dict.fromkeys(sites, ({}, b"")), left).items():
            try:
                introductions[site] = Introduction.from_table(table)
            except WireError as error:
                self._sites.fail(site, str(error))
        return introductions

    def _agree(self, sites: Sequence[str], offer: Offer, left: float) -> None:
        """Send the agreement to sites that do not have it from this process."""
        new = {site: (offer.to_table(site), b"") for site in sites if site not in self._in_agreement}
        for site, (table, _) in self._sites.sent("agree", new, left).items():
            theirs = table.get("digests")
            if not isinstance(theirs, dict):
                self._sites.fail(site, "its answer to the agreement has no digests")
                continue
            if theirs.get("weights") != offer.digests["weights"]:
                self.status.say(f"the initial weights of '{site}' differ in the last bits: it starts from the host's")
            self._in_agreement.add(site)

    def _agree_again(self, offer: Offer) -> None:
        """After an extension, wait for the sites that took part to join again: each has to consent to it."""
        expected = {*self.deploy.sites} - self._shut_out()
        missing = [site for site in read_rejoining(self._folder) if site in expected]
        if not missing:
            return
        self.status.say(f"waiting for sites to join again with the new invitation: {', '.join(missing)}")
        latest = self._clock() + self.deploy.wait
        while missing and (left := latest - self._clock()) > 0:
            asked = self._sites.there(missing)
            self._agree(asked, offer, left)
            missing = [site for site in missing if site not in self._in_agreement | self._shut_out()]
            write_rejoining(self._folder, missing)
            if missing:
                self._pause(POLL_SECONDS)
        if missing:
            self.status.say(f"the federation goes on without {', '.join(missing)}, until they join again")
        write_rejoining(self._folder, ())

    # Rounds

    def _round(self, exchange: ServerExchange, server: Server, offer: Offer, journal: RoundJournal) -> None:
        """One round, until enough uploads are there and absorbed."""
        t = exchange.round
        cohort = [self.deploy.sites[client] for client in server.cohort(server.at(t)).tolist()]
        self._traffic = Traffic()
        self._sites.begin()
        self._sites.reply_bytes = server.most_upload_bytes(t, exchange.state)
        self._limit_replies(self._sites.reply_bytes)
        self.status.round(t, cohort)
        begin = self._clock()
        if self._secure is not None and self._secure.is_masked(t):  # and perhaps opened before this host was restarted
            self._absorb(exchange, server, cohort, begin, journal)
            return
        while missing := [site for site in cohort if site not in exchange.arrived and self._takes_part(site)]:
            left = begin + self.deploy.deadline - self._clock()
            if left <= 0:
                break
            asked = self._sites.there(missing)
            self._agree(asked, offer, left)
            self._ask(exchange, [site for site in asked if site in self._in_agreement], left)
            if not asked:
                self._pause(POLL_SECONDS)
        if len(exchange.arrived) >= self._least(exchange, cohort):
            self._absorb(exchange, server, cohort, begin, journal)
        else:
            self._pass_over(exchange, cohort, begin)

    def _least(self, exchange: ServerExchange, cohort: Sequence[str]) -> int:
        """The number of uploads with which the round can end."""
        least = min(self.deploy.least, len(cohort))
        return least if self._secure is None else max(least, self._secure.least(exchange.round, exchange))

    def _takes_part(self, site: str) -> bool:
        return self._sites.may_try(site) and not self._sites.is_aside(site)

    def _ask(self, exchange: ServerExchange, sites: Sequence[str], left: float, *, whole: bool = False) -> None:
        messages: dict[str, Content] = {site: ({}, exchange.ask(site, whole=whole)) for site in sites}
        self._traffic.down += sum(len(body) for _, body in messages.values())
        begin = self._clock()
        replies = self._sites.sent("round", messages, left)
        again = []
        for site, (table, body) in replies.items():
            answer = exchange.take(site, body)
            if answer.kind == "accepted":
                self._sites.found_state(site)
                score = _score(table, self._classes)
                self._traffic.uploaded(site, len(body), score)
                self.status.uploaded(site, exchange.round, self._clock() - begin, score, len(body))
            elif answer.kind == "send all" and not whole:
                again.append(site)
            else:
                self._sites.fail(site, answer.reason or "it asks for blocks that it has just received", answer.lost)
        left -= self._clock() - begin
        if again and left > 0:
            self._ask(exchange, again, left, whole=True)

    def _pass_over(self, exchange: ServerExchange, cohort: Sequence[str], begin: float) -> None:
        """Too few have arrived: stop, or go on if the whole cohort is set aside; who missed the round is noted."""
        arrived = exchange.arrived
        self._sites.absorbed(cohort, arrived)
        if not arrived and self._others_are_there(cohort):
            exchange.skip()
            self.status.absorbed(exchange.round, self._clock() - begin, 0)
            self.status.say(f"round {exchange.round} ended without an upload: its whole cohort is set aside")
        else:
            missing = [site for site in cohort if site not in arrived]
            least = self._least(exchange, cohort)
            why = f"round {exchange.round + 1} has {len(arrived)} of {least} uploads: {self._sites.why(missing)}"
            raise DeployError(f"{why}; {self._sites.again(missing)}")

    def _others_are_there(self, cohort: Sequence[str]) -> bool:
        """Whether the cohort is set aside and other sites are not. Drawn again, the cohort would be the same."""
        aside = [site for site in self.deploy.sites if self._sites.is_aside(site)]
        return set(cohort) <= set(aside) and len(aside) < len(self.deploy.sites)

    def _absorb(
        self, exchange: ServerExchange, server: Server, cohort: Sequence[str], begin: float, journal: RoundJournal
    ) -> None:
        arrived = exchange.arrived
        closed = self._clock()
        if self._secure is None:
            left_out = exchange.absorb()
            present = [site for site in arrived if site not in left_out]
        else:
            summed = self._secure.absorb(exchange, self._traffic)
            present, left_out = list(summed.present), summed.left_out
            if summed.closed:
                self.status.say(f"round {exchange.round} changes nothing: {summed.closed}")
        for site, reason in left_out.items() if present else ():
            self.status.left_out(site, exchange.round, reason)
        for site, length in self._shortened.items():
            self.status.shortened(site, exchange.round, length)
        self._sites.absorbed(cohort, present)
        counts = {"cohort": len(cohort), "uploads": len(present)}
        counts |= {"left_out": len(left_out), "shortened": len(self._shortened)}
        spent = server.algorithm.spent(server.at(exchange.round))
        journal.absorbed(exchange.round, self._traffic, begin, closed, {**counts, **spent})
        without = [site for site in cohort if site not in present]
        self.status.absorbed(exchange.round, self._clock() - begin, len(present), without)

    # The end

    def _commit(self, exchange: ServerExchange, offer: Offer) -> list[str]:
        """Give every site what it ends with; returns those that were not there."""
        self.status.say("all rounds are complete; every site gets its final model")
        for site in exchange.committed:
            self.status.committed(site)
        missing = [site for site in self._sites.sites if site not in exchange.committed]
        latest = self._clock() + self.deploy.deadline
        self._sites.begin()
        if self.deploy.predict:
            self._limit_replies(0)  # these introduce themselves
        while missing and (left := latest - self._clock()) > 0:
            asked = self._sites.there([site for site in missing if self._sites.may_try(site)])
            train = [site for site in asked if site in self.deploy.sites]
            self._agree(train, offer, left)
            self._give(exchange, train, left, missing)
            new = [site for site in asked if site not in train]  # last, because these may take their time
            self._agree_with_new(new, offer, left)
            self._give(exchange, new, left, missing)
            if not asked:
                if not any(self._sites.may_try(site) for site in missing):
                    break
                self._pause(POLL_SECONDS)
        return missing

    def _report(self, exchange: ServerExchange) -> None:
        """Collect the scores of sites that have their model, and give them to all; nobody is asked twice.

        Training alone takes as long as all rounds did, so a site has the deadline of all rounds for it.
        """
        if not (self.deploy.report and self.deploy.scores):
            return
        stored = FederationReport.load(self._folder, self.file)
        report = stored if stored is not None and stored.rounds == exchange.round else FederationReport(exchange.round)
        asked_before, begun = report, self._clock()
        latest = begun + self.deploy.deadline * max(1, exchange.round)
        self._sites.begin()
        self.status.say("every site compares its models and training alone")
        committed = [site for site in exchange.committed if site in self.deploy.sites]
        while (left := latest - self._clock()) > 0:
            missing = [site for site in committed if site not in report.heard and self._sites.may_try(site)]
            if not missing:
                break
            asked = self._sites.there(missing)
            questions: dict[str, Content] = dict.fromkeys(asked, ({}, b""))
            for site, (table, _) in self._sites.sent("report", questions, left, patient=True).items():
                report = self._with_scores(report, site, table)
            if self._clock() - begun > self.deploy.deadline and all(map(self._sites.is_gone, missing)):
                break  # those that are connected may still train, the others have gone
            if not asked:
                self._pause(POLL_SECONDS)
        report.save(self._folder)
        missing = [site for site in committed if site not in report.heard | self._shut_out()]
        if missing:
            self.status.say(f"no scores of {', '.join(missing)}: run the same command to ask for them again")
        if report != asked_before:
            for line in report_sentences(report, self.file):
                self.status.say(line)
            messages = {site: ({"report": report.to_table()}, b"") for site in self._sites.there(committed)}
            self._sites.sent("report", messages, self.deploy.deadline)
        for site in committed:  # those that failed here, too
            self.status.committed(site)

    def _with_scores(self, report: FederationReport, site: str, table: Mapping[str, Any]) -> FederationReport:
        if "scores" not in table:
            return replace(report, private=(*report.private, site))
        try:
            return replace(report, scores={**report.scores, site: SiteScores.from_table(table["scores"])})
        except WireError as error:
            self._sites.fail(site, str(error))
            return report

    def _give(self, exchange: ServerExchange, sites: Sequence[str], left: float, missing: list[str]) -> None:
        """Send the last message to those that have the agreement; who confirms it is no longer missing."""
        failed, asked = self._sites.has_failed, [site for site in sites if site in self._in_agreement]
        messages: dict[str, Content] = {site: ({}, exchange.commit(site, whole=failed(site))) for site in asked}
        for site, (_, body) in self._sites.sent("round", messages, left).items():
            answer = exchange.take(site, body)
            if answer.kind == "committed":
                missing.remove(site)
                self.status.committed(site)
            else:
                self._sites.fail(site, answer.reason or answer.kind, answer.lost)

    def _agree_with_new(self, sites: Sequence[str], offer: Offer, left: float) -> None:
        """The agreement for sites that only predict, which introduce themselves now."""
        strangers = [site for site in sites if site not in self._in_agreement]
        for site, introduction in self._introduced(strangers, left).items():
            entry = RosterEntry(site, self.deploy.number(site), introduction.samples, introduction.validation)
            theirs = replace(offer.agreement, roster=offer.agreement.roster.joined(entry))
            self._agree([site], replace(offer, agreement=theirs), left)


def _score(table: Mapping[str, Any], classes: int | None) -> float | None:
    """What a site says: an accuracy, or a squared error; anything else is none."""
    score, most = table.get("score"), MAX_SQUARED_ERROR if classes is None else 1.0
    if not isinstance(score, int | float) or isinstance(score, bool) or not 0 <= score <= most:
        return None
    return float(score)
