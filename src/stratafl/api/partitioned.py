"""Samples divided among clients in memory: those of the caller, or the digits that come with the package."""

import typing
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from stratafl.api.numbers import check_least
from stratafl.config.protocols import DATA_SETTINGS
from stratafl.core.annotations import checked
from stratafl.data import PARTITIONS, Partition, digits_arrays, draw_partition
from stratafl.data.arrays import sample_count
from stratafl.data.labels import numbered
from stratafl.errors import DataError, check_known, shown, unknown

ClientSamples = list[tuple[Any, Any]] | list[dict[str, tuple[Any, Any]]]


def digits(kind: str | Partition = "dirichlet", *, clients: int = 20, seed: int = 0, **options: Any) -> ClientSamples:
    """The 1,797 handwritten digits that come with the package, divided among clients as the commands divide them.

    Example:
        ```python
        clients = stratafl.digits(clients=20, alpha=0.3)
        fitted = stratafl.fit("fedper", clients, "mlp", rounds=10, lr=0.1)
        ```

    Args:
        kind: The name of a partition, as in `partition`.
        clients: The number of clients.
        seed: A whole number, from which the partition is drawn.
        options: Options of the partition. By default `alpha` is 0.3 for `"dirichlet"`.

    Returns:
        The samples of each client, as `partition` returns them: images `[n, 1, 8, 8]` from 0 to 1, and their digits.
    """
    usual = {"alpha": DATA_SETTINGS["digits"]["data.alpha"]} if kind == "dirichlet" else {}
    return partition(*digits_arrays(), kind, clients=clients, seed=seed, **{**usual, **options})


def partition(
    x: Any, y: Any, kind: str | Partition = "dirichlet", *, clients: int = 20, seed: int = 0, **options: Any
) -> ClientSamples:
    """Divide samples that belong together among clients, to try methods on them.

    Example:
        ```python
        clients = stratafl.partition(x, y, "dirichlet", clients=5, alpha=0.5)
        result = stratafl.compare("local,fedavg,fedper", clients, "mlp", rounds=10)
        ```

    Args:
        x: All samples: an array, a DataFrame, a list of texts or a dict of arrays.
        y: Their labels, which may be names, or numbers to predict with `"iid"`.
        kind: The name of a partition, such as `"iid"`, `"dirichlet"`, `"pfllib"` or `"classes"` (see the page on
            partitions), or a `Partition` of your own from `stratafl.methods`.
        clients: The number of clients.
        seed: A whole number, from which the partition is drawn.
        options: Options of the partition, such as `alpha=0.5` or `per_client=2`.

    Returns:
        `(x, y)` of each client in a list, as `fit` and `compare` take it. A partition that also decides who tests on
        what gives `{"train": (x, y), "test": (x, y)}` of each client.

    Raises:
        StrataError: If the partition does not exist or cannot be drawn.
    """
    check_least("clients", clients, 1)
    check_least("seed", seed, 0)
    count, targets = _count("x", x), _count("y", y)
    if count != targets:
        raise DataError(f"x holds {count} samples, but y holds {targets} targets")
    labels = y.cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    drawn = draw_partition(_partition_named(kind, options), numbered(_cells(labels), "y"), clients, seed)
    train = [(_rows(x, rows), _rows(y, rows)) for rows in drawn.train]
    if drawn.test is None:
        return train
    test = [(_rows(x, rows), _rows(y, rows)) for rows in drawn.test]
    return [{"train": trained, "test": tested} for trained, tested in zip(train, test, strict=True)]


def _count(name: str, values: Any) -> int:
    parts = list(values.values()) if isinstance(values, Mapping) else [values]
    try:
        counts = {sample_count(part) for part in parts}
    except TypeError:
        allowed = "an array, a DataFrame, a list or a dict of arrays"
        raise DataError(f"{name} must be {allowed}, not {shown(values)}") from None
    if len(counts) != 1:
        numbers = ", ".join(map(str, sorted(counts))) or "none"
        raise DataError(f"the arrays of {name} must have one number of samples, not {numbers}")
    return counts.pop()


def _partition_named(kind: str | Partition, options: Mapping[str, Any]) -> Partition:
    """A partition by its name with these options; one that is an object has its own."""
    if isinstance(kind, Partition):
        check_known("option of a partition that is an object", options, ())
        return kind
    if not isinstance(kind, str) or kind not in PARTITIONS:
        raise unknown("partition", str(kind), PARTITIONS)
    hints = typing.get_type_hints(PARTITIONS[kind].__init__, include_extras=True)
    hints.pop("return", None)
    check_known(f"option of partition '{kind}'", options, hints)
    return PARTITIONS[kind](**{name: checked(name, hints[name], value) for name, value in options.items()})


def _cells(labels: Any) -> Any:
    """Labels as columns of files hold them: names in a list."""
    return labels.tolist() if labels.dtype.kind in "OUS" else labels


def _rows(values: Any, rows: Any) -> Any:
    """Some samples of an array, a DataFrame, a list or a dict of arrays."""
    if isinstance(values, Mapping):
        return {name: _rows(array, rows) for name, array in values.items()}
    if isinstance(values, list | tuple):
        return [values[row] for row in rows.tolist()]
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]
