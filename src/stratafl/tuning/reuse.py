"""A comparison with tuned settings. Settings that you type take precedence; differences from the tuning are logged."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratafl.config.experiment import Experiment, from_tables, to_tables, with_values
from stratafl.config.metric_choice import AUTO
from stratafl.config.setting_tables import TABLES, Settings
from stratafl.errors import DataError, ModelError, RecordError, RunError, UnknownNameError, shown
from stratafl.runs.comparison import Comparison, shared_and_own
from stratafl.runs.run import with_absolute_paths
from stratafl.tuning.search import said_value
from stratafl.tuning.space import own_settings
from stratafl.tuning.tuning import Tuning, read_tuned

# What a choice depends on, apart from seeds and speed.
MATTERING = re.compile(
    r"(data|model|train|server)\.(?!seed$).+|run\.(rounds|participation|drop|buffers)|evaluate\.metric"
)
SET = re.compile(rf"\b((?:{'|'.join(TABLES)})\.\w+) = ")  # as errors write what a setting is
MAX_NAMED_DIFFERENCES = 4  # differences that are named
log = logging.getLogger("stratafl")


def reused(
    folder: Path, methods: Sequence[str], typed: Settings, config: Experiment | None = None
) -> tuple[Experiment, dict[str, Any]]:
    """What a comparison of these methods starts from, and its settings: those of a tuning under those that are typed.

    It starts from `config`, or else from the tuning's configuration; on other data without that of data and metric.
    """
    chosen, tuning = tuned_settings(folder, methods), Tuning.read(folder)
    base = tuning.fresh if config is None else config
    if config is None and "data.name" in typed:
        base = _on_data(base, str(typed["data.name"]))
    elif config is None and typed.get("evaluate.metric") not in (None, base.evaluate.metric):
        base = replace(base, evaluate=replace(base.evaluate, average="auto", better="auto"))
    replaced = {path: _replaced(path, methods, chosen) for path in typed}
    for path, tuned_values in replaced.items():
        if any(value != typed[path] for value in tuned_values.values()):
            values = [(name.removesuffix(path)[:-1], said_value(value)) for name, value in tuned_values.items()]
            were = ", ".join(f"{method} {value}".strip() for method, value in values)
            log.warning("%s is %s as you typed it, not as tuned: %s", path, said_value(typed[path]), were)
    tuned = {path.removeprefix(f"{method}.") for path in chosen for method in methods}
    here = with_absolute_paths(with_values(base, shared_and_own(methods, typed)[0]))
    _log_differences(folder, tuning.base, here, tuned)
    gone = {name for tuned_values in replaced.values() for name in tuned_values}
    return base, {**{path: value for path, value in chosen.items() if path not in gone}, **typed}


def with_tuned(
    folder: Path,
    methods: Sequence[str],
    typed: Settings,
    config: Experiment | None,
    make: Callable[[Experiment, Settings], Comparison],
) -> Comparison:
    """What `make` gives for the settings of a tuning under those that are typed, as `reused` has them."""
    with untyped_named(folder, typed) if config is None else nullcontext():
        return make(*reused(folder, methods, typed, config))


def tuned_settings(folder: Path, methods: Sequence[str]) -> dict[str, Any]:
    """What a tuning chose for these methods, and what it set for single ones, as the settings of a comparison."""
    tuned = read_tuned(folder)
    settings_of = Tuning.read(folder).per_method
    for method in methods:
        if "settings" not in tuned.get(method, {}):
            raise RunError(f"'{folder}' has not tuned {shown(method)}, only {', '.join(tuned)}: choose among these")
    by_method = [own_settings(method, {**settings_of[method], **tuned[method]["settings"]}) for method in methods]
    return {path: value for each in by_method for path, value in each.items()}


@contextmanager
def untyped_named(folder: Path, typed: Settings) -> Iterator[None]:
    """Say of a setting in an error that it comes from the tuning, if it was not typed."""
    try:
        yield
    except (RecordError, DataError, ModelError, UnknownNameError) as error:
        others = [path for path in SET.findall(str(error)) if path not in typed]
        if not others:
            raise
        raise RecordError(f"{error} ({others[0]} comes from the tuning '{folder}')") from error


def _on_data(base: Experiment, name: str) -> Experiment:
    """The experiment with the usual settings of data and metric, if that data is not the one it has."""
    usual = from_tables({"run": {"protocol": base.run.protocol}, "data": {"name": name}})
    if with_absolute_paths(usual).data.name == base.data.name:
        return base
    metric = {key: getattr(usual.evaluate, key) for key in ("metric", "average", "better")}
    return replace(base, data=usual.data, evaluate=replace(base.evaluate, **metric))


def _replaced(path: str, methods: Sequence[str], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of single methods that a typed one takes the place of."""
    paths = (path, *(f"{method}.{path}" for method in methods))
    return {name: chosen[name] for name in paths if name in chosen}


def _log_differences(folder: Path, before: Experiment, here: Experiment, tuned: set[str]) -> None:
    then, now = _flat(before), _flat(here)
    changed = [path for path in {**then, **now} if MATTERING.fullmatch(path) and then.get(path) != now.get(path)]
    changed = [path for path in changed if path not in tuned and (path, now.get(path)) != ("evaluate.metric", AUTO)]
    left = ""
    if "data.name" in changed:
        changed = [path for path in changed if path == "data.name" or not path.startswith(("data.", "evaluate."))]
        left = ", and its settings of data and metric are not used"
    if changed:
        listed = [f"{path} = {said_value(then.get(path))} (here {said_value(now.get(path))})" for path in changed]
        more = f" and {len(listed) - MAX_NAMED_DIFFERENCES} more" if len(listed) > MAX_NAMED_DIFFERENCES else ""
        named = ", ".join(listed[:MAX_NAMED_DIFFERENCES]) + more
        log.warning("'%s' was tuned with %s: other values may be best here%s", folder, named, left)


def _flat(experiment: Experiment) -> dict[str, Any]:
    return {f"{table}.{key}": value for table, keys in to_tables(experiment).items() for key, value in keys.items()}
