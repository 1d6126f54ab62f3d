"""Builders: from arrays, clients or samples to a federation.

`from_samples` is what an experiment uses: it draws the partition, splits, keeps groups together and standardises.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stratafl.core.reprs import holder
from stratafl.data.arrays import (
    Array,
    Part,
    align_columns,
    cells_of,
    client_pair,
    column_names,
    join_parts,
    plain_tensor,
    sample_count,
    stack_inputs,
)
from stratafl.data.cache import draw_partition
from stratafl.data.encoded_tables import encoded
from stratafl.data.federation import SPLITS, Federation, Ragged
from stratafl.data.labels import name_of, without_names
from stratafl.data.outliers import outliers
from stratafl.data.partitions import Assignment, Owners, Partition
from stratafl.data.partitions.base import Indices, by_owner
from stratafl.data.preprocessing import Scaling
from stratafl.data.reading import half
from stratafl.data.sample_format import SampleFormat
from stratafl.data.samples import Samples
from stratafl.data.splitting import SplitPlan, Splitter, check_some_clients, check_some_samples
from stratafl.data.suspects import suspects
from stratafl.data.tables.kinds import Codes, TableColumn, coded_columns, joined_cells, plain_cells
from stratafl.errors import DataError, counted, shown, unknown

# The samples of each client, (x, y) or a Dataset or its splits: in a list, or by the clients' names.
Clients = Sequence[Any] | Mapping[str, Any]
ARRAYS = "arrays"  # the name of a federation without one
_MAX_NAMED_CLIENTS = 3  # clients that a warning names
log = logging.getLogger("stratafl")


def federate(
    x: Array,
    y: Array,
    assignment: Sequence[Any] | Assignment,
    *,
    classes: int | None = None,
    validation: float = 0.0,
    test: float = 0.25,
    minimum_test: int = 1,
    seed: int = 0,
    name: str = ARRAYS,
    client_names: tuple[str, ...] = (),
    overlap: bool = False,
    dtype: torch.dtype = torch.float32,
    scaling: Scaling | None = None,
    split: str = "stratified",
    group: Any = None,
) -> Federation:
    """A federation from arrays and, for each client, the indices of its samples.

    Each client's samples are split into test, validation and train, independently of the other clients; both held-out
    parts are rounded up. The split is stratified by class, or as `SplitPlan` says, and samples with the same value in
    `group` stay in one part. With `overlap=True` one client may train on a sample that another one tests on. If the
    assignment says who tests on what, only the validation part is split off from the training samples.
    """
    where = "" if name == ARRAYS else f" of '{name}'"
    columns = column_names(x)
    x, y, classes = join_parts([Part(where, x, y)], classes, dtype, pixels=scaling is not None)
    whole = assignment if isinstance(assignment, Assignment) else Assignment(list(assignment))
    whole = replace(whole, overlap=whole.overlap or overlap)
    plan = SplitPlan(validation, test, minimum_test, seed, split)
    splitter = Splitter(_labels(y), plan, _group(group, len(y)), client_names)
    splits = _ragged(splitter.split_assignment(whole))
    return Federation(x, y, classes, splits, name, scaling, client_names, column_names=columns)


def from_objects(clients: Clients, *, validation: float, test: float, seed: int, split: str) -> Federation:
    """A federation from the samples of each client: to be split, or each client with its own splits."""
    _, values = names_and_samples(clients)
    if any(isinstance(samples, Mapping) for samples in values):
        return from_splits(clients)
    return from_clients(clients, validation=validation, test=test, seed=seed, split=split)


def from_clients(
    clients: Clients,
    *,
    classes: int | None = None,
    validation: float = 0.0,
    test: float = 0.25,
    minimum_test: int = 1,
    seed: int = 0,
    name: str = ARRAYS,
    dtype: torch.dtype = torch.float32,
    split: str = "stratified",
) -> Federation:
    """A federation from the samples of each client, each split into test, validation and train as by `federate`.

    They are `(x, y)` or a torch `Dataset` of such pairs, in a list or by the clients' names; labels may be names.
    """
    names, values = names_and_samples(clients)
    titles = titles_of(names, len(values))
    pairs = [client_pair(samples, title) for samples, title in zip(values, titles, strict=True)]
    parts, inputs = stack_inputs([Part(f" of {title}", *pair) for title, pair in zip(titles, pairs, strict=True)])
    for part, title in zip(parts, titles, strict=True):
        check_some_samples(len(part.x), title)
    parts, columns = align_columns(parts)
    parts, class_names = without_names(parts, name)
    parts, coded = _coded(parts, columns)
    x, y, classes = join_parts(parts, classes if class_names == () else len(class_names), dtype)
    indices = _consecutive([len(part.x) for part in parts])
    splitter = Splitter(_labels(y), SplitPlan(validation, test, minimum_test, seed, split), names=names)
    splits = _ragged(splitter.split_clients(indices))
    columns = columns if coded is None else ()
    federation = Federation(x, y, classes, splits, name, None, names, class_names, columns, inputs)
    return federation if coded is None else coded.of(federation)


def from_splits(
    clients: Clients, *, classes: int | None = None, name: str = ARRAYS, dtype: torch.dtype = torch.float32
) -> Federation:
    """A federation from clients that are split already: each has a `train` and may have a `test` and a `validation`."""
    names, values = names_and_samples(clients)
    titles = titles_of(names, len(values))
    split_pairs = [pairs_of_splits(title, splits) for title, splits in zip(titles, values, strict=True)]
    counts = [{split: sample_count(x) for split, (x, _) in pairs.items()} for pairs in split_pairs]
    sizes = {split: [of_client.get(split, 0) for of_client in counts] for split in SPLITS}
    # empty arrays are left out, because their shape and dtype may be anything
    present = [(split, i) for split in SPLITS for i, size in enumerate(sizes[split]) if size]
    parts, inputs = stack_inputs([Part(f" of {titles[i]} ({split})", *split_pairs[i][split]) for split, i in present])
    parts, columns = align_columns(parts)
    parts, class_names = without_names(parts, name)
    parts, coded = _coded(parts, columns)
    x, y, classes = join_parts(parts, classes if class_names == () else len(class_names), dtype)
    indices = _consecutive([size for split in SPLITS for size in sizes[split]])
    N = len(values)
    splits = {split: Ragged.from_lists(indices[i * N : (i + 1) * N]) for i, split in enumerate(SPLITS)}
    columns = columns if coded is None else ()
    federation = Federation(x, y, classes, splits, name, None, names, class_names, columns, inputs)
    return federation if coded is None else coded.of(federation)


@holder
class CodedTable:
    """The columns of tables that have more than numbers, and the codes of all their rows."""

    columns: tuple[TableColumn, ...]
    codes: Codes

    def of(self, federation: Federation) -> Federation:
        """The federation with these codes as its samples."""
        names = tuple(column.name for column in self.columns if column.is_coded)
        return replace(federation, x=torch.from_numpy(self.codes), column_names=names, codes=self.columns)


def _coded(parts: Sequence[Part], names: Sequence[str]) -> tuple[list[Part], CodedTable | None]:
    """The parts of tables that have more than numbers, without their samples, and the table of all; or as they are."""
    if not names or all(_are_numbers(part.x) for part in parts):
        return list(parts), None
    cells = [cells_of(part.x, names, f"x{part.where}") for part in parts]
    whole = {name: joined_cells([plain_cells(of_part[name]) for of_part in cells]) for name in names}
    columns, codes, problems = coded_columns(whole, np.repeat(np.arange(len(parts)), [len(p.x) for p in parts]), {})
    if problems or not codes:
        raise DataError(f"the tables cannot be used: {'; '.join(problems) or 'no column is more than an identifier'}")
    bare = [part._replace(x=np.zeros((len(part.x), 1), np.float32)) for part in parts]
    return bare, CodedTable(tuple(columns), np.stack(codes, axis=1))


def _are_numbers(x: Any) -> bool:
    array = np.asarray(x)
    return array.dtype.kind in "biu" or (array.dtype.kind == "f" and bool(np.isfinite(array).all()))


def client_like(samples: Any, form: SampleFormat, plan: SplitPlan, name: str, number: int) -> Federation:
    """The federation of one client that comes later, from samples as `from_objects` takes those of each client.

    Its columns, classes and scaling are those of the format; its split is the one of a client with this number.
    """
    title = f"client '{shown(name)}'"
    if isinstance(samples, Mapping):
        pairs = {split: _in_format(pair, form, title) for split, pair in pairs_of_splits(title, samples).items()}
        return form.client(pairs, name)
    x, y = _in_format(client_pair(samples, title), form, title)
    check_some_samples(len(x), title)
    if len(x) != len(y):
        raise DataError(f"x of {title} holds {len(x)} samples, but y holds {len(y)} targets")
    splitter = Splitter(_labels(y), plan, names=(name,), first=number)
    parts = splitter.split_clients([np.arange(len(y))])
    return form.client({split: (x[indices], y[indices]) for split, (indices,) in parts.items()}, name)


def _in_format(pair: tuple[Any, Any], form: SampleFormat, title: str) -> tuple[Tensor, Tensor]:
    """Samples with the columns of the format in its order, and targets with its numbers of classes."""
    x = form.raw_samples(pair[0], f"x of {title}")
    y = pair[1].cpu().numpy() if isinstance(pair[1], Tensor) else np.asarray(pair[1])
    if form.classes is None or not form.preprocessing.classes:
        return x, plain_tensor(y, f"y of {title}")
    names, numbers = np.unique(np.array(list(map(name_of, y.reshape(-1).tolist()))), return_inverse=True)
    return x, form.labels(numbers, names.tolist())


def names_and_samples(clients: Clients) -> tuple[tuple[str, ...], list[Any]]:
    """The names of clients, if they have any, and their samples."""
    check_some_clients(clients)
    if not isinstance(clients, Mapping):
        return (), list(clients)
    names = tuple(map(str, clients))
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two clients are named '{shown(twice)}': give every client a name of its own")
    return names, list(clients.values())


def titles_of(names: Sequence[str], count: int) -> list[str]:
    return [f"client '{shown(name)}'" for name in names] or [f"client {number}" for number in range(count)]


def from_samples(
    samples: Samples,
    plan: SplitPlan,
    *,
    clients: int,
    partition: Partition | None,
    fallback: Partition,
    new_clients: int = 0,
    raw: bool = False,
) -> Federation:
    """A federation of samples; without a partition, every owner of samples is a client, or `fallback` is drawn.

    `raw`: samples are neither standardised nor encoded.
    """
    _check_keeps_groups(samples, partition)
    tests = samples.tests
    if partition is None and samples.owner is not None:
        indices = by_owner(samples.owner)
        assignment = Assignment(indices)
        if tests is not None:  # each client tests on its own of them
            assignment = Assignment([rows[~tests[rows]] for rows in indices], [rows[tests[rows]] for rows in indices])
    else:
        chosen = partition or fallback
        assignment = draw_partition(chosen, samples.y, clients, plan.seed, tests=tests, owner=samples.owner)
    owned = partition is None or isinstance(partition, Owners)
    placeholder = np.zeros((len(samples.x), 1), np.float32)  # codes may be missing, which samples must not
    federation = federate(
        placeholder if samples.codes else samples.x,
        samples.y,
        assignment,
        classes=samples.classes,
        name=samples.name,
        client_names=_client_names(assignment, samples) if owned else (),
        scaling=samples.scaling,
        group=samples.group,
        **vars(plan if samples.validations is None else replace(plan, validation=0.0)),
    )
    x = torch.from_numpy(np.array(samples.x)) if samples.codes else federation.x
    federation = replace(federation, x=x, codes=samples.codes, input_names=samples.inputs)
    named = replace(
        federation,
        class_names=samples.names or (),
        column_names=samples.columns,
        mode=samples.mode,
        augmentation=samples.augmentation,
    )
    if partition is None and samples.validations is not None:
        named = replace(named, splits=_own_splits(samples, assignment))
    if samples.group is not None:
        shares = {"test": 0.0 if tests is not None else plan.test, "validation": plan.validation}
        named = _with_groups(named, samples, [split for split, share in shares.items() if share > 0])
    if samples.text is not None:
        return named.tokenized(samples.text, new_clients)
    return named if raw else with_standardised(named, samples.standardise, new_clients)


def with_scaled_pixels(federation: Federation) -> Federation:
    """Images of 8 bits in memory with the scaling that files have: as bytes, the usual learning rates diverge.

    Images of zeros and ones alone, such as masks, are taken as they are.
    """
    x = federation.x
    if federation.scaling is not None or x.dtype != torch.uint8 or x.ndim < 3 or x.max() <= 1:
        return federation
    return replace(federation, scaling=half(np.dtype(np.uint8)))


def with_standardised(federation: Federation, what: Sequence[str], new_clients: int = 0) -> Federation:
    """`Federation.standardised` of what was looked at before: it hides another unit of a client, and whole numbers.

    A coded table is encoded.
    """
    if not what and not federation.codes:
        return federation
    looked_at = replace(federation, outliers=outliers(federation), suspects=suspects(federation))
    if federation.codes:
        targets = [each for each in what if each == "y"]
        return encoded(looked_at, what, new_clients).standardised(targets, new_clients)
    return looked_at.standardised(what, new_clients)


def _labels(y: Tensor) -> NDArray[Any]:
    return (y.double() if y.is_floating_point() else y).numpy()


def _group(group: Any, samples: int) -> NDArray[Any] | None:
    values = None if group is None else np.asarray(group)
    if values is not None and values.shape != (samples,):
        raise DataError(f"group has shape {values.shape}, but there are {samples} samples: give one value per sample")
    return values


def _ragged(splits: Mapping[str, Sequence[Indices]]) -> dict[str, Ragged]:
    return {split: Ragged.from_lists(splits[split]) for split in SPLITS}


def pairs_of_splits(title: str, splits: Any) -> dict[str, tuple[Any, Any]]:
    if not isinstance(splits, Mapping):
        wanted = f"give its splits, {', '.join(SPLITS)}, as other clients have them"
        raise DataError(f"{title} is a {type(splits).__name__}: {wanted}")
    for split in splits:
        if split not in SPLITS:
            raise unknown(f"split of {title}", split, SPLITS)
    pairs = {split: client_pair(samples, f"split '{split}' of {title}") for split, samples in splits.items()}
    if "train" not in pairs or sample_count(pairs["train"][0]) == 0:
        raise DataError(f"{title} has no training sample: its splits are {', '.join(splits) or 'none'}")
    for split, (x, y) in pairs.items():
        if sample_count(x) != len(y):
            raise DataError(f"{title} holds {sample_count(x)} samples, but {len(y)} targets in its split '{split}'")
    return pairs


def _consecutive(sizes: Sequence[int]) -> list[Indices]:
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _own_splits(samples: Samples, assignment: Assignment) -> dict[str, Ragged]:
    """The splits that came with the samples."""
    validations: NDArray[np.bool_] = np.asarray(samples.validations)
    train = [rows[~validations[rows]] for rows in assignment.train]
    validation = [rows[validations[rows]] for rows in assignment.train]
    return _ragged({"train": train, "validation": validation, "test": assignment.test or [rows[:0] for rows in train]})


def samples_of_clients(federation: Federation, *, splits: bool) -> Samples:
    """The samples as clients hold them, in the order of clients, to be written; with their `splits`, or to be split."""
    if federation.preprocessing.standardises or federation.targets is not None:
        raise DataError("this federation is standardised already: give the clients' own samples, or do not standardise")
    apart = federation.apart()
    rows = {split: ragged.indices.numpy() for split, ragged in apart.splits.items()}
    owner, part = np.full(len(apart.x), -1), np.full(len(apart.x), "train", "<U10")
    for split, ragged in apart.splits.items():
        owner[rows[split]], part[rows[split]] = ragged.clients().numpy(), split
    order = np.argsort(owner, kind="stable")
    order = order[owner[order] >= 0]  # of samples that a client holds
    owned = Samples(
        apart.x[order].cpu().numpy(),
        apart.y[order].cpu().numpy(),
        classes=apart.classes,
        names=apart.class_names or None,
        owner=owner[order],
        clients=apart.client_names,
        scaling=apart.scaling,
        name=apart.name,
        columns=apart.column_names,
        codes=apart.codes,
        inputs=apart.input_names,
    )
    return replace(owned, tests=part[order] == "test", validations=part[order] == "validation") if splits else owned


def _client_names(assignment: Assignment, samples: Samples) -> tuple[str, ...]:
    if samples.owner is None:
        return ()
    pairs = zip(assignment.train, assignment.test or assignment.train, strict=True)  # a client may only test
    owners = samples.owner[[np.append(*pair)[0] for pair in pairs]].tolist()
    return tuple(samples.clients[owner] if samples.clients else name_of(owner) for owner in owners)


def _check_keeps_groups(samples: Samples, partition: Partition | None) -> None:
    """Refuse a partition that assigns single samples, because it would give one group to several clients."""
    keeps_owners = isinstance(partition, Owners) or (partition is None and samples.owner is not None)
    if samples.group is not None and not keeps_owners:
        raise DataError(
            f"data.group = '{samples.group_name}' keeps samples together, but this partition assigns single samples: "
            "name the clients with data.client and leave data.partition at 'auto', or leave out data.group"
        )


def _with_groups(federation: Federation, samples: Samples, wanted: Sequence[str]) -> Federation:
    """Count the groups; warn of clients with too few for the parts wanted, and of groups that clients share."""
    for split in wanted:
        counts = federation.counts(split)
        without = [client for client in range(federation.clients) if not counts[client]]
        if without:
            named = ", ".join(f"'{federation.client_name(client)}'" for client in without[:_MAX_NAMED_CLIENTS])
            who = f"{counted(len(without), 'client')} ({named}{', …' if len(without) > _MAX_NAMED_CLIENTS else ''})"
            which = f"too few groups of '{samples.group_name}' for a {split} part"
            log.warning("%s: %s; all their groups are used for training", which, who)
    indices = [[federation.splits[split].of(client) for split in SPLITS] for client in range(federation.clients)]
    groups = [np.unique(np.asarray(samples.group)[torch.cat(parts).numpy()]) for parts in indices]
    distinct, clients = np.unique(np.concatenate(groups), return_counts=True)
    if (clients > 1).any():
        shared = f"{counted(int((clients > 1).sum()), 'group')} of '{samples.group_name}'"
        log.warning("several clients share %s: one client may test on a group that another trains on", shared)
    return replace(federation, group=samples.group_name, groups=len(distinct))
