"""Configurations carry a format number: older ones are read as what they mean today, newer ones refused in one line."""

import tomllib

import pytest
import tomli_w

from stratafl.config.experiment import Experiment, from_stored, load_experiment, to_tables, with_settings
from stratafl.config.migrations import (
    FORMAT,
    GROUPS_BY_CLIENTS,
    IMAGES_BY_THEIR_OWN,
    OWN_COLUMNS,
    USUALLY_LIMITED,
    USUALLY_SHORTENED,
    method_digest_compares,
    migrate,
    with_format,
)
from stratafl.errors import RecordError
from wording import mentions

OLD = '[run]\nmemory = 1000\nrounds = 3\n[data]\nname = "mnist"\nnewcomers = 2\nsplit = "random"\n'
TODAY = with_settings(
    Experiment(),
    ["data.name=mnist", "run.memory_limit=1000", "run.rounds=3", "data.new_clients=2", "data.split=random"],
)


def written(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("number", ["", "format = 1\n", "format = 2\n", f"format = {FORMAT}\n"])
@pytest.mark.parametrize("text", [OLD, OLD.replace("memory", "memory_limit").replace("newcomers", "new_clients")])
def test_old_and_new_keys_are_read(tmp_path, number, text):
    # When tables were not standardised by default, updates had no limit, and all clients were evaluated.
    before = with_settings(
        TODAY, ["data.normalise=images", "server.norm_limit=0", "server.norm_clip=0", "evaluate.clients=0"]
    )
    old = number in ("format = 1\n", "format = 2\n")
    assert load_experiment(written(tmp_path, number + text)) == (before if old else TODAY)
    stored = from_stored(tomllib.loads(number + text))  # of a run that knew neither metrics nor ties
    assert stored == with_settings(
        before if old or not number else TODAY, ["evaluate.metric=plain", "evaluate.ties=first"]
    )


@pytest.mark.parametrize(
    ("number", "normalise", "means"),
    [
        (OWN_COLUMNS - 1, "auto", "images"),
        (OWN_COLUMNS - 1, "columns", "pooled"),
        (OWN_COLUMNS - 1, "half", "half"),
        (OWN_COLUMNS, "auto", "former"),
        (IMAGES_BY_THEIR_OWN, "auto", "auto"),
        (OWN_COLUMNS, "columns", "columns"),
    ],
)
def test_a_table_of_an_older_run_is_scaled_as_it_was(number, normalise, means):
    assert from_stored({"format": number, "data": {"normalise": normalise}}).data.normalise == means


@pytest.mark.parametrize(
    ("number", "options", "groups"), [(5, {}, 4), (5, {"groups": 7}, 7), (GROUPS_BY_CLIENTS, {}, None)]
)
def test_fedalp_has_as_many_groups_as_its_format_had(number, options, groups):
    read = from_stored({"format": number, "algorithm": {"name": "fedalp", **options}})
    assert read.algorithm.options.get("groups") == groups
    assert not from_stored({"format": number, "algorithm": {"name": "ifca"}}).algorithm.options


@pytest.mark.parametrize(
    ("number", "server", "limit"),
    [(USUALLY_LIMITED - 1, {}, 0), (USUALLY_LIMITED - 1, {"norm_limit": 7.0}, 7), (USUALLY_LIMITED, {}, None)],
)
def test_the_length_of_updates_is_limited_as_it_was(number, server, limit):
    assert from_stored({"format": number, "server": server}).server.norm_limit == limit
    assert migrate({"format": number, "server": server}, deployed=True)["server"] == {**server, "norm_clip": 0}
    for deployed in (False, True):
        assert migrate({"format": USUALLY_SHORTENED, "server": server}, deployed=deployed)["server"] == server


@pytest.mark.parametrize(
    ("method", "number", "compares"),
    [
        ("fedavg", 2, False),
        ("fedavg", 3, True),
        ("fedprior", 7, False),
        ("fedprior+flayer", 7, False),
        ("fedprior + flayer", 7, False),
        ("fedprior", 8, True),
    ],
)
def test_the_digest_of_a_method_is_compared_since_its_record_is_todays(method, number, compares):
    assert method_digest_compares(method, number) is compares


def test_what_is_written_is_read(tmp_path):
    text = tomli_w.dumps(with_format(to_tables(TODAY)))
    assert text.startswith(f"format = {FORMAT}\n")
    assert load_experiment(written(tmp_path, text)) == TODAY


def test_a_newer_format_is_refused(tmp_path):
    path = written(tmp_path, f"format = {FORMAT + 1}\n[surprise]\nx = 1\n")
    with pytest.raises(RecordError) as error:
        load_experiment(path)
    assert mentions(str(error.value), f"'{path}'", FORMAT + 1, FORMAT)


@pytest.mark.parametrize("number", [0, -1, True, "3", 2.0, [1]])
def test_what_is_no_format_is_refused(number):
    with pytest.raises(RecordError, match=f"format .*1 to {FORMAT}"):
        migrate({"format": number})


def test_a_key_under_both_names_is_refused_as_unknown():
    with pytest.raises(Exception, match=r"\[run\] 'memory'"):
        from_stored({"run": {"memory": 1, "memory_limit": 2}})
