"""An algorithm some of whose clients send what no server can use."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor

from stratafl.core.algorithm import Algorithm, Work
from stratafl.core.parcel import Field, Parcel, join
from stratafl.core.round import Round
from stratafl.core.state import State
from stratafl.core.task import Task
from stratafl.testing.watch import Watched

Change = Callable[[Parcel], Parcel]  # of one client's upload


class Tampered(Watched):
    """An algorithm in which these clients' uploads are changed on their way."""

    def __init__(self, inner: Algorithm, changes: Mapping[int, Change]) -> None:
        super().__init__(inner)
        self.changes = changes

    def work(self, rnd: Round, client: State, task: Task) -> Work:
        done = super().work(rnd, client, task)
        upload = done.upload
        for place, number in enumerate(task.ids.tolist()):
            if number in self.changes:  # what does not fit beside the others' can only be sent alone
                changed = self.changes[number](upload.pick(slice(place, place + 1)))
                parts = [upload.pick(slice(place)), changed, upload.pick(slice(place + 1, None))]
                upload = changed if len(task) == 1 else join(parts)
        return done._replace(upload=upload)


def not_finite(value: float = torch.nan) -> Change:
    """One value that is sent becomes NaN or infinite: the last of the last field of numbers that are not whole."""

    def change(parcel: Parcel) -> Parcel:
        for name, field in reversed(list(parcel.items())):
            blocks = {"": field.value} if isinstance(field.value, Tensor) else dict(field.value)
            last = next((key for key, x in reversed(blocks.items()) if x.is_floating_point() and x.numel()), None)
            if last is not None:
                blocks[last] = blocks[last].clone()
                blocks[last].reshape(-1)[-1] = value
                spoilt = blocks[""] if isinstance(field.value, Tensor) else blocks
                return Parcel({**parcel, name: replace(field, value=spoilt)})
        return parcel

    return change


def claiming(samples: float) -> Change:
    """Another number of samples than the client has; in methods that do not send it, a value that is not finite."""

    def change(parcel: Parcel) -> Parcel:
        if "samples" not in parcel or not isfinite(samples):  # a count is a whole number
            return not_finite(-torch.inf)(parcel)
        return Parcel({**parcel, "samples": Field(torch.full_like(parcel["samples"].tensor, samples))})

    return change
