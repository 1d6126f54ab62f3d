"""Numbers of things, and texts of others, in words."""


def counted(number: int, thing: str, things: str | None = None) -> str:
    """So many of a thing: 1 round, 2,000 rounds, 3 classes (which `things` has to say)."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def printable(text: str, most: int = 60) -> str:
    """A text from a file in one line of a terminal: without control characters, and not longer than a name."""
    plain = "".join(letter for letter in text if letter.isprintable())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"
