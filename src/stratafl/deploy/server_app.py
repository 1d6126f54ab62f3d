"""The ServerApp of `strata host`: Flower's grid carries the messages of `hosting.py`."""

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from stratafl.deploy.grid_courier import GridCourier
from stratafl.deploy.hosting import Hosting
from stratafl.deploy.processes import FLOWER_FOLDER
from stratafl.deploy.replies import nodes_of_sites
from stratafl.deploy.signatures import HostSignatures, SignedCourier

app = ServerApp()


class KeyCourier(GridCourier):
    """Messages by the names that keys were registered for."""

    def nodes(self) -> dict[str, int]:
        return nodes_of_sites(self.grid)


@app.main()
def main(grid: Grid, context: Context) -> None:
    trust = bool(context.run_config.get("trust", False))
    Hosting(host_folder(), signed_courier(grid), trust=trust).run()


def signed_courier(grid: Grid) -> SignedCourier:
    return SignedCourier(KeyCourier(grid), HostSignatures(host_folder()))


def host_folder() -> Path:
    """From the environment: sites can fetch the settings of a run."""
    return Path(os.environ[FLOWER_FOLDER]).parent
