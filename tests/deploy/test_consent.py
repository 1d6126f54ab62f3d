"""A site says what leaves it before it joins, and joins only if its owner agrees."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from hosted import Joined, with_tables, write_file, write_samples
from stratafl.algorithms.declaration import METHODS
from stratafl.cli import main as strata
from stratafl.data.preprocessing import Scaling
from stratafl.deploy.consent import CONSENT, data_doubts, has_consent, keep_consent, what_leaves_site
from stratafl.deploy.folders import prepare_host
from stratafl.deploy.host import HostAddress
from stratafl.deploy.member import SiteMember
from stratafl.errors import DataError, WireError
from stratafl.policies.accountant import epsilon_of


@pytest.fixture
def join(tmp_path, monkeypatch, capsys):
    """`strata join` of site a; the answer to its question, or no terminal; its exit code and what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stratafl.cli.host_command.SiteProcesses", Joined)
    write_samples(tmp_path)
    place = HostAddress("127.0.0.1", 9443)
    invitation = prepare_host(tmp_path / "host", with_tables(), place).invite(place)

    def called(*options, answer=None):
        def confirm(*_, **__):
            assert answer is not None, "it asked"
            return answer

        monkeypatch.setattr("typer.confirm", confirm)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: answer is not None, raising=False)
        code = strata(["join", str(invitation), "--site", "a", "--data", "a.csv", *options])
        return code, capsys.readouterr().err

    return called


@pytest.mark.parametrize(("answer", "said"), [(None, "--yes"), (False, "strata: ")])
def test_without_consent_nothing_is_created(join, tmp_path, answer, said):
    before = sorted(tmp_path.rglob("*"))
    code, err = join(answer=answer)
    assert code == 2
    assert said in err.splitlines()[-1]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("options", "answer"), [(["--yes"], None), ([], True)])
def test_consent_is_asked_for_once(join, tmp_path, options, answer):
    code, err = join(*options, answer=answer)
    assert code == 130
    assert " theta" in err
    kept = json.loads((tmp_path / "sites/a" / CONSENT).read_text())
    assert all(line in err for line in kept["leaves"])
    code, err = join()  # again, without a terminal
    assert code == 130
    assert " theta" not in err


def test_the_public_key_is_copied_to_where_it_is_wanted_but_over_no_other_file(join, tmp_path):
    assert join("--yes", "--public-key", "mailed.pub")[0] == 130
    assert (tmp_path / "mailed.pub").read_bytes() == (tmp_path / "sites/a/a.pub").read_bytes()
    assert join("--public-key", "mailed.pub")[0] == 130
    code, err = join("--public-key", "a.csv")
    assert (code, "a.csv" in err) == (2, True)


def test_a_table_without_labels_is_answered_with_what_a_site_can_do(join, tmp_path):
    (tmp_path / "a.csv").write_text("p0,client\n1,x\n")
    code, err = join("--yes")
    assert code == 2
    assert "'label'" in err
    assert "data.client" not in err  # which is the host's


def test_consent_that_came_with_a_folder_is_asked_for_again(join, tmp_path):
    """Whoever sends a folder with an invitation could put the consent in, too."""
    assert join("--yes")[0] == 130
    assert join()[0] == 130
    (tmp_path / "sites").rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "sites", copy_function=shutil.copy2)
    code, err = join()
    assert code == 2
    assert "--yes" in err
    shutil.rmtree(tmp_path / "sites")
    (tmp_path / "moved").rename(tmp_path / "sites")  # the owner may move the folder
    assert join()[0] == 130


def test_consent_is_to_one_file_and_to_what_was_told(tmp_path):
    file, told = with_tables(), ["theta"]
    assert not has_consent(tmp_path, file, told, "host")
    keep_consent(tmp_path, file, told, "host")
    assert has_consent(tmp_path, with_tables(), told, "host")
    assert not has_consent(tmp_path, with_tables(run={"rounds": 6}), told, "host")
    assert not has_consent(tmp_path, file, [*told, "theta of another layer"], "host")
    (tmp_path / CONSENT).write_text("{")
    assert not has_consent(tmp_path, file, told, "host")


