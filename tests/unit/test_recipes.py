"""Recipes: every one that ships can be read and put together; what is wrong with one is said."""

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stratafl.algorithms import ALGORITHMS
from stratafl.cli import reproduce_command
from stratafl.cli.command_options import ReproduceOptions
from stratafl.config.assemble import algorithm_of, completed
from stratafl.config.experiment import Experiment, to_tables, with_settings, with_values
from stratafl.errors import BusyError, DataError, RecordError, RunError, UnknownNameError
from stratafl.recipes import SCALES, parse_recipe, recipe_names, recipes, reproduction
from stratafl.recipes.claims import MEASURES
from stratafl.recipes.reproduction import Reproduction, paper_measure, relative, run_name
from stratafl.recipes.result import legend, result_markdown, table_rows, write_result
from stratafl.recipes.verdicts import verdicts
from stratafl.report.outcome import Outcome
from stratafl.report.ranking import INCOMPARABLE
from stratafl.runs import Run
from stratafl.runs.json_files import Journal, read_lines

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = """
title = "A table"
protocol = "pfllib"
columns = [{ name = "small", settings = { "model.hidden" = [4] } }, { name = "large" }]
[settings]
"run.rounds" = 2
"data.clients" = 4
"data.partition" = "dirichlet"
"train.lr" = 0.1
"train.batch" = 40
[[rows]]
name = "FedAvg"
settings = { "algorithm.name" = "fedavg" }
printed = { small = 12.5 }
[[rows]]
name = "Prox"
settings = { "algorithm.name" = "fedprox", "algorithm.strength" = 0.5, "train.lr" = 0.2 }
[[rows]]
name = "Other"
missing = "other"
printed = { small = 99 }
[scales.smoke]
seeds = 2
columns = ["small"]
settings = { "run.rounds" = 1 }
[scales.headline]
seeds = 1
[[claims]]
says = "Prox is better"
kind = "above"
row = "Prox"
than = "FedAvg"
[[claims]]
says = "as printed"
kind = "printed"
row = "FedAvg"
within = 100.0
"""


# Methods that papers compare with and whose hyper-parameters they do not give.
RIVALS = {"apple", "ditto", "fedala", "fedamp", "fedas", "fedbabu", "fedcac", "fedcp", "feddbe", "fedexp", "fedfomo"}
RIVALS |= {"fedpac", "fedrod", "gpfl", "perfedavg", "pfedhn", "pfedme", "scaffold"}
LAG = {f"{host}+lag" for host in ("scaffold", "fedexp", "pfedme", "fedbabu", "fedrod", "fedpac")}
FLAYER = {f"{host}+flayer" for host in ("fedavg", "ditto", "fedamp", "fedper", "fedrep", "fedala")}


def test_every_method_of_a_recipe_is_in_the_catalogue():
    every = {row.settings["algorithm.name"] for name in recipe_names() for row in recipes(name)[0].runnable}
    for method in every:
        with_values(Experiment(), {"algorithm.name": method})


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_that_ships_has_every_scale_and_claims(name):
    (recipe,) = recipes(name)
    assert {"smoke", "short", "headline"} == set(recipe.scales) == set(SCALES)
    assert recipe.claims
    assert recipe.at("smoke").stand_in


def _tier(name, scale):
    if (name, scale) == ("pfedla/table3", "smoke"):
        return ()
    return pytest.mark.slow if scale == "headline" else pytest.mark.nightly


@pytest.mark.parametrize(
    ("name", "scale"),
    [pytest.param(name, scale, marks=_tier(name, scale)) for name in recipe_names() for scale in SCALES],
)
def test_every_recipe_that_ships_can_be_put_together_at_every_scale(name, scale):
    cells = recipes(name)[0].cells(scale, seeds=1)
    assert cells
    for cell in cells:
        method, experiment = algorithm_of(cell.experiment), cell.experiment
        before = getattr(method, "before", lambda rounds: 0)
        assert before(experiment.run.rounds) < experiment.run.rounds, cell.row
        if scale == "smoke":
            assert experiment.data.name == "digits"  # offline, as it ships
            parts = [phase.algorithm for phase in getattr(method, "phases", ())] or [method]
            tuned = any(part.tune for part in parts) and "official" not in experiment.algorithm.options.values()
            assert not tuned or experiment.evaluate.stage == "deployed", cell.row  # scored after it is tuned


def _plain(name):
    return re.sub(r"\W", "", name).lower()


@pytest.mark.parametrize("name", recipe_names())
def test_what_is_missing_is_not_in_the_catalogue_and_a_note_says_why(name):
    (recipe,) = recipes(name)
    for row in recipe.rows:
        if row.missing:
            assert not {_plain(row.missing), _plain(row.name)} & ALGORITHMS.keys(), f"{row.name} can be run now"
            assert any(note.startswith(f"{row.name} is left out: ") for note in recipe.notes)


def test_fedaf_is_the_only_method_that_is_missing():
    every = [row for name in recipe_names() for recipe in recipes(name) for row in recipe.rows]
    assert {row.missing for row in every if row.missing} == {"fedaf"}


BESIDE_THE_TABLE = "(so the text; "  # a claim of a paper that its own table contradicts says so


@pytest.mark.parametrize("name", recipe_names())
def test_the_papers_own_numbers_support_every_claim(name, tmp_path):
    """A claim that printed numbers contradict is a slip of ours, unless it says that the paper contradicts itself."""
    (recipe,) = recipes(name)
    made, columns = Reproduction(tmp_path, recipe, "headline"), [column.name for column in recipe.columns]
    rivals = {row.name for row in recipe.rows if not row.control}
    for claim in recipe.claims:
        printed = made.printed(claim.measure)
        numbers = {place: {0: value} for place, value in printed.items() if place[0] in rivals}
        wrong = [v for v in verdicts(claim, numbers, printed, columns) if v.holds is False]
        assert bool(wrong) == (BESIDE_THE_TABLE in claim.says), wrong or claim.says


