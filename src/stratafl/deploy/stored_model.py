"""A site's final model in a file of its own, so that predictions need none of the samples that it was trained on.

The model may be tuned on them, and its preprocessing may hold their means: both are computed once, when the last parcel
has come.
"""

from contextlib import suppress
from pathlib import Path

from torch import nn

from stratafl.data.preprocessing import preprocessing_from
from stratafl.errors import DamagedError
from stratafl.execute.drawing import filled
from stratafl.execute.exchange.protocol import MAX_MESSAGE_BYTES
from stratafl.execute.exchange.site_store import Final
from stratafl.execute.exchange.state_file import read_state, write_state
from stratafl.execute.site import Site
from stratafl.export import Predictor

MODEL = "model.safetensors"  # in a site's folder


def write_model(folder: Path, site: Site, final: Final) -> None:
    """Write the model that a site ends with."""
    rows = site.deployed(final.round, final.state, final.parcel)
    preprocessing = site.runtime.federation.preprocessing.of(0)
    record = {"mark": final.mark, "preprocessing": preprocessing.to_table()}
    write_state(folder / MODEL, record, {name: x[0].cpu() for name, x in rows.items()})


def read_model(folder: Path, mark: str, template: nn.Module) -> Predictor | None:
    """The stored model of the end with this mark; None if there is none, or its file is damaged."""
    if not (folder / MODEL).exists():
        return None
    with suppress(DamagedError, KeyError, ValueError, RuntimeError):
        record, tensors = read_state(folder / MODEL, 2 * MAX_MESSAGE_BYTES)
        if record["mark"] != mark:
            return None
        dtype = next(x.dtype for x in template.parameters())
        return Predictor(filled(template, tensors), preprocessing_from(record["preprocessing"]), dtype)
    return None
