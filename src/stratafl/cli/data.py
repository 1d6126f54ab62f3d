"""The commands of `strata data` and their options."""

from pathlib import Path
from typing import Annotated

import typer

data_app = typer.Typer(
    name="data",
    help="Data sets: who holds what of them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@data_app.callback()
def _group() -> None:
    """Make it a group, although there is one command."""


@data_app.command(
    epilog="Example: [bold]strata data show --set data.partition=classes --set data.clients=10 -o held.svg[/]"
)
def show(
    name: Annotated[str | None, typer.Option("--data", "-d", metavar="NAME", help="Of the list, or FILE.npz.")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings in TOML.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="As data.alpha=0.5; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE.svg", help="Draw it into this file.")] = None,
) -> None:
    """Which client holds what: a table, and on request a picture."""
    from stratafl.cli import holding

    holding.show(config, [*([] if name is None else [f"data.name={name}"]), *(settings or [])], out)
