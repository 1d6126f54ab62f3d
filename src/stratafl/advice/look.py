"""Facts about a federation: sizes, label skew, feature shift between clients, and conflicts between updates.

Each number that could be an accident comes with what accident alone would give (`Effect`), from permutations of labels
among all samples, or of clients among the samples of a class.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stratafl.advice.cuts import Cut, cut_layers, cuts_of, first_gradients, sensitivities
from stratafl.core import keys
from stratafl.core.layout import Rows
from stratafl.core.reprs import short_repr
from stratafl.data import Federation
from stratafl.evaluation.diagnostics import conflict_numbers
from stratafl.evaluation.evaluate import client_models
from stratafl.execute import Matrix, Progress, Simulation
from stratafl.execute.round_run import Report
from stratafl.report.gains.traits import class_skew

DRAWS = 99  # permutations: the smallest p is 0.01
SAMPLES = 4000  # that feature shift looks at, at most
WIDTH = 64  # of features; wider ones are projected at random
QUANTILES = 4  # the classes of a regression, where samples with similar targets are compared
LARGEST_P = 0.05  # the largest p of an effect that is there
STRONG = 0.05  # the share of scatter between clients from which features are said to differ
LARGEST_GROUPED = 100  # clients: more are not grouped
MOST_GROUPS = 6
SEPARATED = 0.3  # the silhouette from which groups of clients count as groups

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Effect:
    """A number from 0 to 1, what it is on average by accident, and how often accident gives as much."""

    value: float
    accident: float
    p: float

    @property
    def there(self) -> bool:
        return self.p <= LARGEST_P and self.value > self.accident

    @staticmethod
    def of(value: float, accidents: Sequence[float]) -> "Effect":
        as_much = sum(each >= value for each in accidents)
        return Effect(value, float(np.mean(accidents)), (1 + as_much) / (1 + len(accidents)))


@dataclass(frozen=True)
class LayerConflict:
    """Of one layer: the share of pairs of clients whose updates of the first epoch point apart, and the mean cosine."""

    layer: str
    conflicts: float
    cosine: float


@short_repr
@dataclass(frozen=True)
class Facts:
    """What was seen before any method was compared; `groups` has a number per client, or is empty for no groups."""

    clients: int
    sizes: tuple[int, ...]  # training samples of each client
    classes: int | None
    skew: Effect | None  # of labels
    shift: Effect | None  # of features within a class
    groups: tuple[int, ...]
    layers: tuple[LayerConflict, ...]
    batchnorm: bool
    cuts: tuple[Cut, ...] = ()  # between shared and personal layers, as each rule has it

    @property
    def group_count(self) -> int:
        return len(set(self.groups)) if self.groups else 1


def look(federation: Federation, sim: Simulation, progress: Progress) -> tuple[Facts, Progress, Report]:
    """The facts of a federation, and a simulation of FedAvg one round on, which they needed.

    The round costs client-steps; FedAvg can go on from it.
    """
    seen: list[Rows] = []
    layout, rnd = sim.setup.layout, sim.at(progress.t)
    sensitivity = torch.zeros(len(cut_layers(layout)), dtype=torch.float64)

    def examine(ids: Tensor, received: Rows, trained: Rows) -> None:
        nonlocal sensitivity
        gradients = first_gradients(sim.task(ids, rnd), trained)
        sensitivity = sensitivity + len(ids) * sensitivities(layout, trained, gradients)
        seen.append({name: trained[name] - received[name] for name in layout.trainable()})

    after, report = sim.round(progress, Matrix(), examine=examine)
    z, label, client = head_features(federation, sim, after)
    shift = feature_shift(z, label, client, seed=sim.setup.seed)
    differ = shift is not None and shift.there and shift.value >= STRONG
    groups = client_groups(z, label, client, federation.clients) if differ else ()
    kinds = {layer.kind for layer in layout.layers}
    conflicts = layer_conflicts(sim, seen)
    cuts = cuts_of(layout, sensitivity.tolist(), {each.layer: each.conflicts for each in conflicts})
    facts = Facts(
        federation.clients,
        tuple(federation.counts("train").tolist()),
        federation.classes,
        label_skew(federation, sim.setup.seed),
        shift,
        groups,
        conflicts,
        "batchnorm" in kinds,
        cuts,
    )
    return facts, after, report


# Labels


def label_skew(federation: Federation, seed: int = 0) -> Effect | None:
    """How far clients' class frequencies are from the pooled ones: the mean class skew (total variation).

    0: all alike; 1 − 1/K: one class per client, all as frequent. Targets that are numbers are taken by quantiles. None
    for one class or one client.
    """
    label, client = _strata(federation)
    if len(np.unique(label)) < 2 or federation.clients < 2:
        return None
    rng = np.random.default_rng([seed, 1])
    accidents = [total_variation(rng.permutation(label), client) for _ in range(DRAWS)]
    return Effect.of(total_variation(label, client), accidents)


def total_variation(label: Whole, client: Whole) -> float:
    counts = np.zeros((int(client.max()) + 1, int(label.max()) + 1))
    np.add.at(counts, (client, label), 1)
    return float(np.nanmean(class_skew(counts)))


def _strata(federation: Federation) -> tuple[Whole, Whole]:
    """The class of each training sample, or the quantile of its target, and whose it is."""
    training = federation.split("train")
    y = federation.y.cpu()[training.indices].numpy()
    if federation.classes is None:
        y = _quantile(y if y.ndim == 1 else y.reshape(len(y), -1)[:, 0])
    return y.astype(np.int64), training.clients().numpy()


def _quantile(values: Numbers) -> Whole:
    edges = np.quantile(values, np.arange(1, QUANTILES) / QUANTILES)
    classes: Whole = np.searchsorted(edges, values, side="right").astype(np.int64)
    return classes


# Features


def head_features(federation: Federation, sim: Simulation, progress: Progress) -> tuple[Numbers, Whole, Whole]:
    """What the shared model gives its head for training samples of all clients, their class, and whose they are."""
    parts, owners, labels = list[Tensor](), list[Tensor](), list[Tensor]()
    with sim.arithmetic(), torch.no_grad():
        for some in client_models(sim, progress, torch.arange(sim.setup.clients)):
            z, y, weight = sim.task(some.ids, some.rnd, splits=("train",)).features(some.rows("received"), "train")
            real = weight > 0
            parts.append(z[real].flatten(1).double().cpu())
            labels.append(y[real].cpu())
            owners.append(some.ids[:, None].expand(weight.shape)[real.cpu()])
    z, y, owner = torch.cat(parts), torch.cat(labels), torch.cat(owners)
    chosen = torch.argsort(keys.keys(sim.setup.seed, 0, torch.arange(len(z)), "advice/features"))[:SAMPLES]
    target = y[chosen].reshape(len(chosen), -1)[:, 0].numpy()
    label = target if federation.classes is not None else _quantile(target)
    return _narrow(z[chosen], sim.setup.seed).numpy(), label.astype(np.int64), owner[chosen].numpy()


def _narrow(z: Tensor, seed: int) -> Tensor:
    """At most `WIDTH` features: random directions keep distances."""
    if z.shape[1] <= WIDTH:
        return z
    generator = torch.Generator().manual_seed(seed)
    narrow: Tensor = z @ torch.randn(z.shape[1], WIDTH, generator=generator, dtype=z.dtype) / WIDTH**0.5
    return narrow


def feature_shift(z: Numbers, label: Whole, client: Whole, seed: int = 0) -> Effect | None:
    """The share of the scatter within a class that is between clients: ω² of the clients' class means.

    With B between the clients' means of a class and W within them, and s² = W/(n − cells):
    ω² = (B − (cells − classes)·s²) / (B + W + s²). None if no two clients share a class.
    """
    value = _omega(z, label, client)
    if value is None:
        return None
    rng = np.random.default_rng([seed, 2])
    accidents = [_omega(z, label, _permuted_within(label, client, rng)) or 0.0 for _ in range(DRAWS)]
    effect = Effect.of(value, accidents)
    return Effect(max(0.0, effect.value), max(0.0, effect.accident), effect.p)


def _permuted_within(label: Whole, client: Whole, rng: np.random.Generator) -> Whole:
    """The clients of each class in another order."""
    order = np.lexsort((rng.random(len(label)), label))
    place = np.argsort(label, kind="stable")
    permuted = np.empty_like(client)
    permuted[place] = client[order]
    return permuted


def _omega(z: Numbers, label: Whole, client: Whole) -> float | None:
    cells, cell = np.unique(np.stack([label, client]), axis=1, return_inverse=True)
    cell = cell.reshape(-1)
    classes, n = len(np.unique(label)), len(z)
    between_freedom, within_freedom = cells.shape[1] - classes, n - cells.shape[1]
    if between_freedom < 1 or within_freedom < 1:
        return None
    of_cells, of_classes = (_explained(z, each) for each in (cell, label))
    between, within = of_cells - of_classes, float((z**2).sum()) - of_cells
    spread = within / within_freedom
    total = between + within + spread
    return float((between - between_freedom * spread) / total) if total > 0 else 0.0


def _explained(z: Numbers, cell: Whole) -> float:
    """Σ over cells of ‖sum‖²/n."""
    sums, counts = _sums(z, cell, int(cell.max()) + 1)
    return float(((sums**2).sum(1) / np.maximum(counts, 1)).sum())


def _sums(z: Numbers, cell: Whole, cells: int) -> tuple[Numbers, Numbers]:
    sums, counts = np.zeros((cells, z.shape[1])), np.bincount(cell, minlength=cells).astype(np.float64)
    np.add.at(sums, cell, z)
    return sums, counts


# Groups of clients


def client_groups(z: Numbers, label: Whole, client: Whole, clients: int) -> tuple[int, ...]:
    """The group of each client by the distances of its class means from those of the others; () for no clear groups."""
    if not 4 <= clients <= LARGEST_GROUPED:
        return ()
    distance = client_distances(z, label, client, clients)
    merged = _linked(distance)
    best, best_groups = SEPARATED, tuple[int, ...]()
    for count in range(2, min(MOST_GROUPS, clients // 2) + 1):
        groups = merged[count]
        score = _silhouette(distance, groups)
        if score > best:
            best, best_groups = score, tuple(groups.tolist())
    return best_groups


def client_distances(z: Numbers, label: Whole, client: Whole, clients: int) -> Numbers:
    """`[N, N]`: mean over shared classes of ‖μ_kc − μ_lc‖²/s² − 1/n_kc − 1/n_lc, which is 0 on average without a shift.

    Pairs without a class in common get the mean of the others.
    """
    classes = int(label.max()) + 1
    sums, flat = _sums(z, client * classes + label, clients * classes)
    counts = flat.reshape(clients, classes)
    means = sums.reshape(clients, classes, -1) / np.maximum(counts, 1)[..., None]
    within = float((z**2).sum()) - float((counts[..., None] * means**2).sum())
    spread = within / max(1, len(z) - int((counts > 0).sum()))
    top, bottom = np.zeros((clients, clients)), np.zeros((clients, clients))
    for c in range(classes):
        n, mean = counts[:, c], means[:, c]
        both = np.minimum.outer(n, n) * (np.minimum.outer(n, n) > 0)
        squared = ((mean[:, None] - mean[None]) ** 2).sum(2) / max(spread, 1e-30)
        noise = np.add.outer(1 / np.maximum(n, 1), 1 / np.maximum(n, 1))
        top, bottom = top + both * (squared - noise), bottom + both
    comparable = bottom > 0
    distance = np.where(comparable, top / np.maximum(bottom, 1e-30), 0.0)
    other = comparable & ~np.eye(clients, dtype=bool)
    distance = np.where(comparable, np.maximum(distance, 0.0), distance[other].mean() if other.any() else 0.0)
    np.fill_diagonal(distance, 0.0)
    return distance


def _linked(distance: Numbers) -> dict[int, Whole]:
    """Average linkage: the groups of the clients, by the number of groups."""
    groups = {client: [client] for client in range(len(distance))}
    by_count: dict[int, Whole] = {}
    while len(groups) > 1:
        names = list(groups)
        pairs = ((distance[np.ix_(groups[a], groups[b])].mean(), a, b) for a in names for b in names if a < b)
        _, a, b = min(pairs)
        groups[a] += groups.pop(b)
        if len(groups) <= MOST_GROUPS:
            by_count[len(groups)] = _numbered(groups, len(distance))
    return by_count


def _numbered(groups: dict[int, list[int]], clients: int) -> Whole:
    numbers = np.zeros(clients, np.int64)
    for number, members in enumerate(groups.values()):
        numbers[members] = number
    return numbers


def _silhouette(distance: Numbers, groups: Whole) -> float:
    """The mean over clients of (b − a)/max(a, b): a to its own group, b to the nearest other; 0 for a group of one."""
    scores = []
    for client, group in enumerate(groups):
        same_group = (groups == group) & (np.arange(len(groups)) != client)
        others = [distance[client, groups == each].mean() for each in np.unique(groups) if each != group]
        a, b = distance[client, same_group].mean() if same_group.any() else np.nan, min(others)
        scores.append((b - a) / max(a, b, 1e-30) if same_group.any() else 0.0)
    return float(np.mean(scores))


# Layers


def layer_conflicts(sim: Simulation, seen: Sequence[Rows]) -> tuple[LayerConflict, ...]:
    """Of each layer that clients changed: how often the updates of two clients point apart after one epoch."""
    if not seen:
        return ()
    update = {name: torch.cat([rows[name] for rows in seen]) for name in seen[0]}
    numbers = conflict_numbers(update, sim.setup.layout)
    if "conflicts" not in numbers:  # of a single client
        return ()
    columns = zip(sim.setup.layout.names, numbers["conflicts"], numbers["cosine"], strict=True)
    return tuple(LayerConflict(*each) for each in columns if each[1] is not None)  # type: ignore[arg-type]
