"""Numbers of things in words."""


def counted(number: int, thing: str, things: str | None = None) -> str:
    """So many of a thing: 1 round, 2,000 rounds, 3 classes (which `things` has to say)."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"
