"""Bytes as numbers: worked out by hand, and the same training as with numbers made beforehand."""

import logging

import numpy as np
import pytest
import torch

from hospitals import write_xrays
from stratafl import fit
from stratafl.algorithms import fedper
from stratafl.data import Scaling, federate
from stratafl.data.loading import load_samples
from stratafl.data.preprocessing import numbers
from stratafl.data.reading import Reading
from stratafl.errors import DataError
from stratafl.execute import Matrix, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.testing import difference

OWNERS = [np.arange(0, 14), np.arange(14, 30)]


def images(seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (30, 2, 4, 4), dtype=np.uint8), rng.integers(0, 3, 30)


def model():
    torch.manual_seed(1)
    return build("mlp", shape=(2, 4, 4), classes=3, hidden=(5,))


def test_a_byte_by_hand():
    """(255/255 − 0.5)/0.25 = 2, (0 − 0.5)/0.25 = −2, and (51/255 − 0.2)/0.5 = 0 in the second channel."""
    x = torch.tensor([[[[255, 0]], [[51, 255]]]], dtype=torch.uint8)
    scale = Scaling((0.5, 0.2), (0.25, 0.5)).tensors(x, torch.float64)
    torch.testing.assert_close(
        numbers(x, torch.float64, scale), torch.tensor([[[[2.0, -2.0]], [[0.0, 1.6]]]], dtype=torch.float64)
    )


def test_one_mean_is_for_all_channels_and_without_scaling_bytes_are_their_numbers():
    x = torch.tensor([[0, 255]], dtype=torch.uint8)
    assert numbers(x, torch.float32, Scaling((0.5,), (0.5,)).tensors(x, torch.float32)).tolist() == [[-1, 1]]
    assert numbers(x, torch.float32).tolist() == [[0, 255]]
    tokens = torch.tensor([[3, 4]])
    assert numbers(tokens, torch.float32) is tokens


@pytest.mark.parametrize(("engine", "maximum"), [("stacked", 255), ("loop", 255), ("stacked", 65535), ("loop", 65535)])
def test_training_on_pixels_is_training_on_their_numbers(engine, maximum):
    x, y = images()
    x = x if maximum == 255 else x.astype(np.uint16) * 256 + x[::-1]
    scaling = Scaling((0.4, 0.6), (0.2, 0.3), maximum)
    ready = (x / maximum - np.array([0.4, 0.6])[:, None, None]) / np.array([0.2, 0.3])[:, None, None]
    found = []
    for federation in (
        federate(x, y, OWNERS, classes=3, scaling=scaling, dtype=torch.float64),
        federate(ready, y, OWNERS, classes=3, dtype=torch.float64),
    ):
        sim = simulation(
            fedper(train=LocalTraining(lr=0.1)), federation, model(), rounds=3, engine=engine, dtype=torch.float64
        )
        assert sim.runtime.federation.x.dtype == federation.x.dtype
        found.append(sim.run(Matrix()).tensors())
    assert difference(*found) < 1e-12


def test_a_fitted_model_scales_the_bytes_that_it_is_asked_about_and_the_bare_one_takes_numbers():
    x, y = images()
    fitted = fit(fedper(), federate(x, y, OWNERS, classes=3, scaling=Scaling((0.5,), (0.5,))), model(), rounds=1)
    as_numbers = torch.from_numpy(x).float() / 255 * 2 - 1
    with torch.no_grad():
        torch.testing.assert_close(fitted.client(0).outputs(x), fitted.client(0).model(as_numbers))
    with pytest.raises(DataError, match="give them unscaled"):
        fitted.client(0).outputs(as_numbers)


def test_what_does_not_fit_is_refused():
    x, y = images()
    with pytest.raises(DataError, match=r"3 .*\("):
        federate(x, y, OWNERS, classes=3, scaling=Scaling((0.5,) * 3, (0.5,) * 3))
    with pytest.raises(DataError, match="float32"):
        federate(x.astype(np.float32), y, OWNERS, classes=3, scaling=Scaling())
    with pytest.raises(DataError, match="positive deviations"):
        Scaling((0.5,), (0.0,))


def test_pixels_of_another_type_are_not_predicted_from():
    x, y = images()
    wide = x.astype(np.uint16) * 257
    federation = federate(wide, y, OWNERS, classes=3, scaling=Scaling((0.5,), (0.5,), 65535))
    fitted = fit(fedper(train=LocalTraining(lr=0.1)), federation, model(), rounds=1)
    ready = torch.from_numpy(((wide / 65535 - 0.5) / 0.5).astype(np.float32))
    torch.testing.assert_close(fitted.client(0).outputs(wide), fitted.client(0).model(ready), atol=1e-5, rtol=1e-5)
    with pytest.raises(DataError, match=r"uint8.*uint16"):
        fitted.client(0).predict(x)


def flat_notes(caplog, place, **options):
    caplog.clear()
    with caplog.at_level(logging.WARNING, "stratafl"):
        load_samples(str(place), Reading(**options))
    return [record.args for record in caplog.records if "data.normalise=image" in record.getMessage()]


def test_pixels_that_use_little_of_16_bits_are_said_to(tmp_path, caplog):
    """X-rays with a deviation of 6 % of their range learn next to nothing by the range, as older runs have it."""
    place = write_xrays(tmp_path / "xrays", sites=2, normal=3, opacity=3, side=8)
    ((name, used),) = flat_notes(caplog, place, normalise="former")
    assert name == "xrays"
    assert 3 < used < 9
    assert flat_notes(caplog, place, normalise="channel") == flat_notes(caplog, place) == []
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "full.npz", x=rng.integers(0, 65536, (9, 1, 4, 4)).astype(np.uint16), y=np.arange(9) % 2)
    np.savez(tmp_path / "bytes.npz", x=rng.integers(90, 99, (9, 1, 4, 4)).astype(np.uint8), y=np.arange(9) % 2)
    assert not any(flat_notes(caplog, tmp_path / f"{name}.npz", normalise="former") for name in ("full", "bytes"))
