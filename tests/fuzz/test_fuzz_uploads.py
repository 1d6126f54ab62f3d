"""Hostile uploads: the server refuses what the schema does not allow, names the client, and its state is unchanged.

27,000 messages of clients of nine methods (`make test` takes 540). The entries of an honest upload (values and masks of
the schema's fields) are changed: NaN and infinity, counts of 0 or less or other than the client's, other types and
shapes, stacked rows, tensors and fields too many, too few or under other names, masks that do not fit their values.
Checksums are right, and nine of ten have the digest of the schema. Of six clients five are hostile in every round; the
round is, bit by bit, the one in which only the sixth was asked. Most reasons name the field; others name an unknown
field, say that fields, types or shapes differ, or that a message is too large to look into.

What conforms to the schema is not refused, and no server could: other finite values of the fields, and other columns
where the method lets its clients choose (FLAYER); a count is known to the simulator, and to a deployed server only as
above 0. Merges that withstand some wrong values are in `stratafl.policies.robust`.
"""

import random
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from hostile_uploads import conforms, entries_of, hostile, plausible
from safetensors.torch import load

from stratafl.algorithms import fedavg, fedlag, fedper, flayer, heurpfedla, pfedla
from stratafl.algorithms.compress_on import with_q4, with_q8, with_topk
from stratafl.core import wire
from stratafl.execute import Matrix, simulation
from stratafl.execute.executors import InOneProcess
from stratafl.execute.round_run import unwatched
from stratafl.testing import tiny_federation, tiny_model

pytestmark = pytest.mark.slow

METHODS = {
    "fedavg": fedavg(),
    "fedper": fedper(),
    "flayer": flayer(),
    "fedlag": fedlag(k=1, xi=0.0, warmup=0),
    "pfedla": pfedla(embedding=3, width=3, depth=1),
    "heurpfedla": heurpfedla(k=1, embedding=3, width=3, depth=1),
    "fedper+q8": with_q8(fedper(), min_size=4),
    "fedavg+q4": with_q4(fedavg(), min_size=1),  # the last tensor has an odd number of codes
    "heurpfedla+topk": with_topk(heurpfedla(k=1, embedding=3, width=3, depth=1), keep=0.02, min_size=1),
}
FIELDS = ("theta", "samples", "theta.codes", "theta.scale", "theta.places", "theta.values")


class Replayed:
    """An algorithm whose clients have worked already."""

    def __init__(self, inner, done):
        self.inner, self.done = inner, done

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def work(self, rnd, client, task):
        return self.done[int(task.ids)]


class Forged(InOneProcess):
    """Messages, some of which are others than their client would send."""

    def __init__(self, forgeries):
        self.forgeries, self.client = forgeries, 0

    @contextmanager
    def stage(self, name, ids, layout):
        self.client = int(ids[0])
        yield unwatched

    def carry(self, parcel, layout, form=None):
        if form is None:
            return parcel
        data = self.forgeries.get(self.client) or wire.encode(parcel, layout)
        return wire.decode(data, layout, form)


class Scene:
    """A method after a round, with what each of its clients has done in the next."""

    def __init__(self, name):
        method = METHODS[name]
        sim = simulation(
            method, tiny_federation(), tiny_model(batchnorm=False), rounds=2, dtype=torch.float64, buffers="local"
        )
        self.before, _ = sim.round(sim.start(), Matrix())
        rnd, done = sim.at(1), {}
        for ids in torch.arange(6).split(1):
            task = sim.task(ids, rnd)
            state = sim.client_states(self.before.clients, ids)
            client = method.receive(rnd, state, method.download(rnd, self.before.server, ids), task)
            done[int(ids)] = method.work(rnd, client, task)
        self.sim = replace(sim, algorithm=Replayed(method, done))
        self.form = self.sim.upload_form(rnd, self.before.server)
        self.entries = {i: entries_of(each.upload, rnd.layout) for i, each in done.items()}
        self.sizes = {name: spec.size for name, spec in rnd.layout.specs.items()}
        self.held = sim.runtime.federation.counts("train").tolist()
        self.copy = {name: x.clone() for name, x in self.before.tensors().items()}

    def round(self, forgeries, ids=range(6)):
        return self.sim.round(self.before, Forged(forgeries), torch.tensor(list(ids)))


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(x, b[name]) for name, x in a.items())


def outcomes(name, cases, seed):
    """What becomes of so many hostile uploads, five in each round."""
    scene, draw, counted = Scene(name), random.Random(f"{name} {seed}"), Counter()
    expected = scene.round({}, [0])[0].tensors()
    for _ in range(cases // 5):
        forgeries = {i: hostile(draw, scene.entries[i], scene.form, scene.held[i], scene.sizes) for i in range(1, 6)}
        after, report = scene.round(forgeries)
        assert [each.client for each in report.left_out] == [1, 2, 3, 4, 5]
        assert same(after.tensors(), expected)
        assert same(scene.before.tensors(), scene.copy)
        for each in report.left_out:
            assert each.reason.isprintable()
            counted[_kind(each.reason)] += 1
    return counted


def _kind(reason):
    if "takes at most" in reason:
        return "too large"
    if "training samples" in reason or any(f"'{name}'" in reason or f"/{name}" in reason for name in FIELDS):
        return "names the field"
    return "names what it holds" if "they hold" in reason or "it holds" in reason else "another digest"


@pytest.mark.parametrize(
    ("cases", "seed"), [(60, 1), pytest.param(3_000, 0, marks=pytest.mark.nightly)], ids=["quick", "whole"]
)
@pytest.mark.parametrize("name", METHODS)
def test_hostile_uploads_are_refused_and_change_nothing(name, cases, seed):
    counted = outcomes(name, cases, seed)
    print(dict(counted))
    assert counted.total() == cases
    assert counted["names the field"] > cases / 2


@pytest.mark.parametrize("name", METHODS)
def test_what_conforms_to_the_schema_is_accepted(name):
    scene, draw = Scene(name), random.Random(0)
    honest = scene.round({})[0].tensors()
    for _ in range(5):
        data = plausible(draw, scene.entries[2], scene.form)
        assert conforms(load(data[wire.PREFIX :]), scene.form, scene.held[2], scene.sizes)
        after, report = scene.round({2: data})
        assert not report.left_out
        assert not same(after.tensors(), honest)
