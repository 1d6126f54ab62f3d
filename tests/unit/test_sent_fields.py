"""What is said of the fields that travel: meanings, stages, layers in words, what stays, and the text for a site."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from stratafl.algorithms import (
    ALGORITHMS,
    algorithm,
    ditto,
    fedavg,
    fedavg30local,
    fedavgft,
    fedbn,
    fedcp,
    feddbe,
    fedper,
    local,
)
from stratafl.algorithms.composition import PARTS
from stratafl.algorithms.field_meanings import _DOWN, _PARTS, _UP, KINDS, meaning_of
from stratafl.algorithms.sent_fields import layers_of, sent_fields
from stratafl.algorithms.what_leaves import MASKS, described, lines_of, what_leaves, what_stays
from stratafl.core.describe import describe
from stratafl.core.layerwise import Layerwise
from stratafl.core.parcel import Field
from stratafl.core.phased import Phase, Phased
from stratafl.core.records import record
from stratafl.core.state import rows_of
from stratafl.core.steps import Send
from stratafl.data.preprocessing import Preprocessing
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import RecordError
from stratafl.execute.blueprint import Blueprint
from stratafl.models import build
from stratafl.policies import Upload

SHAPE, CLASSES = (1, 6, 6), 3
SAMPLES = SampleFormat(Preprocessing("float32", SHAPE), CLASSES)


@cache
def model(name="convnorm"):
    return build(name, shape=SHAPE, classes=CLASSES)


def setup(method, rounds=40):
    return Blueprint(method, model(), SAMPLES, 4, rounds).setup()


def found(method, rounds=40):
    return sent_fields(method, setup(method, rounds))


def compositions():
    """Every composition that makes sense."""
    for name in (f"{host}+{part}" for host in ALGORITHMS for part in PARTS):
        try:
            made = algorithm(name, **({"f": 0} if name.endswith("+krum") else {}))  # four clients
        except RecordError:
            continue
        yield name, made


# --- Meanings


def travelling(methods):
    """The names of all fields that these methods send, which must have a meaning."""
    used = {"up": set(), "down": set()}
    for name, method in methods:
        sent = found(method)
        for direction, stages in (("up", sent.uploads), ("down", sent.downloads)):
            for field in (field for stage in stages for field in stage.fields):
                assert field.meaning.kind != "unknown", f"{name}: say in field_meanings.py what '{field.name}' means"
                used[direction].add(field.name)
    return used


@pytest.mark.budget(4, "the forms of every method")
def test_every_field_of_the_catalogue_has_a_meaning_and_no_meaning_is_left_over():
    names = (*ALGORITHMS, "fedavg+q8", "fedavg+topk")
    private = [("fedavg+private", algorithm("fedavg+private", dp="local"))]
    used = travelling([*((name, algorithm(name)) for name in names), *private])
    assert {name for name in used["up"] if "." not in name} == set(_UP)
    assert {name.rpartition(".")[2] for name in used["up"] if "." in name} == set(_PARTS)
    assert used["down"] == set(_DOWN)


@pytest.mark.slow
def test_every_field_of_every_composition_has_a_meaning():
    assert travelling(compositions())["up"] >= set(_UP)


def test_a_meaning_is_of_a_known_kind_and_one_short_sentence():
    for meaning in (*_UP.values(), *_DOWN.values()):
        assert meaning.kind in KINDS
        assert meaning.kind != "unknown"
        assert 10 < len(meaning.says) < 90
        assert not meaning.says.endswith(".")


@record
class UploadAge(Send):
    """A field that nobody has described."""

    reads = ("theta",)
    writes = ("up.age", "up.samples")

    def __call__(self, rnd, client, task):
        return {**Upload()(rnd, client, task), "age": Field(task.sizes("train"))}


def test_a_field_that_nobody_described_is_listed_and_said_to_be_unknown():
    method = replace(fedavg(), send=(Upload(), UploadAge()))
    method = replace(method, merge=tuple(replace(step, weights="age") for step in method.merge))
    (stage,) = found(method).uploads
    age = next(field for field in stage.fields if field.name == "age")
    assert (age.meaning.kind, age.bytes) == ("unknown", 8)
    assert any("age" in line and "unknown" in line for line in what_leaves(method, setup(method)))
    assert meaning_of("up", "age.codes").kind == "unknown"
    assert meaning_of("down", "theta.codes").kind == "unknown"  # downloads are not compressed
    assert meaning_of("up", "c_change.codes").kind == "gradient"


# --- Stages


def test_stages_follow_the_phases_and_phases_that_send_the_same_are_one():
    sent = found(fedavg30local(warmup=5))
    assert [(each.rounds, bool(each.fields), each.exact) for each in sent.uploads] == [
        ("rounds 1 to 4", True, True),
        ("round 5", True, False),
        ("from round 6", False, True),
    ]
    assert [each.rounds for each in sent.downloads] == ["rounds 1 to 5", "from round 6"]
    assert [each.rounds for each in found(algorithm("fedalp")).uploads] == ["every round"]
    first, rest = found(feddbe()).uploads
    assert ([f.name for f in first.fields], [f.name for f in rest.fields]) == (
        ["feature_mean", "samples"],
        ["samples", "theta"],
    )


def test_the_pass_after_the_last_round_is_a_stage_of_its_own():
    method = Phased((Phase(fedavg()),), finish=Phase(fedper()))
    uploads = found(method, rounds=3).uploads
    assert [each.rounds for each in uploads] == ["every round", "after the last round"]
    assert [each.rounds for each in found(Phased((Phase(fedavg()),), finish=Phase(fedavg())), 3).uploads] == [
        "every round",
        "after the last round",
    ]


# --- What stays


@pytest.mark.parametrize(
    ("method", "stays", "blended", "own_model"),
    [
        (fedper(), "fc", "", False),
        (fedper(personal="first:1"), "conv1, bn1", "", False),
        (fedbn(), "bn1, bn2", "", False),
        (local(), "all layers", "", False),
        (fedavgft(), "", "", False),
        (ditto(), "", "", True),
        (fedcp(), "", "fc.personal", False),
        (algorithm("fedcp+q4", min_size=1), "", "fc.personal", False),
        (algorithm("fedamp"), "running statistics", "", False),
        (algorithm("apple+q8"), "running statistics", "", True),
    ],
    ids=["head", "first", "fedbn", "local", "tuned", "ditto", "fedcp", "fedcp+q4", "fedamp", "apple+q8"],
)
def test_what_stays_is_what_is_in_no_upload_and_is_not_blended_into_one(method, stays, blended, own_model):
    sent = found(method)
    assert (sent.stays, sent.blended, sent.own_model) == (stays, blended, own_model)


@record
class UploadTelling(Send):
    """The base, with the personal head hidden in the number of samples."""

    reads = ("theta",)
    writes = ("up.theta", "up.samples")

    def __call__(self, rnd, client, task):
        fields = Upload(~HEAD)(rnd, client, task)
        bias = rows_of(client, "theta")["fc.bias"]
        told = (bias[:, 0] - bias[:, 1]) * 1000
        return {**fields, "samples": Field(fields["samples"].value + told.to(torch.int64))}


HEAD = fedper().client["theta"].layers


def test_a_personal_tensor_that_is_hidden_in_another_field_is_found_out():
    sent = found(replace(fedper(), send=(UploadTelling(),)))
    assert (sent.stays, sent.blended) == ("fc.weight", "fc.bias")


class Unrehearsed(Layerwise):
    """Says the form of its uploads itself, and its rounds cannot be rehearsed."""

    def upload_form(self, rnd, server):
        return fedper().upload_form(rnd, server)

    def work(self, rnd, client, task):
        raise ValueError("no data")


def test_nothing_is_said_to_stay_that_could_not_be_shown_to():
    sent, plain = found(Unrehearsed(**vars(fedper()))), found(fedper())
    assert sent.uploads == plain.uploads
    assert (sent.stays, sent.blended) == ("", "fc")


# --- Layers in words


WITHOUT = "without running statistics"


def test_layers_in_words():
    small = describe(build("convnorm", shape=SHAPE, classes=CLASSES))
    large = describe(build("resnet9", shape=(3, 32, 32), classes=CLASSES))
    running = [name for name in small.specs if name not in small.trainable()]
    base = [name for name in small.specs if not name.startswith("fc")]
    assert layers_of(small.specs, small) == "all layers"
    assert layers_of([], small) == ""
    assert layers_of(small.trainable(), small) == "all layers " + WITHOUT
    assert layers_of(base, small) == "all layers but fc"
    assert layers_of(small.trainable("base"), small) == "all layers but fc, " + WITHOUT
    assert layers_of(small.trainable("head"), small) == "fc"
    assert layers_of(small.trainable("first:1"), small) == "conv1, bn1, " + WITHOUT
    assert layers_of(running, small) == "running statistics"
    assert layers_of(running[:2], small) == "running statistics of bn1"
    assert layers_of([*running, "fc.bias"], small) == "running statistics of bn1, running statistics of bn2, fc.bias"
    assert layers_of(["fc.bias", "bn1.weight", "bn1.running_mean"], small) == "bn1.weight, bn1.running_mean, fc.bias"
    assert layers_of(["bn1.bias"], small) == "bn1.bias"
    last = large.layers[-1]
    assert layers_of([n for n in large.specs if n not in last.tensors], large) == f"all layers but {last.name}"
    assert layers_of([f"{x.name}.weight" for x in large.layers if x.kind == "batchnorm"], large).endswith("more")


def test_class_frequencies_are_no_running_statistics():
    layout = setup(algorithm("fedprior")).layout
    (prior,), running = layout.own(), [name for name, spec in layout.specs.items() if spec.is_statistic]
    assert found(algorithm("fedprior")).stays == layers_of([prior], layout) == "fc.prior"
    assert layers_of([*running, prior], layout).endswith("running statistics of bn2, fc.prior")


# --- The text


def test_the_text_for_a_site_has_every_field_with_its_bytes_and_their_sum():
    method = fedper()
    lines = what_leaves(method, setup(method))
    (stage,) = found(method).uploads
    assert [line.split()[:2] for line in lines if " bytes" in line] == [
        ["samples", "8"],
        ["theta", "2,848"],
        ["total", "2,856"],
    ]
    assert "2,856 bytes" in lines[-2]
    assert all(any(field.meaning.says[:40] in line for line in lines) for field in stage.fields)
    assert any(line.endswith("32 running statistics)") for line in lines)
    assert lines[-1].endswith(f" {found(method).stays}")
    narrow = what_leaves(method, setup(method), width=60)
    assert max(map(len, narrow)) <= 60
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(lines).split())


def test_the_text_says_what_may_be_less_what_is_nothing_and_what_is_blended():
    nothing, stays = what_leaves(local(), setup(local()))
    assert nothing.endswith(": nothing")
    assert stays.endswith(what_stays(found(local())))
    (theta,) = found(algorithm("heurpfedla")).downloads[0].fields
    masked = f"(all layers; with 32 running statistics; {MASKS['layers']}; for this site alone)"
    assert described(theta).endswith(masked)
    assert "site alone" not in described(found(fedavg()).downloads[0].fields[0])
    limits = {line.split()[0]: "at most" in line for line in lines_of(found(algorithm("flayer"))) if " bytes" in line}
    assert limits == {"samples": False, "theta": True, "total": True}
    blended, _ = lines_of(found(fedcp()))[-2:]
    assert "blended" in blended
    assert blended.endswith("fc.personal")
    assert what_stays(found(ditto())) != what_stays(found(fedavg()))
    for name in ("fedpac", "scaffold+topk"):
        sent = found(algorithm(name))
        for stage in sent.uploads:
            names = [field.name for field in stage.fields]
            assert names == sorted(names)
            assert stage.bytes == sum(field.bytes for field in stage.fields)
