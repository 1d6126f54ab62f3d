"""The options of the command line, each declared once.

A record holds the options that several commands share; `with_options` turns its fields into options of a command.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from stratafl.config.experiment import Experiment
    from stratafl.config.setting_tables import Settings
    from stratafl.config.trust import Trust as TrustRecord


# The groups of options in help, in the order in which most commands have them
EXPERIMENT, INPUT, SCORES, SITES = "Experiment", "Input", "Scores and diagnostics", "Sites"
SEARCH, MACHINE, OUTPUT, OTHER = "Search", "Machine", "Output", "Other options"


class Example(TyperCommand):
    """A command whose help begins with an example, and groups its options."""

    def __init__(self, *args: Any, epilog: str | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.example = epilog

    def get_usage(self, ctx: Any) -> str:
        return f"Example: {self.example}\n\n{super().get_usage(ctx)}"

    def get_help_option(self, ctx: Any) -> Any:
        shown: Any = super().get_help_option(ctx)
        if shown is not None:
            shown.rich_help_panel = OTHER
        return shown


def option(typed: str, help: str, panel: str = EXPERIMENT, **more: Any) -> Any:
    """An option as help prints it: its flags, and the word for its value if it has one, such as `--out -o DIR`."""
    words = typed.split()
    metavar = None if words[-1].startswith("-") else words.pop()
    return typer.Option(*words, metavar=metavar, help=help, rich_help_panel=panel, **more)


Data = Annotated[str | None, option("--data -d NAME", "Data set, file, or FOLDER/.")]
Config = Annotated[Path | None, option("--config -c FILE", "Settings in TOML.")]
Set = Annotated[list[str] | None, option("--set -s KEY=VALUE", "Such as train.lr=0.1; repeatable.")]
Trust = Annotated[bool, option("--trust", "Import code that a file or run names.", OTHER)]
Jobs = Annotated[int | None, option("--jobs -j N", "Number of processes; else 1, on a GPU up to 3.", MACHINE, min=1)]
AsJson = Annotated[bool, option("--json", "Print JSON instead of tables.", OUTPUT)]

COMPARED = "local,fedavg,fedper,flayer,pfedla,heurpfedla,fedalp,fedlag"  # that are compared unless you name others
SHORT_FOR = {
    **{"algorithm": "algorithm.name", "model": "model.name", "data": "data.name"},
    **{"lab": "evaluate.lab", "metric": "evaluate.metric"},
    "guard": "evaluate.guard",
    "cross_site": "evaluate.cross_site",
    **{name: f"run.{name}" for name in ("rounds", "protocol", "seed", "device", "engine", "precision", "memory_limit")},
    "log": "log.to",
}


def settings_of(typed: list[str] | None, **shortcuts: Any) -> dict[str, Any]:
    """The settings that options are short for, and those of `--set`; refused if they contradict each other."""
    from stratafl.config.setting_tables import parse_settings
    from stratafl.errors import RecordError, shown

    chosen = {name: value for name, value in shortcuts.items() if value is not None}
    settings = parse_settings(typed or [])
    for name, value in chosen.items():
        path = SHORT_FOR[name]
        if settings.get(path, value) != value:
            option = f"--{name.replace('_', '-')}" + ("" if value is True else f" {shown(value)}")
            other = next(each for each in typed or [] if each.partition("=")[0].strip() == path)
            raise RecordError(f"{option} and --set {shown(other)} contradict each other: leave out one of them")
    return {**{SHORT_FOR[name]: value for name, value in chosen.items()}, **settings}


def experiment_of(config: Path | None, settings: "Settings") -> "Experiment":
    """The experiment that these settings change: a file's, or the default one."""
    from stratafl.config import experiment

    return experiment.from_tables({}) if config is None else experiment.load_experiment(config, settings)


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@dataclass(frozen=True)
class RunOptions:
    """The options that `run` and `compare` share."""

    model: Annotated[str | None, option("--model -m NAME", "Model, or module:Class.")] = None
    data: Data = None
    rounds: Annotated[int | None, option("--rounds -r N", "Number of rounds.")] = None
    protocol: Annotated[str | None, option("--protocol NAME", "Defaults of a code base or paper.")] = None
    config: Config = None
    set: Set = None
    out: Annotated[Path | None, option("--out -o DIR", "A new directory; else one in runs/.", OUTPUT)] = None
    seed: Annotated[int | None, option("--seed N", "Seed of everything random.")] = None
    device: Annotated[str | None, option("--device NAME", "auto, cpu, cuda, cuda:1 …", MACHINE)] = None
    engine: Annotated[str | None, option("--engine NAME", "auto, stacked or loop.", MACHINE)] = None
    precision: Annotated[str | None, option("--precision NAME", "fp32, tf32 or bf16.", MACHINE)] = None
    memory_limit: Annotated[
        str | None, option("--memory-limit SIZE", "Memory a run may use, such as 8GB.", MACHINE)
    ] = None
    metric: Annotated[str | None, option("--metric NAME", "Metric to rank by, such as auroc.", SCORES)] = None
    lab: Annotated[int | None, option("--lab N", "Layer diagnostics every N rounds.", SCORES)] = None
    guard: Annotated[bool | None, option("--guard", "At the end, choose a model per client.", SCORES)] = None
    cross_site: Annotated[
        bool | None, option("--cross-site", "At the end, models on other clients' samples.", SCORES)
    ] = None
    log: Annotated[str | None, option("--log NAMES", "tensorboard, mlflow, wandb.", OUTPUT)] = None
    trust: Trust = False

    def settings(self, **more: str | None) -> dict[str, Any]:
        """The settings that these options and `more` of them amount to."""
        shortcuts = {name: value for name, value in vars(self).items() if name in SHORT_FOR}
        shortcuts |= {} if self.log is None else {"log": names_in(self.log)}
        return settings_of(self.set, **shortcuts, **more)

    def trusted(self, names: Iterable[str]) -> "TrustRecord":
        """Trust in the code that was typed as an option, or with `--trust` in all that the configuration names."""
        from stratafl.config.trust import typed

        trust = typed(names, self.trust)
        return trust if self.config is None else trust.asked_by(self.config)


