"""Every recipe runs: all rows, in all columns of scale smoke, with one seed and two rounds on digits.

Recipes share runs as they do for a user. All together take about 50 CPU seconds, nearly all of them in steps of
gradient descent, so batches are large. That each recipe can be read, says what its paper does and is put together is
shown faster, by test_recipes.py.
"""

import pytest

from stratafl.cli import reproduce_command
from stratafl.config.setting_tables import parse_settings
from stratafl.recipes import recipe_names, recipes
from stratafl.recipes.reproduction import Reproduction
from stratafl.recipes.result import write_result

WARMUPS = [f"{method}.warmup=1" for method in ("fedlag", "lag", "fedalp", "fedavg30local")]  # FedDBE's is a round, too
TINY = parse_settings(["run.rounds=2", "evaluate.every=2", "train.epochs=1", "train.batch=100", *WARMUPS])


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduced")


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_every_row_of_a_recipe_runs(name, shared):
    (recipe,) = recipes(name)
    made = Reproduction(shared, recipe, "smoke", TINY, seeds=1)
    made.begin()
    assert not reproduce_command._run(made, None)
    assert (made.refused, made.failed) == ({}, {})
    numbers = made.numbers()
    assert set(numbers) == {(cell.row, cell.column) for cell in made.cells}
    judged = write_result(made, "")
    assert {verdict.claim for verdict in judged} == {c.says for c in recipe.claims if c.kind != "printed"}
    assert any(verdict.measured for verdict in judged)
