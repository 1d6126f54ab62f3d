"""The architecture of a module as a table: chains of torch's own layers, and models of the catalogue.

A saved federation describes its model so, and is loaded without anybody's code: only classes of `torch.nn` and of
`MODELS` are made, with plain arguments. Whether a table describes a module is checked by making it again.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from stratafl.errors import ModelError, shown

Build = Callable[..., nn.Module]  # makes a model of the catalogue by its name
CHAIN = "Sequential"
RECIPE = "made_by"  # the attribute of a model of the catalogue that says what it was made by
MAX_DEPTH, MAX_LAYERS = 8, 4096
_PLAIN = (bool, int, float, str, type(None))
LAYERS: dict[str, type[nn.Module]] = {
    name: kind
    for name, kind in vars(nn).items()
    if isinstance(kind, type) and issubclass(kind, nn.Module) and kind.__module__.startswith("torch.nn.modules")
}


def with_recipe(module: nn.Module, name: str, **options: Any) -> nn.Module:
    """The module of the catalogue with a note of what it was made by."""
    setattr(module, RECIPE, {"model": name, "options": _listed(options)})
    return module


def architecture(module: nn.Module, build: Build) -> dict[str, Any] | None:
    """The table that `module_from` makes an equal module of; None if there is none."""
    table = getattr(module, RECIPE, None) or _layer(module)
    if table is None:
        return None
    try:
        again = module_from(table, build)
    except (ModelError, TypeError, ValueError, RuntimeError):
        return None
    return table if _form(again) == _form(module) else None


def module_from(table: Any, build: Build) -> nn.Module:
    """The module of a table, with random weights; a ModelError says what is wrong with the table.

    `build` is `stratafl.models.build`.
    """
    if isinstance(table, Mapping) and set(table) == {"model", "options"}:
        return build(str(table["model"]), **_arguments(table["options"]))
    return _built(table, 0)


def _built(table: Any, depth: int) -> nn.Module:
    if not (isinstance(table, Mapping) and set(table) <= {"layer", "options", "layers"} and depth <= MAX_DEPTH):
        raise ModelError("the model is not described by layers with options")
    name = table.get("layer")
    if name == CHAIN:
        chain, layers = nn.Sequential(), table.get("layers")
        if not isinstance(layers, Mapping) or len(layers) > MAX_LAYERS:
            raise ModelError(f"'{CHAIN}' needs a table of layers")
        for key, layer in layers.items():
            chain.add_module(str(key), _built(layer, depth + 1))
        return chain
    if not isinstance(name, str) or name not in LAYERS:
        raise ModelError(f"'{shown(name)}' is not a layer of torch.nn")
    try:
        return LAYERS[name](**_arguments(table.get("options", {})))
    except Exception as error:  # torch refuses values with many types of errors
        raise ModelError(f"'{name}' cannot be made with these options") from error


def _arguments(options: Any) -> dict[str, Any]:
    if not isinstance(options, Mapping) or not all(_is_plain(value) for value in options.values()):
        raise ModelError("options of a layer must be numbers, texts, or lists of them")
    return {str(key): tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def _listed(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}


def _is_plain(value: object) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, list | tuple) and all(isinstance(x, _PLAIN) for x in value))


def _layer(module: nn.Module) -> dict[str, Any] | None:
    """A layer of torch with the arguments that its attributes of the same names are."""
    kind = type(module)
    if kind is nn.Sequential:
        layers = {name: _layer(child) for name, child in module.named_children()}
        return None if None in layers.values() else {"layer": CHAIN, "layers": layers}
    if LAYERS.get(kind.__name__) is not kind or next(module.children(), None) is not None:
        return None
    options = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        value = getattr(module, name, parameter.default)
        value = value is not None if name == "bias" else value
        if name in ("device", "dtype") or value is parameter.default:
            continue
        if not _is_plain(value):
            return None
        options[name] = value
    return {"layer": kind.__name__, "options": _listed(options)}


def _form(module: nn.Module) -> tuple[str, list[tuple[str, torch.Size]]]:
    return repr(module), [(name, x.shape) for name, x in module.state_dict().items()]
