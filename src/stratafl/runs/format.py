"""The format of what a run writes. Run directories, checkpoints and comparisons carry its number.

1   lines of journals have no checksums
2   every line has a checksum
3   settings are called `run.memory_limit` and `data.new_clients`, the steps of a method have today's names, class
    counts are in `class_counts.json`, and a checkpoint says its format
4   a run has a metric (`evaluate.metric`) and seeds of its own for weights and batches, and leaves its predictions

Older formats are read: add what differs to this list, to `config.migrations` (settings) and where the file is read.
Raise FORMAT whenever an older stratafl could not read, or would misread, what this one writes.
"""

from pathlib import Path
from typing import Any

from stratafl.config.migrations import FORMAT as FORMAT
from stratafl.errors import DamagedError, RunError, shown

CHECKSUMS = 2  # since this format, all lines of journals have checksums
METHOD_DIGEST = 3  # since this format, the digest of a method can be compared: it covers the names of its steps


def check_format(path: Path, number: Any) -> int:
    """The format that a file says it has, if this version reads it."""
    if type(number) is not int or number < 1:
        raise DamagedError(f"'{path}' is damaged: its format is {shown(number, 40)}, not a number from 1 to {FORMAT}")
    if number > FORMAT:
        raise RunError(
            f"'{path}' was written by a newer version of stratafl "
            f"(format {shown(number, 40)}; this one reads up to {FORMAT}): update stratafl"
        )
    return number
