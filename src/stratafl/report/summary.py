"""A report in sentences: which method comes first, warnings, and what was run."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from stratafl.errors import counted
from stratafl.evaluation.metrics import Metric
from stratafl.report.flagged_clients import flag_sentences
from stratafl.report.formats import Environment, differing, limits, listed, machine, minus, score, span, versions
from stratafl.report.intervals import interval
from stratafl.report.outcome import Outcome, measure, what_counts
from stratafl.report.paired import Paired, pairs, with_first
from stratafl.report.ranking import INCOMPARABLE, Rank, winner
from stratafl.report.study import RunRecord, Study

SHOWN = 4  # methods that a sentence compares the first with
OWN = ("algorithm.", "run.device", "run.engine")  # settings in which methods may differ and still be compared
PARTS = {"partition": "the partition", "weights": "the initial weights", "batches": "the batches"}


def summary(study: Study, found: Sequence[Paired] | None = None) -> str:
    """Which method comes first, which ones it is better than, and which ones cannot be told from it.

    `found` are the pairs of its methods, if they are known already.
    """
    first = winner(study.ranks)
    if first is None:
        return "No run has a result that can be ranked." if study.ranks else "This report has verdicts but no runs."
    rivals = with_first(pairs(study.ranks) if found is None else found)
    chance = [f"But {study.no_choice.why}."] if study.no_choice else []
    return " ".join([_first(first, study, alone=not rivals), *chance, *_rivals(rivals)])


def _first(first: Rank, study: Study, alone: bool) -> str:
    metric, values = first.members[0].metric, list(first.by_seed("score").values())
    reached, title = score(first.numbers["score"].mean, metric), "loss" if metric.key == "loss" else metric.title
    what = f"{reached} test {title}" if metric.percent else f"a test {title} of {reached}"
    tied = [rank.label for rank in study.ranks if rank.place == first.place and rank is not first]
    verb = "reaches" if alone else f"shares the first place with {listed(tied)}, at" if tied else "comes first with"
    return f"{first.label} {verb} {what} ({_sure(values, metric)})."


def _sure(values: Sequence[float], metric: Metric) -> str:
    """What a mean over seeds is of; the t interval of two values would say nothing."""
    if len(values) == 1:
        return "one seed"
    if len(values) == 2:
        return f"2 seeds: {' and '.join(score(value, metric) for value in values)}"
    return f"mean of {len(values)} seeds, 95 % interval {limits(interval(values), metric)}"


def _rivals(rivals: Sequence[Paired]) -> list[str]:
    by = {verdict: [pair for pair in rivals if pair.verdict == verdict] for verdict in ("better", "worse", "unclear")}
    unclear = [pair for pair in by["unclear"] if pair.seeds]
    it = "For these clients it" if rivals and all(pair.about_these_clients for pair in rivals) else "It"
    said = [f"{it} is {word} than {_each(by[word], 'and')}." for word in ("better", "worse") if by[word]]
    if unclear:
        said.append(f"Whether it is better than {_each(unclear, 'or')} cannot be told, so there is no clear winner.")
    apart = [pair.second for pair in by["unclear"] if not pair.seeds]
    if apart:
        said.append(f"It has no seed in common with {listed(apart)}.")
    if any(pair.seeds == 1 for pair in rivals):
        said.append("These are differences between clients with one seed; with other seeds they may differ.")
    return said


def _each(found: Sequence[Paired], last: str) -> str:
    told = [f"{pair.second} ({pair.told})" for pair in found[:SHOWN]]
    told += [f"{len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return f" {last} ".join([", ".join(told[:-1]), told[-1]]) if len(told) > 1 else told[0]


def varied(outcomes: Sequence[Outcome]) -> str:
    """Which of the seeds of runs differ, in words; nothing for a single run of each method."""
    seeds = [one.seeds for one in outcomes]
    names = [name for part, name in PARTS.items() if len({getattr(each, part) for each in seeds}) > 1]
    kept = [name for name in PARTS.values() if name not in names]
    if not names:
        return ""
    return (
        f"{_joined(names)}; {_joined(kept)} {'stays' if len(kept) == 1 else 'stay'} the same"
        if kept
        else _joined(names)
    )


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def cautions(study: Study) -> list[str]:
    """Warnings on runs that are unfinished, diverged, flagged, unlike the others, or not comparable."""
    leaks = dict.fromkeys((rank.label, one.leaks) for rank in study.ranks for one in rank.members if one.leaks)
    said = [f"{label}: {INCOMPARABLE} ({why})." for label, why in leaks]
    for rank in study.ranks:
        done, asked = rank.rounds
        if done < asked and not rank.stopped:
            said.append(f"{rank.label} is not finished: {done} of {counted(asked, 'round')}.")
        if "score" not in rank.numbers or any(one.diverged for one in rank.members):
            said.append(f"{rank.label} diverged: its loss, or the upload of every client, became NaN or infinite.")
        if rank.one_answer:
            said.append(f"{rank.label} gives every sample of a client the same class: its answers show nothing.")
    said += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in flag_sentences(study.outcomes)]
    said += study.not_started
    said += [f"'{folder}' has no evaluated round yet and is left out." for folder in study.empty]
    said += [f"'{folder}' repeats a configuration and a seed and is left out." for folder in study.repeated]
    return [*said, *_unchecked(study), *_resumed(study), *_unlike(study), *_unvalidated(study)]


def _unchecked(study: Study) -> list[str]:
    older = [one for one in study.outcomes if not one.checked]
    have = f"{counted(len(older), 'run')} from an older version {'has' if len(older) == 1 else 'have'}"
    return [f"{have} no checksums, so a changed line would not be noticed."] if older else []


def _resumed(study: Study) -> list[str]:
    resumed = [(folder, record.environment.get("resumed") or []) for folder, record in study.records.items()]
    changed = [(folder, entry["changed"]) for folder, entries in resumed for entry in entries if entry.get("changed")]
    return [f"'{folder}' was resumed elsewhere and is not bit-identical: {'; '.join(how)}." for folder, how in changed]


def _unlike(study: Study) -> list[str]:
    """Warnings on settings other than the method's own, seeds, devices and versions that differ."""
    unlike = [key for key in differing([rank.settings for rank in study.ranks]) if not key.startswith(OWN)]
    more = f"The runs differ in {listed(unlike)}, so the rows of the ranking differ in more than the method."
    said = [more] if unlike else []
    seeds = {tuple(sorted(one.seeds.parts for one in rank.members)) for rank in study.ranks}
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
        where = "the round with the best test score, which is optimistic" if ways == {"best"} else "the last round"
        return [f"There is no validation split, so numbers are those of {where}."]
    return []


