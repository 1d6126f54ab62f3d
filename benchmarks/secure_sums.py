"""What secure sums cost a site and a host in a round, in bytes and CPU seconds, without transport.

    python benchmarks/secure_sums.py --sites 3 12 100 --numbers 1000000

All sites and the host are in this process, so CPU seconds are divided by hand: those of a site are the mean over sites.
*Plain* is the same upload as `float32` numbers, decoded and added up. With `--drop` some sites vanish after they have
dealt shares and before their numbers arrive, which is the most expensive moment for a host.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import recording
from recording import Result, Table, row
from stratafl.core.secure_sums import opening_threshold
from stratafl.deploy.courier import Content
from stratafl.deploy.secure.secure_host import masked_sum, open_sum
from stratafl.deploy.secure.secure_site import SecureSite
from stratafl.deploy.secure.session import Session


class InMemory:
    """A file that holds what was written last."""

    def __init__(self) -> None:
        self.data: bytes | None = None

    def read(self) -> bytes | None:
        return self.data

    def write(self, data: bytes) -> None:
        self.data = data


class Measured:
    """Sites of one session; counts bytes and CPU seconds of what they do."""

    def __init__(self, sites: int, numbers: int) -> None:
        rng = np.random.default_rng(0)
        names = [f"s{number:03d}" for number in range(sites)]
        keys = {name: Ed25519PrivateKey.generate() for name in names}
        self.signers = {name: key.public_key() for name, key in keys.items()}
        self.sites = {name: SecureSite(name, keys[name], self.signers, InMemory()) for name in names}
        self.numbers = {name: rng.integers(0, 2**50, numbers, dtype=np.uint64) for name in names}
        self.session = Session("measured", 0, 1, sites, "0" * 64)
        self.gone: frozenset[str] = frozenset()
        self.seconds = self.up = self.down = 0.0

    def ask(self, step: str, messages: Mapping[str, Content]) -> dict[str, Content]:
        answers = {}
        for name, (table, body) in messages.items():
            if name in self.gone and step in ("masked", "confirm", "open"):
                continue
            begin = time.process_time()
            answers[name] = self.sites[name].answer(self.session, step, table, lambda name=name: self.numbers[name])
            self.seconds += time.process_time() - begin
            self.down += len(json.dumps(table)) + len(body)
            self.up += len(json.dumps(answers[name][0])) + len(answers[name][1])
        return answers


def measure(sites: int, numbers: int, drop: float) -> Table:
    measured = Measured(sites, numbers)
    most = sites - opening_threshold(sites)
    measured.gone = frozenset(list(measured.sites)[: min(most, round(drop * sites))])
    begin = time.process_time()
    masked = masked_sum(measured.ask, measured.session, list(measured.sites), numbers, measured.signers)
    opened = open_sum(measured.ask, masked)
    host = time.process_time() - begin - measured.seconds
    assert np.array_equal(opened.numbers, sum(measured.numbers[name] for name in opened.sites))
    each = {"up": measured.up / sites, "down": measured.down / sites, "site seconds": measured.seconds / sites}
    return {**each, "host seconds": host, "gone": len(measured.gone), **plain(sites, numbers)}


def plain(sites: int, numbers: int) -> Table:
    """The same upload in `float32`, as an upload is encoded and added up without secure sums."""
    upload = np.random.default_rng(1).standard_normal(numbers).astype("<f4")
    begin = time.process_time()
    data = upload.tobytes()
    site = time.process_time() - begin
    total, begin = np.zeros(numbers), time.process_time()
    for _ in range(sites):
        total += np.frombuffer(data, "<f4")
    return {"plain up": len(data), "plain site seconds": site, "plain host seconds": time.process_time() - begin}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    result, lines = Result("secure-sums", options, "cpu", "secure-sums"), []
    for sites in options.sites:
        figures = measure(sites, options.numbers, options.drop)
        result.details[f"{sites} sites"] = figures
        what = f"{sites} sites, {options.numbers:,} numbers, {figures['gone']} gone"
        for name, unit in (("up", "MB"), ("down", "MB"), ("plain up", "MB")):
            lines.append(row(f"{what}: {name}, a site", figures[name] / 1e6, unit))
        for name in ("site seconds", "host seconds", "plain host seconds"):
            lines.append(row(f"{what}: CPU, {name}", figures[name], "s"))
    result.show(lines)
    result.save()
    print(f"written to {result.path}")
    return 0


def _parser():  # type: ignore[no-untyped-def]
    made = recording.parser(__doc__)
    made.add_argument("--sites", type=int, nargs="+", default=[3, 12, 100])
    made.add_argument("--numbers", type=int, default=1_000_000)
    made.add_argument("--drop", type=float, default=0.0, help="share of sites that vanish before their numbers arrive")
    return made


if __name__ == "__main__":
    sys.exit(main())
