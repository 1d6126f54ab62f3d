"""Networks without convolutions: fully connected ones, and a bag-of-tokens text classifier."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from stratafl.errors import ModelError
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
            return (Stage("flatten", (), partial(torch.flatten, start_dim=1)), self._head_stage())
        names = [(f"fc{i + 1}", f"bn{i + 1}") if self.norm else (f"fc{i + 1}",) for i in range(self.depth)]
        return (*(self._hidden_stage(*each) for each in names), self._head_stage())


def mnistnn(*, shape: tuple[int, ...], classes: int, width: int = 50) -> MLP:
    """FedALP's MNIST-NN: one hidden layer, by default of 50 units."""
    return MLP(shape=shape, classes=classes, hidden=(width,))


class EmbeddingClassifier(Staged):
    """The mean of the token embeddings, pads included, then two linear layers without an activation between.

    The pad token's row starts at zero and gets no gradient. Without `pads` the mean is over all other tokens.
    """

    looks_up = "embedding"  # the module that looks up samples, of which nothing else is used but whether they pad

    def __init__(
        self,
        *,
        shape: tuple[int, ...],
        classes: int,
        vocabulary: int | None = None,
        width: int = 32,
        padding: int = 0,
        pads: bool = True,
    ) -> None:
        super().__init__()
        if vocabulary is None:
            raise ModelError("EmbeddingClassifier needs the option 'vocabulary', the number of token ids, got none")
        require_positive("EmbeddingClassifier", classes=classes, vocabulary=vocabulary, width=width)
        flat_size("EmbeddingClassifier", shape)
        if len(shape) != 1:
            raise ModelError(f"EmbeddingClassifier needs samples of shape (tokens,), got {tuple(shape)}")
        if padding not in range(vocabulary):
            raise ModelError(f"EmbeddingClassifier needs padding among the ids 0 … {vocabulary - 1}, got {padding!r}")
        self.padding, self.pads = padding, pads
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=padding)
        self.fc1 = nn.Linear(width, width)
        self.fc = nn.Linear(width, classes)

    def stages(self) -> tuple[Stage, ...]:
        embedding = Stage("embedding", ("embedding",), self._embed)
        return (embedding, Stage("fc1", ("fc1",), lambda x: self._apply_module("fc1", x)), self._head_stage())

    def _embed(self, tokens: Tensor) -> Tensor:
        if tokens.is_floating_point():
            raise ModelError(f"EmbeddingClassifier takes whole-number token ids, got {tokens.dtype}")
        embedded = self._apply_module("embedding", tokens)
        return embedded.mean(1) if self.pads else mean_of_real(embedded, tokens != self.padding)


def mean_of_real(states: Tensor, real: Tensor) -> Tensor:
    """The mean of `[B, L, d]` over those of the L tokens that are real; 0 if none is."""
    share = real.to(states.dtype)
    return (states * share[..., None]).sum(1) / share.sum(1, keepdim=True).clamp(min=1)


def fasttext(
    *, shape: tuple[int, ...], classes: int, vocabulary: int = 98_635, width: int = 32, pads: bool = True
) -> EmbeddingClassifier:
    """FLAYER's fastText for AG News: 98,635 tokens of 32 numbers, padded with 0."""
    return EmbeddingClassifier(shape=shape, classes=classes, vocabulary=vocabulary, width=width, pads=pads)
