"""Runs one command and ends it together with the process that asked for it, even if SIGKILL ended that process.

Started by file name with the standard library alone, so that it costs no more than a bare Python. Standard input is a
pipe that the asking process holds: it closes when that process closes it or dies. Standard output tells the pid of the
command, standard error is its log.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def _die_with_guardian() -> None:
    """Linux only; elsewhere a guardian that is killed itself leaves its command behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(group, number)


def _end(group: int, grace: float) -> None:
    _signal_group(group, signal.SIGTERM)
    killer = threading.Timer(grace, _signal_group, (group, signal.SIGKILL))
    killer.daemon = True
    killer.start()


def _watch(group: int, grace: float) -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    _end(group, grace)


def main(grace: float, command: list[str]) -> int:
    child = subprocess.Popen(  # in a session of its own: Ctrl-C reaches the asking process, which then closes the pipe
        command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True, preexec_fn=_die_with_guardian
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: _end(child.pid, grace))
    os.write(1, f"{child.pid}\n".encode())
    threading.Thread(target=_watch, args=(child.pid, grace), daemon=True).start()
    code = child.wait()
    _signal_group(child.pid, signal.SIGKILL)  # what the command left behind in its group
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
