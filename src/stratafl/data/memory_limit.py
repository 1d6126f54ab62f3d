"""How much memory reading data may take: what a file announces is compared with it before anything is allocated."""

from stratafl.core.machine import ram, resident
from stratafl.core.records import record
from stratafl.errors import MemoryLimitError


@record
class MemoryLimit:
    """Bytes of RAM that this process may take, all in all; without a number, half of the machine's."""

    most: int | None = None

    @property
    def bytes(self) -> int:
        """The number."""
        return ram() // 2 if self.most is None else self.most

    def left(self) -> int:
        """What is left of it beside what the process takes already."""
        return max(0, self.bytes - resident())

    def check(self, needed: int, what: str) -> None:
        """Refuse what would take so many bytes more than there are."""
        left = self.left()
        if needed > left:
            raise self._error(f"{what} would take about {size(needed)} of memory", left)

    def check_grown(self, what: str) -> None:
        """Refuse what has grown beyond the limit while it was read."""
        if resident() > self.bytes:
            raise self._error(f"{what} grew beyond the memory limit while it was read", 0)

    def _error(self, wrong: str, left: int) -> MemoryLimitError:
        whose = "half of this machine's" if self.most is None else "run.memory_limit"
        return MemoryLimitError(
            f"{wrong}, and {size(left)} are left of the limit of {size(self.bytes)} ({whose}): raise it with "
            "run.memory_limit (--memory-limit; of a run on a GPU that is the GPU's), or read less (fewer samples, or "
            "a smaller data.size)"
        )


USUAL_LIMIT = MemoryLimit()


def size(count: int) -> str:
    """So many bytes in words."""
    for unit, each in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= each:
            return f"{count / each:,.1f} {unit}"
    return f"{count} bytes"
