"""Settings as a person types them, `table.key=value`.

Typed settings are parsed once, here; everywhere else settings are mappings of `table.key` to values.
"""

import tomllib
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from stratafl.config.setting_tables import TABLES
from stratafl.core.annotations import parts, union
from stratafl.core.records import keys_of
from stratafl.errors import RecordError, shown

Settings = Mapping[str, Any]  # of table.key


def parse_settings(typed: Iterable[str]) -> dict[str, Any]:
    """The settings in `table.key=value`, as the command takes them; values are TOML, or else text."""
    settings = {}
    for setting in typed:
        path, equals, text = setting.partition("=")
        table, _, key = path.strip().partition(".")
        if not (equals and key):
            raise RecordError(f"a setting is written table.key=value, such as train.lr=0.1, not '{shown(setting)}'")
        settings[f"{table}.{key}"] = _value(text.strip(), _is_text(table, key))
    return settings


def _is_text(table: str, key: str) -> bool:
    """Whether a setting is a text, whatever it looks like: a column may be called 2020, or true."""
    keys = keys_of(TABLES[table]) if table in TABLES else {}
    hint = parts(keys[key].hint)[0] if key in keys else int
    return all(each in (str, type(None)) or typing.get_origin(each) is Literal for each in union(hint) or (hint,))


def _value(text: str, is_text: bool) -> Any:
    """The typed text as a TOML value, or unchanged if it is not one."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # also of numbers with thousands of digits, and lists without end
        return text
    plain = len(parsed) > 1 or (is_text and not isinstance(parsed["value"], str))  # a second line is no second key
    return text if plain else parsed["value"]
