"""Host and sites that agree, do their rounds and end with the simulation's tensors, without Flower."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hosted import (
    ACTING,
    ROUNDING,
    SITES,
    Local,
    acting,
    deployed,
    deployed_models,
    largest,
    simulated,
    simulated_models,
    with_tables,
    write_file,
    write_folders,
    write_keys,
)
from stratafl.config.deployment import blueprint_of
from stratafl.data.sample_format import SampleFormat
from stratafl.deploy import attendance
from stratafl.deploy.agreement import Agreement, Offer
from stratafl.deploy.courier import REFUSED, Delivered
from stratafl.deploy.hosting import AGREED, SERVER, Hosting, _score
from stratafl.deploy.member import STATE, Releases, SiteMember
from stratafl.deploy.messages import content_of, read_content
from stratafl.deploy.serving import checked_log, forget_site
from stratafl.deploy.signatures import HostSignatures, SignedMember
from stratafl.deploy.status import read_status
from stratafl.errors import DamagedError, DeployError, WireError
from stratafl.execute.exchange import read_site, site_folder, state_form
from stratafl.execute.exchange.protocol import SendAll, UploadMessage, decode_reply, encode_message, upload_digest
from stratafl.policies.accountant import epsilon_of
from tiers import slow_and_nightly

pytestmark = pytest.mark.budget(1.2, "a federation of four sites in this process")


class Clock:
    """Time passes only when somebody pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def prepared(folder: Path, **tables):
    return prepared_for(folder, with_tables(**tables))


def prepared_for(folder: Path, file):
    sites = write_folders(folder, file)
    return file, Local(folder, sites), sites


def hosted(folder: Path, courier: Local) -> Hosting:
    clock = Clock()
    return Hosting(folder / "host", courier, clock=clock, pause=clock.pause)


@pytest.mark.parametrize("method", slow_and_nightly(ACTING))
@pytest.mark.budget(5, "six rounds of four sites that restart, the simulation, and the first use of both")
def test_host_and_sites_end_where_the_simulation_ends(tmp_path, method):
    file, _, sites = prepared_for(tmp_path, acting(method))
    hosted(tmp_path, Local(tmp_path, sites, restarts=True)).run()
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) <= ROUNDING.get(method, 0)
    assert largest(deployed_models(sites), simulated_models(tmp_path, file)) <= ROUNDING.get(method, 0)
    status = read_status(tmp_path / "host")
    assert (status["state"], status["round"], status["reason"]) == ("finished", 6, "")
    assert {site["state"] for site in status["sites"].values()} == {"has its model"}
    assert all(0 <= site["score"] <= 1 for site in status["sites"].values() if "score" in site)


@pytest.mark.slow
def test_noise_of_a_host_is_its_secret_and_every_round_says_what_it_cost(tmp_path):
    options = {"name": "fedper+private", "norm": 0.1, "noise": 2.0}
    file, courier, sites = prepared(tmp_path, algorithm=options, run={"rounds": 3})
    hosted(tmp_path, courier).run()
    key = tmp_path / "host" / "noise.key"
    assert (len(key.read_bytes()), key.stat().st_mode & 0o777) == (32, 0o600)
    assert len(set(key.read_bytes())) > 8  # drawn, not a constant
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) > 1e-3  # whose key is public
    lines = [json.loads(line) for line in (tmp_path / "host" / "rounds.jsonl").read_text().splitlines()]
    spent = [line["privacy.epsilon"] for line in lines]
    assert spent == sorted(spent)
    assert 0 < spent[-1] <= epsilon_of(2.0, 3, 1e-5)
    assert {line["privacy.delta"] for line in lines} == {1e-5}
    assert not [place for site in sites.values() for place in site.rglob("*") if place.name == "noise.key"]


def test_the_gate_is_told_what_a_reply_takes_before_sites_are_asked(tmp_path):
    _, courier, _ = prepared(tmp_path, run={"rounds": 2})
    most, told, carry = [0], [], courier.carry

    def carried(kind, messages, seconds):
        done = carry(kind, messages, seconds)
        told.extend((most[-1], len(body)) for _, body in done.replies.values() if kind == "round")
        return done

    courier.carry = carried
    clock = Clock()
    Hosting(tmp_path / "host", courier, clock=clock, pause=clock.pause, limit_replies=most.append).run()
    assert most[1] == 0  # introductions are tables
    assert len(most) == 4
    assert 0.3 < max(size / limit for limit, size in told) < 1.5  # with names of blocks and a header


