"""What a person is shown: nothing that steers the terminal, nothing without end, and one line for what is broken."""

import csv
import io
import json
import logging

import pytest
from cli_helpers import SMALL, TINY, checked_line
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stratafl.cli import display
from stratafl.cli.console import result_console, show_warnings, svg_picture
from stratafl.cli.display import Display
from stratafl.errors import DataError, UnknownNameError, printable, shown, unknown
from stratafl.report.page import in_script
from stratafl.report.report_tables import as_csv, escaped
from stratafl.runs.advancing import DisplayedRun

EVIL = "a\x1b[31m\x07b\x9b2Jc\u202ed\ne\r\x00"
PLAIN = "a\\x1b[31m\\x07b\\x9b2Jc\\u202ed\\x0ae\\x0d\\x00"


def test_a_name_without_what_steers():
    assert printable(EVIL) == PLAIN
    assert printable(EVIL, keep="\n") == PLAIN.replace("\\x0a", "\n")
    assert printable("Zoë 😀 नम\u200dस्ते 'x'") == "Zoë 😀 नम\u200dस्ते 'x'"
    assert printable("\ud800\u2028\u2066") == "\\ud800\\u2028\\u2066"


def test_a_name_of_any_length_is_short():
    assert shown("x" * 80) == "x" * 80
    assert len(shown("x" * 10_000)) == 80
    assert len(shown("\x1b" * 10_000)) == 80
    assert len(shown(10**5000)) <= 80


def test_errors_show_names_as_they_can_be_shown():
    assert str(DataError(f"client '{EVIL}'")) == f"client '{PLAIN}'"
    says = str(unknown("name", "y" * 10_000, ["z" * 10_000, EVIL]))
    assert len(says) < 500
    assert says.isprintable()
    assert isinstance(unknown("name", "a", []), UnknownNameError)


def test_no_console_passes_on_what_steers(capsys):
    table = Table(title=EVIL)
    table.add_column(EVIL)
    table.add_row(EVIL)
    table.add_row(Text(EVIL))
    for printed in (table, EVIL, Text(EVIL)):
        result_console().print(printed, markup=False) if isinstance(printed, str) else result_console().print(printed)
        out = capsys.readouterr().out
        assert "\\x1b" in out
        assert out.replace("\n", "").isprintable()
    drawn = svg_picture("p", table)
    assert "\x1b" not in drawn
    assert "\u202e" not in drawn


def test_reports_and_tables_in_csv_do_not_either():
    assert escaped(f"<b>{EVIL}") == f"&lt;b&gt;{PLAIN}"
    assert json.loads(in_script({EVIL: [EVIL]})) == {printable(EVIL, "\n"): [printable(EVIL, "\n")]}
    (row,) = csv.reader(io.StringIO(as_csv([EVIL, "=1+1"], [])))
    assert row == [PLAIN, "'=1+1"]


def test_clients_may_be_called_anything(strata, place):
    rows = [f'"{name}",{i % 2},{i}.5' for i, name in enumerate(["\x1b[31mred"] * 9 + ["\u202eevil"] * 9)]
    (place / "mine.csv").write_text("\n".join(["client,label,x", *rows]), encoding="utf-8")
    result = strata("data", "show", "--data", "mine.csv")
    assert result.code == 0, result.err
    assert "\\x1b[31" in result.out
    for text in (result.out, result.err):
        assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("setting", ["run.rounds", "train.epochs", "stop.patience", "data.clients", "train.batch"])
def test_numbers_that_nobody_can_mean_are_refused(refused, setting):
    for value in ("1" + "0" * 308, "1" + "0" * 5000, 10**9 + 1):
        line = refused("run", *TINY, "--set", f"{setting}={value}", says=setting)
        assert len(line) < 300


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--set", "train.lr=1" + "0" * 400), ("train.lr", "1e+30", "1000")),
        (("--set", "train.lr=1e308"), ("train.lr", "1e+30", "1e+308")),
        (("--seed", 2**63), f"run.seed must be at most {2**63 - 1:,}, not {2**63}"),
        (("--memory-limit", "9" * 400 + "GB"), ("run.memory_limit", "8GB")),
        (("--algorithm", "x" * 10_000), ("algorithm.name", "4,096", "10,000")),
        (("--model", "x" * 4000), "model.name"),
        (("--data", "x" * 4000), "data.name"),
        (("--set", "x" * 10_000), ("table.key=value", "train.lr=0.1")),
        (("--set", "algorithm." + "k" * 10_000 + "=1"), "4,096"),
    ],
)
def test_long_names_and_large_numbers_are_said_in_short(refused, given, says):
    assert len(refused("run", *given, says=says)) < 600


