"""Protocols: defaults that every explicit setting goes before, and the number that a run is ranked by."""

import pytest

from stratafl.algorithms import fedavg
from stratafl.config.experiment import Experiment, from_tables, load_experiment, to_tables, with_settings, with_values
from stratafl.config.protocols import PROTOCOLS
from stratafl.config.setting_tables import DataTable, EvaluateTable
from stratafl.errors import UnknownNameError
from stratafl.execute.rounds import clip_of, limit_of
from stratafl.runs.summary import counting, selected_score

LINES = [
    {"round": 1, "test.received.accuracy": 0.5, "test.received.client_accuracy": 0.4, "test.deployed.accuracy": 0.2},
    {"round": 2, "test.received.accuracy": 0.3, "test.received.client_accuracy": 0.6, "test.deployed.accuracy": 0.9},
    {"round": 3, "test.received.accuracy": 0.1, "test.received.client_accuracy": 0.2, "test.deployed.accuracy": 0.8},
]
VALIDATED = [
    {**line, "validation.deployed.loss": 1.0, "validation.deployed.accuracy": v}
    for line, v in zip(LINES, (0.1, 0.3, 0.7), strict=True)
]


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("method", ["fedavg", "flayer"])
def test_every_protocol_is_a_configuration_for_every_method(name, method):
    made = from_tables({"run": {"protocol": name}, "algorithm": {"name": method}})
    assert made.run.protocol == name
    assert from_tables(to_tables(made)) == made


@pytest.mark.parametrize("name", sorted({*PROTOCOLS} - {"clean"}))
def test_published_protocols_leave_out_and_shorten_no_update(name):
    made = from_tables({"run": {"protocol": name}})
    limit = limit_of(made.server.norm_limit, fedavg())
    assert (limit, clip_of(made.server.norm_clip, limit)) == (None, None)


def test_a_protocol_gives_defaults_and_anything_said_goes_before():
    made = from_tables({"run": {"protocol": "pfllib"}, "data": {"validation": 0.2}})
    assert (made.run.buffers, made.train.drop_last, made.evaluate.stage) == ("local", True, "received")
    assert made.data.validation == 0.2


def test_a_protocol_of_the_command_leaves_what_a_file_says():
    file = from_tables({"train": {"batch": 7}})
    made = with_settings(file, ["train.lr=0.3", "run.protocol=fl-bench"])
    assert (made.train.batch, made.train.lr, made.evaluate.stage) == (7, 0.3, "trained")
    assert with_settings(Experiment(), ["run.protocol=fl-bench"]).train.batch == 32
    assert with_settings(Experiment(), ["run.protocol=fl-bench", "train.batch=10"]).train.batch == 10


def test_a_protocol_in_place_of_another_leaves_nothing_of_it():
    file = from_tables({"run": {"protocol": "flayer-official"}, "algorithm": {"name": "flayer"}, "train": {"batch": 7}})
    made = with_settings(file, ["run.protocol=clean"])
    assert made == from_tables({"algorithm": {"name": "flayer"}, "train": {"batch": 7}})
    assert with_settings(made, ["run.protocol=flayer-official"]) == file


def test_the_authors_code_is_of_their_method_only():
    official = {"run": {"protocol": "flayer-official"}}
    assert from_tables({**official, "algorithm": {"name": "flayer"}}).algorithm.options == {"preset": "official"}
    assert from_tables({**official, "algorithm": {"name": "fedavg"}}).algorithm.options == {}


def test_an_unknown_protocol_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="pfllib"):
        with_settings(Experiment(), ["run.protocol=pfllb"])


@pytest.mark.parametrize(
    ("lines", "keys", "round_", "expected"),
    [
        (LINES, {"select": "best", "stage": "received"}, 1, 0.5),
        (LINES, {"select": "best"}, 2, 0.9),
        (LINES, {"select": "last"}, 3, 0.8),
        (LINES, {"select": "last", "stage": "received", "average": "clients"}, 3, 0.2),
        (LINES, {"select": "best", "stage": "received", "average": "clients"}, 2, 0.6),
        (LINES, {}, 3, 0.8),  # without validation, the last
        (VALIDATED, {}, 3, 0.8),
        (LINES, {"stage": "global"}, 3, None),
    ],
)
def test_the_score_by_hand(lines, keys, round_, expected):
    assert counting(lines, EvaluateTable(**keys))["round"] == round_
    assert selected_score(lines, EvaluateTable(**keys)) == expected


def test_a_data_set_gives_defaults_that_protocol_and_settings_go_before():
    assert (from_tables({}).train.lr, from_tables({}).data.alpha) == (0.1, 0.3)
    assert from_tables({"data": {"alpha": 0.1}}).data.alpha == 0.1
    assert from_tables({"data": {"partition": "iid"}}).data.alpha == DataTable().alpha  # which no such partition has
    assert from_tables({"run": {"protocol": "fedper"}}).train.lr == 0.01
    other = with_values(from_tables({}), {"data.name": "mnist"})
    assert (other.train.lr, other.data.alpha) == (0.05, 0.1)
    assert with_values(from_tables({"train": {"lr": 0.2}}), {"data.name": "mnist"}).train.lr == 0.2
    assert with_values(other, {"data.name": "digits"}) == from_tables({})


def test_other_data_of_the_command_leaves_what_a_file_sets(tmp_path):
    """Also where that is the default of the data in the file: the file sets it, so it is no default."""
    (file := tmp_path / "run.toml").write_text("train.lr = 0.1\ndata.alpha = 0.3\ntrain.batch = 10\n")
    for settings in ({"data.name": "mnist"}, {"data.name": "mnist", "run.protocol": "fl-bench"}):
        made = with_values(load_experiment(file, settings), settings)
        assert (made.data.name, made.train.lr, made.data.alpha, made.train.batch) == ("mnist", 0.1, 0.3, 10)
    (empty := tmp_path / "empty.toml").write_text("")
    made = with_values(load_experiment(empty, settings), settings)
    assert (made.train.lr, made.data.alpha, made.train.batch) == (0.05, 0.1, 32)