def test_a_large_message_over_a_slow_line_has_more_time(tmp_path):
    """50 MB there and back at 200 kB/s take 500 s; a try without them has a third of 900."""
    seconds = []
    courier = SimpleNamespace(carry=lambda kind, messages, left: seconds.append(left) or Delivered({}, {}))
    deploy = with_tables().deploy
    sites = attendance.Attendance(deploy, courier, SimpleNamespace())
    sites.sent("round", {"a": ({}, b"")}, 900.0)
    sites.reply_bytes = 50_000_000
    sites.sent("round", {"a": ({}, bytes(50_000_000))}, 900.0)
    sites.sent("round", {"a": ({}, bytes(50_000_000))}, 400.0)
    assert seconds == [300.0, 800.0, 400.0]


@pytest.mark.budget(2.5, "a federation of four sites that restart for every message")
def test_noise_of_sites_is_their_secret_and_a_budget_ends_the_rounds(tmp_path):
    """Of six rounds the budget allows the client that takes part most often three uploads."""
    budget = epsilon_of(2.0, 3, 1e-5) * 1.001
    options = {"name": "fedper+private", "norm": 0.1, "noise": 4.0, "dp": "local", "dp_budget": budget}
    _file, _, sites = prepared(tmp_path, algorithm=options, run={"rounds": 6})
    hosted(tmp_path, Local(tmp_path, sites, restarts=True)).run()
    lines = [json.loads(line) for line in (tmp_path / "host" / "rounds.jsonl").read_text().splitlines()]
    assert 3 <= len(lines) < 6
    assert lines[-1]["privacy.epsilon"] <= budget < lines[-1]["privacy.next"]
    assert read_status(tmp_path / "host")["state"] == "finished"
    keys = {(folder / "noise.key").read_bytes() for folder in sites.values()}
    assert {len(key) for key in keys} == {32}
    assert len(keys) == 4
    uploads = [json.loads(path.read_text())["uploads"] for path in tmp_path.glob("*/noise.json")]
    assert max(map(len, uploads)) == 3
    assert not (tmp_path / "host" / "noise.key").exists()


def test_a_site_makes_no_more_noisy_uploads_than_its_privacy_allows(tmp_path):
    releases = Releases(tmp_path / "noise.json", 2)
    for upload in (b"first", b"second", b"first", b"second"):  # again, after a crash
        releases.add(upload)
    with pytest.raises(WireError, match=r"2 noisy uploads"):
        Releases(tmp_path / "noise.json", 2).add(b"third")
    Releases(tmp_path / "noise.json", 3).add(b"third")
    (tmp_path / "noise.json").write_text("{}")
    with pytest.raises(DamagedError, match=r"noise\.json"):
        releases.add(b"first")


def test_a_host_that_is_killed_goes_on_where_it_was(tmp_path):
    file, courier, sites = prepared(tmp_path)

    class Killed(BaseException):
        pass

    def killed_at(count):
        seen = []

        def away(site):
            seen.append(site)
            if len(seen) > count:
                raise Killed
            return False

        return away

    for count in (6, 14):
        courier.away = killed_at(count)
        with pytest.raises(Killed):
            hosted(tmp_path, courier).run()
        assert read_status(tmp_path / "host")["state"] == "failed"
    courier.away = lambda site: False
    hosted(tmp_path, courier).run()
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) == 0


@pytest.mark.parametrize(
    "kind", ["round", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("introduce", "agree"))]
)
def test_a_message_that_is_lost_is_sent_again_before_the_deadline(tmp_path, kind):
    """As a SuperLink does that is killed after it has handed a message out."""
    file, courier, sites = prepared(tmp_path, run={"participation": 1.0, "rounds": 2}, deploy={"least": 4})
    carry, clock, lost = courier.carry, Clock(), []

    def lossy(asked, messages, seconds):
        if asked != kind or lost:
            return carry(asked, messages, seconds)
        lost.append("b")
        done = carry(asked, {site: content for site, content in messages.items() if site != "b"}, seconds)
        clock.pause(seconds)
        return Delivered(done.replies, {"b": f"no answer within {seconds} s"})

    courier.carry = lossy
    Hosting(tmp_path / "host", courier, clock=clock, pause=clock.pause).run()
    assert lost
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) == 0


