"""Cells: the number, the date or the yes that a text of a table stands for, and which texts stand for nothing."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import numpy as np

from stratafl.data.formats.columns import Column, numbers_or_texts

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "nat"})  # in small letters
YES = frozenset({"yes", "y", "true", "t", "ja", "j", "oui", "si", "sí", "sim", "tak", "wahr", "vrai", "1"})
NO = frozenset({"no", "n", "false", "f", "nein", "non", "não", "nie", "falsch", "faux", "0"})
_DECIMAL_COMMA = re.compile(r"[+-]?(?:\d*|\d{1,3}(?:\.\d{3})+),\d+(?:[eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")  # may also be a number with three decimals
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_YEAR_FIRST = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ]\d{1,2}:.*)?")
_YEAR_LAST = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?:[T ](\d{1,2}:.*))?")
EPOCH, _DAY = datetime(1970, 1, 1), 86_400  # seconds of a day


def is_missing(text: str) -> bool:
    return text.strip().casefold() in MISSING


def number_in(text: str) -> float | None:
    """The number that a text is, with a decimal point or a decimal comma."""
    if _NUMBER.fullmatch(text):
        return float(text)
    return float(text.replace(".", "").replace(",", ".")) if _DECIMAL_COMMA.fullmatch(text) else None


def yes_or_no(text: str) -> float | None:
    """1 for yes, true, ja …, 0 for no, false, nein …"""
    word = text.casefold()
    return 1.0 if word in YES else 0.0 if word in NO else None


def day_in(text: str, month_first: bool = False) -> float | None:
    """Days since 1970 of a date: 2024-01-31, 31.1.2024 or 31/1/2024 (1/31/2024 with the month first), with a time."""
    try:
        if _YEAR_FIRST.fullmatch(text):
            day, _, clock = text.replace("/", "-").replace("T", " ").partition(" ")
            year, month, number = re.split(r"[-.]", day)
        elif match := _YEAR_LAST.fullmatch(text):
            first, sign, second, year, clock = match.groups()
            month, number = (first, second) if month_first and sign == "/" else (second, first)
        else:
            return None
        moment = datetime.fromisoformat(f"{date(int(year), int(month), int(number)).isoformat()} {clock or '00:00'}")
    except ValueError:
        return None
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - EPOCH).total_seconds() / _DAY


def parts_of_day(text: str) -> tuple[int, int] | None:
    """The first two numbers of a date such as 1/31/2024, of which one is the month."""
    match = _YEAR_LAST.fullmatch(text)
    return (int(match[1]), int(match[3])) if match and match[2] == "/" else None


def text_column(cells: Sequence[str], commas: bool) -> Column:
    """Texts as numbers if all that are not missing are; NaN or None where one is missing. `commas`: 1,5 is a number."""
    plain = numbers_or_texts(cells)
    if isinstance(plain, np.ndarray):
        return plain
    missing = np.array([is_missing(cell) for cell in cells])
    present = [cell for cell, absent in zip(cells, missing, strict=True) if not absent]
    values: Column = numbers_or_texts(present)
    if commas and isinstance(values, list):
        numbers = [number_in(cell) for cell in present]
        values = present if None in numbers else np.array(numbers, np.float64)
    if isinstance(values, list):
        return [None if absent else cell for cell, absent in zip(cells, missing, strict=True)]
    if not missing.any():
        return values
    column = np.full(len(cells), np.nan)
    column[~missing] = values
    return column


def cell_text(cell: Any) -> str | None:
    """The text of a value from Python or a table: None if it is missing; numbers without '.0'; dates as 2024-01-31."""
    if isinstance(cell, str):
        return None if is_missing(cell) else cell.strip()
    if cell is None or str(cell) in ("nan", "NaT", "<NA>"):
        return None
    if isinstance(cell, bool | np.bool_):
        return "true" if cell else "false"
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    if isinstance(cell, date):  # a datetime is one, too
        return str(cell.isoformat())
    return repr(float(cell)).removesuffix(".0") if isinstance(cell, float | np.floating) else str(cell)
