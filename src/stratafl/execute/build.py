"""Building a simulation: draws the model, builds the runtime, places client states, and refuses what cannot run."""

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from stratafl.core import keys
from stratafl.core.algorithm import Algorithm
from stratafl.core.describe import columns, describe, head_of
from stratafl.core.keys import Seeds
from stratafl.core.layout import Buffers, Granularity, Rows
from stratafl.core.round import Setup
from stratafl.data.federation import Federation
from stratafl.data.outliers import outlier_warnings
from stratafl.data.scaling import PIXELS
from stratafl.errors import DataError, MemoryLimitError, ModelError, PhaseError, RecordError
from stratafl.execute.context import client_state_format
from stratafl.execute.executors import chunk_size
from stratafl.execute.memory import Store, choose_store, device_of, limit_left, memory_taken
from stratafl.execute.simulation import Simulation
from stratafl.execute.tokens import check_tokens
from stratafl.models import load_weights
from stratafl.runtime.build import EngineName, build_runtime
from stratafl.runtime.speed import USUAL, Speed

log = logging.getLogger("stratafl")
ModelSource = nn.Module | Callable[[], nn.Module]


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
    weights: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    engine: EngineName = "auto",
    speed: Speed = USUAL,
    memory_limit: int | None = None,
    store: Store = "auto",
    saved: bool = False,
    new_clients: int = 0,
    diagnosed_clients: int = 0,
    begun: bool = False,
) -> Simulation:
    """Build a simulation, or raise an error that says what does not fit.

    `model` is a module (its weights are the common start) or a function that makes one (drawn from the seed); `weights`
    is a file with the initial weights; `seed` is one for everything, or one for each part; `buffers` says whether
    BatchNorm statistics follow their layer or stay local; `memory_limit` is what all of it may take, in bytes; `store`
    is where client states are kept between rounds (on the `device`, in `ram`, on `disk`; `auto`: by size, and whether
    checkpoints are `saved`); the last `new_clients` clients of the federation never take part in training; a run that
    has `begun` may go on although its rounds never reach a phase of the algorithm.
    """
    device = device_of(device)
    _check_arguments(algorithm, federation, rounds, participation, new_clients)
    _check_data(algorithm, federation, new_clients)
    for line in outlier_warnings(federation):
        log.warning("%s", line)
    seeds = seed if isinstance(seed, Seeds) else Seeds.of(seed)
    draw = _ModelDraw(model, algorithm, federation, seeds.weights, dtype, head)
    module = draw(0, "model")
    if weights is not None:
        module = _with_weights(draw, module, Path(weights))
    check_tokens(module, federation)
    layout = describe(module, granularity=granularity, buffers=buffers, head=head)

    def fresh(ids: Tensor) -> Rows:
        each = [columns(draw(i, "own model")) for i in ids.tolist()]
        return {name: torch.stack([one[name] for one in each]).to(device) for name in layout.specs}

    start = {name: tensor.clone().to(device) for name, tensor in columns(module).items()}
    runtime = build_runtime(
        federation, module, layout, head=head, device=device, engine=engine, speed=speed, batch=algorithm.requires.batch
    )
    clients, classes = federation.clients - new_clients, federation.classes
    setup = Setup(layout, start, fresh, clients, rounds, seeds, classes, runtime.features, participation)
    _check_algorithm(algorithm, setup, begun)
    exceeded = begun and memory_limit is not None and memory_taken(runtime.device) >= memory_limit
    left = None if exceeded else limit_left(memory_limit, runtime.device)
    needed = client_state_format(algorithm, setup).size * clients
    kept = choose_store(store, needed, runtime.device, left, participation=participation, saved=saved)
    on_device = kept == "device" or (kept == "ram" and runtime.device.type == "cpu")
    rest = left - needed if left is not None and on_device else left
    made = Simulation(algorithm, runtime, setup, rest, memory_limit, kept, module.cpu(), diagnosed_clients)
    return _within_memory(made, left if store == "auto" else None, begun)