@pytest.mark.slow
def test_a_host_whose_sites_do_not_come_stops_with_their_names_and_goes_on_later(tmp_path):
    _, courier, _ = prepared(tmp_path, run={"rounds": 1})
    courier.away = lambda site: site == "c"
    with pytest.raises(DeployError, match=r": 'c' \(not connected\); "):
        hosted(tmp_path, courier).run()
    courier.away = lambda site: False
    hosted(tmp_path, courier).run()
    assert read_status(tmp_path / "host")["state"] == "finished"


@pytest.mark.slow
def test_a_site_that_is_gone_is_done_without_set_aside_and_said(tmp_path):
    _, courier, _ = prepared(tmp_path, run={"participation": 1.0})
    courier.away = lambda site: site == "b" and ("round", "b") in courier.carried
    hosted(tmp_path, courier).run()
    status = read_status(tmp_path / "host")
    assert status["state"] == "finished"
    assert status["sites"]["b"]["state"] == "set aside"
    assert any(line.startswith("'b' is set aside: 3 ") for line in status["said"])
    assert status["lines"] == len(status["said"])
    assert ": b;" in status["reason"]
    assert [site for kind, site in courier.carried if kind == "round"].count("b") == 1


def test_a_host_of_a_finished_federation_waits_for_no_site_that_has_its_model(tmp_path):
    _, courier, _ = prepared(tmp_path, run={"rounds": 1}, deploy={"predict": ["e"]})
    hosted(tmp_path, courier).run()
    status = read_status(tmp_path / "host")
    assert ": e;" in status["reason"]
    courier.carried.clear()
    courier.away = lambda site: True
    hosted(tmp_path, courier).run()
    status = read_status(tmp_path / "host")
    assert (status["state"], ": e;" in status["reason"]) == ("finished", True)
    assert [status["sites"][site]["state"] for site in SITES] == ["has its model"] * 4
    forget_site(tmp_path / "host", "a")
    hosted(tmp_path, courier).run()
    assert ": a, e;" in read_status(tmp_path / "host")["reason"]


def test_a_site_whose_key_is_removed_takes_part_no_more_and_costs_no_round_its_deadline(tmp_path):
    _, courier, _ = prepared(tmp_path, run={"rounds": 4, "participation": 1.0})
    keys, clock, carry = tmp_path / "host" / "keys", Clock(), courier.carry
    keys.mkdir()
    for site in SITES:
        (keys / f"{site}.pub").touch()

    def carried(kind, messages, seconds):
        rounds = courier.carried.count(("round", "a"))
        if rounds == 1:
            (keys / "b.pub").unlink(missing_ok=True)
        if rounds == 2:
            (keys / "b.pub").touch()  # let in again
        return carry(kind, messages, seconds)

    courier.carry = carried
    Hosting(tmp_path / "host", courier, clock=clock, pause=clock.pause).run()
    absorbed = ["b" in line["absorbed"] for line in checked_log(tmp_path / "host") if line["event"] == "absorb"]
    assert absorbed == [True, True, False, True]
    assert clock.now < 900  # of a deadline
    said = read_status(tmp_path / "host")["said"]
    assert sum(line.startswith("'b' is set aside: ") for line in said) == 1
    assert any(line.startswith("round 3 ended without 'b' ") for line in said)
    assert any(line.startswith("'b' is connected again") for line in said)


