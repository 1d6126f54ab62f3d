"""`python -m stratafl.bench`: the bench with nothing but torch and numpy; one line per row."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from stratafl.bench.measurement import ResultFile, describe_machine, describe_row, machine, rows
from stratafl.bench.options import BenchOptions, command_line
from stratafl.bench.request import request_of
from stratafl.errors import StrataError
from stratafl.files import check_new


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, without the usage."""
        self.exit(2, f"strata bench: {message}\n")


def _parser() -> argparse.ArgumentParser:
    made = _Parser(prog="python -m stratafl.bench", description="Compare the engine with plain PyTorch loops.")
    for option in command_line():
        flag = option.kind is bool
        how: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if flag else {"type": option.kind}
        made.add_argument(f"--{option.name}", default=option.default, help=option.help, **how)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code."""
    given = _parser().parse_args(arguments)
    try:
        request = request_of(BenchOptions(**vars(given)))
        check_new([given.json])
        found = machine(request)
        print(describe_machine(found), flush=True)
        file = ResultFile(given.json, found)
        for row in rows(request):
            file.add(row)
            print(describe_row(row), flush=True)
    except StrataError as error:
        print(f"strata bench: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
