"""The outcome of one run, read from its directory."""

import shlex
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stratafl.config.experiment import from_tables, to_tables
from stratafl.config.metric_choice import stored_metric
from stratafl.config.migrations import CHECKSUMS
from stratafl.config.setting_tables import EvaluateTable
from stratafl.core.keys import Seeds
from stratafl.core.reprs import short_repr
from stratafl.errors import DamagedError, DataError, RunError
from stratafl.evaluation.cross_site import CrossSite, cross_site_from
from stratafl.evaluation.divergence import Divergence, divergence
from stratafl.evaluation.flags import well_formed
from stratafl.evaluation.measure import NOT_FINITE, Line, MetricValues
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.evaluation.predictions import Predictions
from stratafl.evaluation.trial import evaluated_clients
from stratafl.files import is_plain
from stratafl.policies.accountant import EPSILON
from stratafl.report.run_journals import LayerJournal, lines_of_round, read_layer_journal
from stratafl.runs import directory
from stratafl.runs.class_counts import read_class_counts
from stratafl.runs.json_files import read_json, read_lines
from stratafl.runs.prediction_file import read_predictions
from stratafl.runs.summary import best, converged, cost, counting, last, prefix_of, scored, selected_score, stop_reason

OF_ANSWERS = ("accuracy", "balanced_accuracy", "macro_f1")  # metrics that see only which class is given
SEEDS_OF_PARTS = ("data.seed", "model.seed", "run.batch_seed")
SCORED = ("test.", "validation.", "new.")
STAGES = ("received", "trained", "deployed")
CONVERGED = ("round", "seconds", "bytes")  # at which a run has converged
NEEDED_KEYS = ("round", "bytes.down", "bytes.up", "seconds.train", "seconds.server")


@short_repr
class ClassCounts(NamedTuple):
    """Samples by split, client and class, and the names of clients and classes, if there are any."""

    counts: Mapping[str, Sequence[Sequence[int]]]
    clients: Sequence[str] = ()
    classes: Sequence[str] = ()


