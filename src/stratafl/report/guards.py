"""What the clients of guarded runs take, in words."""

from collections.abc import Sequence

from stratafl.evaluation.guard import SAFE
from stratafl.report.outcome import Outcome
from stratafl.report.ranking import Rank
from stratafl.runs.class_counts import read_class_counts
from stratafl.runs.directory import CHOICES, config_of
from stratafl.runs.guard import GuardRecord, read_choices

NAMED = 8  # clients in a sentence


def guard_sentences(ranks: Sequence[Rank]) -> list[str]:
    """One sentence on each guarded method: how many clients take what, and which stay with local training."""
    return [_sentence(rank) for rank in ranks if all(map(is_guard, rank.members))]


def is_guard(outcome: Outcome) -> bool:
    return (outcome.folder / CHOICES).exists()


def _sentence(rank: Rank) -> str:
    records = [read_choices(one.folder / CHOICES) for one in rank.members]
    taken: dict[str, int] = {}
    for record in records:
        for name, clients in record.taken.items():
            taken[name] = taken.get(name, 0) + len(clients)
    total, seeds = sum(taken.values()), len(records)
    counts = [f"{count} {name}" for name, count in sorted(taken.items(), key=lambda item: -item[1])]
    alone = [text for one, each in zip(rank.members, records, strict=True) for text in _alone(one, each, seeds)]
    more = f" and {len(alone) - NAMED} more" if len(alone) > NAMED else ""
    which = f" (client {', '.join(alone[:NAMED])}{more})" if alone else ""
    last = f"{taken.pop(SAFE, 0)} {SAFE}{which}"
    counts = [each for each in counts if not each.endswith(f" {SAFE}")]
    whose = f"{total} clients" if seeds == 1 else f"{total} clients of {seeds} seeds"
    return f"{rank.label}: {whose} take {', '.join([*counts, last])}"


def _alone(outcome: Outcome, record: GuardRecord, seeds: int) -> list[str]:
    """The clients that take local models, by name if they have one, and with the seed if there are several."""
    found = read_class_counts(outcome.folder, config_of(outcome.folder)) or {}
    names, seed = found.get("client_names", ()), f" (seed {outcome.seed})" if seeds > 1 else ""
    return [f"{names[client] if client < len(names) else client}{seed}" for client in record.taken.get(SAFE, [])]
