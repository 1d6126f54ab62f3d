"""Clients that were left out of rounds, or whose updates were far from the others', over all runs of a report."""

import shlex
from collections.abc import Sequence

from stratafl.errors import counted, shown
from stratafl.evaluation.flagged import FAR, MOST, Flag, flags, nobody_left
from stratafl.report.outcomes import Outcome
from stratafl.report.study import Study
from stratafl.report.tables import Cell, Table, text
from stratafl.runs.directory import CONFIG

Found = list[tuple[Outcome, Flag]]  # of one client


def flag_sentences(outcomes: Sequence[Outcome]) -> list[str]:
    """Who was left out of how many rounds and why, and whose updates were far from the others'.

    Of runs that ended with nobody left no client is named: it is the model that diverged.
    """
    left_out, far = dict[str, Found](), dict[str, Found]()
    for one in _going(outcomes):
        for flag in flags(one.lines):
            for there, found in ((flag.left_out, left_out), (flag.far, far)):
                if there:
                    found.setdefault(flag.name, []).append((one, flag))
    runs = len(outcomes)
    out = [f"{who} was left out of {_rounds(f, runs, 'left_out')}: {_reasons(f)}" for who, f in left_out.items()]
    long = [
        f"{who} sent updates that are up to {_longest(f)} times as long as the cohort's median in "
        f"{_rounds(f, runs, 'far')}"
        for who, f in far.items()
    ]
    said = [*_few(out, "was left out", "were left out"), *_few(long, "sent long updates", "sent long updates")]
    return [*_ended(outcomes), *said]


def where_to_look(outcomes: Sequence[Outcome]) -> str | None:
    """The command that shows what the flagged clients hold, if there are any."""
    first = next((one for one in _going(outcomes) if flags(one.lines)), None)
    return None if first is None else f"strata data show --config {shlex.quote(str(first.folder / CONFIG))}"


def flag_table(study: Study) -> Table | None:
    """Every flagged client of every run."""
    rows = []
    for rank in study.ranks:
        for one in rank.members:
            for flag in flags(one.lines):
                cells = [text(rank.label), text(one.seed), text(flag.name)]
                cells += [Cell(f"{flag.left_out} of {one.rounds}", flag.left_out), text(shown(flag.reason))]
                rows.append((*cells, Cell(f"{flag.far} of {one.rounds}", flag.far), _ratio(flag)))
    caption = (
        "Left out: the upload is not finite, or its number of samples is not the client's. Far: an update whose norm "
        f"is {FAR:g} times the cohort's median or more; it takes part."
    )
    head = ("method", "seed", "client", "rounds left out", "reason", "rounds far", "times the median")
    return Table("flagged", caption, head, tuple(rows), left=3, stacked=True) if rows else None


def _going(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [one for one in outcomes if not nobody_left(one.lines[-1])]


def _ended(outcomes: Sequence[Outcome]) -> list[str]:
    """That whole runs stand still."""
    lost = [one for one in outcomes if nobody_left(one.lines[-1])]
    if not lost:
        return []
    still, rounds = sum(nobody_left(line) for one in lost for line in one.lines), sum(one.rounds for one in lost)
    where = f" in {len(lost)} of {len(outcomes)} runs" if len(outcomes) > 1 else ""
    return [f"all clients were left out of {still} of {counted(rounds, 'round')}{where}: try a smaller train.lr"]


def _ratio(flag: Flag) -> Cell:
    return Cell(flag.times, flag.ratio) if flag.far else Cell("", None)


def _rounds(found: Found, runs: int, kind: str) -> str:
    """In how many rounds, of how many that the runs in which it was have."""
    times, rounds = sum(getattr(flag, kind) for _, flag in found), sum(one.rounds for one, _ in found)
    where = f" in {len(found)} of {runs} runs" if runs > 1 else ""
    return f"{times} of {counted(rounds, 'round')}{where}"


def _reasons(found: Found) -> str:
    return "; ".join(dict.fromkeys(shown(flag.reason) for _, flag in found))


def _longest(found: Found) -> str:
    return max((flag for _, flag in found), key=lambda f: float("inf") if f.ratio is None else f.ratio).times


def _few(said: Sequence[str], one: str, several: str) -> list[str]:
    more = len(said) - MOST
    return [*said[:MOST], *([f"{counted(more, 'more client')} {one if more == 1 else several}"] if more > 0 else [])]
