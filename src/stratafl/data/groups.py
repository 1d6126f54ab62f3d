"""Samples that belong together, such as the images of one patient: what a partition and a split may not tear apart."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.data.federation import SPLITS, Federation
from stratafl.data.partitions import Owners, Partition
from stratafl.data.samples import Samples
from stratafl.errors import DataError, counted

_FEW = 3  # clients that are named one by one
log = logging.getLogger("stratafl")


def refuse_torn(samples: Samples, partition: Partition | None) -> None:
    """Refuse a partition that draws clients sample by sample, because it would give one group to several of them."""
    kept = isinstance(partition, Owners) or (partition is None and samples.owner is not None)
    if samples.group is not None and not kept:
        raise DataError(
            f"data.group = '{samples.group_name}' keeps samples together, but this partition draws clients sample by "
            "sample: name the clients with data.client and leave data.partition at 'auto', or leave out data.group"
        )


def held_groups(federation: Federation, group: NDArray[Any]) -> list[NDArray[Any]]:
    """The groups of each client."""
    mine = (
        np.concatenate([federation.splits[split].of(client).numpy() for split in SPLITS])
        for client in range(federation.clients)
    )
    return [np.unique(group[each]) for each in mine]


def count_groups(federation: Federation, group: NDArray[Any]) -> int:
    """How many groups there are among the samples that somebody holds."""
    return len(np.unique(np.concatenate(held_groups(federation, group))))


def warn_of_groups(federation: Federation, group: NDArray[Any], wanted: Sequence[str]) -> None:
    """Say aloud which clients have too few groups for the parts that are wanted, and whether clients share a group."""
    held = held_groups(federation, group)
    for split in wanted:
        counts = federation.counts(split)
        without = [client for client in range(federation.clients) if not counts[client]]
        if without:
            named = ", ".join(f"'{federation.client_name(client)}'" for client in without[:_FEW])
            more = ", …" if len(without) > _FEW else ""
            log.warning(
                "%s (%s%s) with too few groups of '%s' for a %s part: the groups stay together, and are trained on",
                counted(len(without), "client"),
                named,
                more,
                federation.group,
                split,
            )
    _, clients = np.unique(np.concatenate(held), return_counts=True)
    if (clients > 1).any():
        log.warning(
            "%s of '%s' with samples of several clients: one client may test on a group that another trains on",
            counted(int((clients > 1).sum()), "group"),
            federation.group,
        )
