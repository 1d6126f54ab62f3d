"""Recipes: tables and figures of the papers, run at a scale, and what holds of what they claim."""

from stratafl.recipes.reading import read, recipe_names, recipes
from stratafl.recipes.recipe import SCALES, Cell, Recipe

__all__ = ["SCALES", "Cell", "Recipe", "read", "recipe_names", "recipes"]
