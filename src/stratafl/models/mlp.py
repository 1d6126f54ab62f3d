"""Fully connected networks."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import relu

from stratafl.errors import ModelError
from stratafl.models.staged import Stage, Staged, flat_size, require_positive


class MLP(Staged):
    """Linear layers, with batch norm if asked for, and ReLU between them; without hidden layers, softmax regression."""

    def __init__(
        self, *, shape: tuple[int, ...], classes: int, hidden: Sequence[int] = (200,), norm: bool = False
    ) -> None:
        super().__init__()
        if isinstance(hidden, str) or not isinstance(hidden, Sequence):
            raise ModelError(f"MLP needs hidden as a sequence of widths such as (200,), got {hidden!r}")
        require_positive("MLP", classes=classes, **{f"hidden[{i}]": width for i, width in enumerate(hidden)})
        widths = (flat_size("MLP", shape), *hidden)
        self.depth, self.norm = len(hidden), norm
        for i in range(self.depth):
            self.add_module(f"fc{i + 1}", nn.Linear(widths[i], widths[i + 1]))
            if norm:
                self.add_module(f"bn{i + 1}", nn.BatchNorm1d(widths[i + 1]))
        self.fc = nn.Linear(widths[-1], classes)

    def stages(self) -> tuple[Stage, ...]:
        """One stage per hidden layer, fc1 first, then the head; a parameterless `flatten` if none is hidden."""
        if self.depth == 0:
            return (Stage("flatten", (), _flatten), self._head_stage())
        hidden = [(f"fc{i + 1}", f"bn{i + 1}") if self.norm else (f"fc{i + 1}",) for i in range(self.depth)]
        return (*(Stage(names[0], names, partial(self._hidden, names)) for names in hidden), self._head_stage())

    def _hidden(self, names: tuple[str, ...], x: Tensor) -> Tensor:
        x = x.flatten(1)
        for name in names:
            x = self._apply_module(name, x)
        return relu(x)


def _flatten(x: Tensor) -> Tensor:
    return x.flatten(1)
