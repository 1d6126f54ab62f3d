"""Ctrl-C: the first press finishes the round and saves, the second one stops at once."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from stratafl.child_processes import INTERRUPTED as INTERRUPTED

if TYPE_CHECKING:
    from rich.console import Console


class Interrupt:
    """Handles SIGINT and SIGTERM: `asked` says that the round in progress is to be the last.

    A second signal stops at once, except where other processes wait for this one (`finish_round`).
    """

    def __init__(self, console: "Console", quiet: bool, finish_round: bool) -> None:
        self._console, self._quiet, self._finish_round = console, quiet, finish_round
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            if self._finish_round:  # torchrun sends again what the terminal has already sent
                return
            raise KeyboardInterrupt
        self.asked = True
        if not self._quiet:
            again = "" if self._finish_round else " (press Ctrl-C again to stop at once)"
            self._console.print(f"finishing this round, then saving{again}")


@contextmanager
def interruptible(console: "Console", quiet: bool = False, finish_round: bool = False) -> Iterator[Interrupt]:
    """Handle signals inside the block, and as before after it."""
    interrupt = Interrupt(console, quiet, finish_round)
    before: dict[int, Any] = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _no_echo_of_controls():
            yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _no_echo_of_controls() -> Iterator[None]:
    """Keep the terminal from writing ^C into the progress display."""
    if not _in_foreground():  # in the background, changing the terminal would stop this process
        yield
        return
    import termios  # not on Windows

    keyboard = sys.stdin.fileno()
    before, changed = termios.tcgetattr(keyboard), termios.tcgetattr(keyboard)
    changed[3] &= ~termios.ECHOCTL
    termios.tcsetattr(keyboard, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)


def _in_foreground() -> bool:
    if sys.stdin is None or not hasattr(os, "tcgetpgrp"):
        return False
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # a terminal of another session
        return False
