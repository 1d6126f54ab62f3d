"""The result of a tuning: each method's choice, its validation scores over the learning rate, and its test scores.

tuning.json     everything, for reports
tuned.csv       a line per method
trials.csv      a line per trial
"""

from collections.abc import Sequence
from typing import Any

from stratafl.config.metric_choice import stored_metric
from stratafl.config.settings import Settings
from stratafl.files import write_atomically
from stratafl.report.formats import NO_VALUE, score_text, spread
from stratafl.report.outcome import measure, read_outcome
from stratafl.report.report_tables import as_csv
from stratafl.report.tuned import TUNING_RESULT, TunedMethod, TunedTrial, to_tuning_table
from stratafl.runs.directory import is_run
from stratafl.runs.json_files import write_json
from stratafl.runs.summary import evaluated
from stratafl.tuning.search import Search, SearchResult, shown_settings
from stratafl.tuning.space import OWN
from stratafl.tuning.tuning import UNTUNED, WINNERS, Tuning

HEAD = ("method", "chosen", "validation", "test, tuned", "test, untuned")


def results(tuning: Tuning) -> list[TunedMethod]:
    """Every method, in the order of the tuning, with the test scores that there are."""
    scores: dict[str, dict[str, dict[str, float]]] = {WINNERS: {}, UNTUNED: {}}
    for comparison in tuning.comparisons():
        for member in comparison.members():
            outcome = read_outcome(member.folder) if is_run(member.folder) else None
            found = outcome.numbers().get("score") if outcome is not None and evaluated(outcome.lines) else None
            if found is not None:
                scores[comparison.folder.name].setdefault(member.method, {})[str(member.seed)] = found
    made = []
    for search in tuning.shared():
        choice, method = search.choice(), search.method
        if choice is not None:
            tuned = scores[WINNERS].get(method, {})
            untuned = tuned if choice.is_default else scores[UNTUNED].get(method, {})
            made.append(_method(search, choice, tuned, untuned))
    return made


def write_results(tuning: Tuning) -> list[TunedMethod]:
    """Write the result into the directory of the tuning, and return it."""
    found = results(tuning)
    run = tuning.base.run
    about = {"seed": run.seed, "rounds": run.rounds, "seeds": [run.seed + 1 + i for i in range(tuning.seeds)]}
    write_json(tuning.folder / TUNING_RESULT, to_tuning_table(found, {**about, "budget": tuning.plan.budget}))
    write_atomically(tuning.folder / "tuned.csv", _methods_csv(found).encode())
    write_atomically(tuning.folder / "trials.csv", _trials_csv(found).encode())
    return found


def rows(found: Sequence[TunedMethod]) -> list[tuple[str, ...]]:
    """The table as texts, the best tuned test score first."""
    return [
        (
            each.method,
            NO_VALUE if each.settings is None else shown_settings(_tuned_only(each, each.settings)),
            score_text(each.validation, not each.percent),
            spread(each.spread("tuned"), not each.percent),
            spread(each.spread("untuned"), not each.percent),
        )
        for each in ranked(found)
    ]


def caption(tuning: Tuning) -> str:
    """What the numbers of the table are."""
    evaluate = tuning.base.evaluate
    average = ", mean over clients" if evaluate.average == "clients" else ""
    over = f"mean ± standard deviation over {tuning.seeds} fresh seeds" if tuning.seeds > 1 else "on one fresh seed"
    name = measure(stored_metric(evaluate, regression=False))
    return f"{name}{average}; test: {over}; untuned: with the default settings on the same seeds"


def remarks(found: Sequence[TunedMethod]) -> list[str]:
    """What should be known of each method's choice, and why trials failed."""
    said = [f"{each.method}: {remark}" for each in found if (remark := each.remark())]
    return said + [f"{each.method}, trial {trial.number}: {trial.failed}" for each in found for trial in each.failed]


def ranked(found: Sequence[TunedMethod]) -> list[TunedMethod]:
    def place(each: TunedMethod) -> float:
        mean = each.spread("tuned")
        return float("inf") if mean is None else (-1 if each.larger else 1) * mean.mean

    return sorted(found, key=place)


def _tuned_only(each: TunedMethod, settings: Settings) -> Settings:
    """The settings that several values were tried of."""
    return {path: value for path, value in settings.items() if path not in each.left}


def text_table(tuning: Tuning) -> str:
    """The result as plain text, for a machine without a terminal."""
    found = results(tuning)
    lines = [HEAD, *rows(found)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    cells = [[f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join([*("  ".join(line).rstrip() for line in cells), caption(tuning), *remarks(found)])


def _method(search: Search, choice: SearchResult, tuned: dict[str, float], untuned: dict[str, float]) -> TunedMethod:
    metric = stored_metric(search.base.evaluate, regression=False)  # definite since the tuning was made

    def natural(value: float | None) -> float | None:
        return None if value is None else metric.sign * value

    trials = [
        TunedTrial(t.number, dict(t.settings), t.rounds, t.steps, natural(t.first), natural(t.score), t.failed)
        for t in choice.trials
    ]
    return TunedMethod(
        search.method,
        None if choice.settings is None else dict(choice.settings),
        dict(choice.default),
        natural(choice.score),
        dict(choice.sides),
        choice.widened,
        list(choice.left),
        trials,
        tuned,
        untuned,
        metric.name,
        metric.larger_is_better,
        metric.percent,
    )


def _methods_csv(found: Sequence[TunedMethod]) -> str:
    head = ["method", "chosen", "default", "validation", "tuned_mean", "tuned_std", "untuned_mean", "untuned_std"]
    head += ["trials", "failed", "rounds", "steps", "widened", "remark"]
    lines: list[list[Any]] = []
    for each in ranked(found):
        spreads = [each.spread(which) for which in ("tuned", "untuned")]
        numbers = [x for given in spreads for x in ((given.mean, given.std) if given else (None, None))]
        chosen = "" if each.settings is None else shown_settings(each.settings)
        spent = [len(each.trials), len(each.failed), each.rounds, each.steps, each.widened, each.remark()]
        lines.append([each.method, chosen, shown_settings(each.default), each.validation, *numbers, *spent])
    return as_csv(head, lines)


def _trials_csv(found: Sequence[TunedMethod]) -> str:
    paths = list(dict.fromkeys(path for each in found for trial in each.trials for path in trial.settings))
    head = ["method", "trial", *(path.removeprefix(OWN) for path in paths), "rounds", "steps"]
    lines: list[list[Any]] = []
    for each in found:
        for t in each.trials:
            values = [t.settings.get(path) for path in paths]
            scores = [t.first, t.score, t.settings == each.settings, t.failed]
            lines.append([each.method, t.number, *values, t.rounds, t.steps, *scores])
    return as_csv([*head, "validation_first_rung", "validation", "chosen", "failed"], lines)
