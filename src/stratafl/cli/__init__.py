"""The command `strata`: every user error ends with one line and exit code 2, and nothing is lost.

`app.py` declares commands, `command_options.py` their options; the module `NAME_command.py` does the work (`tune` and
`resume` are in `compare_command.py`). `console.py` is where all of them print. Only this package imports typer and
rich.
"""

import atexit
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from stratafl.child_processes import protect_children
from stratafl.cli.interrupt import INTERRUPTED
from stratafl.errors import StrataError, TrustError, shown

COMPLETION, COMPLETION_OPTIONS = "_STRATA_COMPLETE", ("--install-completion", "--show-completion")  # of a shell
MAX_ERROR_LETTERS = 4000  # letters of an error, whatever it names


def command() -> NoReturn:
    """The process `strata`."""
    protect_children()
    code = main()
    if "RANK" in os.environ:
        end_rank(code)
    sys.exit(code)


def end_rank(code: int) -> NoReturn:
    """End a process of torchrun without taking Python apart.

    A thread of gloo that still holds a tensor at that moment aborts a process that has done its work
    (pytorch/pytorch#179291).
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, or those of this process; the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        import typer

        from stratafl.cli.app import UsageProblem, app
    except ModuleNotFoundError as error:
        return _fail(f"the command needs '{error.name}', which is not installed: run pip install {error.name}")
    try:
        result = app([*arguments], standalone_mode=False, prog_name="strata")
    except TrustError as error:
        return _fail(f"{error}: {shlex.join(['strata', *arguments, '--trust'])}")
    except StrataError as error:
        return _fail(str(error), error.exit_code)
    except UsageProblem as error:
        message = _usage(error.format_message(), error.ctx)
        return _fail(message) if message else 0  # without a command, help was shown
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            return _reader_gone()
        if COMPLETION in os.environ or (arguments and arguments[0] in COMPLETION_OPTIONS):  # typer ends so
            return 0 if end.code is None else int(end.code)
        return _fail(f"imported code called sys.exit({end.code!r}), so the command did not finish: remove that call")
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped", INTERRUPTED)
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:
        where = f" '{error.filename}'" if error.filename else ""
        return _fail(f"the operating system refused{where}: {error.strerror}")
    return result if isinstance(result, int) else 0


def _usage(message: str, context: Any) -> str:
    """What is wrong with the command line; names that do not exist also get the command that lists those that do."""
    message = " ".join(message.split())
    path = getattr(context, "command_path", "strata")
    if message.startswith("Got unexpected extra argument"):
        return f"{message}. Values need the name of their option. For an example, run: {path} --help"
    if setting := _meant_setting(message):
        option = f"there is no option '--{setting.partition('.')[2]}', but a setting: type --set {setting}=VALUE"
        return f"{option}. For a list of options, run: {path} --help"
    if not message.startswith("No such ") or context is None:
        return message
    once = re.sub(r"( Did you mean .*\?)\1$", r"\1", message)  # typer and click both suggest a command
    return f"{once} For a list, run: {context.command_path} --help"


def _meant_setting(message: str) -> str:
    """The setting with the name of an option that does not exist, such as train.lr for --lr; or nothing."""
    option = re.match(r"No such option '?--([\w-]+)", message)
    if option is None:
        return ""
    from stratafl.config.setting_tables import settings_called

    return next(iter(settings_called(option[1].replace("-", "_"))), "")


def _reader_gone() -> int:
    """The reader of a pipe has ended, as `head` does; that is no error, now or when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _fail(message: str, code: int = 2) -> int:
    print(f"strata: {shown(' '.join(message.split()), MAX_ERROR_LETTERS)}", file=sys.stderr)
    return code
