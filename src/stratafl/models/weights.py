"""Weights of a module in a safetensors file."""

import os
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path

from torch import Tensor, nn

from stratafl.errors import ModelError
from stratafl.files import atomically


def save_weights(module: nn.Module, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write all parameters and buffers to `path`, which appears complete or not at all."""
    from safetensors import SafetensorError  # imported here, because models work without it
    from safetensors.torch import save_file

    target = Path(path)
    # Cloned because safetensors refuses tensors that share memory, as tied weights do.
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
    try:
        with atomically(target) as partial:
            save_file(tensors, partial, None if metadata is None else dict(metadata))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot write the weights to '{target}': {error}") from error


def load_weights(module: nn.Module, path: str | os.PathLike[str], *, strict: bool = True) -> tuple[str, ...]:
    """Read weights from `path` and return the names loaded; nothing is changed if anything is refused.

    Unless `strict`, names that are only in the file or only in the module are ignored.
    """
    stored, _ = read_weights(Path(path))
    current: dict[str, Tensor] = module.state_dict()
    if strict:
        _check_names(path, stored, current)
    shared = {name: value for name, value in stored.items() if name in current}
    for name, value in shared.items():
        if value.shape != current[name].shape:
            shapes = tuple(value.shape), tuple(current[name].shape)
            raise ModelError(f"'{name}' has shape {shapes[0]} in '{os.fspath(path)}', but {shapes[1]} in the module")
    module.load_state_dict(shared, strict=False)
    return tuple(shared)


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and its metadata."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ModelError(f"there is no weights file '{path}'")
    try:
        with safe_open(path, "pt") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise ModelError(f"'{path}' is not a readable safetensors file: {error}") from error


def _check_names(path: str | os.PathLike[str], stored: Collection[str], current: Collection[str]) -> None:
    missing = [name for name in current if name not in stored]
    unexpected = [name for name in stored if name not in current]
    faults = []
    if missing:
        faults.append(f"lacks {len(missing)} of the module's {len(current)} names{_first(missing, stored)}")
    if unexpected:
        names = "name" if len(unexpected) == 1 else "names"
        faults.append(f"has {len(unexpected)} {names} that the module does not have{_first(unexpected, current)}")
    if faults:
        raise ModelError(f"the weights file '{os.fspath(path)}' {' and '.join(faults)}")


def _first(names: list[str], others: Collection[str]) -> str:
    near = get_close_matches(names[0], others, n=1, cutoff=0.5)
    hint = f", nearest '{near[0]}'" if near else ""
    return f" (first '{names[0]}'{hint})"
