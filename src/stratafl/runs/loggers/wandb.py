"""Weights & Biases: a run in the project `stratafl`, unless WANDB_PROJECT or WANDB_MODE say otherwise."""

import os
from collections.abc import Mapping
from typing import Any

from stratafl.runs.loggers import About

PROJECT = "stratafl"


class WeightsAndBiases:
    """Numbers by round; rounds that were sent before an interruption are not sent again."""

    def __init__(self, about: About) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run: Any = wandb.init(
            project=project,
            id=about.key,
            name=about.name,
            config=dict(about.settings),
            dir=str(about.folder),
            resume="allow",
        )
        self._next = int(self._run.step)  # 0, or of a resumed run one more than was sent

    def log(self, number: int, numbers: Mapping[str, float]) -> None:
        if number >= self._next:
            self._run.log(dict(numbers), step=number)
            self._next = number + 1

    def close(self) -> None:
        self._run.finish()


def opened(about: About, first: int) -> WeightsAndBiases:
    return WeightsAndBiases(about)
