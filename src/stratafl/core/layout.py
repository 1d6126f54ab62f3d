"""The layout of a federation's matrix: rows are clients, columns are parameters, columns are grouped into layers.

Storage is one contiguous block `[C, *shape]` per tensor (`Rows`), not one `[C, P]` buffer that would have to be cut up
at every step; `Layout` gives the blocks their matrix meaning. Floating-point buffers (BatchNorm statistics) are columns
too: they belong to their module's layer, and norms, products and masks of *trainable* columns do not see them. Frozen
tensors are no columns: they exist once, in the module itself, and nothing of them is sent or kept for a client. Nor is
anything sent of a client's own tensors, which it computes from its data, such as the log of its class frequencies.

Axis letters, everywhere: N clients, C cohort, P columns, L layers, B batch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

import torch
from torch import Tensor

from stratafl.core.layers import Layer, Select, leaders, select
from stratafl.errors import unknown

Rows = dict[str, Tensor]
Granularity = Literal["tensor", "module", "block"]
Buffers = Literal["follow", "local"]
Columns = Literal["all", "trainable", "statistics"]
DIFFERENCES = "donot_use_mm_for_euclid_dist"  # torch's word for distances that are not from inner products


@dataclass(frozen=True)
class Spec:
    """One tensor of the model: a run of columns of one layer.

    An `own` tensor is what each client computes from its own data: it is not trained, never sent, and always stays.
    """

    name: str
    shape: tuple[int, ...]
    layer: int
    trainable: bool
    own: bool = False

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def is_statistic(self) -> bool:
        """Whether training updates it without a gradient, as BatchNorm's running mean."""
        return not self.trainable and not self.own


