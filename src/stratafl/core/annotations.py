"""Annotations of fields and arguments: they check a value and convert it to the declared type.

Plain types, `Literal`, unions, tuples, lists, mappings, classes and the markers `Range`, `Named` and `Size` within
`Annotated` are checked; protocols, callables and `Any` are not. `Tune` and `Fixed` are for tuners. A whole number
passes for a number, a list for a tuple, a single step for a tuple of steps, and a text for what its class parses
(`textual`). Numbers are finite, `true` is not 1. A refusal is one line that begins with the key.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import isfinite
from operator import ge, gt, le, lt
from typing import Annotated, Any, Literal, TypeVar

from stratafl.errors import RecordError, counted, shown, unknown

T = TypeVar("T")
MAX_INTEGER = 2**63 - 1  # the largest whole number that a file, a seed or a tensor holds
MAX_TEXT_LETTERS = 4096  # letters of a text
TEXTUAL: dict[type[Any], Callable[[str], Any]] = {}
_LIMITS: dict[str, Callable[[Any, Any], bool]] = {"at least": ge, "at most": le, "above": gt, "below": lt}
_WORDS: dict[Any, str] = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
_WORDS |= {tuple: "a list", list: "a list", Mapping: "a table"}
_PASSING: dict[Any, type[Any]] = {float: int, tuple: list}  # a whole number for a number, a list for a tuple
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{i}b": base**power for power, letter in enumerate("kmgt", 1) for i, base in (("", 1000), ("i", 1024))
}
_SIZE = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})\s*", re.IGNORECASE)


def textual(cls: type[T], parse: Callable[[str], T]) -> None:
    """Declare that instances of `cls` are written as `str(value)` and read back with `parse`."""
    TEXTUAL[cls] = parse


@dataclass(frozen=True)
class Range:
    """Limits of a number."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __str__(self) -> str:
        return ", ".join(f"{word} {_number(limit)}" for word, limit in _limits_of(self))

    def check(self, key: str, value: Any) -> None:
        for word, limit in _limits_of(self):
            if not _LIMITS[word](value, limit):
                raise RecordError(f"{key} must be {word} {_number(limit)}, not {said(value)}")


@cache
def _limits_of(allowed: Range) -> Sequence[tuple[str, float]]:
    limits = zip(_LIMITS, (allowed.least, allowed.most, allowed.above, allowed.below), strict=True)
    return [(word, limit) for word, limit in limits if limit is not None]


@dataclass(frozen=True)
class Named:
    """A text that is one of these names; with `paths` also `package.module:name`."""

    names: Collection[str]
    paths: bool = False

    def __str__(self) -> str:
        return "" if self.paths else "one of " + ", ".join(f"`{name}`" for name in self.names)

    def check(self, key: str, value: str) -> None:
        if value not in self.names and not (self.paths and ":" in value):
            raise unknown(key, value, sorted(self.names))


@dataclass(frozen=True)
class FilePath:
    """A text that names a file or folder on the disk of the reader, unless it is one of `others`.

    Every setting that may do so has this marker: a host may not set it for its sites.
    """

    others: Collection[str] = ()


