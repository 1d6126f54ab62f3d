"""The ranking: runs that differ only in their seed form one configuration, and configurations are ranked."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stratafl.core.reprs import short_repr
from stratafl.errors import RunError, counted
from stratafl.report.formats import MARK
from stratafl.report.intervals import Interval, Spread, interval
from stratafl.report.outcome import OF_ANSWERS, Outcome
from stratafl.report.report_tables import as_csv

log = logging.getLogger("stratafl")
DIVERGED = "diverged"
ONE_ANSWER = "one answer"
TIED = 1e-9  # scores that differ by no more than this are equal
NONE = (None, None)
SCORES = ("received", "trained", "deployed", "spread", "worst10", "best", "last", "converged_round")  # of every run
SEEDS = ("run.seed", "data.seed", "model.seed", "run.batch_seed")
# Settings that are not the method's.
EVALUATED = ("evaluate.lab", "evaluate.guard", "evaluate.cross_site")
BESIDES = (*SEEDS, "run.memory_limit", "run.store", "run.checkpoint", *EVALUATED, "log.to")
INCOMPARABLE = "test data influences its training: not comparable"


@short_repr
@dataclass(frozen=True)
class Rank:
    """A configuration, its seeds, and its numbers over them."""

    label: str  # ends with MARK if it leaks
    seeds: tuple[int, ...]
    rounds: tuple[int, int]  # done by the seed that is furthest behind, and requested
    stopped: bool  # early, by its stop rule
    numbers: Mapping[str, Spread]
    leaks: bool = False
    members: tuple[Outcome, ...] = ()  # in the order of the seeds
    place: int | None = None  # 1 is the best; equal scores share a place, and who leaks has none

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that identify the configuration, as `table.key`."""
        return _method(self.members[0].config)

    @property
    def method(self) -> str:
        return str(self.settings["algorithm.name"])

    @property
    def is_guarded(self) -> bool:
        return bool(self.members) and all(run.is_guarded for run in self.members)

    @property
    def diverged(self) -> int:
        return sum(run.diverged for run in self.members)

    @property
    def one_answer(self) -> bool:
        """Whether its model gives every client one class for all its samples, with every seed."""
        return all(run.one_answer for run in self.members) and bool(self.members)

    @property
    def says_nothing(self) -> bool:
        """Whether its score is that of one answer, so that it shows nothing."""
        return self.one_answer and self.members[0].metric.name in OF_ANSWERS

    @property
    def title(self) -> str:
        """Its label, with a remark if it is unfinished, stopped, diverged, or always gives one answer."""
        (done, asked), remarks = self.rounds, list[str]()
        if done < asked:
            remarks.append(f"stopped at {done}" if self.stopped else f"{done} of {counted(asked, 'round')}")
        if self.diverged:
            several = "" if self.diverged == len(self.seeds) else f"{self.diverged} of {len(self.seeds)} seeds "
            remarks.append(f"{several}{DIVERGED}")
        elif self.one_answer:
            remarks.append(ONE_ANSWER)
        return f"{self.label} ({', '.join(remarks)})" if remarks else self.label

    @property
    def scores(self) -> list[float]:
        """The score of each seed that has one."""
        return [numbers["score"] for run in self.members if "score" in (numbers := run.numbers())]

    def mean(self, name: str) -> float | None:
        """A number as its mean over seeds; None if it is unknown."""
        return self.numbers[name].mean if name in self.numbers else None


def ranking(outcomes: Sequence[Outcome]) -> list[Rank]:
    """Configurations, the best score first; those without a score come last."""
    if len({run.regression for run in outcomes}) > 1:
        raise RunError("these runs cannot be ranked together: some have classes, others do not; report them separately")
    metrics = dict.fromkeys(run.metric.name for run in outcomes)
    if len(metrics) > 1:
        raise RunError(
            f"runs with the metrics {' and '.join(metrics)} cannot be ranked together; report them separately"
        )
    groups: dict[str, list[Outcome]] = {}
    for run in outcomes:
        group = groups.setdefault(json.dumps(_method(run.config), sort_keys=True, default=str), [])
        if run.seeds.parts in (other.seeds.parts for other in group):
            log.warning("'%s' repeats a configuration and a seed, so it is left out", run.folder)
        else:
            group.append(run)
    labels = _labels([group[0].config for group in groups.values()])
    ranks = [_rank(label, group) for label, group in zip(labels, groups.values(), strict=True)]
    sign = outcomes[0].metric.sign

    def order(rank: Rank) -> float:
        return -sign * rank.numbers["score"].mean if "score" in rank.numbers else float("inf")

    return _placed(sorted(ranks, key=order))


