"""Recipes: tables and figures of papers, run at a scale, and which of their claims hold.

A `recipe` and its `claims` are TOML; a `reproduction` runs the cells, `verdicts` judges the claims, and `result` writes
both down. `recorded` is what was run so far, without torch. It stands on `report`; only `cli` imports it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratafl.recipes.recipe import Recipe, RecipeCell, parse_recipe, recipes
    from stratafl.recipes.recorded import SCALES, recipe_names

__all__ = ["SCALES", "Recipe", "RecipeCell", "parse_recipe", "recipe_names", "recipes"]


def __getattr__(name: str) -> Any:
    # Imported when used, so that `strata reproduce --list` does not wait for torch.
    if name not in __all__:
        raise AttributeError(f"module 'stratafl.recipes' has no attribute '{name}'")
    from stratafl.recipes import recipe

    return getattr(recipe, name)
