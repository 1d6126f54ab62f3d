"""Keys of configurations that have other names today: files of older versions are read with them."""

from collections.abc import Mapping
from typing import Any

RENAMED = {("run", "memory"): "memory_limit", ("data", "newcomers"): "new_clients"}


def migrate(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a configuration with today's names of keys."""
    made = dict(tables)
    for (table, old), new in RENAMED.items():
        found = made.get(table)
        if isinstance(found, Mapping) and old in found and new not in found:
            made[table] = {new if key == old else key: value for key, value in found.items()}
    return made
