"""The summary of a report in words, and what its reader should be warned of."""

from collections.abc import Sequence

from stratafl.errors import counted
from stratafl.report.flagging import flag_sentences
from stratafl.report.formats import limits, listed, minus, score
from stratafl.report.intervals import Interval, interval
from stratafl.report.overview import behind, winner
from stratafl.report.ranking import INCOMPARABLE, Rank, flat_method
from stratafl.report.study import Study

FEW = 5  # seeds below which an interval is said to rest on little
OWN = ("algorithm.", "run.device", "run.engine")  # keys in which methods may differ and still be compared


def summary(study: Study) -> str:
    """Who is first, and whether that is more than noise."""
    first = winner(study.ranks)
    if first is None:
        return "No run has a result that can be ranked." if study.ranks else "There are verdicts, but no runs."
    others = [rank for rank in study.ranks if rank is not first and not rank.leaks and "score" in rank.numbers]
    return " ".join([_first(first, study, alone=not others), *_others(first, others, study)])


def _first(first: Rank, study: Study, alone: bool) -> str:
    loss, values = study.regression, list(first.by_seed("score").values())
    found, reached = interval(values), score(first.numbers["score"].mean, study.regression)
    what = f"a test loss of {reached}" if loss else f"{reached} test accuracy"
    verb = "reaches" if alone else "comes first with"
    if found is None:
        return f"{first.label} {verb} {what} (one seed)."
    return f"{first.label} {verb} {what} (mean of {len(values)} seeds, 95 % interval {limits(found, loss)})."


def _others(first: Rank, others: Sequence[Rank], study: Study) -> list[str]:
    if not others:
        return []
    found = [(rank, behind(first, rank)) for rank in others]
    said = [_next(found[0][0], found[0][1], first, study)]
    near = [rank.label for rank, gap in found if gap is not None and not gap.beyond_noise]
    far = [rank.label for rank, gap in found if gap is not None and gap.beyond_noise]
    if len(others) > 1 and near:
        said.append(f"Within noise of the first: {listed(near)}.")
    if len(others) > 1 and far:
        every = len(far) == len(others)
        said.append("So are the distances of all others." if every else f"Behind it beyond noise: {listed(far)}.")
    if near:
        said.append("So no winner can be named.")
    if (near or far) and len(first.seeds) < FEW:
        said.append(f"With {counted(len(first.seeds), 'seed')} such intervals are wide: more seeds would tell more.")
    return said


def _next(rank: Rank, gap: Interval | None, first: Rank, study: Study) -> str:
    loss = study.regression
    away = abs(rank.numbers["score"].mean - first.numbers["score"].mean)
    distance = minus(f"{away:.3g}") if loss else f"{100 * away:.1f} points"
    follows = f"{rank.label} follows at a distance of {distance}"
    if gap is None:
        return f"{follows}; with no two seeds in common nothing can be said about noise."
    ends = (gap.low, gap.high) if loss else (-gap.high, -gap.low)  # how much worse it is
    low, high = (minus(f"{end:.2g}" if loss else f"{100 * end:.1f}") for end in ends)
    interval_ = f"95 % interval {low} to {high}, paired by seed"
    if gap.beyond_noise:
        return f"{follows}, which is beyond the noise between seeds ({interval_})."
    return f"{follows}, which is within the noise between seeds ({interval_})."


def cautions(study: Study) -> list[str]:
    """What a reader should know before believing anything."""
    said = [f"{rank.label}: {INCOMPARABLE} ({why})." for rank in study.ranks if rank.leaks for why in _leaks(rank)]
    for rank in study.ranks:
        done, asked = rank.rounds
        if done < asked and not rank.stopped:
            said.append(f"{rank.label} is not finished: {done} of {counted(asked, 'round')}.")
        if "score" not in rank.numbers or any(one.diverged for one in rank.members):
            said.append(f"{rank.label} diverged: its loss, or the upload of every client, became NaN or infinite.")
    said += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in flag_sentences(study.outcomes)]
    said += study.waiting
    said += [f"'{folder}' has no evaluated round yet and is left out." for folder in study.empty]
    said += [f"'{folder}' repeats a configuration and a seed and is left out." for folder in study.repeated]
    return [*said, *_unchecked(study), *_resumed(study), *_unlike(study), *_unvalidated(study)]


def _leaks(rank: Rank) -> list[str]:
    return list(dict.fromkeys(one.leaks for one in rank.members if one.leaks))


def _unchecked(study: Study) -> list[str]:
    older = [one for one in study.outcomes if not one.checked]
    have = f"{counted(len(older), 'run')} of an older version {'has' if len(older) == 1 else 'have'}"
    return [f"{have} no checksums: nothing would show that a line was changed."] if older else []


def _resumed(study: Study) -> list[str]:
    told = []
    for folder, record in study.records.items():
        for entry in record.environment.get("resumed") or []:
            if entry.get("changed"):
                told.append(
                    f"'{folder}' was resumed elsewhere and is not bit-identical: {'; '.join(entry['changed'])}."
                )
    return told


def _unlike(study: Study) -> list[str]:
    """Keys that make a comparison of methods one of something else, and places that differ."""
    flat = [flat_method(rank.members[0].config) for rank in study.ranks]
    keys = dict.fromkeys(key for config in flat for key in config if not key.startswith(OWN))
    unlike = [key for key in keys if len({repr(config.get(key)) for config in flat}) > 1]
    said = (
        [f"The runs differ in {listed(unlike)}: rows of the ranking differ in more than the method."] if unlike else []
    )
    seeds = {tuple(sorted(rank.seeds)) for rank in study.ranks}
    said += ["The methods were not all run with the same seeds."] if len(seeds) > 1 else []
    for key, what in (("device_name", "devices"), ("torch", "versions of torch"), ("commit", "commits of stratafl")):
        values = list(dict.fromkeys(str(record.environment.get(key)) for record in study.records.values()))
        said += [f"The runs come from different {what}: {listed(values)}."] if len(values) > 1 else []
    return said


def _unvalidated(study: Study) -> list[str]:
    if not study.ranks or all("validation.deployed.loss" in line for one in study.outcomes for line in one.lines[-1:]):
        return []
    if all(not one.config["data"]["validation"] for one in study.outcomes):
        ways = {one.config["evaluate"]["select"] for one in study.outcomes}
        where = "the round with the best test score, which flatters" if ways == {"best"} else "the last round"
        return [f"There is no validation split: numbers are those of {where}."]
    return []
