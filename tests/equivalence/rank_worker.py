"""One of several processes: methods by all of them and by one alone; the first writes what the difference is."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from stratafl.algorithms import (
    ALGORITHMS,
    algorithm,
    fedalp,
    fedavg30local,
    fedlag,
    flayer,
    heurpfedla,
    pfedla,
)
from stratafl.cli import end_rank
from stratafl.core.algorithm import Algorithm
from stratafl.core.layout import Rows
from stratafl.core.parcel import Parcel
from stratafl.core.state import flatten
from stratafl.execute import Distributed, Executor, Matrix, Messages, Simulation
from stratafl.execute.ranks import Ranks
from stratafl.testing import Case, difference
from stratafl.testing.watch import Tampered, claiming, not_finite

ACTING: dict[str, Algorithm] = {  # as in the contract: settings in which the mechanism acts
    "fedalp": fedalp(groups=2, warmup=1),
    "fedavg30local": fedavg30local(warmup=2),
    "fedlag": fedlag(k=2, xi=0.0, warmup=0),
    "flayer": flayer(s=1),
    "flayer official": flayer(preset="official"),
    "heurpfedla": heurpfedla(k=1, hyper_lr=0.5),
    "pfedla": pfedla(hyper_lr=0.5),
    "fedper+q4": algorithm("fedper+q4", min_size=1, rounding="stochastic", feedback=True),
    "fedper+median": algorithm("fedper+median"),
    "fedper+krum": algorithm("fedper+krum", f=0),
    "fedper+private": algorithm("fedper+private", norm=0.1),
    "flayer+clipped": algorithm("flayer+clipped", norm=0.05),
    "heurpfedla+topk": algorithm("heurpfedla+topk", min_size=1, hyper_lr=0.5),
}
EVERY = {**{name: algorithm(name) for name in ALGORITHMS}, **ACTING}
SOME = ("fedper", "fedlag", "local")  # of which sums, states on the server and nothing are exchanged; rows are below
TWO, ALL = {1: not_finite(), 4: claiming(10**12)}, {client: not_finite() for client in range(6)}
LONELY = 0.2  # of six clients: one, so that the other processes have nothing to do


@dataclass
class Shared:
    """What a method came to by several processes."""

    sim: Simulation
    servers: list[Rows]
    memories: Rows
    held: list[list[int]]


def far_away(upload: Parcel) -> Parcel:
    return Parcel({**upload, "theta": upload["theta"].apply(lambda x: 1e6 * x)})


def shared(
    process_group: Ranks, method: Algorithm, participation: float, inner: Executor, limit: float | None = None
) -> Shared:
    buffers = "local" if method.requires.noise else "follow"  # statistics have no noise
    sim = replace(Case(method, buffers, participation, rounds=3).plain, norm_limit=limit)
    progress = sim.run(Distributed(process_group, inner))
    servers = [flatten(server) for server in process_group.gather(progress.server)]
    memories = {name: x for each in process_group.gather(_flat(progress.clients)) for name, x in each.items()}
    return Shared(sim, servers, memories, process_group.gather(list(progress.clients)))


def compared(found: Shared) -> dict[str, Any]:
    """How far several processes are from one, and from each other."""
    alone = found.sim.run(Matrix())
    return {
        "server": difference(found.servers[0], flatten(alone.server)),
        "clients": difference(found.memories, _flat(alone.clients)),
        "between": max(difference(found.servers[0], server) for server in found.servers),
        "held": found.held,
    }


def _flat(clients: Any) -> Rows:
    return {name: x for i, memory in clients.items() for name, x in flatten(memory, f"{i}/").items()}


def main(target: str, which: str) -> None:
    torch.set_num_threads(1)
    process_group = Ranks.join()
    with process_group.together():
        names = EVERY if which == "all" else SOME
        found = {name: shared(process_group, EVERY[name], 0.7, Matrix()) for name in names}
        for name in ("fedper", "fedlag"):
            found[f"{name}, alone"] = shared(process_group, EVERY[name], LONELY, Matrix())
            found[f"{name}, messages"] = shared(process_group, EVERY[name], 0.7, Messages())
        found["pfedla, chunks"] = shared(process_group, EVERY["pfedla"], 1.0, Matrix(chunk=2))
        found["fedlag, two left out"] = shared(process_group, Tampered(EVERY["fedlag"], TWO), 1.0, Matrix(chunk=2))
        found["fedper, all left out"] = shared(process_group, Tampered(EVERY["fedper"], ALL), 1.0, Matrix())
        wild = Tampered(EVERY["fedper"], {2: far_away})
        found["fedper, one too long"] = shared(process_group, wild, 1.0, Matrix(chunk=2), limit=50.0)
        process_group.collect({})  # from nobody who has anything
        mine = {name: compared(found[name]) for name in list(found)[process_group.rank :: process_group.world_size]}
        gaps = {name: gap for each in process_group.gather(mine) for name, gap in each.items()}
        if process_group.rank == 0:
            Path(target).write_text(json.dumps(gaps), encoding="utf-8")
    process_group.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_rank(0)
