"""Host and sites that agree, do their rounds and end with the simulation's tensors, without Flower."""

import shutil
from pathlib import Path

import pytest

from hosted import ACTING, ROUNDING, SITES, Local, deployed, largest, simulated, with_tables, write_file, write_samples
from stratafl.deploy.hosting import Hosting
from stratafl.deploy.member import Member
from stratafl.deploy.status import read_status
from stratafl.errors import DeployError
from stratafl.execute.exchange import read_site, state_form


class Clock:
    """Time passes only when somebody pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def prepared(folder: Path, **tables):
    file = with_tables(**tables)
    write_samples(folder)
    sites = {name: folder / name for name in SITES}
    for place in (folder / "host", *sites.values()):
        write_file(place, file)
    return file, Local(folder, sites), sites


def hosted(folder: Path, courier: Local) -> Hosting:
    clock = Clock()
    return Hosting(folder / "host", courier, clock=clock, pause=clock.pause)


@pytest.mark.parametrize("method", ACTING)
def test_host_and_sites_end_where_the_simulation_ends(tmp_path, method):
    file, courier, sites = prepared(tmp_path, algorithm={"name": method, **ACTING[method]})
    hosted(tmp_path, courier).run()
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) <= ROUNDING.get(method, 0)
    status = read_status(tmp_path / "host")
    assert (status["state"], status["round"], status["reason"]) == ("finished", 5, "")
    assert {site["state"] for site in status["sites"].values()} == {"has its model"}
    assert all(0 <= site["score"] <= 1 for site in status["sites"].values() if "score" in site)


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

    for count in (6, 10, 14):
        courier.away = killed_at(count)
        with pytest.raises(Killed):
            hosted(tmp_path, courier).run()
        assert read_status(tmp_path / "host")["state"] == "failed"
    courier.away = lambda site: False
    hosted(tmp_path, courier).run()
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) == 0


def test_a_host_whose_sites_do_not_come_stops_with_their_names_and_goes_on_later(tmp_path):
    _, courier, _ = prepared(tmp_path)
    courier.away = lambda site: site == "c"
    with pytest.raises(DeployError, match=r"have not introduced themselves: 'c' \(not connected\); nothing is lost"):
        hosted(tmp_path, courier).run()
    courier.away = lambda site: False
    hosted(tmp_path, courier).run()
    assert read_status(tmp_path / "host")["state"] == "finished"


def test_a_site_that_is_gone_is_done_without_set_aside_and_said(tmp_path):
    _, courier, _ = prepared(tmp_path, run={"participation": 1.0})
    courier.away = lambda site: site == "b" and ("round", "b") in courier.carried
    hosted(tmp_path, courier).run()
    status = read_status(tmp_path / "host")
    assert status["state"] == "finished"
    assert status["sites"]["b"]["state"] in ("set aside", "not connected")
    assert "without its last model: b" in status["reason"]
    assert [site for kind, site in courier.carried if kind == "round"].count("b") == 1


def test_a_site_that_only_predicts_gets_a_model_and_trains_nothing(tmp_path):
    file, courier, sites = prepared(tmp_path, deploy={"predict": ["e"]})
    sites["e"] = courier.sites["e"] = tmp_path / "e"
    write_file(tmp_path / "e", file)
    shutil.copy(tmp_path / "a.csv", tmp_path / "e.csv")
    hosted(tmp_path, courier).run()
    status = read_status(tmp_path / "host")
    assert status["sites"]["e"]["state"] == "has its model"
    assert [kind for kind, site in courier.carried if site == "e"] == ["introduce", "agree", "round"]
    member = Member(tmp_path / "e", "e", str(tmp_path / "e.csv"))
    store = read_site(tmp_path / "e" / "state", "test", "e", state_form(member._ready().enrol()))
    assert store.current() is None
    site = member._ready().site
    rows = site.deployed(5, None, store.delivered())
    assert set(rows) == set(site.setup.layout.specs)
    assert 0 < float(site.scores(5, rows, "test").accuracy) <= 1


def test_a_site_that_comes_back_after_it_was_set_aside_takes_part_again(tmp_path):
    _, courier, _ = prepared(tmp_path, run={"participation": 1.0, "rounds": 8}, deploy={"failures": 2})
    rounds = lambda: [site for kind, site in courier.carried if kind == "round"]  # noqa: E731
    courier.away = lambda site: site == "b" and 1 <= rounds().count("a") < 5
    hosted(tmp_path, courier).run()
    status = read_status(tmp_path / "host")
    assert (status["state"], status["reason"]) == ("finished", "")
    assert status["sites"]["b"]["state"] == "has its model"
    assert rounds().count("b") == 1 + 3 + 1  # the first round, the last ones, and its model


def test_a_federation_that_loses_too_many_sites_stops_and_can_be_resumed(tmp_path):
    _, courier, _ = prepared(tmp_path, run={"participation": 1.0}, deploy={"least": 3})
    courier.away = lambda site: site in "bc" and ("round", site) in courier.carried
    with pytest.raises(DeployError, match=r"round 2 has 2 of 3 uploads: 'b' \(not connected\), 'c' \(not connected\)"):
        hosted(tmp_path, courier).run()
    courier.away = lambda site: False
    hosted(tmp_path, courier).run()
    assert read_status(tmp_path / "host")["round"] == 5
