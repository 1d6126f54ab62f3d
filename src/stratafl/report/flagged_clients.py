"""Flagged clients over all runs of a report: those that rounds left out, and those with outlying updates."""

import shlex
from collections.abc import Sequence
from math import inf

from stratafl.errors import counted, shown
from stratafl.evaluation.flags import MAX_NAMED_CLIENTS, Flag, all_left_out, flags
from stratafl.execute.uploads import FAR
from stratafl.report.formats import listed
from stratafl.report.outcome import Outcome
from stratafl.report.ranking import Rank
from stratafl.report.report_tables import Cell, ReportTable, text
from stratafl.runs.directory import CONFIG

Flagged = list[tuple[Outcome, Flag]]  # of one client, by run


def flag_sentences(outcomes: Sequence[Outcome]) -> list[str]:
    """Which runs diverged, which clients were left out of how many rounds and why, and who sent outlying updates.

    Runs that diverged name no client: the reason is the learning rate, not the data of single clients.
    """
    left_out, far = dict[str, Flagged](), dict[str, Flagged]()
    for run in _sound(outcomes):
        for flag in flags(run.lines):
            for count, by_client in ((flag.left_out, left_out), (flag.far, far)):
                if count:
                    by_client.setdefault(flag.name, []).append((run, flag))
    dropped, outlying = list[str](), list[str]()
    for client, flagged in left_out.items():
        reasons = "; ".join(dict.fromkeys(shown(flag.reason) for _, flag in flagged))
        dropped.append(f"{client} was left out of {_rounds(flagged, outcomes, 'left_out')}: {reasons}")
    for client, flagged in far.items():
        longest = max((flag for _, flag in flagged), key=lambda f: inf if f.ratio is None else f.ratio).times
        where = _rounds(flagged, outcomes, "far")
        outlying.append(f"{client} sent updates of up to {longest} times the median norm of the cohort in {where}")
    endings = [*_diverged(outcomes), *_not_finite(outcomes), *_all_left_out(outcomes)]
    return [*endings, *_shortened(dropped, "left out"), *_shortened(outlying, "with long updates")]


def where_to_look(outcomes: Sequence[Outcome]) -> str | None:
    """The command that shows the data of flagged clients, if there are any."""
    first = next((run for run in _sound(outcomes) if flags(run.lines)), None)
    return None if first is None else f"strata data show --config {shlex.quote(str(first.folder / CONFIG))}"


def flag_table(ranks: Sequence[Rank]) -> ReportTable | None:
    rows = []
    for rank in ranks:
        for run in rank.members:
            for flag in flags(run.lines):
                cells = [text(rank.label), text(run.seed), text(flag.name)]
                cells += [Cell(f"{flag.left_out} of {run.rounds}", flag.left_out), text(shown(flag.reason))]
                ratio = Cell(flag.times, flag.ratio) if flag.far else Cell("")
                rows.append((*cells, Cell(f"{flag.far} of {run.rounds}", flag.far), ratio))
    caption = (
        "Left out: the upload is not finite, its number of samples is wrong, or it is above a limit. Outlier: the norm "
        f"of the update is at least {FAR:g} times the median of the cohort; the update is still used."
    )
    head = ("method", "seed", "client", "rounds left out", "reason", "rounds as outlier", "times the median")
    return ReportTable("left-out", caption, head, tuple(rows), left=3, stacked=True) if rows else None


def _sound(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [run for run in outcomes if run.divergence is None and not all_left_out(run.lines[-1])]


def _diverged(outcomes: Sequence[Outcome]) -> list[str]:
    """A sentence for each way in which the runs of a method diverged."""
    runs: dict[str, list[Outcome]] = {}
    for run in outcomes:
        if run.divergence is not None:
            runs.setdefault(f"{_method(run)}: {run.divergence}", []).append(run)
    several = len({_method(run) for run in outcomes}) < len(outcomes)
    return [f"{says}{_of_seeds(diverged) if several else ''}" for says, diverged in runs.items()]


def _not_finite(outcomes: Sequence[Outcome]) -> list[str]:
    """How many clients count as guessing in the round that counts, by method, in runs that did not diverge."""
    broken: dict[str, list[int]] = {}
    for run in _sound(outcomes):
        if run.not_finite:
            broken.setdefault(_method(run), []).append(run.not_finite)
    return [
        f"{method}: the models of up to {counted(max(counts), 'client')} are not finite and count as guessing"
        for method, counts in broken.items()
    ]


def _all_left_out(outcomes: Sequence[Outcome]) -> list[str]:
    """A sentence on the runs that ended with all clients left out for another reason."""
    lost = [run for run in outcomes if run.divergence is None and all_left_out(run.lines[-1])]
    if not lost:
        return []
    empty, rounds = sum(all_left_out(line) for run in lost for line in run.lines), sum(run.rounds for run in lost)
    where = _in_runs(len(lost), outcomes)
    return [f"all clients were left out of {empty} of {counted(rounds, 'round')}{where}; try a smaller train.lr"]


def _method(run: Outcome) -> str:
    return str(run.config["algorithm"]["name"])


def _of_seeds(runs: Sequence[Outcome]) -> str:
    return f" (seed {listed([str(run.seed) for run in runs])})"


def _rounds(flagged: Flagged, outcomes: Sequence[Outcome], kind: str) -> str:
    """In how many rounds, of how many rounds of the runs that flagged it."""
    times, rounds = sum(getattr(flag, kind) for _, flag in flagged), sum(run.rounds for run, _ in flagged)
    return f"{times} of {counted(rounds, 'round')}{_in_runs(len(flagged), outcomes)}"


def _in_runs(count: int, outcomes: Sequence[Outcome]) -> str:
    return f" in {count} of {len(outcomes)} runs" if len(outcomes) > 1 else ""


def _shortened(sentences: Sequence[str], what: str) -> list[str]:
    more = len(sentences) - MAX_NAMED_CLIENTS
    return [*sentences[:MAX_NAMED_CLIENTS], *([f"{counted(more, 'more client')} {what}"] if more > 0 else [])]