@pytest.mark.parametrize("name", recipe_names())
def test_every_row_of_a_paper_has_a_claim(name):
    (recipe,) = recipes(name)
    claimed = {row for claim in recipe.claims for row in claim.names}
    rows = {row.name for row in recipe.runnable if not row.control}
    assert rows - claimed <= ({"FedBN"} if name in ("pfedla/table1", "pfedla/table2") else set())


@pytest.mark.parametrize("name", recipe_names())
def test_hyper_parameters_that_a_paper_does_not_give_are_defaults_and_a_note_says_so(name):
    (recipe,) = recipes(name)
    rivals = [row for row in recipe.runnable if row.settings.get("algorithm.name") in RIVALS]
    for row in rivals:
        assert {key for key in row.settings if key.startswith("algorithm.")} <= {"algorithm.name", "algorithm.fixed"}
    assert not rivals or "our default" in " ".join(recipe.notes)


def test_flayer_on_its_hosts_has_the_improvements_of_the_table():
    (recipe,) = recipes("flayer/table5_applied")
    printed = {row.name: value for row in recipe.rows for value in row.printed.values()}
    gains = {name: printed[f"{name} + FLAYER"] - value for name, value in printed.items() if "+" not in name}
    assert gains.pop("FedAvg") == pytest.approx(23.60)  # printed: 24.77
    assert sorted(gains.values()) == pytest.approx([4.90, 7.39, 8.87, 10.03, 11.97])
    (whole,) = recipes("flayer/table5")
    numbers = {row.name: row.printed["20 clients, Dir(0.1)"] for row in whole.rows}
    assert {name: numbers[name] for name in (*gains, "FedAvg")} == {name: printed[name] for name in (*gains, "FedAvg")}
    assert numbers["FLAYER"] == printed["FedAvg + FLAYER"]


@pytest.mark.slow
def test_recipes_with_the_same_experiment_share_it():
    def runs(name, *rows):
        (recipe,) = recipes(name)
        return {run_name(recipe.stated(row, column.name)) for row in rows for column in recipe.columns}

    methods = ("FedAvg", "FedPer", "FLAYER")
    assert runs("flayer/table5_applied", *methods) == runs("flayer/table1", *methods)
    assert runs("flayer/table5_applied", *methods) < runs("flayer/table5", *methods)
    assert len(runs("fedalp/table3", "FedAvg, IID")) == 2  # one for each model, whatever α is
    assert runs("fedalp/table3", "FedAvg, IID") < runs("fedalp/table2", "FedAvg, IID")


@pytest.mark.parametrize("name", ["flayer/table1", "flayer/table3"])
def test_relative_seconds_of_the_paper_are_quotients_of_its_numbers(name, tmp_path):
    made = Reproduction(tmp_path, recipes(name)[0], "headline")
    time, rounds, shown = (made.printed(measure) for measure in ("time", "rounds", "relative"))
    assert shown.keys() == time.keys()
    for (row, column), value in shown.items():
        one, usual = (time[each, column] / rounds[each, column] for each in (row, "FedAvg"))
        assert value == pytest.approx(one / usual, abs=0.011)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith("fedper/")])
def test_fedpers_clients_draw_their_own_personal_layers_as_its_algorithm_1_says(name):
    methods = [cell.experiment.algorithm for cell in recipes(name)[0].cells("headline", seeds=1)]
    assert {method.options["initial"] for method in methods if method.name == "fedper"} == {"own"}


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["short", "headline"])
@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith("fedalp/")])
def test_fedalps_warm_up_is_the_share_of_the_rounds_that_its_section_2_gives(name, scale):
    cells = [cell.experiment for cell in recipes(name)[0].cells(scale, seeds=1)]
    shares = {e.algorithm.options["warmup"] / e.run.rounds for e in cells if e.algorithm.name == "fedalp"}
    assert min(shares) >= 0.4
    assert max(shares) <= 0.7
    assert {e.train.epochs for e in cells} == {20 if scale == "headline" else 5}


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_recipes_among_the_examples_can_be_put_together(path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES.parent)
    (recipe,) = recipes(str(path))
    for scale in recipe.scales:
        made = {cell.row: algorithm_of(cell.experiment, trust=True) for cell in recipe.cells(scale, seeds=1)}
        assert len(set(map(repr, made.values()))) == len(recipe.rows)
        assert {name for name, method in made.items() if getattr(method, "leaks", None)} == {
            name for name in made if name.endswith("†")
        }


def test_settings_in_their_order():
    """Recipe, column, row, scale, command: the later goes before; the protocol gives what nobody says."""
    recipe = parse_recipe("a/b", TEXT)
    first, second = recipe.cells("smoke", {"data.clients": 3})[:2]
    assert (first.row, second.row, first.column) == ("FedAvg", "Prox", "small")
    assert (first.experiment.train.lr, second.experiment.train.lr) == (0.1, 0.2)
    assert (first.experiment.run.rounds, first.experiment.data.clients) == (1, 3)
    assert first.experiment.run.buffers == "local"
    assert dict(second.experiment.algorithm.options) == {"strength": 0.5}
    assert [c.seed for c in recipe.cells("smoke")] == [0, 0, 1, 1]
    assert [c.column for c in recipe.cells("headline")] == ["small", "small", "large", "large"]
    assert recipe.cells("headline")[0].experiment.run.rounds == 2


@pytest.mark.parametrize(
    ("name", "scale", "expected"),
    [
        ("fedper/fig2", "headline", {"train.lr": {0.01}}),  # the protocol's
        pytest.param(  # the protocol's, and a column's
            "pfedla/table1", None, {"train.lr": {0.01, 0.005}}, marks=pytest.mark.slow
        ),
        ("fedalp/table3", "smoke", {"data.alpha": {0.1, 0.5}}),  # the recipe's, on digits that stand in
    ],
)
def test_defaults_of_the_digits_replace_nothing_that_a_recipe_or_its_protocol_sets(name, scale, expected):
    """Every recipe passes through the digits, which are the default data and have defaults of their own."""
    (recipe,) = recipes(name)
    every = [recipe.stated(row.name, column.name) for row in recipe.runnable for column in recipe.columns]
    cells = [cell.experiment for cell in recipe.cells(scale, seeds=1)] if scale else every
    cells = [to_tables(experiment) for experiment in cells]
    for path, values in expected.items():
        table, _, key = path.partition(".")
        assert {cell[table][key] for cell in cells} == values


