"""`python -m stratafl` is `strata`."""

import sys

from stratafl.cli import main

if __name__ == "__main__":
    sys.exit(main())
