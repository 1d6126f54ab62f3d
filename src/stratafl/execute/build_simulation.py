"""Builds a simulation: its blueprint, its runtime and a place for client states. It refuses what cannot run."""

import logging
from dataclasses import replace
from pathlib import Path

import torch

from stratafl.core.algorithm import Algorithm
from stratafl.core.keys import Seeds
from stratafl.core.layers import Select, select
from stratafl.core.layout import Buffers, Granularity
from stratafl.core.round import Setup
from stratafl.core.secure_sums import check_secure
from stratafl.data.federation import Federation
from stratafl.data.outliers import outlier_warnings
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import DataError, MemoryLimitError, PhaseError
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.context import client_state_format
from stratafl.execute.drawing import ModelSource
from stratafl.execute.executors import chunk_size
from stratafl.execute.memory import Store, choose_store, device_of, limit_left, memory_taken
from stratafl.execute.simulated_time import SimulatedTime
from stratafl.execute.simulation import Simulation
from stratafl.execute.tokens import check_tokens
from stratafl.runtime.build import EngineName, build_runtime
from stratafl.runtime.speed import DEFAULT_SPEED, Speed

__all__ = ["ModelSource", "simulation"]
log = logging.getLogger("stratafl")


def simulation(
    algorithm: Algorithm,
    federation: Federation,
    model: ModelSource,
    *,
    rounds: int,
    participation: float = 1.0,
    seed: int | Seeds = 0,
    granularity: Granularity = "module",
    buffers: Buffers = "follow",
    head: str | None = None,
    frozen: str | Select = "none",
    weights: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    engine: EngineName = "auto",
    speed: Speed = DEFAULT_SPEED,
    memory_limit: int | None = None,
    store: Store = "auto",
    saved: bool = False,
    new_clients: int = 0,
    diagnosed_clients: int = 0,
    begun: bool = False,
    norm_limit: float | None = None,
    norm_clip: float | None = None,
    secure: bool = False,
    drop: float = 0.0,
    time: SimulatedTime | None = None,
) -> Simulation:
    """Build a simulation, or raise an error that says what does not fit.

    `model` is a module (its weights are the common start) or a function that makes one (drawn from the seed); `weights`
    is a file with the initial weights; layers in `frozen`, such as `*.lora_A`, are not trained, sent or kept by
    clients; `seed` is one for everything, or one for each part; `buffers` says whether BatchNorm statistics follow
    their layer or stay local; `memory_limit` is what all of it may take, in bytes; `store` is where client states are
    kept between rounds (on the `device`, in `ram`, on `disk`; `auto`: by size, and whether checkpoints are `saved`);
    the last `new_clients` clients of the federation never take part in training; a run that has `begun` may go on
    although its rounds never reach a phase of the algorithm; updates more than `norm_limit` times
    as long as the cohort's median are left out and those above `norm_clip` shortened, as in a deployment; a client
    drops out of a round with the probability `drop`; with `secure` the server sees sums of uploads alone; `time` is
    written down if it is given.
    """
    device = device_of(device)
    if not 0 <= new_clients < federation.clients:
        raise DataError(f"{new_clients} of {federation.clients} clients cannot be new clients: at least one must train")
    blueprint = Blueprint(
        algorithm,
        model,
        SampleFormat.of(federation),
        federation.clients - new_clients,
        rounds,
        participation,
        seed if isinstance(seed, Seeds) else Seeds.of(seed),
        granularity,
        buffers,
        head,
        None if weights is None else Path(weights),
        dtype,
        engine,
        select(frozen),
    )
    _check_data(blueprint, federation)
    for line in outlier_warnings(federation):
        log.warning("%s", line)
    module, layout = blueprint.module, blueprint.layout
    check_tokens(module, federation)
    runtime = build_runtime(
        federation,
        module,
        layout,
        head=blueprint.head,
        device=device,
        engine=blueprint.engine,
        speed=speed,
        batch=algorithm.requires.batch,
    )
    setup = blueprint.setup(device, runtime.features)
    _check_algorithm(algorithm, setup, begun)
    if secure:
        check_secure(algorithm, setup)
    exceeded = begun and memory_limit is not None and memory_taken(runtime.device) >= memory_limit
    left = None if exceeded else limit_left(memory_limit, runtime.device)
    needed = client_state_format(algorithm, setup).size * blueprint.clients
    chosen_store = choose_store(store, needed, runtime.device, left, participation=setup.participation, saved=saved)
    on_device = chosen_store == "device" or (chosen_store == "ram" and runtime.device.type == "cpu")
    rest = left - needed if left is not None and on_device else left
    parts = (algorithm, setup, federation.counts("train"), runtime)
    sim = Simulation(
        *parts,
        rest,
        memory_limit,
        chosen_store,
        module.cpu(),
        diagnosed_clients,
        blueprint,
        time,
        norm_limit=norm_limit,
        norm_clip=norm_clip,
        secure=secure,
        drop=drop,
    )
    return _within_memory(sim, left if store == "auto" else None, begun)


def _check_data(blueprint: Blueprint, federation: Federation) -> None:
    blueprint.check_splits()
    for split in blueprint.algorithm.requires.splits:
        if int(federation.counts(split).min()) == 0:
            raise DataError(f"the algorithm needs the split '{split}', which is empty for some clients: make it larger")
    blueprint.check_largest(int(federation.counts("train")[: blueprint.clients].max()))


def _check_algorithm(algorithm: Algorithm, setup: Setup, begun: bool) -> None:
    try:
        algorithm.check(setup)
    except PhaseError as error:
        if not begun:  # an earlier version did not refuse such runs: they can still be read and finished
            raise
        log.warning("%s", error)


# Memory


def _within_memory(sim: Simulation, left: int | None, begun: bool) -> Simulation:
    """The simulation, if a round of it fits; with client states on disk, if `left` is enough then."""
    try:
        chunk_size(sim, sim.largest_cohort)
    except MemoryLimitError as error:
        if sim.store != "disk" and left is not None:
            return _within_memory(replace(sim, round_limit=left, store="disk"), left, begun)
        if not begun:
            raise
        log.warning("%s; this run has begun, so it continues with one client at a time", error)
        return replace(sim, round_limit=sim.needs(sim.largest_cohort).least)
    return sim
