"""Where things are printed: results on standard output, progress and remarks on standard error."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

PIPED_WIDTH = 120  # of tables that go into a file


def results() -> Console:
    """For what was asked for."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def remarks() -> Console:
    """For what a person who watches wants to know."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


class _Remark(logging.Handler):
    """Says each warning of the library once."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console, self._said = console, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        message = record.getMessage()
        if message not in self._said:
            self._said.add(message)
            self._console.print(f"[yellow]note:[/] {message}", markup=True)


@contextmanager
def warnings_on(console: Console) -> Iterator[None]:
    """Show the library's warnings here instead of logging them."""
    log, handler = logging.getLogger("stratafl"), _Remark(console)
    log.addHandler(handler)
    propagate, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagate
