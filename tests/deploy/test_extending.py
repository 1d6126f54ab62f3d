"""A federation that has begun goes on with more rounds and further sites, once its sites have agreed again."""

import json
import tomllib

import pytest
import tomli_w
from test_hosting import Clock

from hosted import SITES, Local, deployed, largest, simulated, with_tables, write_samples
from stratafl.config.deployment import blueprint_of, server_of
from stratafl.deploy.agreement import Agreement
from stratafl.deploy.extending import extensions, is_same_federation, read_rejoining
from stratafl.deploy.folders import prepare_host, prepare_site
from stratafl.deploy.host import HostAddress
from stratafl.deploy.hosting import AGREED, Hosting
from stratafl.deploy.member import SiteMember
from stratafl.deploy.serving import Serving, checked_log
from stratafl.deploy.status import read_status
from stratafl.errors import DeployError, RunError

pytestmark = pytest.mark.budget(4, "a federation of four sites in this process, and once more")
PLACE = HostAddress("127.0.0.1", 9443)
THREE = {"sites": list(SITES[:3])}


def file_of(rounds=2, **tables):
    return with_tables(run={"rounds": rounds, "participation": 1.0}, **tables)


def hosted(folder, file, courier):
    """A host of this file, as it is started anew, and its sites as they join again."""
    courier.clock = clock = Clock()
    prepared = prepare_host(folder / "host", file, PLACE)
    invitation = prepared.invite(PLACE)
    for site, path in courier.sites.items():
        if courier.rejoins(site):
            prepared.store_keys(site, prepare_site(path, invitation, site).key.public)
    Hosting(folder / "host", courier, clock=clock, pause=clock.pause).run()
    return prepared


@pytest.fixture
def courier(tmp_path):
    write_samples(tmp_path)
    courier = Local(tmp_path, {site: tmp_path / site for site in SITES}, restarts=True)
    courier.rejoins = lambda site: True
    return courier


def test_a_federation_with_more_rounds_is_the_one_that_had_them_from_the_start(tmp_path, courier):
    hosted(tmp_path, file_of(1), courier)
    prepared = hosted(tmp_path, file_of(3), courier)
    assert len(prepared.changes) == 1
    assert largest(deployed(tmp_path / "host", courier.sites, file_of(3)), simulated(tmp_path, file_of(3))) == 0
    status = read_status(tmp_path / "host")
    assert (status["state"], status["round"], status["reason"]) == ("finished", 3, "")


@pytest.mark.slow
def test_a_site_that_has_not_agreed_to_more_rounds_does_none_of_them(tmp_path, courier):
    hosted(tmp_path, file_of(1), courier)
    courier.rejoins = lambda site: site != "b"
    hosted(tmp_path, file_of(2, deploy={"failures": 1, "wait": 30}), courier)
    absorbed = [set(line["absorbed"]) for line in checked_log(tmp_path / "host") if line["event"] == "absorb"]
    assert absorbed == [set("abcd"), set("acd")]
    assert "join again" in read_status(tmp_path / "host")["sites"]["b"]["reason"]


@pytest.mark.slow
def test_a_site_that_was_shut_out_is_not_waited_for(tmp_path, courier):
    hosted(tmp_path, file_of(1), courier)
    courier.rejoins = lambda site: site != "b"
    (tmp_path / "host" / "keys" / "b.pub").unlink()
    hosted(tmp_path, file_of(2, deploy={"wait": 3000}), courier)
    absorbed = [set(line["absorbed"]) for line in checked_log(tmp_path / "host") if line["event"] == "absorb"]
    assert absorbed == [set("abcd"), set("acd")]
    assert courier.clock.now < 3000
    assert read_status(tmp_path / "host")["reason"] == ""  # its final model is not missing either


