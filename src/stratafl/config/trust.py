"""Code that a configuration names by `package.module:name`: whether it may be imported, and how it is called.

A path runs code when it is imported, and a file alone never decides that: it is imported if a person typed that very
path, or if they trust the author of the file that names it (`--trust`, `trust=True`). Names of the catalogue need
neither.
"""

import functools
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Self

from torch import nn

from stratafl.core.algorithm import Algorithm
from stratafl.errors import RecordError, StrataError, TrustError, UnknownNameError, first_line, shown, unknown

log = logging.getLogger("stratafl")
PYTHON = "python:"  # before the name of an object that was given in this process, and that no file has
_objects: dict[str, Any] = {}
KINDS: dict[str, type[Any] | None] = {"model": nn.Module, "algorithm": Algorithm, "metric": None}  # None: a function


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


def named_object(value: Any) -> str:
    """The name by which a configuration calls an object of this process, where alone it can be found again."""
    name = getattr(value, "__name__", type(value).__name__)
    path = f"{PYTHON}{name if name.isidentifier() else 'model'}"
    _objects[path] = value
    return path


def imported(kind: str, path: str, trust: Trust | bool = NO_TRUST) -> Callable[..., Any]:
    """What makes a model or an algorithm, or is a metric, at `package.module:name`; the current folder comes first.

    A path that is not trusted is refused before anything is imported. The object must be of the right kind.
    """
    if path.startswith(PYTHON):
        if path not in _objects:
            wrong = f"{kind} '{shown(path)}' was given to a function of Python and is in no file"
            raise RecordError(f"{wrong}: continue with the same call in Python, which has the {kind}")
        return _objects[path]  # type: ignore[no-any-return]
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise RecordError(f"{kind} '{shown(path)}' is neither in the catalogue nor written package.module:name")
    trust = Trust.of(trust)
    trust.check(kind, path)
    if trust.everything:
        sys.path[:] = trust.folders
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        named = f"{module_name.removesuffix('.py').replace('/', '.')}:{name}"
        hint = f"; write {shown(named)}" if named != path else ""
        raise UnknownNameError(f"{kind} '{path}': there is no module '{error.name}'{hint}") from error
    except (Exception, SystemExit) as error:  # a person's own file may fail in any way while it is imported
        raise RecordError(f"{kind} '{path}' cannot be imported: {first_line(error, typed=True)}") from error
    if not hasattr(module, name):
        if hasattr(module, "__path__") and getattr(module, "__file__", None) is None:
            raise UnknownNameError(f"{kind} '{path}': '{module_name}' is a folder, not a module; name a file in it")
        raise unknown(f"name in {module_name}", name, [n for n in vars(module) if not n.startswith("_")])
    _check_kind(kind, path, getattr(module, name))
    return getattr(module, name)  # type: ignore[no-any-return]


def _check_kind(kind: str, path: str, target: Any) -> None:
    """Raise unless it is a class of its kind, or a function written in Python outside of the standard library."""
    maker = target
    while isinstance(maker, functools.partial):
        maker = maker.func
    wanted = KINDS[kind]
    is_subclass = wanted is not None and isinstance(maker, type) and issubclass(maker, wanted)
    if not is_subclass and not inspect.isfunction(maker):
        what = f"the class {maker.__name__}" if isinstance(maker, type) else type(maker).__name__
        allowed = "a function f(y_true, y_score)"
        if wanted is not None:
            allowed = f"a subclass of {wanted.__name__} or a function that returns one"
        raise RecordError(f"{kind} '{path}' is {what}, not {allowed}")
    refuse_standard_library(kind, path, str(maker.__module__))


def called(what: str, maker: Callable[..., Any], options: Mapping[str, Any], offered: Mapping[str, Any]) -> Any:
    """What `maker` gives for these options and those of the offered arguments that it takes."""
    if not callable(maker):
        raise RecordError(f"{what} is of type {type(maker).__name__}, which cannot be called")
    taken = accepted(maker)
    if taken is not None:
        for option in options:
            if option not in taken:
                raise unknown(f"option of {what}", option, [name for name in taken if name not in offered])
    arguments = {name: value for name, value in offered.items() if taken is None or name in taken}
    try:
        return maker(**arguments, **options)
    except StrataError:
        raise
    except (Exception, SystemExit) as error:  # a person's own code, or an option of a type it does not expect
        shown_options = ", ".join(f"{name}={value!r}" for name, value in options.items())
        why = first_line(error, typed=True)
        raise RecordError(f"{what} cannot be created with ({shown(shown_options, 400)}): {why}") from error


def accepted(maker: Callable[..., Any]) -> list[str] | None:
    """The names of the arguments that a function takes; None if it takes any."""
    if isinstance(maker, type) and getattr(maker, "__init__") is nn.Module.__init__:  # noqa: B009
        return []  # it says that it takes anything, and refuses everything
    try:
        signature = inspect.signature(maker).parameters.values()
    except ValueError:  # something built in, which does not say what it takes
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature):
        return None
    return [p.name for p in signature if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def parameters(maker: Any) -> Mapping[str, inspect.Parameter]:
    """What a function takes by name; nothing if it does not say."""
    try:
        signature = inspect.signature(maker).parameters
    except (ValueError, TypeError):
        return {}
    return {name: p for name, p in signature.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