def test_the_number_of_seeds_has_a_bound(refused):
    for seeds in (10_001, 10**400):
        refused("compare", "--seeds", seeds, says=("1", "10,000", "10"))
        refused("reproduce", "fedper/fig11", "--seeds", seeds, says=("--seeds", "1", "10,000", "10"))
    refused("compare", "--seed", 2**63 - 1, "--seeds", 2, says="2")


@pytest.mark.parametrize("told", ["not json", "{}", "[1]", "[" * 100_000])
def test_a_broken_environment_variable_is_one_line(refused, monkeypatch, told):
    monkeypatch.setenv("STRATAFL_COMMAND", told)
    line = refused("run", *SMALL, "--rounds", 1, "--out", "mine", says="STRATAFL_COMMAND")
    assert len(line) < 300


@pytest.mark.parametrize(("name", "value"), [("RANK", "²"), ("WORLD_SIZE", "x" * 10_000), ("WORLD_SIZE", "9" * 5000)])
def test_broken_variables_of_torchrun_are_one_line(strata, monkeypatch, name, value):
    for each in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(each, "1")
    monkeypatch.setenv(name, value)
    line = checked_line(strata("run", *SMALL))
    assert line.startswith(f"{name} ")
    assert len(line) < 300


@pytest.mark.parametrize("text", ['we"ird/', "None/", "it's/", "a\\b/", '"q"/', "😀/", "1/"])
def test_what_is_typed_arrives_as_it_is(refused, text):
    refused("run", *TINY, "--data", text, says=("there is no data file or folder '", f"/{text[:-1]}'"))
    refused("data", "show", "--data", text, says=f"there is no data file or folder '{text[:-1]}'")


@pytest.mark.parametrize("text", ["None", "2020", "true", "1.0", "[x]", "nan"])
def test_a_column_may_look_like_a_number(strata, place, text):
    rows = [f"{i % 2},{i}.5" for i in range(12)]
    (place / "mine.csv").write_text("\n".join([f"{text},x", *rows]), encoding="utf-8")
    given = ("--set", f"data.label={text}", "--set", "data.clients=2", "--set", "data.partition=iid")
    result = strata("data", "show", "--data", "mine.csv", *given)
    assert result.code == 0, result.err


def test_warnings_wait_until_no_error_can_follow():
    console, log = Console(file=io.StringIO(), width=80), logging.getLogger("stratafl")
    with show_warnings(console) as release_warnings:
        log.warning("this waits")
        assert not console.file.getvalue()
        release_warnings()
        log.warning("this does not")
    assert console.file.getvalue() == "note: this waits\nnote: this does not\n"


@pytest.mark.parametrize(("every", "lines"), [(0.0, ["1 of 40 rounds", "3 of 40 rounds; fedavg 50.0%"]), (3600.0, [])])
def test_where_there_is_no_terminal_a_line_is_printed_now_and_then(monkeypatch, every, lines):
    monkeypatch.setattr(display, "EVERY", every)
    console, runs = Console(file=io.StringIO(), width=80), [DisplayedRun(name, 20, 0) for name in ("fedavg", "local")]
    with Display(console, runs) as shown:
        watch = shown.watch(runs[0])
        watch(1, [{"round": 1}])
        scored = [{"test.deployed.accuracy": accuracy, "test.deployed.loss": 1.0} for accuracy in (0.25, 0.5)]
        watch(3, [{"round": 1}, {"round": 2, **scored[0]}, {"round": 3, **scored[1]}])
    assert console.file.getvalue().splitlines() == lines
