"""The parts of a simulation and everything derived from them: memory needs, tasks and client states.

Executors, rounds and processes see a simulation as this; `simulation.py` adds the rounds one after the other.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cached_property

import torch
from torch import Tensor, nn

from stratafl.core.algorithm import Algorithm
from stratafl.core.footprint import Footprint
from stratafl.core.reprs import holder
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, interleaved, moved, pick, separate, stacked
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.client_states import ClientStates, InMemory
from stratafl.execute.memory import Needs, Store, client_bytes, evaluation_bytes, server_bytes
from stratafl.execute.rounds import Rounds
from stratafl.execute.simulated_time import SimulatedTime
from stratafl.execute.state_format import StateFormat
from stratafl.runtime.cohort_task import CohortTask
from stratafl.runtime.runtime import Runtime
from stratafl.runtime.speed import precision

DIAGNOSED = 8  # copies of a model that layer diagnostics take: as received, trained, joined, their differences


@holder
class SimulationContext(Rounds):
    """What does not change from round to round."""

    runtime: Runtime
    round_limit: int | None = None  # bytes that a round may take
    memory_limit: int | None = None  # bytes that all of it may take
    store: Store = "device"  # where client states are kept
    template: nn.Module | None = None  # the model as drawn, with stock modules; rows fit into a copy of it
    diagnosed_clients: int = 0  # clients whose models the layer diagnostics keep for a round
    blueprint: Blueprint | None = None  # what it was built from
    time: SimulatedTime | None = None  # how long its rounds would take

    # Memory

    @cached_property
    def client_bytes(self) -> int:
        """About what one working client takes."""
        runtime, requires = self.runtime, self.requires
        training = client_bytes(runtime, runtime.batch_size(requires.batch))
        scoring = evaluation_bytes(runtime, requires.splits) if requires.scores else 0
        return max(training, scoring) + self.footprint.client

    @cached_property
    def evaluation_bytes(self) -> int:
        """About what one client takes while it is evaluated, which may include tuning a copy."""
        return max(self.client_bytes, evaluation_bytes(self.runtime) + self.footprint.client)

    @cached_property
    def footprint(self) -> Footprint:
        return self.algorithm.footprint(self.setup)

    @cached_property
    def server_bytes(self) -> int:
        return server_bytes(self.algorithm, self.setup)

    @property
    def largest_cohort(self) -> int:
        return self.setup.clients if self.requires.participation == "all" else self.setup.cohort

    def needs(self, cohort: int) -> Needs:
        state_bytes = 0 if self.store == "disk" or self.state_device != self.runtime.device else self.state_format.size
        diagnosed = min(self.diagnosed_clients, cohort) * DIAGNOSED * self.setup.row_bytes()
        extra = self.server_bytes + state_bytes * self.setup.clients + diagnosed
        working, evaluated = self.client_bytes, self.evaluation_bytes
        return Needs(cohort, self.server_bytes, state_bytes * cohort, working, evaluated, self.footprint, extra)

    def arithmetic(self) -> AbstractContextManager[None]:
        """Sets the precision of this simulation's products."""
        return precision(self.runtime.speed.precision)

    # Clients

    @cached_property
    def by_size(self) -> Tensor:
        """All clients, new clients too, in the order in which they are assigned to processes."""
        return self.ordered(torch.arange(self.runtime.federation.clients))

    @property
    def new_clients(self) -> Tensor:
        """The clients that never take part in training."""
        return torch.arange(self.setup.clients, self.runtime.federation.clients)

    def task(self, ids: Tensor, rnd: Round, watched: bool = False, splits: tuple[str, ...] | None = None) -> CohortTask:
        """The task of these clients, with the splits that the algorithm declares or those given here."""
        return CohortTask(self.runtime, ids, rnd, self.requires.splits if splits is None else splits, watched)

    # Client states

    @cached_property
    def state_format(self) -> StateFormat:
        return client_state_format(self.algorithm, self.setup)

    @property
    def state_device(self) -> torch.device:
        """The device on which client states are kept, where they are not on disk."""
        return self.runtime.device if self.store == "device" else torch.device("cpu")

    def client_states(self, clients: Mapping[int, State], ids: Tensor) -> State:
        """The states of these clients as rows; those without one enrol, all at once."""
        stored = clients.has(ids) if isinstance(clients, ClientStates) else InMemory(ids.device, dict(clients)).has(ids)
        met, new = stored.nonzero()[:, 0], (~stored).nonzero()[:, 0]
        device = self.runtime.device
        enrolled = moved(self.algorithm.enrol(self.setup, ids[new]), device) if len(new) else {}
        if not len(met):
            return separate(enrolled)
        states = moved(stacked([clients[client] for client in ids[met].tolist()]), device)
        return interleaved([states, enrolled], [met.to(device), new.to(device)]) if len(new) else states


def client_state_format(algorithm: Algorithm, setup: Setup) -> StateFormat:
    """The tensors of a client's state, which stay what they are when it enrols."""
    return StateFormat(pick(algorithm.enrol(setup, torch.tensor([0])), 0))
