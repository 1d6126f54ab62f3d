"""The commands and their options; what they do is imported when they are called, so that help is quick."""

from pathlib import Path
from typing import Annotated

import typer

from stratafl.cli.data import data_app

app = typer.Typer(
    help="Personalised federated learning, layer by layer.",
    epilog="Example: [bold]strata compare --algorithms fedavg,fedper --rounds 20[/]. Every command has --help.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

app.add_typer(data_app)

Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings in TOML.")]
Set = Annotated[list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="As train.lr=0.1; repeatable.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="By default a new one in runs/.")]
Rounds = Annotated[int | None, typer.Option("--rounds", "-r", metavar="N", help="How many rounds.")]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of everything random.")]
Device = Annotated[str | None, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1 …")]
Engine = Annotated[str | None, typer.Option("--engine", metavar="NAME", help="auto, stacked or loop.")]
Precision = Annotated[str | None, typer.Option("--precision", metavar="NAME", help="fp32, tf32 or bf16.")]
MemoryLimit = Annotated[
    str | None, typer.Option("--memory-limit", metavar="SIZE", help="What a run may take, as 8GB or 500MB.")
]
Model = Annotated[str | None, typer.Option("--model", "-m", metavar="NAME", help="Of the list, or module:Class.")]
Data = Annotated[str | None, typer.Option("--data", "-d", metavar="NAME", help="Of the list, a file, or FOLDER/.")]
Protocol = Annotated[str | None, typer.Option("--protocol", metavar="NAME", help="Defaults as pfllib … have them.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes that share the runs.")]
Look = Annotated[int | None, typer.Option("--lab", metavar="N", help="Look at every layer each N rounds.")]
Log = Annotated[str | None, typer.Option("--log", metavar="NAMES", help="tensorboard, mlflow, wandb.")]
Trusting = Annotated[bool, typer.Option("--trust", help="Import the code that the file or run names.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs instead of people.")]


def _shortcuts(**values: object) -> dict[str, object]:
    """The settings that options are short for."""
    keys = {"seed": "run.seed", "device": "run.device", "engine": "run.engine", "rounds": "run.rounds"}
    keys |= {"precision": "run.precision", "memory_limit": "run.memory_limit", "lab": "evaluate.lab"}
    keys |= {"protocol": "run.protocol", "model": "model.name", "data": "data.name", "algorithm": "algorithm.name"}
    return {keys[name]: value for name, value in values.items() if value is not None}


def _logged(names: str | None) -> dict[str, object]:
    """The setting that `--log` is short for."""
    return {} if names is None else {"log.to": [name.strip() for name in names.split(",") if name.strip()]}


@app.command("list", epilog="Example: [bold]strata list --json[/]")
def list_(as_json: AsJson = False) -> None:
    """What there is: algorithms, models, data sets, partitions."""
    from stratafl.cli import listing

    listing.show(as_json)


@app.command(epilog="Example: [bold]strata run --algorithm fedper --rounds 30 --set train.lr=0.1 --out runs/first[/]")
def run(
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", "-a", metavar="NAME", help="Of the list, or module:builder.")
    ] = None,
    model: Model = None,
    data: Data = None,
    rounds: Rounds = None,
    protocol: Protocol = None,
    config: Config = None,
    settings: Set = None,
    out: Out = None,
    seed: Seed = None,
    device: Device = None,
    engine: Engine = None,
    precision: Precision = None,
    memory_limit: MemoryLimit = None,
    lab: Look = None,
    log: Log = None,
    trust: Trusting = False,
) -> int:
    """Run one method, in a directory that can be resumed and read."""
    from stratafl.cli import running
    from stratafl.config.settings import parse_settings

    short = _shortcuts(model=model, data=data, rounds=rounds, seed=seed, device=device, engine=engine, lab=lab)
    short |= _shortcuts(algorithm=algorithm, precision=precision, memory_limit=memory_limit, protocol=protocol)
    return running.start(config, {**short, **_logged(log), **parse_settings(settings or [])}, out, trust)


@app.command(epilog="Example: [bold]strata compare --algorithms fedavg,fedper,local --seeds 3 --rounds 20[/]")
def compare(
    algorithms: Annotated[
        str, typer.Option("--algorithms", "-a", metavar="NAMES", help="By comma.", show_default=False)
    ] = "local,fedavg,fedper,fedrep,fedbn,lgfedavg",
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", help="So many, from --seed on.")] = 3,
    model: Model = None,
    data: Data = None,
    rounds: Rounds = None,
    protocol: Protocol = None,
    config: Config = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Or METHOD.option=value for one."),
    ] = None,
    out: Out = None,
    seed: Seed = None,
    device: Device = None,
    engine: Engine = None,
    precision: Precision = None,
    memory_limit: MemoryLimit = None,
    lab: Look = None,
    log: Log = None,
    jobs: Jobs = 1,
    trust: Trusting = False,
) -> int:
    """Run several methods and seeds on the same data, and rank them."""
    from stratafl.cli import running
    from stratafl.config.settings import parse_settings

    short = _shortcuts(model=model, data=data, rounds=rounds, seed=seed, device=device, engine=engine, lab=lab)
    short |= _shortcuts(precision=precision, memory_limit=memory_limit, protocol=protocol)
    methods = [name.strip() for name in algorithms.split(",") if name.strip()]
    return running.compare(
        config, {**short, **_logged(log), **parse_settings(settings or [])}, methods, seeds, out, jobs, trust
    )


@app.command(epilog="Example: [bold]strata resume runs/first[/]")
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a run or a comparison.")],
    jobs: Jobs = 1,
    trust: Trusting = False,
    worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
    typed: Annotated[list[str] | None, typer.Option("--typed", hidden=True)] = None,
) -> int:
    """Go on where a run or comparison was left, to the same end."""
    from stratafl.cli import running
    from stratafl.config.trust import typed as trusted

    return running.resume(folder, jobs, worker, trusted(typed or [], trust))


