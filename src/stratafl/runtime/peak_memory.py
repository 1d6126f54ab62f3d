"""The most memory that a computation holds at once, measured by running it: the bytes of the tensors it makes."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _StorageCounter(TorchDispatchMode):
    """Counts storages as operations make and release them; it does not see the workspace of libraries."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive = known
        self.now = self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = function(*args, **(kwargs or {}))
        for x in tree_leaves(given):
            if isinstance(x, Tensor):
                self._count(x)
        return given

    def _count(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if address in self._alive:
            return
        self._alive.add(address)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._release, address, size).atexit = False

    def _release(self, address: int, size: int) -> None:
        self._alive.discard(address)
        self.now -= size


def peak_bytes(compute: Callable[[], object], *given: Tensor) -> int:
    """The most that `compute` holds at once, beside the tensors it is given."""
    counter = _StorageCounter({x.untyped_storage()._cdata for x in given})
    with counter:
        compute()
    return counter.most
