"""The rounds of a federation as its server knows them: cohorts, the order of sums, and the form of uploads.

A server needs no data for any of it. `context.py` adds what a simulation needs, `server.py` what a server does.
"""

import logging
from dataclasses import field
from functools import cached_property

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.algorithm import Algorithm, Requirements, Total
from stratafl.core.form import Form
from stratafl.core.parcel import Parcel
from stratafl.core.reprs import holder
from stratafl.core.round import Round, Setup
from stratafl.core.secure_sums import SecureSums, too_few
from stratafl.core.state import State, tensor_of, tensors
from stratafl.errors import DataError, RecordError, WireError
from stratafl.execute.uploads import USUAL_NORM_CLIP, USUAL_NORM_LIMIT

log = logging.getLogger("stratafl")
SUMS = "secure"  # the only field of a total in whole numbers
SECRET_BYTES = 32  # of the operating system, from which the noise of a server or a site follows


@holder
class Rounds:
    """An algorithm, its setup, and how many training samples every client has."""

    algorithm: Algorithm
    setup: Setup
    samples: Tensor  # int64 `[N]`, by client; of new clients too, which come after the others
    # An update more than this many times as long as the cohort's median is left out.
    norm_limit: float | None = field(default=None, kw_only=True)
    # An update more than this many times as long as the cohort's median is shortened to that.
    norm_clip: float | None = field(default=None, kw_only=True)
    drop: float = field(default=0.0, kw_only=True)  # the probability that a client drops out of a round
    secure: bool = field(default=False, kw_only=True)  # whether the server sees sums alone

    def __post_init__(self) -> None:
        limited = next((name for name in ("norm_limit", "norm_clip") if getattr(self, name) is not None), None)
        if limited is not None and self.requires.noise:
            raise RecordError(
                f"server.{limited} treats clients differently because of others' uploads, which this method's noise "
                f"does not hide: leave {limited} out, or set it to 0; this method clips updates itself"
            )
        if limited is not None and self.secure:
            raise RecordError(
                f"server.{limited} compares single updates, which server.secure hides: leave one of them out"
            )
        if self.requires.secure and not self.secure:
            raise RecordError(
                "dp='distributed' adds too little noise to hide one upload, only a sum: set server.secure to true, or "
                "dp to 'local'"
            )

    @cached_property
    def requires(self) -> Requirements:
        """What the algorithm declares; asked ten times a round, and put together from all its steps."""
        return self.algorithm.requires

    @property
    def rounds(self) -> int:
        """How many rounds it takes: those that were asked for, and those that the algorithm adds."""
        return self.setup.rounds + self.requires.extra_rounds

    def at(self, t: int) -> Round:
        return round_at(self.algorithm, self.setup, t)

    @property
    def measured(self) -> bool:
        """Whether the length of every part of an upload is needed."""
        return self.norm_limit is not None or self.norm_clip is not None

    # Cohorts

    def cohort(self, rnd: Round) -> Tensor:
        """The clients of a round, the same for every algorithm, in the order in which rows are summed up."""
        return self.ordered(self._staying(rnd, self.invited(rnd)))

    def invited(self, rnd: Round) -> Tensor:
        """The clients of a round before some of them drop out."""
        return invited(rnd)

    def _staying(self, rnd: Round, ids: Tensor) -> Tensor:
        """Those that do not drop out; if all would, one of them stays."""
        if not self.drop:
            return ids
        draws = rnd.keys(ids, "drop")
        stays = draws >= keys.threshold(self.drop)
        return ids[stays if bool(stays.any()) else draws == draws.max()]

    def checked(self, ids: Tensor) -> Tensor:
        """The ids, if each is a client and none comes twice."""
        ids = torch.as_tensor(ids, dtype=torch.int64)
        wrong = ids[(ids < 0) | (ids >= self.setup.clients)].tolist()
        if wrong:
            raise DataError(f"there is no client {wrong[0]}: the {self.setup.clients} clients are numbered from 0")
        times = ids.bincount()
        if len(ids) and int(times.max()) > 1:
            client = int(times.argmax())
            raise DataError(f"client {client} is listed {times[client]} times: each client takes part in a round once")
        return ids

    def ordered(self, ids: Tensor) -> Tensor:
        """Larger clients first, so that a chunk holds clients of similar size; equal ones by id."""
        ids = ids.sort().values
        return ids[torch.argsort(self.samples[ids], descending=True, stable=True)]

    # The server's side of a round

    def upload_form(self, rnd: Round, server: State) -> Form:
        """The form of uploads, found once for each phase."""
        if rnd.plan.phase not in self._forms:
            self._forms[rnd.plan.phase] = self.algorithm.upload_form(rnd, server)
        return self._forms[rnd.plan.phase]

    @cached_property
    def _forms(self) -> dict[int, Form]:
        return {}

    def secure_sums(self, rnd: Round, server: State) -> SecureSums:
        """The sums of a secure round, found once for each phase."""
        phase = rnd.plan.phase
        if phase not in self._sums:
            self._sums[phase] = SecureSums.of(self.algorithm, rnd, server, len(self.invited(rnd)))
        return self._sums[phase]

    @cached_property
    def _sums(self) -> dict[int, SecureSums]:
        return {}

    def fold(self, rnd: Round, server: State, total: Total, uploads: Parcel, ids: Tensor) -> Total:
        """The total with the uploads of these clients in it; if it is secure, in whole numbers."""
        if not self.secure:
            return self.algorithm.fold(rnd, server, total, uploads, ids)
        sums = self.secure_sums(rnd, server)
        vector = tensor_of(total.sums[0], SUMS) if total.sums else torch.zeros(sums.size, dtype=torch.int64)
        for place, client in enumerate(ids.tolist()):
            vector = vector + sums.contribution(rnd, uploads.pick(slice(place, place + 1)), client)
        return Total(({SUMS: vector},))

    def overflowing(self, rnd: Round, server: State, uploads: Parcel, ids: Tensor) -> list[str]:
        """For each of these clients, why its upload cannot be summed in whole numbers; "" if it can."""
        reasons = [""] * len(ids)
        for place, client in enumerate(ids.tolist()):
            try:
                self.secure_sums(rnd, server).numbers(rnd, uploads.pick(slice(place, place + 1)), client)
            except WireError as error:
                reasons[place] = str(error)
        return reasons

    def unopened(self, rnd: Round, server: State, present: int) -> str:
        """Why a round with this number of uploads changes nothing; "" if it does."""
        hides = self.secure and self.secure_sums(rnd, server).size
        return too_few(present, len(self.invited(rnd))) if hides else ""

    def absorbed(self, rnd: Round, server: State, total: Total) -> State:
        """The server's next state; what it was, if finite uploads came to numbers that are not finite."""
        if self.secure:
            device = next(iter(self.setup.start.values())).device
            total = self.secure_sums(rnd, server).opened(tensor_of(total.sums[0], SUMS), device)
        after = self.algorithm.absorb(rnd, server, total)
        floats = [x for x in tensors(after) if x.is_floating_point()]
        if not floats or bool(torch.stack([torch.isfinite(x).all() for x in floats]).all()):
            return after
        problem = "uploads are finite, but the merged state is not: the server keeps its last state"
        log.warning("round %d: %s", rnd.t + 1, problem)
        return server


