"""Python processes that a command starts: they import installed packages, never files of the current folder.

`python -m` and `python -c` put the current folder first, so a file `torch.py` in it would run in place of the package.
You may be in any folder, for example in one that you downloaded. `-P` protects the process itself, the environment
protects the processes that it starts. `tools/house_rules.py` looks for processes that are started in another way.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
INTERRUPTED = 130  # the exit code of a process that was interrupted, as shells have it


def python_command(*arguments: object) -> list[str]:
    """The command that runs this Python with these arguments."""
    return [sys.executable, "-P", *map(str, arguments)]


def installed_command(name: str) -> Path:
    """Where pip puts a command of this name, which may not exist."""
    return Path(sys.executable).with_name(name)


def safe_environment(environment: Mapping[str, str] | None = None, /, **more: str) -> dict[str, str]:
    """This environment, or else that of this process, for a process that is to be started.

    Folders in `PYTHONPATH` were put there by the user and stay. An empty entry, as in `PYTHONPATH=$UNSET:/lib`, would
    be the current folder.
    """
    environment = {**(os.environ if environment is None else environment), **SAFE_PATH, **more}
    folders = [folder for folder in environment.pop("PYTHONPATH", "").split(os.pathsep) if folder]
    return environment | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})


def protect_children() -> None:
    """Let libraries start their processes safely, too, from now on."""
    os.environ.update(SAFE_PATH)
