"""Processes as `torchrun` would start them, each with its own output; and what the test of all methods runs in them."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import stratafl
from processes import PATIENCE, end

HERE = Path(__file__).parent
PATHS = os.pathsep.join([str(Path(stratafl.__file__).resolve().parents[1]), str(HERE)])
ENVIRONMENT = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", "COLUMNS": "80", "STRATAFL_MEASURE": "off"}
STRATA = ("-m", "stratafl")
TORCHRUN = ("-m", "torch.distributed.run")


class Ended(NamedTuple):
    """What a process came to."""

    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        """What the command itself, and not torchrun, says of an error."""
        return [line.removeprefix("strata: ") for line in self.err.splitlines() if line.startswith("strata: ")]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ranks(world_size: int, *arguments: object) -> "list[subprocess.Popen[str]]":
    """So many processes of one run, on this machine."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    local = [
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)} for rank in range(world_size)
    ]
    return [started(arguments, {**meeting, **own}) for own in local]


def started(
    arguments: Sequence[object], more: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> "subprocess.Popen[str]":
    command = [*prefix, sys.executable, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env={**ENVIRONMENT, **(more or {})}, text=True, **pipes)


def ended(processes: "Sequence[subprocess.Popen[str]]") -> list[Ended]:
    """What they came to; none of them is left behind."""
    try:
        said = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            end(process)
    return [Ended(process.returncode, *each) for process, each in zip(processes, said, strict=True)]
