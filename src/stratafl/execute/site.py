"""A site of a deployed federation: a blueprint, the site's own samples, and its number as a client.

It does what a simulation does for this client, with C = 1: its random keys are those of its number, though its samples
are the only ones of its own federation. What it keeps between rounds is a state without a client axis, which never
leaves it; what crosses is bytes of `core/wire.py`. `server.py` is the other side.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from stratafl.core import wire
from stratafl.core.algorithm import Algorithm
from stratafl.core.layout import Rows
from stratafl.core.reprs import holder
from stratafl.core.round import Round, Setup
from stratafl.core.secure_sums import SecureSums
from stratafl.core.state import State, moved, pick, rows_of, stacked, tensors
from stratafl.core.task import Scores
from stratafl.data.federation import Federation
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import DataError, StageError, counted
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.drawing import filled
from stratafl.execute.memory import device_of
from stratafl.execute.rounds import check_secret, invited, round_at
from stratafl.execute.tokens import check_tokens
from stratafl.execute.uploads import STATE_NOT_FINITE
from stratafl.runtime.build import build_runtime
from stratafl.runtime.cohort_task import CohortTask
from stratafl.runtime.runtime import Runtime
from stratafl.runtime.speed import DEFAULT_SPEED, Speed, precision


@holder
class SiteWork:
    """What a site's work gives: the state to keep once the server has its upload, the upload, and what steps noted."""

    state: State
    upload: bytes
    notes: Mapping[str, Tensor]