@dataclass(frozen=True)
class Tune:
    """Where a tuner looks for a number: from low to high, in even steps of its logarithm with `log`; or these choices.

    A number without it is not tuned. It is not a limit: `Range` is.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        ranged = self.low is not None and self.high is not None
        if bool(self.choices) == ranged or (not ranged and (self.low, self.high, self.log) != (None, None, False)):
            raise RecordError(f"Tune takes low and high, or choices, not both: {self}")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise RecordError(f"Tune needs low below high, not {_number(self.low)} and {_number(self.high)}")
        if self.log and not (self.low or 0) > 0:
            raise RecordError(f"Tune on a logarithmic scale needs low above 0, not {said(self.low)}")

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return ", ".join(map(str, self.choices))
        return f"{_number(self.low)} to {_number(self.high)}" + ", log" * self.log

    def covers(self, value: Any) -> bool:
        if self.low is None or self.high is None:
            return value in self.choices
        return bool(self.low <= value <= self.high)


@dataclass(frozen=True)
class Fixed:
    """Why a tuner leaves this number alone."""

    reason: str


class Size:
    """A number of bytes, which may be written with its unit, such as 8GB or 1.5GiB."""

    def read(self, key: str, value: Any) -> int:
        plain = isinstance(value, str | int) and not isinstance(value, bool)
        if plain:
            check_plain(key, value)
        parsed = _SIZE.fullmatch(str(value)) if plain else None
        size = float(parsed[1]) * _UNITS[parsed[2].lower()] if parsed else 0
        if not 1 <= size <= MAX_INTEGER:
            allowed = "a size such as 8GB, 500MB, 1.5GiB or a number of bytes"
            raise RecordError(f"{key} must be {allowed}, not {said(value)}")
        return value if isinstance(value, int) else int(size)


@dataclass(frozen=True)
class _Form:
    """A hint taken apart, once: typing is slow at it, and a configuration has hundreds of values."""

    written: Any  # the hint itself, kept alive because forms are found by its id
    hint: Any  # without its markers
    markers: tuple[Any, ...]
    origin: Any  # such as `tuple` or `Literal`; None for a class, which is most of them
    inside: tuple[Any, ...]

    @classmethod
    def of(cls, written: Any) -> "_Form":
        marked = typing.get_origin(written) is Annotated
        hint, markers = (written.__origin__, written.__metadata__) if marked else (written, ())
        return cls(written, hint, markers, typing.get_origin(hint), typing.get_args(hint))

    @cached_property
    def union(self) -> tuple[Any, ...]:
        """The hints that a union consists of."""
        return self.inside if self.origin in (typing.Union, types.UnionType) else ()

    @cached_property
    def exact(self) -> Any:
        """The class whose instances need no conversion, as most do not."""
        return self.hint if type(self.hint) is type and self.hint is not tuple else None

    @cached_property
    def kind(self) -> Any:
        return types.NoneType if self.hint is None else self.origin or self.hint

    @cached_property
    def takes_all(self) -> bool:
        kind = self.kind
        return not isinstance(kind, type) or kind in (object, Any, Callable) or getattr(kind, "_is_protocol", False)

    @cached_property
    def takes_none(self) -> bool:
        return _fits(self.written, None)

    @cached_property
    def sizes(self) -> tuple[Size, ...]:
        return tuple(marker for marker in self.markers if isinstance(marker, Size))

    @cached_property
    def limits(self) -> tuple[Range | Named, ...]:
        return tuple(marker for marker in self.markers if isinstance(marker, Range | Named))


_FORMS: dict[int, _Form] = {}  # by the id of a hint, because hints need not be hashable


def _form(hint: Any) -> _Form:
    form = _FORMS.get(id(hint))
    if form is None:
        form = _FORMS[id(hint)] = _Form.of(hint)
    return form


def checked(key: str, hint: Any, value: Any) -> Any:
    """The value as its hint declares it; anything else is refused in one line that begins with the key."""
    form = _form(hint)
    if value is None and form.takes_none:
        return None
    for size in form.sizes:
        value = size.read(key, value)
    exact = type(value) is form.exact
    if not exact and not _fits(hint, value):
        raise RecordError(f"{key} must be {_wanted(form.hint, form.markers)}, not {said(value)}")
    for limit in form.limits if isinstance(value, int) and abs(value) > MAX_INTEGER else ():  # its own limit says more
        limit.check(key, value)
    check_plain(key, value)
    value = value if exact else _converted(key, hint, value)
    for limit in form.limits:
        limit.check(key, value)
    return value


def parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A hint without its markers, and the markers."""
    form = _form(hint)
    return form.hint, form.markers


