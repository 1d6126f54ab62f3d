"""The scores of every client's model right after it last trained, whichever round that was.

A round trains its cohort, and leaves out the clients that diverge. A score over the others alone is over other clients
in every round and for every method, and the best round is then the one with the luckiest clients. So each client
counts with the last sound model that it trained, and before it has any with its model as received. Only scores are
kept, not models: they are a few numbers per client, or what predictions take if the metric needs those.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.reprs import holder
from stratafl.core.task import Scores
from stratafl.evaluation.evaluate import StageScores, join_scores, ordered_scores
from stratafl.evaluation.predictions import Predictions, StagePredictions, join_predictions
from stratafl.execute.process_group import places

STAGE, FALLBACK = "trained", "received"
CLIENTS = "clients"  # the tensor that names them; the others are `SPLIT.PART`
SCORES = ("hits", "loss", "count", "finite")
PREDICTIONS = ("client", "y", "scores", "loss")
NOBODY = torch.empty(0, dtype=torch.int64)


@holder
class LastTrained:
    """The clients that have trained so far, and what their models scored or predicted right after that."""

    clients: Tensor
    scores: StageScores
    predictions: StagePredictions

    @staticmethod
    def of(tensors: Rows, splits: Sequence[str]) -> "LastTrained":
        """What `tensors` gave; nothing before the first round, and in runs that did not keep it."""
        scores = {_at(split): Scores(*each) for split, each in _parts(tensors, splits, SCORES).items()}
        samples = {_at(split): Predictions(*each) for split, each in _parts(tensors, splits, PREDICTIONS).items()}
        return LastTrained(tensors[CLIENTS] if scores or samples else NOBODY, scores, samples)

    def tensors(self) -> Rows:
        """All of it as named tensors, for a checkpoint."""
        flat = {CLIENTS: self.clients}
        for place, scores in self.scores.items():
            flat |= {f"{_split(place)}.{part}": getattr(scores, part) for part in SCORES}
        for place, predictions in self.predictions.items():
            flat |= {f"{_split(place)}.{part}": getattr(predictions, part) for part in PREDICTIONS}
        return flat

    def after(self, clients: Tensor, scores: StageScores, predictions: StagePredictions) -> "LastTrained":
        """With what these clients trained since, in the order of the scores."""
        if not len(clients):
            return self
        others = ~torch.isin(self.clients, clients)
        everybody = torch.cat([self.clients[others], clients])
        rest = ordered_scores(self.scores, others.nonzero()[:, 0])
        joined = join_scores([rest, scores]) if rest and scores else scores
        return LastTrained(everybody, joined, _replaced(self.predictions, predictions, clients))

    def with_others(
        self, order: Tensor, scores: StageScores, predictions: StagePredictions
    ) -> tuple[StageScores, StagePredictions]:
        """Scores or predictions of all clients in this order; `received` ones, in ascending order, for the others."""
        received = {_at(_split(place)): each for place, each in scores.items() if place.endswith(FALLBACK)}
        others = order[~torch.isin(order, self.clients)].sort().values
        rest = ordered_scores(received, torch.searchsorted(order.sort().values, others))
        joined = join_scores([self.scores, rest]) if self.scores else rest
        at = places(torch.cat([self.clients, others]), order) if joined else NOBODY
        before = {_at(_split(place)): each for place, each in predictions.items() if place.endswith(FALLBACK)}
        return ordered_scores(joined, at), _replaced(before, self.predictions, self.clients)


def _replaced(before: StagePredictions, after: StagePredictions, clients: Tensor) -> StagePredictions:
    """The predictions before, with those of these clients after; a client may have no samples in either."""
    parts = {place: each.at((~torch.isin(each.client, clients)).nonzero()[:, 0]) for place, each in before.items()}
    joined = {place: join_predictions([parts[place], after[place]]) for place in parts if place in after}
    return {**parts, **after, **joined}


def _at(split: str) -> str:
    return f"{split}.{STAGE}"


def _split(place: str) -> str:
    return place.partition(".")[0]


def _parts(tensors: Rows, splits: Sequence[str], parts: Sequence[str]) -> dict[str, list[Tensor]]:
    """The parts of each split that has all of them."""
    complete = [split for split in splits if all(f"{split}.{part}" in tensors for part in parts)]
    return {split: [tensors[f"{split}.{part}"] for part in parts] for split in complete}
