"""The options of the bench, declared once: `strata bench` and `benchmarks/bare_bench.py` both read them here.

This module imports nothing heavy, since `strata --help` reads it.
"""

import typing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple


@dataclass(frozen=True)
class BenchOptions:
    """What to measure, as a person types it, with help texts; `stratafl.bench.request` checks it."""

    models: Annotated[str, "Names, separated by commas, or all."] = "mlp,cnn,resnet18,embedding"
    methods: Annotated[str, "Names, separated by commas."] = "fedavg,fedper,flayer,pfedla,fedlag,fedalp"
    clients: Annotated[int, "Number of clients."] = 20
    cohort: Annotated[int | None, "Clients per round; by default all."] = None
    batch: Annotated[int, "Samples per step."] = 10
    steps: Annotated[int | None, "Per client and round; else by model."] = None
    paper: Annotated[bool, "Split 60,000 samples as FLAYER does."] = False
    device: Annotated[str, "auto, cpu, cuda, cuda:1 …"] = "auto"
    precision: Annotated[str, "fp32, tf32 or bf16."] = "fp32"
    compile: Annotated[str, "auto, on or off."] = "auto"
    engine: Annotated[str, "auto, stacked or loop."] = "auto"
    repeats: Annotated[int, "Timed rounds."] = 3
    baselines: Annotated[bool, "Also time plain PyTorch loops."] = True
    busy: Annotated[int, "Busy processes to run meanwhile."] = 0
    sweep: Annotated[str | None, "Vary clients, cohort or batch."] = None
    largest: Annotated[int, "Largest value of a sweep."] = 10_000
    json: Annotated[Path | None, "Write all numbers to this new file."] = None


class Option(NamedTuple):
    """An option of a command line; `kind` is int, str, bool or Path."""

    name: str
    kind: type
    default: Any
    help: str


def command_line() -> list[Option]:
    """Every field of `BenchOptions` as an option."""
    hints = typing.get_type_hints(BenchOptions, include_extras=True)
    options = []
    for option in fields(BenchOptions):
        hint, text = typing.get_args(hints[option.name])
        kind = next(iter(typing.get_args(hint)), hint)  # int of int | None
        options.append(Option(option.name, kind, option.default, text))
    return options
