"""Suspects: columns of a table that number its rows, name its clients, or give the label away.

A model learns nothing of use from an identifier, and from a column that is only known after the outcome what it will
not have for new samples. Both look like success until then. Nothing is left out: the columns are named.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stratafl.data.federation import SPLITS, Federation

Array = NDArray[Any]
_MAX_ROWS, _MIN_ROWS = 20_000, 20  # rows that are read, and that are needed
_MIN_OF_CLASS = 5  # samples of a class: with fewer, chance may separate it from the others
_SPREAD = 100  # identifiers are at most this many times as spread out as there are rows …
_EXACT = 1 << 24  # … or this large, where whole numbers lose digits
_SEPARATES, _FOLLOWS, _TELLS = 0.99, 0.999, 0.95  # an AUROC, a correlation, a share of wrong guesses that it mends


class Suspect(NamedTuple):
    """A column, and what is suspicious about it."""

    column: str
    kind: str  # "identifier" or "leak"
    why: str


def suspects(federation: Federation) -> tuple[Suspect, ...]:
    """The suspicious columns of a table; of samples that were standardised, those found before."""
    if federation.suspects is not None:
        return federation.suspects
    indices = torch.cat([federation.splits[split].indices for split in SPLITS])
    client = torch.cat([federation.splits[split].clients() for split in SPLITS]).numpy()
    if not federation.column_names or not federation.x.is_floating_point() or len(indices) < _MIN_ROWS:
        return ()
    chosen = torch.linspace(0, len(indices) - 1, min(len(indices), _MAX_ROWS)).long()
    rows, client = indices[chosen], client[chosen.numpy()]
    x, y = federation.x[rows].double().cpu().numpy(), federation.y[rows].cpu().numpy().reshape(len(rows), -1)[:, 0]
    flagged = list[Suspect]()
    if federation.codes:  # a missing cell is a value like others
        x = np.where(np.isnan(x), np.nanmin(x, initial=0.0) - 1, x)
    for name, values in zip(federation.column_names, x.T, strict=True):
        tests = {"identifier": _numbering(values, client), "leak": _telling(values, y, federation.classes)}
        flagged += [Suspect(name, kind, why) for kind, why in tests.items() if why][:1]
    return tuple(flagged)


def suspect_warnings(federation: Federation) -> list[str]:
    """A line for each suspicious column."""
    kinds = {"identifier": "it is an identifier", "leak": "it is only known with the label"}
    return [f"column '{column}' {why}: remove it if {kinds[kind]}" for column, kind, why in suspects(federation)]


def _numbering(values: Array, client: Array) -> str:
    """How a column tells rows or clients apart; "" if it does not."""
    if not np.isfinite(values).all() or (values != np.rint(values)).any():
        return ""
    clients, counts = np.unique(client, return_counts=True)
    spread = values.max() - values.min()
    dense = spread < _SPREAD * len(values) or np.abs(values).max() >= _EXACT
    if dense and len(np.unique(values)) == len(values):
        return "has another whole number in every row"
    pairs = np.unique(np.stack([client, values]), axis=1)
    if dense and pairs.shape[1] == len(values) and counts.mean() >= _MIN_ROWS:
        return "has another whole number in every row of a client"
    named = len(clients) > 2 and pairs.shape[1] == len(clients) == len(np.unique(values))
    return "has one number per client, another for each" if named else ""


def _telling(values: Array, y: Array, classes: int | None) -> str:
    """How a column alone tells the label; "" if it does not."""
    if len(np.unique(values)) < 2 or len(np.unique(y)) < 2:
        return ""
    if classes is None:
        follows = abs(float(np.corrcoef(_ranks(values), _ranks(y))[0, 1]))
        return f"follows the label (rank correlation {follows:.3f})" if follows >= _FOLLOWS else ""
    labels, label, counts = np.unique(y, return_inverse=True, return_counts=True)
    distinct, place = np.unique(values, return_inverse=True)
    if len(distinct) <= len(values) / 10:  # few values: how often the most frequent label of a value is right
        table = np.zeros((len(distinct), len(labels)))
        np.add.at(table, (place, label), 1)
        wrong, guessed = len(values) - table.max(1).sum(), len(values) - counts.max()
        return "has a value for each label" if wrong <= (1 - _TELLS) * guessed else ""
    if counts.min() < _MIN_OF_CLASS:
        return ""
    if len(labels) == 2:
        separates = _auroc(values, label)
        return f"alone separates the classes (AUROC {separates:.3f})" if separates >= _SEPARATES else ""
    changes = int((np.diff(label[np.lexsort((label, values))]) != 0).sum())
    return "alone separates the classes" if changes == len(labels) - 1 else ""


def _ranks(values: Array) -> Array:
    """From 0 on; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts + 1) / 2)[place])


def _auroc(values: Array, positive: Array) -> float:
    """In whichever direction is better."""
    n = positive.sum()
    share = float((_ranks(values)[positive == 1].sum() - n * (n - 1) / 2) / (n * (len(positive) - n)))
    return max(share, 1 - share)
