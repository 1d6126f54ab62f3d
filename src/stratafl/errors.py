"""Every error a user can cause, each one sentence: what is wrong, what is allowed (nearest match first), what to do."""

import unicodedata
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

MAX_SHOWN_LETTERS = 80  # letters of a name that are shown
_JOINERS = "\u200c\u200d"  # some scripts are not written without them, and they move nothing


class StrataError(Exception):
    """Base of all errors raised on purpose; the command prints its one line and exits with `exit_code`."""

    exit_code = 2

    def __str__(self) -> str:
        return printable(super().__str__())  # names may come from a file, with anything in them


class UnknownNameError(StrataError):
    """A layer, field, algorithm … that does not exist."""


class RecordError(StrataError):
    """A record whose steps do not fit together, or that cannot be read."""


class PhaseError(RecordError):
    """A phase that a run never reaches: it begins after `before` rounds, and there are `rounds`."""

    def __init__(self, before: int, rounds: int) -> None:
        taken = f"{counted(before, 'round')} and the run has {rounds:,}"
        more = f"run at least {counted(before + 1, 'round')}, or shorten the phases before it"
        super().__init__(f"the phases before its last one take {taken}, so the last phase never begins: {more}")
        self.before, self.rounds = before, rounds


class TrustError(StrataError):
    """Code that a file asks for, and that you have not typed or allowed."""


class DataError(StrataError):
    """Arrays, labels, splits or clients that cannot be used."""


class LabelError(DataError):
    """A table without the column of labels `label`; `wrong` says so without the settings that would help."""

    def __init__(self, message: str, wrong: str, label: str) -> None:
        super().__init__(message)
        self.wrong, self.label = wrong, label


class PartitionError(DataError):
    """A partition of the data that cannot be drawn."""


class ModelError(StrataError):
    """A module that does not fit the data or the method."""


class WireError(StrataError):
    """Bytes or parcels that are not what was agreed."""


class RunError(StrataError):
    """A run directory that cannot be written, read or continued."""


class CallbackError(RunError):
    """A callback that raised; `fitted` is the federation as it was trained until then."""

    fitted: Any = None


class BusyError(RunError):
    """A run directory that another process is writing to."""


class DamagedError(RunError):
    """A run directory, or a file in it, that is not what was written."""


class LostStateError(DamagedError):
    """A state of a site or of the server that is gone, or a copy of it that is old: only a newer copy helps."""


class RankError(StrataError):
    """A failure of another process of the same run, with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class MemoryLimitError(StrataError):
    """A computation that needs more memory than it was given."""


class StageError(StrataError):
    """A failure inside a round, naming stage, client and layer."""


class DeployError(StrataError):
    """A federation that cannot be started, joined or continued: its processes, keys, certificates, connections."""


class OutageError(DeployError):
    """A server that does not answer now and may later, for example because it starts again."""


class ContractError(StrataError):
    """An algorithm that breaks a law of the contract, which `law` names."""

    def __init__(self, law: str, message: str) -> None:
        super().__init__(f"law '{law}': {message}")
        self.law, self.reason = law, message


def unknown(kind: str, wanted: str, existing: Iterable[str]) -> UnknownNameError:
    """The error for a name that does not exist: what was given, the nearest match, what exists."""
    names, short = list(existing), shown(wanted)
    near, allowed = _nearest(short, names), choices(names)
    hint = f"; did you mean '{shown(near)}'? {allowed[0].upper()}{allowed[1:]}" if near else f"; {allowed}"
    return UnknownNameError(f"unknown {kind} '{short}'{hint}")


def _nearest(wanted: str, names: Iterable[str]) -> str | None:
    """The name that is most like this one, whatever its case.

    Also one that ends with it, as macro_f1 does with f1, or that is its initials, as lr is those of learning_rate.
    """
    plain, wanted = {name.lower(): name for name in names}, wanted.lower()
    close = get_close_matches(wanted, plain, n=1, cutoff=0.5)
    longer = [name for name in plain if len(wanted) > 1 and name.endswith(wanted)]
    initials = "".join(word[:1] for word in wanted.split("_"))
    return next((plain[name] for name in (initials, *close, *longer) if name in plain), None)


MOST_LISTED = 60  # names in a message


def check_known(what: str, names: Iterable[str], allowed: Collection[str]) -> None:
    """Refuse the first name that is not allowed."""
    for name in names:
        if name not in allowed:
            raise unknown(what, name, [*allowed])


def choices(names: Iterable[str]) -> str:
    """What can be chosen, for a message: "choose one of: a, b", or "there is none"."""
    listed = list(map(shown, names))
    more = f", … ({len(listed)} in all)" if len(listed) > MOST_LISTED else ""
    return f"choose one of: {', '.join(listed[:MOST_LISTED])}{more}" if listed else "there is none"


def told_to_others(error: Exception) -> str:
    """What another machine is told of an error: others than those of messages and files may quote samples."""
    if isinstance(error, WireError | RunError):
        return str(error)
    return f"it failed ({type(error).__name__}); its own log has the reason"


def first_line(error: BaseException, *, typed: bool = False) -> str:
    """The first line of what an error says; its type where it says nothing, or before the line with `typed`."""
    kind = type(error).__name__
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{kind}: {line}" if typed and line else line or kind


def counted(number: int, thing: str, things: str | None = None) -> str:
    """A number of things: 1 round, 2,000 rounds, 3 classes (with `things="classes"`)."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def printable(text: str, keep: str = "") -> str:
    """The text without anything that steers a terminal: control and format characters are written as `\\x1b`.

    These are Unicode's Cc, Cf, Cs, Zl and Zp: control characters, separators of lines and paragraphs, and characters
    that change the direction of writing or have no width. Characters in `keep` stay.
    """
    others = text
    for letter in keep:
        others = others.replace(letter, "")
    if others.isprintable():  # then there is none of them; a table may have a million letters
        return text
    return "".join(letter if letter in keep else _escaped(letter) for letter in text)


def shown(value: object, most: int = MAX_SHOWN_LETTERS) -> str:
    """A name or a value as one short printable line; a long one is cut in the middle."""
    text = _text(value)
    if len(text) > 2 * most:  # before each letter is looked at
        text = f"{text[:most]}…{text[-most:]}"
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - most // 4 - 1]}…{text[-(most // 4) :]}"


def _text(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # a whole number with more digits than Python writes down
        return "a number with thousands of digits"


def _escaped(letter: str) -> str:
    if letter in _JOINERS or unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
