"""`strata reproduce --list` and `--all`: results in docs/results, verdicts of own runs, minutes that are left."""

import json
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stratafl.cli import recipe_list, reproduce_command
from stratafl.cli.command_options import ReproduceOptions
from stratafl.errors import RecordError, UnknownNameError
from stratafl.recipes import parse_recipe, recorded
from stratafl.recipes.recorded import ListedRecipe, RecipeResult, counted_signs, every_recipe, own_results

ROOT = Path(__file__).parents[2]
TWO_COLUMNS = {
    "columns": [{"name": "left"}, {"name": "right"}],
    "rows": [{"name": "A"}, {"name": "B", "columns": ["left"]}, {"name": "C", "missing": "c"}],
    "scales": {"short": {"seeds": 2, "minutes": 12.0}, "headline": {"columns": ["right"], "minutes": 5.0}},
}


def test_the_record_in_the_package_is_that_of_the_pages():
    made = runpy.run_path(str(ROOT / "docs/tools/results.py"))
    assert made["TARGET"].read_text("utf-8") == made["results_file"](), "run docs/tools/results.py"


def test_a_page_gives_its_verdicts_its_rows_and_its_seeds():
    pages = {each.page: each for each in recorded.recorded_results()}
    page = pages["docs/results/headline/flayer-table3.md"]  # where verdicts about seconds do not count
    assert (page.recipe, page.scale, page.seeds, page.rows) == ("flayer/table3", "headline", 3, {"CIFAR-100, CNN": 8})
    assert (page.hold, page.fail, page.untold, page.unjudged) == (2, 2, 0, 12 + 8)  # eight claims came later
    lag = pages["docs/results/short/fedlag-table1.md"]  # the best of one rival of ten; 37 claims, of which it has five
    assert (lag.hold, lag.fail, lag.untold, lag.unjudged) == (2, 2, 1, 32)
    small = pages["docs/results/short/fedlag-table8.md"]
    assert (small.hold, small.fail, small.unjudged, small.rows) == (3, 5, 1 + 2, {"MNIST": 6})


def test_minutes_left_are_those_of_rows_columns_and_seeds_without_a_result():
    recipe = ListedRecipe("a/b", TWO_COLUMNS)
    assert recipe.rows("short") == {"left": 2, "right": 1}
    assert recipe.left("short", []) == 12
    one = RecipeResult("a/b", "short", "2026-11-19", seeds=2, rows={"left": 1})
    assert recipe.left("short", [one]) == pytest.approx(8)  # one of three cells
    assert recipe.left("short", [replace(one, seeds=1)]) == pytest.approx(10)  # half of its seeds
    assert recipe.left("short", [one, replace(one, rows={"left": 2, "right": 1, "other": 9})]) == 0
    for other in (replace(one, scale="headline"), replace(one, tuned=True), replace(one, recipe="a/c")):
        assert recipe.left("short", [other]) == 12


def test_columns_whose_data_cannot_be_obtained_cost_nothing():
    settings = [{"data.name": "emnist-digits"}, {"data.name": "mnist"}, {}]
    columns = [{"name": name, "settings": each} for name, each in zip("abc", settings, strict=True)]
    recipe = ListedRecipe("a/b", {**TWO_COLUMNS, "columns": columns, "rows": [{"name": "A"}]})
    assert (recipe.columns, recipe.obtainable, recipe.rows("short")) == (["a", "b", "c"], ["b", "c"], {"b": 1, "c": 1})
    assert ListedRecipe("a/b", {**recipe.table, "settings": {"data.name": "flickr-aes"}}).obtainable == ["b"]
    assert ListedRecipe("a/b", {**recipe.table, "columns": columns[:1]}).left("short", []) == 0


def test_verdicts_of_your_own_runs_are_counted(tmp_path):
    signs = [(True, True, False), (True, True, True), (False, True, True), (None, True, False), (None, False, False)]
    folder = tmp_path / "a-b-short-tuned"
    folder.mkdir()
    entries = [{"holds": holds, "measured": "1" * measured, "noise": noise} for holds, measured, noise in signs]
    (folder / "verdicts.json").write_text(json.dumps(entries))
    shutil.copytree(folder, tmp_path / "a-b-smoke")  # no evidence, so no line
    (own,) = own_results(tmp_path, "a/b")
    assert (own.scale, own.tuned, own.rows) == ("short", True, {})
    assert own == counted_signs(own, signs)
    assert (own.hold, own.fail, own.noise, own.untold, own.unjudged) == (2, 1, 2, 1, 1)
    older = [{key: value for key, value in entry.items() if key != "noise"} for entry in entries]
    (folder / "verdicts.json").write_text(json.dumps(older))
    assert (own_results(tmp_path, "a/b")[0].hold, own_results(tmp_path, "a/b")[0].noise) == (2, 0)
    for damaged in ("{", "[1]", '[{"holds": "yes", "measured": "1"}]'):
        (folder / "verdicts.json").write_text(damaged)
        assert own_results(tmp_path, "a/b")[0].hold == 0


