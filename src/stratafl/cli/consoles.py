"""Where things are printed: results on standard output, progress and remarks on standard error."""

import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from stratafl.errors import printable

_KEPT = "\n\t"
PIPED_WIDTH = 120  # of tables that go into a file, unless COLUMNS says otherwise


class PlainConsole(Console):
    """A console on which no text steers the terminal: a client may be called anything, escape sequences included."""

    def render_str(self, text: str, **options: Any) -> Text:
        """The text as it will be shown, so that tables are as wide as what stands in them."""
        return super().render_str(printable(text, keep=_KEPT), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """All that is printed comes through here; what rich itself says to the terminal is no text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text, keep=_KEPT), segment.style)


def results() -> Console:
    """For what was asked for."""
    console = PlainConsole(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console.width = PIPED_WIDTH
    return console


def remarks() -> Console:
    """For what a person who watches wants to know."""
    return PlainConsole(stderr=True, highlight=False, soft_wrap=True)


def picture(title: str, *parts: RenderableType) -> str:
    """What would be printed, as an SVG that needs no font from anywhere."""
    console = PlainConsole(record=True, width=PIPED_WIDTH, file=io.StringIO(), force_terminal=True)
    for part in parts:
        console.print(part)
    drawn = console.export_svg(title=title)
    head, _, rest = drawn.partition("@font-face")
    return head + rest[rest.rindex("@font-face") :].partition("}")[2] if rest else drawn


class _Remark(logging.Handler):
    """Says each warning of the library once."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console, self._said, self._held = console, set[str](), list[str]()
        self.holding = True

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, or keep it until it is known that there is no error to say instead."""
        message = record.getMessage()
        if message not in self._said:
            self._said.add(message)
            self._held.append(message)
            if getattr(record, "urgent", False):  # such as code that is about to be imported
                self._say(self._held.pop())
        if not self.holding:
            self.release()

    def _say(self, message: str) -> None:
        self._console.print(Text.assemble(("note: ", "yellow"), message))

    def release(self) -> None:
        """Say what was held back, and from now on everything at once."""
        self.holding = False
        for message in self._held:
            self._say(message)
        self._held.clear()


@contextmanager
def warnings_on(console: Console) -> Iterator[Callable[[], None]]:
    """Show the library's warnings here instead of logging them, once the function that it gives was called."""
    log, handler = logging.getLogger("stratafl"), _Remark(console)
    log.addHandler(handler)
    propagate, log.propagate = log.propagate, False
    try:
        yield handler.release
    finally:
        log.removeHandler(handler)
        log.propagate = propagate
