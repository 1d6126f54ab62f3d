"""The server's files of a federation: its state after the last absorbed round, and the audit log.

FOLDER/                        mode 0700, locked by one process at a time
    state.safetensors          the state, the next round, the digest of each site's last absorbed upload, and a mark
    audit.jsonl                who was asked, who sent what, what was absorbed (audit.py)
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from stratafl.core.reprs import holder
from stratafl.core.state import Kind, State, flatten, form_difference, unflatten
from stratafl.errors import DamagedError, RunError
from stratafl.execute.exchange.audit import LogMark
from stratafl.execute.exchange.state_file import read_state, write_state

STATE, AUDIT = "state.safetensors", "audit.jsonl"
_MAX_STATE_BYTES = 1 << 40  # bytes of a state: it is the server's own file


@holder
class SavedServer:
    """The server after `round` rounds."""

    round: int
    state: State
    absorbed: Mapping[str, str]  # the digest of each site's last absorbed upload
    mark: LogMark  # the audit log when it was saved


class ServerStore:
    """An open folder of a server, whose state has this form."""

    def __init__(self, folder: Path, federation: str, form: Mapping[str, Kind]) -> None:
        self.folder, self._federation, self._form = folder, federation, form

    def load(self) -> SavedServer | None:
        path = self.folder / STATE
        if not os.path.lexists(path):
            return None
        try:
            record, tensors = read_state(path, _MAX_STATE_BYTES)
            wrong = self._wrong(record, tensors)
            if wrong is not None:
                raise DamagedError(f"'{path}' is not the state of federation '{self._federation}': {wrong}")
        except DamagedError as error:
            raise DamagedError(f"{error}; restore the newest copy of '{self.folder}'") from error
        mark = LogMark(record["lines"], record["last"])
        state = unflatten({name: tensors[name] for name in self._form})
        return SavedServer(record["round"], state, record["absorbed"], mark)

    def save(self, saved: SavedServer) -> None:
        """Replace the state; when it returns, the new one survives a power cut, and if it raises, the old one does."""
        flat = flatten(saved.state)
        wrong = form_difference(self._form, flat)
        if wrong is not None:
            raise RunError(f"the server's state cannot be saved, because its form has changed: {wrong}")
        record = {"federation": self._federation, "round": saved.round, "absorbed": dict(saved.absorbed)}
        write_state(self.folder / STATE, {**record, "lines": saved.mark.lines, "last": saved.mark.digest}, flat)

    def _wrong(self, record: dict[str, Any], tensors: Mapping[str, Tensor]) -> str | None:
        if record.get("federation") != self._federation:
            return f"it belongs to '{str(record.get('federation'))[:80]}'"
        if not all(type(record.get(key)) is int for key in ("round", "lines")):
            return "its round and its lines of the audit log are not whole numbers"
        if not isinstance(record.get("absorbed"), dict) or not isinstance(record.get("last"), str):
            return "it has no digests of absorbed uploads"
        return form_difference(self._form, tensors)


def saved_rounds(folder: Path) -> int:
    """How many rounds were absorbed; 0 if nothing was saved."""
    path = folder / STATE
    return int(read_state(path, _MAX_STATE_BYTES)[0]["round"]) if os.path.lexists(path) else 0


def known_mark(folder: Path) -> LogMark:
    """The mark in the saved state, for checks of the log; the first one if nothing was saved."""
    path = folder / STATE
    if not os.path.lexists(path):
        return LogMark()
    record, _ = read_state(path, _MAX_STATE_BYTES)
    if type(record.get("lines")) is not int or not isinstance(record.get("last"), str):
        raise DamagedError(f"'{path}' lacks the length of the audit log; restore the newest copy of '{folder}'")
    return LogMark(record["lines"], record["last"])