@short_repr
@dataclass(frozen=True)
class Outcome:
    """A run's configuration and its lines."""

    folder: Path
    config: Mapping[str, Any]
    lines: list[Line]
    clients: int  # those that took part
    leaks: str | None = None  # which test data its method sees in training
    checked: bool = True  # whether its lines have checksums; older runs have none
    values: MetricValues | None = None  # of another metric than that of its lines, from stored predictions
    selection_table: EvaluateTable | None = None  # the run's own, if that is not as `evaluate`

    @property
    def seed(self) -> int:
        return int(self.config["run"]["seed"])

    @cached_property
    def seeds(self) -> Seeds:
        """With those of its parts, which tell one run of a configuration from another."""
        parts = (path.split(".") for path in SEEDS_OF_PARTS)
        return Seeds.of(self.seed, *(self.config[table].get(key) for table, key in parts))

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """As the data names them; empty if it does not."""
        return tuple((self.class_counts or {}).get("client_names", ()))

    @property
    def is_guarded(self) -> bool:
        """Whether these are the models that the clients of a run chose."""
        return (self.folder / directory.CHOICES).exists()

    @property
    def population(self) -> Hashable:
        """Runs of a configuration that share this have the same clients: those of these names, or of this partition."""
        return self.client_names or self.seeds.partition

    @cached_property
    def regression(self) -> bool:
        """Whether the data has no classes."""
        return not any(key.endswith(".deployed.accuracy") for key in last(self.lines))

    @cached_property
    def metric(self) -> Metric:
        """What its rounds are selected by and it is ranked by; one of your own has no values before it is imported."""
        return stored_metric(self.evaluate, self.regression)

    @property
    def selection(self) -> EvaluateTable:
        """By what its round was selected: its score may be of another metric, and old runs went over all samples."""
        return self.selection_table or self.evaluate

    @cached_property
    def recorded(self) -> Metric:
        """The metric of its lines, which selected its round."""
        return stored_metric(self.selection, self.regression)

    @cached_property
    def one_answer(self) -> bool:
        """Whether its model gives every client one class for all its samples, whatever the metric.

        Only clients with several classes count. False for runs that left no predictions.
        """
        by_client = {} if self.predictions is None else self.predictions.one_answer()
        return bool(by_client) and all(by_client.values())

    @cached_property
    def class_counts(self) -> dict[str, Any] | None:
        """Samples by split, client and class, and names, as the run recorded them; None if that is unknown."""
        return read_class_counts(self.folder, directory.config_of(self.folder))

    @cached_property
    def predictions(self) -> Predictions | None:
        """What its models give for every test sample; None if it is unfinished or of an older version."""
        return read_predictions(self.folder)

    @cached_property
    def cross_site(self) -> CrossSite | None:
        """Every client's model on every client's test samples; None if the run was not to have that."""
        path = self.folder / directory.CROSS_SITE
        if not is_plain(path):
            return None
        try:
            return cross_site_from(read_json(path))
        except (LookupError, TypeError, ValueError, DataError) as error:
            raise DamagedError(f"'{path}' is damaged: remove it, and write it again with 'strata resume'") from error

    def by_client(self) -> dict[int, float]:
        """The metric of each client that took part, on test data at the selected round; undefined ones are left out."""
        if self.values is not None:
            return dict(self.values.clients)
        key = f"test.{self.evaluate.stage}.{self.metric.key}"
        return {int(line["client"]): float(line[key]) for line in self._participants if line.get(key) is not None}

    @cached_property
    def is_sampled(self) -> bool:
        """Whether only a sample of its clients was evaluated."""
        return evaluated_clients(self.config["evaluate"].get("clients"), self.clients) < self.clients

    @cached_property
    def sampling_error(self) -> float | None:
        """The standard error of its score, if a sample of its clients was evaluated.

        It is that of a mean over clients, or of the ratio of two sums if the score is over samples, drawn without
        replacement. None if all clients were evaluated.
        """
        values, sizes = self.by_client(), self.test_samples()
        if not self.is_sampled or len(values) < 2:
            return None
        x, by_samples = np.array([*values.values()]), self.evaluate.average == "samples"
        weight = np.array([sizes[client] for client in values]) if by_samples else np.ones(len(x))
        residuals = weight * (x - (weight * x).sum() / weight.sum())
        left_out = 1 - len(sizes) / self.clients
        return float(np.sqrt(left_out / len(x)) * residuals.std(ddof=1) / weight.mean())

    def test_samples(self) -> dict[int, int]:
        """How many test samples each client has that took part."""
        return {int(line["client"]): int(line.get("test.samples") or 0) for line in self._participants}

    @cached_property
    def client_lines(self) -> list[Line]:
        """The lines of all clients in the selected round, new ones among them."""
        directory.check_committed(self.folder, "clients")
        selected = int(self.numbers()["selected_round"])
        return lines_of_round(self.folder / "clients.jsonl", selected, summed=self.checked)

    @cached_property
    def layers(self) -> LayerJournal:
        directory.check_committed(self.folder, "layers")
        return read_layer_journal(self.folder / "layers.jsonl", summed=self.checked)

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        return directory.environment_of(self.folder)

    @cached_property
    def split_counts(self) -> ClassCounts:
        """The class counts, or else the number of samples of its evaluated clients as a single class."""
        if self.class_counts is not None:
            names = (self.class_counts.get(key, ()) for key in ("client_names", "class_names"))
            return ClassCounts(self.class_counts["counts"], *names)
        lines = [line for line in self.client_lines if "test.samples" in line]
        splits = [split for split in ("validation", "test") if any(f"{split}.samples" in line for line in lines)]
        return ClassCounts({split: [[int(line.get(f"{split}.samples", 0))] for line in lines] for split in splits})

    @cached_property
    def _participants(self) -> list[Line]:
        return [line for line in self.client_lines if not line.get("new")]

    @cached_property
    def stopped(self) -> bool:
        """Whether its stop rule ended it early."""
        stop = from_tables({"stop": self.config["stop"]}).stop
        return stop_reason(self.lines, stop, self.selection) is not None

    @property
    def diverged(self) -> bool:
        """Whether its loss in training or testing, or the uploads or models of many clients, became NaN or infinite."""
        line = last(self.lines)
        lost = any(key in line and line[key] is None for key in ("train.loss", "test.deployed.loss"))
        return lost or self.divergence is not None

    @cached_property
    def divergence(self) -> Divergence | None:
        """How many of its clients diverged and since when, if many did, or some that trained well before."""
        return divergence(self.lines, self.clients)

    @property
    def not_finite(self) -> int:
        """How many clients have a model that is not finite in the round and at the stage that count."""
        chosen = counting(self.lines, self.selection)
        return int(chosen.get(f"test.{self.evaluate.stage}.{NOT_FINITE}") or 0)

    @property
    def rounds(self) -> int:
        return int(self.lines[-1]["round"])

    @cached_property
    def evaluate(self) -> EvaluateTable:
        """Which metric, round, stage and average are its score."""
        return from_tables({"evaluate": self.config["evaluate"]}).evaluate

    def numbers(self) -> dict[str, float]:
        """All reported numbers: shares from 0 to 1, bytes and seconds up to the last round.

        Best and last round, convergence and numbers over clients are those of the stage that is the score.
        """
        return dict(self._numbers)

    @cached_property
    def _numbers(self) -> dict[str, float]:
        evaluate, place = self.selection, f"test.{self.evaluate.stage}"
        chosen, total = counting(self.lines, evaluate), cost(self.lines, self.lines[-1])
        convergence, key = converged(self.lines, evaluate), self.recorded.key
        metric_key = f"{prefix_of(evaluate)}{key}"
        numbers = {
            "score": selected_score(self.lines, evaluate),
            **{stage: _number(chosen, f"test.{stage}.{metric_key}") for stage in STAGES},
            "client_mean": _number(chosen, f"{place}.client_{key}"),
            "spread": _number(chosen, f"{place}.std"),
            "worst10": _number(chosen, f"{place}.worst10"),
            **{f"new_{stage}": _number(chosen, f"new.test.{stage}.{metric_key}") for stage in STAGES},
            "best": scored(best(self.lines, evaluate), evaluate),
            "last": scored(last(self.lines), evaluate),
            "selected_round": chosen["round"],
            **{f"converged_{kind}": convergence and getattr(convergence, kind) for kind in CONVERGED},
            **{"bytes": total.bytes, "seconds": total.seconds, "rounds": self.rounds},
            "epsilon": self.lines[-1].get(EPSILON),
        }
        if self.values is not None:
            unchanged = ("selected_round", "bytes", "seconds", "rounds", "epsilon")
            numbers = {name: numbers[name] for name in unchanged} | numbers_of(self.values, self.evaluate)
        return {name: float(value) for name, value in numbers.items() if value is not None}


