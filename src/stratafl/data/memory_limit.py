"""The memory limit of reading data, compared with what a file announces before anything is allocated."""

from stratafl.core.machine import in_units, ram, resident
from stratafl.core.records import record
from stratafl.errors import MemoryLimitError


@record
class MemoryLimit:
    """Bytes of RAM that this process may take in all; by default half of the machine's."""

    most: int | None = None

    @property
    def bytes(self) -> int:
        return ram() // 2 if self.most is None else self.most

    def left(self) -> int:
        return max(0, self.bytes - resident())

    def check(self, needed: int, what: str) -> None:
        """Refuse to read `what` if it needs more bytes than are left."""
        left = self.left()
        if needed > left:
            raise self._error(f"{what} would take about {in_units(needed)} of memory, but {in_units(left)} are left of")

    def check_grown(self, what: str) -> None:
        """Stop reading `what` if the process exceeds the limit."""
        if resident() > self.bytes:
            raise self._error(f"reading {what} takes this process beyond")

    def _error(self, wrong: str) -> MemoryLimitError:
        whose = "half of this machine's" if self.most is None else "run.memory_limit"
        return MemoryLimitError(
            f"{wrong} the memory limit of {in_units(self.bytes)} ({whose}): raise "
            "run.memory_limit (--memory-limit; for a run on a GPU it limits the GPU's memory), or read less (fewer "
            "samples, or a smaller data.size)"
        )


USUAL_LIMIT = MemoryLimit()
