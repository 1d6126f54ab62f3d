"""The data of a cohort: how many samples each client has, and the batches they make."""

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.round import Round
from stratafl.errors import DataError
from stratafl.runtime.batches import Batches, BatchPlan, sample_positions
from stratafl.runtime.runtime import Runtime


class CohortData:
    """What C clients know of their data in one round."""

    def __init__(
        self, runtime: Runtime, ids: Tensor, rnd: Round, splits: tuple[str, ...] = ("train",), watched: bool = False
    ) -> None:
        if len(ids) == 0:
            raise DataError("the cohort is empty: a round needs at least one client")
        self._runtime, self._rnd, self._splits = runtime, rnd, splits
        self.ids = ids.to(runtime.device)
        self._clients = ids.tolist()
        self.layout = runtime.layout
        self.classes = runtime.federation.classes
        self.watched = watched  # whether anybody reads what costs time to note
        self.notes: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def note(self, name: str, values: Tensor) -> None:
        self.notes[name] = values

    def sizes(self, split: str = "train") -> Tensor:
        return torch.tensor(self._counts(split), device=self._runtime.device)

    def class_counts(self, split: str = "train") -> Tensor:
        self._check(split)
        counts: Tensor = self._runtime.federation.class_counts(split)[self._clients].to(self._runtime.device)
        return counts

    def _counts(self, split: str) -> list[int]:
        self._check(split)
        counts: list[int] = self._runtime.federation.counts(split)[self._clients].tolist()
        return counts

    def _check(self, split: str) -> None:
        if split not in self._splits:
            raise DataError(f"the algorithm may not read the split '{split}': it declares {', '.join(self._splits)}")

    def _offsets(self, split: str) -> Tensor:
        offsets: Tensor = self._runtime.federation.split(split).offsets[self._clients].to(self._runtime.device)
        return offsets

    def _read(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        return self._runtime.read(self._runtime.data, samples)

    def _batches(self, plan: BatchPlan, purpose: str, shuffle: bool, order: list[int], split: str = "train") -> Batches:
        """The batches of all clients, in this order."""
        device = self._runtime.device
        base = self._rnd.keys(self.ids, purpose)
        epochs = torch.stack([keys.fold(base, e) for e in range(max(plan.epochs, 1))])
        samples = self._runtime.federation.split(split).indices.to(device)
        positions = sample_positions(plan, epochs, self._offsets(split), shuffle=shuffle).clamp(max=len(samples) - 1)
        sizes = plan.sizes()[order]
        noise = self._rnd.keys(self.ids[order], f"{purpose}/noise")[:, None]
        steps, place = torch.arange(plan.longest, device=device), torch.arange(plan.batch, device=device)
        weight = (place < sizes.to(device)[:, :, None]).to(self._runtime.dtype)
        return Batches(samples[positions[order]], weight, keys.fold(noise, steps), sizes)
