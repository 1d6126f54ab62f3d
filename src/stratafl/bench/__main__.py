"""`python -m stratafl.bench`: the bench with nothing but torch and numpy; one line per row."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from stratafl.bench.request import METHODS, MODELS, SWEEPS, Request, requested
from stratafl.bench.session import Book, machine, rows
from stratafl.bench.words import headline, line
from stratafl.errors import StrataError
from stratafl.files import check_new
from stratafl.runtime.speed import CHOICES


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, without the usage."""
        self.exit(2, f"strata bench: {message}\n")


def parser() -> argparse.ArgumentParser:
    """The options, the same as of the command."""
    made = _Parser(prog="python -m stratafl.bench", description="Rounds of the engine against loops written by hand.")
    made.add_argument("--models", default=MODELS, help="by comma")
    made.add_argument("--methods", default=METHODS, help="by comma")
    made.add_argument("--clients", type=int, default=20)
    made.add_argument("--cohort", type=int, help="clients that take part in a round; all, if left out")
    made.add_argument("--batch", type=int, default=10)
    made.add_argument("--steps", type=int, help="per client and round")
    made.add_argument("--paper", action="store_true", help="FLAYER's workload: Dirichlet shares of 60,000 samples")
    made.add_argument("--device", default="auto")
    made.add_argument("--precision", default="fp32", help="fp32, tf32 or bf16")
    made.add_argument("--compile", default="auto", help=", ".join(CHOICES))
    made.add_argument("--repeats", type=int, default=3, help="timed rounds")
    made.add_argument("--baselines", action=argparse.BooleanOptionalAction, default=True)
    made.add_argument("--sweep", help=", ".join(SWEEPS))
    made.add_argument("--largest", type=int, default=10_000, help="of a sweep")
    made.add_argument("--json", type=Path)
    return made


def request_of(given: argparse.Namespace) -> Request:
    """The options, checked."""
    plain = ("clients", "cohort", "batch", "steps", "paper", "repeats", "baselines", "sweep", "largest")
    words = (given.models, given.methods, given.device, given.precision, given.compile)
    return requested(*words, **{name: getattr(given, name) for name in plain})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    given = parser().parse_args(arguments)
    try:
        request = request_of(given)
        check_new([given.json])
        found = machine(request)
        print(headline(found), flush=True)
        book = Book(given.json, found)
        for row in rows(request):
            book.add(row)
            print(line(row), flush=True)
    except StrataError as error:
        print(f"strata bench: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
