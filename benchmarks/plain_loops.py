"""FedAvg as you would write it without a library: one client after another, each with its model and torch's SGD.

Neither the baselines nor the engine shuffle here, so all see the same batches.
"""

import copy
import time
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stratafl.data import Federation
from timing import Seconds, now

LEARNING_RATE = 0.01
EVALUATED_AT_ONCE = 256
Pair = tuple[Tensor, Tensor]


class Loop:
    """Batches are slices of each client's tensors, which are on the device."""

    name: ClassVar[str] = "loop"

    def __init__(
        self, module: nn.Module, federation: Federation, ids: Iterable[int], batch: int, smallest: int, device: Any
    ) -> None:
        self.device, self._batch, self._smallest = torch.device(device), batch, smallest
        self.ids = list(ids)
        self._train, self._test = (self._sources(federation, split) for split in ("train", "test"))
        self.models = [copy.deepcopy(module).to(self.device).train() for _ in self.ids]
        counts = federation.counts("train")[self.ids].double()
        self._weights: list[float] = (counts / counts.sum()).tolist()

    def _sources(self, federation: Federation, split: str) -> list[Any]:
        """Where the batches of each client come from."""
        return [tuple(x.to(self.device) for x in _own(federation, split, client)) for client in self.ids]

    def _batches(self, source: Any, size: int) -> Iterable[Pair]:
        x, y = source
        return zip(x.split(size), y.split(size), strict=True)

    def once(self, clients: int | None = None) -> Seconds:
        """One round with its evaluation, of the first so many `clients` or of all."""
        begin, cpu = now(self.device), time.process_time()
        self._descend(clients)
        trained = now(self.device)
        self._average()
        averaged, cpu = now(self.device), time.process_time() - cpu
        self.hits = self._evaluate(clients)
        return Seconds(trained - begin, averaged - trained, now(self.device) - averaged, cpu)

    def _descend(self, clients: int | None) -> None:
        for model, source in zip(self.models[:clients], self._train[:clients], strict=True):
            optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
            for x, y in self._batches(source, self._batch):
                if len(y) >= self._smallest:  # BatchNorm may refuse a single sample; the engine skips it too
                    optimiser.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    optimiser.step()

    def _average(self) -> None:
        """Parameters and statistics, weighted by samples, into all models."""
        states = [model.state_dict() for model in self.models]
        with torch.no_grad():
            mean = {
                name: sum(w * state[name] for w, state in zip(self._weights, states, strict=True))
                for name, first in states[0].items()
                if first.is_floating_point()
            }
        for model in self.models:
            model.load_state_dict(mean, strict=False)

    @torch.no_grad()
    def _evaluate(self, clients: int | None) -> int:
        """Hits of every model on its client's test samples; the loss is computed as the engine does, and dropped."""
        hits, loss = (torch.zeros((), device=self.device) for _ in range(2))
        for model, source in zip(self.models[:clients], self._test[:clients], strict=True):
            model.eval()
            for x, y in self._batches(source, EVALUATED_AT_ONCE):
                outputs = model(x)
                loss += F.cross_entropy(outputs, y, reduction="sum")
                hits += (outputs.argmax(1) == y).sum()
            model.train()
        return int(hits)


class Loaders(Loop):
    """Batches come from a DataLoader per client over tensors in the host's memory, without worker processes."""

    name: ClassVar[str] = "loader"

    def _sources(self, federation: Federation, split: str) -> list[Any]:
        size = self._batch if split == "train" else EVALUATED_AT_ONCE
        return [DataLoader(TensorDataset(*_own(federation, split, client)), size) for client in self.ids]

    def _batches(self, source: Any, size: int) -> Iterator[Pair]:
        for x, y in source:
            yield x.to(self.device), y.to(self.device)


def _own(federation: Federation, split: str, client: int) -> Pair:
    indices = federation.split(split).of(client)
    return federation.inputs(federation.x[indices], torch.float32), federation.y[indices]


BASELINES = (Loop, Loaders)
