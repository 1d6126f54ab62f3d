"""A report in sentences: which method comes first, warnings, and what was run."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from stratafl.errors import counted
from stratafl.report.flagged_clients import flag_sentences
from stratafl.report.formats import Environment, differing, limits, listed, machine, minus, score, span, versions
from stratafl.report.intervals import Interval, interval
from stratafl.report.outcome import Outcome, measure, what_counts
from stratafl.report.ranking import INCOMPARABLE, Rank, winner
from stratafl.report.study import RunRecord, Study

FEW = 5  # with fewer seeds, the summary recommends more
OWN = ("algorithm.", "run.device", "run.engine")  # settings in which methods may differ and still be compared


def summary(study: Study) -> str:
    """Which method comes first, and whether its lead is beyond the noise between seeds."""
    first = winner(study.ranks)
    if first is None:
        return "No run has a result that can be ranked." if study.ranks else "This report has verdicts but no runs."
    others = [rank for rank in study.ranks if rank is not first and not rank.leaks and "score" in rank.numbers]
    return " ".join([_first(first, study, alone=not others), *(_others(first, others, study) if others else [])])


def _first(first: Rank, study: Study, alone: bool) -> str:
    loss, values = study.regression, list(first.by_seed("score").values())
    found, reached = interval(values), score(first.numbers["score"].mean, study.regression)
    what = f"a test loss of {reached}" if loss else f"{reached} test accuracy"
    verb = "reaches" if alone else "comes first with"
    if found is None:
        return f"{first.label} {verb} {what} (one seed)."
    return f"{first.label} {verb} {what} (mean of {len(values)} seeds, 95 % interval {limits(found, loss)})."


def _others(first: Rank, others: Sequence[Rank], study: Study) -> list[str]:
    found = [(rank, rank.difference_from(first)) for rank in others]
    said = [_next(*found[0], first, study)]
    near = [rank.label for rank, behind in found if behind is not None and not behind.beyond_noise]
    far = [rank.label for rank, behind in found if behind is not None and behind.beyond_noise]
    if len(others) > 1 and near:
        said.append(f"Within noise of the first: {listed(near)}.")
    if len(others) > 1 and far:
        every = len(far) == len(others)
        said.append("So are all other distances." if every else f"Behind the first beyond noise: {listed(far)}.")
    if near:
        said.append("So there is no clear winner.")
    if (near or far) and len(first.seeds) < FEW:
        said.append(f"With {counted(len(first.seeds), 'seed')} these intervals are wide; run more seeds.")
    return said


def _next(rank: Rank, behind: Interval | None, first: Rank, study: Study) -> str:
    loss = study.regression
    away = abs(rank.numbers["score"].mean - first.numbers["score"].mean)
    distance = minus(f"{away:.3g}") if loss else f"{100 * away:.1f} points"
    follows = f"{rank.label} follows at a distance of {distance}"
    if behind is None:
        return f"{follows}. Without two common seeds, the noise between seeds is unknown."
    ends = (behind.low, behind.high) if loss else (-behind.high, -behind.low)  # positive: worse
    low, high = (minus(f"{end:.2g}" if loss else f"{100 * end:.1f}") for end in ends)
    noise = "beyond" if behind.beyond_noise else "within"
    return f"{follows}, which is {noise} the noise between seeds (95 % interval {low} to {high}, paired by seed)."


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
        ("data", _each(_data(study.records[one.folder]) for one in outcomes)),
        ("model", _models(study)),
        ("training", _each(_training(one) for one in outcomes)),
        ("rounds", _each(str(one.config["run"]["rounds"]) for one in outcomes)),
        ("clients per round", _each(f"{100 * one.config['run']['participation']:g} %" for one in outcomes)),
        ("seeds", listed([str(seed) for seed in seeds])),
        ("score", f"test {measure(study.regression)} {what_counts(outcomes)}"),
        ("machine", _each(machine(env) for env in environments)),
        ("versions", _each(versions(env) for env in environments)),
        ("started", span([str(env["started"]) for env in environments if env.get("started")])),
        ("command", _each(map(_command, sorted(environments, key=lambda env: str(env.get("started") or ""))))),
    ]
    return [(name, value) for name, value in pairs if value]


def _each(values: Iterable[str], most: int = 4) -> str:
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
    return _each(said)


def _training(one: Outcome) -> str:
    train = one.config["train"]
    epochs, rate = counted(train["epochs"], "local epoch"), minus(f"{train['lr']:g}")
    return f"{epochs}, batch size {train['batch']}, learning rate {rate}"


def _command(env: Environment) -> str:
    words = env.get("command")
    return " ".join(["strata", *map(str, words[1:])]) if isinstance(words, list) and len(words) > 1 else ""
