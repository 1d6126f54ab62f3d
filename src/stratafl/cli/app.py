"""The commands of `strata`, with their arguments, options and help.

The work of a command is in `NAME_command.py`, which is imported when you call it, so that help is quick.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from stratafl.cli.command_options import (
    COMPARED,
    MACHINE,
    OTHER,
    OUTPUT,
    SCORES,
    SEARCH,
    AsJson,
    Config,
    Data,
    Example,
    FlowerAppOptions,
    HostOptions,
    Jobs,
    ReportOptions,
    ReproduceOptions,
    RunOptions,
    Set,
    Trust,
    names_in,
    option,
    settings_of,
    with_options,
)

# The root of typer's own errors: click's up to 0.25, then a copy of click's, since 0.29 TyperException.
UsageProblem: type[Any] = typer.BadParameter.__mro__[-4]

FIRST, RUNS, MODELS = "Before you train", "Train and compare", "Use the models"
DEPLOYED, METHODS = "Real federations", "Methods and papers"

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="rich")
data_app = typer.Typer(name="data", help="Show and export data sets.", no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(data_app, rich_help_panel=FIRST)


@app.command("list", cls=Example, rich_help_panel=FIRST, epilog="strata list fedrep")
def list_(
    name: Annotated[str | None, typer.Argument(help="A method, another name, or models, datasets …")] = None,
    model: Annotated[str | None, option("--model -m NAME", "Model whose layers the method sends.")] = None,
    data: Data = None,
    set: Set = None,
    as_json: AsJson = False,
) -> None:
    """List methods, models, data sets, recipes and more, or show one."""
    from stratafl.cli.name_lists import print_names

    plain = not set and model is None and data is None
    if not plain or not print_names(name, as_json):
        from stratafl.cli.list_command import print_catalogue

        print_catalogue(name, as_json, settings_of(set, model=model, data=data))


@app.command(cls=Example, rich_help_panel=RUNS, epilog="strata run --algorithm fedper --rounds 30 --out runs/first")
@with_options
def run(
    *,
    algorithm: Annotated[str | None, option("--algorithm -a NAME", "Method, or module:builder.")] = None,
    options: RunOptions,
) -> int:
    """Run one method, in a directory that you can resume and report."""
    from stratafl.cli.run_command import start_run

    return start_run(options, algorithm)


@app.command(
    "compare",
    cls=Example,
    rich_help_panel=RUNS,
    epilog="strata compare --algorithms fedavg,fedper,local --seeds 3 --rounds 20",
)
@with_options
def compare_(
    *,
    algorithms: Annotated[str, option("--algorithms -a NAMES", "Separated by commas.", show_default=False)] = COMPARED,
    seeds: Annotated[int, option("--seeds N", "Number of seeds, starting at --seed.", SEARCH)] = 5,
    vary: Annotated[
        str, option("--vary PART", "What the seeds vary: all, partition, weights or batches.", SEARCH)
    ] = "all",
    tuned: Annotated[Path | None, option("--tuned DIR", "Use the settings that a tuning chose.", SEARCH)] = None,
    jobs: Jobs = None,
    options: RunOptions,
) -> int:
    """Run several methods and seeds on the same data, and rank them.

    --set METHOD.option=value or METHOD.train.lr=value is a setting of one method.
    """
    from stratafl.cli.compare_command import start_comparison

    return start_comparison(options, algorithms, seeds, jobs, vary, tuned)


@app.command(
    "tune",
    cls=Example,
    rich_help_panel=RUNS,
    epilog="strata tune --algorithms fedavg,fedper,local --trials 12 --rounds 20",
)
@with_options
def tune_(
    *,
    algorithms: Annotated[str, option("--algorithms -a NAMES", "Separated by commas.", show_default=False)] = COMPARED,
    trials: Annotated[int, option("--trials -t N", "Trials of each method.", SEARCH)] = 12,
    seeds: Annotated[int, option("--seeds N", "Fresh seeds for the chosen settings.", SEARCH)] = 3,
    only: Annotated[str, option("--only NAMES", "Tune only these, such as train.lr.", SEARCH, show_default=False)] = "",
    grid: Annotated[list[str] | None, option("--grid KEY=V,V", "Try these values; repeatable.", SEARCH)] = None,
    eta: Annotated[int, option("--eta N", "Continue one in N trials; 1: run all to the end.", SEARCH)] = 2,
    sampler: Annotated[str, option("--sampler NAME", "grid, or tpe (Optuna).", SEARCH)] = "grid",
    budget: Annotated[str, option("--budget NAME", "Equal trials, or equal local steps.", SEARCH)] = "trials",
    widen: Annotated[
        bool, option("--widen/--no-widen", "One more trial if the best rate is at the edge.", SEARCH)
    ] = True,
    jobs: Jobs = None,
    options: RunOptions,
) -> int:
    """Tune several methods alike, then rank them on fresh seeds.

    Validation data alone decide. Test data is scored only after the choice.
    """
    from stratafl.cli.compare_command import start_tuning
    from stratafl.tuning import TuningPlan
    from stratafl.tuning.space import parse_grids

    plan = TuningPlan(trials, eta, tuple(names_in(only)), parse_grids(grid or []), sampler, budget, widen)
    return start_tuning(options, algorithms, plan, seeds, jobs)


@app.command(
    "advise", cls=Example, rich_help_panel=FIRST, epilog="strata advise table.csv --set data.label=outcome --budget 0.2"
)
def advise_(
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="A data set, a file, or FOLDER/.")] = None,
    model: Annotated[str | None, option("--model -m NAME", "Model, or module:Class.")] = None,
    rounds: Annotated[int | None, option("--rounds -r N", "Rounds of the planned run.")] = None,
    config: Config = None,
    settings: Set = None,
    out: Annotated[Path | None, option("--out -o DIR", "Where to write; else a new folder in runs/.", OUTPUT)] = None,
    budget: Annotated[float, option("--budget SHARE", "Share of the client-steps of a full comparison.", SEARCH)] = 0.1,
    caution: Annotated[float, option("--caution N", "Standard errors by which federating must win.", SEARCH)] = 0.0,
    metric: Annotated[str | None, option("--metric NAME", "Metric to judge by, such as auroc.", SCORES)] = None,
    seed: Annotated[int | None, option("--seed N", "Seed of everything random.")] = None,
    device: Annotated[str | None, option("--device NAME", "auto, cpu, cuda, cuda:1 …", MACHINE)] = None,
    trust: Trust = False,
) -> int:
    """Advise whether to federate, how, who gains and at what cost.

    Validation data alone decide."""
    from stratafl.cli.advise_command import give_advice

    typed = settings_of(settings, data=data, model=model, rounds=rounds, metric=metric, seed=seed, device=device)
    return give_advice(config, typed, out, budget, caution, trust)


@app.command("resume", cls=Example, rich_help_panel=RUNS, epilog="strata resume runs/first")
def resume_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a run, comparison or tuning.")],
    rounds: Annotated[
        int | None, option("--rounds -r N", "Of a run: rounds in all, more than it was started with.")
    ] = None,
    jobs: Jobs = None,
    trust: Trust = False,
    worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
    typed: Annotated[list[str] | None, typer.Option("--typed", hidden=True)] = None,
) -> int:
    """Continue a run, comparison or tuning where it stopped.

    The result is the same. With --rounds a run goes on beyond its end, as if it had been started with that many rounds.
    """
    from stratafl.cli.compare_command import resume_directory
    from stratafl.config.trust import typed as trust_in

    return resume_directory(folder, jobs, worker, trust_in(typed or [], trust), rounds)


@app.command(cls=Example, rich_help_panel=RUNS, epilog="strata report runs/demo -o report.html")
@with_options
def report(
    *,
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs, or folders that hold runs.")],
    options: ReportOptions,
) -> None:
    """Rank runs in a table, or write one HTML report; also of a federation."""
    from stratafl.cli.report_command import print_report

    print_report(folders, options)


@app.command(cls=Example, rich_help_panel=RUNS, epilog="strata leak runs/first --rounds 3 --svg leaks.svg")
def leak(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run directories; seeds are averaged.")],
    rounds: Annotated[int, option("--rounds N", "Rounds to replay.")] = 3,
    clients: Annotated[int, option("--clients N", "Clients to attack, of each round.")] = 12,
    csv: Annotated[Path | None, option("--csv FILE", "Write every number.", OUTPUT)] = None,
    svg: Annotated[Path | None, option("--svg FILE", "Write a picture of layers and attacks.", OUTPUT)] = None,
    trust: Trust = False,
) -> None:
    """Attack uploads of runs: what each layer gives away to the host."""
    from stratafl.cli.leak_command import print_leaks

    print_leaks(folders, rounds, clients, csv, svg, trust)


@app.command(cls=Example, rich_help_panel=METHODS, epilog="strata reproduce flayer/table2 --scale smoke")
@with_options
def reproduce(
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="PAPER[/TABLE]", help="A recipe, all of a paper, or a TOML file.")
    ] = None,
    options: ReproduceOptions,
) -> int:
    """Run a table of a paper, and judge its claims."""
    if options.only_list:
        from stratafl.cli.recipe_list import print_recipes

        return print_recipes(name, options.folder, options.scale)
    from stratafl.cli.reproduce_command import reproduce_tables

    return reproduce_tables(name, options)


@app.command("check", cls=Example, rich_help_panel=METHODS, epilog="strata check my_module:my_method")
def check_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A method, or package.module:builder.")],
    settings: Annotated[list[str] | None, option("--set -s OPTION=VALUE", "An option of the method.")] = None,
    quick: Annotated[bool, option("--quick", "Check one setting instead of four.", OTHER)] = False,
) -> int:
    """Check that an algorithm, ours or yours, obeys the contract."""
    from stratafl.cli.list_command import check_method

    return check_method(name, settings or [], quick)


# A deployed federation


@app.command(cls=Example, rich_help_panel=DEPLOYED, epilog="strata host federation.toml --local 3")
@with_options
def host(
    *,
    config: Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="An experiment with a table \\[deploy].")],
    options: HostOptions,
) -> int:
    """Host a federation of real sites on Flower, and watch it.

    If it is stopped or killed, the same command continues.
    """
    from stratafl.cli.host_command import host_federation

    return host_federation(config, options)


@app.command(
    "join", cls=Example, rich_help_panel=DEPLOYED, epilog="strata join invitation.toml --site north --data north.csv"
)
def join_(
    invitation: Annotated[Path, typer.Argument(metavar="INVITATION.toml", help="The file that the host gave you.")],
    site: Annotated[str, option("--site NAME", "The name of this site in the federation.")],
    data: Annotated[str, option("--data PATH", "The samples of this site; they stay here.")],
    out: Annotated[Path | None, option("--out -o DIR", "Its folder; else sites/NAME.", OUTPUT)] = None,
    public_key: Annotated[Path | None, option("--public-key FILE", "Another place for its key.", OUTPUT)] = None,
    keep_scores: Annotated[bool, option("--keep-scores", "Keep the scores of this site's models here.", OTHER)] = False,
    yes: Annotated[bool, option("--yes -y", "Agree to what leaves this site.", OTHER)] = False,
    trust: Trust = False,
) -> int:
    """Take part in a federation with this site's own samples.

    You see what leaves the site, and are asked first.
    """
    from stratafl.cli.host_command import join_federation

    return join_federation(invitation, site, data, out, public_key, keep_scores, yes, trust)


@app.command(cls=Example, rich_help_panel=DEPLOYED, epilog="strata flower-app federation.toml --out ward-app")
@with_options
def flower_app(
    *,
    config: Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="An experiment with a table \\[deploy].")],
    options: FlowerAppOptions,
) -> int:
    """Write a federation as an app for the Flower that you already run.

    Each site prepares its folder with `strata join`; then `flwr run` starts it, and continues it."""
    from stratafl.cli.flower_app_command import prepare_flower_app

    return prepare_flower_app(config, options)


@app.command(cls=Example, rich_help_panel=DEPLOYED, epilog="strata status federations/ward")
def status(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a host, federations/NAME, or of a site.")],
    as_json: AsJson = False,
    trust: Trust = False,
) -> None:
    """Show how far a federation is, and which sites are missing.

    Works while it runs and afterwards.
    """
    from stratafl.cli.federation_command import print_status

    print_status(folder, as_json, trust)


@app.command(cls=Example, rich_help_panel=DEPLOYED, epilog="strata audit federations/ward --site north")
def audit(
    folder: Annotated[Path, typer.Argument(metavar="HOST", help="The folder of a host, federations/NAME.")],
    site: Annotated[str | None, option("--site NAME", "Only the lines of this site.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a host's audit log, and print it.

    Shows which site was asked, what it sent and what was absorbed. Works while the host runs.
    """
    from stratafl.cli.federation_command import print_audit

    print_audit(folder, site, as_json)


