"""Scores and features of a cohort: forward passes over whole splits."""

from collections.abc import Iterator

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.objectives import sample_hits, sample_losses
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.task import ScanStep, Scores, Stack
from stratafl.errors import DataError
from stratafl.runtime.batches import plan_batches
from stratafl.runtime.cohort import CohortData
from stratafl.runtime.engine import Engine

EVALUATION_BATCH = 256  # samples of each client
AT_ONCE = 16384  # samples of all clients on a GPU, which is idle while Python prepares small batches


class Scoring(CohortData):
    """How C clients are scored; `core.task.Task` says what each function does."""

    def scores(self, rows: Rows, split: str) -> Scores:
        total = torch.zeros(len(self), 2, dtype=torch.float64, device=self._runtime.device)
        captured = self._captured_scores(rows, split, total)
        if captured is None:
            for here, outputs, _, y, weight in self.sweep(rows, split):
                total[here] += _summed(outputs, y, weight, self.classes)
        hits, loss = (total if captured is None else captured).unbind(1)
        return Scores(hits, loss, self.sizes(split))

    def _captured_scores(self, rows: Rows, split: str, total: Tensor) -> Tensor | None:
        """Hits and loss by a captured step, where steps are captured.

        For 15,000 samples of 20 clients and ResNet-18, an H200 takes 56 ms so, and 64 to 111, depending on its host,
        where operations are launched one by one; client by client with stock convolutions it takes 110.
        """
        counts, captured = self._counts(split), self._runtime.captured
        if captured is None or not any(counts):
            return None
        most = int(self._runtime.federation.counts(split).max())
        plan = plan_batches(counts, batch=min(EVALUATION_BATCH, 1 << (most - 1).bit_length()))
        batches = self._batches(plan, "scores", False, list(range(len(self))), split)
        step, read, data = _scoring_step(self._runtime.engine, self.classes), self._runtime.read, self._runtime.data
        done = captured.scan("scores", step, read, data, {"total": total}, {"row": rows}, [batches], plan.steps)
        return None if done is None else tensor_of(done, "total")

    def features(self, rows: Rows, split: str) -> tuple[Tensor, Tensor, Tensor]:
        parts = [
            [self._for_all(here, part) for part in (features, y, weight)]
            for here, _, features, y, weight in self.sweep(rows, split)
        ]
        if not parts:
            raise DataError(f"split '{split}' is empty for all {len(self)} clients")
        z, y, weight = (torch.cat(column, 1) for column in zip(*parts, strict=True))
        return z, y, weight

    def _for_all(self, here: Tensor, part: Tensor) -> Tensor:
        """Rows of some clients, with zeros for the others."""
        return part if len(here) == len(self) else part.new_zeros(len(self), *part.shape[1:]).index_copy(0, here, part)

    def sweep(self, rows: Rows, split: str) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Clients, outputs, features, targets and weights, some samples of a split at a time, in their order.

        Only clients that have samples left take part, so that small clients do not wait for large ones.
        """
        counts, device = self._counts(split), self._runtime.device
        samples = self._runtime.federation.split(split).indices.to(device)
        limit = torch.tensor(counts, device=device)[:, None]
        offsets = self._offsets(split)[:, None]
        width = EVALUATION_BATCH if device.type == "cpu" else max(EVALUATION_BATCH, AT_ONCE // len(self))
        for start in range(0, max(counts), width):
            left = {client: count - start for client, count in enumerate(counts) if count > start}
            here = torch.tensor(list(left), device=device)
            place = torch.arange(start, start + min(width, max(left.values())), device=device)
            weight = (place < limit[here]).to(torch.float64)
            own = torch.minimum(place.expand(len(here), -1), limit[here] - 1) + offsets[here]
            x, y = self._read(samples[own])
            some = rows if len(here) == len(self) else {name: block[here] for name, block in rows.items()}
            sizes = tuple(min(count, len(place)) for count in left.values())
            outputs, features = self._runtime.engine.outputs(some, x, weight.to(self._runtime.dtype), sizes)
            yield here, outputs, features, y, weight


def _scoring_step(engine: Engine, classes: int | None) -> ScanStep:
    def step(carry: State, held: State, stack: Stack) -> State:
        outputs, _ = engine.outputs(rows_of(held, "row"), stack.x, stack.weight, stack.sizes)
        return {"total": tensor_of(carry, "total") + _summed(outputs, stack.y, stack.weight, classes)}

    return step


def _summed(outputs: Tensor, y: Tensor, weight: Tensor, classes: int | None) -> Tensor:
    """`[C, 2]`: hits and loss of each client's samples."""
    flat, target = outputs.flatten(0, 1), y.flatten(0, 1)
    hits, loss = (f(flat, target, classes).reshape(weight.shape).double() for f in (sample_hits, sample_losses))
    return torch.stack([(hits * weight).sum(1), (loss * weight).sum(1)], 1)
