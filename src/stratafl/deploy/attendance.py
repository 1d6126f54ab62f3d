"""The sites of a host: which are connected, which fail, miss rounds or are set aside, and messages to them."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from stratafl.config.deployment import DeployTable
from stratafl.deploy.courier import REFUSED, Content, Courier, Kind
from stratafl.deploy.signals import MAX_TRIES
from stratafl.deploy.status import Status
from stratafl.errors import shown

RETRY_ROUNDS = 10  # rounds after which a site that was set aside is asked once more
POLL_SECONDS = 0.5  # seconds between two looks at who is connected
SLOW_BYTES_PER_SECOND = 200_000  # of a connection; a try is longer by what a message and its reply take at this speed
RETRY_SECONDS = 2.0  # seconds before a site that failed is asked again


class Attendance:
    """What a running host knows of its sites. Nothing of it is saved: a restarted host asks every site again."""

    def __init__(
        self,
        deploy: DeployTable,
        courier: Courier[Content],
        status: Status,
        clock: Callable[[], float] = time.monotonic,
        shut_out: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._deploy, self._courier, self._status, self._clock = deploy, courier, status, clock
        self._look, self._out = shut_out, frozenset[str]()  # sites that may no longer take part
        self.sites = deploy.all_sites
        self._failed = dict.fromkeys(self.sites, 0)  # times that each failed in this round
        self._missed = dict.fromkeys(self.sites, 0)  # rounds in a row without an upload of each that was absorbed
        self._next = dict.fromkeys(self.sites, 0.0)  # when each may be asked again
        self._gone = set[str]()  # sites that were not connected when last looked at
        self._lost = set[str]()  # sites that say that their state is lost
        self.reply_bytes = 0  # that a reply takes at most
        self.on_unverified: Callable[[str, str], object] = lambda site, reason: None  # writes it down

    def begin(self) -> None:
        """A round begins; failures are counted from zero."""
        self._failed = dict.fromkeys(self.sites, 0)

    def there(self, sites: Sequence[str]) -> list[str]:
        """Those of the sites that are connected and may be asked now."""
        out, now = self._look(), self._clock()
        for site in sorted(out - self._out):
            self._status.aside(site, "its key was removed from 'keys/'")
        self._out, connected = out, self._courier.connected() - out
        self._status.seen(connected)
        for site in self._gone & connected:
            self._missed[site] = 0  # one that was set aside has come back
            self._status.back(site)
        self._gone = set(self.sites) - connected
        return [site for site in sites if site in connected and self._next[site] <= now]

    def is_gone(self, site: str) -> bool:
        """Whether it was not connected when last looked at."""
        return site in self._gone

    def may_try(self, site: str) -> bool:
        return self._failed[site] < MAX_TRIES and site not in self._out

    def has_failed(self, site: str) -> bool:
        """Whether it has failed in this round."""
        return self._failed[site] > 0

    def is_aside(self, site: str) -> bool:
        """Whether it is done without; one that came back unseen, or can again, is asked now and then."""
        more = self._missed[site] - self._deploy.failures
        return site in self._out or (more >= 0 and more % RETRY_ROUNDS != RETRY_ROUNDS - 1)

    def absorbed(self, cohort: Sequence[str], present: Collection[str]) -> None:
        """A round ends: of its cohort these have an upload that was absorbed, the others have missed it."""
        for site in cohort:
            self._missed[site] = 0 if site in present else self._missed[site] + 1
            if self._missed[site] == self._deploy.failures:
                self._status.aside(site, f"{self._deploy.failures} rounds in a row without an accepted upload")

    def sent(
        self, kind: Kind, messages: Mapping[str, Content], left: float, *, patient: bool = False
    ) -> Mapping[str, Content]:
        """The replies to the message for each site, without refusals and failures, which are noted.

        A message can be lost unnoticed with the process that carries it, so a silent site is asked again before the
        deadline. A site that is still training answers both messages and trains once. If the host is `patient`, silence
        is no failure.
        """
        if not messages:
            return {}
        federation = {"federation": self._deploy.name}
        named = {site: ({**federation, **table}, body) for site, (table, body) in messages.items()}
        size = max(len(body) for _, body in messages.values()) + self.reply_bytes
        attempt = self._deploy.deadline / MAX_TRIES + size / SLOW_BYTES_PER_SECOND
        done = self._courier.carry(kind, named, max(min(left, attempt), 1.0))
        for site, reason in done.failures.items():
            self.fail(site, reason, tries=0 if patient and site in done.silent else 1)
        for site, reason in done.unverified.items():
            self.on_unverified(site, reason)
            self.fail(site, reason, tries=0)  # somebody else may have sent it
        refused = {site: table[REFUSED] for site, (table, _) in done.replies.items() if REFUSED in table}
        for site, reason in refused.items():
            self.fail(site, shown(reason, 300))
        return {site: content for site, content in done.replies.items() if site not in refused}

    def fail(self, site: str, reason: str, lost: bool = False, *, tries: int = 1) -> None:
        self._failed[site] += MAX_TRIES if lost else tries  # asked again at once, it would say the same
        if lost:
            self._lost.add(site)
        self._next[site] = self._clock() + RETRY_SECONDS
        self._status.failed(site, reason)

    def found_state(self, site: str) -> None:
        """It has answered with what it learned: whatever was lost is there again."""
        self._lost.discard(site)

    def why(self, sites: Sequence[str]) -> str:
        return ", ".join(f"'{site}' ({self._status.reason(site)})" for site in sites)

    def again(
        self, sites: Sequence[str], unless_lost: str = "nothing is lost: run the same command to continue"
    ) -> str:
        """What to do about sites that are missing."""
        lost = [site for site in sites if site in self._lost]
        if not lost:
            return unless_lost
        options = " ".join(f"--forget {site}" for site in lost)
        return f"restore a copy of the state of {', '.join(lost)} and host again, or host with {options}"
