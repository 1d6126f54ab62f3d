"""A site's final model and its predictions, from the files in the site's folder, which are only read.

The agreement, the personal state and the last parcel give the model; the site's own samples give its preprocessing.
Anybody who can read the folder can build the model, also while the site takes part.
"""

import csv
import io
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratafl.config.deployment import new_samples_of
from stratafl.core.reprs import holder
from stratafl.data.arrays import Array, plain_tensor
from stratafl.deploy.member import AGREED, FILE, STATE, SiteMember
from stratafl.errors import DeployError, RunError
from stratafl.execute.exchange import read_site, site_folder, state_form
from stratafl.execute.exchange.site_store import DELIVERED
from stratafl.execute.tokens import check_given
from stratafl.export import Predictor, finite_outputs
from stratafl.files import atomically, check_new, explained, read_plain, write_atomically
from stratafl.runs.directory import is_run

NODE = "node.toml"  # the name of the site, and where its samples are, as `strata join` was told
MAX_NODE_BYTES = 1 << 20  # bytes of that file
PREDICTION_BATCH = 4096  # samples that are predicted together
FORMATS = (".csv", ".npz")


def member_in(folder: Path, *, trust: bool = False) -> SiteMember:
    """The site that has this folder, with the samples that it joined with."""
    path = folder / NODE
    if not path.exists() or not (folder / FILE).exists():
        if is_run(folder):
            raise DeployError(
                f"'{folder}' is a run, not the folder of a site: use its models in Python, "
                f"stratafl.load('{folder}').predict(0, x) or .export(0, 'client0.onnx')"
            )
        raise DeployError(
            f"'{folder}' is not the folder of a site: name the folder that 'strata join' made, sites/NAME"
        )
    try:
        with explained("read", path):
            node = tomllib.loads(read_plain(path, MAX_NODE_BYTES).decode())
        return SiteMember(folder, str(node["site"]), str(node["data"]), trust)
    except (ValueError, KeyError) as error:
        raise DeployError(f"'{path}' is damaged: run 'strata join' again, which rewrites it") from error


def final_model(member: SiteMember) -> Predictor:
    """The model that a site ends with, which takes raw samples."""
    root, federation = member.folder / STATE, member.file.deploy.name
    if not (member.folder / AGREED).exists() or not (site_folder(root, federation, member.name) / DELIVERED).exists():
        wait = "the host sends it after the last round to every site that has joined"
        raise DeployError(f"site '{member.name}' has no final model yet: {wait}")
    site = member.site()
    final = read_site(root, federation, member.name, state_form(site.enrol())).final()
    if final is None:
        raise DeployError(f"site '{member.name}' no longer has its final model: its folder has changed")
    module = site.module(site.deployed(final.round, final.state, final.parcel))
    return Predictor(module, site.runtime.federation.preprocessing.of(0), site.runtime.dtype)


def check_prediction_file(path: Path) -> None:
    """Refuse a file for predictions that exists, or that is of no format that we write."""
    check_new([path])
    if path.suffix not in FORMATS:
        raise RunError(f"cannot write predictions to '{path}': choose a name that ends in {' or '.join(FORMATS)}")


@holder
class Predicted:
    """What a model says of samples: probabilities of classes `[n, K]`, or numbers `[n, …]`."""

    samples: tuple[str, ...]
    values: Tensor
    classes: tuple[str, ...]  # () if numbers are predicted

    @property
    def labels(self) -> list[str]:
        """The most probable class of each sample."""
        return [self.classes[place] for place in self.values.argmax(-1).tolist()]

    def write(self, path: Path) -> None:
        """Write a CSV file or an npz file; one that exists is not overwritten."""
        check_prediction_file(path)
        if path.suffix == ".csv":
            write_atomically(path, self.csv().encode())
        else:
            with explained("write", path), atomically(path) as partial, partial.open("wb") as file:
                np.savez(file, **self._arrays())

    def csv(self) -> str:
        """A line for each sample: its name, the class and the probability of each class, or the numbers."""
        text = io.StringIO()
        rows = self.values.flatten(1).tolist() if self.values.ndim > 1 else [[each] for each in self.values.tolist()]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["sample", *self._columns(len(rows[0]) if rows else 1)])
        shown = [[f"{number:.9g}" for number in row] for row in rows]  # reads back as the same float32
        firsts = [[label] for label in self.labels] if self.classes else [[] for _ in rows]
        writer.writerows([name, *first, *row] for name, first, row in zip(self.samples, firsts, shown, strict=True))
        return text.getvalue()

    def _columns(self, width: int) -> list[str]:
        if self.classes:
            return ["prediction", *(f"probability_{name}" for name in self.classes)]
        return ["prediction"] if width == 1 else [f"prediction_{number}" for number in range(1, width + 1)]

    def _arrays(self) -> dict[str, Any]:
        samples = np.array(self.samples)
        if not self.classes:
            return {"sample": samples, "prediction": self.values.numpy()}
        probabilities = self.values.numpy()
        named = {"sample": samples, "prediction": np.array(self.labels), "classes": np.array(self.classes)}
        return {**named, "probabilities": probabilities}


def predicted(member: SiteMember, place: Path) -> Predicted:
    """What a site's final model says of the samples in a file or folder."""
    model = final_model(member)
    agreed = member.agreed_format()
    samples = new_samples_of(member.file.experiment, agreed, place)
    outputs = finite_outputs(_outputs(model, samples.x), model, f"site '{member.name}'")
    if agreed.classes is None:
        return Predicted(samples.names, outputs, ())
    names = agreed.preprocessing.classes or tuple(map(str, range(agreed.classes)))
    return Predicted(samples.names, torch.softmax(outputs.double(), -1).float(), names)


def _outputs(model: Predictor, x: Array) -> Tensor:
    samples = model.preprocessing.raw(plain_tensor(x, "x"))
    check_given(model.module, samples)
    with torch.no_grad():
        return torch.cat([model(part) for part in samples.split(PREDICTION_BATCH)])