@app.command(cls=Example, rich_help_panel=MODELS, epilog="strata predict runs/first --client Basel --data new.csv")
def predict(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A run directory, or the folder of a site.")],
    data: Annotated[Path, option("--data -d PATH", "New samples in the format of the others; labels are not needed.")],
    client: Annotated[str | None, option("--client -c NAME", "Of a run: whose model, by name or number.")] = None,
    out: Annotated[Path | None, option("--out -o FILE", "A .csv or .npz file; else CSV is printed.", OUTPUT)] = None,
    alone: Annotated[bool, option("--alone", "Of a site: the model that it trained without the others.")] = False,
    trust: Trust = False,
) -> None:
    """Predict new samples with a client's own model."""
    from stratafl.cli.predict_command import print_predictions

    print_predictions(folder, client, data, out, alone, trust)


@app.command(cls=Example, rich_help_panel=MODELS, epilog="strata export runs/first --client Basel -o basel.onnx")
def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A run directory, or the folder of a site.")],
    out: Annotated[
        Path, option("--out -o FILE", "A .onnx or .safetensors file, or a folder for a PEFT adapter.", OUTPUT)
    ],
    client: Annotated[str | None, option("--client -c NAME", "Of a run: whose model, by name or number.")] = None,
    alone: Annotated[bool, option("--alone", "Of a site: the model that it trained without the others.")] = False,
    trust: Trust = False,
) -> None:
    """Write a client's model as ONNX, safetensors or PEFT adapter."""
    from stratafl.cli.predict_command import export_client_model

    export_client_model(folder, client, out, alone, trust)