@app.command(epilog="Example: [bold]strata report runs/demo -o report.html[/]")
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs, or folders that hold runs.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write all of it as HTML.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the table to this file.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Draw the table into this file.")] = None,
    target: Annotated[float | None, typer.Option("--target", help="Rounds and bytes to this accuracy, 0 to 1.")] = None,
) -> None:
    """Rank runs: a table, or one HTML file with curves, clients, layers and more."""
    from stratafl.cli import reporting

    reporting.report(folders, out, csv=csv, svg=svg, target=target)


@app.command(epilog="Example: [bold]strata reproduce flayer/table2 --scale smoke[/]")
def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="PAPER[/TABLE]", help="A recipe of the list, all of a paper, or a TOML file.")
    ],
    scale: Annotated[str, typer.Option("--scale", metavar="NAME", help="smoke, short or full.")] = "smoke",
    settings: Set = None,
    seeds: Annotated[int | None, typer.Option("--seeds", metavar="N", help="By default the scale's.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="By default runs/reproduce.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", metavar="M", help="Stop after so long.")] = None,
    trust: Trusting = False,
) -> int:
    """Run a table of a paper, set it beside what is printed, and say which claims hold."""
    from stratafl.cli import reproducing
    from stratafl.config.settings import parse_settings

    return reproducing.reproduce(name, scale, parse_settings(settings or []), seeds, out, minutes, trust)


@app.command(epilog="Example: [bold]strata check fedper[/], or [bold]strata check my_package.my_module:my_method[/]")
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A method of the list, or package.module:builder.")],
    settings: Annotated[list[str] | None, typer.Option("--set", "-s", help="option=value of the method.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One setting instead of four.")] = False,
) -> int:
    """Hold an algorithm, ours or yours, against the contract."""
    from stratafl.cli import checking

    return checking.check(name, settings or [], quick)


@app.command(epilog="Example: [bold]strata bench --models mlp,cnn --methods fedavg,flayer --json speed.json[/]")
def bench(
    models: Annotated[str, typer.Option("--models", metavar="NAMES", help="By comma.")] = "mlp,cnn,resnet18,embedding",
    methods: Annotated[
        str, typer.Option("--methods", metavar="NAMES", help="By comma.", show_default=False)
    ] = "fedavg,fedper,flayer,pfedla,fedlag,fedalp",
    clients: Annotated[int, typer.Option("--clients", metavar="N", help="How many there are.")] = 20,
    cohort: Annotated[int | None, typer.Option("--cohort", metavar="N", help="Take part in a round; or all.")] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Samples of a step.")] = 10,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="Per client and round.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="FLAYER's shares of 60,000 samples.")] = False,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda …")] = "auto",
    precision: Annotated[str, typer.Option("--precision", metavar="NAME", help="fp32, tf32 or bf16.")] = "fp32",
    compile: Annotated[str, typer.Option("--compile", metavar="WHEN", help="auto, on or off.")] = "auto",
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", help="Timed rounds.")] = 3,
    baselines: Annotated[bool, typer.Option("--baselines/--no-baselines", help="Loops by hand.")] = True,
    sweep: Annotated[str | None, typer.Option("--sweep", metavar="NAME", help="clients, cohort or batch.")] = None,
    largest: Annotated[int, typer.Option("--largest", metavar="N", help="Where a sweep ends.")] = 10_000,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw table and chart.")] = None,
) -> None:
    """Plain PyTorch loops against the engine, on this machine."""
    from stratafl.cli import benching

    asked = benching.request(
        models,
        methods,
        device,
        precision,
        compile,
        clients=clients,
        cohort=cohort,
        batch=batch,
        steps=steps,
        paper=paper,
        repeats=repeats,
        baselines=baselines,
        sweep=sweep,
        largest=largest,
    )
    benching.show(asked, json, svg)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Say which version this is.")] = False) -> None:
    """Personalised federated learning, layer by layer."""
    if show:
        from stratafl import __version__

        typer.echo(f"stratafl {__version__}")
        raise typer.Exit
