"""Shifts of clients' samples: each kind by hand, the same on every machine, and in all splits."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from stratafl.config.assemble import federation_of
from stratafl.config.experiment import from_tables, to_tables
from stratafl.core import keys
from stratafl.data import IID, digits_federation, federate, from_clients
from stratafl.data.shift import Shift, _Draw, _Images, noisy, recoloured, rotated_by, shift_kinds, smoothed
from stratafl.errors import DataError, RecordError, UnknownNameError

IMAGES = np.random.default_rng(0).random((3, 2, 5, 7))
DRAW = _Draw(1, torch.tensor(12345))


def experiment(**data):
    return from_tables({"data": {"clients": 5, "partition": "iid", **data}})


def held(federation, client):
    return torch.cat([ragged.of(client) for ragged in federation.splits.values()])


def test_a_rotation_by_hand():
    square = IMAGES[..., :5]
    assert np.allclose(rotated_by(square, 90), np.rot90(square, axes=(-2, -1)), atol=1e-12)
    assert np.allclose(rotated_by(IMAGES, 180), IMAGES[..., ::-1, ::-1], atol=1e-12)
    assert np.array_equal(rotated_by(IMAGES, 0), IMAGES)
    row = np.zeros((3, 3))
    row[0] = 1  # turned anticlockwise, the middle row comes from the diagonal that begins in the top edge
    c = round(0.5**0.5 * 2**20) / 2**20
    assert rotated_by(row, 45)[1].tolist() == pytest.approx([c, 0, 0])


def test_a_blur_is_repeated_binomial_averaging():
    impulse = np.zeros((1, 9, 9))
    impulse[0, 4, 4] = 1
    quarter = np.array([0.25, 0.5, 0.25])
    assert np.array_equal(smoothed(impulse, 1)[0, 3:6, 3:6], np.outer(quarter, quarter))
    assert np.allclose(smoothed(impulse, 2), smoothed(smoothed(impulse, 1), 1), atol=1e-15)
    assert np.allclose(smoothed(np.ones((1, 4, 4)), 40), 1)  # the truncated weights still sum to 1, also at the border


def test_colour_changes_contrast_and_brightness_of_each_channel():
    done, _ = recoloured(_Images(IMAGES, torch.arange(3), 0.0, 1.0), DRAW, 0.5, False)
    for channel in range(2):
        gain = 1 - 0.8 * 0.5 * DRAW.share(2 * channel)
        lighter = 0.5 * (DRAW.share(2 * channel + 1) - 0.5)
        expected = np.clip((IMAGES[:, channel] - 0.5) * gain + 0.5 + lighter, 0, 1)
        assert np.allclose(done[:, channel], expected, atol=1e-15)


def test_noise_has_its_deviation_and_belongs_to_the_sample():
    grey, rows = np.full((40, 1, 30, 30), 100.0), torch.arange(40) + 7
    done, _ = noisy(_Images(grey, rows, 0.0, 255.0), DRAW, 0.2, True)
    noise = done - grey
    assert noise.std() == pytest.approx(0.5 * 0.2 * 255, rel=0.01)
    assert abs(noise.mean()) < 0.5
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.1
    alone, _ = noisy(_Images(grey[5:6], rows[5:6], 0.0, 255.0), DRAW, 0.2, True)
    assert np.array_equal(alone[0], done[5])


def test_labels_are_permuted_by_group_in_all_splits():
    plain = digits_federation(clients=9, partition=IID(), validation=0.1)
    shifted = Shift(("labels",), strength=0.3, groups=3).applied(plain)
    maps = []
    for client in range(9):
        rows = held(plain, client)
        pairs = {(int(a), int(b)) for a, b in zip(plain.y[rows], shifted.y[rows], strict=True)}
        assert len(pairs) == 10  # one new label for each class
        assert len({new for _, new in pairs}) == 10
        maps.append(frozenset(pairs))
    assert sorted(maps.count(each) for each in set(maps)) == [3, 3, 3]
    assert sorted(sum(a != b for a, b in each) for each in set(maps)) == [0, 3, 3]
    assert torch.equal(plain.x, shifted.x)


@pytest.mark.parametrize("kind", ["rotation", "blur", "colour", "noise"])
def test_strength_0_changes_nothing_and_more_strength_changes_more(kind):
    plain = digits_federation(clients=4, partition=IID())
    moved = [(Shift((kind,), each).applied(plain).x - plain.x).abs().mean() for each in (0.0, 0.5, 1.0)]
    assert moved[0] == 0
    assert moved[0] < moved[1] < moved[2]


def test_a_client_is_shifted_alike_whoever_else_there_is():
    clients = [(np.full((4, 1, 6, 6), 100, np.uint8), np.arange(4) % 2) for _ in range(3)]
    clients[0][0][:, :, 2:4] = 200
    many, one = from_clients(clients), from_clients(clients[:1])
    shift = Shift(shift_kinds("rotation+colour+blur"), 0.8)
    first = shift.applied(many)
    assert torch.equal(first.x[:4], shift.applied(one).x)
    assert not torch.equal(first.x[4:8], first.x[8:])
    assert replace(shift, seed=1).applied(one).shifts != shift.applied(one).shifts


def test_kinds_are_applied_in_one_order():
    assert shift_kinds("noise+rotation") == shift_kinds("rotation+noise") == ("rotation", "noise")
    plain = digits_federation(clients=3, partition=IID())
    once = Shift(("blur", "colour"), 1.0).applied(plain)
    steps = Shift(("colour",), 1.0).applied(Shift(("blur",), 1.0).applied(plain))
    assert torch.allclose(once.x, steps.x, atol=0.3)
    assert not torch.equal(once.x, Shift(("blur",), 1.0).applied(plain).x)


def test_a_sample_of_two_clients_is_shifted_for_each():
    x, y = np.arange(4 * 16, dtype=np.uint8).reshape(4, 1, 4, 4), np.array([0, 1, 0, 1])
    shared = federate(x, y, [np.arange(4), np.arange(4)], test=0.0, overlap=True)
    shifted = Shift(("rotation",), 1.0).applied(shared)
    assert len(shifted.x) == 8
    assert shifted.x.dtype == torch.uint8
    assert not torch.equal(shifted.x[held(shifted, 0)], shifted.x[held(shifted, 1)])
    assert torch.equal(torch.from_numpy(x), shared.x)  # what was given is as it was


def test_domains_are_the_kinds_in_turn():
    plain = digits_federation(clients=10, partition=IID())
    domains = Shift(("domains",), 0.5).applied(plain)
    same = [torch.equal(domains.x[held(domains, i)], plain.x[held(plain, i)]) for i in range(10)]
    assert sum(same) == 2
    assert len({words.split()[0] for words in domains.shifts}) == 5


# On every machine: these sums were taken on x86; a machine with other ones draws other clients
SUMS = {
    "rotation+blur+colour+noise": "bb49d642e2a983dc",
    "domains": "1d0883734c7b297f",
    "labels": "e25df24ab6279338",
}


@pytest.mark.parametrize("kinds", SUMS)
def test_every_machine_has_the_same_samples(kinds):
    shifted = Shift(shift_kinds(kinds), 0.7, seed=3).applied(digits_federation(clients=5, partition=IID()))
    total = hashlib.sha256(shifted.x.numpy().tobytes() + shifted.y.numpy().tobytes()).hexdigest()[:16]
    assert total == SUMS[kinds]


def test_a_setting_shifts_the_data_of_a_run():
    plain, shifted = federation_of(experiment()), federation_of(experiment(shift="rotation", strength=0.25))
    assert not torch.equal(plain.x, shifted.x)
    assert all(abs(int(words[:-1])) <= 45 for words in shifted.shifts)
    assert torch.equal(federation_of(experiment(shift="rotation", strength=0.0)).x, plain.x)
    assert "shift" not in to_tables(experiment())["data"]  # so that older runs are what they were


def test_what_cannot_be_shifted_is_refused():
    with pytest.raises(UnknownNameError, match="rotation"):
        experiment(shift="rotatoin")
    for wrong in ({"strength": 0.3}, {"shift_groups": 2}, {"shift": "blur", "strength": 1.5}):
        with pytest.raises(RecordError):
            experiment(**wrong)
    table = from_clients([(np.random.rand(9, 3), np.arange(9) % 2)] * 2)
    numbers = from_clients([(np.random.rand(9, 3), np.random.rand(9))] * 2)
    for kind, federation in (("noise", table), ("labels", numbers)):
        with pytest.raises(DataError, match=kind):
            Shift((kind,)).applied(federation)


def test_groups_share_a_shift():
    plain = digits_federation(clients=8, partition=IID())
    words = Shift(("rotation",), 1.0, groups=2).applied(plain).shifts
    assert sorted(words.count(each) for each in set(words)) == [4, 4]
    key = keys.keys(0, 0, torch.tensor([0]), "shift/groups")
    order = keys.shuffles(key, torch.tensor([8]), 8)[0].tolist()
    assert {words[client] for client in order[::2]} == {words[order[0]]}
