"""The laws of the contract, one function each; every one raises a `ContractError` that names it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch
from safetensors.torch import load, save
from torch import Tensor

from stratafl.core import records, wire
from stratafl.core.algorithm import Total
from stratafl.core.form import form_of
from stratafl.core.layout import Rows
from stratafl.core.parcel import Parcel, count_bytes
from stratafl.core.state import State, clone, flatten
from stratafl.errors import ContractError, StrataError, first_line
from stratafl.evaluation.evaluate import deployed, received_models
from stratafl.execute import Debug, Executor, Matrix, Messages, Progress, Simulation
from stratafl.testing.case import Case, difference, everything, furthest, outcome
from stratafl.testing.watch import (
    Tampered,
    TracingTask,
    Watched,
    WatchedParcel,
    claiming,
    not_finite,
    with_declared_steps,
)

TOLERANCE = 1e-12  # of float64: sums in another order
CAUSES = {
    "messages": "usual causes: a value read that was not sent, randomness without a key, a mean over the client axis",
    "order": "usual causes: randomness keyed by position in the cohort, a fold that depends on the last client",
    "chunks": "usual causes: a mean over the client axis, a fold that drops the sums it receives",
    "poison": "usual cause: a value read that was not sent",
    "purity": "usual cause: a tensor changed in place",
    "resume": "usual cause: state kept in Python instead of in declared fields",
    "seeds": "usual cause: randomness without a key",
    "declared": "usual cause: a step that behaves differently when a field is missing",
    "left out": "usual cause: a merge that reads more than the uploads and ids that it receives",
    "new clients": "usual causes: a value looked up by id that only other clients have, randomness without a key",
    "padding": "usual cause: a mean over the batch that is not batch.mean",
}


def _same(
    law: str, case: Case, other: Rows, what: str, tolerance: float = TOLERANCE, expected: Rows | None = None
) -> None:
    expected = case.outcome if expected is None else expected
    gap = difference(expected, other)
    if not gap <= tolerance:
        place = furthest(expected, other)
        raise ContractError(law, f"{what} differs by {gap:.1e}, most in '{place}' ({case}); {CAUSES[law]}")


def _shared(run: Callable[[Case], Rows]) -> Callable[[Case], Rows]:
    """A run that several laws look at: each case has it once."""

    def once(case: Case) -> Rows:
        if run not in case.shared_runs:
            case.shared_runs[run] = run(case)
        rows: Rows = case.shared_runs[run]
        return rows

    return once


def messages(case: Case) -> None:
    """The matrix executor and messages of one client each give the same."""
    _same("messages", case, outcome(case.plain, Messages()), "a run over messages")


def order(case: Case) -> None:
    """The order of clients within the cohort does not matter."""
    sim = case.plain
    progress = sim.start()
    while progress.t < sim.rounds:
        ids = sim.cohort(sim.at(progress.t))
        progress, _ = sim.round(progress, Matrix(), ids.flip(0))
    _same("order", case, everything(sim, progress), "a cohort in another order")


def outsiders(case: Case) -> None:
    """Clients outside the cohort are untouched, also by being evaluated."""
    sim, everybody, ids = case.plain, torch.arange(case.plain.setup.clients), torch.tensor([1, 3])
    for progress in _settled(case):
        before, _ = sim.round(progress, Matrix(), everybody)
        states_before = {i: clone(memory) for i, memory in before.clients.items()}
        after, _ = sim.round(before, Matrix(), ids)
        received_models(sim, after, everybody)
        deployed(sim, after, everybody)
        for i in set(states_before) - set(ids.tolist()):
            if difference(flatten(states_before[i]), flatten(after.clients[i])) != 0:
                raise ContractError("outsiders", f"client {i} did not take part but changed ({case})")


def _settled(case: Case) -> list[Progress]:
    """Where the last phase begins, and the first if it goes on for more than a round."""
    first, last = case.entries[0], case.entries[-1]
    longer = case.plain.at(0).plan.phase == case.plain.at(1).plan.phase
    return [*([first] if longer else []), last] if first is not last else [last]


def chunks(case: Case) -> None:
    """Splitting the cohort into chunks changes nothing."""
    # The runs of two other laws are cut into chunks, so that this law needs no run of its own unless one of them fails.
    for size, run in ((4, _watched), (1, _declared)):
        with suppress(ContractError):
            if difference(case.outcome, run(case)) <= TOLERANCE:
                continue
        _same("chunks", case, outcome(case.plain, Matrix(chunk=size)), f"chunks of {size}")


def poison(case: Case) -> None:
    """With every unsent column poisoned, everything stays finite and as it was."""
    try:
        _same("poison", case, outcome(case.plain, Debug()), "a run with unsent columns poisoned")
    except ContractError:
        raise
    except StrataError as error:
        raise ContractError("poison", f"{error} ({case})") from error


def purity(case: Case) -> None:
    """No function of the method changes a tensor that it receives."""
    _same("purity", case, _watched(case), "a run whose inputs are watched")


@_shared
def _watched(case: Case) -> Rows:
    return outcome(replace(case.plain, algorithm=Watched(case.algorithm)), Matrix(chunk=4))


def record_law(case: Case) -> None:
    """The record prints, compares, and goes to TOML and back."""
    try:
        again = records.from_toml(records.to_toml(case.algorithm))
    except StrataError as error:
        raise ContractError("record", str(error)) from error
    if again != case.algorithm or repr(again) != repr(case.algorithm):
        raise ContractError("record", f"read back from TOML it is {again!r}, not {case.algorithm!r}")


def bytes_counted(case: Case) -> None:
    """Counted bytes are those of the encoded values and masks; sent fields are read, and stored fields are declared."""
    for progress in case.entries:
        _check_sizes(case, progress)


def _check_sizes(case: Case, progress: Progress) -> None:
    sim, alg = case.plain, case.algorithm
    rnd, server = sim.at(progress.t), progress.server
    digests = {"upload": alg.upload_form(rnd, server).digest}
    for ids in torch.arange(sim.setup.clients).split(1):
        task = sim.task(ids, rnd)
        enrolled = sim.client_states(progress.clients, ids)
        down = alg.download(rnd, server, ids)
        taken = WatchedParcel(down)
        memory, up, _ = alg.work(rnd, alg.receive(rnd, enrolled, taken, task), task)
        for way, parcel in (("download", down), ("upload", up)):
            _check_bytes(case, sim, way, parcel)
            digest = form_of(parcel, sim.setup.layout).digest
            if digests.setdefault(way, digest) != digest:
                reason = "a receiver must know fields, types and shapes before they arrive"
                raise ContractError("bytes", f"the {way} of client {int(ids)} has another form: {reason} ({case})")
        _check_read(case, "download", taken)
        _check_shape(case, "a client's state", enrolled, memory)
    taken = WatchedParcel(up)
    total = alg.fold(rnd, server, Total(), taken, ids)
    _check_shape(case, "the server's state", server, alg.absorb(rnd, server, total))
    _check_read(case, "upload", taken)


def _check_read(case: Case, way: str, parcel: WatchedParcel) -> None:
    for name in sorted(set(parcel) - parcel.read):
        raise ContractError("bytes", f"no step reads field '{name}' of the {way}: do not send it ({case})")


def _check_bytes(case: Case, sim: Simulation, way: str, parcel: Parcel) -> None:
    layout = sim.setup.layout
    counted = count_bytes(parcel, layout, 1).total
    encoded = wire.body_bytes(wire.encode(parcel, layout))
    if counted != encoded:
        raise ContractError("bytes", f"a {way} counts {counted} bytes and encodes to {encoded} ({case})")


def _check_shape(case: Case, what: str, declared: State, state: State) -> None:
    shapes = [{k: (tuple(x.shape), x.dtype) for k, x in flatten(s).items()} for s in (declared, state)]
    if shapes[0] != shapes[1]:
        odd = sorted(set(shapes[0].items()) ^ set(shapes[1].items()), key=str)
        raise ContractError("bytes", f"{what} differs from its declaration, see {odd[0][0]} ({case})")


def cohort_sizes(case: Case) -> None:
    """One client works; none is a clear error."""
    sim = case.plain
    for progress in _settled(case):
        sim.round(progress, Matrix(), torch.tensor([2]))
    try:
        sim.round(sim.start(), Matrix(), torch.tensor([], dtype=torch.int64))
    except StrataError as error:
        if "empty" in str(error):
            return
        raise ContractError("cohort sizes", f"an empty cohort raises another error: {error}") from error
    raise ContractError("cohort sizes", "an empty cohort raises no error")


def left_out(case: Case) -> None:
    """An upload that is not finite, or claims another number of samples, changes as little as one never asked for."""
    sim, everybody, bad = case.plain, torch.arange(case.plain.setup.clients), torch.tensor([1, 3])
    tampered = replace(sim, algorithm=Tampered(case.algorithm, {1: not_finite(), 3: claiming(10**12)}))
    before = sim.start()
    while before.t < sim.rounds - 1:
        before, _ = sim.round(before, Matrix())
    after, report = tampered.round(before, Matrix(), everybody)
    alone, _ = tampered.round(before, Matrix(), bad)
    if report.up.total == 0:  # nothing is sent, so that there is nothing to leave out
        return
    without, _ = sim.round(before, Matrix(), everybody[~torch.isin(everybody, bad)])
    _same("left out", case, everything(sim, after), "a round", expected=everything(sim, without))
    # Noise is added in every round, so then the server's state changes.
    noise = case.algorithm.requires.noise
    changed_state, unchanged = (
        {name: x for name, x in progress.tensors().items() if not (noise and name.startswith("server/"))}
        for progress in (alone, replace(before, t=alone.t))
    )
    _same("left out", case, changed_state, "a round without any upload", expected=unchanged)


def new_clients(case: Case) -> None:
    """A client that never took part can start, train and deploy: finite, alone over messages as in a group."""
    sim = case.joined
    for progress in (*case.entries, case.finished):
        server, ids = clone(progress.server), sim.new_clients
        group = _as_new(case, sim, progress, ids, Matrix())
        for name, x in group.items():
            if not torch.isfinite(x).all():
                raise ContractError("new clients", f"'{name}' of a new client is not finite ({case})")
        alone = [_as_new(case, sim, progress, client_ids, Messages()) for client_ids in ids.split(1)]
        stacked = {name: torch.cat([each[name] for each in alone]) for name in alone[0]}
        _same("new clients", case, stacked, "a new client alone, over messages,", expected=group)
        if difference(flatten(server), flatten(progress.server)) != 0:
            raise ContractError("new clients", f"the server's state changes when a new client is served ({case})")


def _as_new(case: Case, sim: Simulation, progress: Progress, ids: Tensor, executor: Executor) -> Rows:
    """What these clients keep, send, train and deploy, one row each, if they meet the server for the first time."""
    alg, rnd, task = sim.algorithm, sim.at(progress.t), sim.task(ids, sim.at(progress.t))
    try:
        down = alg.download(rnd, progress.server, ids, new=True)
        client = alg.receive(rnd, sim.client_states({}, ids), executor.carry(down, sim.setup.layout), task)
        work = alg.work(rnd, client, task)
        model = alg.deploy(rnd, client, task)
    except IndexError as error:
        advice = "declare `welcome`, the steps that serve clients of which the server knows nothing"
        raise ContractError("new clients", f"{first_line(error, typed=True)}: {advice} ({case})") from error
    except StrataError as error:
        raise ContractError("new clients", f"{error} ({case})") from error
    upload = {name: field.value for name, field in work.upload.items() if not field.common}
    return flatten({"kept": flatten(work.client), "sent": flatten(upload), "trained": work.trained, "deployed": model})


def resume_law(case: Case) -> None:
    """State saved and restored between rounds changes nothing, not a bit."""
    _same("resume", case, _resumed(case), "a run that was saved and restored", tolerance=0.0)


@_shared
def _resumed(case: Case) -> Rows:
    sim, progress = case.plain, case.plain.start()
    while progress.t < sim.rounds:
        progress, _ = sim.round(progress, Matrix())
        progress = Progress.of(load(save({k: x.contiguous() for k, x in progress.tensors().items()})))
    return everything(sim, progress)


def seeds(case: Case) -> None:
    """The same seed gives the same bits, another seed does not."""
    if difference(case.outcome, _resumed(case)) != 0:  # else that was the second run
        _same("seeds", case, outcome(case.simulation(), Matrix()), "a second run", tolerance=0.0)
    if difference(case.outcome, outcome(case.simulation(seed=1), Matrix())) == 0:
        raise ContractError("seeds", f"another seed gives the same result ({case})")


def padding(case: Case) -> None:
    """Padding and stacking change nothing: client by client, with exact batches and stock modules, it is the same."""
    _same("padding", case, outcome(case.simulation(engine="loop"), Matrix()), "the loop engine", tolerance=1e-9)


def trace_law(case: Case) -> None:
    """A training step traces without reading a value back to the host."""
    sim, alg, ids = case.plain, case.algorithm, torch.arange(case.plain.setup.clients)
    for progress in case.entries:
        rnd = sim.at(progress.t)
        task = TracingTask(sim, ids, rnd)
        parcel = alg.download(rnd, progress.server, ids)
        try:
            alg.work(rnd, alg.receive(rnd, sim.client_states(progress.clients, ids), parcel, task), task)
        except Exception as error:
            raise ContractError("trace", f"{first_line(error, typed=True)} ({case})") from error


def declared(case: Case) -> None:
    """Steps read and write the fields that they declare, and no others."""
    _same("declared", case, _declared(case), "a run whose steps see only what they declare")


@_shared
def _declared(case: Case) -> Rows:
    return outcome(replace(case.plain, algorithm=with_declared_steps(case.algorithm)), Matrix(chunk=1))


LAWS: tuple[Callable[[Case], None], ...] = (messages, order, outsiders, chunks, poison, purity, record_law, declared)
LAWS += (bytes_counted, cohort_sizes, left_out, new_clients, resume_law, seeds, padding, trace_law)
