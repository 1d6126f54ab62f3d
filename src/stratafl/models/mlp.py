"""Fully connected networks."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import relu

from stratafl.errors import ModelError
from stratafl.models.staged import Stage, Staged, flat_size, require_positive


class MLP(Staged):
    """Linear layers with ReLU between them; without hidden layers, softmax regression."""

    def __init__(self, *, shape: tuple[int, ...], classes: int, hidden: Sequence[int] = (200,)) -> None:
        super().__init__()
        if isinstance(hidden, str) or not isinstance(hidden, Sequence):
            raise ModelError(f"MLP needs hidden as a sequence of widths such as (200,), got {hidden!r}")
        require_positive("MLP", classes=classes, **{f"hidden[{i}]": width for i, width in enumerate(hidden)})
        widths = (flat_size("MLP", shape), *hidden)
        self.depth = len(hidden)
        for i in range(self.depth):
            self.add_module(f"fc{i + 1}", nn.Linear(widths[i], widths[i + 1]))
        self.fc = nn.Linear(widths[-1], classes)

    def stages(self) -> tuple[Stage, ...]:
        """One stage per hidden layer, fc1 first, then the head; a parameterless `flatten` if none is hidden."""
        if self.depth == 0:
            return (Stage("flatten", (), _flatten), self._head_stage())
        names = [f"fc{i + 1}" for i in range(self.depth)]
        return (*(Stage(name, (name,), partial(self._hidden, name)) for name in names), self._head_stage())

    def _hidden(self, name: str, x: Tensor) -> Tensor:
        return relu(self._apply_module(name, x.flatten(1)))


def _flatten(x: Tensor) -> Tensor:
    return x.flatten(1)
