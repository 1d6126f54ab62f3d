"""LAG on other methods: a function from record to record.

    with_lag(scaffold(), k=2)                # scaffold+lag

LAG changes what clients receive: of the layers on which their updates conflict, L_p, a client keeps its own. It needs a
method whose server sends one model to all clients and averages what comes back. Whatever else that method does acts on
shared layers; of L_p the server keeps the plain mean.
"""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from stratafl.algorithms.fedexp import Extrapolate
from stratafl.algorithms.fedlag import BroadcastShared, PersonaliseConflicts, WarmUpRounds, WarmUpShare
from stratafl.algorithms.fedprior import OwnPrior
from stratafl.algorithms.flayer_on import keeping, sending
from stratafl.algorithms.scaffold import Correct
from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Number, Start
from stratafl.core.layerwise import Layerwise
from stratafl.core.parcel import Parcel
from stratafl.core.phased import Phase, Phased, warm_up
from stratafl.core.records import record, validated
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.steps import MergeRows, MergeSums, Mix, Names
from stratafl.core.task import Task
from stratafl.errors import RecordError
from stratafl.policies import Broadcast, LocalTraining, Mean, ServerOptimizer, Take, Upload
from stratafl.policies.mix import Wrapping

THETA = "theta"  # the model that is sent to all clients and averaged


@validated
def with_lag(
    host: Algorithm,
    *,
    k: Annotated[int, Range(least=0), Tune(1, 5)] | None = None,
    xi: Annotated[float, Range(above=-1, most=0), Tune(-0.5, 0.0)] = -0.1,
    warmup: WarmUpRounds | None = None,
    warmup_share: WarmUpShare = 0.25,
    bn: Literal["follow", "averaged"] = "follow",
) -> Phased:
    """Layers on which clients' updates point against each other become personal, after a warm-up without it.

    The options are those of `fedlag`; means are the method's own.
    """
    shared = _shared(host)
    conflicts = PersonaliseConflicts(k, xi, bn, THETA, shared.layers)
    record = sending(host)
    rounds = warm_up(warmup, warmup_share)
    first = (Phase(_lagged(record, shared, replace(conflicts, k=0)), rounds=rounds),) if rounds else ()
    return Phased((*first, Phase(_lagged(record, shared, conflicts))))


def _shared(host: Algorithm) -> Broadcast:
    """The step that sends the model; refused if it cannot be withheld, or if whole models do not come back."""
    record = sending(host)
    sent = [step for step in record.serve if isinstance(step, Broadcast) and step.field == THETA]
    uploads = [step for step in record.send if isinstance(step, Upload) and step.field == THETA]
    columns = {step.columns for step in sent} | {step.columns for step in uploads}
    needs = {
        "sends all clients one model, of which a layer can be withheld": len(sent) == 1,
        "sends whole updates, whose conflicts can be counted": bool(uploads),
        "adopts the model that it receives": any(isinstance(x, Take) and x.writes == (THETA,) for x in record.mix),
        "averages the model that it sends": any(isinstance(x, Mean) and x.field == THETA for x in record.merge),
        "sends statistics with their layers": columns <= {"all"},
        "trains the received model unchanged": _untouched(record),
    }
    for needed, holds in needs.items():
        if not holds:
            raise RecordError(f"LAG needs a method that {needed}: choose another method")
    return sent[0]


def _untouched(record: Layerwise) -> bool:
    """Whether no step changes the model between its receipt and training: that would count as an update."""
    writers = [step for step in record.mix if THETA in step.writes and not isinstance(step, OwnPrior)]
    return bool(writers) and isinstance(writers[-1], Take)


def _lagged(host: Layerwise, shared: Broadcast, conflicts: PersonaliseConflicts) -> Layerwise:
    """One phase; `Take` leaves a client's own where nothing is sent (Eq. 5)."""
    at = next(i for i, step in enumerate(host.merge) if isinstance(step, Mean) and step.field == THETA)
    return replace(
        host,
        serve=tuple(BroadcastShared(step.layers) if step is shared else step for step in host.serve),
        mix=(*host.mix, Uncorrected()) if _corrects(host) else host.mix,
        merge=(*host.merge[:at], conflicts, _on_shared(host.merge[at]), *host.merge[at + 1 :]),
        server={
            **host.server,
            "rows": Start(shared.layers, per_client=True),
            "personal": Number(0.0, width="layers"),
            "conflicts": Number(0.0, width="layers"),
        },
        client={**host.client, THETA: keeping(host.client.get(THETA), shared.layers)},
        welcome=host.welcome or host.serve,
    )


# What methods do in addition to the mean, on shared layers


def _on_shared(step: MergeSums | MergeRows) -> MergeSums | MergeRows:
    if isinstance(step, Extrapolate):  # FedExP: η_g is that of the layers that are averaged
        return replace(step, unless="personal")
    return MoveShared(step) if isinstance(step, ServerOptimizer) else step


def _corrects(host: Layerwise) -> bool:
    return any(
        isinstance(edit, Correct) for step in host.train if isinstance(step, LocalTraining) for edit in step.edits
    )


@record
class MoveShared(Wrapping, MergeSums):
    """A server's step on the layers that are averaged; of L_p it keeps the plain mean."""

    step: ServerOptimizer

    @property
    def reads(self) -> Names:
        return (*super().reads, "personal")

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        return self.step.fold(rnd, server, sums, up, ids)

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        after, mean = self.step.finish(rnd, server, sums), self.step.mean(server, sums)
        moved = rows_of(after, self.step.field)
        personal = rnd.layout.spread(tensor_of(server, "personal") > 0, moved)
        return {**after, self.step.field: {n: torch.where(personal[n], mean[n], x) for n, x in moved.items()}}


@record
class Uncorrected(Mix):
    """SCAFFOLD in a layer of L_p: c counts as c_i, so that steps are not corrected and c_i⁺ is the mean gradient."""

    reads = ("c", "c_i", f"down.{THETA}")
    writes = ("c",)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        sent, c, c_i = down[THETA].sent(rnd.layout), rows_of(client, "c"), rows_of(client, "c_i")
        return {"c": c if sent is None else {n: torch.where(sent[n], x, c_i[n]) for n, x in c.items()}}
