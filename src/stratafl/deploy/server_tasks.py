"""Runs the ServerApps of this host's SuperLink, each in a process, and reports every end with its reason.

A ServerApp reports its own end only once. If the SuperLink is down at that moment, the report would be lost.
"""

import argparse
import logging
import os
import signal
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from stratafl.child_processes import safe_environment
from stratafl.deploy.certificates import write_once
from stratafl.deploy.processes import flower_command, log_to_stderr
from stratafl.deploy.tasks import RuntimeApi, kept_alive, report_end, task_tokens

log = logging.getLogger("stratafl.deploy")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--root-certificates", type=Path, required=True)
    parser.add_argument("--secret", type=Path, required=True)
    options = parser.parse_args()
    log_to_stderr()
    runtime = RuntimeApi(options.runtime, options.root_certificates)
    for token in task_tokens(runtime, "SERVER_APP", options.secret):
        _run(runtime, token)


def _run(runtime: RuntimeApi, token: str) -> None:
    log.info("a ServerApp starts")
    with TemporaryDirectory(prefix="stratafl-") as folder:  # only we can look into it; a command line is public
        write_once(Path(folder) / "token", token.encode())
        options = ["--runtime-api-address", runtime.address, "--root-certificates", str(runtime.root_certificates)]
        owner = ["--token-file", f"{folder}/token", "--parent-pid", str(os.getpid())]
        command = [flower_command("flwr-serverapp"), *options, *owner]
        with kept_alive(runtime, token):
            # flwr installs the app below FLWR_HOME and imports from there first, so nothing else may be there.
            code = subprocess.run(command, env=safe_environment(FLWR_HOME=folder), check=False).returncode
    log.info("the ServerApp ended with code %d", code)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    if not report_end(runtime, token, code == 0, f"the ServerApp {how}"):
        log.warning("the ServerApp's end could not be reported: the SuperLink does not answer")


if __name__ == "__main__":
    main()
