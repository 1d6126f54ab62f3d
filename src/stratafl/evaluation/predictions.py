"""Predictions: the outputs of models for single samples, from which every metric is computed.

They are computed only where a metric needs more than hits and loss, and once at the end of a run.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from math import isfinite, log
from typing import NamedTuple

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.objectives import sample_losses
from stratafl.core.reprs import holder, short_repr
from stratafl.core.round import Round
from stratafl.core.task import Scores
from stratafl.errors import DataError
from stratafl.evaluation.evaluate import after_training, client_models
from stratafl.evaluation.metrics import Metric, confusion, hits, is_guess, label_losses
from stratafl.execute.packing import sendable
from stratafl.execute.process_group import ProcessGroup
from stratafl.execute.simulation import Progress, Simulation

BLOCK_SCORES = 1 << 22  # scores of clients side by side, padded to the largest of them


@short_repr
class _Block(NamedTuple):
    """Clients of similar size, whose samples stand in the rows of one matrix."""

    places: Tensor  # [C], in `Predictions.clients`
    samples: Tensor  # [C, n]; a row goes on with arbitrary samples behind the client's own
    counts: Tensor  # [C, 1]: how many of a row are the client's own


@holder
class Predictions:
    """One row per sample: its client, its target, and the scores of that client's model.

    Scores are probabilities of the classes, or for numbers the outputs `[n, 1]`. Where a client's model is not finite,
    all its scores are NaN, and its samples count as guesses (`metrics.py`).

    Attributes:
        client: The number of each sample's client, `[n]`.
        y: The targets, `[n]`.
        scores: The scores of the classes or the outputs, `[n, K]`.
    """

    client: Tensor  # int64 [n]
    y: Tensor  # [n]
    scores: Tensor  # float32 [n, K]
    loss: Tensor | None = None  # [n], from the outputs themselves, where they are known

    def __post_init__(self) -> None:
        if not len(self.client) == len(self.y) == len(self.scores) or self.scores.ndim != 2:
            shapes = ", ".join(str(list(x.shape)) for x in (self.client, self.y, self.scores))
            raise DataError(f"predictions need clients [n], targets [n] and scores [n, K], not {shapes}")

    def __len__(self) -> int:
        return len(self.client)

    def _about(self) -> str:
        return f"{len(self)} samples of {len(self.clients)} clients"

    @property
    def labelled(self) -> bool:
        """Whether targets are classes."""
        return not self.y.is_floating_point()

    @cached_property
    def clients(self) -> list[int]:
        """The clients that have samples, in ascending order."""
        ids: list[int] = self.client.unique().tolist()
        return ids

    def at(self, places: Tensor) -> "Predictions":
        """Those samples, in that order."""
        loss = None if self.loss is None else self.loss[places]
        return Predictions(self.client[places], self.y[places], self.scores[places], loss)

    def of(self, client: int) -> "Predictions":
        """Those of the client of this number."""
        return self.at((self.client == client).nonzero()[:, 0])

    def value(self, metric: Metric) -> float:
        """The metric over the samples of all clients; NaN where it is not defined."""
        if not len(self):
            return float("nan")
        self._check(metric)
        weight = torch.ones(1, len(self), device=self.y.device)
        return float(metric(self.y[None], self.scores[None], weight))

    def by_client(self, metric: Metric) -> dict[int, float]:
        """The metric of each client; those for whom it is not defined are left out."""
        self._check(metric)
        by_place: dict[int, float] = {}
        scores = self.scores if self.labelled else self._with_means()
        for places, samples, counts in self._blocks:
            values = metric(self.y[samples], scores[samples], torch.arange(samples.shape[1]) < counts)
            by_place |= dict(zip(places.tolist(), values.tolist(), strict=True))
        return {client: by_place[place] for place, client in enumerate(self.clients) if isfinite(by_place[place])}

    def average(self, metric: Metric, over: str) -> float:
        """The metric over all `samples`, or its mean over `clients` for whom it is defined."""
        if over == "samples":
            return self.value(metric)
        values = list(self.by_client(metric).values())
        return sum(values) / len(values) if values else float("nan")

    def confusion(self) -> Tensor:
        """How many samples of each class (rows) are predicted as each class (columns), `[K, K]`."""
        if not self.labelled:
            raise DataError("a confusion matrix needs classes, but the targets are numbers")
        return confusion(self.y[None], self.scores[None], torch.ones(1, len(self)))[0]

    def hits(self) -> Tensor:
        """1 where a sample is predicted correctly, and else 0; 1/K of a guess, and for numbers always 0."""
        return hits(self.y, self.scores) if self.labelled else torch.zeros(len(self), dtype=torch.float64)

    def losses(self) -> Tensor:
        """−log of the label's probability of each sample, or its squared error, in float64; log K of a guess."""
        if self.labelled:
            losses = self._loss(label_losses(self.y, self.scores.double()))
            return losses.masked_fill(self.guesses, log(self.scores.shape[1]))
        errors = (self._with_means().double()[:, 0] - self.y.double()).square()
        return torch.where(self.guesses, errors, self._loss(errors))

    def _loss(self, otherwise: Tensor) -> Tensor:
        return otherwise if self.loss is None else self.loss.double()

    @cached_property
    def guesses(self) -> Tensor:
        """`[n]` booleans: the samples of clients whose model is not finite."""
        return is_guess(self.scores)

    @property
    def not_finite(self) -> list[int]:
        """The clients whose model is not finite."""
        ids: list[int] = self.client[self.guesses].unique().tolist()
        return ids

    def _with_means(self) -> Tensor:
        """Outputs for numbers, with the mean of all targets in place of guesses.

        The mean of a client's own targets would be perfect for a client with one sample.
        """
        return torch.where(self.guesses[:, None], self.y.double().mean().float(), self.scores)

    def one_answer(self) -> dict[int, bool]:
        """For each client with several classes, whether its model predicts the same class for all its samples."""
        if not self.labelled or not len(self):
            return {}
        place = self.client.unique(return_inverse=True)[1]

        def varies(values: Tensor) -> Tensor:
            blank = torch.zeros(len(self.clients), dtype=values.dtype)
            least, most = (blank.scatter_reduce(0, place, values, how, include_self=False) for how in ("amin", "amax"))
            return least != most

        per_client = zip(self.clients, varies(self.y).tolist(), varies(self.scores.argmax(-1)).tolist(), strict=True)
        return {client: not answers for client, classes, answers in per_client if classes}

    def summed(self, ids: Tensor) -> Scores:
        """Hits, loss and samples of these clients."""
        # The place of each client in `ids`, by its number; -1 for clients that are not asked for.
        places = torch.full((max([-1, *ids.tolist(), *self.clients]) + 1,), -1).scatter(0, ids, torch.arange(len(ids)))
        at, zeros = places[self.client], torch.zeros(len(ids), dtype=torch.float64)
        count = torch.bincount(at, minlength=len(ids))
        finite = ~torch.isin(ids, torch.tensor(self.not_finite, dtype=torch.int64))
        return Scores(zeros.index_add(0, at, self.hits()), zeros.index_add(0, at, self.losses()), count, finite)

    def _check(self, metric: Metric) -> None:
        if metric.classes is not None and metric.classes != self.labelled:
            actual, needed = ("classes", "numbers") if self.labelled else ("numbers", "classes")
            raise DataError(f"{metric.name} needs {needed}, but the targets are {actual}")

    @cached_property
    def _blocks(self) -> list[_Block]:
        """All clients, the largest first."""
        _, place, count = self.client.unique(return_inverse=True, return_counts=True)
        order = torch.argsort(place, stable=True)  # the samples, client by client
        first = count.cumsum(0) - count
        remaining = torch.argsort(count, descending=True, stable=True)
        blocks = []
        while len(remaining):
            longest = int(count[remaining[0]])
            # Clients within a factor of two in size share a block, so that padding at most doubles the work.
            similar = int((2 * count[remaining] >= longest).sum())
            chosen = remaining[: min(similar, max(1, BLOCK_SCORES // (longest * self.scores.shape[1])))]
            remaining = remaining[len(chosen) :]
            samples = order[(first[chosen, None] + torch.arange(longest)).clamp(max=len(order) - 1)]
            blocks.append(_Block(chosen, samples, count[chosen, None]))
        return blocks


sendable(Predictions)


StagePredictions = dict[str, Predictions]  # by "split.stage", such as "test.deployed"


def row_predictions(sim: Simulation, rnd: Round, rows: Rows, ids: Tensor, split: str) -> Predictions:
    """What these rows give for the clients' own samples; the split may be `test`."""
    with sim.arithmetic():
        place, y, outputs = sim.task(ids, rnd, splits=(split,)).outputs(rows, split)
    return predictions_of(ids[place.cpu()], y, outputs, sim.setup.classes)


def predictions_of(clients: Tensor, y: Tensor, outputs: Tensor, classes: int | None) -> Predictions:
    """What models say of samples, by the client of each sample, its target and the model's outputs."""
    loss = sample_losses(outputs, y, classes).double()
    scores = (outputs.flatten(1) if outputs.ndim > 1 else outputs.unsqueeze(1)).double()
    scores = scores if classes is None else torch.softmax(scores, -1)
    scores, loss = scores.float().cpu(), loss.cpu()
    wrong = is_guess(scores) | ~loss.isfinite()
    if wrong.any():  # a model that fails for some of its client's samples counts as guessing all of them
        scores[torch.isin(clients, clients[wrong])] = torch.nan
    return Predictions(clients, y.cpu(), scores, loss)


def stage_predictions(
    sim: Simulation, progress: Progress, ids: Tensor, splits: Sequence[str], stages: Sequence[str], new: bool = False
) -> StagePredictions:
    """Predictions at each stage on each split, as many clients at a time as memory allows."""
    with sim.arithmetic():
        models = client_models(sim, progress, ids if new else sim.checked(ids), new)
        return join_stages([some.each(splits, stages, row_predictions) for some in models])


def predictions(
    sim: Simulation, progress: Progress, ids: Tensor, split: str, stage: str = "deployed", new: bool = False
) -> Predictions:
    """What the models of these clients at this stage give for their own samples; `new` ones never took part."""
    return stage_predictions(sim, progress, ids, (split,), (stage,), new)[f"{split}.{stage}"]


def trained_predictions(
    sim: Simulation, rnd: Round, rows: Rows, ids: Tensor, splits: Sequence[str]
) -> StagePredictions:
    """Predictions of models right after training, as `Simulation.round(examine=…)` shows them."""
    return join_stages(after_training(sim, rnd, rows, ids, splits, row_predictions))


def join_predictions(parts: Sequence[Predictions]) -> Predictions:
    """All samples of several, in the order of clients."""
    loss = [part.loss for part in parts if part.loss is not None]
    columns = [torch.cat([getattr(part, name) for part in parts]) for name in ("client", "y", "scores")]
    whole = Predictions(columns[0], columns[1], columns[2], torch.cat(loss) if len(loss) == len(parts) else None)
    return whole.at(torch.argsort(whole.client, stable=True))


def join_stages(parts: Sequence[StagePredictions]) -> StagePredictions:
    """The samples of all parts; stages that share their predictions go on sharing them."""
    joined: StagePredictions = {}
    by_parts: dict[tuple[int, ...], Predictions] = {}
    for key in parts[0] if parts else ():
        same = tuple(id(part[key]) for part in parts)
        if same not in by_parts:
            by_parts[same] = join_predictions([part[key] for part in parts])
        joined[key] = by_parts[same]
    return joined


def gather_predictions(process_group: ProcessGroup, predictions: StagePredictions) -> StagePredictions:
    """The predictions of all processes of a process group."""
    return join_stages([part for part in process_group.gather(predictions) if part])


def predict_in_shares(
    process_group: ProcessGroup, sim: Simulation, ids: Tensor, predicted: Callable[[Tensor], StagePredictions]
) -> StagePredictions:
    """The predictions of these clients: each process computes those of its share with `predicted`."""
    share = process_group.share(sim, ids)
    return gather_predictions(process_group, predicted(share) if len(share) else {})