@pytest.mark.slow
def test_a_host_waits_until_sites_have_joined_again_one_after_the_other(tmp_path, courier):
    hosted(tmp_path, file_of(1), courier)
    courier.rejoins, looks = lambda site: False, []

    def away(site):
        looks.append(site)
        if len(looks) in (12, 24, 36, 48):
            name = SITES[len(looks) // 12 - 1]
            prepare_site(tmp_path / name, tmp_path / "host" / "invitation.toml", name)
        return False

    courier.away = away
    hosted(tmp_path, file_of(2), courier)
    absorbed = [set(line["absorbed"]) for line in checked_log(tmp_path / "host") if line["event"] == "absorb"]
    assert absorbed == [set(SITES), set(SITES)]
    assert read_rejoining(tmp_path / "host") == []


@pytest.mark.slow
def test_a_site_that_joins_later_takes_part_from_then_on(tmp_path, courier):
    sites = courier.sites
    courier.sites = {site: sites[site] for site in THREE["sites"]}
    hosted(tmp_path, file_of(1, deploy=THREE), courier)
    before = Agreement.load(tmp_path / "host" / AGREED)
    courier.sites, file = sites, file_of(2)
    hosted(tmp_path, file, courier)
    after = Agreement.load(tmp_path / "host" / AGREED)
    assert after.format == before.format
    assert after.roster.entries[:3] == before.roster.entries
    assert [line["sites"] for line in checked_log(tmp_path / "host") if line["event"] == "opened"] == [
        [*"abc"],
        [*SITES],
    ]
    # The same, without messages and disks.
    members = {site: SiteMember(path, site, str(tmp_path / f"{site}.csv"))._ready() for site, path in sites.items()}
    state, states = None, {site: member.enrol() for site, member in members.items()}
    for t in range(2):
        agreed, names = (before, THREE["sites"]) if t < 1 else (after, list(SITES))
        blueprint = blueprint_of(file.experiment, agreed.format, len(names))
        serving = Serving(server_of(file.experiment, blueprint, agreed.roster), names)
        state, uploads = state or serving.start(), {}
        for site in names:
            parcel = serving.download(t, state, site)
            states[site], uploads[site] = members[site].work(t, parcel, states[site])
        state, left_out = serving.absorb(t, state, uploads)
        assert not left_out
    theirs = deployed(tmp_path / "host", sites, file)
    for site, mine in states.items():
        assert all(bool((theirs[f"{site}/{name}"] == x).all()) for name, x in flat(mine).items()), site


def flat(state):
    from stratafl.core.state import flatten

    return flatten(state)


@pytest.mark.parametrize(
    ("tables", "longer", "says"),
    [
        ({"algorithm": {"name": "scaffold"}}, file_of(2, algorithm={"name": "scaffold"}), "divides"),
        ({"train": {"schedule": "cosine"}}, file_of(9, deploy=THREE, train={"schedule": "cosine"}), r"\b2\b.*\b9\b"),
    ],
)
def test_an_extension_that_would_have_changed_what_is_done_is_refused(tmp_path, courier, tables, longer, says):
    courier.sites = {site: courier.sites[site] for site in THREE["sites"]}
    hosted(tmp_path, file_of(2, deploy=THREE, **tables), courier)
    before = (tmp_path / "host" / "federation.toml").read_bytes()
    with pytest.raises(RunError, match=says):
        prepare_host(tmp_path / "host", longer, PLACE)
    assert (tmp_path / "host" / "federation.toml").read_bytes() == before


def test_extensions_are_said_in_words():
    begun = with_tables(deploy={**THREE, "predict": ["d"]})
    more = with_tables(run={"rounds": 30}, deploy={"sites": [*THREE["sites"], "d", "e"], "predict": ["f"]})
    rounds, new, trains = extensions(begun, more)
    assert ("30" in rounds, new.endswith(": e, f"), trains.endswith(": d")) == (True, True, True)
    fewer, gone, predicts = extensions(more, begun)
    assert ("30" in fewer, gone.endswith(": e, f"), predicts.endswith(": d")) == (True, True, True)
    assert extensions(begun, begun) == []
    assert len(extensions(begun, with_tables(deploy={"sites": ["b", "a", "c"], "predict": ["d"]}))) == 1
    assert is_same_federation(begun, more)
    assert not is_same_federation(begun, with_tables(deploy={**THREE, "predict": ["d"]}, train={"lr": 1.0}))


@pytest.mark.slow
def test_what_no_site_has_agreed_to_can_be_taken_back(tmp_path, courier):
    """Such as a mistyped name: else the host would wait for that site for ever."""
    sites, mistyped = courier.sites, {"sites": [*"abc", "esat"]}
    courier.sites = {site: sites[site] for site in THREE["sites"]}
    hosted(tmp_path, file_of(1, deploy=THREE), courier)
    with pytest.raises(DeployError, match="'esat'"):
        hosted(tmp_path, file_of(300, deploy=mistyped), courier)
    prepared = hosted(tmp_path, file_of(2, deploy=THREE), courier)  # all have joined with its name
    assert len(prepared.changes) == 2
    courier.sites = sites
    hosted(tmp_path, file_of(3), courier)
    absorbed = [set(line["absorbed"]) for line in checked_log(tmp_path / "host") if line["event"] == "absorb"]
    assert absorbed == [set("abc"), set("abc"), set("abcd")]
    for wrong in (file_of(2), file_of(9, deploy=THREE), file_of(9, deploy={"sites": ["b", "a", "c", "d"]})):
        with pytest.raises(DeployError):
            prepare_host(tmp_path / "host", wrong, PLACE)


def test_an_invitation_that_gives_a_sites_number_to_another_is_refused(tmp_path, courier):
    courier.sites = {"a": courier.sites["a"]}
    hosted(tmp_path, file_of(1, deploy={"sites": ["a"]}), courier)
    invitation = prepare_host(tmp_path / "other", file_of(1, deploy={"sites": ["b", "a"]}), PLACE).invite(PLACE)
    written = (tmp_path / "host" / "invitation.toml").read_text().splitlines()
    tables = tomllib.loads(invitation.read_text())
    tables["invitation"] = tomllib.loads("\n".join(written))["invitation"]
    invitation.write_text(tomli_w.dumps(tables))
    before = (tmp_path / "a" / "federation.toml").read_bytes()
    with pytest.raises(DeployError, match="'a'"):
        prepare_site(tmp_path / "a", invitation, "a")
    assert (tmp_path / "a" / "federation.toml").read_bytes() == before


def test_a_new_site_whose_samples_do_not_fit_is_refused_and_the_others_keep_their_agreement(tmp_path, courier):
    sites = courier.sites
    courier.sites = {site: sites[site] for site in THREE["sites"]}
    hosted(tmp_path, file_of(1, deploy=THREE), courier)
    agreed = (tmp_path / "host" / AGREED).read_bytes()
    table = tmp_path / "d.csv"
    table.write_text(table.read_text().replace("p0", "q0"))
    courier.sites = sites
    with pytest.raises(Exception, match="'d'"):
        hosted(tmp_path, file_of(2), courier)
    assert (tmp_path / "host" / AGREED).read_bytes() == agreed
    assert json.loads(agreed)["clients"] == 3