@holder
class Site:
    """What one client does in a round, and with the model that it ends up with; `Site.of` makes it."""

    algorithm: Algorithm
    setup: Setup
    runtime: Runtime
    client: int
    template: nn.Module  # the model as drawn; rows fit into a copy of it

    @staticmethod
    def of(
        blueprint: Blueprint,
        federation: Federation,
        client: int,
        *,
        device: str = "cpu",
        speed: Speed = DEFAULT_SPEED,
        widest: Mapping[str, int] | None = None,
    ) -> "Site":
        """The site of a client whose samples are the federation, which `blueprint.samples.client(…)` makes.

        `widest` is what the server says of the largest client (`Server.widest`); without it, a site whose samples fill
        no batch agrees with a simulation only up to rounding.
        """
        _check(blueprint, federation, client)
        check_tokens(blueprint.module, federation)
        runtime = build_runtime(
            federation,
            blueprint.module,
            blueprint.layout,
            head=blueprint.head,
            device=device_of(device),
            engine=blueprint.engine,
            speed=speed,
            batch=blueprint.algorithm.requires.batch,
            measures=False,
            numbers=(client,),
            widest=widest,
        )
        setup = blueprint.setup(runtime.device, runtime.features)
        blueprint.algorithm.check(setup)
        return Site(blueprint.algorithm, setup, runtime, client, blueprint.module.cpu())

    def with_secret(self, secret: bytes) -> "Site":
        """The site whose noise follows from 32 bytes of the operating system that nobody else knows."""
        return replace(self, setup=replace(self.setup, secret=secret))

    @property
    def trains(self) -> bool:
        """Whether it takes part in training; else it only predicts, by a model that it is sent as a new client."""
        return self.client < self.setup.clients

    @property
    def samples(self) -> Mapping[str, int]:
        """How many samples it has of each split."""
        return {name: int(split.counts.sum()) for name, split in self.runtime.federation.splits.items()}

    # State

    def enrol(self) -> State:
        """Its state before its first round."""
        return pick(self.algorithm.enrol(self.setup, self._ids), 0)

    # A round

    def work(self, t: int, state: State | None, download: bytes) -> SiteWork:
        """Its part in round t, from the state that it kept (None: it has none yet) and what it was sent."""
        if not self.trains:
            reason = f"it is client {self.client}, but only clients 0 to {self.setup.clients - 1} train"
            raise DataError(f"this site does not take part in training: {reason}")
        if self.algorithm.requires.client_noise:
            check_secret(self.setup.secret)
        with self._model(t, state, download) as (rnd, client, task):
            after, upload, _ = self.algorithm.work(rnd, client, task)
        if not all(bool(torch.isfinite(x).all()) for x in tensors(after) if x.is_floating_point()):
            raise StageError(f"round {t + 1}: {STATE_NOT_FINITE}, so nothing is sent: lower the learning rate")
        copied = {name: x.clone() for name, x in task.notes.items()}
        state = moved(pick(after, 0), torch.device("cpu"))
        return SiteWork(state, wire.encode(upload, self.setup.layout), copied)

    def invited(self, t: int) -> list[int]:
        """The clients that take part in round t, as the seed of the federation says."""
        ids: list[int] = invited(self._at(t)).tolist()
        return ids

    def contribution(self, t: int, upload: bytes) -> Tensor:
        """What an upload of round t adds to secure sums: whole numbers, or a `WireError` if one could overflow."""
        rnd, server = self._at(t), self.algorithm.init(self.setup)
        parcel = wire.decode(upload, self.setup.layout, self.algorithm.upload_form(rnd, server))
        sums = SecureSums.of(self.algorithm, rnd, server, len(self.invited(t)))
        with precision("fp32"):
            return sums.contribution(rnd, parcel, self.client)

    def received(self, t: int, state: State | None, download: bytes) -> Rows:
        """The model from which it would start round t, with a client axis of one."""
        with self._model(t, state, download) as (_, client, _):
            return rows_of(client, self.algorithm.row)

    def deployed(self, t: int, state: State | None, download: bytes) -> Rows:
        """The model that it would use in production; it may be tuned on the site's training samples."""
        with self._model(t, state, download) as (rnd, client, task):
            return self.algorithm.deploy(rnd, client, task)

    def module(self, rows: Rows) -> nn.Module:
        """Such a model as a module of its own, which takes samples scaled and standardised as the federation does."""
        return filled(self.template, {name: x[0].cpu().clone() for name, x in rows.items()})

    def scores(self, t: int, rows: Rows, split: str) -> Scores:
        """What such a model scores on its own samples of a split."""
        with precision(self.runtime.speed.precision):
            return self._task(self._at(t), (split,)).scores(rows, split)

    @contextmanager
    def _model(self, t: int, state: State | None, download: bytes) -> Iterator[tuple[Round, State, CohortTask]]:
        """The round, the client's state after `receive`, and its task."""
        rnd, device = self._at(t), self.runtime.device
        with precision(self.runtime.speed.precision):
            task = self._task(rnd)
            form = self.algorithm.download_form(rnd, self._ids, new=not self.trains)
            before = moved(stacked([self.enrol() if state is None else state]), device)
            parcel = wire.decode(download, self.setup.layout, form).to(device)
            yield rnd, self.algorithm.receive(rnd, before, parcel, task), task

    def _at(self, t: int) -> Round:
        return round_at(self.algorithm, self.setup, t)

    def _task(self, rnd: Round, splits: tuple[str, ...] | None = None) -> CohortTask:
        allowed = self.algorithm.requires.splits if splits is None else splits
        return CohortTask(self.runtime, self._ids, rnd, allowed)

    @property
    def _ids(self) -> Tensor:
        return torch.tensor([self.client])


def _check(blueprint: Blueprint, federation: Federation, client: int) -> None:
    """Refuse samples of another format than was agreed on, and a client without what the algorithm needs."""
    if federation.clients != 1 or client < 0:
        clients = counted(federation.clients, "client")
        raise DataError(f"client {client} has samples of {clients}: give its own alone, and its number from 0 on")
    agreed, own_format = blueprint.samples, SampleFormat.of(federation)
    for what, here, agreed_on in (
        ("samples of shape", own_format.shape, agreed.shape),
        ("samples of type", own_format.kept, agreed.kept),
        ("classes:", own_format.classes, agreed.classes),
        ("targets of shape", own_format.target, agreed.target),
        ("names of classes:", own_format.preprocessing.classes, agreed.preprocessing.classes),
    ):
        if here != agreed_on:
            raise DataError(f"this site has {what} {here}, but the federation has agreed on {agreed_on}")
    blueprint.check_splits()
    for split in blueprint.algorithm.requires.splits if client < blueprint.clients else ():
        if not len(federation.splits[split].indices):
            raise DataError(f"the algorithm needs the split '{split}', but this site has no samples in it: add some")
