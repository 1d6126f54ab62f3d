"""Clients' models at each stage, and their scores on a split of each client's own data.

Stages, everywhere: `received` (where training would start), `trained` (right after local training, for those who took
part) and `deployed` (what a client would use in production; may be tuned on its training split). `global` is the
server's model for all clients, in methods that have one besides what they send, or that send everybody the same.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import log
from typing import TypeVar

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.reprs import holder
from stratafl.core.round import Round
from stratafl.core.state import State, expand, join_states, rows_of
from stratafl.core.task import Scores, Task
from stratafl.execute.executors import evaluation_size
from stratafl.execute.process_group import ProcessGroup, places
from stratafl.execute.simulation import Progress, Simulation
from stratafl.execute.transfers import on_host

T = TypeVar("T")
Compute = Callable[[Simulation, Round, Rows, Tensor, str], T]  # of rows of clients on a split
StageScores = dict[str, Scores]  # by "split.stage", such as "test.deployed"
STAGES = ("received", "deployed")


@holder
class ClientModels:
    """Some clients with what they received for a round; nothing of it is kept."""

    sim: Simulation
    rnd: Round
    ids: Tensor
    task: Task
    client: State
    server: State

    def rows(self, stage: str) -> Rows:
        algorithm = self.sim.algorithm
        if stage == "global":
            shared = rows_of(self.server, str(global_field(self.sim, self.server)))
            no_clients_own = {name: self.sim.setup.start[name] for name in self.sim.setup.layout.own()}
            return {**self.rows("received"), **expand({**no_clients_own, **shared}, len(self.ids))}
        if stage == "received":
            return rows_of(self.client, algorithm.row)
        if stage == "trained":
            return algorithm.work(self.rnd, self.client, self.task).trained
        return algorithm.deploy(self.rnd, self.client, self.task)

    def each(self, splits: Sequence[str], stages: Sequence[str], compute: Compute[T]) -> dict[str, T]:
        """The results of `compute` by "split.stage"; computed once for stages that have the same tensors."""
        models = {stage: self.rows(stage) for stage in stages}
        results: dict[str, T] = {}
        for split in splits:
            for stage, rows in models.items():
                first = next(each for each in models if each == stage or same_tensors(models[each], rows))
                is_new = first == stage  # or else an earlier stage has the same tensors
                computed = compute(self.sim, self.rnd, rows, self.ids, split) if is_new else results[f"{split}.{first}"]
                results[f"{split}.{stage}"] = computed
        return results


def global_field(sim: Simulation, server: State) -> str | None:
    """The server's field that is a model for all clients: one that the method names, or what it sends to everybody.

    A method sends everybody the same if the server has the whole model and clients keep nothing of theirs.
    """
    algorithm = sim.algorithm
    if algorithm.global_model is not None:
        return algorithm.global_model
    row, specs, trained = algorithm.row, sim.setup.layout.specs, sim.setup.layout.trainable()
    server_model, client_model = server.get(row), algorithm.enrol(sim.setup, torch.tensor([0])).get(row, {})
    if not isinstance(server_model, dict) or not isinstance(client_model, dict):
        return None
    is_whole = all(name in server_model and server_model[name].shape == specs[name].shape for name in trained)
    return row if is_whole and not any(name in client_model for name in trained) else None


def received_models(sim: Simulation, progress: Progress, ids: Tensor) -> Rows:
    """The model that each of these clients would start its next round from."""
    return _models(sim, progress, ids, "received")


def deployed(sim: Simulation, progress: Progress, ids: Tensor) -> Rows:
    """The model that each of these clients would use in production; it may be tuned on the client's training split."""
    return _models(sim, progress, ids, "deployed")


def score(sim: Simulation, progress: Progress, rows: Rows, ids: Tensor, split: str) -> Scores:
    """What these rows score on the clients' own samples; here, and only here, the split may be `test`.

    A model that is not finite counts as guessing: 1/K of its client's samples are hits, with a loss of log K each, and
    numbers have the error of the mean of all targets.
    """
    return _score(sim, sim.at(progress.t), rows, ids, split)


def score_stages(
    sim: Simulation, progress: Progress, ids: Tensor, splits: Sequence[str], stages: Sequence[str] = STAGES
) -> StageScores:
    """Scores of these clients' models at each stage on each split, as many clients at a time as memory allows."""
    with sim.arithmetic():
        models = client_models(sim, progress, sim.checked(ids))
        return join_scores([some.each(splits, stages, _score) for some in models])


def score_new_clients(
    sim: Simulation, progress: Progress, splits: Sequence[str], ids: Tensor | None = None
) -> StageScores:
    """Scores of clients that never took part: as admitted, after training once from there, and deployed."""
    with sim.arithmetic():
        models = client_models(sim, progress, sim.new_clients if ids is None else ids, new=True)
        return join_scores([some.each(splits, ("received", "trained", "deployed"), _score) for some in models])


def score_trained(sim: Simulation, rnd: Round, rows: Rows, ids: Tensor, splits: Sequence[str]) -> StageScores:
    """Scores of models right after training, as `Simulation.round(examine=…)` shows them."""
    return join_scores(after_training(sim, rnd, rows, ids, splits, _score))


