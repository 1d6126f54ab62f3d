"""`strata flower-app` prepares a federation as an app for a Flower federation that is there already."""

from pathlib import Path

from stratafl.cli.command_options import FlowerAppOptions
from stratafl.cli.console import note_console, print_note, result_console
from stratafl.config.deployment import read_federation
from stratafl.deploy.flower_app import write_plain_app
from stratafl.deploy.folders import prepare_folder, write_invitation
from stratafl.deploy.serving import forget_site
from stratafl.deploy.signing_keys import keys_folder, stray_keys
from stratafl.errors import DeployError
from stratafl.files import private_folder
from stratafl.runs.loggers import check_loggers


def prepare_flower_app(config: Path, options: FlowerAppOptions) -> int:
    """Write the host's folder, the invitation and the app."""
    file, console = read_federation(config), note_console()
    folder = options.folder or Path("federations") / file.deploy.name
    check_loggers(file.experiment.log.to)
    if file.experiment.server.secure:  # sites need each other's keys, which only an invitation of `strata host` has
        raise DeployError("a Flower app has no secure sums (server.secure): use 'strata host', or set it to false")
    for site in options.forget or ():
        file.deploy.number(site)  # raises if there is no such site
    with private_folder(folder):
        file, changes = prepare_folder(folder, file, options.trust)
        for site in options.forget or ():
            forget_site(folder, site, trust=options.trust)
            print_note(f"site '{site}' is forgotten: it starts over, without its personal layers", console)
        app = write_plain_app(options.out or folder / "app", folder, options.trust)
        connection = {"server": "", "authority": ""}  # which SuperLink and SuperNodes have without us
        invitation = write_invitation(folder, file, connection, options.invitation)
    if changes:
        print_note(f"changed: {'; '.join(changes)}; each site joins again with the new invitation", console)
    print_note(f"send '{invitation}' to every site, and put its file NAME.pub into '{keys_folder(folder)}'", console)
    for name in stray_keys(folder, file.deploy.all_sites):
        print_note(f"'{name}.pub' there belongs to no site: check its name, and deploy.sites", console)
    print_note(f"the user who runs the SuperLink must be able to write '{folder.absolute()}'", console)
    result_console().print(f"flwr run {app} --stream", markup=False, soft_wrap=True)
    return 0
