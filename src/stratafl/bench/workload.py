"""What is computed: models of the bench, and random samples for them, whose content changes no time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from stratafl.data import Federation, Scaling, federate
from stratafl.data.partitions import Dirichlet
from stratafl.errors import unknown
from stratafl.models import MODELS, build

HELD_OUT = 4  # of so many samples one is a test sample
POOL = 60_000  # different samples at most: beyond it, clients share them instead of filling the memory
PAPER_SAMPLES, PAPER_CLIENTS, PAPER_ALPHA = 60_000, 20, 0.1  # FLAYER's CIFAR-100 and Tiny-ImageNet setting


@dataclass(frozen=True)
class Subject:
    """A model of the bench, its samples, and how many steps a client takes in a round unless told otherwise."""

    model: str
    shape: tuple[int, ...]
    classes: int
    steps: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scaling(self) -> Scaling | None:
        """Bytes become numbers from −1 to 1; tokens are none."""
        return None if "vocabulary" in self.options else Scaling((0.5,), (0.5,))

    def module(self) -> nn.Module:
        """The model, freshly drawn."""
        return build(self.model, shape=self.shape, classes=self.classes, **self.options)


IMAGE = (3, 32, 32)
SUBJECTS = {name: Subject(name, IMAGE, 100, 4) for name in MODELS} | {
    "mlp": Subject("mlp", (1, 8, 8), 10, 40),
    "mlp784": Subject("mlp", (1, 28, 28), 10, 40),
    "cnn": Subject("cnn", IMAGE, 100, 20),
    # fastText as in PFLlib's AG News: 200 tokens of 98,635, 32 numbers each, 4 classes
    **{name: Subject(name, (200,), 4, 20, {"vocabulary": 98_635}) for name in ("embedding", "fasttext")},
}


def subject(name: str) -> Subject:
    """The model of this name."""
    if name not in SUBJECTS:
        raise unknown("model of the bench", name, sorted(SUBJECTS))
    return SUBJECTS[name]


@dataclass(frozen=True)
class Workload:
    """How many clients there are, how many of them take part, and what each one has."""

    clients: int
    cohort: int
    batch: int
    samples: int  # of a client for training, where all have the same number
    paper: bool = False  # Dirichlet shares of 60,000 samples instead

    def federation(self, subject: Subject, seed: int = 0) -> Federation:
        """Random samples and who holds them."""
        rng = np.random.default_rng(seed)
        if self.paper:
            labels = rng.integers(0, subject.classes, PAPER_SAMPLES)
            owners = Dirichlet(PAPER_ALPHA)(labels, self.clients, seed)
            x = _drawn(subject, len(labels), rng)
            return federate(x, labels, owners, classes=subject.classes, seed=seed, scaling=subject.scaling)
        tests = max(1, self.samples // (HELD_OUT - 1))
        each = self.samples + tests
        there = min(self.clients * each, max(POOL, each))
        labels = rng.integers(0, subject.classes, there)
        owners = [np.arange(c * each, (c + 1) * each) % there for c in range(self.clients)]
        x = _drawn(subject, there, rng)
        return federate(
            x,
            labels,
            owners,
            classes=subject.classes,
            test=tests / each,
            seed=seed,
            overlap=True,
            scaling=subject.scaling,
        )


def _drawn(subject: Subject, count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Images of noise in bytes, or sequences of tokens for a model that has a vocabulary."""
    shape = (count, *subject.shape)
    if "vocabulary" in subject.options:
        return rng.integers(1, subject.options["vocabulary"], shape)
    return rng.integers(0, 256, shape, dtype=np.uint8)
