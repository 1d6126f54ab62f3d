"""Your own code, named by `package.module:name`: a model, an algorithm or a metric."""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from stratafl.config.trust import NO_TRUST, Trust, refuse_standard_library
from stratafl.core.algorithm import Algorithm
from stratafl.errors import RecordError, StrataError, UnknownNameError, first_line, shown, unknown

KINDS: dict[str, type[Any] | None] = {"model": nn.Module, "algorithm": Algorithm, "metric": None}  # None: a function


def imported(kind: str, path: str, trust: Trust | bool = NO_TRUST) -> Callable[..., Any]:
    """What makes a model or an algorithm, or is a metric, at `package.module:name`; the current folder comes first.

    A path that is not trusted is refused before anything is imported. The object must be of the right kind.
    """
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