@pytest.mark.slow
def test_a_site_that_only_predicts_gets_a_model_and_trains_nothing(tmp_path):
    file, courier, sites = prepared(tmp_path, run={"rounds": 2}, deploy={"predict": ["e"]})
    sites["e"] = courier.sites["e"] = tmp_path / "e"
    write_file(tmp_path / "e", file)
    shutil.copy(tmp_path / "a.csv", tmp_path / "e.csv")
    hosted(tmp_path, courier).run()
    status = read_status(tmp_path / "host")
    assert status["sites"]["e"]["state"] == "has its model"
    assert [kind for kind, site in courier.carried if site == "e"] == ["introduce", "agree", "round"]
    member = SiteMember(tmp_path / "e", "e", str(tmp_path / "e.csv"))
    store = read_site(tmp_path / "e" / "state", "test", "e", state_form(member._ready().enrol()))
    assert store.current() is None
    site = member._ready().site
    rows = site.deployed(2, None, store.final().parcel)
    assert set(rows) == set(site.setup.layout.specs)
    assert 0 < float(site.scores(2, rows, "test").accuracy) <= 1


@pytest.mark.slow
def test_a_site_that_comes_back_after_it_was_set_aside_takes_part_again(tmp_path):
    _, courier, _ = prepared(tmp_path, run={"participation": 1.0, "rounds": 6}, deploy={"failures": 2})
    rounds = lambda: [site for kind, site in courier.carried if kind == "round"]  # noqa: E731
    courier.away = lambda site: site == "b" and 1 <= rounds().count("a") < 4
    hosted(tmp_path, courier).run()
    status = read_status(tmp_path / "host")
    assert (status["state"], status["reason"]) == ("finished", "")
    assert status["sites"]["b"]["state"] == "has its model"
    assert rounds().count("b") == 1 + 2 + 1  # the first round, the last ones, and its model


@pytest.mark.slow
def test_a_federation_that_loses_too_many_sites_stops_and_can_be_resumed(tmp_path):
    _, courier, _ = prepared(tmp_path, run={"participation": 1.0, "rounds": 3}, deploy={"least": 3})
    courier.away = lambda site: site in "bc" and ("round", site) in courier.carried
    with pytest.raises(DeployError, match=r"round 2 has 2 of 3 .*: 'b' \(not connected\), 'c' \(not connected\)"):
        hosted(tmp_path, courier).run()
    courier.away = lambda site: False
    hosted(tmp_path, courier).run()
    assert read_status(tmp_path / "host")["round"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("least", [4, 1])
def test_a_lost_state_is_not_called_nothing_and_the_host_says_how_to_go_on(tmp_path, least):
    file, courier, sites = prepared(tmp_path, run={"participation": 1.0, "rounds": 2}, deploy={"least": least})
    states, kept = site_folder(sites["b"] / STATE, file.deploy.name, "b"), tmp_path / "kept"
    carry = courier.carry

    def losing(kind, messages, seconds):
        done = carry(kind, messages, seconds)
        if kind == "round" and not kept.exists():
            states.rename(kept)
        return done

    courier.carry = losing
    if least == 4:
        with pytest.raises(DeployError, match=r"round 2 has 3 of 4 .*: 'b' \("):
            hosted(tmp_path, courier).run()
    else:
        hosted(tmp_path, courier).run()
    reason = read_status(tmp_path / "host")["reason"]
    assert reason.endswith("--forget b")
    shutil.rmtree(states)
    kept.rename(states)
    courier.carry = carry
    hosted(tmp_path, courier).run()
    assert read_status(tmp_path / "host")["reason"] == ""
    if least == 4:
        assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) == 0


# Sites that do not behave


def changed(courier, kind, change):
    """A courier that changes what sites answer to one kind of message."""
    carry = courier.carry

    def carried(asked, messages, seconds):
        done = carry(asked, messages, seconds)
        if asked != kind:
            return done
        return Delivered({site: change(site, *content) for site, content in done.replies.items()}, done.failures)

    courier.carry = carried


@pytest.mark.parametrize("score", [1e308, 1.5, -0.1, True, float("nan"), float("inf"), "high", None])
def test_what_is_no_score_counts_for_nothing(score):
    assert _score({"score": score}, classes=10) is None
    assert _score({"score": 1.5}, classes=None) == 1.5  # a squared error


@pytest.mark.slow
def test_a_score_of_which_no_mean_can_be_taken_counts_for_nothing(tmp_path):
    file, courier, sites = prepared(tmp_path, run={"participation": 1.0, "rounds": 1})
    changed(courier, "round", lambda site, table, body: ({"score": 1.5} if site == "b" else table, body))
    hosted(tmp_path, courier).run()
    (line,) = (json.loads(line) for line in (tmp_path / "host" / "rounds.jsonl").read_text().splitlines())
    assert 0 <= line["test.received.client_accuracy"] <= 1
    assert read_status(tmp_path / "host")["sites"]["b"]["score"] is None
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) == 0


