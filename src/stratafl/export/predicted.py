"""Predictions of new samples by a client's model, as a table that is printed or written."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratafl.core.reprs import holder
from stratafl.data.arrays import Array, plain_tensor
from stratafl.data.sample_format import SampleFormat
from stratafl.data.site_samples import NewSamples
from stratafl.errors import RunError
from stratafl.execute.tokens import check_given
from stratafl.export import Predictor, finite_outputs
from stratafl.files import atomically, check_new, explained, write_atomically

PREDICTION_BATCH = 4096  # samples that are predicted together
FORMATS = (".csv", ".npz")


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


def predict_samples(model: Predictor, samples: NewSamples, form: SampleFormat, whose: str) -> Predicted:
    """What a model says of raw samples; probabilities if there are classes."""
    outputs = finite_outputs(_outputs(model, samples.x), model, whose)
    if form.classes is None:
        return Predicted(samples.names, outputs, ())
    return Predicted(samples.names, torch.softmax(outputs.double(), -1).float(), form.class_names)


def _outputs(model: Predictor, x: Array) -> Tensor:
    samples = model.preprocessing.raw(plain_tensor(x, "x"))
    check_given(model.module, samples)
    with torch.no_grad():
        return torch.cat([model(part) for part in samples.split(PREDICTION_BATCH)])
