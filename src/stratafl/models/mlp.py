"""Fully connected networks."""

from collections.abc import Sequence

from torch import Tensor, nn

from stratafl.models.staged import Stage, Staged, flat_size, require_positive, require_sizes


class MLP(Staged):
    """Linear layers, with batch norm if asked for, and ReLU between them; without hidden layers, softmax regression."""

    def __init__(
        self, *, shape: tuple[int, ...], classes: int, hidden: Sequence[int] = (200,), norm: bool = False
    ) -> None:
        super().__init__()
        hidden = require_sizes("MLP", "hidden", hidden, "widths such as (200,)")
        require_positive("MLP", classes=classes)
        widths = (flat_size("MLP", shape), *hidden)
        self.depth, self.norm = len(hidden), norm
        for i in range(self.depth):
            self.add_module(f"fc{i + 1}", nn.Linear(widths[i], widths[i + 1]))
            if norm:
                self.add_module(f"bn{i + 1}", nn.BatchNorm1d(widths[i + 1]))
        self.fc = nn.Linear(widths[-1], classes)

    def stages(self) -> tuple[Stage, ...]:
        if self.depth == 0:  # a chain has at least two stages
            return (Stage("flatten", (), _flatten), self._head_stage())
        names = [(f"fc{i + 1}", f"bn{i + 1}") if self.norm else (f"fc{i + 1}",) for i in range(self.depth)]
        return (*(self._hidden_stage(*each) for each in names), self._head_stage())


def mnistnn(*, shape: tuple[int, ...], classes: int, width: int = 50) -> MLP:
    """FedALP's MNIST-NN: one hidden layer, by default of 50 units."""
    return MLP(shape=shape, classes=classes, hidden=(width,))


def _flatten(x: Tensor) -> Tensor:
    return x.flatten(1)
