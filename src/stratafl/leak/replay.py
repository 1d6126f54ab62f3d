"""Rounds of a run once more, with everything that its host sees: what it sent to each client, and what came back.

Runs keep no uploads. A replay has the same, since rounds are a function of settings and seeds.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from stratafl.core.form import Form
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows
from stratafl.core.parcel import Field, Parcel
from stratafl.core.phased import Phased
from stratafl.core.reprs import holder
from stratafl.core.round import Round
from stratafl.core.state import rows_of
from stratafl.errors import RunError
from stratafl.execute import SINGLE_PROCESS, Matrix, Simulation
from stratafl.execute.context import SimulationContext
from stratafl.execute.round_run import Watch, unwatched
from stratafl.policies.merge import Averaged


@holder
class SeenRound:
    """A round as its host sees it: `base` is what each client was sent, `update` by how much its upload differs.

    `[C, …]` for the clients in `ids`. A tensor that no client sends is in neither; a column that one client did not
    send has an update of 0. With secure sums every client has the same update: the weighted mean of all, with their
    noise if they add some.
    """

    t: int
    ids: Tensor
    base: Rows
    update: Rows


class _Recorder:
    """An executor that keeps the parcels of a round."""

    process_group = SINGLE_PROCESS

    def __init__(self) -> None:
        self.parcels: list[tuple[Tensor, Parcel, Parcel]] = []
        self._inner, self._ids, self._down = Matrix(), torch.empty(0), Parcel({})

    def groups(self, sim: SimulationContext, ids: Tensor) -> Iterator[Tensor]:
        return self._inner.groups(sim, ids)

    def carry(self, parcel: Parcel, layout: Layout, form: Form | None = None) -> Parcel:
        if form is None:
            self._down = parcel
        else:
            self.parcels.append((self._ids, self._down, parcel))
        return parcel

    def stage(self, name: str, ids: Tensor, layout: Layout) -> AbstractContextManager[Watch]:
        self._ids = ids
        return nullcontext(unwatched)


def replayed(sim: Simulation, rounds: int) -> Iterator[SeenRound]:
    """The first rounds of a simulation as its host sees them."""
    progress, last = sim.start(), dict[int, Rows]()
    for t in range(min(rounds, sim.rounds)):
        recorder, server, rnd = _Recorder(), progress.server, sim.at(t)
        progress, _ = sim.round(progress, recorder)
        ids, base, update, seen_clients = list[Tensor](), list[Rows](), list[Rows](), set[int]()
        weights = list[Tensor]()
        for clients, down, up in recorder.parcels:
            if seen_clients & {*clients.tolist()}:  # the round was repeated without some of them
                continue
            seen_clients |= {*clients.tolist()}
            uploads = sim.algorithm.open(rnd, server, up, clients).uploads
            field = _model_field(sim, uploads)
            begun = _begun(sim, _sent(down, field, sim.algorithm.row), clients, last)
            is_update = field == f"{sim.algorithm.row}.update"
            changed = dict(uploads[field].rows) if is_update else _changed(uploads[field], begun, sim.setup.layout)
            for place, client in enumerate(clients.tolist()):
                last[client] = {name: (begun[name] + x)[place] for name, x in changed.items()}
            ids, base, update = [*ids, clients], [*base, begun], [*update, changed]
            weights.append(_weights(sim, rnd, field, uploads, clients))
        every, seen = torch.cat(ids), _joined(update)
        if sim.secure and sim.requires.client_noise:  # which uploads do not have yet
            seen = _opened(rows_of(server, sim.algorithm.row), rows_of(progress.server, sim.algorithm.row), seen)
        elif sim.secure:
            seen = _summed(seen, torch.cat(weights))
        yield SeenRound(t, every, _joined(base), seen)


def _model_field(sim: Simulation, uploads: Parcel) -> str:
    """The field of uploads that is a model, or the nearest to it."""
    fields = [name for name, field in uploads.items() if not isinstance(field.value, Tensor) and not field.common]
    if not fields:
        raise RunError("no client of this method uploads layers of a model, so there is nothing to attack")
    return sim.algorithm.row if sim.algorithm.row in fields else fields[0]


def _begun(sim: Simulation, down: Field | None, clients: Tensor, last: dict[int, Rows]) -> Rows:
    """From where updates count: what was sent, else the client's last upload, else the initial model."""
    start = sim.setup.start
    rows = {name: x.expand(len(clients), *x.shape).clone() for name, x in start.items()}
    for place, client in enumerate(clients.tolist()):
        for name, x in last.get(client, {}).items():
            rows[name][place] = x
    if down is not None and not isinstance(down.value, Tensor):
        sent = down.rows
        rows |= {name: x.expand(len(clients), *start[name].shape) for name, x in sent.items() if name in start}
    return rows


def _sent(down: Parcel, field: str, row: str) -> Field | None:
    """What the server sent of a field, or else the model."""
    return next((down[name] for name in (field, row) if name in down), None)


def _changed(field: Field, begun: Rows, layout: Layout) -> Rows:
    """By how much an upload differs, 0 where nothing was sent."""
    sent = field.sent(layout)
    changed = {name: x - begun[name] for name, x in field.rows.items() if name in begun and x.is_floating_point()}
    return changed if sent is None else {name: torch.where(sent[name], x, 0) for name, x in changed.items()}


def _joined(parts: list[Rows]) -> Rows:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _opened(before: Rows, after: Rows, update: Rows) -> Rows:
    """By how much the sum, which the host alone opens, moves its model: what it says of each client."""
    return {name: (after[name] - before[name]).expand_as(x).clone() for name, x in update.items()}


def _weights(sim: Simulation, rnd: Round, field: str, uploads: Parcel, clients: Tensor) -> Tensor:
    """By what the method's mean of this field weighs clients; by their samples if it has none."""
    record = sim.algorithm.records[rnd.plan.phase] if isinstance(sim.algorithm, Phased) else sim.algorithm
    steps = record.merge if isinstance(record, Layerwise) else ()
    means = [step for step in steps if isinstance(step, Averaged) and step.field == field]
    return means[0].weights_of(uploads, clients).double() if means else sim.samples[clients].double()


def _summed(update: Rows, weights: Tensor) -> Rows:
    """What the sum over all clients says of each: the weighted mean."""
    weights = weights / weights.sum()
    means = {name: torch.tensordot(weights.to(x.dtype), x, 1) for name, x in update.items()}
    return {name: mean.expand_as(update[name]).clone() for name, mean in means.items()}