def numbers_of(values: MetricValues, evaluate: EvaluateTable) -> dict[str, float]:
    """The numbers of a run that follow from its predictions; what is undefined is left out."""
    statistics, key = values.statistics(), values.metric.key
    score = statistics[f"{prefix_of(evaluate)}{key}"]
    numbers = {"score": score, evaluate.stage: score, "client_mean": statistics[f"client_{key}"]}
    numbers |= {"spread": statistics["std"], "worst10": statistics["worst10"]}
    return {name: value for name, value in numbers.items() if isfinite(value)}


def measured_by(run: Outcome, metric: Metric) -> Outcome:
    """The same run at the same round, measured by another metric from its stored predictions."""
    if metric.name == run.metric.name:
        return run
    stored = run.predictions
    if not stored:
        raise RunError(
            f"'{run.folder}' has no stored predictions to compute {metric.title} from: "
            f"finish it with 'strata resume', or compare again with --metric {metric.name}"
        )
    average, better = "samples" if metric.pooled else "clients", "larger" if metric.larger_is_better else "smaller"
    evaluate = {**run.config["evaluate"], "metric": metric.name, "average": average, "better": better}
    config, values = {**run.config, "evaluate": evaluate}, MetricValues.of(metric, stored)
    return replace(run, config=config, values=values, selection_table=run.selection)


def is_imported(metric: Metric) -> bool:
    """Whether it is code of your own, which no report runs."""
    return ":" in metric.name


def read_outcome(folder: Path) -> Outcome:
    then = directory.environment_of(folder)
    experiment = directory.config_of(folder)
    config = to_tables(experiment)
    directory.check_stored(folder, then, experiment)
    if (folder / directory.CHOICES).exists():  # what the guard of a run came to is a method of its own
        config["algorithm"]["name"] = f"guarded {config['algorithm']['name']}"
    path, checked = folder / directory.ROUNDS, then["format"] >= CHECKSUMS
    directory.check_committed(folder, "rounds")
    lines = read_lines(path, summed=checked)
    if not all(isinstance(line.get(key), int | float) for line in lines for key in NEEDED_KEYS):
        raise DamagedError(f"'{path}' is damaged: a line lacks one of {', '.join(NEEDED_KEYS)}")
    if not all(isinstance(v, int | float | None) for line in lines for k, v in line.items() if k.startswith(SCORED)):
        raise DamagedError(f"'{path}' is damaged: a score is not a number")
    if not all(map(well_formed, lines)):
        raise DamagedError(f"'{path}' is damaged: its list of clients that were left out cannot be read")
    directory.check_history(path, lines, len(lines))
    recorded = from_tables({"evaluate": config["evaluate"]}).evaluate
    config["evaluate"] |= _definite(recorded, lines)
    taking_part = int(then.get("clients") or 0)
    return Outcome(folder, config, lines, taking_part, then.get("leaks"), checked, selection_table=recorded)