def test_other_data_of_the_command_leaves_what_a_recipe_sets():
    (recipe,) = recipes("fedper/fig2")
    smoke, other = (recipe.cells("smoke", more, seeds=1)[0] for more in ({}, {"data.name": "mnist"}))
    assert smoke.experiment.train == other.experiment.train


RICH = """
title = "A table"
protocol = "pfllib"
settings = { "data.partition" = "pfedla1", "data.samples" = 60, "run.rounds" = 2 }
[[columns]]
name = "large"
settings = { "model.name" = "resnet20", "model.blocks" = [2, 3, 4], "flayer.s" = 2, "fedper.personal" = "blocks:2" }
[[columns]]
name = "other"
smoke = { "data.alpha" = 0.3 }
[[rows]]
name = "FLAYER"
settings = { "algorithm.name" = "flayer" }
printed = { large = 50 }
also = { rounds = { large = 27, other = 30 } }
[[rows]]
name = "FLAYER, s = 1"
settings = { "algorithm.name" = "flayer", "algorithm.s" = 1, "algorithm.mask" = false }
columns = ["large"]
control = true
[[rows]]
name = "FedAvg"
settings = { "algorithm.name" = "fedavg" }
[scales.smoke]
settings = { "model.name" = "mlp", "data.partition" = "dirichlet" }
[scales.headline]
[[claims]]
says = "FLAYER is best"
kind = "best"
row = "FLAYER"
"""


def test_an_option_of_one_method_is_for_it_alone():
    found = {
        (c.row, c.column): dict(c.experiment.algorithm.options) for c in parse_recipe("a/b", RICH).cells("headline")
    }
    assert found["FLAYER", "large"] == {"s": 2}
    assert found["FLAYER, s = 1", "large"] == {"s": 1, "mask": False}  # the row goes before the column
    assert found["FedAvg", "large"] == found["FLAYER", "other"] == {}


def test_another_model_or_partition_leaves_options_behind():
    recipe = parse_recipe("a/b", RICH)
    full, smoke = (recipe.cells(scale)[0].experiment for scale in ("headline", "smoke"))
    assert (full.model.name, dict(full.model.options)) == ("resnet20", {"blocks": [2, 3, 4]})
    assert (smoke.model.name, dict(smoke.model.options)) == ("mlp", {})
    assert (dict(full.data.options), dict(smoke.data.options)) == ({"samples": 60}, {})


def test_an_option_of_a_part_of_a_combination_is_one_of_the_combination(monkeypatch):
    """`flayer.s` is for `fedper+flayer` as well, `lag.k` for `fedavg+lag` alone."""
    for name in ("fedper+flayer", "fedavg+lag"):
        monkeypatch.setitem(ALGORITHMS, name, ALGORITHMS["fedper"])
    both = RICH.replace('"flayer.s" = 2, ', '"flayer.s" = 2, "lag.k" = 3, ')
    more = [
        f'[[rows]]\nname = "{name}"\nsettings = {{ "algorithm.name" = "{name}" }}'
        for name in ("fedper+flayer", "fedavg+lag")
    ]
    recipe = parse_recipe("a/b", both.replace("[scales.smoke]", "\n".join([*more, "[scales.smoke]"])))
    found = {(c.row, c.column): dict(c.experiment.algorithm.options) for c in recipe.cells("headline")}
    assert found["fedper+flayer", "large"] == {"s": 2, "personal": "blocks:2"}
    assert found["fedavg+lag", "large"] == {"k": 3}
    assert found["FLAYER", "large"] == {"s": 2}
    assert found["FedAvg", "large"] == found["fedavg+lag", "other"] == {}


def test_columns_of_a_row_and_settings_of_smoke_alone():
    cells = {scale: parse_recipe("a/b", RICH).cells(scale) for scale in ("smoke", "headline")}
    assert [c.row for c in cells["headline"] if c.column == "other"] == ["FLAYER", "FedAvg"]
    assert [c.experiment.data.alpha for c in cells["smoke"] if c.column == "other"] == [0.3, 0.3]
    assert [c.experiment.data.alpha for c in cells["headline"] if c.column == "other"] == [0.1, 0.1]


def test_numbers_of_several_measures(tmp_path):
    recipe = parse_recipe("a/b", RICH)
    made = Reproduction(tmp_path, recipe, "headline")
    assert recipe.measures == ["score", "rounds"]
    assert made.printed() == {("FLAYER", "large"): 50.0}
    assert made.printed("rounds") == {("FLAYER", "large"): 27.0, ("FLAYER", "other"): 30.0}
    text = result_markdown(made, [], "")
    assert "**rounds to convergence**" in text
    assert "| method | large: paper | large: here | other: here |" in text  # nothing is printed in the other column
    assert "| FLAYER, s = 1 |  | not run |  |" in text  # and of this row nothing is run


def test_a_control_is_nobodys_rival(tmp_path, monkeypatch):
    made = Reproduction(tmp_path, parse_recipe("a/b", RICH), "headline")
    scores = {"FLAYER": 50.0, "FLAYER, s = 1": 60.0, "FedAvg": 40.0}
    numbers = {(row, "large"): {0: score} for row, score in scores.items()}
    monkeypatch.setattr(Reproduction, "numbers", lambda *_: numbers)
    assert made.judged()[0].holds is True
    assert ";" not in made.judged()[0].reason


