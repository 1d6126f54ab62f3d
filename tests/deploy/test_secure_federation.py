"""Federations whose host sees sums of uploads alone, with signed messages in this process."""

import json
from pathlib import Path
from stat import S_IMODE

import numpy as np
import pytest
import torch
from test_hosting import Clock

from hosted import (
    SITES,
    SignedLocal,
    deployed,
    largest,
    replayed,
    simulated,
    with_tables,
    write_folders,
)
from stratafl.deploy import hosting
from stratafl.deploy.courier import Delivered
from stratafl.deploy.hosting import Hosting
from stratafl.deploy.member import NOISE, SiteMember
from stratafl.deploy.secure.secure_round import MASKED
from stratafl.deploy.secure.secure_site import NUMBERS, SECRETS, STEPS
from stratafl.deploy.secure.site_sums import SiteSums
from stratafl.deploy.serving import checked_log
from stratafl.deploy.signatures import HostSignatures, SignedCourier
from stratafl.deploy.status import read_status
from stratafl.errors import DeployError, WireError
from stratafl.execute.exchange import ServerExchange
from stratafl.execute.exchange.protocol import UploadMessage, decode_reply
from stratafl.execute.site import Site
from stratafl.policies.accountant import epsilon_of
from tiers import slow_except

pytestmark = pytest.mark.budget(2, "a federation of four sites in this process that sum unseen")
SECURE = {"server": {"secure": True}, "run": {"participation": 1.0, "rounds": 3}}


def prepared(folder: Path, **tables):
    file = with_tables(**{**SECURE, **tables})
    sites = write_folders(folder, file, keys=True)
    return file, Steps(folder, sites), sites


def hosted(folder: Path, transport, **options) -> Hosting:
    clock = Clock()
    courier = SignedCourier(transport, HostSignatures(folder / "host"))
    return Hosting(folder / "host", courier, clock=clock, pause=clock.pause, **options)


class Killed(BaseException):
    """As SIGKILL: nothing of the process goes on."""


class Steps(SignedLocal):
    """Carries messages; `before` and `after` see each step, and say whose message or answer is lost.

    With `restarts` each site is made again for every message, as if it had been killed before.
    """

    restarts = False
    before = staticmethod(lambda step, site, session: False)
    after = staticmethod(lambda step, site, session: False)

    def carry(self, kind, messages, seconds):
        if self.restarts:
            self._members.clear()
        told = {site: json.loads(message.table) for site, message in messages.items()}
        steps = {site: (table.get("step", kind), site, table.get("session")) for site, table in told.items()}
        lost = {site for site, step in steps.items() if self.before(*step)}
        done = super().carry(kind, {site: each for site, each in messages.items() if site not in lost}, seconds)
        unheard = lost | {site for site, step in steps.items() if site not in lost and self.after(*step)}
        replies = {site: reply for site, reply in done.replies.items() if site not in unheard}
        return Delivered(replies, dict.fromkeys(unheard, "no answer"))


def absorbed(folder: Path) -> list[list[str]]:
    lines = checked_log(folder / "host")
    return [sorted(line["absorbed"]) for line in lines if line["event"] == "absorb"]


def check(folder: Path, sites, file) -> None:
    """Whatever happened, the states are those of the same uploads, summed up in one process."""
    expected = replayed(folder, folder / "host", sites, file, absorbed(folder))
    assert largest(deployed(folder / "host", sites, file), expected) == 0
    for path in folder.rglob("*"):
        assert path.name not in (NUMBERS, MASKED), path
        if path.name == SECRETS:
            assert not json.loads(path.read_text())["seed"]
            assert S_IMODE(path.parent.stat().st_mode) == 0o700  # for its owner alone


@pytest.mark.parametrize("method", slow_except(["fedper"], ["fedper", "scaffold", "ditto", "local"]))
@pytest.mark.budget(4, "three rounds of four sites with five more steps each, and the simulation")
def test_host_and_sites_end_where_the_simulation_ends(tmp_path, method):
    file, transport, sites = prepared(tmp_path, algorithm={"name": method}, run={"participation": 1.0, "rounds": 2})
    transport.restarts = method == "scaffold"
    left = []
    transport.after = lambda at, site, session: left.append((at, site, *sites[site].rglob(NUMBERS))) and False
    hosted(tmp_path, transport).run()
    assert all((len(paths) == 0) == (at == "open") for at, _, *paths in left if at in STEPS)
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) == 0
    asked = [json.loads(message.table)["step"] for kind, _, message in transport.requests if kind == "secure"]
    assert asked == ([] if method == "local" else [step for step in STEPS for _ in SITES] * 2)
    check(tmp_path, sites, file)


