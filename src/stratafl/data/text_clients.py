"""Clients that hold lists of texts: they are read as a table with one column of texts is."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stratafl.data.arrays import client_pair
from stratafl.data.builders import ARRAYS, Clients, names_and_samples, pairs_of_splits, titles_of
from stratafl.data.frames import OWNER
from stratafl.data.labels import name_of
from stratafl.data.reading import Reading
from stratafl.data.samples import Samples
from stratafl.data.splitting import check_some_samples
from stratafl.data.tables.kinds import TEXT
from stratafl.data.texts import are_texts, text_in_cell
from stratafl.data.user_files import LABELS, column_samples
from stratafl.errors import DataError


def hold_texts(clients: Any) -> bool:
    """Whether the samples of a client, or of a split of one, are texts."""
    values = list(clients.values()) if isinstance(clients, Mapping) else clients if isinstance(clients, list) else []
    pairs = [pair for samples in values for pair in (samples.values() if isinstance(samples, Mapping) else [samples])]
    return any(isinstance(pair, tuple | list) and len(pair) == 2 and are_texts(pair[0]) for pair in pairs)


def text_samples(clients: Clients) -> Samples:
    """The samples of clients that hold texts, `(texts, y)` or splits of such pairs, as a table of one column has them.

    Owners are numbered in the order of clients.
    """
    names, values = names_and_samples(clients)
    titles, apart = titles_of(names, len(values)), any(isinstance(samples, Mapping) for samples in values)
    texts, labels, owner, part = list[Any](), list[Any](), list[int](), list[str]()
    for number, (samples, title) in enumerate(zip(values, titles, strict=True)):
        pairs = pairs_of_splits(title, samples) if apart else {"train": client_pair(samples, title)}
        for split, (x, y) in pairs.items():
            own_texts, targets = _in_order(x, f"x of {title}", "texts"), _in_order(y, f"y of {title}", "targets")
            if len(own_texts) != len(targets):
                raise DataError(f"x of {title} holds {len(own_texts)} samples, but y holds {len(targets)} targets")
            texts += [text_in_cell(cell, row, f"x of {title}") for row, cell in enumerate(own_texts, start=1)]
            labels, owner, part = labels + targets, owner + [number] * len(own_texts), part + [split] * len(own_texts)
        if number not in owner:
            check_some_samples(0, title)
    are_numbers = np.asarray(labels).dtype.kind in "biuf"
    columns = {
        TEXT: texts,
        LABELS[0]: np.asarray(labels) if are_numbers else list(map(name_of, labels)),
        OWNER: np.array(owner),
    }
    reading, parts = Reading(columns=f"{TEXT}:{TEXT}"), np.array(part)
    whole = column_samples(columns, parts == "test", reading, Path(ARRAYS))
    own_splits = {"tests": parts == "test", "validations": parts == "validation"} if apart else {}
    return replace(whole, clients=names, **own_splits)


def _in_order(values: Any, where: str, what: str) -> list[Any]:
    """The cells of a list or an array. The letters of a text are no samples, and a set has no order."""
    cells = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(cells, str | bytes | Set | Mapping) or not isinstance(cells, Iterable):
        raise DataError(f"{where} is a {type(cells).__name__}: give a list of {what}")
    return list(cells)
