"""`strata list NAME` shows a method and what it sends; `strata check` checks whether one obeys the contract.

The list of all names, which needs no torch, is in `name_lists`.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stratafl.algorithms import ALGORITHMS
from stratafl.algorithms.composition import composition, is_composition
from stratafl.algorithms.declaration import KINDS, METHODS, Hyperparameter, Method, hyperparameter
from stratafl.algorithms.sent_fields import Sent, SentStage
from stratafl.algorithms.special_cases import special_cases_of
from stratafl.algorithms.what_leaves import described, size, what_stays
from stratafl.cli.console import result_console, titled_table
from stratafl.cli.name_lists import GAP, Catalogue, entries_called, grid, print_entries, recipe_entries
from stratafl.config.assemble import algorithm_of
from stratafl.config.deployment import sent_of
from stratafl.config.experiment import Experiment, paths_in, with_values
from stratafl.config.protocols import PROTOCOLS
from stratafl.config.setting_tables import parse_settings
from stratafl.config.trust import parameters, typed
from stratafl.core.records import keys_of, to_table
from stratafl.data import DATASETS, PARTITIONS
from stratafl.errors import RecordError, StrataError, counted, unknown
from stratafl.models import MODELS
from stratafl.policies import LocalTraining
from stratafl.testing import SETTINGS, law_results

_GIVEN = ("shape", "classes")  # not options, since the run gives them
_WORDS = {"bool": "true, false", "int": "a whole number", "float": "a number", "str": "a text"}
_WORDS["layers"] = "layers, such as head or last:2"


@cache
def catalogue() -> dict[str, list[dict[str, Any]]]:
    """Everything that has a name, by what it is, with a sentence and its options; methods with all they declare."""
    return {
        "algorithms": [_method_entry(METHODS[name]) for name in ALGORITHMS],
        "models": _entries(MODELS),
        "datasets": [{"name": n, "description": d.says, "options": d.options} for n, d in sorted(DATASETS.items())],
        "partitions": _entries(PARTITIONS),
        "protocols": [{"name": n, "description": p.says, "options": []} for n, p in PROTOCOLS.items()],
        "recipes": recipe_entries(),
    }


def print_catalogue(name: str | None, as_json: bool, settings: Mapping[str, Any]) -> None:
    """Print a method, or as JSON the catalogue, or the entries called `name`, or one section, such as models.

    `settings` say with which model, data and options a method's messages are shown.
    """
    method = _method(name)
    _check_settings(name, method, settings)
    listed = catalogue() if name is None else entries_called(name, catalogue())
    if method is not None:  # other things may have the name of a method
        listed = {**listed, "algorithms": [_method_entry(method)]}
    if not listed:
        raise unknown("name", str(name), [*catalogue(), *(e["name"] for part in catalogue().values() for e in part)])
    if as_json:
        print(json.dumps(_with_communication(listed, settings), indent=2))
        return
    console = result_console()
    if method is not None:
        _print_method(console, method)
        _print_sent(console, _experiment(method.name, settings), settings)
    print_entries(console, listed)


def _check_settings(name: str | None, method: Method | None, settings: Mapping[str, Any]) -> None:
    """Refuse settings without a method, or of another one."""
    if settings and method is None:
        what = "name one, such as `strata list fedper`" if name is None else f"'{name}' is not a method"
        raise RecordError(f"--model, --data and --set need a method: {what}")
    if method is not None and settings.get("algorithm.name", method.name) != method.name:
        raise RecordError(f"--set algorithm.name contradicts '{name}': leave it out")


def _method(name: str | None) -> Method | None:
    """The method or composition of this name."""
    if name is None or name in METHODS:
        return METHODS.get(name or "")
    if is_composition(name):
        return composition(name)
    return next((each for each in METHODS.values() if each.is_called(name)), None)


def _entries(makers: Mapping[str, Callable[..., Any]]) -> list[dict[str, Any]]:
    listed = []
    for name, maker in sorted(makers.items()):
        text = inspect.getdoc(maker) or ""
        options = [option for option in parameters(maker) if option not in _GIVEN]
        listed.append({"name": name, "description": " ".join(text.split("\n\n")[0].split()), "options": options})
    return listed


def _method_entry(method: Method) -> dict[str, Any]:
    hyperparameters = method.hyperparameters
    return {
        **{key: getattr(method, key) for key in ("name", "label", "kind")},
        "description": method.idea,
        **{key: getattr(method, key) for key in ("reading", "paper", "year", "title", "sends", "new_client")},
        "options": [each.name for each in hyperparameters],
        "hyperparameters": [
            *(_hyperparameter_entry("algorithm", each) for each in hyperparameters),
            *(_hyperparameter_entry("train", each) for each in _tuned_training()),
        ],
    }


def _experiment(method: str, settings: Mapping[str, Any]) -> Experiment:
    return with_values(Experiment(), {"algorithm.name": method, **settings})


def _with_communication(listed: Catalogue, settings: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The entries, those of methods with what they send."""
    entries = [
        {**entry, "communication": _communication(entry["name"], settings)} for entry in listed.get("algorithms", [])
    ]
    return {**listed, **({"algorithms": entries} if entries else {})}