def _definite(evaluate: EvaluateTable, lines: Sequence[Line]) -> dict[str, Any]:
    """Metric, average and direction of a run that was written before they could be chosen."""
    metric = stored_metric(evaluate, not any(key.endswith(".accuracy") for line in lines for key in line))
    average = "clients" if evaluate.average == "clients" else "samples"
    return {"metric": metric.name, "average": average, "better": "larger" if metric.larger_is_better else "smaller"}


SQUARED = METRICS["mse"].title  # the score of a regression, whatever it is trained with


def measure(metric: Metric) -> str:
    """The score of runs in words."""
    return f"loss ({SQUARED})" if metric.name == "mse" else metric.title


_MODELS = {"received": "models as received", "trained": "models right after each client last trained"}
_UNITS = {"mse": "their variance", "rmse": "their standard deviation", "mae": "their standard deviation"}
_MODELS |= {"deployed": "deployed models", "global": "the global model"}


def what_counts(outcomes: Sequence[Outcome], one_by_one: bool = False) -> str:
    """The stage, average and round of the scores of these runs, in words; without the average for single clients."""
    metric, recorded = outcomes[0].metric, outcomes[0].recorded
    ways = {tuple(run.config["evaluate"][key] for key in ("select", "stage", "average")) for run in outcomes}
    if len(ways) > 1:
        return "of the models and at the round that the protocol of each run selects"
    ((select, stage, average),) = ways
    validated = all("validation.deployed.loss" in last(run.lines) for run in outcomes)
    word = "loss" if recorded.name == "mse" else recorded.title
    where = f"at the round with the best validation {word}" if validated else "at the last round"
    if select != "validation":
        where = "at the round where it is best" if select == "best" else "at the last round"
    mean = ", mean over clients," if average == "clients" and not one_by_one else ""
    scaled = all(run.config["data"].get("targets") == "scaled" for run in outcomes)
    unit = f"; targets are scaled, and 1 is {_UNITS[metric.name]}" if scaled and metric.name in _UNITS else ""
    return f"of {_MODELS[stage]}{mean} {where}{unit}{_sampled(outcomes)}"


def _sampled(outcomes: Sequence[Outcome]) -> str:
    """Over how many clients scores are, if not over all, and with which standard error."""
    sampled = [(run, run.sampling_error) for run in outcomes if run.is_sampled]
    errors = [error for _, error in sampled if error is not None]
    if not errors:
        return ""
    run, percent = sampled[0][0], outcomes[0].metric.percent
    error = f"{100 * max(errors):.2g} points" if percent else f"{max(errors):.2g}"
    most = "" if len(errors) == 1 else "at most "
    count = f"{len(run.test_samples()):,} of {run.clients:,}"
    return f"; a sample of {count} clients was evaluated, which gives scores a standard error of {most}{error}"


def seed_labels(outcomes: Sequence[Outcome]) -> list[str]:
    """The seeds of runs of a configuration, with those of their parts that differ where `run.seed` is the same."""
    seeds = [run.seeds for run in outcomes]
    runs, labels = {each.run for each in seeds}, [str(each.run) for each in seeds]
    for at, name in enumerate(SEEDS_OF_PARTS):
        if len({(each.run, each.parts[at]) for each in seeds}) > len(runs):
            labels = [f"{label}, {name} {each.parts[at]}" for label, each in zip(labels, seeds, strict=True)]
    return labels


def run_folders(places: Iterable[Path]) -> list[Path]:
    """All run directories in these folders and below, each once; of a tuning only the runs of what it chose."""
    folders: list[Path] = []
    for place in places:
        below = (path.parent for path in place.glob("**/config.toml") if not path.parent.name.startswith("."))
        here = sorted(each for each in below if directory.is_run(each) and not _beside(place, each))
        guard = [place / directory.GUARD] if directory.is_run(place / directory.GUARD) else []
        here = [place, *guard] if directory.is_run(place) else here
        if not here and is_plain(place / directory.TUNING):
            again = f"continue it with 'strata resume {shlex.quote(str(place))}'"
            raise RunError(f"the tuning '{place}' has not yet run the settings that it chose: {again}")
        if not here:
            raise RunError(f"there is no run in '{place}'" if place.exists() else f"there is no folder '{place}'")
        folders += [folder for folder in here if folder not in folders]
    return folders


def _beside(place: Path, run: Path) -> bool:
    """Whether a run is a trial, or has the untuned settings, of a tuning in this place or below."""
    if len(run.parts) < 3 or run.parents[1].name not in ("trials", "untuned"):
        return False
    tuning = run.parents[2]
    return is_plain(tuning / directory.TUNING) and tuning.is_relative_to(place)


def _number(line: Line, key: str) -> float | None:
    return None if line.get(key) is None else float(line[key])
