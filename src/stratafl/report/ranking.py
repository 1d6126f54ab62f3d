"""Runs that differ in their seed only, taken together and ranked."""

import csv
import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from stratafl.core.reprs import short_repr
from stratafl.errors import RunError, counted
from stratafl.report.outcomes import Outcome

log = logging.getLogger("stratafl")
MARK = "†"  # behind whatever a method that leaks is called
DIVERGED = "diverged"
SCORES = ("received", "trained", "deployed", "spread", "worst10", "best", "last", "converged_round")  # of every run
INCOMPARABLE = "test data steers its training: not comparable"


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds (of a sample; one seed has none)."""

    mean: float
    std: float | None


@short_repr
@dataclass(frozen=True)
class Rank:
    """A configuration, its seeds, and its numbers over them."""

    label: str  # marked, if it leaks
    seeds: tuple[int, ...]
    rounds: tuple[int, int]  # done by the seed that is furthest behind, and asked for
    stopped: bool  # early, as it was asked to
    numbers: Mapping[str, Spread]
    leaks: bool = False
    members: tuple[Outcome, ...] = ()  # in the order of the seeds

    @property
    def diverged(self) -> int:
        """How many of its seeds did."""
        return sum(one.diverged for one in self.members)

    @property
    def title(self) -> str:
        """Its label, and what is not as it should be."""
        (done, asked), said = self.rounds, list[str]()
        if done < asked:
            said.append(f"stopped at {done}" if self.stopped else f"{done} of {counted(asked, 'round')}")
        if self.diverged:
            several = "" if self.diverged == len(self.seeds) else f"{self.diverged} of {len(self.seeds)} seeds "
            said.append(f"{several}{DIVERGED}")
        return f"{self.label} ({', '.join(said)})" if said else self.label

    def by_seed(self, name: str) -> dict[int, float]:
        """One of its numbers, for each seed that has it."""
        return {one.seed: numbers[name] for one in self.members if name in (numbers := one.numbers())}


def ranking(outcomes: Sequence[Outcome]) -> list[Rank]:
    """Groups of equal configurations, the best score first."""
    if len({one.regression for one in outcomes}) > 1:
        raise RunError("some of these runs have classes and some have none: they cannot be ranked together")
    groups: dict[str, list[Outcome]] = {}
    for one in outcomes:
        group = groups.setdefault(json.dumps(_method(one.config), sort_keys=True, default=str), [])
        if one.seed in (other.seed for other in group):
            log.warning("'%s' repeats a configuration and a seed, and is left out", one.folder)
        else:
            group.append(one)
    labels = _labels([group[0].config for group in groups.values()])
    ranks = [_rank(label, group) for label, group in zip(labels, groups.values(), strict=True)]
    sign = 1 if outcomes[0].regression else -1

    def place(rank: Rank) -> float:  # what diverged comes last
        return sign * rank.numbers["score"].mean if "score" in rank.numbers else float("inf")

    return sorted(ranks, key=place)


def has_column(name: str, ranks: Sequence[Rank]) -> bool:
    """Whether a table has a column for a number: somebody has it, or would have it had they not diverged."""
    return any(name in rank.numbers or (rank.diverged and name in SCORES) for rank in ranks)


def to_csv(ranks: Sequence[Rank]) -> str:
    """The ranking as CSV: one line per configuration, mean and standard deviation of every number.

    Where a method leaks, a last column says which.
    """
    names = list(dict.fromkeys(name for rank in ranks for name in rank.numbers))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    leaking = any(rank.leaks for rank in ranks)
    numbers = [f"{name}_{part}" for name in names for part in ("mean", "std")]
    writer.writerow(["method", "seeds", *numbers, *(["leaks"] if leaking else [])])
    for rank in ranks:
        spreads = [rank.numbers.get(name) for name in names]
        cells = [cell for s in spreads for cell in ((None, None) if s is None else (s.mean, s.std))]
        said = [INCOMPARABLE if rank.leaks else ""] if leaking else []
        writer.writerow([rank.label, len(rank.seeds), *cells, *said])
    return out.getvalue()


def _rank(label: str, group: Sequence[Outcome]) -> Rank:
    each = [one.numbers() for one in group]
    common = [name for name in each[0] if all(name in numbers for numbers in each)]
    spreads = {name: _spread([numbers[name] for numbers in each]) for name in common}
    asked = int(group[0].config["run"]["rounds"])
    leaks = any(one.leaks for one in group)
    return Rank(
        f"{label} {MARK}" if leaks else label,
        tuple(one.seed for one in group),
        (min(one.rounds for one in group), asked),
        all(one.stopped for one in group),
        spreads,
        leaks,
        tuple(group),
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None)


def _method(config: Mapping[str, Any]) -> dict[str, Any]:
    """What makes one method another: not its seed, nor where it kept what, nor how often it was looked at."""
    besides = {"run": ("seed", "memory_limit", "store", "checkpoint"), "evaluate": ("lab",), "log": ("to",)}
    return {name: {k: v for k, v in table.items() if k not in besides.get(name, ())} for name, table in config.items()}


def flat_method(config: Mapping[str, Any]) -> dict[str, Any]:
    """What makes one method another, as `table.key`."""
    return {f"{name}.{key}": value for name, table in _method(config).items() for key, value in table.items()}


def _labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The method of each configuration, and whatever else tells it from the others."""
    flat = [flat_method(config) for config in configs]
    names = [config["algorithm.name"] for config in flat]
    keys = dict.fromkeys(key for config in flat for key in config if key != "algorithm.name")
    labels = []
    for i, config in enumerate(flat):
        rivals = [other for j, other in enumerate(flat) if j != i and names[j] == names[i]]
        own = [key for key in keys if any(other.get(key) != config.get(key) for other in rivals)]
        own.sort(key=lambda key: not key.startswith("algorithm."))  # its own options first
        told = " ".join(f"{key.removeprefix('algorithm.')}={config[key]}" for key in own if key in config)
        labels.append(f"{names[i]} {told}".strip())
    return labels