class Layout:
    """Names ↔ columns, and the kernels of the matrix: spread, dot, blend, mask, norms, gram, distances."""

    def __init__(
        self,
        specs: Iterable[Spec],
        layers: Iterable[Layer],
        buffers: Buffers = "follow",
        frozen: tuple[str, ...] = (),
    ) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.layers = tuple(layers)
        self.buffers = buffers
        self.frozen = frozen  # tensors outside the matrix, which all clients share
        self._resolved: dict[Select, tuple[str, ...]] = {}
        self.index = {layer.name: i for i, layer in enumerate(self.layers)}

    def __repr__(self) -> str:
        return f"Layout({len(self.layers)} layers, {self.columns:,} columns, buffers={self.buffers!r})"

    # Names

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.index)

    @property
    def columns(self) -> int:
        """P: the number of trainable columns."""
        return sum(spec.size for spec in self.specs.values() if spec.trainable)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of columns of each layer, statistics included."""
        return tuple(sum(self.specs[name].size for name in layer.tensors) for layer in self.layers)

    @property
    def computing(self) -> tuple[int, ...]:
        """The places of the layers that are trained and are more than a normalisation."""
        trained = {self.specs[name].layer for name in self.trainable()}
        return tuple(i for i, layer in enumerate(self.layers) if i in trained and layer.computes)

    @cached_property
    def leaders(self) -> tuple[int, ...]:
        """For each layer the place of the one it belongs to: of a normalisation what it normalises, else itself."""
        return tuple(self.index[layer.normalises or layer.name] for layer in self.layers)

    @cached_property
    def units(self) -> tuple[int, ...]:
        """For each layer the unit it is part of, from 0 in forward order: a layer with its normalisations is one unit.

        A composed head is one unit. `first:2` and `last:2` count units.
        """
        first = [self.index[leader] for leader in leaders(self.layers).values()]
        order = sorted(set(first))
        return tuple(order.index(leader) for leader in first)

    def layer(self, name: str) -> Layer:
        if name not in self.index:
            raise unknown("layer", name, self.index)
        return self.layers[self.index[name]]

    def resolve(self, layers: str | Select) -> tuple[str, ...]:
        chosen = select(layers)
        if chosen not in self._resolved:
            self._resolved[chosen] = chosen.resolve(self.layers, self.frozen)
        return self._resolved[chosen]

    def trainable(self, layers: str | Select = "all") -> tuple[str, ...]:
        """The tensors of these layers that are trained."""
        return tuple(name for name in self._tensors(layers) if self.specs[name].trainable)

    def travelling(self, layers: str | Select = "all") -> tuple[str, ...]:
        """The tensors of these layers that may be sent: statistics only when buffers follow their layer."""
        if self.buffers == "local":
            return self.trainable(layers)
        return tuple(name for name in self._tensors(layers) if not self.specs[name].own)

    def staying(self, layers: str | Select = "all") -> tuple[str, ...]:
        """The tensors a client keeps if it keeps these layers: with local buffers, all statistics as well."""
        tensors = {*self._tensors(layers), *self.own()}
        if self.buffers == "local":
            tensors |= {spec.name for spec in self.specs.values() if spec.is_statistic}
        return tuple(name for name in self.specs if name in tensors)

    def own(self, layers: str | Select = "all") -> tuple[str, ...]:
        """The tensors of these layers that each client computes from its own data."""
        return tuple(name for name in self._tensors(layers) if self.specs[name].own)

    def only(self, names: Iterable[str], columns: Columns) -> tuple[str, ...]:
        """Of these tensors all, those that are trained, or the statistics."""
        if columns == "all":
            return tuple(names)
        trained = columns == "trainable"
        return tuple(n for n in names if (self.specs[n].trainable if trained else self.specs[n].is_statistic))

    def _tensors(self, layers: str | Select) -> tuple[str, ...]:
        chosen = {self.index[name] for name in self.resolve(layers)}
        return tuple(spec.name for spec in self.specs.values() if spec.layer in chosen)

    # Kernels

    def layer_mask(self, layers: str | Select, device: torch.device | None = None) -> Tensor:
        """`[L]` booleans: which layers are chosen."""
        mask = torch.zeros(len(self.layers), dtype=torch.bool, device=device)
        mask[[self.index[name] for name in self.resolve(layers)]] = True
        return mask

    def spread(self, values: Tensor, names: Iterable[str]) -> Rows:
        """`[…, L]` values, one per layer, to the tensors of the layers: `[…, 1, …, 1]`, ready to broadcast."""
        # A tuple: a parameter without axes and values without a client axis leave no sizes to name.
        return {n: values[..., s.layer].reshape((*values.shape[:-1], *(1,) * len(s.shape))) for n, s in self._of(names)}

    def per_unit(self, values: Tensor) -> Tensor:
        """`[C, L]` values, one per layer, summed over the layers of each unit."""
        sums: dict[int, Tensor] = {}
        for unit, column in zip(self.units, values.unbind(1), strict=True):
            sums[unit] = sums[unit] + column if unit in sums else column
        return torch.stack([sums[unit] for unit in sorted(sums)], 1)

    def dot(self, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
        """`[C, L]`: the inner product of the trainable columns of each layer, row by row."""
        names = [name for name, spec in self._of(a) if spec.trainable]
        return self._per_layer({n: row_dot(*_pair(a, b, n)) for n in names}, dim=-1)

    def norms(self, a: Mapping[str, Tensor]) -> Tensor:
        """`[C, L]`: the Euclidean norm of the trainable columns of each layer."""
        return self.dot(a, a).sqrt()

    def gram(self, a: Mapping[str, Tensor]) -> Tensor:
        """`[L, C, C]`: the inner products of all pairs of rows, layer by layer."""
        return self.cross(a, a)

    def cross(self, a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, row_by_row: bool = False) -> Tensor:
        """`[L, C, N]`: the inner products of the trainable columns of all rows of `a` with all rows of `b`.

        With `row_by_row`, as a training step needs it, the bits of a row do not depend on how many there are.
        """
        names = [name for name, spec in self._of(a) if spec.trainable]
        pairs = ((n, *_pair(a, b, n)) for n in names)
        return self._per_layer({n: _product(flat_rows(x), flat_rows(y).T, row_by_row) for n, x, y in pairs}, dim=0)

    def squared_distances(self, a: Mapping[str, Tensor]) -> Tensor:
        """`[C, C]`: ‖a_i − a_j‖² over the trainable columns.

        From differences: equal rows are at distance 0, which sums of inner products would miss.
        """
        flat = [flat_rows(a[name]) for name, spec in self._of(a) if spec.trainable]
        return sum((torch.cdist(x, x, compute_mode=DIFFERENCES).square() for x in flat), torch.zeros(()))

    def blend(self, weights: Tensor, rows: Mapping[str, Tensor], *, row_by_row: bool = False) -> Rows:
        """Mix rows: block by block `W_l · Θ_l`, for `weights` `[L, C, N]` or `[C, N]`, rows `[N, …]`.

        Statistics follow their layer. With `row_by_row`, as a training step needs it, the bits of a mixture do not
        depend on how many there are.
        """
        of_layer = weights if weights.ndim == 3 else [weights] * len(self.layers)
        blocks = ((n, s, _product(of_layer[s.layer], flat_rows(rows[n]), row_by_row)) for n, s in self._of(rows))
        return {name: block.reshape(-1, *spec.shape) for name, spec, block in blocks}

    def mask(self, chosen: Mapping[str, Tensor], a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Rows:
        """Column by column `a` where chosen, else `b`; `chosen` broadcasts (as `spread` gives it) or is dense."""
        return {name: torch.where(chosen[name], a[name], b[name]) for name in a}

    def _of(self, names: Iterable[str]) -> list[tuple[str, Spec]]:
        # In the layout's order, whatever order a dictionary came in: sums over tensors must not depend on it.
        wanted = set(names)
        return [(name, spec) for name, spec in self.specs.items() if name in wanted]

    def _per_layer(self, parts: Rows, dim: int) -> Tensor:
        like = next(iter(parts.values()))
        sums = [torch.zeros_like(like) for _ in self.layers]
        for name, part in parts.items():
            sums[self.specs[name].layer] = sums[self.specs[name].layer] + part
        return torch.stack(sums, dim)


def _pair(a: Mapping[str, Tensor], b: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    block = a[name]  # once: it may be computed when it is asked for
    return block, block if a is b else b[name]


def flat_rows(block: Tensor) -> Tensor:
    """A block `[n, …]` as a matrix, a row for each client."""
    return block.reshape(len(block), -1)  # not flatten(1), which a parameter without axes has not


def _product(a: Tensor, b: Tensor, row_by_row: bool) -> Tensor:
    """A product of matrices; if asked for, row by row on a CPU, without a copy: that may take four times as long."""
    if row_by_row and a.device.type == "cpu":
        return torch.bmm(a.unsqueeze(1), b.expand(len(a), *b.shape)).squeeze(1)
    return a @ b


def per_row(values: Tensor, block: Tensor) -> Tensor:
    """Values `[n]`, one for each row, ready to broadcast against a block `[n, …]`."""
    return values.reshape(-1, *(1,) * (block.ndim - 1))


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    """`[C]`: the inner product of two blocks, row by row."""
    # A batched product gives each row the same bits for every C; a sum over [1, P] is split over threads. On a GPU it
    # gives each row one block of threads, and FLAYER's norms would take longer than its step.
    if a.device.type != "cpu":
        return (flat_rows(a) * flat_rows(b)).sum(1)
    return torch.bmm(a.reshape(len(a), 1, -1), b.reshape(len(b), -1, 1)).reshape(-1)