def _placed(ranks: Sequence[Rank]) -> list[Rank]:
    """Ranks with their places, from the best score on; a method that leaks takes none."""
    placed, count, before = list[Rank](), 0, None
    for rank in ranks:
        if rank.leaks or "score" not in rank.numbers:
            placed.append(rank)
            continue
        score, count = rank.numbers["score"].mean, count + 1
        tied = before is not None and abs(score - before.numbers["score"].mean) <= TIED
        before = replace(rank, place=before.place if before is not None and tied else count)
        placed.append(before)
    return placed


def comparable_ranks(ranks: Sequence[Rank]) -> list[Rank]:
    """The configurations that can be compared: those with a score whose training sees no test data."""
    return [rank for rank in ranks if not rank.leaks and "score" in rank.numbers]


def winner(ranks: Sequence[Rank]) -> Rank | None:
    """The first configuration that can be compared."""
    return next(iter(comparable_ranks(ranks)), None)


def has_column(name: str, ranks: Sequence[Rank]) -> bool:
    """Whether a table has a column for a number: some configuration has it, or would have it without divergence."""
    return any(name in rank.numbers or (rank.diverged and name in SCORES) for rank in ranks)


def to_csv(ranks: Sequence[Rank], behind: Mapping[str, Interval] | None = None) -> str:
    """The ranking as CSV: one line per configuration, mean and standard deviation of every number.

    `behind` are paired differences from the first by label; with them there is the interval of the score, too. A last
    column says which methods leak, if there are any or with `behind`.
    """
    names, compared = list(dict.fromkeys(name for rank in ranks for name in rank.numbers)), behind is not None
    leaking = compared or any(rank.leaks for rank in ranks)
    head = ["method", "seeds", *(f"{name}_{part}" for name in names for part in ("mean", "std"))]
    head += ["score_low", "score_high", "difference", "difference_low", "difference_high"] if compared else []
    rows = []
    for rank in ranks:
        spreads = [rank.numbers.get(name) for name in names]
        row = [rank.label, len(rank.seeds), *(x for each in spreads for x in ((each.mean, each.std) if each else NONE))]
        if behind is not None:
            score_interval, against = interval(rank.scores), behind.get(rank.label)
            row += [score_interval.low, score_interval.high] if score_interval else NONE
            row += [against.mean, *against.ends] if against else [None, *NONE]
        rows.append([*row, *([INCOMPARABLE if rank.leaks else ""] if leaking else [])])
    return as_csv([*head, *(["leaks"] if leaking else [])], rows)


def _rank(label: str, group: Sequence[Outcome]) -> Rank:
    numbers_by_run = [run.numbers() for run in group]
    common = [name for name in numbers_by_run[0] if all(name in numbers for numbers in numbers_by_run)]
    spreads = {name: Spread.of([numbers[name] for numbers in numbers_by_run]) for name in common}
    rounds = (min(run.rounds for run in group), int(group[0].config["run"]["rounds"]))
    stopped, leaks = all(run.stopped for run in group), any(run.leaks for run in group)
    seeds, marked = tuple(run.seed for run in group), f"{label} {MARK}" if leaks else label
    return Rank(marked, seeds, rounds, stopped, spreads, leaks, tuple(group))


def _method(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that identify a configuration, as `table.key`."""
    flat = {f"{name}.{key}": value for name, table in config.items() for key, value in table.items()}
    return {key: value for key, value in flat.items() if key not in BESIDES}


def _labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The method of each configuration, with the settings that distinguish it from others of the same method."""
    flat = [_method(config) for config in configs]
    names = [config["algorithm.name"] for config in flat]
    keys = dict.fromkeys(key for config in flat for key in config if key != "algorithm.name")
    labels = []
    for i, config in enumerate(flat):
        rivals = [other for j, other in enumerate(flat) if j != i and names[j] == names[i]]
        distinguishing = [key for key in keys if any(other.get(key) != config.get(key) for other in rivals)]
        distinguishing.sort(key=lambda key: not key.startswith("algorithm."))  # its own options first
        settings = " ".join(
            f"{key.removeprefix('algorithm.')}={config[key]}" for key in distinguishing if key in config
        )
        labels.append(f"{names[i]} {settings}".strip())
    return labels
