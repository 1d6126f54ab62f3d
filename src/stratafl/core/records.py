"""Records: frozen dataclasses that check their fields when they are made, and go to TOML and back.

Everything a person configures (steps, objectives, partitions, algorithms, tables of settings) is a record. The
annotations of its fields say what is allowed (`stratafl.core.annotations`), and a text among them what a field means:

    @record
    class Trim:
        weights: Literal["samples", "uniform"] = "samples"
        share: Annotated[float, Range(least=0, below=0.5), "share of the clients left out at each end"] = 0.1

A record only stores its arguments, so `repr`, equality, `dataclasses.replace` and TOML need no code of its own. In a
table it names its type; a table of settings, whose class is known, has the keys that say what they mean instead.
"""

import dataclasses
import functools
import inspect
import re
import tomllib
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, dataclass_transform

from stratafl.core.annotations import TEXTUAL, check_plain, checked, parts, said
from stratafl.errors import RecordError, check_known, shown, unknown

T = TypeVar("T")
P = ParamSpec("P")
DEEPEST = 16  # lists within lists
OPTIONS = "options"  # the field of a table of settings that takes the keys it does not know itself
# Of classes renamed since runs and federations were stored with the old name.
STORED_NAMES = {"LocalTraining": "SGD", "GeneratorField": "Part"}
# Fields of records that older digests do not have, as a repr shows them.
CAME_LATER = ("class_weight='none', ", ", budget=None", ", by_layer=False")
_CLASSES: dict[str, type[Any]] = {}
_HINTS: dict[type[Any], dict[str, Any]] = {}
_KEYS: dict[type[Any], Mapping[str, "Key"]] = {}
_READ: dict[Any, Any] = {}  # records by the tables they were read from
MAX_READ = 1000
_PLAIN = (bool, int, float, str, type(None))


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that checks its fields and that `from_table` can rebuild by its class name."""
    post_init = getattr(cls, "__post_init__", None)

    def check_fields(self: T, *init_arguments: Any) -> None:
        for name, hint in _hints(type(self)).items():
            object.__setattr__(self, name, checked(f"{type(self).__name__}.{name}", hint, getattr(self, name)))
        if post_init is not None:
            post_init(self, *init_arguments)

    cls.__post_init__ = check_fields  # type: ignore[attr-defined]
    frozen = dataclass(frozen=True)(cls)
    namesake = _CLASSES.get(frozen.__name__, frozen)
    if (namesake.__module__, namesake.__qualname__) != (frozen.__module__, frozen.__qualname__):
        places = f"in {namesake.__module__} and in {frozen.__module__}"
        raise RecordError(f"two records are called '{frozen.__name__}': {places}")
    _CLASSES[frozen.__name__] = _CLASSES[stored_name(frozen)] = frozen
    return frozen


def stored_name(cls: type[Any]) -> str:
    """The name of a record in files and digests; it never changes, whatever the class is called."""
    return STORED_NAMES.get(cls.__name__, cls.__name__)


def stored_repr(value: Any) -> str:
    """The repr of a record with stored names: runs remember its digest, so renaming a class must not change it.

    Neither must a field that came later, at its default.
    """
    text = repr(value)
    for field in CAME_LATER:
        text = text.replace(field, "")
    for name, stored in STORED_NAMES.items():
        text = re.sub(rf"\b{name}\(", f"{stored}(", text)
    return text


def validated(function: Callable[P, T]) -> Callable[P, T]:
    """Check the arguments of a function as a record checks its fields."""
    signature = inspect.signature(function)
    # Once, and at the first call: its module may define after it what its annotations name.
    hints_of = functools.cache(lambda: typing.get_type_hints(function, include_extras=True))

    @functools.wraps(function)
    def checking(*args: P.args, **kwargs: P.kwargs) -> T:
        check_known(f"option of {function.__name__}", kwargs, signature.parameters)
        bound, hints = signature.bind(*args, **kwargs), hints_of()
        for name in bound.arguments.keys() & hints.keys():
            bound.arguments[name] = checked(f"{function.__name__}.{name}", hints[name], bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return checking


def _hints(cls: type[Any]) -> dict[str, Any]:
    """The annotations of the fields; none where they name what cannot be found, such as a class within a function."""
    if cls not in _HINTS:
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except NameError:
            hints = {}
        _HINTS[cls] = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init and f.name in hints}
    return _HINTS[cls]


def to_table(value: Any) -> Any:
    """A record as plain tables, lists, numbers and texts, with its type; fields at None are left out."""
    if type(value) in TEXTUAL:
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if _CLASSES.get(type(value).__name__) is not type(value):
            raise RecordError(f"{type(value).__name__} is not a record: decorate it with @record")
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"type": stored_name(type(value))} | {k: to_table(v) for k, v in fields.items() if v is not None}
    if isinstance(value, tuple | list):
        return [to_table(each) for each in value]
    if isinstance(value, Mapping):
        return {key: to_table(each) for key, each in value.items()}
    if isinstance(value, bool | int | float | str):
        return value
    raise RecordError(f"a record cannot hold {type(value).__name__}: {value!r}")


def from_table(table: Any) -> Any:
    """The record that `to_table` wrote; unknown types and keys are refused with the nearest match."""
    if isinstance(table, list):
        return tuple(from_table(each) for each in table)
    if not isinstance(table, Mapping):
        return table
    values = {key: from_table(each) for key, each in table.items() if key != "type"}
    if "type" not in table:
        return values
    name = table["type"]
    if not isinstance(name, str):
        raise RecordError(f"the type of a record must be a name, not {name!r}")
    if name not in _CLASSES:
        raise unknown("record type", name, _CLASSES)
    _check_keys(name, values, {f.name: f.default is f.default_factory for f in dataclasses.fields(_CLASSES[name])})
    return _CLASSES[name](**values)


def to_toml(value: Any) -> str:
    import tomli_w  # only the people who write files need it

    return tomli_w.dumps(to_table(value))


def from_toml(text: str) -> Any:
    try:
        return from_table(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise RecordError(f"not TOML: {error}") from error


# Tables of settings


@dataclass(frozen=True)
class Written:
    """A marker: in a table of settings, a field has this key and a plain value, which `read` and `write` convert."""

    key: str
    hint: Any
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Key(Written):
    """A key of a table of settings: with the field that it sets, what it means, and its default."""

    field: str = ""
    meaning: str = ""
    default: Any = None


def keys_of(cls: type[Any]) -> Mapping[str, Key]:
    """The keys of a table of this class: the fields that say what they mean, or all if none does."""
    if cls not in _KEYS:
        _KEYS[cls] = MappingProxyType(_made_keys(cls))
    return _KEYS[cls]


def _made_keys(cls: type[Any]) -> dict[str, Key]:
    keys: dict[str, Key] = {}
    for field in dataclasses.fields(cls):
        markers = parts(_hints(cls)[field.name])[1]
        plain = Written(field.name, _hints(cls)[field.name])
        how = next((marker for marker in markers if isinstance(marker, Written)), plain)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        meaning = " ".join(marker for marker in markers if isinstance(marker, str))
        keys[how.key] = Key(how.key, how.hint, how.read, how.write, field.name, meaning, how.write(default))
    keys.pop(OPTIONS, None)
    return {name: key for name, key in keys.items() if key.meaning} or keys


def to_settings(value: Any) -> dict[str, Any]:
    """A record as a table of settings, its options among its keys; keys at None are left out."""
    plain = {name: key.write(getattr(value, key.field)) for name, key in keys_of(type(value)).items()}
    table = {name: to_table(each) for name, each in plain.items() if each is not None}
    return {**table, **vars(value).get(OPTIONS, {})}


def from_settings(name: str, cls: type[T], table: Mapping[str, Any]) -> T:
    """The record of a table of settings, called `name` in refusals; keys that it does not know may be options.

    Records never change, so those of a table of plain values are read once.
    """
    if not isinstance(table, Mapping):
        raise RecordError(f"[{name}] must be a table, not {said(table)}")
    if not all(type(value) in _PLAIN for value in table.values()):
        return _read(name, cls, table)
    key = (name, cls, tuple((key, type(value), value) for key, value in table.items()))
    settings_record: T | None = _READ.get(key)
    if settings_record is None:
        settings_record = _read(name, cls, table)
        if len(_READ) >= MAX_READ:
            _READ.clear()
        _READ[key] = settings_record
    return settings_record


def _read(name: str, cls: type[T], table: Mapping[str, Any]) -> T:
    keys, takes_options = keys_of(cls), OPTIONS in _hints(cls)
    options = {k: v for k, v in table.items() if takes_options and k not in keys and v is not None}
    for key, value in options.items():
        _check_option(f"{name}.{key}", value)
    settings = {k: v for k, v in table.items() if k in keys or not takes_options}
    _check_keys(f"[{name}]", settings, {key_name: key.default is MISSING for key_name, key in keys.items()})
    values = {keys[k].field: keys[k].read(checked(f"{name}.{k}", keys[k].hint, v)) for k, v in settings.items()}
    return cls(**values, **({OPTIONS: options} if takes_options else {}))


def _check_keys(label: str, keys: Mapping[str, Any], needed: Mapping[str, bool]) -> None:
    for key in keys:
        if key not in needed:
            raise unknown(f"key of {label}", key, needed)
    for key, is_needed in needed.items():
        if is_needed and key not in keys:
            raise RecordError(f"{label} needs '{key}'")


def _check_option(key: str, value: Any, depth: int = 0) -> None:
    """Refuse what cannot be written down again: dates, numbers that are not finite, lists without end."""
    if depth > DEEPEST:
        raise RecordError(f"{shown(key)} is nested more than {DEEPEST} levels deep: flatten it")
    for part in value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else ():
        _check_option(key, part, depth + 1)
    if not isinstance(value, bool | int | float | str | list | dict):
        allowed = "a finite number, a text, true or false, or a list of them"
        raise RecordError(f"{shown(key)} must be {allowed}, not {shown(value)}")
    check_plain(key, key)
    check_plain(key, value)