def _check_arguments(
    algorithm: Algorithm, federation: Federation, rounds: int, participation: float, new_clients: int
) -> None:
    if not 0 < participation <= 1:
        raise DataError(f"participation is {participation}: choose a share of the clients above 0 and up to 1")
    if not 0 <= new_clients < federation.clients:
        raise DataError(f"{new_clients} of {federation.clients} clients cannot be new clients: at least one must train")
    if not isinstance(rounds, int) or rounds < 0:
        raise DataError(f"the number of rounds is {rounds}: choose a whole number of at least 0")
    if not isinstance(algorithm, Algorithm):
        raise RecordError(f"{algorithm!r} is not an algorithm: pass a record such as fedavg()")


def _check_data(algorithm: Algorithm, federation: Federation, new_clients: int) -> None:
    if algorithm.leaks is not None:
        log.warning("%s: its results cannot be compared with those of other methods", algorithm.leaks)
    elif "test" in algorithm.requires.splits:
        raise DataError("the algorithm asks for the test split, which no algorithm is given")
    for split in algorithm.requires.splits:
        if int(federation.counts(split).min()) == 0:
            raise DataError(f"the algorithm needs the split '{split}', which some clients do not have: make it larger")
    largest = int(federation.counts("train")[: federation.clients - new_clients].max())
    for each in algorithm.requires.batchings:
        if each.drop_last and each.size > largest:
            raise DataError(
                f"drop_last with batches of {each.size} leaves nothing to train on: the largest client has {largest}"
            )


def _check_algorithm(algorithm: Algorithm, setup: Setup, begun: bool) -> None:
    try:
        algorithm.check(setup)
    except PhaseError as error:
        if not begun:  # an earlier version did not refuse such runs: they can still be read and finished
            raise
        log.warning("%s", error)


# Memory


def _within_memory(made: Simulation, left: int | None, begun: bool) -> Simulation:
    """The simulation, if a round of it fits; with client states on disk, if `left` is enough then."""
    try:
        chunk_size(made, made.largest_cohort)
    except MemoryLimitError as error:
        if made.store != "disk" and left is not None:
            return _within_memory(replace(made, round_limit=left, store="disk"), left, begun)
        if not begun:
            raise
        log.warning("%s; this run has begun, so it goes on with one client at a time", error)
        return replace(made, round_limit=made.needs(made.largest_cohort).least)
    return made


# Models


def _with_weights(draw: "_ModelDraw", module: nn.Module, weights: Path) -> nn.Module:
    """The model with the weights in a file: its own, or those of the model that the algorithm extends."""
    try:
        load_weights(module, weights)
        return module
    except ModelError as error:
        try:
            return draw(0, "model", weights)
        except ModelError:
            raise error from None


@dataclass(frozen=True)
class _ModelDraw:
    """Draws models on the CPU, each from a generator of its own; torch's own generator is left as it was."""

    model: ModelSource
    algorithm: Algorithm
    federation: Federation
    seed: int
    dtype: torch.dtype
    head: str | None

    def __call__(self, number: int, purpose: str, weights: Path | None = None) -> nn.Module:
        """The extended model; the model that is extended has the given weights, if there are any."""
        state = torch.get_rng_state()
        try:
            torch.default_generator.manual_seed(keys.generator(self.seed, number, purpose).initial_seed())
            module = self._module(anew=purpose != "model")
            x = self.federation.x
            numbers = x.is_floating_point() or x.dtype in PIXELS
            example = torch.zeros(1, *x.shape[1:], dtype=torch.get_default_dtype() if numbers else x.dtype)
            if weights is not None:
                load_weights(module.to(self.dtype), weights)
                example = example.to(self.dtype) if numbers else example
            with torch.no_grad():  # in evaluation mode, so that an extension may run the model and keep its statistics
                head = head_of(module, self.head)
                return self.algorithm.extend(module.eval(), example, self.federation.classes, head).to(self.dtype)
        finally:
            torch.set_rng_state(state)

    def _module(self, anew: bool) -> nn.Module:
        if not isinstance(self.model, nn.Module):
            return self.model()
        module = copy.deepcopy(self.model)
        for path, sub in module.named_modules() if anew else ():
            reset = getattr(sub, "reset_parameters", None)
            if callable(reset):
                reset()
            elif next(sub.parameters(recurse=False), None) is not None:
                raise ModelError(
                    f"'{path}' cannot draw new weights for each client: pass a function that makes the model"
                )
        return module
