"""Torch's compiler is imported beside the rounds, where a compiled step is to be loaded.

It takes seconds of Python. In a thread with the usual switch interval, the rounds would wait for it all the same: every
launch on a GPU lets go of Python's lock, and gets it back 5 ms later.
"""

import sys
import threading
from contextlib import suppress
from importlib import import_module

NEEDED = ("torch._inductor.async_compile", "torch._inductor.select_algorithm")  # by what it generates
INTERVAL = 1e-4  # seconds
_lock = threading.Lock()
_thread: threading.Thread | None = None


def done() -> bool:
    """Whether torch's compiler is imported; if nobody has asked before, it begins to be."""
    global _thread
    if all(name in sys.modules for name in NEEDED) and _thread is None:
        return True
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_import, name="import of torch's compiler")
            _thread.start()  # Python waits for it at its end: it cannot end in the middle of an import
    return not _thread.is_alive()


def wait() -> None:
    """Until it is imported."""
    if not done() and _thread is not None:
        _thread.join()


def _import() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(INTERVAL)
    try:
        with suppress(Exception):  # whoever needs it says what is wrong
            for name in NEEDED:
                import_module(name)
    finally:
        sys.setswitchinterval(before)
