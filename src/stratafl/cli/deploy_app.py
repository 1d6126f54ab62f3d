"""The commands of a deployed federation: `host`, `join`, `audit`, and what a site does with its model."""

from pathlib import Path
from typing import Annotated

import typer

from stratafl.cli.command_options import AsJson, Trust, option

deployment = typer.Typer()


@deployment.command(
    epilog="Example: [bold]strata host federation.toml --local 3[/] rehearses with three sites on this machine"
)
def host(
    config: Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="An experiment with a table \\[deploy].")],
    out: Annotated[Path | None, option("--out -o DIR", "Its folder; else federations/NAME.")] = None,
    address: Annotated[str, option("--address HOST:PORT", "Where sites reach this machine.")] = "127.0.0.1:9443",
    register: Annotated[list[Path] | None, option("--register NAME.pub", "Let this site in; repeatable.")] = None,
    local: Annotated[int | None, option("--local N", "Rehearse: N sites on this machine.", min=1)] = None,
    forget: Annotated[list[str] | None, option("--forget NAME", "Let a site that lost its state start over.")] = None,
    unregister: Annotated[list[str] | None, option("--unregister NAME", "Take back the key of a site.")] = None,
    metrics: Annotated[Path | None, option("--metrics FILE.prom", "Write metrics for Prometheus.")] = None,
    trust: Trust = False,
) -> int:
    """Host a federation of real sites on Flower, and watch it.

    If it is stopped or killed, the same command continues.
    """
    from stratafl.deploy.processes import require_flower

    require_flower()
    from stratafl.cli.host_command import host_federation

    return host_federation(config, out, address, register or [], local, forget or [], unregister or [], metrics, trust)


@deployment.command("join", epilog="Example: [bold]strata join invitation.toml --site north --data north.csv[/]")
def join_(
    invitation: Annotated[Path, typer.Argument(metavar="INVITATION.toml", help="The file that the host gave you.")],
    site: Annotated[str, option("--site NAME", "The name of this site in the federation.")],
    data: Annotated[str, option("--data PATH", "The samples of this site; they stay here.")],
    out: Annotated[Path | None, option("--out -o DIR", "Its folder; else sites/NAME.")] = None,
    yes: Annotated[bool, option("--yes -y", "Agree to what leaves this site.")] = False,
    trust: Trust = False,
) -> int:
    """Take part in a federation with this site's own samples.

    You see what leaves the site, and are asked first.
    """
    from stratafl.deploy.processes import require_flower

    require_flower()
    from stratafl.cli.site_command import join_federation

    return join_federation(invitation, site, data, out, yes, trust)


@deployment.command(epilog="Example: [bold]strata audit federations/ward --site north[/]")
def audit(
    folder: Annotated[Path, typer.Argument(metavar="HOST", help="The folder of a host, federations/NAME.")],
    site: Annotated[str | None, option("--site NAME", "Lines of this site alone.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a host's audit log, and print it.

    Shows which site was asked, what it sent and what was absorbed. Works while the host runs.
    """
    from stratafl.cli.host_command import print_audit

    print_audit(folder, site, as_json)


@deployment.command(epilog="Example: [bold]strata predict sites/north --data new.csv --out predictions.csv[/]")
def predict(
    folder: Annotated[Path, typer.Argument(metavar="SITE", help="The folder of a site, sites/NAME.")],
    data: Annotated[Path, option("--data -d PATH", "New samples, as this site's own; labels are not needed.")],
    out: Annotated[Path | None, option("--out -o FILE", "A .csv or .npz file; else CSV is printed.")] = None,
    trust: Trust = False,
) -> None:
    """Predict new samples with a site's final model."""
    from stratafl.cli.site_command import print_predictions

    print_predictions(folder, data, out, trust)


@deployment.command(epilog="Example: [bold]strata export sites/north -o north.onnx[/]")
def export(
    folder: Annotated[Path, typer.Argument(metavar="SITE", help="The folder of a site, sites/NAME.")],
    out: Annotated[Path, option("--out -o FILE", "A .onnx or .safetensors file.")],
    trust: Trust = False,
) -> None:
    """Write a site's final model as ONNX or safetensors."""
    from stratafl.cli.site_command import export_site_model

    export_site_model(folder, out, trust)
