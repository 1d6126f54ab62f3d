"""Values of named fields: a tensor, or blocks by tensor name; the same few operations on both."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from stratafl.core.layout import Rows

Value = Tensor | Rows


class Computed(Mapping[str, Tensor]):
    """Blocks that are computed when they are asked for, so that only one of them is there at a time."""

    def __init__(self, names: Iterable[str], block: Callable[[str], Tensor]) -> None:
        self._names, self._block = tuple(names), block

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._block(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __or__(self, other: Mapping[str, Tensor]) -> Rows:
        return {**self, **other}


State = dict[str, Value]
Kind = tuple[torch.dtype, tuple[int, ...]]  # of a tensor: its type and its shape
Index = Tensor | slice | int


def apply(function: Callable[[Tensor], Tensor], value: Value) -> Value:
    """The function on the tensor, or on each block."""
    if isinstance(value, Tensor):
        return function(value)
    return {name: function(block) for name, block in value.items()}


def combine(function: Callable[[Sequence[Tensor]], Tensor], values: Sequence[Value]) -> Value:
    """The function on several tensors, or on the blocks of each name."""
    first = values[0]
    if isinstance(first, Tensor):
        return function([v for v in values if isinstance(v, Tensor)])
    return {name: function([v[name] for v in values if not isinstance(v, Tensor)]) for name in first}


def rows_of(state: Mapping[str, Value], name: str) -> Rows:
    value = state[name]
    if isinstance(value, Tensor):
        raise TypeError(f"field '{name}' is a tensor, not rows")
    return value


def tensor_of(state: Mapping[str, Value], name: str) -> Tensor:
    value = state[name]
    if not isinstance(value, Tensor):
        raise TypeError(f"field '{name}' is rows, not a tensor")
    return value


def pick(state: Mapping[str, Value], index: Index) -> State:
    """The rows at an index; what all rows share stays shared, however they are picked."""
    return {name: apply(lambda x: _picked(x, index), value) for name, value in state.items()}


def shared(x: Tensor) -> bool:
    """Whether all clients look at one and the same row."""
    return x.stride(0) == 0 and len(x) > 1


def common(rows: Mapping[str, Tensor]) -> Rows:
    """The one row that all clients share; an error if each has its own, as clients of several runs have."""
    apart = [name for name, x in rows.items() if len(x) > 1 and not shared(x)]
    if apart:
        raise ValueError(f"'{apart[0]}' is not a row that all clients share")
    return {name: x[0] for name, x in rows.items()}


def _picked(x: Tensor, index: Index) -> Tensor:
    if isinstance(index, Tensor) and index.ndim == 1 and index.dtype == torch.int64 and x.ndim and shared(x):
        return x[:1].expand(len(index), *x.shape[1:])
    return x[index]


def stack(blocks: Sequence[Tensor]) -> Tensor:
    return torch.cat(tuple(blocks))


def join_states(states: Sequence[Mapping[str, Value]]) -> State:
    """Rows of several states, one below the other."""
    return {name: combine(stack, [s[name] for s in states]) for name in states[0]}


def interleaved(states: Sequence[Mapping[str, Value]], places: Sequence[Tensor]) -> State:
    """Rows of several states, each at its places; every row has memory of its own."""

    def rows(blocks: Sequence[Tensor]) -> Tensor:
        whole = blocks[0].new_empty(sum(map(len, places)), *blocks[0].shape[1:])
        for place, block in zip(places, blocks, strict=True):
            whole[place] = block
        return whole

    return {name: combine(rows, [s[name] for s in states]) for name in states[0]}


def stacked(states: Sequence[Mapping[str, Value]]) -> State:
    """States of single clients as rows."""
    return {name: combine(lambda each: torch.stack(tuple(each)), [s[name] for s in states]) for name in states[0]}


def separate(state: Mapping[str, Value]) -> State:
    """A copy in which each row has memory of its own: clients that enrol may all look at the initial model."""
    return {
        name: apply(lambda x: x.clone(memory_format=torch.contiguous_format), value) for name, value in state.items()
    }


def rejoin(before: Mapping[str, Value], states: Sequence[Mapping[str, Value]]) -> State:
    """The same as `join_states` for states that were slices of `before`; what was moved in place is not copied."""
    whole = {name: value if isinstance(value, Tensor) else dict(value) for name, value in before.items()}
    return {name: combine(_rejoined, [whole[name], *(s[name] for s in states)]) for name in states[0]}


def _rejoined(blocks: Sequence[Tensor]) -> Tensor:
    before, *parts = blocks
    return before if sum(map(len, parts)) == len(before) and _are_slices(before, parts) else stack(parts)


def _are_slices(before: Tensor, parts: Sequence[Tensor]) -> bool:
    """Whether these are slices of one tensor, one below the other."""
    start, row = before.data_ptr(), before.stride(0) * before.element_size()
    for part in parts:
        like = part.dtype == before.dtype and part.shape[1:] == before.shape[1:]
        if not like or part.data_ptr() != start or part.stride() != before.stride():
            return False
        start += len(part) * row
    return True


def flatten(state: Mapping[str, Value], prefix: str = "") -> Rows:
    """One flat name per tensor: `field` or `field/tensor`."""
    flat: Rows = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            flat[prefix + name] = value
        else:
            flat |= {f"{prefix}{name}/{key}": block for key, block in value.items()}
            if not value:
                flat[f"{prefix}{name}/"] = torch.empty(0)  # a field that holds no layer is a field all the same
    return flat


def unflatten(flat: Mapping[str, Tensor], prefix: str = "") -> State:
    state: State = {}
    for path, tensor in flat.items():
        if not path.startswith(prefix):
            continue
        name, slash, key = path.removeprefix(prefix).partition("/")
        if not slash:
            state[name] = tensor
            continue
        blocks = state.setdefault(name, {})
        if isinstance(blocks, dict) and key:
            blocks[key] = tensor
    return state


def kind(tensor: Tensor) -> Kind:
    return tensor.dtype, tuple(tensor.shape)


def form_difference(expected: Mapping[str, Kind], flat: Mapping[str, Tensor]) -> str | None:
    """How flat tensors differ from the expected names, types and shapes, at the first place; None if they do not."""
    for name in expected:
        if name not in flat:
            return f"'{name}' is missing"
    for name, tensor in flat.items():
        if name not in expected:
            return f"'{name[:60]}' is not part of it"
        if kind(tensor) != expected[name]:
            kinds = [f"{dtype} {list(shape)}" for dtype, shape in (kind(tensor), expected[name])]
            return f"'{name}' is {kinds[0]}, not {kinds[1]}"
    return None


def tensors(state: Mapping[str, Value]) -> Iterable[Tensor]:
    for value in state.values():
        yield from (value,) if isinstance(value, Tensor) else value.values()


def stored_elements(state: Mapping[str, Value]) -> int:
    return sum(x.numel() for x in tensors(state))


def bytes_of(x: Tensor) -> Tensor:
    """Its numbers as bytes, one after the other."""
    flat = x.detach().contiguous().reshape(-1)
    if flat.stride() != (1,):  # of a single number, for which torch calls any stride contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def stored_bytes(state: Mapping[str, Value]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors(state))


def clone(state: Mapping[str, Value]) -> State:
    return {name: apply(Tensor.clone, value) for name, value in state.items()}


def moved(state: Mapping[str, Value], device: torch.device) -> State:
    """The state on a device; tensors that are there already are not copied."""
    return {name: apply(lambda x: x.to(device), value) for name, value in state.items()}


def expand(rows: Mapping[str, Tensor], count: int) -> Rows:
    """One row, seen `count` times without a copy."""
    return {name: block.expand(count, *block.shape) for name, block in rows.items()}
