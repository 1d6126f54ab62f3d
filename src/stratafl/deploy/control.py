"""The host's requests to its own SuperLink: register keys, start and stop runs, list nodes.

The SuperLink takes such requests on loopback alone and with the token that `superlink.py` checks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from stratafl.deploy.certificates import check_site_name
from stratafl.deploy.flower_internals import ask_control, bundle_of, control_client, reason_in
from stratafl.errors import DeployError, OutageError, shown


@dataclass(frozen=True)
class RunState:
    """Where a run stands: `pending`, `starting`, `running` or `finished`; then `completed`, `failed` or `stopped`."""

    status: str
    end: str = ""
    reason: str = ""

    @property
    def finished(self) -> bool:
        return self.status == "finished"


class ControlClient:
    """A client of the control API; every failure is a `DeployError` of one line."""

    def __init__(self, address: str, root_certificates: bytes, token: str) -> None:
        self._client = control_client(address, root_certificates, token)

    def close(self) -> None:
        self._client.close()

    def register(self, site: str, public_key: bytes) -> int:
        """Let a site in; a key that is registered already keeps its node id."""
        check_site_name(site)
        registered = {node.public_key: node for node in self.nodes()}.get(public_key)
        if registered is not None:
            if registered.name != site:
                raise DeployError(f"this key is registered for site '{shown(registered.name)}', not for '{site}'")
            return int(registered.node_id)
        if any(node.name == site for node in self.nodes()):
            self.unregister(site)  # its old key, which is refused from now on
        try:
            with _explained(f"register site '{site}'"):
                return int(self._ask("RegisterNode", public_key=public_key, name=site).node_id)
        except DeployError as error:
            if "already in use" not in str(error):
                raise
            new = f"at the site, move {site}.key and {site}.pub away and join again, which makes a new key"
            raise DeployError(
                f"the key of site '{site}' was unregistered and cannot be registered again: {new}"
            ) from error

    def unregister(self, site: str) -> None:
        for node in self.nodes():
            if node.name == site:
                with _explained(f"unregister site '{site}'"):
                    self._ask("UnregisterNode", node_id=node.node_id)
                return
        raise DeployError(f"site '{shown(site)}' is not registered")

    def start_run(self, app: Path) -> int:
        """Start a run of the app in this folder, see `flower_app.py:write_app`; returns its id."""
        bundle = bundle_of(app)
        with _explained("start the run"):
            return int(self._ask("StartRun", fab=bundle).run_id)

    def run_state(self, run: int) -> RunState:
        with _explained("ask for the run"):
            state = self._ask("ListRuns", run_id=run).run_dict[run].status
        return RunState(state.status, state.sub_status, state.details)

    def unfinished_runs(self) -> list[int]:
        with _explained("list the runs"):
            runs = self._ask("ListRuns").run_dict
        return [run for run, entry in runs.items() if entry.status.status != "finished"]

    def stop_run(self, run: int) -> None:
        with _explained("stop the run"):
            self._ask("StopRun", run_id=run)

    def nodes(self) -> list[Any]:
        """The registered sites as Flower knows them: `name`, `node_id`, `status` and more."""
        with _explained("list the sites"):
            nodes = self._ask("ListNodes").nodes_info
        return [node for node in nodes if node.status != "unregistered"]

    def _ask(self, name: str, /, **fields: Any) -> Any:
        return ask_control(self._client, name, **fields)


@contextmanager
def _explained(action: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        why = reason_in(error.response.text) or f"HTTP {error.response.status_code}"
        kind = OutageError if error.response.status_code >= 500 else DeployError
        raise kind(f"cannot {action}: the SuperLink says: {shown(why, 300)}") from error
    except httpx.TransportError as error:
        raise OutageError(f"cannot {action}: the SuperLink does not answer ({shown(error, 200)})") from error
