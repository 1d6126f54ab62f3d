"""Configurations of older versions: they carry a format number, and older ones are read as what they mean today.

A key that was renamed is read under its old name, whether or not a number says how old the file is.
"""

from collections.abc import Mapping
from typing import Any

from stratafl.core.annotations import said
from stratafl.errors import RecordError

FORMAT = 4  # of configurations and run directories, see `stratafl.runs.format`; without a number: older than that
_RENAMED = {("run", "memory"): "memory_limit", ("data", "newcomers"): "new_clients"}


def with_format(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables as they are written, with the number of their format."""
    return {"format": FORMAT, **tables}


def migrate(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a configuration of this or an older format in today's words, without the number."""
    number = tables.get("format", 1)
    if type(number) is not int or number < 1:
        raise RecordError(f"format must be a whole number from 1 to {FORMAT}, not {said(number)}")
    if number > FORMAT:
        newer = f"format {said(number)}; this one reads up to {FORMAT}"
        raise RecordError(f"this configuration is of a newer version of stratafl ({newer}): update stratafl")
    migrated = {name: table for name, table in tables.items() if name != "format"}
    for (name, old), new in _RENAMED.items():
        table = migrated.get(name)
        if isinstance(table, Mapping) and old in table and new not in table:
            migrated[name] = {new if key == old else key: value for key, value in table.items()}
    return migrated
