"""Samples divided among clients."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stratafl.data.cutting import Division, Indices
from stratafl.data.federation import Federation, federate
from stratafl.data.groups import count_groups, refuse_torn, warn_of_groups
from stratafl.data.labels import name_of
from stratafl.data.partitions import Owners, Partition, drawn
from stratafl.data.samples import Samples
from stratafl.data.standard import standardised
from stratafl.data.units import far_clients


def divided(
    samples: Samples,
    *,
    clients: int,
    partition: Partition | None,
    fallback: Partition,
    validation: float,
    test: float,
    seed: int,
    minimum_test: int = 1,
    split: str = "stratified",
) -> Federation:
    """A federation of samples; without a partition, those whose samples they are, or else the fallback's clients."""
    refuse_torn(samples, partition)
    owners: list[Indices] | Division
    if partition is None and samples.owner is not None:
        owners = _with_tests(by_owner(samples.owner), samples.tests)
    else:
        asked = partition or fallback
        owners = drawn(asked, samples.y, clients, seed, tests=samples.tests, owner=samples.owner)
    kept = partition is None or isinstance(partition, Owners)
    made = federate(
        samples.x,
        samples.y,
        owners,
        classes=samples.classes,
        validation=validation,
        test=test,
        minimum_test=minimum_test,
        seed=seed,
        name=samples.name,
        client_names=_names(owners, samples.owner) if kept else (),
        scaling=samples.scaling,
        split=split,
        group=samples.group,
    )
    named = replace(made, class_names=samples.names or (), column_names=samples.columns, mode=samples.mode)
    if samples.group is not None:
        named = replace(named, group=samples.group_name, groups=count_groups(named, samples.group))
        shares = {"test": 0.0 if samples.tests is not None else test, "validation": validation}
        warn_of_groups(named, samples.group, [split for split, share in shares.items() if share > 0])
    if samples.standardise:  # afterwards no unit can be told from another
        named = replace(named, far=far_clients(named))
    return standardised(named, samples.standardise)


def _with_tests(held: list[Indices], tests: NDArray[np.bool_] | None) -> list[Indices] | Division:
    """What everybody holds; where the data says what is for testing, everybody tests on their own of that."""
    if tests is None:
        return held
    return Division([mine[~tests[mine]] for mine in held], [mine[tests[mine]] for mine in held])


def _names(owners: list[Indices] | Division, owner: NDArray[np.generic] | None) -> tuple[str, ...]:
    """Whose samples each client has, where the clients are owners."""
    if owner is None:
        return ()
    whole = owners if isinstance(owners, Division) else Division(owners)
    held = zip(whole.train, whole.test or whole.train, strict=True)  # some may have nothing but tests
    return tuple(map(name_of, owner[[np.append(*mine)[0] for mine in held]].tolist()))


def by_owner(owner: NDArray[np.generic]) -> list[Indices]:
    """The samples of each owner, owners in the order of their names."""
    _, inverse, counts = np.unique(owner, return_inverse=True, return_counts=True)
    return np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
