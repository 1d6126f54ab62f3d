"""Which personal tensors leave a site after all, blended into others: found by changing them and looking at the upload.

A form shows which tensors are in an upload, not what they are made of. FedCP sends (h_p + h_g)/2 in the place of the
shared head h_g, which the server knows, so it can compute the personal head h_p. In a rehearsal nobody trains: an
upload that changes with a personal tensor holds that tensor in some way.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from stratafl.core.algorithm import Algorithm
from stratafl.core.layout import Rows
from stratafl.core.rehearsal import Rehearsal
from stratafl.core.round import Round
from stratafl.core.state import State, flatten, rows_of


def blended(algorithm: Algorithm, rnd: Round, server: State, names: Iterable[str]) -> tuple[str, ...]:
    """Those of these tensors of a site's model on which its upload depends though nobody trains.

    All of them if that cannot be found out: then none is shown to stay.
    """
    personal = list(names)
    try:
        client, task = _received(algorithm, rnd, server)
        row = rows_of(client, algorithm.row)

        def changes(changed: Iterable[str]) -> bool:
            """Whether the upload changes with these tensors."""
            other = {**row, **{name: row[name] + _noise(row[name]) for name in changed}}
            return not _same(usual, _upload(algorithm, rnd, {**client, algorithm.row: other}, task))

        usual = _upload(algorithm, rnd, client, task)
        there = [name for name in personal if name in row]
        return tuple(name for name in there if changes([name])) if there and changes(there) else ()
    except Exception:  # a method that says its form itself need not bear a rehearsal
        return tuple(personal)


def _noise(like: Tensor) -> Tensor:
    """The same each time; a constant would go unnoticed where only differences are sent."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like)


def _received(algorithm: Algorithm, rnd: Round, server: State) -> tuple[State, Rehearsal]:
    ids, task = torch.tensor([0]), Rehearsal(rnd)
    parcel = algorithm.download(rnd, server, ids)
    return algorithm.receive(rnd, algorithm.enrol(rnd.setup, ids), parcel, task), task


def _upload(algorithm: Algorithm, rnd: Round, client: State, task: Rehearsal) -> Rows:
    upload = algorithm.work(rnd, client, task).upload
    return flatten({name: field.value for name, field in upload.poisoned(rnd.layout).items()})


def _same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(x.nan_to_num(0), b[name].nan_to_num(0)) for name, x in a.items())
