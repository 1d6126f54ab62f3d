"""How much memory a computation has at once, found out by doing it: the bytes of the tensors it makes."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Watch(TorchDispatchMode):
    """Counts storages as operations make them and as they are let go of; libraries' own workspace is not seen."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive = known
        self.now = self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = function(*args, **(kwargs or {}))
        for x in tree_leaves(given):
            if isinstance(x, Tensor):
                self._see(x)
        return given

    def _see(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        place, size = storage._cdata, storage.nbytes()
        if place in self._alive:
            return
        self._alive.add(place)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, place, size).atexit = False

    def _forget(self, place: int, size: int) -> None:
        self._alive.discard(place)
        self.now -= size


def peak_bytes(compute: Callable[[], object], *given: Tensor) -> int:
    """The most that `compute` has at once beside what it is given."""
    watch = _Watch({x.untyped_storage()._cdata for x in given})
    with watch:
        compute()
    return watch.most
