"""The command `strata`: one line for every mistake, exit code 2, and nothing lost."""

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from stratafl.errors import StrataError, TrustError, shown

INTERRUPTED = 130
LONGEST = 4000  # letters of an error, whatever it names


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command; its exit code."""
    try:
        import typer

        from stratafl.cli.app import app
    except ModuleNotFoundError as error:
        return _fail(f"the command needs '{error.name}', which is not installed: pip install {error.name}")
    # The root of typer's own exceptions: click's ClickException up to 0.25, TyperException in 0.29.
    usage_error: type[Any] = typer.BadParameter.__mro__[-4]
    try:
        result = app(list(arguments), standalone_mode=False, prog_name="strata")
    except TrustError as error:
        return _fail(f"{error}: {shlex.join(['strata', *arguments, '--trust'])}")
    except StrataError as error:
        return _fail(str(error), error.exit_code)
    except usage_error as error:
        message = error.format_message()
        return _fail(message) if message else 0  # without a command, help was shown
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            return _reader_gone()
        return _fail(f"code that ran here has called sys.exit({end.code!r}), and the command did not get to its end")
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped", INTERRUPTED)
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:
        where = f" '{error.filename}'" if error.filename else ""
        return _fail(f"the operating system refuses{where}: {error.strerror}")
    return result if isinstance(result, int) else 0


def _reader_gone() -> int:
    """Whoever was reading has gone, as `head` does: no reason to complain, now or at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _fail(message: str, code: int = 2) -> int:
    print(f"strata: {shown(' '.join(message.split()), LONGEST)}", file=sys.stderr)
    return code