def test_every_recipe_estimates_its_minutes():
    for recipe in every_recipe():
        assert recipe.minutes("headline") > recipe.minutes("short") > 0, recipe.name


def test_recipes_come_by_claims_per_minute_and_the_finished_ones_last(monkeypatch):
    few, many = ({**TWO_COLUMNS, "claims": [0] * count} for count in (3, 9))
    every = (ListedRecipe("a/few", few), ListedRecipe("a/many", many), ListedRecipe("a/done", many))
    monkeypatch.setattr(recorded, "every_recipe", lambda: every)
    done = RecipeResult("a/done", "short", "", seeds=2, rows={"left": 2, "right": 1})
    monkeypatch.setattr(recorded, "recorded_results", lambda: [done])
    assert recorded.by_claims_per_minute("short") == ["a/many", "a/few", "a/done"]


@pytest.mark.parametrize("width", [80, 130])
def test_the_list_has_a_line_for_each_result(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    recipe_list.print_recipes("flayer", Path("nowhere"), "smoke")
    lines = capsys.readouterr().out.splitlines()
    table2 = next(number for number, line in enumerate(lines) if "flayer/table2" in line)
    assert " headline " in lines[table2]
    assert (" 1/7 × 3 " in lines[table2 + 1]) == (width == 130)
    assert "…" not in "".join(lines)
    assert any("flayer/table5 " in line and "not run" in line for line in lines)
    assert not any("fedlag/" in line for line in lines)
    with pytest.raises(UnknownNameError, match="flayer/table2"):
        recipe_list.print_recipes("flayer/tabel2", Path("nowhere"), "smoke")
    with pytest.raises(UnknownNameError, match=r"'shorts'.*'short'"):
        recipe_list.print_recipes("flayer", Path("nowhere"), "shorts")


@pytest.mark.budget(1, "a process of its own")
def test_the_list_does_not_wait_for_torch():
    asked = "import sys\nfrom stratafl.cli.app import app\napp(['reproduce', '--list'], standalone_mode=False)\n"
    run = subprocess.run([sys.executable, "-c", f"{asked}sys.exit('torch' in sys.modules)"], capture_output=True)
    assert run.returncode == 0, run.stderr


ONE_ROW = """
title = "A table"
columns = [{ name = "here", settings = { "data.clients" = 3, "model.hidden" = [4] } }]
rows = [{ name = "FedAvg", settings = { "algorithm.name" = "fedavg" } }]
[scales.smoke]
settings = { "run.rounds" = 1 }
[[claims]]
says = "above nothing"
kind = "over"
row = "FedAvg"
limit = 0.0
"""


@pytest.mark.budget(1, "two calls of the command")
def test_all_recipes_run_once_and_end_with_a_line_each(tmp_path, monkeypatch, capsys):
    texts = {"a/first": ONE_ROW, "a/second": ONE_ROW.replace("A table", "Another")}
    monkeypatch.setattr(reproduce_command, "by_claims_per_minute", lambda scale: list(texts))
    monkeypatch.setattr(reproduce_command, "recipes", lambda name: [parse_recipe(name, texts[name])])
    monkeypatch.setattr(reproduce_command, "write_report_if_possible", lambda *_: None)
    options = ReproduceOptions(every=True, out=tmp_path)
    for _ in range(2):  # the second continues, which here is nothing
        assert reproduce_command.reproduce_tables(None, options) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition(": ")[0] for line in lines] == list(texts)
        assert all("1 of 1 run; 1 of 1 claim holds" in line for line in lines)
    assert len(list((tmp_path / "runs").iterdir())) == 1  # which both share
    assert (tmp_path / "a-second-smoke" / "result.md").exists()


@pytest.mark.parametrize(
    ("name", "options"),
    [(None, {}), ("flayer", {"every": True}), (None, {"every": True, "rows": "FedAvg"})],
)
def test_what_to_run_is_one_name_or_all(name, options):
    with pytest.raises(RecordError):
        reproduce_command.reproduce_tables(name, ReproduceOptions(**options))
