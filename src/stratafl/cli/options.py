"""The options of the command line, each declared once.

A record holds the options that several commands share; `with_options` turns its fields into options of a command.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from stratafl.bench.options import BenchOptions, command_line

Algorithm = Annotated[str | None, typer.Option("--algorithm", "-a", metavar="NAME", help="Method, or module:builder.")]
Model = Annotated[str | None, typer.Option("--model", "-m", metavar="NAME", help="Model, or module:Class.")]
Data = Annotated[str | None, typer.Option("--data", "-d", metavar="NAME", help="Data set, file, or FOLDER/.")]
Rounds = Annotated[int | None, typer.Option("--rounds", "-r", metavar="N", help="Number of rounds.")]
Protocol = Annotated[str | None, typer.Option("--protocol", metavar="NAME", help="Defaults of a code base or paper.")]
Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings in TOML.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Such as train.lr=0.1; repeatable.")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="A new directory; else one in runs/.")]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of everything random.")]
Device = Annotated[str | None, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1 …")]
Engine = Annotated[str | None, typer.Option("--engine", metavar="NAME", help="auto, stacked or loop.")]
Precision = Annotated[str | None, typer.Option("--precision", metavar="NAME", help="fp32, tf32 or bf16.")]
MemoryLimit = Annotated[
    str | None, typer.Option("--memory-limit", metavar="SIZE", help="Bytes a run may use, such as 8GB.")
]
Lab = Annotated[int | None, typer.Option("--lab", metavar="N", help="Layer diagnostics every N rounds.")]
Log = Annotated[str | None, typer.Option("--log", metavar="NAMES", help="tensorboard, mlflow, wandb.")]
Trust = Annotated[bool, typer.Option("--trust", help="Import code that a file or run names.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes that share the runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

SHORT_FOR = {
    **{"algorithm": "algorithm.name", "model": "model.name", "data": "data.name", "lab": "evaluate.lab"},
    **{name: f"run.{name}" for name in ("rounds", "protocol", "seed", "device", "engine", "precision", "memory_limit")},
    "log": "log.to",
}


def settings_of(typed: list[str] | None, **shortcuts: Any) -> dict[str, Any]:
    """The settings that options are short for, and those of `--set`, which override them."""
    from stratafl.config.settings import parse_settings

    given = {SHORT_FOR[name]: value for name, value in shortcuts.items() if value is not None}
    return {**given, **parse_settings(typed or [])}


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@dataclass(frozen=True)
class RunOptions:
    """The options that `run` and `compare` share."""

    model: Model = None
    data: Data = None
    rounds: Rounds = None
    protocol: Protocol = None
    config: Config = None
    set: Set = None
    out: Out = None
    seed: Seed = None
    device: Device = None
    engine: Engine = None
    precision: Precision = None
    memory_limit: MemoryLimit = None
    lab: Lab = None
    log: Log = None
    trust: Trust = False

    def settings(self, **more: str | None) -> dict[str, Any]:
        """All settings that the options amount to."""
        given = {name: value for name, value in vars(self).items() if name in SHORT_FOR}
        given |= {} if self.log is None else {"log": names_in(self.log)}
        return settings_of(self.set, **given, **more)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _bench_parameter(name: str, kind: type, default: Any, text: str) -> inspect.Parameter:
    flag = f"--{name}/--no-{name}" if default is True else f"--{name}"
    metavar = {int: "N", Path: "FILE", bool: None}.get(kind, "NAME")
    return _parameter(name, Annotated[kind | None, typer.Option(flag, metavar=metavar, help=text)], default)


_HINTS = get_type_hints(RunOptions, include_extras=True)
_RECORDS = {
    RunOptions: [_parameter(each.name, _HINTS[each.name], each.default) for each in fields(RunOptions)],
    BenchOptions: [_bench_parameter(*each) for each in command_line()],
}


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The command with every field of its argument `options` as an option: typer itself does not know records."""
    parameters = inspect.signature(function).parameters
    record = parameters["options"].annotation
    shared = _RECORDS[record]

    @wraps(function)
    def command(**given: Any) -> Any:
        return function(options=record(**{each.name: given.pop(each.name) for each in shared}), **given)

    flat = [each for name, own in parameters.items() for each in (shared if name == "options" else [own])]
    command.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return command
