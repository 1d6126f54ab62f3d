"""A federation of three sites in one process, over the exchange: what is computed is arithmetic, or FedPer.

`Arithmetic` is made so that nothing is idempotent: a round that is trained or absorbed twice, or from another state,
shows in every later number. A part of its download never changes, as that of a method with frozen layers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from stratafl.core import wire
from stratafl.core.form import Form, form_of
from stratafl.core.layers import Layer
from stratafl.core.layout import Layout, Spec
from stratafl.core.parcel import Field, Parcel
from stratafl.core.state import State, flatten, rows_of
from stratafl.execute.exchange import (
    ServerComputation,
    ServerExchange,
    SiteComputation,
    SiteExchange,
    SiteStore,
    open_server,
    open_site,
    state_form,
)
from stratafl.execute.exchange.audit import Line, verify
from stratafl.execute.exchange.site_store import PENDING
from stratafl.execute.exchange.state_file import read_state

FEDERATION, SITES = "digits-2026", ("anna", "bela", "carl")
SHAPES = {"base.weight": (6, 50), "base.bias": (6,), "head.weight": (3, 6)}
LAYOUT = Layout(
    [Spec(name, shape, 0 if name.startswith("base") else 1, True) for name, shape in SHAPES.items()],
    [
        Layer("base", "other", "base", False, None, ("base.weight", "base.bias")),
        Layer("head", "other", "head", True, None, ("head.weight",)),
    ],
)
SHARED = ("base.weight", "base.bias")


def _numbers(name: str, offset: float) -> torch.Tensor:
    count = torch.Size(SHAPES[name]).numel()
    return torch.sin(torch.arange(count, dtype=torch.float32) + offset).reshape(SHAPES[name])


def _down(state: State) -> Parcel:
    frozen = {"base.weight": _numbers("base.weight", 100.0)}
    return Parcel({"theta": Field(rows_of(state, "theta"), common=True), "frozen": Field(frozen, common=True)})


def _up(rows: dict[str, torch.Tensor]) -> Parcel:
    return Parcel({"theta": Field({name: x[None] for name, x in rows.items()})})


START: State = {"theta": {name: _numbers(name, 0.5) for name in SHARED}, "rounds": torch.tensor(0)}
DOWN_FORM: Form = form_of(_down(START), LAYOUT)
UP_FORM: Form = form_of(_up({name: _numbers(name, 0.0) for name in SHARED}), LAYOUT)


class ArithmeticServer:
    """θ ← θ/2 + Σ_k (k + 1)·upload_k / 8, in the order of the roster."""

    left_out: Mapping[tuple[int, str], str] = {}  # (round, site): why

    def start(self) -> State:
        return {"theta": dict(rows_of(START, "theta")), "rounds": START["rounds"]}

    def download(self, round: int, state: State, site: str) -> bytes:
        return wire.encode(_down(state), LAYOUT)

    def absorb(self, round: int, state: State, uploads: Mapping[str, bytes]) -> tuple[State, Mapping[str, str]]:
        theta = {name: x / 2 for name, x in rows_of(state, "theta").items()}
        left_out = {site: self.left_out[round, site] for site in uploads if (round, site) in self.left_out}
        for site, data in uploads.items():
            if site not in left_out:
                rows = wire.decode(data, LAYOUT, UP_FORM)["theta"].rows
                theta = {name: x + (SITES.index(site) + 1) * rows[name][0] / 8 for name, x in theta.items()}
        rounds = state["rounds"]
        assert isinstance(rounds, torch.Tensor)
        return {"theta": theta, "rounds": rounds + 1}, left_out


@dataclass
class ArithmeticSite:
    """A personal head that moves by what arrives and by what it was; the upload depends on it."""

    site: str

    def enrol(self) -> State:
        return {
            "theta": {"head.weight": _numbers("head.weight", float(SITES.index(self.site)))},
            "steps": torch.ones(2),
        }

    def work(self, round: int, download: bytes, state: State) -> tuple[State, bytes]:
        theta = wire.decode(download, LAYOUT, DOWN_FORM)["theta"].rows
        head, steps = rows_of(state, "theta")["head.weight"], state["steps"]
        assert isinstance(steps, torch.Tensor)
        head = 0.75 * head + theta["base.weight"].mean() + 0.01 * (round + 1) * steps[0]
        upload = {name: theta[name] * 0.5 + head.mean() for name in SHARED}
        return {"theta": {"head.weight": head}, "steps": steps * 1.25}, wire.encode(_up(upload), LAYOUT)


Bits = dict[str, tuple[str, bytes]]


def lines(path: Path) -> list[Line]:
    """All lines of an audit log that is what was written."""
    checked: list[Line] = []
    verify(path, look=checked.append)
    return checked


def delivered(store: SiteStore) -> bytes | None:
    """The last parcel of the server; None before the commit."""
    stored = store._delivered()
    return None if stored is None else stored[1]["parcel"].numpy().tobytes()


def bits(state: State) -> Bits:
    return {name: (str(x.dtype), x.numpy().tobytes()) for name, x in flatten(state).items()}


@dataclass(frozen=True)
class Outcome:
    """What a federation came to, to the bit."""

    round: int
    server: Bits
    sites: Mapping[str, Bits]
    digests: Mapping[str, str]


@dataclass(frozen=True)
class _Watched:
    """The work of a site, which must not be done again once its result was written."""

    federation: "Federation"
    store: SiteStore

    def enrol(self) -> State:
        return self.federation.site_works[self.store.site].enrol()

    def work(self, round: int, download: bytes, state: State) -> tuple[State, bytes]:
        site, path = self.store.site, self.store.folder / PENDING
        assert not path.exists() or read_state(path, 1 << 30)[0]["round"] != round, f"{site} trains round {round} again"
        self.federation.trained.append((site, round))
        return self.federation.site_works[site].work(round, download, state)


@dataclass
class Federation:
    """A server and its sites, each in its folder; `arrow` is called wherever a message is on its way."""

    folder: Path
    rounds: int = 3
    cohort: Callable[[int], Sequence[str]] = lambda round: SITES if round != 1 else SITES[:2]
    arrow: Callable[[str], None] = lambda name: None
    server_work: ServerComputation = field(default_factory=ArithmeticServer)
    site_works: Mapping[str, SiteComputation] = field(
        default_factory=lambda: {site: ArithmeticSite(site) for site in SITES}
    )
    trained: list[tuple[str, int]] = field(default_factory=list)
    agreed: int = 100  # rounds that sites have agreed to

    def server(self):
        return open_server(self.folder / "server", FEDERATION, SITES, self.server_work)

    def site(self, name: str):
        return open_site(self.folder / "sites", FEDERATION, name, state_form(self.site_works[name].enrol()))

    def answer(self, name: str, data: bytes) -> bytes:
        """What a site does with a message, in a process of its own as far as the disk is concerned."""
        self.arrow(f"{name} has received")
        with self.site(name) as store:
            reply = SiteExchange(store, _Watched(self, store), self.agreed).answer(data)
        self.arrow(f"{name} replies")
        return reply

    def run(self) -> Outcome:
        with self.server() as server:
            self.all_rounds(server, self.answer)
        return self.outcome()

    def all_rounds(self, server: ServerExchange, answer: Callable[[str, bytes], bytes | None]) -> None:
        while server.round < self.rounds:
            while not server.arrived:
                for site in self.cohort(server.round):
                    self._ask(server, site, answer)
            self.arrow("server absorbs")
            server.absorb()
            self.arrow("server has absorbed")
        for site in SITES:
            kind = None
            while kind != "committed":
                reply = answer(site, server.commit(site))
                if reply is not None:
                    kind = server.take(site, reply).kind

    def _ask(self, server: ServerExchange, site: str, answer: Callable[[str, bytes], bytes | None]) -> None:
        if site in server.arrived:
            return
        kind = "send all"
        while kind == "send all":  # the first time, and if blocks are lost
            data = server.ask(site)
            self.arrow("server has asked")
            reply = answer(site, data)
            if reply is None:
                return
            self.arrow("server receives")
            kind = server.take(site, reply).kind
            self.arrow("server has taken")
        assert kind == "accepted"

    def outcome(self) -> Outcome:
        sites = {}
        for name in SITES:
            with self.site(name) as store:
                current, parcel = store.current(), delivered(store)
                assert parcel is not None
                sites[name] = ({} if current is None else bits(current.state)) | {"delivered": ("bytes", parcel)}
        with self.server() as server:
            return Outcome(server.round, bits(server.state), sites, server.absorbed)

    def absorbed(self) -> tuple[tuple[str, ...], ...]:
        """Whose uploads each round absorbed, by the audit log: of a round that was absorbed again, the last time."""
        told = {line["round"]: tuple(line["absorbed"]) for line in self.log() if line["event"] == "absorb"}
        return tuple(told[round] for round in sorted(told))

    def log(self):
        return lines(self.folder / "server" / "audit.jsonl")
