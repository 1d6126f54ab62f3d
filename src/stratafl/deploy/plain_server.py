"""The ServerApp of `strata flower-app`, for a SuperLink that somebody else runs: nothing but Flower's public names.

The host's folder is named by the run: a second run goes on where an earlier one has ended.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context, UserConfigValue
from flwr.serverapp import Grid, ServerApp

from stratafl.config.deployment import read_federation
from stratafl.deploy.courier import Delivered, Kind, SignedMessage
from stratafl.deploy.grid_courier import GridCourier
from stratafl.deploy.hosting import Hosting
from stratafl.deploy.messages import most_message_bytes
from stratafl.deploy.processes import log_to_stderr
from stratafl.deploy.serving import FILE
from stratafl.deploy.signatures import HostSignatures, SignedCourier
from stratafl.deploy.signing_keys import SIGNING_KEY, keys_folder, stray_keys
from stratafl.deploy.site_nodes import SiteNodes
from stratafl.errors import DeployError, shown
from stratafl.files import private_folder

log = logging.getLogger("stratafl.deploy")
app = ServerApp()


class NodeCourier(GridCourier):
    """Messages by the nodes that have shown which site they are."""

    # A SuperNode whose ClientApp is killed while it fetches a message or sends a reply waits for the rest for ever.
    silence = ", though its SuperNode is connected: restart that SuperNode if it stays silent"

    def __init__(self, grid: Grid, site_nodes: SiteNodes) -> None:
        super().__init__(grid)
        self._site_nodes, self._most = site_nodes, most_message_bytes(0)

    def limit_replies(self, upload: int) -> None:
        """Refuse replies that are larger than an upload can be; Flower has received them by then."""
        self._most = most_message_bytes(upload)

    def nodes(self) -> dict[str, int]:
        return self._site_nodes.known()

    def connected(self) -> frozenset[str]:
        self._site_nodes.look()
        return super().connected()

    def failed(self, site: str) -> None:
        self._site_nodes.doubt(site)

    def carry(self, kind: Kind, messages: Mapping[str, SignedMessage], seconds: float) -> Delivered[SignedMessage]:
        done = super().carry(kind, messages, seconds)
        sizes = {site: len(reply.table) + len(reply.body) for site, reply in done.replies.items()}
        too_large = {
            site: f"its reply has {size:,} bytes; at most {self._most:,} are expected"
            for site, size in sizes.items()
            if size > self._most
        }
        replies = {site: reply for site, reply in done.replies.items() if site not in too_large}
        return Delivered(replies, {**done.failures, **too_large}, self._site_nodes.claims(), done.silent)


@app.main()
def main(grid: Grid, context: Context) -> None:
    log_to_stderr()
    folder = app_folder(context.run_config)
    with private_folder(folder):
        signatures, file = HostSignatures(folder), read_federation(folder / FILE, plain=True)
        for name in stray_keys(folder, file.deploy.all_sites):
            log.warning("'%s.pub' in '%s' belongs to no site", name, keys_folder(folder))
        courier = NodeCourier(grid, SiteNodes(grid, signatures, file.deploy.all_sites))
        trust = bool(context.run_config.get("trust", False))
        signed = SignedCourier(courier, signatures)
        Hosting(folder, signed, trust=trust, limit_replies=courier.limit_replies).run()


def app_folder(config: Mapping[str, UserConfigValue]) -> Path:
    """The host's folder that a run names."""
    folder = Path(str(config.get("folder", "")))
    if not folder.is_absolute() or not (folder / SIGNING_KEY).exists():
        wrong = f"folder = '{shown(folder)}' of this run is not a folder that 'strata flower-app' has prepared"
        raise DeployError(f"{wrong} on the machine of the SuperLink: run it there, or override it with flwr run -c")
    return folder
