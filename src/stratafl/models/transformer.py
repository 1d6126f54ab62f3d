"""A small transformer encoder for texts, as a chain of stages that runs stacked over clients."""

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from stratafl.errors import ModelError
from stratafl.models.mlp import mean_of_real
from stratafl.models.staged import Stage, Staged, flat_size, require_positive, require_share

PADDING = 0  # the token that pads a text


class EncoderBlock(nn.Module):
    """x + attention(norm(x)), then x + two linear layers of norm(x); pads are not attended to.

    Attention is written out, because the fused one of PyTorch does not run stacked.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        x = x + self.dropout(self.mixed(self._attended(self.norm1(x), real)))
        mixed: Tensor = x + self.dropout(self.fc2(gelu(self.fc1(self.norm2(x)))))
        return mixed

    def _attended(self, x: Tensor, real: Tensor) -> Tensor:
        count, length, width = x.shape
        split = self.attention(x).reshape(count, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # [B, heads, L, d] each
        scores = query @ key.transpose(-1, -2) / sqrt(width // self.heads)
        scores = scores.masked_fill(~real[:, None, None, :], torch.finfo(x.dtype).min)
        attended: Tensor = (scores.softmax(-1) @ value).transpose(1, 2).reshape(count, length, width)
        return attended


class TextTransformer(Staged):
    """A transformer encoder: embeddings of tokens and places, blocks of attention, the mean over tokens, head.

    Stages after the first hand on one more number per token: 1, or 0 for a pad.
    """

    def __init__(
        self,
        *,
        shape: tuple[int, ...],
        classes: int,
        vocabulary: int = 8192,
        width: int = 64,
        depth: int = 2,
        heads: int = 2,
        hidden: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"vocabulary": vocabulary, "width": width, "depth": depth, "heads": heads, "hidden": hidden}
        require_positive("transformer", classes=classes, **sizes)
        require_share("transformer", "dropout", dropout)
        flat_size("transformer", shape)
        if len(shape) != 1:
            raise ModelError(f"transformer needs samples of shape (tokens,), got {tuple(shape)}")
        if width % heads:
            raise ModelError(f"transformer needs a width that its heads divide, got width {width} and {heads} heads")
        self.depth = depth
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.position = nn.Embedding(shape[0], width)
        for number in range(1, depth + 1):
            self.add_module(f"block{number}", EncoderBlock(width, heads, hidden, dropout))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, classes)
        for table in (self.embedding, self.position):
            nn.init.normal_(table.weight, std=1 / sqrt(width))
        with torch.no_grad():
            self.embedding.weight[PADDING].zero_()

    def stages(self) -> tuple[Stage, ...]:
        names = [f"block{number}" for number in range(1, self.depth + 1)]
        blocks = [Stage(name, (name,), lambda x, name=name: self._block(name, x)) for name in names]  # type: ignore[misc]
        embedding = Stage("embedding", ("embedding", "position"), self._embed)
        return (embedding, *blocks, Stage("norm", ("norm",), self._mean), self._head_stage())

    def _embed(self, tokens: Tensor) -> Tensor:
        if tokens.is_floating_point():
            raise ModelError(f"transformer takes whole-number token ids, got {tokens.dtype}")
        places = torch.arange(tokens.shape[1], device=tokens.device)
        states = self._apply_module("embedding", tokens) + self._apply_module("position", places)
        return torch.cat([states, (tokens != PADDING).to(states.dtype)[..., None]], -1)

    def _block(self, name: str, x: Tensor) -> Tensor:
        states: Tensor = self.get_submodule(name)(x[..., :-1], x[..., -1] > 0)
        return torch.cat([states, x[..., -1:]], -1)

    def _mean(self, x: Tensor) -> Tensor:
        return mean_of_real(self._apply_module("norm", x[..., :-1]), x[..., -1] > 0)