@pytest.mark.parametrize("row", ['name = "APPLE"\nmissing = "apple"', 'name = "APPLE"\nsettings = {}'])
def test_the_best_of_some_of_its_rivals_cannot_be_told(row, tmp_path, monkeypatch):
    """Whether the catalogue lacks a rival, nobody has run it yet, or `--rows` leaves it out."""
    recipe = parse_recipe("a/b", RICH.replace("[scales.smoke]", f"[[rows]]\n{row}\n[scales.smoke]"))
    numbers = {("FLAYER", "large"): {0: 50.0}, ("FedAvg", "large"): {0: 40.0}}
    monkeypatch.setattr(Reproduction, "numbers", lambda *_: numbers)
    for asked in (recipe, recipe.narrowed("FLAYER, FedAvg", "")):
        (told, *_) = Reproduction(tmp_path, asked, "headline").judged()
        assert told.holds is None
        assert told.measured
        assert "1 of 2" in told.reason
        assert told.reason.endswith(" APPLE")
    numbers["FedAvg", "large"] = {0: 60.0}  # one rival that is ahead is enough
    (told, *_) = Reproduction(tmp_path, recipe, "headline").judged()
    assert told.holds is False
    assert "1 of 2" in told.reason
    numbers["APPLE", "large"] = {0: 55.0}
    (told, *_) = Reproduction(tmp_path, recipe, "headline").judged()
    assert (told.holds, "APPLE" in told.reason) == (False, False)


def test_bytes_are_of_a_round(tmp_path):
    line = {"bytes.up": 2**20, "bytes.down": 2**21, "seconds.train": 1.0, "seconds.server": 0.0}
    lines = [line | {"round": t, "test.deployed.accuracy": 0.5} for t in (1, 2)]
    assert paper_measure(Outcome(tmp_path, to_tables(Experiment()), lines, clients=1), "bytes") == 3.0


def test_measures_of_a_run(reproduced):
    with reproduced.run(reproduced.cells[0]) as run:
        (line,) = list(run.rounds())
    sent = (line["bytes.up"] + line["bytes.down"]) / 2**20
    spent = line["seconds.train"] + line["seconds.server"]
    place = ("FedAvg", "small")  # whose received model is the server's
    assert reproduced.numbers("bytes")[place] == {0: pytest.approx(sent)}
    assert reproduced.numbers("seconds")[place] == {0: pytest.approx(spent)}
    assert reproduced.numbers("rounds") == reproduced.numbers("time") == {}  # at its best in its last round
    assert next(texts for row, texts in table_rows(reproduced, "rounds")) == ["improving"]
    assert reproduced.numbers("global")[place] == {0: pytest.approx(100 * line["test.received.accuracy"])}
    assert line["test.trained.accuracy"] != line["test.received.accuracy"]
    assert reproduced.numbers("trained")[place] == {0: pytest.approx(100 * line["test.trained.accuracy"])}


def test_a_learning_rate_is_tuned_with_a_seed_that_no_cell_has(tmp_path):
    made = Reproduction(tmp_path, replace(parse_recipe("a/b", TEXT), tuned=True), "smoke", seeds=3)
    search = made.search(made.cells[0])
    assert search.base.run.seed not in {cell.seed for cell in made.cells}
    assert search.base.data.validation > 0


def test_what_a_printed_number_may_be_as_well_is_set_beside_it_too(tmp_path):
    silent = parse_recipe("a/b", 'readings = ["trained"]\n' + TEXT)
    made = Reproduction(tmp_path, silent, "smoke")
    assert silent.measures == ["score", "trained"]
    assert made.printed("trained") == made.printed() != {}
    assert Reproduction(tmp_path, parse_recipe("a/b", TEXT), "smoke").printed("trained") == {}


def test_seconds_per_round_are_not_those_of_compiling(tmp_path):
    times = [{"seconds.train": train, "seconds.server": 0.5} for train in (60.0, 1.0, 1.2)]
    more = {"bytes.up": 0, "bytes.down": 0, "test.deployed.accuracy": 0.5}
    lines = [{"round": number, **each, **more} for number, each in enumerate(times, 1)]
    one = Outcome(tmp_path, to_tables(Experiment()), lines, clients=1)
    assert paper_measure(one, "seconds") == pytest.approx(1.7)


def test_relative_seconds_are_divided_by_fedavgs_with_the_same_seed_in_the_same_column():
    seconds = {
        ("FedAvg", "x"): {0: 2.0, 1: 4.0},
        ("Ditto", "x"): {0: 5.0, 1: 8.0, 2: 9.0},  # FedAvg was not run with seed 2
        ("Ditto", "y"): {0: 5.0},  # nor in this column
    }
    assert relative(seconds) == {("FedAvg", "x"): {0: 1.0, 1: 1.0}, ("Ditto", "x"): {0: 2.5, 1: 2.0}}


def test_relative_seconds_are_shown_where_a_claim_is_about_them(tmp_path, monkeypatch):
    claim = '[[claims]]\nsays = "Prox is as fast"\nkind = "close"\nrow = "Prox"\nthan = "FedAvg"\nwithin = 0.1\n'
    recipe = parse_recipe("a/b", TEXT + claim + 'measure = "relative"\n')
    assert recipe.measures == ["score", "relative"]
    made = Reproduction(tmp_path, recipe, "smoke", seeds=1)
    lines = [{"round": 1, "seconds.server": 0.0, "bytes.up": 0, "bytes.down": 0, "test.received.accuracy": 0.5}]
    config = to_tables(with_settings(Experiment(), ["run.protocol=pfllib"]))
    for cell, spent in zip(made.cells, (2.0, 3.0), strict=True):
        told = [line | {"seconds.train": spent} for line in lines]
        made.ended[made.place(cell)] = Outcome(tmp_path, config, told, clients=1)
    assert made.numbers("relative") == {("FedAvg", "small"): {0: 1.0}, ("Prox", "small"): {0: 1.5}}
    assert f"**{MEASURES['relative']}**" in result_markdown(made, [], "")
    assert (
        made.judged()[-1].reason == "Prox against FedAvg: +0.50 (one seed, no interval)"
    )  # costs per round: any number of rounds