@app.command(
    "add-client",
    cls=Example,
    rich_help_panel=MODELS,
    epilog="strata add-client runs/first --client Chur --data chur.csv",
)
def add_client_(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A run directory, or a saved federation.")],
    client: Annotated[str, option("--client -c NAME", "The name of the new client.")],
    data: Annotated[str, option("--data -d PATH", "Its samples with labels, in the format of the others.")],
    trust: Trust = False,
) -> None:
    """Personalise for a client that never took part.

    The other clients stay as they are. It gets the model that a simulation gives a new client. Then predict and export
    take its name.
    """
    from stratafl.cli.predict_command import add_client_to

    add_client_to(folder, client, data, trust)


# Data


@data_app.command("list", cls=Example, epilog="strata data list")
def data_list(as_json: AsJson = False) -> None:
    """List all data sets, and whether they are on this machine."""
    from stratafl.cli.name_lists import print_data_sets

    print_data_sets(as_json)


@data_app.command("export", cls=Example, epilog="strata data export cifar100 copy/")
def data_export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set, a file, or FOLDER/.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    settings: Set = None,
    path: Annotated[str | None, option("--path DIR", "Where the data set is.")] = None,
) -> None:
    """Write a data set as files of at most 30 MB that numpy reads."""
    from stratafl.cli.data_command import export_data

    export_data(name, out, path, settings_of(settings))


@data_app.command(
    "show", cls=Example, epilog="strata data show --set data.partition=classes --set data.clients=10 -o data.svg"
)
def data_show(
    place: Annotated[str | None, typer.Argument(metavar="DATA", help="A data set, a file, or FOLDER/.")] = None,
    data: Data = None,
    config: Config = None,
    settings: Set = None,
    out: Annotated[Path | None, option("--out -o FILE.svg", "Draw a picture of it.", OUTPUT)] = None,
) -> None:
    """Show what each client holds, how columns are read, and what looks wrong."""
    from stratafl.cli.data_command import show_data

    show_data(config, settings_of(settings, data=place or data), out)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Personalised federated learning, layer by layer."""
    from stratafl.cli.console import FIRST_STEPS
    from stratafl.version import VERSION

    if version:
        typer.echo(f"stratafl {VERSION}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(FIRST_STEPS.format(version=VERSION))
