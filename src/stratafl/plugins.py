"""What a person names by `package.module:name`: their own model or algorithm, imported from where they stand."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from stratafl.errors import RecordError, StrataError, UnknownNameError, unknown


def imported(kind: str, path: str) -> Any:
    """The object at `package.module:name`; the current folder is searched first, as `python -m` does.

    Only for paths that a person typed or wrote into a file of theirs, never for one that came over a wire.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise RecordError(f"{kind} '{path}' is not a name of the catalogue, nor written package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UnknownNameError(f"{kind} '{path}': there is no module '{error.name}' here") from error
    except (Exception, SystemExit) as error:  # a person's own file may fail in any way while it is imported
        raise RecordError(f"{kind} '{path}' cannot be imported: {said(error)}") from error
    if not hasattr(module, name):
        raise unknown(f"name in {module_name}", name, [n for n in vars(module) if not n.startswith("_")])
    return getattr(module, name)


def called(what: str, maker: Callable[..., Any], options: Mapping[str, Any], offered: Mapping[str, Any]) -> Any:
    """What `maker` gives for these options and those of the offered arguments that it takes."""
    if not callable(maker):
        raise RecordError(f"{what} is {type(maker).__name__}, not something that can be called to make one")
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
    except Exception as error:  # a person's own code, or an option of a type it does not expect
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise RecordError(f"{what} cannot be made with ({given}): {said(error)}") from error


def accepted(maker: Callable[..., Any]) -> list[str] | None:
    """The names of the arguments that a function takes; None if it takes any."""
    if isinstance(maker, type) and getattr(maker, "__init__") is nn.Module.__init__:  # noqa: B009
        return []  # it says that it takes anything, and refuses everything
    try:
        found = inspect.signature(maker).parameters.values()
    except ValueError:  # something built in, which does not say what it takes
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in found):
        return None
    return [p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def parameters(maker: Any) -> Mapping[str, inspect.Parameter]:
    """What a function takes by name; nothing if it does not say."""
    try:
        found = inspect.signature(maker).parameters
    except (ValueError, TypeError):
        return {}
    return {name: p for name, p in found.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def said(error: BaseException) -> str:
    """An error as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