def test_what_leaves_a_site_is_what_its_method_sends(tmp_path):
    write_samples(tmp_path)

    def told(**tables):
        return what_leaves_site(with_tables(**tables), "a", str(tmp_path / "a.csv"))

    limits, once, score, *rest = told()
    assert [word in limits for word in ("5 rounds", "4 sites", "a, b, c, d")] == [True] * 3
    assert "8 columns" in once
    assert "accuracy" in score
    assert "(deploy.scores)" in score
    assert not any("(deploy.scores)" in line for line in told(deploy={"scores": False}))
    assert "site's samples (fc1)" in " ".join(rest)
    assert rest[-1].endswith(" fc")  # FedPer's head stays
    assert "(all layers)" in " ".join(told(algorithm={"name": "fedavg"}))
    assert told(algorithm={"name": "local"})[3].endswith(": nothing")
    predicts = {"sites": ["b", "c"], "predict": ["a"]}
    _, _, rounds, model = told(deploy=predicts)
    assert ": nothing" in rounds
    assert model.endswith(f": {METHODS['fedper'].new_client}")
    assert told(deploy=predicts, algorithm={"name": "fedavg+q8"})[-1].endswith("the global model")


def test_the_privacy_of_a_site_at_the_end_is_told_before_it_joins(tmp_path):
    write_samples(tmp_path)

    def told(**options):
        algorithm = {"name": "fedper+private", "noise": 4.0, **options}
        file = with_tables(algorithm=algorithm, run={"rounds": 6, "participation": 1.0})
        return what_leaves_site(file, "a", str(tmp_path / "a.csv"))[-1]

    assert f"6 rounds: every client has epsilon = {epsilon_of(4.0, 6, 1e-5):.3g} " in told()
    assert f"6 rounds: every client has epsilon = {epsilon_of(2.0, 6, 1e-5):.3g} " in told(dp="local")
    budget = epsilon_of(2.0, 3, 1e-5) * 1.001
    assert f"3 rounds: every client has epsilon = {epsilon_of(2.0, 3, 1e-5):.3g} " in told(dp="local", dp_budget=budget)


def test_weights_of_classes_may_name_one_that_the_site_lacks(tmp_path):
    write_samples(tmp_path)
    lines = [what_leaves_site(file, "a", str(tmp_path / "a.csv")) for file in (with_tables(), weighted("rare:9,0:1"))]
    assert lines[0] == lines[1]


def weighted(weights):
    file = with_tables()
    return replace(
        file, experiment=replace(file.experiment, train=replace(file.experiment.train, class_weight=weights))
    )


def test_columns_that_differ_much_in_size_are_doubted(tmp_path):
    write_samples(tmp_path)
    place = tmp_path / "a.csv"
    assert data_doubts(with_tables(), str(place)) == []
    head, *rows = place.read_text().splitlines()
    place.write_text("\n".join([head, *(f"{1000 * i}{row[row.index(',') :]}" for i, row in enumerate(rows)), ""]))
    (line,) = data_doubts(with_tables(data={"normalise": "none"}), str(place))
    assert "data.normalise = 'columns'" in line
    for way in ("auto", "columns"):
        assert data_doubts(with_tables(data={"normalise": way}), str(place)) == []


def introduced(tmp_path, file):
    """How its samples are preprocessed, as site a says."""
    write_file(tmp_path / "site", file)
    member = SiteMember(tmp_path / "site", "a", str(tmp_path / "a.npz"))
    return member.introduce({"federation": "test"})["format"]["preprocessing"]


def test_means_of_pixels_do_not_leave_a_site_with_its_introduction(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 3, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=pixels, y=np.arange(60) % 3)
    for told in (
        lambda file: what_leaves_site(file, "a", str(tmp_path / "a.npz")),
        lambda file: introduced(tmp_path, file),
    ):
        with pytest.raises(DataError, match=r"'channel'.*'half' or 'unit'"):
            told(with_tables(data={"normalise": "channel"}))
    assert introduced(tmp_path, with_tables(data={"normalise": "half"}))["scaling"]["mean"] == (0.5,)


@pytest.mark.parametrize("trains", [True, False])
def test_a_site_scales_its_pixels_as_its_own_file_says(tmp_path, trains):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 3, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=pixels, y=np.arange(60) % 3)
    write_file(tmp_path / "site", with_tables(data={"normalise": "half"}))
    member = SiteMember(tmp_path / "site", "a", str(tmp_path / "a.npz"))
    member.trains = trains
    agreed = member._own_format
    member._check_format(agreed)
    with pytest.raises(WireError):
        member._check_format(replace(agreed, preprocessing=replace(agreed.preprocessing, scaling=Scaling())))


def test_a_name_that_is_not_in_the_invitation_is_refused_before_anything_is_made(join, tmp_path, capsys):
    assert strata(["join", str(tmp_path / "host/invitation.toml"), "--site", "z", "--data", "a.csv", "--yes"]) == 2
    assert "'test' 'z'" in capsys.readouterr().err
    assert not (tmp_path / "sites").exists()
