"""From a module to a layout: which tensors are columns, which layers they form, what each layer is.

A parameter with `requires_grad=False` is frozen: no column, but one tensor that all clients share. So are the buffers
of a module all of whose parameters are frozen. `freeze` freezes layers by name.
"""

import copy
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stratafl.core.annotations import checked
from stratafl.core.layers import NORMALISATIONS, Layer, Select, is_below
from stratafl.core.layout import Buffers, Granularity, Layout, Rows, Spec
from stratafl.errors import ModelError, unknown

log = logging.getLogger("stratafl")

_KINDS: dict[str, Any] = {"batchnorm": _BatchNorm, "norm": (nn.LayerNorm, nn.GroupNorm), "linear": nn.Linear}
_KINDS |= {"convolution": nn.modules.conv._ConvNd, "embedding": nn.Embedding, "recurrent": nn.RNNBase}
_KINDS |= {"attention": nn.MultiheadAttention}
INNER = "inner"  # a model that wraps another keeps it under this name, and the names of its layers
COMPOSED = "is_composed_head"  # a module that says so, as the head, is made of parts that are layers of their own
OWN_FLAG = "is_own"  # a module that says so holds what each client computes from its own data: not trained, never sent
PEFT, PEFT_PARTS = "base_model.model.", ("modules_to_save", "default")  # what PEFT adds to the names of a model
ADAPTED = "base_layer"  # a module of PEFT keeps under this name the layer that it adapts


@dataclass(frozen=True)
class _Owner:
    """A module with tensors of its own."""

    path: str
    module: nn.Module
    kind: str
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    frozen: tuple[str, ...]

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.parameters + self.buffers


def describe(
    module: nn.Module, *, granularity: Granularity = "module", buffers: Buffers = "follow", head: str | None = None
) -> Layout:
    """The layout of a module; `head` names its classifier (default: what it declares, else its last linear layer)."""
    checked("granularity", Granularity, granularity)
    checked("buffers rule", Buffers, buffers)
    owners, head_path = list(_owners(module)), head_of(module, head)
    _check_owners(owners)
    blocks, parts = _blocks(module, owners), _parts(module, head_path, owners)
    homes = {name: _home(owner, name, granularity, blocks | parts) for owner in owners for name in owner.tensors}
    names = list(dict.fromkeys(homes.values()))
    shapes = {name: tuple(tensor.shape) for name, tensor in columns(module).items()}
    trainable = {name for owner in owners for name in owner.parameters}
    own_tensors = {name for owner in owners if getattr(owner.module, OWN_FLAG, False) for name in owner.buffers}
    specs = [Spec(n, shapes[n], names.index(home), n in trainable, n in own_tensors) for n, home in homes.items()]
    inside = f"{_short(head_path)}." if head_path else ""
    followed = {} if granularity == "block" else _followed(owners)
    layers = []
    for name in names:
        members = [owner for owner in owners if any(homes[n] == name for n in owner.tensors)]
        first, is_head = members[0], all(is_below(owner.path, head_path) for owner in members)
        kind = first.kind if len(members) == 1 else "block"
        normalises = homes[followed[first.path].tensors[0]] if first.path in followed else None
        tensors = tuple(n for n, home in homes.items() if home == name)
        part = name.removeprefix(inside) if is_head and name.startswith(inside) else ""
        composed = first.path in parts
        layers.append(Layer(name, kind, blocks[first.path], is_head, normalises, tensors, part, composed))
    return Layout(specs, layers, buffers, tuple(map(_short, frozen_tensors(module))))


def _check_owners(owners: list[_Owner]) -> None:
    for path, count in Counter(_short(owner.path) for owner in owners).items():
        if count > 1:
            raise ModelError(f"two layers are called '{path}', one of them in the extended model: rename one")


def columns(module: nn.Module) -> Rows:
    """The tensors of a module that are columns: parameters and floating-point buffers; counters are not."""
    return {name: _lookup(module, name).detach() for owner in _owners(module) for name in owner.tensors}


def frozen_tensors(module: nn.Module) -> Rows:
    """The tensors of a module that all clients share: parameters that are not trained, and the buffers beside them."""
    return {name: _lookup(module, name).detach() for owner in _all_owners(module) for name in owner.frozen}


