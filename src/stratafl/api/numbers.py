"""Whole numbers that a caller gives, and clients by their name or number."""

from collections.abc import Mapping
from operator import index

from stratafl.errors import DataError, RecordError, shown, unknown


def whole_number(value: object) -> int | None:
    """A whole number of Python, numpy or torch; None if the value is something else, such as a boolean."""
    try:
        return None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def check_least(what: str, value: object, least: int) -> None:
    """Refuse all but a whole number that is not below the least one."""
    number = whole_number(value)
    if number is None or number < least:
        raise RecordError(f"{what} must be a whole number of at least {least}, not {shown(value)}")


def client_number(client: object, names: Mapping[int, str]) -> int:
    """The number of a client that is given by its name or its number.

    A number that is the name of another client is refused: clients of a dict with keys 1, 2 and 3 are numbered from 0.
    """
    numbers = {name: number for number, name in names.items()}
    if isinstance(client, str):
        if client not in numbers:
            raise unknown("client", client, names.values())
        return numbers[client]
    number, last = whole_number(client), len(names) - 1
    if number is None:
        raise DataError(f"client must be a name or a whole number from 0 to {last}, not {client!r}")
    if numbers.get(str(number), number) != number:
        raise DataError(
            f"client {number} is ambiguous, because '{number}' is the name of client number {numbers[str(number)]}: "
            "give the name, as text"
        )
    if number not in names:
        raise DataError(f"there is no client {number}: the {len(names)} clients are numbered from 0")
    return number