def after_training(
    sim: Simulation, rnd: Round, rows: Rows, ids: Tensor, splits: Sequence[str], compute: Compute[T]
) -> list[dict[str, T]]:
    """What `compute` gives for models right after training, as many clients at a time as memory allows."""
    size, parts = evaluation_size(sim, len(ids)), list[dict[str, T]]()
    for at in range(0, len(ids), size):
        some, share = {name: x[at : at + size] for name, x in rows.items()}, ids[at : at + size]
        parts.append({f"{split}.trained": compute(sim, rnd, some, share, split) for split in splits})
    return parts


def state_dict(sim: Simulation, progress: Progress, client: int) -> dict[str, Tensor]:
    """One client's deployed model, for `module.load_state_dict(…, strict=False)`: it has no counters."""
    return {name: block[0].clone() for name, block in deployed(sim, progress, torch.tensor([client])).items()}


def accuracy(sim: Simulation, progress: Progress, split: str = "test") -> float:
    """The share of all clients' samples that their deployed models classify correctly."""
    everybody = torch.arange(sim.setup.clients)
    scores = score_stages(sim, progress, everybody, (split,), ("deployed",))[f"{split}.deployed"]
    return float(scores.hits.sum() / scores.count.sum())


def join_scores(parts: Sequence[StageScores]) -> StageScores:
    if len(parts) == 1:
        return parts[0]
    return {k: Scores(*map(torch.cat, zip(*(_columns(each[k]) for each in parts), strict=True))) for k in parts[0]}


def ordered_scores(stage_scores: StageScores, order: Tensor) -> StageScores:
    """The scores of clients in another order, on the CPU; stages that share theirs go on sharing them."""
    columns = {id(scores): _columns(scores) for scores in stage_scores.values()}
    flat = iter([x[order] for x in on_host([x for parts in columns.values() for x in parts])])
    moved = {key: Scores(*islice(flat, len(parts))) for key, parts in columns.items()}
    return {place: moved[id(scores)] for place, scores in stage_scores.items()}


def _columns(scores: Scores) -> list[Tensor]:
    columns = [scores.hits, scores.loss, scores.count]
    return columns if scores.finite is None else [*columns, scores.finite]


def score_in_shares(
    process_group: ProcessGroup, sim: Simulation, ids: Tensor, scored: Callable[[Tensor], StageScores]
) -> StageScores:
    """The scores of these clients, of which each process of a process group has its share `scored`."""
    share = process_group.share(sim, ids)
    return gather_scores(process_group, share, scored(share) if len(share) else {}, ids)


def gather_scores(process_group: ProcessGroup, share: Tensor, scores: StageScores, ids: Tensor) -> StageScores:
    """The scores of these clients in their order and on the CPU, from what each process of a group has of them."""
    parts = [part for part in process_group.gather((share, scores)) if len(part[0])]
    if not parts:
        return {}
    order = places(torch.cat([gathered for gathered, _ in parts]), ids)
    return ordered_scores(join_scores([gathered for _, gathered in parts]), order)


def _models(sim: Simulation, progress: Progress, ids: Tensor, stage: str) -> Rows:
    with sim.arithmetic():
        models = client_models(sim, progress, sim.checked(ids))
        return rows_of(join_states([{"rows": some.rows(stage)} for some in models]), "rows")


def client_models(sim: Simulation, progress: Progress, ids: Tensor, new: bool = False) -> Iterator[ClientModels]:
    """These clients as they begin the next round, as many at a time as memory allows."""
    rnd, algorithm = sim.at(progress.t), sim.algorithm
    for group in ids.split(evaluation_size(sim, len(ids))):
        task = sim.task(group, rnd)
        states = sim.client_states({} if new else progress.clients, group)
        client = algorithm.receive(rnd, states, algorithm.download(rnd, progress.server, group, new), task)
        yield ClientModels(sim, rnd, group, task, client, progress.server)


def _score(sim: Simulation, rnd: Round, rows: Rows, ids: Tensor, split: str) -> Scores:
    with sim.arithmetic():
        scores = sim.task(ids, rnd, splits=(split,)).scores(rows, split)
    finite, count, classes = scores.loss.isfinite(), scores.count.double(), sim.setup.classes
    if classes is None:
        errors = scores.loss if bool(finite.all()) else _errors_of_mean(sim, ids, split)
        return Scores(scores.hits, torch.where(finite, scores.loss, errors), scores.count, finite)
    hits = torch.where(finite, scores.hits, count / classes)
    return Scores(hits, torch.where(finite, scores.loss, count * log(classes)), scores.count, finite)


def _errors_of_mean(sim: Simulation, ids: Tensor, split: str) -> Tensor:
    """The squared errors of the mean of all targets for each client's samples `[C]`."""
    federation, samples = sim.runtime.federation, sim.runtime.federation.split(split)
    y = federation.y.cpu().double().reshape(len(federation.y), -1)
    errors = (y - y[samples.indices].mean(0)).square().mean(1)
    return torch.stack([errors[samples.of(client)].sum() for client in ids.tolist()]).to(sim.runtime.device)


def same_tensors(a: Rows, b: Rows) -> bool:
    return a.keys() == b.keys() and all(x is b[name] for name, x in a.items())