def freeze(module: nn.Module, chosen: Select, *, granularity: Granularity = "module", head: str | None = None) -> None:
    """Freeze the parameters of these layers; those that are frozen already count, so freezing twice changes nothing."""
    before = [p for p in module.parameters() if p.is_floating_point() and not p.requires_grad]
    for parameter in before:  # a frozen tensor is in no layer
        parameter.requires_grad_(True)
    names = describe(module, granularity=granularity, head=head).trainable(chosen)
    for parameter in (*before, *map(module.get_parameter, names)):
        parameter.requires_grad_(False)


def light_copy(module: nn.Module) -> nn.Module:
    """A copy that shares the memory of frozen tensors, which may be nearly all of the model."""
    shared: dict[int, Any] = {id(p): _frozen(p) for p in module.parameters() if not p.requires_grad}
    return copy.deepcopy(module, shared)


def _frozen(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach(), requires_grad=False)


def head_of(module: nn.Module, head: str | None = None) -> str:
    """The path of the sub-module that is the head.

    A composed head is where the head was that it replaces; in a wrapped model, `fc` and `inner.fc` are the same.
    """
    declared = head or getattr(module, "head_name", None)
    owners = list(_all_owners(module))
    frozen = sum(len(owner.frozen) for owner in owners)
    if not any(owner.parameters if frozen else owner.tensors for owner in owners):
        name = type(module).__name__
        hint = "name fewer layers in `frozen`, or set requires_grad=True for some"
        why = f": all {frozen} tensors are frozen; {hint}" if frozen else ""
        raise ModelError(f"{name} has no parameters to share or to train{why}")
    if declared is None:
        composed = [path for path, sub in module.named_modules() if getattr(sub, COMPOSED, False)]
        linear = [owner.path for owner in owners if owner.kind == "linear"]
        guess = linear[-1] if linear else owners[-1].path
        outputs = [] if composed else _outputs(owners)
        if len(outputs) > 1:
            names = " and ".join(f"'{_short(path)}'" for path in outputs)
            log.warning(
                "%s has several output layers, %s: 'head' is '%s' alone; set head_name in the model to choose another",
                type(module).__name__, names, _short(guess),
            )  # fmt: skip
        return composed[0] if composed else _adapted(module, guess)
    for path in (str(declared), f"{INNER}.{declared}", _short(str(declared))):
        if any(is_below(owner.path, path) for owner in owners):
            return path
    inside = [owner.path for owner in owners if owner.tensors and is_below(_short(owner.path), declared)]
    around = [path for path in _outwards(inside[0]) if _short(path) == declared] if inside else []
    for path in around:
        if all(is_below(each, path) for each in inside):
            return path
    raise unknown("head", declared, [_short(owner.path) for owner in owners if owner.tensors])


def _adapted(module: nn.Module, path: str) -> str:
    """The path of a layer; of one that adapts another, that of both."""
    return next((outer for outer in _outwards(path) if hasattr(module.get_submodule(outer), ADAPTED)), path)


def _outwards(path: str) -> list[str]:
    """A path and those of the modules that it is in, the innermost first."""
    names = path.split(".")
    return [".".join(names[:end]) for end in range(len(names), 0, -1)]


def _outputs(owners: list[_Owner]) -> list[str]:
    """The linear layers with trained tensors whose outputs no other layer is as wide as to take.

    A frozen layer is no candidate: PEFT keeps a frozen copy of each classifier beside the trained one.
    """
    linear = [owner for owner in owners if owner.parameters and isinstance(owner.module, nn.Linear)]
    return [owner.path for owner in linear if not any(_takes(other, owner) for other in owners if other is not owner)]


def _takes(owner: _Owner, before: _Owner) -> bool:
    """Whether a tensor of a layer has a side as wide as what another gives: of a matrix any but its own outputs."""
    width = before.module.out_features
    names = [name.rpartition(".")[2] for name in owner.parameters + owner.frozen]
    shapes = [_lookup(owner.module, name).shape for name in names]
    return any(width in (shape[1:] if len(shape) > 1 else shape * (owner.kind in NORMALISATIONS)) for shape in shapes)


def _owners(module: nn.Module) -> Iterator[_Owner]:
    """The modules with columns."""
    return (owner for owner in _all_owners(module) if owner.tensors)


