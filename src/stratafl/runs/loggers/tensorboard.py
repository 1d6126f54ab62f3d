"""TensorBoard: event files in the run directory, for `tensorboard --logdir`."""

from collections.abc import Mapping
from typing import Any

from stratafl.runs.loggers import About

FOLDER = "tensorboard"


class TensorBoard:
    """Scalars by round; steps that an interrupted run wrote after its last checkpoint are purged."""

    def __init__(self, about: About, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(about.folder / FOLDER), purge_step=first if first > 1 else None)

    def log(self, number: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a round; `test.deployed.accuracy` stands under `test.deployed`."""
        for name, value in numbers.items():
            group, _, last = name.rpartition(".")
            self._writer.add_scalar(f"{group}/{last}" if group else last, value, number)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def opened(about: About, first: int) -> TensorBoard:
    return TensorBoard(about, first)
