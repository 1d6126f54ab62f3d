"""Settings as a person types them, `table.key=value`, and as they are documented.

Typed settings are parsed once, here; everywhere else settings are mappings of `table.key` to values.
"""

import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from typing import Any, Literal

from stratafl.config.setting_tables import TABLES
from stratafl.core.annotations import Named, Range, parts, union
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


def documented(tables: Mapping[str, type[Any]]) -> str:
    """All keys of all tables with their defaults, limits and meaning, as Markdown."""
    lines = []
    for name, cls in tables.items():
        lines += [f"## [{name}]", "", "| key | default | meaning |", "|---|---|---|"]
        for key, setting in keys_of(cls).items():
            lines.append(f"| `{key}` | {_default(setting.default)} | {setting.meaning}{_allowed(setting.hint)} |")
        lines.append("")
    return "\n".join(lines)


def _default(value: Any) -> str:
    if value is MISSING:
        return "required"
    if isinstance(value, tuple):
        value = list(value)
    return "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _allowed(hint: Any) -> str:
    hint, markers = parts(hint)
    words = [str(marker) for marker in markers if isinstance(marker, Range | Named)]
    if typing.get_origin(hint) is Literal:
        words.append("one of " + ", ".join(f"`{name}`" for name in typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        words += [str(marker).replace("one", "any", 1) for marker in parts(typing.get_args(hint)[0])[1]]
    return f" ({', '.join(filter(None, words))})" if any(words) else ""