def test_the_jump_is_where_the_warm_up_ends(tmp_path):
    """Evaluated every other round; 3 rounds of warm-up: from 30 % in round 2 to 80 % in round 4, and no further."""
    sent = {"bytes.up": 0, "bytes.down": 0, "seconds.train": 1.0, "seconds.server": 0.25}
    scores = {
        2: {"test.deployed.accuracy": 0.3},
        4: {"test.deployed.accuracy": 0.8},
        6: {"test.deployed.accuracy": 0.9},
    }
    lines = [{"round": t, **sent, **scores.get(t, {})} for t in range(1, 7)]
    config = to_tables(Experiment())
    warm = config | {"algorithm": {"name": "fedalp", "warmup": 3}}
    for tables, jump in ((warm, 50.0), (config, None), (config | {"algorithm": {"name": "fedalp", "warmup": 6}}, None)):
        one = Outcome(tmp_path, tables, lines, clients=1)
        assert paper_measure(one, "jump") == (jump and pytest.approx(jump))
        assert paper_measure(one, "server") == 0.25


def test_the_accuracy_of_new_clients(tmp_path):
    sent = {"bytes.up": 0, "bytes.down": 0, "seconds.train": 1.0, "seconds.server": 0.0, "round": 1}
    config = to_tables(with_settings(Experiment(), ["run.protocol=fedalp"]))
    line = {**sent, "test.received.client_accuracy": 0.5, "new.test.received.client_accuracy": 0.4}
    one = Outcome(tmp_path, config, [line], clients=1)
    assert paper_measure(one, "new") == pytest.approx(40.0)
    assert (
        paper_measure(Outcome(tmp_path, config, [line | {"new.test.received.client_accuracy": None}], 1), "new") is None
    )


def test_convergence_and_spread_follow_the_protocol(tmp_path):
    """pFedLA's: as received, mean over clients, last round; that is best in round 1, deployed models in round 2."""
    sent = {"bytes.up": 0, "bytes.down": 0, "seconds.train": 1.0, "seconds.server": 0.0}
    deployed = [{"test.deployed.accuracy": accuracy, "test.deployed.std": 0.5} for accuracy in (0.1, 0.9)]
    received = [{"test.received.client_accuracy": value, "test.received.std": 0.25} for value in (0.9, 0.8)]
    lines = [{"round": i + 1, **sent, **deployed[i], **received[i]} for i in range(2)]
    config = to_tables(with_settings(Experiment(), ["run.protocol=pfedla"]))
    one = Outcome(tmp_path, config, lines, clients=1)
    assert [paper_measure(one, name) for name in ("score", "rounds", "time", "spread")] == [80.0, 1.0, 1.0, 25.0]


@pytest.mark.parametrize(("best", "rounds"), [(9, 9.0), (10, None)])
def test_a_run_that_still_improves_has_not_converged(tmp_path, best, rounds):
    """In the last tenth of its rounds it is within half a point of its best for the first time, or not."""
    sent = {"bytes.up": 0, "bytes.down": 0, "seconds.train": 1.0, "seconds.server": 0.0}
    lines = [{"round": i, **sent, "test.deployed.accuracy": 0.9 if i >= best else 0.5} for i in range(1, 11)]
    one = Outcome(tmp_path, to_tables(Experiment()), lines, clients=1)
    assert (paper_measure(one, "rounds"), paper_measure(one, "time")) == (rounds, rounds)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('row = "Prox"', 'row = "Pro"', "Prox"),
        ('columns = ["small"]', 'columns = ["smal"]', "small"),
        ("small = 12.5", "smll = 12.5", "small"),
        ('title = "A table"', 'titel = "A table"', "title"),
        ("[scales.smoke]", "[scales.smoky]", "smoke"),
        ('kind = "above"', 'kind = "aboe"', "above"),
        ("seeds = 2", "seed = 2", "seeds"),
        ('title = "A table"', "title = ", "a/b"),
        ('title = "A table"', "", "needs 'title'"),
        ('title = "A table"', 'title = "A table"\nreadings = ["traind"]', "trained"),
        ('title = "A table"', 'title = ""', "'title' is empty"),
        ('title = "A table"', "title = 3", "title must be a text, not 3"),
        ('title = "A table"', 'title = "A table"\nnotes = "one"', "notes must be a list, not 'one'"),
        ("seeds = 2", "seeds = 0", "seeds must be at least 1, not 0"),
        ('{ name = "large" }', '{ name = "small" }', "2 columns have the same name 'small'"),
        ('name = "Prox"', 'name = "FedAvg"', "2 rows have the same name 'FedAvg'"),
        ('{ name = "large" }', "{ settings = {} }", r"\[columns\] needs 'name'"),
        ('{ name = "large" }', "3", r"\[columns\] must be a table, not 3"),
        ("{ small = 12.5 }", '{ small = "12.5" }', "printed.small must be a number, not '12.5'"),
        ("printed = { small = 12.5 }", "also = { spread = 3 }", "rows.spread must be a table, not 3"),
        ("printed = { small = 12.5 }", "columns = [3]", "rows.columns must be a text, not 3"),
        ('than = "FedAvg"', 'than = "FedAvg"\ncolumns = ["smal"]', "small"),
        ('name = "FedAvg"', 'name = "Average"\nalso = { relative = { small = 2 } }', "row"),
    ],
)
def test_a_mistake_is_named(before, after, words):
    with pytest.raises(RecordError, match=words):
        parse_recipe("a/b", TEXT.replace(before, after, 1))


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="flayer/table2"):
        recipes("flayer/tabel2")


def test_anybodys_own_recipe_is_a_file(tmp_path):
    (tmp_path / "mine.toml").write_text(TEXT)
    source = str(tmp_path / "mine.toml")
    assert recipes(source) == [replace(parse_recipe("own/mine", TEXT), source=source)]
    with pytest.raises(RecordError, match=r"'.*yours.toml' cannot be read"):
        recipes(str(tmp_path / "yours.toml"))