@pytest.mark.slow
def test_a_site_that_always_asks_for_everything_has_missed_the_round(tmp_path, caplog):
    _, courier, _ = prepared(tmp_path, run={"participation": 1.0, "rounds": 1}, deploy={"least": 3})

    def lacks(site, table, body):
        reply = decode_reply(body)
        return table, encode_message(SendAll(reply.address)) if site == "b" and isinstance(
            reply, UploadMessage
        ) else body

    changed(courier, "round", lacks)
    hosted(tmp_path, courier).run()
    status = read_status(tmp_path / "host")
    assert status["state"] == "finished"
    assert caplog.text.count("site 'b' ") == 3  # then it is asked no more
    assert [line.startswith("site 'b' ") for line in status["said"]].count(True) == 1


@pytest.mark.slow
def test_a_site_whose_uploads_are_always_left_out_is_set_aside_and_said(tmp_path):
    file, courier, _ = prepared(tmp_path, run={"participation": 1.0}, deploy={"failures": 2})

    def forged(site, table, body):
        reply = decode_reply(body)
        if site != "b" or not isinstance(reply, UploadMessage):
            return table, body
        digest = upload_digest(file.deploy.name, "b", reply.address.round, b"nothing")
        return table, encode_message(replace(reply, digest=digest, body=b"nothing"))

    changed(courier, "round", forged)
    hosted(tmp_path, courier).run()
    log = checked_log(tmp_path / "host")
    assert ["b" in line["left_out"] for line in log if line["event"] == "absorb"] == [True, True, False, False, False]
    assert [kind for kind, site in courier.carried if site == "b"].count("round") == 2 + 1  # and its last model


@pytest.mark.slow
def test_a_site_whose_update_is_shortened_is_counted_and_named(tmp_path):
    _, courier, _ = prepared(tmp_path, run={"rounds": 2, "participation": 1.0}, server={"norm_clip": 1.0001})
    hosted(tmp_path, courier).run()
    lines = [json.loads(line) for line in (tmp_path / "host" / "rounds.jsonl").read_text().splitlines()]
    said = read_status(tmp_path / "host")["said"]
    for line in lines:  # two of four updates are above the median
        assert (line["uploads"], line["left_out"], line["shortened"]) == (4, 0, 2)
        about = [text for text in said if text.startswith(f"round {line['round']}: ")]
        assert len({site for site in SITES for text in about if f"'{site}'" in text}) == len(about) == 2


@pytest.mark.slow
def test_a_site_that_is_set_aside_is_asked_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(attendance, "RETRY_ROUNDS", 3)
    file, courier, _ = prepared(tmp_path, run={"participation": 1.0, "rounds": 5}, deploy={"failures": 1})
    refusals = [0]

    def once(site, table, body):
        if site == "b" and isinstance(decode_reply(body), UploadMessage) and not refusals[0]:
            refusals[0] += 1
            digest = upload_digest(file.deploy.name, "b", 0, b"nothing")
            body = encode_message(replace(decode_reply(body), digest=digest, body=b"nothing"))
        return table, body

    changed(courier, "round", once)
    hosted(tmp_path, courier).run()
    rounds = [line for line in checked_log(tmp_path / "host") if line["event"] == "absorb"]
    assert ["b" in line["absorbed"] for line in rounds] == [False] * 3 + [True] * 2


def test_a_site_gets_its_own_entry_of_the_roster_alone(tmp_path):
    _, courier, sites = prepared(tmp_path, run={"rounds": 1, "participation": 1.0}, deploy={"predict": ["e"]})
    hosted(tmp_path, courier).run()
    known = [each.name for each in Agreement.load(tmp_path / "host" / "agreement.json").roster.entries]
    assert known == list(SITES)
    for name, folder in sites.items():
        kept = Offer.from_table(json.loads((folder / "agreement.json").read_text()))
        assert kept.agreement.roster.names == (name,)
        assert kept.agreement.roster.clients == len(SITES)


