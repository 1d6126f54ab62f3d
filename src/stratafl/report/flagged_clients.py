"""Flagged clients over all runs of a report: those that rounds left out, and those with outlying updates."""

import shlex
from collections.abc import Sequence
from math import inf

from stratafl.errors import counted, shown
from stratafl.evaluation.flags import MAX_NAMED_CLIENTS, Flag, all_left_out, flags
from stratafl.execute.uploads import FAR
from stratafl.report.outcome import Outcome
from stratafl.report.ranking import Rank
from stratafl.report.tables import Cell, Table, text
from stratafl.runs.directory import CONFIG

Found = list[tuple[Outcome, Flag]]  # of one client, by run


def flag_sentences(outcomes: Sequence[Outcome]) -> list[str]:
    """Which clients were left out of how many rounds and why, and which ones sent outlying updates.

    Runs that ended with all clients left out name no client, because the model diverged.
    """
    left_out, far = dict[str, Found](), dict[str, Found]()
    for one in _alive(outcomes):
        for flag in flags(one.lines):
            for there, flagged in ((flag.left_out, left_out), (flag.far, far)):
                if there:
                    flagged.setdefault(flag.name, []).append((one, flag))
    out, long, runs = list[str](), list[str](), len(outcomes)
    for who, found in left_out.items():
        reasons = "; ".join(dict.fromkeys(shown(flag.reason) for _, flag in found))
        out.append(f"{who} was left out of {_rounds(found, runs, 'left_out')}: {reasons}")
    for who, found in far.items():
        longest = max((flag for _, flag in found), key=lambda f: inf if f.ratio is None else f.ratio).times
        where = _rounds(found, runs, "far")
        long.append(f"{who} sent updates of up to {longest} times the median norm of the cohort in {where}")
    said = [*_few(out, "was left out", "were left out"), *_few(long, "sent long updates", "sent long updates")]
    return [*_ended(outcomes), *said]


def where_to_look(outcomes: Sequence[Outcome]) -> str | None:
    """The command that shows the data of flagged clients, if there are any."""
    first = next((one for one in _alive(outcomes) if flags(one.lines)), None)
    return None if first is None else f"strata data show --config {shlex.quote(str(first.folder / CONFIG))}"


def flag_table(ranks: Sequence[Rank]) -> Table | None:
    rows = []
    for rank in ranks:
        for one in rank.members:
            for flag in flags(one.lines):
                cells = [text(rank.label), text(one.seed), text(flag.name)]
                cells += [Cell(f"{flag.left_out} of {one.rounds}", flag.left_out), text(shown(flag.reason))]
                ratio = Cell(flag.times, flag.ratio) if flag.far else Cell("")
                rows.append((*cells, Cell(f"{flag.far} of {one.rounds}", flag.far), ratio))
    caption = (
        "Left out: the upload is not finite, its number of samples is wrong, or it is above a limit. Outlier: the norm "
        f"of the update is at least {FAR:g} times the median of the cohort; the update takes part."
    )
    head = ("method", "seed", "client", "rounds left out", "reason", "rounds as outlier", "times the median")
    return Table("left-out", caption, head, tuple(rows), left=3, stacked=True) if rows else None


def _alive(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [one for one in outcomes if not all_left_out(one.lines[-1])]


def _ended(outcomes: Sequence[Outcome]) -> list[str]:
    """A sentence on the runs that ended with all clients left out."""
    lost = [one for one in outcomes if all_left_out(one.lines[-1])]
    if not lost:
        return []
    still, rounds = sum(all_left_out(line) for one in lost for line in one.lines), sum(one.rounds for one in lost)
    where = f" in {len(lost)} of {len(outcomes)} runs" if len(outcomes) > 1 else ""
    return [f"all clients were left out of {still} of {counted(rounds, 'round')}{where}; try a smaller train.lr"]


def _rounds(found: Found, runs: int, kind: str) -> str:
    """In how many rounds, of how many rounds of the runs that flagged it."""
    times, rounds = sum(getattr(flag, kind) for _, flag in found), sum(one.rounds for one, _ in found)
    where = f" in {len(found)} of {runs} runs" if runs > 1 else ""
    return f"{times} of {counted(rounds, 'round')}{where}"


def _few(said: Sequence[str], one: str, several: str) -> list[str]:
    more = len(said) - MAX_NAMED_CLIENTS
    return [
        *said[:MAX_NAMED_CLIENTS],
        *([f"{counted(more, 'more client')} {one if more == 1 else several}"] if more > 0 else []),
    ]
