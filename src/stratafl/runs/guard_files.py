"""The guard of a run: each client's choice at the end, in the folder `guard` of the run directory.

guard/guard.json                 what each client takes, with every candidate's gain and standard error
guard/models.safetensors         the local models of the clients that take them; the others follow from the checkpoint
guard/predictions.safetensors    what the chosen models give for every sample
guard/rounds.jsonl, …            the files of a run directory, so that reports read it as a run of a method of its own

The folder appears whole or not at all. A run that is killed before repeats the guard when it is resumed.
"""

import shutil
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from stratafl.config.experiment import Experiment, to_tables
from stratafl.config.setting_tables import AlgorithmTable, EvaluateTable, StopTable
from stratafl.core.reprs import short_repr
from stratafl.errors import DamagedError, StrataError, shown
from stratafl.evaluation.candidates import GuardCandidates, GuardedModels, alone_like, guarded
from stratafl.evaluation.diagnostics import LayerDiagnostics
from stratafl.evaluation.guard import SAFE, Choice, Gain
from stratafl.evaluation.measure import Line, score_line, scored_clients
from stratafl.evaluation.trial import Trial
from stratafl.execute import Progress, Simulation
from stratafl.execute.disk import StateFile
from stratafl.execute.simulation import SavedForm
from stratafl.files import explained, is_plain, read_plain, write_atomically
from stratafl.policies import LocalTraining
from stratafl.runs import checkpoint, directory
from stratafl.runs.class_counts import CLASS_COUNTS, stored_class_counts
from stratafl.runs.client_journal import journal_lines
from stratafl.runs.directory import check_saved
from stratafl.runs.json_files import Journal, check_table, is_count, read_json, read_lines, write_json
from stratafl.runs.prediction_file import predicted_round, write_predictions
from stratafl.runs.summary import Selection, stop_reason

T = TypeVar("T")
MODELS = "models.safetensors"
COPIED = (directory.CONFIG, directory.ENVIRONMENT, directory.PREPROCESSING, CLASS_COUNTS)
SCORES = ("test.", "validation.", "new.")
MAX_MODEL_BYTES = 64 << 30  # bytes of models that are read


@short_repr
@dataclass(frozen=True)
class GuardRecord:
    """What `guard.json` holds: the selected rounds of the run and of local training, and each client's choice."""

    round: int
    local_round: int
    epochs: int
    choices: Mapping[int, Choice]

    @property
    def taken(self) -> dict[str, list[int]]:
        """The clients that take each candidate, the most frequent candidate first."""
        clients_by_candidate: dict[str, list[int]] = {}
        for client, choice in self.choices.items():
            clients_by_candidate.setdefault(choice.candidate, []).append(client)
        return dict(sorted(clients_by_candidate.items(), key=lambda item: -len(item[1])))


def guards(experiment: Experiment) -> bool:
    """Whether a run ends with a guard; local training has nothing to be guarded from."""
    return experiment.evaluate.guard and experiment.algorithm.name != SAFE


def local_beside(folder: Path) -> Path:
    """Where local training with the same seed is, if the run is one of a comparison."""
    return folder.parent.parent / SAFE / folder.name


def guarded_round(folder: Path) -> int | None:
    """The round whose guard is in the run directory; its models and predictions are there, and may be damaged."""
    guard = folder / directory.GUARD
    try:
        number = read_guard(folder).round if guard.exists() else None
        return number if predicted_round(guard) == number and is_plain(guard / MODELS) else None
    except StrataError:
        return None


def train_alone(
    trial: Trial, evaluate: EvaluateTable, rounds: int, stop: StopTable | None = None
) -> Generator[int, None, Progress]:
    """Train so many rounds, or until the rule says stop, and yield each of them.

    It returns the state after the round that is best on validation samples.
    """
    by, lines = by_validation(evaluate), list[Line]()
    progress, selection = trial.sim.start(), Selection()
    while progress.t < rounds and not (stop and stop_reason(lines, stop, by)):
        progress, entry = trial.round(progress)
        lines.append(entry.round)
        selection = selection.after(entry.round, progress, by)
        yield progress.t
    return selection.progress or progress