def _communication(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    experiment = _experiment(method, settings)
    about = {"model": experiment.model.name, "data": experiment.data.name}
    return {**about, **_sent(experiment, settings).to_table()}


def _sent(experiment: Experiment, settings: Mapping[str, Any]) -> Sent:
    return sent_of(experiment, typed(paths_in(settings)))


def _tuned_training() -> list[Hyperparameter]:
    """The keys of [train] that a tuner looks at, whatever the method."""
    every = [hyperparameter(name, key.hint, key.default) for name, key in keys_of(LocalTraining).items()]
    return [each for each in every if each.tune is not None]


def _hyperparameter_entry(table: str, parameter: Hyperparameter) -> dict[str, Any]:
    limits = {} if parameter.limits is None else {k: v for k, v in vars(parameter.limits).items() if v is not None}
    return {
        "name": parameter.name,
        "setting": f"{table}.{parameter.name}",
        "type": parameter.type,
        "default": None if parameter.default is None else to_table(parameter.default),
        "allowed": {**limits, "choices": list(parameter.choices)} if parameter.choices else limits,
        "sensible": _sensible(parameter),
        "fixed": parameter.fixed,
    }


def _sensible(parameter: Hyperparameter) -> dict[str, Any] | None:
    if parameter.tune is None:
        return None
    if parameter.tune.choices:
        return {"choices": list(parameter.tune.choices)}
    return {"low": parameter.tune.low, "high": parameter.tune.high, "log": parameter.tune.log}


# What people read


def _print_method(console: Console, method: Method) -> None:
    """All that the catalogue knows of one method."""
    facts = {
        "idea": method.idea,
        "kind": f"{method.kind}: {KINDS[method.kind]}",
        "paper": f"{method.paper}: {method.title}" if method.paper else None,
        "sends": method.sends,
        "new client": method.new_client,
    }
    widest = max(map(len, facts))
    table = grid(widest, console.width - widest - len(GAP))
    for what, text in facts.items():
        if text is not None:
            table.add_row(what, text)
    console.print(Text(method.label, "bold"), table, "", sep="\n")
    if method.hyperparameters:
        console.print(_options_table(method))
        console.print(Text(method.reading))
    console.print("Every method also takes the settings of \\[train], such as --set train.lr=0.1")


def _print_sent(console: Console, experiment: Experiment, settings: Mapping[str, Any]) -> None:
    """What leaves a site and what arrives there, as tables."""
    sent = _sent(experiment, settings)
    console.print(f"\nWith the model {experiment.model.name} on {experiment.data.name} (--model, --data, --set):")
    for title, stages in (("leaves a site", sent.uploads), ("arrives at a site", sent.downloads)):
        for stage in stages:
            _print_stage(console, title, stage)
    if sent.blended:
        console.print(f"may leave a site, blended into other tensors: {sent.blended}")
    console.print(f"never leaves a site: {what_stays(sent)}")


def _print_stage(console: Console, title: str, stage: SentStage) -> None:
    caption = f"{title}, {stage.rounds}: {size(stage) if stage.fields else 'nothing'}"
    if not stage.fields:
        console.print(Text(caption, "italic"))
        return
    columns = ("field", "kind", "bytes", "meaning")
    table = titled_table(caption, columns, names=columns[:2], text=columns[3:])
    for field in stage.fields:
        table.add_row(field.name, field.meaning.kind, f"{'' if field.exact else '≤ '}{field.bytes:,}", described(field))
    console.print(table)


def _options_table(method: Method) -> Table:
    columns = ("option", "default", "allowed", "sensible range")
    table = titled_table("--set algorithm.OPTION=VALUE", columns, names=columns[:2], text=columns[2:])
    for parameter in method.hyperparameters:
        default = "" if parameter.default is None else json.dumps(to_table(parameter.default))
        table.add_row(parameter.name, default, _allowed(parameter), _sensible_range(parameter))
    return table


def _sensible_range(parameter: Hyperparameter) -> str:
    return str(parameter.tune or "") if parameter.fixed is None else f"({parameter.fixed})"


def _allowed(parameter: Hyperparameter) -> str:
    limits = [str(parameter.limits)] if parameter.limits is not None else []
    return ", ".join([*map(str, parameter.choices), *limits]) or _WORDS.get(parameter.type, parameter.type)


def check_method(name: str, options: Sequence[str], quick: bool) -> int:
    """Print a line per law; raise if one is broken."""
    values = parse_settings(f"algorithm.{option.removeprefix(f'{name}.')}" for option in options)
    algorithm = algorithm_of(with_values(Experiment(), {"algorithm.name": name, **values}), typed([name]))
    console, broken, total, reasons = result_console(), 0, 0, list[str]()
    laws = special_cases_of(name) if not options else ()
    with console.status(f"checking {name}") as status:
        for result in law_results(algorithm, laws, settings=SETTINGS[:1] if quick else SETTINGS):
            total += 1
            mark, style = ("✓", "green") if result.error is None else ("✗", "bold red")
            console.print(Text.assemble((f" {mark} ", style), result.says))
            status.update(f"checking {name}: {result.name} done")
            if result.error is not None:
                broken += 1
                reason = result.error.reason
                console.print(Text("   the same error" if reason in reasons else f"   {result.error}", style="red"))
                reasons.append(reason)
    if broken:
        raise StrataError(f"'{name}' breaks {broken} of {counted(total, 'law')} of the contract: see ✗ above")
    console.print(Text(f"'{name}' obeys the contract", style="bold green"))
    return 0
