"""Flower's SuperNode, ended when its work ends.

If its main thread fails, for example at a 500 of the SuperLink, `flower-supernode` lives on in the thread of its HTTP
server, connected to nobody. `python -m stratafl.deploy.supernode …` takes the same options and then ends, so that
`site.py` sees it.
"""

import os
import sys
import traceback

from flwr.supernode.cli import flower_supernode


def main() -> None:
    code = 1
    try:
        flower_supernode()
        print("the SuperNode stopped working", file=sys.stderr)
    except SystemExit as ended:  # flwr has run its exit handlers
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
