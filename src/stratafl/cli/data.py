"""The commands of `strata data` and their options."""

from pathlib import Path
from typing import Annotated

import typer

data_app = typer.Typer(
    name="data",
    help="Data sets: what there is, what is here, who holds what, and copies for machines without a network.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@data_app.command("list", epilog="Example: [bold]strata data list[/]")
def list_(as_json: Annotated[bool, typer.Option("--json", help="For programs instead of people.")] = False) -> None:
    """Every data set with a name, and whether it is here."""
    from stratafl.cli import exporting

    exporting.show(as_json)


@data_app.command(epilog="Example: [bold]strata data export cifar100 copy/[/], and there [bold]--data copy/[/]")
def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the list, a file, or FOLDER/.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="As data.size=32; repeatable.")
    ] = None,
    path: Annotated[str | None, typer.Option("--path", metavar="DIR", help="Where the data set is.")] = None,
) -> None:
    """Write a data set into files of at most 30 MB that numpy reads."""
    from stratafl.cli import exporting

    exporting.export(name, out, path, settings or [])


@data_app.command(
    epilog="Example: [bold]strata data show --set data.partition=classes --set data.clients=10 -o held.svg[/]"
)
def show(
    name: Annotated[
        str | None, typer.Option("--data", "-d", metavar="NAME", help="Of the list, a file, or FOLDER/.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings in TOML.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="As data.alpha=0.5; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE.svg", help="Draw it into this file.")] = None,
) -> None:
    """Which client holds what: a table, and on request a picture."""
    from stratafl.cli import holding
    from stratafl.config.settings import parse_settings

    named = {} if name is None else {"data.name": name}
    holding.show(config, {**named, **parse_settings(settings or [])}, out)
