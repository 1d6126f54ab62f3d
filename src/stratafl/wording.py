"""Numbers of things in words, and names as they can be shown."""

import unicodedata

SHOWN = 80  # letters of a name that are shown
_JOINERS = "\u200c\u200d"  # some scripts are not written without them, and they move nothing


def counted(number: int, thing: str, things: str | None = None) -> str:
    """So many of a thing: 1 round, 2,000 rounds, 3 classes (which `things` has to say)."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def printable(text: str, keep: str = "") -> str:
    """The text without anything that steers a terminal: control and format characters stand there as `\\x1b`.

    These are control characters of both sets, line and paragraph separators, and those that change the direction of
    writing or take no place (Unicode's Cc, Cf, Cs, Zl, Zp); characters in `keep` stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter in keep or not _steers(letter) else _escaped(letter) for letter in text)


def shown(value: object, most: int = SHOWN) -> str:
    """A name or a value as one short line: printable, and cut in the middle of what is too long."""
    text = _text(value)
    if len(text) > 2 * most:  # before each letter is looked at
        text = f"{text[:most]}…{text[-most:]}"
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - most // 4 - 1]}…{text[-(most // 4) :]}"


def _text(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # a whole number with more digits than Python writes down
        return "a number of thousands of digits"


def _steers(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in _JOINERS


def _escaped(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
