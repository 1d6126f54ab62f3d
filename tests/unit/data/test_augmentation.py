"""Flips and crops of training images, keyed like batches; images by their own mean and deviation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from data_files import image_file

from stratafl.algorithms import fedper
from stratafl.data import Reading, Scaling, from_clients, load_samples
from stratafl.data.augmentation import Augmentation
from stratafl.data.preprocessing import numbers, preprocessing_from
from stratafl.data.sample_format import SampleFormat
from stratafl.data.site_samples import new_samples, site_federation
from stratafl.data.splitting import SplitPlan
from stratafl.errors import DataError
from stratafl.execute import Debug, Matrix, Messages, simulation
from stratafl.models import MLP
from stratafl.policies import LocalTraining
from stratafl.testing import difference, everything

IMAGES = torch.arange(2 * 60 * 2 * 3 * 4, dtype=torch.float64).reshape(2, 60, 2, 3, 4)
KEYS = torch.tensor([5, 9])


def test_images_are_mirrored_half_of_the_time_each_by_itself():
    drawn = Augmentation("horizontal").applied(IMAGES, KEYS)
    mirrored = (drawn == IMAGES.flip(-1)).flatten(2).all(2)
    assert (mirrored ^ (drawn == IMAGES).flatten(2).all(2)).all()  # either the one or the other, all channels alike
    assert 40 < mirrored.sum() < 80
    assert not torch.equal(mirrored[0], mirrored[1])
    both = Augmentation("both").applied(IMAGES, KEYS)
    ways = [IMAGES, IMAGES.flip(-1), IMAGES.flip(-2), IMAGES.flip(-2, -1)]
    counts = [int((both == way).flatten(2).all(2).sum()) for way in ways]
    assert sum(counts) == 120
    assert min(counts) > 15


def test_images_are_moved_and_their_border_is_mirrored():
    drawn = Augmentation(crop=1).applied(IMAGES, KEYS)
    seen = set()
    for image, moved in zip(IMAGES.flatten(0, 1), drawn.flatten(0, 1), strict=True):
        padded = np.pad(image, ((0, 0), (1, 1), (1, 1)), mode="reflect")
        places = [(r, c) for r in range(3) for c in range(3) if np.array_equal(padded[:, r : r + 3, c : c + 4], moved)]
        assert len(places) == 1
        seen |= {*places}
    assert len(seen) == 9


def test_draws_do_not_depend_on_other_clients():
    whole = Augmentation("both", 2).applied(IMAGES, KEYS)
    assert torch.equal(Augmentation("both", 2).applied(IMAGES[1:], KEYS[1:])[0], whole[1])
    grey = IMAGES[:, :, 0]  # without an axis of channels
    assert torch.equal(Augmentation("both", 2).applied(grey, KEYS), whole[:, :, 0])


@pytest.mark.budget(1, "four simulations")
def test_every_executor_and_engine_draws_the_same():
    rng = np.random.default_rng(0)
    pairs = [(rng.integers(0, 256, (n, 1, 4, 4), dtype=np.uint8), rng.integers(0, 2, n)) for n in (13, 8, 21)]
    plain = replace(from_clients(pairs, dtype=torch.float64), scaling=Scaling((0.5,), (0.5,)))
    federation = replace(plain, augmentation=Augmentation("both", 1))
    method, model = fedper(train=LocalTraining(lr=0.1, batch=5)), MLP(shape=(1, 4, 4), classes=2, hidden=(5,)).double()

    def end(data, executor, engine="stacked"):
        sim = simulation(method, data, model, rounds=2, dtype=torch.float64, engine=engine)
        return everything(sim, sim.run(executor))

    first = end(federation, Matrix())
    for executor, engine in ((Messages(), "stacked"), (Debug(), "stacked"), (Matrix(), "loop")):
        assert difference(first, end(federation, executor, engine)) < 1e-12
    assert difference(first, end(plain, Matrix())) > 1e-3


def test_an_image_by_its_own_mean_and_deviation_by_hand():
    x = torch.tensor([[[[0, 65535], [0, 65535]]], [[[7, 7], [7, 7]]]], dtype=torch.uint16)
    scaling = Scaling(maximum=65535, own=True)
    expected = torch.tensor([[[[-1.0, 1.0], [-1.0, 1.0]]], [[[0.0, 0.0], [0.0, 0.0]]]])
    scale = scaling.tensors(x, torch.float32)
    assert torch.equal(numbers(x, torch.float32, scale), expected)
    assert torch.equal(numbers(x[None, 1:], torch.float32, scale), expected[None, 1:])  # any axes before a sample's


def xrays(folder, size=6, seed=0):
    rng = np.random.default_rng(seed)
    for label, mean in (("normal", 18_000), ("opacity", 20_000)):
        for number in range(6):
            pixels = rng.normal(mean, 900, (1, size, size)).astype(np.uint16)
            image_file(folder / label / f"{number}.png", pixels)
    return folder


def test_16_bits_are_scaled_image_by_image_unless_a_run_is_older(tmp_path):
    place = f"{xrays(tmp_path / 'north')}/"
    samples = load_samples(place, Reading())
    assert (samples.x.dtype, samples.scaling) == (np.uint16, Scaling(maximum=65535, own=True))
    assert load_samples(place, Reading(normalise="former")).scaling == Scaling((0.5,), (0.5,), 65535)


def test_a_site_and_new_images_are_read_as_in_the_simulation(tmp_path):
    place = xrays(tmp_path / "north", size=9)
    reading = Reading(size=6, flip="horizontal", crop=2)
    samples = load_samples(f"{place}/", reading)
    assert samples.augmentation == Augmentation("horizontal", 2)
    whole = from_clients([(np.asarray(samples.x).astype(np.uint8), samples.y)])
    form = SampleFormat.of(whole)
    read = replace(form.preprocessing, dtype="uint16", scaling=samples.scaling, classes=("normal", "opacity"))
    agreed = SampleFormat.from_table(replace(form, preprocessing=read).to_table())
    assert preprocessing_from(read.to_table()) == read
    site = site_federation(samples, agreed, SplitPlan(), client=0)
    assert (site.augmentation, site.scaling, site.x.dtype) == (samples.augmentation, samples.scaling, torch.uint16)
    new = new_samples(place / "normal", reading, agreed)
    assert np.array_equal(new.x, samples.x[:6])


@pytest.mark.parametrize(
    ("reading", "value"), [(Reading(crop=6), "6"), (Reading(flip="both"), "flip"), (Reading(crop=1), "crop")]
)
def test_what_cannot_be_flipped_or_cropped_is_refused(tmp_path, reading, value):
    place = f"{xrays(tmp_path / 'north')}/"
    if reading.crop != 6:
        place = str(tmp_path / "table.csv")
        (tmp_path / "table.csv").write_text("a,b,label\n1.5,2,x\n2.5,1,y\n")
    with pytest.raises(DataError, match=value):
        load_samples(place, reading)
