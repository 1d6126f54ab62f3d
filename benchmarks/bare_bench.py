"""`strata bench` for a machine that has torch and numpy alone: the same options, one line per row.

python benchmarks/bare_bench.py --models mlp --methods fedavg,fedper --json speed.json
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from stratafl.bench.measurement import ResultFile, bench_rows, describe_machine, describe_row, machine_facts
from stratafl.bench.options import BenchOptions, command_line
from stratafl.bench.request import request_of
from stratafl.errors import StrataError
from stratafl.files import check_new


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, without the usage."""
        self.exit(2, f"strata bench: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(description="Compare the engine with plain PyTorch loops.")
    for option in command_line():
        flag = option.kind is bool
        how: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if flag else {"type": option.kind}
        parser.add_argument(f"--{option.name}", default=option.default, help=option.help, **how)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        request = request_of(BenchOptions(**vars(options)))
        check_new([options.json])
        facts = machine_facts(request)
        print(describe_machine(facts), flush=True)
        file = ResultFile(options.json, facts)
        for row in bench_rows(request):
            file.add(row)
            print(describe_row(row), flush=True)
    except StrataError as error:
        print(f"strata bench: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