def test_recipes_of_one_name_in_two_files_do_not_share_a_folder(tmp_path):
    def begun(file):
        file.parent.mkdir(exist_ok=True)
        file.write_text(TEXT)
        Reproduction(tmp_path / "out", *recipes(str(file)), "smoke").begin()

    begun(tmp_path / "a" / "mine.toml")
    begun(tmp_path / "a" / "mine.toml")
    with pytest.raises(RunError, match=r"source .*a/mine.toml, not .*b/mine.toml"):
        begun(tmp_path / "b" / "mine.toml")


def test_an_option_of_a_method_goes_to_its_rows_alone():
    cells = parse_recipe("a/b", TEXT).cells("smoke", {"fedprox.strength": 0.25}, 1)
    assert [cell.experiment.algorithm.options for cell in cells] == [{}, {"strength": 0.25}]


def test_rows_that_are_fine_tuned_are_scored_at_the_rounds_that_matter_alone():
    def every(*more):
        rows = recipe.narrowed("FedLAG, Last-2, FedBABU", "").cells("short", *more, seeds=1)
        return {cell.row: cell.experiment.evaluate.every for cell in rows}

    (recipe,) = recipes("fedlag/fig4")
    assert every() == {"FedLAG": 3, "Last-2, FedBABU": 30}  # of 60 rounds
    assert set(every({"evaluate.every": 5}).values()) == {5}
    assert every({"run.rounds": 5})["Last-2, FedBABU"] == 3


def test_of_a_run_whose_last_round_counts_only_that_is_fine_tuned():
    tuned = TEXT.replace('protocol = "pfllib"', 'protocol = "fedper"').replace(
        '"algorithm.strength" = 0.5', '"evaluate.stage" = "deployed"'
    )
    recipe = parse_recipe("a/b", tuned.replace('settings = { "run.rounds" = 1 }', 'settings = { "run.rounds" = 7 }'))
    assert [cell.experiment.evaluate.every for cell in recipe.cells("smoke", seeds=1)] == [1, 7]
    assert recipe.stated("Prox", "small").evaluate.every == 1
    validated = parse_recipe("a/b", tuned.replace('protocol = "fedper"', 'protocol = "clean"'))
    assert [cell.experiment.evaluate.every for cell in validated.cells("smoke", seeds=1)] == [1, 1]


@pytest.mark.slow
def test_a_fine_tuned_row_has_two_scores_of_many_rounds(tmp_path):
    tuned = TEXT.replace('"fedprox", "algorithm.strength" = 0.5', '"fedavgft", "evaluate.stage" = "deployed"')
    recipe = parse_recipe("a/b", tuned.replace('settings = { "run.rounds" = 1 }', 'settings = { "run.rounds" = 5 }'))
    made = Reproduction(tmp_path, recipe, "smoke", seeds=1)
    for cell in made.cells:
        with made.run(cell) as run:
            list(run.rounds())
    lines = [read_lines(made.place(cell) / "rounds.jsonl") for cell in made.cells]
    scored = [[line["round"] for line in each if "test.deployed.accuracy" in line] for each in lines]
    assert scored == [[1, 2, 3, 4, 5], [3, 5]]
    best = max(line["test.deployed.accuracy"] for line in lines[1] if line["round"] in (3, 5))
    assert made.numbers()["Prox", "small"] == {0: 100 * best}


def test_experiments_that_are_the_same_share_a_run():
    recipe = parse_recipe("a/b", TEXT)
    first, second = recipe.cells("smoke")[:2]
    assert run_name(first.experiment) == run_name(recipe.cells("smoke")[0].experiment)
    assert run_name(first.experiment) != run_name(second.experiment)
    assert run_name(first.experiment).startswith("fedavg-digits-mlp-")


def test_runs_of_before_there_was_another_split_keep_their_names():
    usual = with_settings(Experiment(), ["run.protocol=pfllib", "evaluate.metric=plain"])
    told = to_tables(completed(usual))
    assert told["data"].pop("split") == "random"
    later = {key: told["evaluate"].pop(key) for key in ("metric", "better", "test")}
    assert later == {"metric": "plain", "better": "auto", "test": True}
    told["evaluate"]["average"] = "samples"
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    assert run_name(usual) == f"fedper-digits-mlp-{digest[:8]}"
    assert run_name(with_settings(usual, ["data.split=stratified"])) != run_name(usual)


def test_an_option_that_is_given_its_default_makes_no_other_run():
    usual = with_settings(Experiment(), ["algorithm.name=flayer"])
    assert run_name(usual) == run_name(with_settings(usual, ["algorithm.s=1"]))
    assert run_name(usual) != run_name(with_settings(usual, ["algorithm.s=2"]))


@pytest.fixture
def reproduced(tmp_path):
    made = Reproduction(tmp_path, parse_recipe("a/b", TEXT), "smoke", seeds=1)
    made.begin()
    return made


@pytest.mark.slow
def test_what_was_run_is_measured_and_what_was_not_is_listed(reproduced):
    first, second = reproduced.cells
    assert [v.holds for v in reproduced.judged()] == [None, None]
    with reproduced.run(first) as run:
        list(run.rounds())
    lines = [json.loads(line) for line in (reproduced.place(first) / "rounds.jsonl").read_text().splitlines()]
    assert reproduced.numbers() == {("FedAvg", "small"): {0: 100 * lines[0]["test.received.accuracy"]}}
    assert [v.holds for v in reproduced.judged()] == [None, True]
    cell, columns, methods = reproduced.not_run()
    assert cell == "Prox, small, seed 0: 0 of 1 round"
    assert columns.endswith(": large")
    assert methods.endswith(": Other")
    with reproduced.run(second) as run:
        assert isinstance(run, Run)