@pytest.mark.slow
def test_a_cohort_that_is_gone_for_good_does_not_end_a_federation(tmp_path):
    """With one site a round, hosting again would draw the same site again."""
    _, courier, _ = prepared(
        tmp_path, run={"participation": 0.25, "rounds": 8}, deploy={"failures": 1, "least": 1, "deadline": 30}
    )
    gone, carry = set(), courier.carry
    courier.away = lambda site: site in gone

    def carried(asked, messages, seconds):
        if asked == "round":
            gone.update("abc")
        return carry(asked, messages, seconds)

    courier.carry = carried
    hosted(tmp_path, courier).run()
    status = read_status(tmp_path / "host")
    assert (status["state"], status["round"]) == ("finished", 8)
    log = [line for line in checked_log(tmp_path / "host") if line["event"] == "absorb"]
    assert sum(not line["absorbed"] for line in log) >= 2


def test_what_a_site_cannot_read_is_not_quoted(tmp_path, caplog):
    """A cell of its samples, or where they are, would be in the host's log."""
    _, _, sites = prepared(tmp_path, data={"columns": "p0:number"})
    write_keys(tmp_path / "host", sites)
    table = tmp_path / "b.csv"
    table.write_text(table.read_text().replace("\n", "\nJane Roe HIV+,1,1,1,1,1,1,1,3\n", 1))
    request = HostSignatures(tmp_path / "host").request("introduce", "b", ({"federation": "test"}, b""))
    member = SignedMember(SiteMember(sites["b"], "b", str(table)))
    reply = json.loads(member.answer("introduce", read_content(content_of(request))).table)
    assert list(reply) == [REFUSED]
    assert "DataError" in reply[REFUSED]
    assert "Jane Roe" not in reply[REFUSED]
    assert "Jane Roe" in caplog.text  # at the site itself


@pytest.mark.parametrize(
    "change",
    [
        lambda told: (
            told.update(own_columns=False)
            or told["preprocessing"].update(columns={"mean": [1e6] * 8, "deviation": [1e3] * 8})
        ),
        lambda told: told["preprocessing"].update(targets={"mean": [0.0], "deviation": [1.0]}),
        lambda told: told["preprocessing"].update(dtype="float16"),
        lambda told: told.update(dtype="float16"),
        lambda told: told.update(own_columns=False),
        lambda told: told.update(columns=[]),  # columns in the order of each site's file
        lambda told: told.update(columns=["x", *told["columns"][1:]]),
        lambda told: (told.update(classes=None), told["preprocessing"].update(classes=[])),  # labels as numbers
    ],
)
def test_a_site_reads_its_samples_in_no_way_that_others_chose(tmp_path, change):
    file, _, sites = prepared(tmp_path)
    member = SiteMember(sites["b"], "b", str(tmp_path / "b.csv"))
    table = member.introduce({"federation": "test"})
    entries = [[name, number, *(table[key] for key in ("samples", "validation"))] for number, name in enumerate(SITES)]
    told = json.loads(json.dumps(table["format"]))
    agreed = {"format": told, "clients": len(SITES), "sites": entries}
    about = {"federation": "test", "agreement": agreed, "widest": {"train": 1, "validation": 1}}
    digests = dict(blueprint_of(file.experiment, SampleFormat.from_table(told), len(SITES)).digests)
    member.agree({**about, "digests": digests})
    before = (sites["b"] / AGREED).read_bytes()
    change(told)
    digests = dict(blueprint_of(file.experiment, SampleFormat.from_table(told), len(SITES)).digests)
    with pytest.raises(WireError):
        member.agree({**about, "digests": digests})
    assert (sites["b"] / AGREED).read_bytes() == before


@pytest.mark.slow
def test_a_log_whose_state_is_missing_is_not_said_to_be_whole(tmp_path):
    _, courier, _ = prepared(tmp_path, run={"rounds": 1})
    hosted(tmp_path, courier).run()
    assert checked_log(tmp_path / "host")
    (tmp_path / "host" / SERVER / "state.safetensors").unlink()
    log = tmp_path / "host" / SERVER / "audit.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-3]))
    with pytest.raises(DamagedError, match=r"state\.safetensors'"):
        checked_log(tmp_path / "host")
