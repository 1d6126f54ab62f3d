"""Trust: which code that a configuration names may be imported. A file alone never decides that.

A path `package.module:name` runs code when it is imported. It is imported if a person typed that very path, or if they
trust the author of the file that names it (`--trust`, `trust=True`). Names of the catalogue need neither.
"""

import logging
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder
from typing import Self

from stratafl.errors import RecordError, TrustError, shown

log = logging.getLogger("stratafl")


@dataclass(frozen=True)
class Trust:
    """The paths that may be imported: those in `names`, or everything.

    `source` is the file that asks for them, for messages; `folder` is where else it says that modules are, which is
    searched only if everything is trusted.
    """

    names: frozenset[str] = frozenset()
    everything: bool = False
    source: str = "the configuration"
    folder: str | None = None

    @classmethod
    def of(cls, trust: "Trust | bool") -> "Trust":
        """The record, also for `True` (everything) and `False` (nothing)."""
        return trust if isinstance(trust, Trust) else Trust(everything=trust)

    def asked_by(self, source: object, folder: object = None) -> Self:
        """The same trust, asked for by this file, which may name a folder."""
        return replace(self, source=f"'{shown(source)}'", folder=folder if isinstance(folder, str) else None)

    @property
    def folders(self) -> list[str]:
        """Where modules are looked for, in this order."""
        last = [] if self.folder is None or self.folder in sys.path else [self.folder]
        first = [] if os.getcwd() in sys.path else [os.getcwd()]
        return [*first, *sys.path, *last]

    def check(self, kind: str, path: str) -> None:
        """Raise unless the path may be imported; a path that was not typed is logged before it is."""
        module = path.partition(":")[0]
        refuse_standard_library(kind, path, module)
        if path in self.names:
            return
        if not self.everything:
            asked = f"{self.source} asks to import its {kind} '{shown(path)}', which runs code from"
            allow = "allow it with --trust (in Python: trust=True) if you trust the authors of both"
            raise TrustError(f"{asked} {self.origin(module)}: {allow}")
        message = "importing %s '%s' from %s, because %s names it and you trust it"
        log.warning(message, kind, shown(path), self.origin(module), self.source, extra={"urgent": True})

    def origin(self, module: str) -> str:
        """The file that a module would be read from, found without importing anything."""
        path, spec = self.folders, None
        for length in range(1, module.count(".") + 2):
            spec = _found(".".join(module.split(".")[:length]), path)
            if spec is None:
                return f"module '{shown(module)}', which was not found"
            path = list(spec.submodule_search_locations or [])
        return f"'{shown(spec.origin or module, 200)}'" if spec is not None else f"module '{shown(module)}'"


NO_TRUST = Trust()


def typed(names: Iterable[str], everything: bool = False) -> Trust:
    """Trust in the paths among these names, which a person typed."""
    return Trust(frozenset(name for name in names if ":" in name), everything)


def refuse_standard_library(kind: str, path: str, module: str) -> None:
    """Raise for a module of Python itself: it holds no model and no method, but functions that do anything."""
    if module.partition(".")[0] in sys.stdlib_module_names:
        wrong = f"{kind} '{shown(path)}': '{shown(module)}' belongs to Python's standard library"
        raise RecordError(f"{wrong}; name a module of your own")


def _found(name: str, path: list[str]) -> ModuleSpec | None:
    try:
        return PathFinder.find_spec(name, path)
    except (ImportError, ValueError, OSError):  # a folder that cannot be read, or a name that no module can have
        return None