def test_the_result_says_all_of_it(reproduced):
    with reproduced.run(reproduced.cells[0]) as run:
        list(run.rounds())
    judged = write_result(reproduced, "strata reproduce a/b")
    text = (reproduced.folder / "result.md").read_text()
    assert text == result_markdown(reproduced, judged, "strata reproduce a/b")
    for words in ("12.50", "missing", "not run", "– not run", "✓ holds", "strata reproduce a/b", "protocol `pfllib`"):
        assert words in text
    assert "Columns: *small* `model.hidden=[4]`." in text
    assert "*Prox* `algorithm.name=fedprox`, `algorithm.strength=0.5`, `train.lr=0.2`." in text
    assert "Data: digits. Model: mlp." in text
    assert "; ".join(legend(reproduced)) in text
    table = json.loads((reproduced.folder / "verdicts.json").read_text())
    assert [(v["paper"], v["table"], v["claim"], v["holds"]) for v in table] == [
        ("a", "b: small", "Prox is better", None),
        ("a", "b: small", "as printed", True),
    ]


def test_the_result_says_which_settings_replaced_those_of_the_recipe(tmp_path):
    recipe = parse_recipe("a/b", TEXT)
    before, after = (
        next(line for line in result_markdown(made, [], "").splitlines() if line.startswith("Settings:"))
        for made in (Reproduction(tmp_path, recipe, "smoke", seeds=1, settings=s) for s in ({}, {"run.rounds": 7}))
    )
    assert "`run.rounds=7`" not in before
    assert after.count("`run.rounds=") == 1
    assert "`run.rounds=7`" in after


def test_claims_that_no_run_can_judge_are_listed_with_the_reason(tmp_path):
    more = '[[unjudged]]\nsays = "Layers differ"\nwhy = "layers are no number of a run"\n'
    made = Reproduction(tmp_path, parse_recipe("a/b", TEXT + more), "smoke", seeds=1)
    (claim,) = made.recipe.unjudged
    lines = result_markdown(made, [], "").splitlines()
    assert any(claim.says in line and claim.why in line for line in lines)
    with pytest.raises(RecordError, match="why"):
        parse_recipe("a/b", TEXT + '[[unjudged]]\nsays = "Layers differ"\n')


@pytest.mark.slow
def test_what_the_runs_took_is_written_whoever_asks_and_however_often(reproduced, monkeypatch):
    """A repeated call runs nothing: time and machine are those of the runs."""
    write_result(reproduced, "strata reproduce a/b")
    assert "— nothing was run; protocol" in (reproduced.folder / "result.md").read_text()
    for cell in reproduced.cells:
        with reproduced.run(cell) as run:
            list(run.rounds())
        place = reproduced.place(cell)
        (line,) = read_lines(place / "rounds.jsonl")
        told = line | {"seconds.train": 40.0, "seconds.server": 10.0, "seconds.evaluate": 25.0}
        shutil.rmtree(place / "checkpoint")  # which knows the checksum of the line that was there
        (place / "rounds.jsonl").unlink()
        Journal(place / "rounds.jsonl").append([told])
        about = json.loads((place / "environment.json").read_text()) | {"device": "cuda", "device_name": "H200"}
        (place / "environment.json").write_text(json.dumps(about))
    again = Reproduction(reproduced.root, reproduced.recipe, "smoke", seeds=1)
    text = result_markdown(again, [], "")
    assert "the runs took 2.5 min;" in text  # twice 75 seconds
    assert text.count("cuda, H200; ") == 1


def standing_in(text):
    digits = text.replace("[scales.smoke]", '[scales.smoke]\nstand_in = "digits stand in for CIFAR"')
    return parse_recipe("a/b", digits)


def test_what_stands_in_is_in_the_head_of_the_column(tmp_path, monkeypatch):
    made = Reproduction(tmp_path, standing_in(TEXT), "smoke", seeds=1)
    named = "digits, mlp in place of small"
    numbers = {(row, "small"): {0: score} for row, score in (("FedAvg", 40.0), ("Prox", 50.0))}
    monkeypatch.setattr(Reproduction, "numbers", lambda *_: numbers)
    judged = made.judged()
    assert [v.column for v in judged] == [named]
    monkeypatch.setattr(Reproduction, "numbers", lambda *_: {})
    assert [v.column for v in made.judged()] == ["small"]  # nothing stood in where nothing was run
    monkeypatch.setattr(Reproduction, "numbers", lambda *_: numbers)
    text = result_markdown(made, judged, "")
    assert f"| method | {named}: here |" in text  # no number of the paper beside those of other data
    assert "12.50" not in text
    assert text.splitlines()[2] == f"**{made.no_evidence}**"
    assert f"| Prox is better | {named} |" in text
    assert judged[0].entry["table"] == f"b: {named}"
    table = reproduce_command._table(made, "score")
    assert [str(column.header) for column in table.columns][1:] == [
        "digits, mlp\nin place of small\nhere",
    ]


def test_fewer_rounds_than_the_paper_has_are_part_of_the_reason(tmp_path, monkeypatch):
    recipe = parse_recipe("a/b", TEXT)
    monkeypatch.setattr(Reproduction, "numbers", lambda *_: {("FedAvg", "small"): {0: 10.0}})
    assert Reproduction(tmp_path, recipe, "smoke").shorter() == {"small": "1 round in place of 2"}
    assert Reproduction(tmp_path, recipe, "headline").shorter() == {}
    assert Reproduction(tmp_path, recipe, "headline", {"run.rounds": 3}).shorter()["large"] == "3 rounds in place of 2"
    assert Reproduction(tmp_path, standing_in(TEXT), "smoke").shorter() == {}  # no number compares as it is
    printed = Reproduction(tmp_path, recipe, "smoke").judged()[1]
    assert printed.reason.endswith(" -2.5 (one seed, no interval); 1 round in place of 2")
    other = Reproduction(tmp_path, recipe, "smoke", {"train.epochs": 3, "data.clients": 2}).shorter()["small"]
    assert other == "1 round in place of 2, 3 epochs in place of 1, 2 clients in place of 4"


