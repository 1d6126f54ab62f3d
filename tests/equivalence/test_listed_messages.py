"""What is listed of a method's messages is what crosses between sites and a server, field by field and byte by byte."""

from contextlib import suppress
from functools import cache

import numpy as np
import pytest
import torch
from safetensors import deserialize

from deployed import own_samples
from stratafl.algorithms import ALGORITHMS, algorithm
from stratafl.algorithms.composition import PARTS
from stratafl.algorithms.sent_fields import sent_fields
from stratafl.core import wire
from stratafl.core.keys import Seeds
from stratafl.data import Federation, from_splits
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import RecordError
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.roster import Roster, RosterEntry
from stratafl.execute.server import Server
from stratafl.execute.site import Site
from stratafl.models import build
from tiers import slow_and_nightly

SHAPE, CLASSES, SIZES, ROUNDS = (1, 6, 6), 3, (9, 12, 7), 3
# Options with which every phase begins within these rounds, and layers become personal.
SOON = {
    "fedalp": {"groups": 2, "warmup": 2},  # rounds with a mean, with groups formed, with groups learnt
    "fedavg30local": {"warmup": 2},
    "fedlag": {"k": 2, "xi": 0.0, "warmup": 1},
    "flayer": {"s": 1},
}
FAST = ("fedper", "scaffold+lag")
COMPOSED = {
    "fedper+q8",
    "fedlag+q4",
    "scaffold+topk",
    "fedpac+q8",
    "apple+topk",
    "fedper+flayer",
    "scaffold+lag",
    "fedpac+lag",
}


def compositions():
    """All others that make sense. Krum and privacy need more clients and no BatchNorm, and change no message."""
    for name in (f"{host}+{part}" for host in ALGORITHMS for part in PARTS if part not in ("krum", "private")):
        if name not in FAST and name not in COMPOSED:
            with suppress(RecordError):
                algorithm(name)
                yield name


def made(name):
    host, _, part = name.partition("+")
    options = {**SOON.get(host, {}), **({"min_size": 8} if part in ("q8", "q4", "topk") else {})}
    return algorithm(name, **options, **({"warmup": 1, "xi": 0.0} if part == "lag" else {}))


@cache
def federation() -> Federation:
    rng = np.random.default_rng(7)

    def samples(count):
        return rng.standard_normal((count, *SHAPE)), np.arange(count) % CLASSES

    clients = [{"train": samples(n), "validation": samples(3), "test": samples(3)} for n in SIZES]
    return from_splits(clients, classes=CLASSES, dtype=torch.float32, name="listed")


def blueprint(method):
    data, clients = federation(), len(SIZES)

    def model():  # a new one each time, because some methods extend it in place
        return build("convnorm", shape=SHAPE, classes=CLASSES, channels=4)

    return Blueprint(method, model, SampleFormat.of(data), clients, ROUNDS, 0.67, Seeds.of(1))


def stage_at(stages, t, rounds):
    (found,) = [
        each
        for each in stages
        if each.finish == (t >= rounds) and each.first <= t + 1 and (each.last is None or t + 1 <= each.last)
    ]
    return found


def check(data, stage):
    """The entries of a message against the listed fields."""
    found = dict(deserialize(data[wire.PREFIX :]))
    listed = {field.name: field for field in stage.fields}
    assert {path.split("/")[1] for path in found} == set(listed)
    for name, field in listed.items():
        mine = {
            path.split("/", 2)[0] + "/" + "/".join(path.split("/")[2:]): x
            for path, x in found.items()
            if path.split("/")[1] == name
        }
        taken = sum(len(info["data"]) for info in mine.values())
        if not field.exact:
            assert 0 < taken <= field.bytes
            assert any(path.startswith("mask/") for path in mine)
            continue
        assert taken == field.bytes
        assert {path.removeprefix("value/"): (x["dtype"], tuple(x["shape"])) for path, x in mine.items()} == {
            key: (form.dtype, form.shape) for key, form in field.tensors.items()
        }
    assert wire.body_bytes(data) <= stage.bytes
    assert not stage.exact or wire.body_bytes(data) == stage.bytes


def check_every_message(name):
    plan = blueprint(made(name))
    listed = sent_fields(plan.algorithm, plan.setup())
    own = {k: plan.samples.client(own_samples(federation(), k), f"site {k}") for k in range(len(SIZES))}
    roster = Roster.of(len(SIZES), [RosterEntry.of(f"site {k}", k, each) for k, each in own.items()])
    server = Server.of(plan, roster)
    sites = {k: Site.of(plan, each, k, widest=server.widest) for k, each in own.items()}
    state, kept, seen = server.start(), {}, set()
    for t in range(server.rounds):
        uploads = {}
        for k in server.cohort(server.at(t)).tolist():
            download = server.download(t, state, k)
            work = sites[k].work(t, kept.get(k), download)
            down, up = (stage_at(stages, t, ROUNDS) for stages in (listed.downloads, listed.uploads))
            check(download, down)
            check(work.upload, up)
            seen |= {("down", down.first), ("up", up.first)}
            uploads[k], kept[k] = work.upload, work.state
        absorbed = server.absorb(t, state, uploads)
        assert not absorbed.left_out
        state = absorbed.server
    assert len(seen) == len(listed.uploads) + len(listed.downloads)


@pytest.mark.budget(1.5, "three sites and a server are built")
@pytest.mark.parametrize(
    "name", [*FAST, *slow_and_nightly(each for each in (*ALGORITHMS, *sorted(COMPOSED)) if each not in FAST)]
)
def test_every_message_of_a_round_over_bytes_has_the_fields_and_bytes_that_are_listed(name):
    check_every_message(name)


@pytest.mark.nightly
def test_messages_of_all_other_compositions_have_the_fields_and_bytes_that_are_listed():
    for name in compositions():  # in one test: to find out which make sense takes seconds
        check_every_message(name)


def test_the_server_can_compute_a_personal_head_that_leaves_blended():
    plan = blueprint(made("fedcp"))
    site = Site.of(plan, plan.samples.client(own_samples(federation(), 0), "site 0"), 0)
    server = Server.of(plan, Roster(len(SIZES)))
    state = server.start()
    work = site.work(0, None, server.download(0, state, 0))
    sent = wire.decode(work.upload, plan.layout, server.upload_form(server.at(0), state))["theta"].rows
    for part in ("weight", "bias"):
        known = 2 * sent[f"fc.generic.{part}"][0] - state["theta"][f"fc.generic.{part}"]
        own = work.state["theta"][f"fc.personal.{part}"]
        assert torch.allclose(known, own, atol=1e-6)
        assert not torch.allclose(known, state["theta"][f"fc.generic.{part}"], atol=1e-3)  # it was trained