def run_to_end(steps: Generator[int, None, T]) -> T:
    """What the steps return at their end."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def guarding(
    experiment: Experiment,
    trial: Trial,
    progress: Progress,
    local: Path | None = None,
    train: LocalTraining | None = None,
) -> Generator[int, None, GuardedModels]:
    """Train local models beside a run, and let each client choose; yields after each round of local training.

    `train` is how they train, by default as in a run in the folder `local`, or else as in this run. If the folder holds
    a finished run of local training with the same settings, its models are used instead.
    """
    safe = replace(experiment, algorithm=AlgorithmTable(SAFE))
    safe = replace(safe, train=train or _train_of(local, safe) or experiment.train)
    alone = alone_like(trial.sim, safe.train)
    best = None if local is None else trained_alone(local, safe, alone)
    if best is None:
        beside = replace(trial, sim=alone, lab=LayerDiagnostics(), stage="deployed")
        best = yield from train_alone(beside, experiment.evaluate, trial.rounds, experiment.stop)
    candidates = GuardCandidates(trial.sim, progress, alone, best, experiment.train, experiment.evaluate.stage)
    return guarded(candidates, trial.ids, trial.splits, trial.metric)


def trained_alone(folder: Path, experiment: Experiment, alone: Simulation) -> Progress | None:
    """The state after the best round of a finished run of local training; None unless it is what would be trained."""
    if _train_of(folder, experiment) != experiment.train:
        return None
    try:
        file = StateFile(folder / directory.CLIENT_STATES, alone.state_format.size, writable=False)
        form = SavedForm.of(alone)
        saved = checkpoint.find(folder / directory.CHECKPOINTS, lambda s: check_saved(alone, form, s, file)).checkpoint
        if saved is None or saved.selected is None:
            return None
        lines = read_lines(folder / directory.ROUNDS, until=saved.journals["rounds"])
        if saved.round < experiment.run.rounds and not stop_reason(lines, experiment.stop, experiment.evaluate):
            return None
        best = Selection.of(lines, by_validation(experiment.evaluate), None).line
        wanted = best is not None and best["round"] == saved.selected.round
        return alone.restored(saved.selected.tensors, file) if wanted else None
    except StrataError:  # a damaged one is as good as none
        return None


def _train_of(folder: Path | None, experiment: Experiment) -> LocalTraining | None:
    """How a run of local training was set that differs from this experiment in nothing that the two could share."""
    if folder is None or not directory.is_run(folder):
        return None
    try:
        stored = directory.config_of(folder)
    except StrataError:
        return None
    theirs, ours = to_tables(stored), to_tables(experiment)
    same = all(theirs[name] == ours[name] for name in ours if name not in ("algorithm", "train", "server"))
    return stored.train if same and stored.algorithm.name == SAFE else None


def by_validation(evaluate: EvaluateTable) -> EvaluateTable:
    """How local training selects its round, whatever the run itself goes by."""
    return replace(evaluate, select="validation", stage="deployed")


def write_guard(folder: Path, models: GuardedModels, trial: Trial, history: list[Line], seconds: float) -> None:
    """Write the folder `guard` of a run directory, in place of one that is there."""
    target, stage = folder / directory.GUARD, models.candidates.stage
    if target.exists():
        with explained("replace", target):
            shutil.rmtree(target)
    selected, classes = models.candidates.progress.t, trial.sim.setup.classes
    predictions = {split: models.predictions(split) for split in trial.splits}
    by_place = {f"{split}.{each}": predictions[split] for split in predictions for each in _places(stage)}
    summed = {place: each.summed(trial.ids) for place, each in by_place.items()}
    scores, values = trial.summed(trial.ids, by_place) if trial.predicts else (summed, {})
    line = score_line(scores, classes, values=values)
    with directory.new_folder(target) as partial:
        for name in COPIED:
            if (folder / name).exists():
                shutil.copyfile(folder / name, partial / name)
        write_json(partial / directory.CHOICES, _table(models))
        write_atomically(partial / MODELS, save(_local_models(models)))
        write_predictions(partial, predictions, selected, stage)
        Journal(partial / directory.ROUNDS).append(_lines(history, selected, line, seconds))
        tables = (scored_clients(trial.ids, scores, classes, values),)
        Journal(partial / "clients.jsonl").append(journal_lines(selected, tables))


def _places(stage: str) -> tuple[str, ...]:
    """The stages under which the scores are written: the one that counts, and `deployed`, which reports look for."""
    return tuple(dict.fromkeys(("deployed", stage)))


def _lines(history: list[Line], selected: int, scores: Line, seconds: float) -> list[Line]:
    """The lines of the run, without its scores but in the selected round those of the guard, and what that took."""
    lines = [{key: value for key, value in line.items() if not key.startswith(SCORES)} for line in history]
    lines = [{**line, **(scores if line["round"] == selected else {})} for line in lines]
    return [*lines[:-1], {**lines[-1], "seconds.train": lines[-1]["seconds.train"] + seconds}]


def _local_models(models: GuardedModels) -> dict[str, Tensor]:
    clients = models.clients(SAFE)
    if not clients:
        return {}
    rows = models.candidates.rows(SAFE, torch.tensor(clients))
    return {
        f"{client}/{name}": block[place].cpu().clone()
        for name, block in rows.items()
        for place, client in enumerate(clients)
    }


def local_model(folder: Path, client: int) -> dict[str, Tensor]:
    """The local model of a client that takes it, from the run directory."""
    path = folder / directory.GUARD / MODELS
    with explained("read", path):
        data = read_plain(path, MAX_MODEL_BYTES)
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise DamagedError(f"'{path}' is damaged: remove its folder, then 'strata resume' writes it again") from error
    weights = {name.partition("/")[2]: x for name, x in tensors.items() if name.partition("/")[0] == str(client)}
    if not weights:
        raise DamagedError(f"'{path}' is damaged: it has no model of client {client}")
    return weights


def _table(models: GuardedModels) -> dict[str, Any]:
    """What `read_guard` reads, with the numbers of what each client takes once more beside its choice."""
    candidates = models.candidates
    clients = [
        {
            "client": choice.client,
            "choice": choice.candidate,
            "gain": choice.gain.shrunk,
            "standard_error": choice.gain.shrunk_error,
            "validation_samples": choice.samples,
            "gains": {name: asdict(gain) for name, gain in choice.gains.items()},
        }
        for choice in models.choices.values()
    ]
    alone = candidates.alone_progress
    about = {
        "round": candidates.progress.t,
        "local_round": 0 if alone is None else alone.t,
        "epochs": candidates.epochs,
    }
    return {**about, "safe": SAFE, "clients": clients}


def read_guard(folder: Path) -> GuardRecord:
    """The guard of a run directory; refused if it is not what the guard writes."""
    return read_choices(folder / directory.GUARD / directory.CHOICES)


def read_choices(path: Path) -> GuardRecord:
    table, counts = read_json(path), stored_class_counts(path.parent)
    try:
        check_table(table, {"round": int, "local_round": int, "epochs": int, "clients": list})
        choices = {choice.client: choice for choice in map(_choice, table["clients"])}
        if not choices or len(choices) < len(table["clients"]):
            raise ValueError("each client must appear once")
        if counts is not None and max(choices) >= len(counts["counts"]["train"]):
            raise ValueError(f"the run has no client {max(choices)}")
        about = {key: table[key] for key in ("round", "local_round", "epochs")}
        if not all(map(is_count, about.values())):
            raise ValueError("rounds and epochs must be at least 0")
        if table["round"] > max((int(line["round"]) for line in read_lines(path.parent / directory.ROUNDS)), default=0):
            raise ValueError(f"the run has no round {table['round']}")
    except ValueError as error:
        raise DamagedError(f"'{path}' is damaged: {error}; write it again with 'strata resume'") from error
    return GuardRecord(**about, choices=choices)


def _choice(entry: Any) -> Choice:
    kinds = {"client": int, "choice": str, "validation_samples": int, "gains": dict}
    client, name, samples, gains = (check_table(entry, kinds)[key] for key in kinds)
    parts = {each.name: float | None for each in fields(Gain)}
    all_gains = {key: Gain(**{part: check_table(gain, parts)[part] for part in parts}) for key, gain in gains.items()}
    if not (is_count(client) and is_count(samples) and name in (SAFE, *all_gains)):
        raise ValueError(f"client {client} with {samples} samples cannot take '{shown(name)}'")
    return Choice(client, name, samples, all_gains)
