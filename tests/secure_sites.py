"""Sites and a host of a secure session in this process, with drop-outs and lies."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from stratafl.deploy.courier import Content
from stratafl.deploy.secure.secure_host import OpenedSum, masked_sum, open_sum
from stratafl.deploy.secure.secure_site import SecureSite
from stratafl.deploy.secure.session import Session
from stratafl.errors import StrataError

Lie = Callable[[str, str, Content], Content]  # step, site, message → the message that the site gets


def summed(ask, session: Session, sites: Sequence[str], size: int, signers) -> OpenedSum:
    """A session from its first step to its last."""
    return open_sum(ask, masked_sum(ask, session, sites, size, signers))


class InMemory:
    """A file that holds what was written last."""

    def __init__(self) -> None:
        self.data: bytes | None = None

    def read(self) -> bytes | None:
        return self.data

    def write(self, data: bytes) -> None:
        self.data = data


class Sites:
    """Some sites with numbers; each is made again for every message, as if it had been killed before."""

    def __init__(self, names: Sequence[str], size: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.keys = {name: Ed25519PrivateKey.generate() for name in names}
        self.signers = {name: key.public_key() for name, key in self.keys.items()}
        self.files = {name: InMemory() for name in names}
        self.numbers = {name: rng.integers(0, 2**64, size, dtype=np.uint64) for name in names}
        self.sent: dict[tuple[str, str], Content] = {}  # the answer of each site to each step
        self.refusals: list[tuple[str, str, str]] = []

    def site(self, name: str) -> SecureSite:
        return SecureSite(name, self.keys[name], self.signers, self.files[name])

    def ask(
        self,
        session: Session,
        lie: Lie = lambda step, site, message: message,
        away: Callable[[str, str], bool] = lambda step, site: False,
    ) -> Callable[[str, Mapping[str, Content]], dict[str, Content]]:
        """What carries a step to sites that are not away, and their answers back."""

        def carry(step: str, messages: Mapping[str, Content]) -> dict[str, Content]:
            answers: dict[str, Content] = {}
            for name, message in messages.items():
                if away(step, name):
                    continue
                table, _ = lie(step, name, message)
                try:
                    answers[name] = self.site(name).answer(session, step, table, lambda name=name: self.numbers[name])
                    self.sent[step, name] = answers[name]
                except StrataError as error:
                    self.refusals.append((step, name, str(error)))
            return answers

        return carry

    def total(self, names: Sequence[str]) -> np.ndarray:
        return np.sum([self.numbers[name] for name in names], axis=0, dtype=np.uint64)
