"""Layer diagnostics (`--lab`): conflicts, CKA, mixing weights, share sent, norms and learning rates of every layer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.layout import Layout, Rows
from stratafl.core.reduce import conflicting_pairs, cosines
from stratafl.core.round import Round
from stratafl.core.state import tensor_of
from stratafl.data.preprocessing import samples_at
from stratafl.errors import RecordError
from stratafl.evaluation.cka import grams, mean_similarity, similarities
from stratafl.execute.process_group import SINGLE_PROCESS, ProcessGroup, places
from stratafl.execute.round_run import Report
from stratafl.execute.simulation import Progress, Simulation

NOTED = {"rates": "rate", "own": "own"}  # notes `[C, L]` of a purpose, and the names of their means
ENTRIES = 10_000  # of a matrix of weights; of a larger one only the mean is recorded


@dataclass(frozen=True)
class LayerDiagnostics:
    """Every how many rounds layers are examined (0: never), for how many clients at most, on how many samples."""

    every: int = 0
    clients: int = 20
    samples: int = 100

    def __post_init__(self) -> None:
        for name, least in (("every", 0), ("clients", 1), ("samples", 2)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise RecordError(f"LayerDiagnostics: {name} must be a whole number of at least {least}, not {value!r}")

    def due(self, t: int) -> bool:
        """Whether round t (from 0) is examined; the first one always is."""
        return self.every > 0 and (t == 0 or (t + 1) % self.every == 0)


class DiagnosticsCollector:
    """Collects models while a round runs, and examines them at its end."""

    def __init__(
        self, lab: LayerDiagnostics, sim: Simulation, rnd: Round, process_group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        self._lab, self._sim, self._rnd, self._process_group = lab, sim, rnd, process_group
        self.restart()

    def restart(self) -> None:
        """Forget the models collected so far."""
        self._received: list[Rows] = []
        self._trained: list[Rows] = []

    def collect(self, received: Rows, trained: Rows) -> None:
        left = self._lab.clients - sum(len(next(iter(rows.values()))) for rows in self._trained)
        if left > 0:
            self._received.append({name: x[:left] for name, x in received.items()})
            self._trained.append({name: x[:left] for name, x in trained.items()})

    def lines(self, progress: Progress, report: Report) -> list[dict[str, object]]:
        """What to add to the line of each layer."""
        layout = self._rnd.layout
        lines: list[dict[str, object]] = [{} for _ in layout.layers]
        for columns in (*self._models(report.present), told(self._sim, progress), noted(report, layout)):
            for name, values in columns.items():
                for line, value in zip(lines, values, strict=True):
                    if value is not None:
                        line[name] = _written(value)
        return lines

    def _models(self, present: Tensor) -> list[Mapping[str, Sequence[object]]]:
        """What the models of these clients show; nothing if all clients were left out."""
        if len(present) == 0:
            return []
        received, trained = self._gathered(present)
        update = {name: trained[name] - received[name] for name in self._rnd.layout.trainable()}
        return [conflict_numbers(update, self._rnd.layout), self._similarities(trained)]

    def _gathered(self, cohort: Tensor) -> tuple[Rows, Rows]:
        """The received and trained models of the first of these clients, from all processes."""
        share = self._process_group.share(self._sim, cohort)[: self._lab.clients]
        local_part = [(share, _joined(self._received), _joined(self._trained))] if len(share) else []
        gathered = [part for each in self._process_group.gather(local_part) for part in each]
        order = places(torch.cat([ids for ids, _, _ in gathered]), cohort[: self._lab.clients])
        received, trained = (_joined(list(parts)) for parts in list(zip(*gathered, strict=True))[1:])
        return _picked(received, order), _picked(trained, order)

    def _similarities(self, trained: Rows) -> dict[str, list[float | None]]:
        """Mean CKA over pairs of clients, after local training, on common samples."""
        assert self._sim.template is not None  # every assembled simulation has one
        seen = grams(self._sim.template, trained, common_samples(self._sim, self._lab.samples), self._rnd.layout)
        names = self._rnd.layout.names
        return {"cka": [mean_similarity(similarities(seen[name])) if name in seen else None for name in names]}


def common_samples(sim: Simulation, count: int) -> Tensor:
    """The samples that all models get, the same in every round: from all clients' test splits, if there are any."""
    federation = sim.runtime.federation
    splits = [federation.split(name).indices for name in ("test", "validation", "train")]
    pool = next(indices for indices in splits if len(indices))
    order = torch.argsort(keys.keys(sim.setup.seeds.partition, 0, torch.arange(len(pool)), "laboratory"))
    shown = pool[order[:count]].to(federation.x.device)
    return federation.inputs(samples_at(federation.x, shown), sim.runtime.dtype)


def conflict_numbers(update: Rows, layout: Layout) -> dict[str, list[float | None]]:
    """The share of conflicting pairs (cosine below 0), the mean cosine, and the mean norm of updates, per layer.

    A layer that no client changed has no directions to compare.
    """
    gram = layout.gram(update).double()
    count = gram.shape[1]
    pairs = count * (count - 1) / 2
    squares = gram.diagonal(dim1=1, dim2=2).clamp(min=0)
    trainable = [any(layout.specs[name].trainable for name in layer.tensors) for layer in layout.layers]
    numbers = {"update_norm": _where(trainable, squares.sqrt().mean(1))}
    if pairs:
        moved = (squares != 0).any(1).tolist()
        numbers["conflicts"] = _where(moved, conflicting_pairs(gram, 0.0).double() / pairs)
        numbers["cosine"] = _where(moved, cosines(gram).triu(1).sum((1, 2)) / pairs)
    return numbers


def _where(present: Iterable[bool], values: Tensor) -> list[float | None]:
    return [value if here else None for here, value in zip(present, values.tolist(), strict=True)]


def told(sim: Simulation, progress: Progress) -> dict[str, list[object]]:
    """What the algorithm tells about its layers: whole if it is small, else the mean of each layer."""
    values = sim.algorithm.tell(sim.at(progress.t), progress.server)
    return {k: (v if v[0].numel() <= ENTRIES else v.flatten(1).mean(1)).tolist() for k, v in values.items()}


def noted(report: Report, layout: Layout) -> dict[str, list[float | None]]:
    """The share that was sent and, if the method notes them, mean learning rates and weights of clients' own rows."""
    whole = torch.tensor(layout.sizes, dtype=torch.float64) * len(report.cohort)
    numbers: dict[str, list[float | None]] = {"sent": (report.up.values / whole.clamp(min=1)).tolist()}
    for name in report.notes:
        purpose, _, kind = name.rpartition("/")
        values = tensor_of(report.notes, name).double()
        counted = report.took_part.to(values.device)
        if kind == "rates" and f"{purpose}/steps" in report.notes:  # a client without a step has no learning rate
            counted = counted & (tensor_of(report.notes, f"{purpose}/steps") > 0)
        values = values[counted]
        if kind in NOTED and len(values):  # a layer without a learning rate is not trained
            trained = [kind != "rates" or bool(column.any()) for column in values.T]
            numbers[f"{purpose}.{NOTED[kind]}"] = _where(trained, values.mean(0))
    return numbers


def _written(value: object) -> object:
    """JSON has neither NaN nor infinity: both become null."""
    if isinstance(value, list):
        return [_written(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _joined(parts: list[Rows]) -> Rows:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _picked(rows: Rows, order: Tensor) -> Rows:
    return {name: x[order.to(x.device)] for name, x in rows.items()}
