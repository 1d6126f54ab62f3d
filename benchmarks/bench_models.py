"""The workload: the models of the bench, and random samples for them, because their content does not change speed."""

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

HELD_OUT = 4  # one in so many samples is a test sample
POOL = 60_000  # at most so many different samples; more clients share them, to save memory
PAPER_SAMPLES, PAPER_ALPHA = 60_000, 0.1  # FLAYER's CIFAR-100 and Tiny-ImageNet setting


@dataclass(frozen=True)
class BenchModel:
    """A model of the bench, its samples, and how many steps a client takes per round by default."""

    name: str
    shape: tuple[int, ...]
    classes: int
    steps: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scaling(self) -> Scaling | None:
        """Bytes become numbers from −1 to 1; tokens stay as they are."""
        return None if "vocabulary" in self.options else Scaling((0.5,), (0.5,))

    def module(self) -> nn.Module:
        return build(self.name, shape=self.shape, classes=self.classes, **self.options)


IMAGE = (3, 32, 32)
BENCH_MODELS = {name: BenchModel(name, IMAGE, 100, 4) for name in MODELS} | {
    "mlp": BenchModel("mlp", (1, 8, 8), 10, 40),
    "mlp784": BenchModel("mlp", (1, 28, 28), 10, 40),
    "cnn": BenchModel("cnn", IMAGE, 100, 20),
    # fastText as in PFLlib's AG News: 200 tokens of 98,635, 32 numbers each, 4 classes
    **{name: BenchModel(name, (200,), 4, 20, {"vocabulary": 98_635}) for name in ("embedding", "fasttext")},
    "transformer": BenchModel("transformer", (32,), 4, 20, {"vocabulary": 8192}),
}


def bench_model(name: str) -> BenchModel:
    if name not in BENCH_MODELS:
        raise unknown("model of the bench", name, sorted(BENCH_MODELS))
    return BENCH_MODELS[name]


@dataclass(frozen=True)
class Workload:
    """How many clients there are, how many take part in a round, and what each one has."""

    clients: int
    cohort: int
    batch: int
    samples: int  # for training, the same for every client
    paper: bool = False  # Dirichlet shares of 60,000 samples instead

    def federation(self, model: BenchModel, seed: int = 0) -> Federation:
        rng = np.random.default_rng(seed)
        common: dict[str, Any] = {"classes": model.classes, "seed": seed, "scaling": model.scaling}
        if self.paper:
            labels = rng.integers(0, model.classes, PAPER_SAMPLES)
            owners = Dirichlet(PAPER_ALPHA)(labels, self.clients, seed)
            return federate(_drawn(model, len(labels), rng), labels, owners, **common)
        tests = max(1, self.samples // (HELD_OUT - 1))
        samples_each = self.samples + tests
        total = min(self.clients * samples_each, max(POOL, samples_each))
        labels = rng.integers(0, model.classes, total)
        owners = [np.arange(c * samples_each, (c + 1) * samples_each) % total for c in range(self.clients)]
        return federate(_drawn(model, total, rng), labels, owners, test=tests / samples_each, overlap=True, **common)


def _drawn(model: BenchModel, count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Images of noise as bytes, or sequences of tokens for a model with a vocabulary."""
    shape = (count, *model.shape)
    if "vocabulary" in model.options:
        return rng.integers(1, model.options["vocabulary"], shape)
    return rng.integers(0, 256, shape, dtype=np.uint8)