def test_the_host_gets_receipts_and_masked_numbers_alone(tmp_path):
    """What an upload of the same round holds in a federation without secure sums is in no reply."""
    _, transport, _ = prepared(tmp_path, run={"participation": 1.0, "rounds": 2})
    replies = []
    transport.change = lambda kind, site, request, reply: replies.append((kind, site, request, reply)) or reply
    limits = []
    hosted(tmp_path, transport, limit_replies=limits.append).run()
    uploads = [decode_reply(reply.body) for kind, _, _, reply in replies if kind == "round"]
    receipts = [each.body for each in uploads if isinstance(each, UploadMessage)]
    assert [len(each) for each in receipts] == [32] * 8
    assert len(set(receipts)) == 8
    masked = [r.body for kind, _, m, r in replies if kind == "secure" and json.loads(m.table)["step"] == "masked"]
    assert len(masked) == 8
    size = len(masked[0]) // 8
    assert all(len(body) == 8 * size for body in masked)
    assert max(limits) == 8 * max(size, 1024)  # which the gate lets pass
    high = np.concatenate([np.frombuffer(body, "<u8") >> np.uint64(62) for body in masked])
    assert np.abs(np.bincount(high.astype(int), minlength=4) / len(high) - 0.25).max() < 7 * (0.1875 / len(high)) ** 0.5
    others = [reply.body for kind, _, _, reply in replies if kind not in ("round", "secure")]
    assert not any(others)


def test_a_host_that_goes_on_beyond_the_privacy_budget_is_refused_by_all_sites(tmp_path, monkeypatch):
    """Noise of all sites together is enough for the one round that sites have agreed to, not for two."""
    budget = epsilon_of(4.0, 1, 1e-5) * 1.01
    options = {"name": "fedper+private", "norm": 0.1, "noise": 4.0, "dp": "distributed", "dp_budget": budget}
    _, transport, _ = prepared(tmp_path, algorithm=options, run={"participation": 1.0, "rounds": 2})
    monkeypatch.setattr(hosting, "over_budget", lambda spent: None)
    with pytest.raises(DeployError, match="round 2 has 0 of 3 uploads"):
        hosted(tmp_path, transport).run()
    assert absorbed(tmp_path) == [[*"abcd"]]


@pytest.mark.slow
def test_the_noise_of_each_site_follows_from_a_file_of_its_own(tmp_path, monkeypatch):
    options = {"name": "fedper+private", "norm": 0.1, "noise": 4.0, "dp": "distributed"}
    _, transport, sites = prepared(tmp_path, algorithm=options, run={"participation": 1.0, "rounds": 1})
    contribution, sent = Site.contribution, {}

    def recorded(self, t, upload):
        sent[self.client] = upload, contribution(self, t, upload)
        return sent[self.client][1]

    monkeypatch.setattr(Site, "contribution", recorded)
    hosted(tmp_path, transport).run()
    assert len({(folder / NOISE).read_bytes() for folder in sites.values()}) == 4
    assert not (tmp_path / "host" / NOISE).exists()

    def again():
        member = SiteMember(sites["a"], "a", str(tmp_path / "a.csv"))
        return contribution(member.site(), 0, sent[0][0])

    assert torch.equal(again(), sent[0][1])
    (sites["a"] / NOISE).write_bytes(bytes(32))
    assert (again() == sent[0][1]).float().mean() < 0.01  # no number has the same noise, but by chance


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_site_that_vanishes_in_a_step_keeps_nobody_waiting_for_the_next_round(tmp_path, step):
    file, transport, sites = prepared(tmp_path, run={"participation": 1.0, "rounds": 2})
    transport.before = lambda at, site, session: (
        site == "c" and session is not None and session[1] == 0 and STEPS.index(at) >= STEPS.index(step)
    )
    hosted(tmp_path, transport).run()
    late = STEPS.index(step) > STEPS.index("masked")
    assert absorbed(tmp_path) == [[*"abcd"] if late else [*"abd"], [*"abcd"]]
    check(tmp_path, sites, file)


