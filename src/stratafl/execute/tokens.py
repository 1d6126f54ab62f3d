"""Token ids and the embedding table that they index: an id outside the table is an error before the first round."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stratafl.data import Federation
from stratafl.data.preprocessing import PIXELS
from stratafl.errors import DataError, shown
from stratafl.models import AdaptedModel


def table_size(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, place: int | None = None) -> int | None:
    """The number of rows of the table that all tokens of a sample index; None if there is no such table.

    Where a sample stacks several inputs of a model, `place` says which of them has the tokens. Tables of positions or
    of token types take as many indices, but not the tokens: which a table takes is seen from a sample that looks like
    nothing else.
    """
    if dtype.is_floating_point or dtype in PIXELS:  # pixels become numbers before a model sees them
        return None
    count = torch.Size(shape if place is None else shape[1:]).numel()
    tokens = (torch.arange(count) * 7 + 5) % 11 + 5
    sizes = list[int]()

    def watch(table: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        index = inputs[0] if inputs else named.get("input")
        if not isinstance(index, Tensor) or index.is_floating_point():
            return None
        if index.numel() == count and torch.equal(index.flatten().long().sort()[0], tokens.sort()[0]):
            sizes.append(int(table.num_embeddings))  # type: ignore[arg-type]
        first = torch.zeros_like(index)  # which every table has
        return ((first, *inputs[1:]), named) if inputs else (inputs, {**named, "input": first})

    sample = tokens.to(dtype).reshape(1, *(shape if place is None else shape[1:]))
    if place is not None:
        sample = torch.stack([sample if each == place else torch.ones_like(sample) for each in range(shape[0])], 1)
    tables = [each for each in module.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]
    hooks = [each.register_forward_pre_hook(watch, with_kwargs=True) for each in tables]
    try:
        if tables:
            with torch.no_grad():
                module(sample)
    except Exception:  # a model that does not accept the samples is refused elsewhere, with the reason
        return None
    finally:
        for hook in hooks:
            hook.remove()
    return min(sizes, default=None)


def check_tokens(module: nn.Module, federation: Federation) -> None:
    """Raise if a client holds an id outside the model's table."""
    check_given(module, federation.x, lambda sample: f"client '{shown(_owner(federation, sample))}'")


def check_given(module: nn.Module, x: Tensor, name: Callable[[int], str] = "sample {}".format) -> None:
    """Raise if a sample holds an id outside the model's table."""
    inputs = module.inputs if isinstance(module, AdaptedModel) else ()
    for place in range(len(inputs)) if inputs else (None,):
        size = table_size(module, tuple(x.shape[1:]), x.dtype, place)
        _check_ids(x if place is None else x[:, place], size, name)


def _check_ids(x: Tensor, size: int | None, name: Callable[[int], str]) -> None:
    if size is None or not x.numel() or (int(x.min()) >= 0 and int(x.max()) < size):
        return
    sample = int(((x < 0) | (x >= size)).flatten(1).any(1).nonzero()[0])
    token = int(x[sample][(x[sample] < 0) | (x[sample] >= size)].flatten()[0])
    raise DataError(
        f"{name(sample)} has the token {token}, but the model's embedding table takes 0 to {size - 1}: "
        "make the table larger (with models of the catalogue: --set model.vocabulary=N), or map the tokens into it"
    )


def _owner(federation: Federation, sample: int) -> str:
    for split in federation.splits.values():
        place = (split.indices == sample).nonzero()
        if len(place):
            return federation.client_name(int(torch.searchsorted(split.offsets, place[0, 0], right=True)) - 1)
    return "nobody"
