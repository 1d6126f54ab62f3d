"""Sentences about which models the clients of guarded runs take."""

from collections import Counter
from collections.abc import Sequence

from stratafl.errors import counted
from stratafl.evaluation.guard import SAFE, Choice, Gain
from stratafl.report.formats import listed
from stratafl.report.outcome import Outcome
from stratafl.report.ranking import Rank
from stratafl.runs.directory import CHOICES
from stratafl.runs.guard_files import GuardRecord, read_choices

MAX_CLIENT_NAMES = 8  # in a sentence
ADVISED_VALIDATION = 0.2  # of the samples, where less was too little


def guard_option(validation: float) -> str:
    """The option `--guard`, with more validation samples where a guard would keep most clients on their own models."""
    return " --guard" + (f" --set data.validation={ADVISED_VALIDATION:g}" if validation < ADVISED_VALIDATION else "")


def guard_sentences(ranks: Sequence[Rank]) -> list[str]:
    """On each guarded method: how many clients take which model, and whether validation samples were enough to tell."""
    return [sentence for rank in ranks if rank.is_guarded for sentence in _sentences(rank)]


def _sentences(rank: Rank) -> list[str]:
    records = [read_choices(run.folder / CHOICES) for run in rank.members]
    choices = [choice for record in records for choice in record.choices.values()]
    taken = Counter(choice.candidate for choice in choices)
    safe = taken.pop(SAFE, 0)
    names = _names(rank.members[0], records[0]) if safe and len(records) == 1 else ""
    models = [*(f"{count} {name}" for name, count in taken.most_common()), f"{safe} {SAFE}{names}"]
    clients = counted(len(choices), "client") + (f" of {len(records)} seeds" if len(records) > 1 else "")
    return [f"{rank.label}: models chosen by {clients}: {', '.join(models)}", *_too_few_samples(rank, choices)]


def _too_few_samples(rank: Rank, choices: Sequence[Choice]) -> list[str]:
    """A sentence if half of the clients stay safe only because they have too few validation samples."""
    undecided = [each for each in choices if each.candidate == SAFE and any(map(_may_gain, each.gains.values()))]
    if 2 * len(undecided) < len(choices):
        return []
    samples = [choice.samples for choice in undecided]
    span = " to ".join(dict.fromkeys(f"{count:,}" for count in (min(samples), max(samples))))
    low = float(rank.members[0].config["data"]["validation"]) < ADVISED_VALIDATION
    return [
        f"{rank.label}: too few validation samples ({span} per client) to tell who gains, so these stay {SAFE}: "
        f"{len(undecided)} of {counted(len(choices), 'client')}"
        + (f"; set data.validation={ADVISED_VALIDATION:g}" if low else "; collect more samples, or leave out the guard")
    ]


def _may_gain(gain: Gain) -> bool:
    """Whether a candidate looks better but not convincingly so, or nothing is known of it."""
    return gain.shrunk is None or (gain.shrunk > 0 and not gain.convincing)


def _names(outcome: Outcome, record: GuardRecord) -> str:
    """The clients that take local models, by name if they have one."""
    names = outcome.client_names
    clients = [str(names[client] if client < len(names) else client) for client in record.taken.get(SAFE, [])]
    return f" (client {listed(clients, MAX_CLIENT_NAMES)})"
