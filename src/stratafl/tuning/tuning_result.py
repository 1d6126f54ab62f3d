"""The result of a tuning: each method's choice, its validation scores over the learning rate, and its test scores.

tuning.json     everything, for reports
tuned.csv       a line per method
trials.csv      a line per trial
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stratafl.config.metric_choice import stored_metric
from stratafl.config.setting_tables import Settings
from stratafl.files import write_atomically
from stratafl.report.formats import NO_VALUE, score_text, spread
from stratafl.report.outcome import measure, read_outcome
from stratafl.report.report_tables import as_csv
from stratafl.report.tuned import TUNING_RESULT, TunedMethod, to_tuning_table
from stratafl.runs.directory import is_run
from stratafl.runs.json_files import write_json
from stratafl.runs.summary import evaluated
from stratafl.tuning.search import shown_settings
from stratafl.tuning.space import OPTION_PREFIX
from stratafl.tuning.tuning import UNTUNED, WINNERS, Tuning

HEAD = ("method", "chosen", "validation", "test, tuned", "test, untuned")


def results(tuning: Tuning) -> list[TunedMethod]:
    """Every method, in the order of the tuning, with the test scores that there are."""
    scores: dict[str, dict[str, dict[str, float]]] = {WINNERS: {}, UNTUNED: {}}
    for comparison in tuning.comparisons:
        for member in comparison.members():
            outcome = read_outcome(member.folder) if is_run(member.folder) else None
            score_of_run = outcome.numbers().get("score") if outcome is not None and evaluated(outcome.lines) else None
            if score_of_run is not None:
                scores[comparison.folder.name].setdefault(member.method, {})[str(member.seed)] = score_of_run
    methods = []
    for search in tuning.shared():
        choice, method = search.choice(), search.method
        if choice is not None:
            tuned = scores[WINNERS].get(method, {})
            untuned = tuned if choice.is_default else scores[UNTUNED].get(method, {})
            methods.append(replace(choice, tuned=tuned, untuned=untuned))
    return methods


def write_results(tuning: Tuning) -> list[TunedMethod]:
    """Write the result into the directory of the tuning, and return it."""
    methods = results(tuning)
    run = tuning.base.run
    about = {"seed": run.seed, "rounds": run.rounds, "seeds": [run.seed + 1 + i for i in range(tuning.seeds)]}
    write_json(tuning.folder / TUNING_RESULT, to_tuning_table(methods, {**about, "budget": tuning.plan.budget}))
    write_atomically(tuning.folder / "tuned.csv", methods_csv(methods).encode())
    write_atomically(tuning.folder / "trials.csv", trials_csv(methods).encode())
    return methods


def result_rows(methods: Sequence[TunedMethod]) -> list[tuple[str, ...]]:
    """The table as texts, the best tuned test score first."""
    return [
        (
            method.method,
            NO_VALUE if method.settings is None else shown_settings(_tuned_only(method, method.settings)),
            score_text(method.validation, method.like),
            spread(method.spread("tuned"), method.like),
            spread(method.spread("untuned"), method.like),
        )
        for method in ranked(methods)
    ]


def caption(tuning: Tuning) -> str:
    """What the numbers of the table are."""
    evaluate = tuning.base.evaluate
    average = ", mean over clients" if evaluate.average == "clients" else ""
    over = f"mean ± standard deviation over {tuning.seeds} fresh seeds" if tuning.seeds > 1 else "on one fresh seed"
    name = measure(stored_metric(evaluate, regression=False))
    return f"{name}{average}; test: {over}; untuned: default settings on the same seeds"


def remarks(methods: Sequence[TunedMethod]) -> list[str]:
    """What should be known of each method's choice, and why trials failed."""
    sentences = [f"{each.method}: {remark}" for each in methods if (remark := each.remark())]
    failed = [(each.method, trial) for each in methods for trial in each.failed]
    return sentences + [f"{method}, trial {trial.number}: {trial.failed}" for method, trial in failed]


def ranked(methods: Sequence[TunedMethod]) -> list[TunedMethod]:
    def place(method: TunedMethod) -> float:
        mean = method.spread("tuned")
        return float("inf") if mean is None else -method.sign * mean.mean

    return sorted(methods, key=place)


def _tuned_only(method: TunedMethod, settings: Settings) -> Settings:
    """The settings that several values were tried of."""
    return {path: value for path, value in settings.items() if path not in method.left}


def methods_csv(methods: Sequence[TunedMethod]) -> str:
    head = ["method", "chosen", "default", "validation", "tuned_mean", "tuned_std", "untuned_mean", "untuned_std"]
    head += ["trials", "failed", "rounds", "steps", "widened", "remark"]
    lines: list[list[Any]] = []
    for method in ranked(methods):
        spreads = [method.spread(which) for which in ("tuned", "untuned")]
        numbers = [x for spread in spreads for x in ((spread.mean, spread.std) if spread else (None, None))]
        chosen = "" if method.settings is None else shown_settings(method.settings)
        spent = [len(method.trials), len(method.failed), method.rounds, method.steps, method.widened, method.remark()]
        lines.append([method.method, chosen, shown_settings(method.default), method.validation, *numbers, *spent])
    return as_csv(head, lines)


def trials_csv(methods: Sequence[TunedMethod]) -> str:
    paths = list(dict.fromkeys(path for method in methods for trial in method.trials for path in trial.settings))
    head = ["method", "trial", *(path.removeprefix(OPTION_PREFIX) for path in paths), "rounds", "steps"]
    lines: list[list[Any]] = []
    for method in methods:
        for t in method.trials:
            values = [t.settings.get(path) for path in paths]
            scores = [t.first, t.score, t.settings == method.settings, t.failed]
            lines.append([method.method, t.number, *values, t.rounds, t.steps, *scores])
    return as_csv([*head, "validation_first_rung", "validation", "chosen", "failed"], lines)
