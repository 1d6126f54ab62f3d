"""Recipes: tables and figures of papers, run at a scale, and which of their claims hold.

A `recipe` and its `claims` are TOML; a `reproduction` runs the cells, `verdicts` judges the claims, and `result` writes
both down. It stands on `report`; only `cli` imports it.
"""

from stratafl.recipes.recipe import SCALES, Recipe, RecipeCell, parse_recipe, recipe_names, recipes

__all__ = ["SCALES", "Recipe", "RecipeCell", "parse_recipe", "recipe_names", "recipes"]