def test_fewer_seeds_than_the_paper_has_are_part_of_the_reason(tmp_path, monkeypatch):
    recipe = parse_recipe("a/b", TEXT.replace("title", "paper_seeds = 2\ntitle"))
    numbers = {("FedAvg", "small"): {0: 10.0, 1: 10.5}, ("Prox", "small"): {0: 20.0}}
    monkeypatch.setattr(Reproduction, "numbers", lambda *_: numbers)
    above, printed = (verdict.reason for verdict in Reproduction(tmp_path, recipe, "smoke").judged())
    assert above.endswith("1 round in place of 2, 1 seed in place of 2")
    assert printed.endswith("1 round in place of 2")  # FedAvg has both
    assert not any("seed in" in v.reason for v in Reproduction(tmp_path, parse_recipe("a/b", TEXT), "smoke").judged())


@pytest.mark.parametrize("name", recipe_names())
def test_headline_runs_what_a_paper_states_on_some_columns(name):
    (recipe,) = recipes(name)
    headline = recipe.at("headline")
    assert set(headline.settings) <= {"run.precision", "evaluate.every", "data.owners"}
    assert recipe.paper_seeds in (None, headline.seeds)
    assert len(recipe.columns_at("headline")) <= 2


def test_the_scale_that_headline_replaced_is_refused_in_one_line(tmp_path):
    (recipe,) = recipes("flayer/table4")
    with pytest.raises(RecordError, match="headline"):
        Reproduction(tmp_path, recipe, "full").cells  # noqa: B018
    with pytest.raises(RecordError, match="headline"):
        parse_recipe("a/b", TEXT.replace("scales.headline", "scales.full"))


def test_a_folder_made_for_something_else_is_refused(reproduced):
    reproduced.begin()
    other = Reproduction(reproduced.root, reproduced.recipe, "smoke", {"train.lr": 0.3}, seeds=1)
    with pytest.raises(RunError, match=r"made with settings {}, not {'train.lr': 0.3}"):
        other.begin()
    Reproduction(reproduced.root, reproduced.recipe, "smoke", seeds=3).begin()  # more seeds go on


def test_data_that_is_not_there_is_a_reason_not_a_failure(tmp_path):
    text = TEXT.replace('"model.hidden" = [4] }', '"data.name" = "nowhere.npz" }')
    made = Reproduction(tmp_path, parse_recipe("a/b", text), "smoke", seeds=1)
    made.begin()
    assert made.run(made.cells[0]) is None
    assert "nowhere.npz" in made.refused["small"]
    assert "nowhere.npz" in made.not_run()[0]


def test_tables_of_cells_can_be_written_down():
    for cell in parse_recipe("a/b", TEXT).cells("smoke"):
        assert to_tables(cell.experiment)["run"]["protocol"] == "pfllib"


def test_a_run_that_another_process_begins_meanwhile_is_left_to_it(reproduced, monkeypatch):
    create = Run.create

    def beaten(experiment, place, **options):
        create(experiment, place, **options).close()
        return create(experiment, place, **options)

    monkeypatch.setattr(Run, "create", beaten)
    with pytest.raises(BusyError, match="another process"):
        reproduced.run(reproduced.cells[0])


@pytest.mark.slow
def test_a_recipe_without_its_data_is_no_reason_to_stop(tmp_path, monkeypatch):
    nowhere = parse_recipe("a/first", TEXT.replace('"model.hidden" = [4] }', '"data.name" = "nowhere.npz" }'))
    monkeypatch.setattr(reproduce_command, "recipes", lambda _: [nowhere, parse_recipe("a/second", TEXT)])
    assert reproduce_command.reproduce_tables("a", ReproduceOptions(seeds=1, out=tmp_path)) == 0
    assert "nowhere.npz" in (tmp_path / "a-first-smoke" / "result.md").read_text()
    assert "✓ holds" in (tmp_path / "a-second-smoke" / "result.md").read_text()
    monkeypatch.setattr(reproduce_command, "recipes", lambda _: [nowhere])
    with pytest.raises(DataError, match=r"nowhere\.npz"):
        reproduce_command.reproduce_tables("a", ReproduceOptions(seeds=1, out=tmp_path / "again"))


@pytest.mark.slow
def test_seeds_that_were_asked_for_earlier_count(tmp_path):
    whole = Reproduction(tmp_path, parse_recipe("a/b", TEXT), "smoke", seeds=3)
    for cell in whole.cells:
        with whole.run(cell) as run:
            list(run.rounds())
    usual = Reproduction(tmp_path, parse_recipe("a/b", TEXT), "smoke")
    assert len(usual.cells) == 4  # two seeds
    assert usual.numbers() == whole.numbers()
    assert usual.begun == whole.begun
    assert {cell.seed for cell, _ in usual.outcomes()} == {0, 1, 2}


@pytest.mark.slow
def test_a_run_at_its_end_is_read_once_and_not_opened_again(reproduced, monkeypatch):
    read_again, whole = [], reproduction.read_outcome
    for cell in reproduced.cells:
        with reproduced.run(cell) as run:
            list(run.rounds())
    monkeypatch.setattr(reproduction, "read_outcome", lambda place: read_again.append(place) or whole(place))
    reproduced.judged()
    reproduced.numbers("bytes")
    reproduced.diverged()
    assert sorted(read_again) == sorted(map(reproduced.place, reproduced.cells))
    monkeypatch.setattr(Run, "open", None)  # its data may be gone, or its machine
    reproduce_command._run(reproduced, None)
    assert not reproduced.not_run()[0].endswith("rounds")


@pytest.mark.slow
def test_a_row_whose_method_leaks_is_marked(tmp_path):
    leaks = TEXT.replace('"algorithm.name" = "fedavg"', '"algorithm.name" = "flayer", "algorithm.preset" = "official"')
    made = Reproduction(tmp_path, parse_recipe("a/b", leaks), "smoke", seeds=1)
    for cell in made.cells:
        with made.run(cell) as run:
            list(run.rounds())
    (leaking, fair, _) = [texts[-1] for _, texts in table_rows(made, "score")]
    assert leaking.endswith(" †")
    assert not fair.endswith("†")
    assert legend(made)[-1] == f"† {INCOMPARABLE}"
