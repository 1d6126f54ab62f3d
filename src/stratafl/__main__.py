"""`python -m stratafl` is `strata`: it does not import files of the current folder in place of packages."""

import os
import sys
from contextlib import suppress

if __name__ == "__main__" and not sys.flags.safe_path:
    with suppress(OSError, ValueError):  # a folder that was removed, or is not there
        sys.path.remove(os.getcwd())

from stratafl.cli import command

if __name__ == "__main__":
    command()
