"""What the clients of guarded runs take, in words."""

from collections import Counter
from collections.abc import Sequence

from stratafl.errors import counted
from stratafl.evaluation.guard import SAFE, Choice, Gain
from stratafl.report.outcome import Outcome
from stratafl.report.ranking import Rank
from stratafl.runs.directory import CHOICES
from stratafl.runs.guard_files import GuardRecord, read_choices

NAMED = 8  # clients in a sentence
ENOUGH = 0.2  # of the samples for validation: what is advised where less was too little


def guard_sentences(ranks: Sequence[Rank]) -> list[str]:
    """On each guarded method: how many clients take what, and whether they had the validation samples to tell."""
    return [sentence for rank in ranks if rank.is_guarded for sentence in _sentences(rank)]


def _sentences(rank: Rank) -> list[str]:
    records = [read_choices(one.folder / CHOICES) for one in rank.members]
    choices = [choice for record in records for choice in record.choices.values()]
    taken = Counter(choice.candidate for choice in choices)
    alone = taken.pop(SAFE, 0)
    which = _names(rank.members[0], records[0]) if alone and len(records) == 1 else ""
    parts = [*(f"{count} {name}" for name, count in taken.most_common()), f"{alone} {SAFE}{which}"]
    whose = counted(len(choices), "client") + (f" of {len(records)} seeds" if len(records) > 1 else "")
    return [f"{rank.label}: {whose} take {', '.join(parts)}", *_doubt(rank, choices)]


def _doubt(rank: Rank, choices: Sequence[Choice]) -> list[str]:
    """A sentence if half of the clients stay safe only because their validation samples do not tell."""
    open_ones = [each for each in choices if each.candidate == SAFE and any(map(_may_gain, each.gains.values()))]
    if 2 * len(open_ones) < len(choices):
        return []
    least, most = (bound(each.samples for each in open_ones) for bound in (min, max))
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    low = float(rank.members[0].config["data"]["validation"]) < ENOUGH
    return [
        f"{rank.label}: the guard had too few validation samples ({each} per client) to tell whether {len(open_ones)} "
        f"of {counted(len(choices), 'client')} gain, so they stay {SAFE}"
        + (f"; set data.validation={ENOUGH:g}" if low else "")
    ]


def _may_gain(gain: Gain) -> bool:
    """Whether a candidate looks better but not convincingly so, or nothing can be told."""
    return gain.shrunk is None or (gain.shrunk > 0 and not gain.convincing)


def _names(outcome: Outcome, record: GuardRecord) -> str:
    """The clients that take local models, by name if they have one."""
    names, alone = outcome.client_names, record.taken.get(SAFE, [])
    listed = [str(names[client] if client < len(names) else client) for client in alone[:NAMED]]
    more = f" and {len(alone) - NAMED} more" if len(alone) > NAMED else ""
    return f" (client {', '.join(listed)}{more})"