def invited(rnd: Round) -> Tensor:
    """The clients of a round before some of them drop out, in increasing order; every member of a federation knows."""
    return torch.arange(rnd.setup.clients) if rnd.plan.participation == "all" else rnd.setup.sampled(rnd.t)


def limit_of(asked: float | None, algorithm: Algorithm, secure: bool = False) -> float | None:
    """The limit to the length of updates that was asked for (0: none), or else the usual one where there can be one.

    Where noise is added there is none, since who is left out by it depends on what others sent.
    """
    if asked is not None:
        return asked or None
    return None if algorithm.requires.noise or secure else USUAL_NORM_LIMIT


def clip_of(asked: float | None, limit: float | None) -> float | None:
    """The length to which updates are shortened that was asked for (0: none), or else the usual one with a limit."""
    if asked is not None:
        return asked or None
    return None if limit is None else USUAL_NORM_CLIP


def round_at(algorithm: Algorithm, setup: Setup, t: int) -> Round:
    return Round(setup, t, algorithm.plan(t, setup.rounds))


def check_secret(secret: bytes | None) -> bytes:
    """The secret of a deployed server or site that adds noise, or an error if it has none."""
    if secret is None or len(secret) < SECRET_BYTES:
        say = f"give Server.of or Site.with_secret {SECRET_BYTES} random bytes"
        raise RecordError(f"noise that others cannot know needs a secret: {say}")
    return secret
