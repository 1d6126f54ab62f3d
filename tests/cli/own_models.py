"""Models and methods as a person might write them in a file of their own, for `--model own_models:Name`."""

import os
import signal
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from torch import Tensor, nn

from stratafl.algorithms import fedavg
from stratafl.core.records import record
from stratafl.core.steps import MergeSums

NUMBER = 3  # not something that can be called


class Perceptron(nn.Module):
    """Takes the shape of the samples and the number of classes, and an option."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 8):
        super().__init__()
        size = 1
        for length in shape:
            size *= length
        self.hidden = nn.Linear(size, width)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x.flatten(1)).relu())


class Recurrent(nn.Module):
    """Reads an image line by line."""

    def __init__(self, classes: int, width: int = 12):
        super().__init__()
        self.lstm = nn.LSTM(8, width, batch_first=True)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x.squeeze(1))
        return self.out(states[:, -1])


class Attentive(nn.Module):
    """The lines of an image look at each other."""

    def __init__(self, classes: int):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        lines = self.embed(x.squeeze(1))
        seen, _ = self.attention(lines, lines, lines)
        return self.out(self.norm(lines + seen).mean(1))


class Branching(Perceptron):
    """Does one thing or another, depending on the values."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x.flatten(1))
        if hidden.sum() > 0:
            hidden = 0.5 * hidden
        return self.out(hidden.relu())


class Held(Perceptron):
    """Waits in a training step for as long as a file `hold` names a journal that has a line.

    A file `held-…` then says whether the process was asked to stop.
    """

    def forward(self, x: Tensor) -> Tensor:
        while self.training and _has_a_line(Path("hold")):
            asked = getattr(signal.getsignal(signal.SIGTERM), "asked", False)
            Path(f"held-{os.getpid()}").write_text(str(asked))
            time.sleep(0.01)
        return super().forward(x)


def _has_a_line(hold: Path) -> bool:
    try:
        return b"\n" in Path(hold.read_text()).read_bytes()
    except FileNotFoundError:  # nothing is held, or not yet
        return False


def factory(classes: int, widths: list[int]) -> nn.Module:
    """A function that makes a model."""
    sizes = [64, *widths]
    hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], classes))


class ThreeOutputs(Perceptron):
    def __init__(self, shape: tuple[int, ...]):
        super().__init__(shape, 3)


class WrongShape(Perceptron):
    def __init__(self, classes: int):
        super().__init__((63,), classes)


class ConstructorRaises(nn.Module):
    def __init__(self, classes: int):
        raise ValueError(f"{classes} classes are\ntoo many for me")


class ForwardRaises(Perceptron):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("no such thing")


class ForwardMistyped(Perceptron):
    def forward(self, x: Tensor) -> Tensor:
        return self.outt(self.hidden(x.flatten(1)))


class ForwardAsserts(Perceptron):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3, "wants three channels"
        return super().forward(x)


def text(classes: int) -> str:
    return "this is not a model"


def words() -> str:
    return "this is not a method"


@record
class NewestWins(MergeSums):
    """Takes the upload of whoever comes last."""

    reads = ("up.theta",)
    writes = ("theta",)

    def fold(self, rnd, server, sums, up, ids):
        return {"last": {name: rows[-1] for name, rows in up["theta"].rows.items()}}

    def finish(self, rnd, server, sums):
        return {"theta": sums["last"]}


def last_one_wins():
    """A method that depends on the order of the clients."""
    return replace(fedavg(), merge=(NewestWins(),))