def union(hint: Any) -> tuple[Any, ...]:
    """The hints that a union consists of."""
    return _form(hint).union


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value is of the kind of a hint, or passes for it; its limits, and what it holds, aside."""
    form = _form(hint)
    if form.union:
        return any(_fits(each, value) for each in form.union)
    if form.origin is Literal:
        return type(value) in map(type, form.inside)
    if form.takes_all:
        return True
    kind = form.kind
    if isinstance(value, bool) or (isinstance(value, str) and kind not in TEXTUAL):
        return kind is type(value)
    if kind is tuple and (dataclasses.is_dataclass(value) or callable(value)):
        return True
    passing = str if kind in TEXTUAL else _PASSING.get(kind, kind)
    return isinstance(value, (kind, passing))


def _converted(key: str, hint: Any, value: Any) -> Any:
    """A value that fits its hint, as the hint declares it, with everything inside checked."""
    form = _form(hint)
    if form.union:
        fitting = [each for each in form.union if _fits(each, value)]
        return checked(key, min(fitting, key=lambda each: _form(each).hint is not type(value)), value)
    kind, inside = form.kind, form.inside
    if kind is Literal and value not in inside:
        raise unknown(key, str(value), sorted(map(str, inside)))
    if kind is float:
        return float(value)
    if kind is tuple:
        values = tuple(value) if isinstance(value, tuple | list) else (value,)
        hints = inside[:1] * len(values) if inside[-1:] == (...,) else inside or (Any,) * len(values)
        if len(hints) != len(values):
            expected = counted(len(hints), "value")
            raise RecordError(f"{key} must be a list of {expected}, not {len(values)}: {said(value)}")
        return tuple(checked(key, each, part) for each, part in zip(hints, values, strict=True))
    if kind in TEXTUAL and isinstance(value, str):
        return TEXTUAL[kind](value)
    if inside and isinstance(value, list):
        return [checked(key, inside[0], each) for each in value]
    if len(inside) == 2 and isinstance(value, dict):
        return {name: checked(f"{key}.{name}", inside[1], each) for name, each in value.items()}
    return value


def _wanted(hint: Any, markers: Sequence[Any]) -> str:
    """What a hint asks for, in words."""
    form = _form(hint)
    if form.union:
        words = [_wanted(*parts(each)) for each in form.union if each is not types.NoneType]
        return " or ".join(dict.fromkeys(words))
    names = [*form.inside] if form.origin is Literal else []
    names += [name for marker in markers if isinstance(marker, Named) and not marker.paths for name in marker.names]
    kind = str if hint in TEXTUAL else form.origin or hint
    return f"one of {', '.join(sorted(map(str, names)))}" if names else _WORDS.get(kind) or f"a {kind.__name__}"


def check_plain(key: str, value: Any) -> None:
    """Refuse numbers and texts that no field can need, and that files and tensors do not hold."""
    if isinstance(value, float) and not isfinite(value):
        raise RecordError(f"{shown(key)} must be a finite number, not {value}")
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        bound = f"at most {MAX_INTEGER:,}" if value > 0 else f"at least {-MAX_INTEGER:,}"
        raise RecordError(f"{shown(key)} must be {bound}, not {said(value)}")
    if not isinstance(value, str):
        return
    if len(value) > MAX_TEXT_LETTERS:
        most = f"at most {MAX_TEXT_LETTERS:,} characters"
        raise RecordError(f"{shown(key)} must have {most}, not {len(value):,}: '{shown(value)}'")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # such as a file's name that is not in the encoding of the system
        raise RecordError(f"{shown(key)} must be a text in UTF-8, not '{shown(value)}'") from error


def said(value: Any) -> str:
    """A value in an error: short, and never an error of its own."""
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    try:
        return shown(repr(value), 200)
    except ValueError:  # a whole number with more digits than Python writes down
        return f"a number of about {value.bit_length() * 3 // 10:,} digits" if isinstance(value, int) else "a number"
    except RecursionError:
        return "deeply nested lists"


def _number(value: float) -> str:
    """A limit; large ones with commas, for the eye."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