def facts(study: Study) -> list[tuple[str, str]]:
    outcomes, environments = study.outcomes, [record.environment for record in study.records.values()]
    if not outcomes:
        return []
    seeds = sorted({one.seed for one in outcomes})
    pairs = [
        ("methods", listed([rank.label for rank in study.ranks], 20)),
        ("data", _all(_data(study.records[one.folder]) for one in outcomes)),
        ("model", _models(study)),
        ("training", _all(_training(one) for one in outcomes)),
        ("rounds", _all(str(one.config["run"]["rounds"]) for one in outcomes)),
        ("clients per round", _all(f"{100 * one.config['run']['participation']:g} %" for one in outcomes)),
        ("seeds", listed([str(seed) for seed in seeds])),
        ("seeds vary", varied(outcomes)),
        ("score", f"test {measure(outcomes[0].metric)} {what_counts(outcomes)}"),
        ("machine", _all(machine(env) for env in environments)),
        ("versions", _all(versions(env) for env in environments)),
        ("started", span([str(env["started"]) for env in environments if env.get("started")])),
        ("command", _all(map(_command, sorted(environments, key=lambda env: str(env.get("started") or ""))))),
    ]
    return [(name, value) for name, value in pairs if value]


def _all(values: Iterable[str], most: int = 4) -> str:
    said = list(dict.fromkeys(filter(None, values)))
    return "; ".join(said[:most]) + (f"; and {len(said) - most} more" if len(said) > most else "")


def _data(record: RunRecord) -> str:
    one, data = record.outcome, record.outcome.config["data"]
    partition = data["partition"]
    if partition == "auto":
        drawn = "iid" if one.regression else "dirichlet"
        partition = "clients as named in the data" if record.class_counts.clients else drawn
    shown = {
        "dirichlet": f"Dirichlet shares, α = {data['alpha']:g}",
        "pfllib": f"PFLlib's Dirichlet shares, α = {data['alpha']:g}",
        "classes": f"{counted(data.get('per_client') or 0, 'class', 'classes')} each",
    }
    new = f" + {data['new_clients']} new" if data["new_clients"] else ""
    return f"{Path(data['name']).stem}, {counted(one.clients, 'client')}{new}, {shown.get(partition, partition)}"


def _models(study: Study) -> str:
    """Each model with its parameters; with the methods that have so many, if they differ."""
    found: dict[tuple[str, int | None], list[str]] = {}
    for rank in study.ranks:
        for record in study.of(rank):
            columns = record.environment.get("columns")
            key = (str(record.outcome.config["model"]["name"]), columns if isinstance(columns, int) else None)
            found.setdefault(key, []).append(rank.label)
    said = []
    for (name, columns), labels in found.items():
        whose = f": {listed(list(dict.fromkeys(labels)), 6)}" if len(found) > 1 else ""
        said.append(name + (f" ({columns:,} parameters{whose})" if columns else f" ({whose[2:]})" if whose else ""))
    return _all(said)


def _training(one: Outcome) -> str:
    train = one.config["train"]
    epochs, rate = counted(train["epochs"], "local epoch"), minus(f"{train['lr']:g}")
    return f"{epochs}, batch size {train['batch']}, learning rate {rate}"


def _command(env: Environment) -> str:
    words = env.get("command")
    return " ".join(["strata", *map(str, words[1:])]) if isinstance(words, list) and len(words) > 1 else ""
