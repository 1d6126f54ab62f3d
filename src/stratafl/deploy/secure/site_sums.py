"""A site's part in the secure sums of a deployment: its numbers of the last round, and its answers to sessions.

Under secure sums, the upload that the exchange carries is a receipt: 32 random bytes, by whose digest host and site
know which training they speak of. The numbers stay on the site's disk (`numbers.safetensors`) until the site has given
shares of the sum that has them, or trains again. Nothing that could be compared with a guess leaves the site: not even
a digest of the numbers does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from stratafl.deploy.secure.masks import Numbers
from stratafl.deploy.secure.secure_site import NUMBERS, SECRETS, STEPS, SecretsOnDisk, SecureSite
from stratafl.deploy.secure.session import Session, Signers, basis_of
from stratafl.errors import DamagedError, WireError
from stratafl.execute.exchange.protocol import MAX_MESSAGE_BYTES, upload_digest
from stratafl.execute.exchange.state_file import read_state, write_state

RECEIPT_BYTES = 32


@dataclass(frozen=True)
class SiteSums:
    """`sites` are the names of all that train, by their numbers; `signers` the keys that the site's owner agreed to.

    `format` is the table of the agreed format of samples.
    """

    folder: Path
    federation: str
    site: str
    sites: Sequence[str]
    key: Ed25519PrivateKey
    signers: Signers
    format: Mapping[str, Any]

    def hide(self, round: int, download: bytes, numbers: Tensor) -> bytes:
        """Keep the numbers on the disk that a round came to; the receipt that goes to the host in their place."""
        self._secure(()).forget()  # of an earlier round, which has ended
        receipt = token_bytes(RECEIPT_BYTES)
        digest = upload_digest(self.federation, self.site, round, receipt)
        record = {**self._about(round), "upload": digest, "basis": basis_of(self.format, download)}
        write_state(self.folder / NUMBERS, record, {"numbers": numbers})
        return receipt

    def answer(self, table: Mapping[str, Any], cohort: Sequence[int]) -> tuple[dict[str, Any], bytes]:
        """The answer to a step of a session; `cohort` are the clients of its round, as this site knows itself."""
        session = session_of(table)
        names = [self.sites[client] for client in cohort]
        if session.federation != self.federation or session.cohort != len(names) or self.site not in names:
            raise WireError("the host names another federation or another number of sites than this round has")
        step = str(table.get("step"))
        if step == STEPS[0]:
            self._numbers(session, table)  # before others see keys, and with them that this site was sent this model
        answer = self._secure(names).answer(session, step, table, lambda: self._numbers(session, table))
        if step == STEPS[-1]:
            self._remove_numbers()  # which no other sum may have; after a kill here, the same question comes again
        return answer

    def end(self) -> None:
        """The federation has ended: no numbers and no secrets of it stay."""
        self._secure(()).forget()
        self._remove_numbers()

    def _remove_numbers(self) -> None:
        (self.folder / NUMBERS).unlink(missing_ok=True)

    def _secure(self, names: Sequence[str]) -> SecureSite:
        signers = {name: self.signers[name] for name in names if name in self.signers}
        return SecureSite(self.site, self.key, signers, SecretsOnDisk(self.folder / SECRETS))

    def _numbers(self, session: Session, table: Mapping[str, Any]) -> Numbers:
        path = self.folder / NUMBERS
        if not path.exists():
            raise WireError(f"this site has no numbers of round {session.round + 1}: it must train first")
        record, tensors = read_state(path, MAX_MESSAGE_BYTES)
        if {**self._about(session.round), "upload": table.get("upload")}.items() - record.items():
            raise WireError("this site has numbers of another training than the host asks for: it must train again")
        if record.get("basis") != session.basis:
            raise WireError("this site was sent another model than the host says that all were: the session stops")
        if set(tensors) != {"numbers"}:
            raise DamagedError(f"'{path}' is damaged: remove it")
        numbers: Numbers = tensors["numbers"].numpy().view(np.uint64)
        return numbers

    def _about(self, round: int) -> dict[str, Any]:
        return {"federation": self.federation, "site": self.site, "round": round}


def session_of(table: Mapping[str, Any]) -> Session:
    return Session.from_table(table.get("session"))
