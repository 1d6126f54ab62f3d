"""The console: results go to standard output, progress and notes to standard error."""

import io
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, OverflowMethod, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from stratafl.errors import printable

_LINE_CONTROLS = "\n\t"
PIPED_WIDTH = 120  # of tables that go into a file, unless COLUMNS says otherwise

FIRST_STEPS = """\
stratafl {version}: personalised federated learning, layer by layer. Frequent commands:

  strata compare --seeds 1                     see it work: eight methods on handwritten digits
  strata data show my.csv                      what each client holds, and what looks wrong
  strata advise my.csv                         whether to federate, with which method, who gains
  strata compare --data my.csv                 rank methods on your data, and see who gains
  strata run --data my.csv --out runs/first    train one method, then strata predict runs/first

strata --help lists all commands, strata COMMAND --help begins with an example."""


class PlainConsole(Console):
    """A console on which no text controls the terminal: a client's name may hold escape sequences."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape here too, since rich measures the width of a column by this."""
        return super().render_str(printable(text, keep=_LINE_CONTROLS), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape all text; the control codes of rich itself are not text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text, keep=_LINE_CONTROLS), segment.style)


def result_console() -> Console:
    """Standard output, for what the command was asked for."""
    console = PlainConsole(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console.width = PIPED_WIDTH
    return console


def note_console() -> Console:
    """Standard error, for progress and notes."""
    return PlainConsole(stderr=True, highlight=False, soft_wrap=True)


def print_note(text: str, console: Console | None = None) -> None:
    """Print a note; while a live display is shown, on its console."""
    (console or note_console()).print(Text.assemble(("note: ", "yellow"), text))


def titled_table(
    title: str, columns: Iterable[str], *, names: Collection[str] = (), text: Collection[str] = ()
) -> Table:
    """A table whose columns are numbers, `names` (aligned left) or `text`, which alone is folded where it is narrow."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        left, folded = column in (*names, *text), column in text
        overflow: OverflowMethod = "fold" if folded else "ellipsis"
        table.add_column(column, justify="left" if left else "right", overflow=overflow, no_wrap=not folded)
    return table


def fitting_columns(widths: Mapping[str, int], spare: Sequence[str], width: int) -> list[str]:
    """The columns that fit into `width` letters. Those in `spare` are left out, the first one first."""
    fitting = dict(widths)
    for column in spare:
        if sum(each + 3 for each in fitting.values()) + 1 <= width:  # with a space on both sides and a line
            break
        fitting.pop(column, None)
    return list(fitting)


def svg_picture(title: str, *parts: RenderableType) -> str:
    """What would be printed, as an SVG that loads no font from the network."""
    console = PlainConsole(record=True, width=PIPED_WIDTH, file=io.StringIO(), force_terminal=True)
    for part in parts:
        console.print(part)
    drawn = console.export_svg(title=title)
    head, _, rest = drawn.partition("@font-face")
    return head + rest[rest.rindex("@font-face") :].partition("}")[2] if rest else drawn


class _WarningHandler(logging.Handler):
    """Prints each warning of the library once."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console, self._seen, self._held = console, set[str](), list[str]()
        self._holding = True

    def emit(self, record: logging.LogRecord) -> None:
        """Print it, or hold it until `print_held`: if an error follows, the error alone is printed."""
        message = record.getMessage()
        if message not in self._seen:
            self._seen.add(message)
            if getattr(record, "urgent", False):  # such as code that is about to be imported
                print_note(message, self._console)
            else:
                self._held.append(message)
        if not self._holding:
            self.print_held()

    def print_held(self) -> None:  # `release` is that of a handler's lock
        """Print what was held, and from now on everything at once."""
        self._holding = False
        for message in self._held:
            print_note(message, self._console)
        self._held.clear()


@contextmanager
def show_warnings(console: Console) -> Iterator[Callable[[], None]]:
    """Print the library's warnings here instead of logging them: at the end, unless an error ends the block.

    Gives the function that prints them earlier, and from then on at once.
    """
    log, handler = logging.getLogger("stratafl"), _WarningHandler(console)
    log.addHandler(handler)
    propagate, log.propagate = log.propagate, False
    try:
        yield handler.print_held
        handler.print_held()
    finally:
        log.removeHandler(handler)
        log.propagate = propagate