@dataclass(frozen=True)
class ReportOptions:
    """What `report` writes besides the ranking that it prints, and by what it ranks."""

    out: Annotated[Path | None, option("--out -o FILE", "Write the HTML report.", OUTPUT)] = None
    csv: Annotated[Path | None, option("--csv FILE", "Write the table as CSV.", OUTPUT)] = None
    pairs: Annotated[Path | None, option("--pairs FILE", "Write all pairs of methods as CSV.", OUTPUT)] = None
    svg: Annotated[Path | None, option("--svg FILE", "Draw the table as a picture.", OUTPUT)] = None
    clients: Annotated[Path | None, option("--clients FILE", "Write who gains, client by client, as CSV.", OUTPUT)] = (
        None
    )
    target: Annotated[
        float | None, option("--target A", "Show the cost of reaching this score, such as 0.9.", SCORES)
    ] = None
    metric: Annotated[
        str | None, option("--metric NAME", "Rank by this, from stored predictions; rounds stay.", SCORES)
    ] = None


@dataclass(frozen=True)
class ReproduceOptions:
    """How much of a paper's tables `reproduce` runs, and with what settings."""

    scale: Annotated[str, option("--scale NAME", "smoke, short or headline.")] = "smoke"
    settings: Set = None
    seeds: Annotated[int | None, option("--seeds N", "By default the scale's.")] = None
    out: Annotated[Path | None, option("--out -o DIR", "By default runs/reproduce.", OUTPUT)] = None
    minutes: Annotated[float | None, option("--minutes M", "Stop after M minutes.", MACHINE)] = None
    rows: Annotated[str, option("--rows NAMES", "Only these, separated by commas.", show_default=False)] = ""
    columns: Annotated[str, option("--columns NAMES", "Only these.", show_default=False)] = ""
    tuned: Annotated[bool, option("--tuned", "Tune the learning rate of every row.")] = False
    every: Annotated[bool, option("--all", "All recipes, those with the most claims per minute first.")] = False
    only_list: Annotated[bool, option("--list", "List what was run, the verdicts, and the minutes left.", OUTPUT)] = (
        False
    )
    trust: Trust = False

    @property
    def folder(self) -> Path:
        return self.out or Path("runs/reproduce")


@dataclass(frozen=True)
class HostOptions:
    """The options of `host`."""

    out: Annotated[Path | None, option("--out -o DIR", "Its folder; else federations/NAME.", OUTPUT)] = None
    invitation: Annotated[Path | None, option("--invitation FILE", "Another place for the invitation.", OUTPUT)] = None
    keys: Annotated[Path | None, option("--keys DIR", "Where keys of sites are; else keys/ in its folder.", OUTPUT)] = (
        None
    )
    address: Annotated[str, option("--address HOST:PORT", "Where sites reach this machine.", SITES)] = "127.0.0.1:9443"
    register: Annotated[list[Path] | None, option("--register NAME.pub", "Let this site in; repeatable.", SITES)] = None
    local: Annotated[int | None, option("--local N", "Rehearse: N sites on this machine.", SITES, min=1)] = None
    forget: Annotated[
        list[str] | None, option("--forget NAME", "Let a site that lost its state start over.", SITES)
    ] = None
    unregister: Annotated[list[str] | None, option("--unregister NAME", "Revoke the key of a site.", SITES)] = None
    metrics: Annotated[Path | None, option("--metrics FILE.prom", "Write metrics for Prometheus.", OUTPUT)] = None
    trust: Trust = False


@dataclass(frozen=True)
class FlowerAppOptions:
    """The options of `flower-app`."""

    out: Annotated[Path | None, option("--out -o DIR", "The app; else a folder in the host's.", OUTPUT)] = None
    folder: Annotated[Path | None, option("--folder DIR", "The host's folder; else federations/NAME.", OUTPUT)] = None
    invitation: Annotated[Path | None, option("--invitation FILE", "Another place for the invitation.", OUTPUT)] = None
    forget: Annotated[
        list[str] | None, option("--forget NAME", "Let a site that lost its state start over.", SITES)
    ] = None
    trust: Trust = False


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _options_of(record: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(record, include_extras=True)
    return [_parameter(each.name, hints[each.name], each.default) for each in fields(record)]


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The command with every field of its argument `options` as an option: typer itself does not know records."""
    parameters = inspect.signature(function).parameters
    record = parameters["options"].annotation
    shared = _options_of(record)

    @wraps(function)
    def command(**arguments: Any) -> Any:
        return function(options=record(**{each.name: arguments.pop(each.name) for each in shared}), **arguments)

    flat = [each for name, parameter in parameters.items() for each in (shared if name == "options" else [parameter])]
    command.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return command