def _all_owners(module: nn.Module) -> Iterator[_Owner]:
    seen: set[int] = set()
    for path, sub in module.named_modules():
        parameters = [(n, p) for n, p in sub.named_parameters(recurse=False) if id(p) not in seen]
        seen |= {id(p) for _, p in parameters}
        persistent = [(n, b) for n, b in sub.named_buffers(recurse=False) if n not in sub._non_persistent_buffers_set]
        floats = [n for n, b in persistent if b.is_floating_point()]
        if isinstance(sub, _BatchNorm) and sub.momentum is None and sub.track_running_stats:
            raise ModelError(f"'{path}' has momentum=None, a mean over all batches, which is unsupported: set a number")
        if parameters or floats:
            prefix = path + "." if path else ""
            kind = next((k for k, cls in _KINDS.items() if isinstance(sub, cls)), "other")
            trained = tuple(prefix + n for n, p in parameters if p.requires_grad)
            frozen = tuple(prefix + n for n, p in parameters if not p.requires_grad)
            buffers = tuple(prefix + n for n in floats)
            if frozen and not trained:
                buffers, frozen = (), frozen + buffers
            yield _Owner(path, sub, kind, trained, buffers, frozen)


def _lookup(module: nn.Module, name: str) -> Tensor:
    path, _, leaf = name.rpartition(".")
    tensor: Tensor = getattr(module.get_submodule(path), leaf)
    return tensor


def _short(path: str) -> str:
    """A path without what a wrapper adds to it: ours, or that of PEFT."""
    bare = path.removeprefix(INNER + ".")
    if not bare.startswith(PEFT):
        return bare
    return ".".join(name for name in bare.removeprefix(PEFT).split(".") if name not in PEFT_PARTS)


def _blocks(module: nn.Module, owners: list[_Owner]) -> dict[str, str]:
    """The block of each owner: as the model's stages say, else the top-level child it is in."""
    inner: Any = getattr(module, INNER, module)
    prefixes: dict[str, str] = {}
    if callable(getattr(inner, "stages", None)):
        prefixes = {prefix: stage.name for stage in inner.stages() for prefix in stage.modules}
    return {owner.path: _block(_short(owner.path), prefixes) for owner in owners}


def _parts(module: nn.Module, head: str, owners: list[_Owner]) -> dict[str, str]:
    """The part of a composed head that each of its owners is in: the child of the head, with its path."""
    if not getattr(module.get_submodule(head), COMPOSED, False):
        return {}
    inside = [owner.path for owner in owners if is_below(owner.path, head)]
    depth = head.count(".") + 2
    return {path: _short(".".join(path.split(".")[:depth])) for path in inside}


def _block(path: str, prefixes: dict[str, str]) -> str:
    inside = [p for p in prefixes if is_below(path, p)]
    return prefixes[max(inside, key=len)] if inside else path.partition(".")[0]


def _home(owner: _Owner, name: str, granularity: Granularity, blocks: dict[str, str]) -> str:
    """The layer a tensor belongs to; statistics go with the first parameter of their module."""
    if granularity == "block":
        return blocks[owner.path] or _short(name)
    if granularity == "module":
        return _short(owner.path) or name
    if name in owner.parameters:
        return _short(name)
    return _short(owner.parameters[0] if owner.parameters else owner.path)


def _followed(owners: list[_Owner]) -> dict[str, _Owner]:
    """For each normalisation the layer that it follows: the nearest before it that is as wide.

    Where that is the same layer for several, although one as wide before it has none (as when a model makes all its
    convolutions first), they are paired in their order.
    """
    nearest = {norm.path: followed for norm in owners if (followed := _normalised(norm, owners)) is not None}
    for place, layer in enumerate(owners):
        rivals = [path for path, followed in nearest.items() if followed is layer]
        if len(rivals) > 1:
            taken = {followed.path for followed in nearest.values()}
            free = [owner for owner in owners[:place] if owner.path not in taken and _width(owner) == _width(layer)]
            nearest |= zip(rivals, free[1 - len(rivals) :], strict=False)
    return nearest


def _normalised(norm: _Owner, owners: list[_Owner]) -> _Owner | None:
    """The nearest layer before a normalisation that gives as many channels as it normalises."""
    if norm.kind not in NORMALISATIONS:
        return None
    width = next((_lookup(norm.module, n.rpartition(".")[2]).numel() for n in norm.tensors), 0)
    before = owners[: owners.index(norm)]
    return next((owner for owner in reversed(before) if _width(owner) == width), None)


def _width(owner: _Owner) -> int | None:
    """How many channels a convolution or a linear layer gives."""
    weight = getattr(owner.module, "weight", None) if owner.kind in ("convolution", "linear") else None
    return weight.shape[0] if isinstance(weight, Tensor) else None
