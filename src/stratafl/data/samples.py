"""Samples as a source gives them, before a partition assigns them to clients, and how they are stored.

The cache and the shards store the arrays of `arrays` and the JSON of `facts`; `samples_from` puts them together again.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import holder
from stratafl.data.augmentation import Augmentation
from stratafl.data.preprocessing import Scaling
from stratafl.data.tables.kinds import TableColumn, column_from
from stratafl.data.texts import TextEncoding, text_encoding_from
from stratafl.errors import DataError

FORMAT = 1
ARRAYS = ("x", "y", "tests", "validations", "owner", "group")
_FACTS = ("name", "classes", "names", "clients", "inputs", "columns", "standardise", "mode", "remark")


@holder
class Samples:
    """Samples and targets and, if the source knows it, the owner of each sample and whether it is for testing."""

    x: NDArray[Any]
    y: NDArray[Any]
    classes: int | None = None  # None: counted from the labels, or the targets are numbers
    names: tuple[str, ...] | None = None  # of the classes, in their order
    tests: NDArray[np.bool_] | None = None  # which samples are in the publishers' test set
    owner: NDArray[Any] | None = None  # the person or site that each sample belongs to, by name or number
    scaling: Scaling | None = None
    name: str = "arrays"
    columns: tuple[str, ...] = ()  # names of the numbers of a sample, if it is a row of a table
    standardise: tuple[str, ...] = ()  # "x", "y": standardised once the training samples are known
    mode: str = ""  # of the images, as in their files
    remark: str = ""  # a warning about how they were read
    codes: tuple[
        TableColumn, ...
    ] = ()  # of a table that has more than numbers; `x` holds the codes of those that count
    group: NDArray[Any] | None = None  # samples with the same value stay in one part of a split
    group_name: str | None = None  # the column of these values
    clients: tuple[str, ...] = ()  # names of the owners, if `owner` has their numbers
    inputs: tuple[str, ...] = ()  # names of the inputs that a sample stacks, for a model that names them
    validations: NDArray[np.bool_] | None = None  # which samples are for validation; `tests` then has all for testing
    elsewhere: bool = False  # in files that a table names outside of its folder, so changes would go unnoticed
    text: TextEncoding | None = None  # how texts became tokens, or will, if `x` holds their bytes
    augmentation: Augmentation | None = None  # of images, when they are trained on

    def __post_init__(self) -> None:
        for what in ("y", "tests", "validations", "owner", "group"):
            values = getattr(self, what)
            if values is not None and len(values) != len(self.x):
                raise DataError(f"'{self.name}' has {len(self.x)} samples, but '{what}' has {len(values)} values")


def facts(samples: Samples) -> dict[str, Any]:
    """Everything but the arrays, for JSON."""
    plain = {name: getattr(samples, name) for name in _FACTS}
    scaling = samples.scaling and asdict(samples.scaling)
    coded = {"codes": [column.to_list() for column in samples.codes]} if samples.codes else {}
    text = {} if samples.text is None else {"text": samples.text.to_table()}
    named = {"group": samples.group_name, "scaling": scaling}
    return {"format": FORMAT, "samples": len(samples.x), **plain, **coded, **text, **named}


def arrays(samples: Samples) -> dict[str, NDArray[Any]]:
    stored = {name: getattr(samples, name) for name in ARRAYS}
    return {name: np.asarray(array) for name, array in stored.items() if array is not None}


def samples_from(manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Samples:
    """The samples that were written; a LookupError, TypeError or ValueError if the facts or arrays do not fit."""
    scaling = manifest["scaling"]
    scaling_record = scaling and Scaling(
        tuple(scaling["mean"]), tuple(scaling["deviation"]), scaling.get("maximum", 255), scaling.get("own", False)
    )
    if manifest["format"] != FORMAT or set(stored) - set(ARRAYS) or len(stored["x"]) != manifest["samples"]:
        raise ValueError("the arrays do not fit the manifest")
    present = {name: manifest[name] for name in _FACTS if manifest.get(name) is not None}  # older versions wrote fewer
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in present.items()
    }
    codes = tuple(map(column_from, manifest.get("codes", ())))
    text = None if manifest.get("text") is None else text_encoding_from(manifest["text"])
    more: dict[str, Any] = {"group_name": manifest.get("group"), "codes": codes, "text": text}
    return Samples(**stored, **plain, **more, scaling=scaling_record or None)