@pytest.mark.slow
def test_a_round_in_which_too_few_are_left_changes_nothing(tmp_path):
    file, transport, sites = prepared(tmp_path, run={"participation": 1.0, "rounds": 2})
    transport.before = lambda at, site, session: site in "cd" and session is not None and session[1] == 0
    hosted(tmp_path, transport).run()
    assert absorbed(tmp_path) == [[], [*"abcd"]]
    check(tmp_path, sites, file)
    said = read_status(tmp_path / "host")["said"]
    assert any("round 1 changes nothing" in line for line in said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "when"),
    [(step, when) for step in STEPS for when in ("before", "after")],
)
def test_a_host_that_is_killed_in_a_step_goes_on_with_the_round(tmp_path, step, when):
    """Before shares are asked for, another session begins; after that, the same shares are given again."""
    file, transport, sites = prepared(tmp_path, run={"participation": 1.0, "rounds": 2})
    sessions = []

    def killed(at, site, session):
        if session is not None:
            sessions.append(tuple(session))
        if (at, site, session and session[1]) == (step, "b", 0):
            raise Killed
        return False

    setattr(transport, when, killed)
    with pytest.raises(Killed):
        hosted(tmp_path, transport).run()
    setattr(transport, when, lambda at, site, session: session and sessions.append(tuple(session)))
    hosted(tmp_path, transport).run()
    assert absorbed(tmp_path) == [[*"abcd"]] * 2
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) == 0
    check(tmp_path, sites, file)
    assert len({each for each in sessions if each[1] == 0}) == (1 if step == "open" else 2)


@pytest.mark.slow
def test_a_host_that_is_killed_after_it_has_opened_a_sum_opens_it_again_and_no_other_one(tmp_path, monkeypatch):
    file, transport, sites = prepared(tmp_path, run={"participation": 1.0, "rounds": 2})
    with monkeypatch.context() as patched:
        patched.setattr(ServerExchange, "absorb_sum", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            hosted(tmp_path, transport).run()
    asked = len(transport.requests)
    # A site that gave a share is gone: its numbers are in the sum, and its state follows them.
    transport.before = lambda at, site, session: site == "b" and session is not None and session[1] == 0
    hosted(tmp_path, transport).run()
    steps = [json.loads(m.table).get("step", kind) for kind, _, m in transport.requests[asked:]]
    assert steps[:3] == ["open"] * 3
    assert absorbed(tmp_path) == [[*"abcd"]] * 2
    check(tmp_path, sites, file)


@pytest.mark.slow
def test_a_site_that_is_killed_before_it_removes_its_numbers_gives_the_same_shares_again_and_no_others(
    tmp_path, monkeypatch
):
    file, transport, sites = prepared(tmp_path, run={"participation": 1.0, "rounds": 2})
    with monkeypatch.context() as patched:
        patched.setattr(SiteSums, "_remove_numbers", lambda self: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            hosted(tmp_path, transport).run()
    (numbers,) = [path for folder in sites.values() for path in folder.rglob(NUMBERS) if not seed_beside(path)]
    kept = json.loads((numbers.parent / SECRETS).read_text())
    assert (kept["opened"], kept["mask_secret"], kept["share_secret"]) == (0, "", "")
    hosted(tmp_path, transport).run()
    assert absorbed(tmp_path) == [[*"abcd"]] * 2
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) == 0
    check(tmp_path, sites, file)


def seed_beside(path: Path) -> str:
    return json.loads((path.parent / SECRETS).read_text())["seed"]


@pytest.mark.slow
def test_a_site_whose_value_could_overflow_the_sum_refuses_and_the_round_ends_without_it(tmp_path, monkeypatch):
    file, transport, sites = prepared(tmp_path, run={"participation": 1.0, "rounds": 2}, deploy={"least": 1})
    contribution = Site.contribution

    def large(self, t, upload):
        if (self.client, t) == (3, 0):
            raise WireError("its 'top/x' reaches 1e+30")
        return contribution(self, t, upload)

    monkeypatch.setattr(Site, "contribution", large)
    hosted(tmp_path, transport).run()
    assert absorbed(tmp_path) == [[*"abc"], [*"abcd"]]
    monkeypatch.setattr(Site, "contribution", contribution)
    check(tmp_path, sites, file)


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["numbers", "weights"])
def test_a_site_that_sends_something_else_than_its_numbers_closes_the_round_and_spoils_no_model(
    tmp_path, monkeypatch, lie
):
    file, transport, sites = prepared(tmp_path, run={"participation": 1.0, "rounds": 2})
    contribution = Site.contribution

    def wrong(self, t, upload):
        numbers = contribution(self, t, upload)
        if (self.client, t) != (3, 0):
            return numbers
        return numbers * 2 if lie == "weights" else numbers + torch.randint(-(2**63), 2**63 - 1, numbers.shape)

    monkeypatch.setattr(Site, "contribution", wrong)
    hosted(tmp_path, transport).run()
    assert absorbed(tmp_path) == [[], [*"abcd"]]
    monkeypatch.setattr(Site, "contribution", contribution)
    check(tmp_path, sites, file)
