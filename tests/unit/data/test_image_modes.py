"""Images of every mode: read without loss, converted in a way that is said, or refused with the reason."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from stratafl.config.assemble import federation_of
from stratafl.config.experiment import from_tables
from stratafl.data import Reading, Samples, Scaling, cache, load_samples, loading, read_shards, write_shards
from stratafl.data.reading import half
from stratafl.errors import StrataError
from wording import mentions

LOW = np.arange(16, dtype=np.uint16).reshape(4, 4) + 256  # differ in their low byte alone
HIGH = LOW * 255


def folder(place, images, suffix="png", **options):
    """A class folder for each image."""
    for at, image in enumerate(images):
        image = image if isinstance(image, bytes) else saved(image, suffix, **options)
        file = place / "photos" / f"class{at}" / f"one.{suffix}"
        file.parent.mkdir(parents=True)
        file.write_bytes(image)
    return f"{place / 'photos'}/"


def saved(image, suffix, **options):
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    buffer = io.BytesIO()
    image.save(buffer, {"tif": "TIFF", "jpg": "JPEG"}.get(suffix, suffix), **options)
    return buffer.getvalue()


def refusal(place):
    with pytest.raises(StrataError) as error:
        load_samples(place)
    assert "\n" not in str(error.value)
    return str(error.value)


def deep_png(pixels):
    """A PNG of 16 bits in each of its channels, which Pillow cannot write."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, channels = pixels.shape
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in pixels)
    head = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


# 16 bits


@pytest.mark.parametrize(
    ("suffix", "dtype", "options"),
    [("png", "<u2", {}), ("tif", "<u2", {}), ("tif", ">u2", {}), ("tif", "<u2", {"compression": "tiff_lzw"})],
)
def test_16_bits_stay_16_bits(tmp_path, suffix, dtype, options):
    found = load_samples(folder(tmp_path, [LOW.astype(dtype), HIGH.astype(dtype)], suffix, **options))
    assert found.x.dtype == np.uint16
    assert np.array_equal(found.x[:, 0], [LOW, HIGH])
    assert half(found.x.dtype) == Scaling((0.5,), (0.5,), 65535)
    assert found.mode in ("I;16", "I;16B")


def test_16_bits_of_a_pgm(tmp_path):
    data = b"P5 4 4 65535\n" + LOW.astype(">u2").tobytes()
    assert np.array_equal(load_samples(folder(tmp_path, [data, data], "ppm")).x[1, 0], LOW)


@pytest.mark.parametrize(
    ("normalise", "low", "high"), [("half", -1, 1), ("former", -1, 1), ("unit", 0, 1), ("none", 0, 65535)]
)
def test_16_bits_as_numbers(tmp_path, normalise, low, high):
    """0 and 65535 become the ends of the range, and 65534 does not become 65535."""
    picture = np.full((2, 2), 65535, np.uint16)
    picture[0] = [0, 65534]
    tables = {"data": {"name": folder(tmp_path, [picture, picture, picture, picture]), "normalise": normalise}}
    tables["data"] |= {"partition": "iid", "clients": 1}
    federation = federation_of(from_tables(tables))
    x = federation.inputs(federation.x, torch.float32)[0, 0]
    assert federation.x.dtype == torch.uint16
    assert (x[0, 0], x[1, 0]) == (low, high)
    assert x[0, 1] == pytest.approx(low + (high - low) * 65534 / 65535, rel=1e-7)
    assert x[0, 1] < x[1, 0]


def test_16_bits_by_their_mean_and_deviation(tmp_path):
    place = folder(tmp_path, [LOW, HIGH])
    scaling = load_samples(place, Reading(normalise="channel")).scaling
    both = np.stack([LOW, HIGH]) / 65535
    assert scaling.mean == pytest.approx((both.mean(),), rel=1e-12)
    assert scaling.deviation == pytest.approx((both.std(),), rel=1e-9)
    assert scaling.maximum == 65535


def test_16_bits_are_resized_without_rounding_to_bytes(tmp_path):
    place = folder(tmp_path, [LOW.repeat(2, 0).repeat(2, 1), HIGH.repeat(2, 0).repeat(2, 1)])
    found = load_samples(place, Reading(size=4))
    assert (found.x.dtype, found.x.shape) == (np.uint16, (2, 1, 4, 4))
    assert abs(found.x[0, 0].astype(int) - LOW).max() <= 2


def test_16_bits_survive_shards_and_the_cache(tmp_path):
    place = folder(tmp_path, [LOW, HIGH])
    first, again = load_samples(place), load_samples(place)
    write_shards(first, tmp_path / "copy")
    for other in (again, read_shards(tmp_path / "copy")):
        assert (other.x.dtype, other.scaling, other.mode) == (np.uint16, first.scaling, first.mode)
        assert np.array_equal(other.x, first.x)


def test_what_was_kept_by_a_version_that_clipped_is_not_read(tmp_path):
    place = folder(tmp_path, [LOW, HIGH])
    key = loading._key(Reading(), files=cache.fingerprint(tmp_path / "photos"), targets="auto")
    assert key.pop("decoding") > 1
    clipped = Samples(np.full((2, 1, 4, 4), 255, np.uint8), np.arange(2), classes=2, scaling=half(np.dtype(np.uint8)))
    cache.cached("photos", key, lambda: clipped)
    assert np.array_equal(load_samples(place).x[:, 0], [LOW, HIGH])


def test_scaling_written_before_there_was_a_maximum_is_that_of_bytes():
    """A run's checksum of its data, and copies that were exported, know of mean and deviation alone."""
    assert str(Scaling((0.5,), (0.5,))) == "Scaling(mean=(0.5,), deviation=(0.5,))"


def test_8_and_16_bits_are_brought_to_one_range_and_it_is_said(tmp_path, caplog):
    bytes_ = np.array([[0, 255], [1, 2]], np.uint8)
    words = np.array([[0, 65535], [1, 2]], np.uint16)
    found = load_samples(folder(tmp_path, [bytes_, words]))
    assert found.x[0, 0].tolist() == [[0, 65535], [257, 514]]
    assert found.x[1, 0].tolist() == words.tolist()
    assert found.mode == "I;16 and L"
    assert mentions(caplog.text, "8 ", "16 ", "257")


# Other modes


def test_32_bits_are_numbers_as_they_are(tmp_path):
    floats = np.array([[-0.25, 1e-3], [7.5, 1e6]], np.float32)
    found = load_samples(folder(tmp_path, [floats, floats * 2], "tif"))
    assert (found.x.dtype, found.scaling, found.mode) == (np.float32, None, "F")
    assert np.array_equal(found.x[0, 0], floats)
    hounsfield = np.array([[-1024, 3071], [0, 40]], np.int32)
    found = load_samples(folder(tmp_path / "ct", [hounsfield, hounsfield], "tif"))
    assert (found.x.dtype, found.scaling, found.mode) == (np.float32, None, "I")
    assert np.array_equal(found.x[0, 0], hounsfield)


def test_whole_numbers_that_no_float_holds_are_refused(tmp_path):
    large = np.array([[2**24 + 1, 0], [0, 0]], np.int32)
    assert "16,777,217" in refusal(folder(tmp_path, [large, large], "tif"))


def test_floats_and_bytes_have_no_common_range(tmp_path):
    said = refusal(folder(tmp_path, [np.zeros((2, 2), np.float32), np.zeros((2, 2), np.uint8)], "tif"))
    assert "F and L" in said


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_16_bits_in_several_channels_are_refused(tmp_path, channels):
    image = deep_png(np.arange(4 * 4 * channels, dtype=np.uint16).reshape(4, 4, channels))
    said = refusal(folder(tmp_path, [image, image]))
    assert "several channels of 16 bits" in said
    assert "one.png" in said


def test_a_deep_ppm_is_refused(tmp_path):
    image = b"P6 2 2 65535\n" + bytes(24)
    assert "several channels of 16 bits" in refusal(folder(tmp_path, [image, image], "ppm"))


def test_transparent_pixels_are_white_and_it_is_said(tmp_path, caplog):
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[..., 0], pixels[..., 3] = 200, [[0, 255], [255, 255]]
    found = load_samples(folder(tmp_path, [pixels, pixels]))
    assert found.x[0].transpose(1, 2, 0).tolist() == [[[255, 255, 255], [200, 0, 0]], [[200, 0, 0], [200, 0, 0]]]
    assert (found.mode, found.x.dtype) == ("RGBA", np.uint8)
    assert "2 images" in caplog.text


def test_opaque_images_lose_nothing(tmp_path, caplog):
    colours = np.random.default_rng(0).integers(0, 256, (4, 4, 4), dtype=np.uint8)
    colours[..., 3] = 255
    found = load_samples(folder(tmp_path, [colours, colours]))
    assert np.array_equal(found.x[0].transpose(1, 2, 0), colours[..., :3])
    assert caplog.text == ""


def test_grey_with_transparency_is_grey(tmp_path):
    image = np.dstack([np.arange(16, dtype=np.uint8).reshape(4, 4) * 16, np.full((4, 4), 255, np.uint8)])
    image[0, 0, 1] = 0
    found = load_samples(folder(tmp_path, [Image.fromarray(image, "LA")] * 2))
    assert (found.x.shape, found.x[0, 0, 0, 0], found.x[0, 0, 3, 3]) == ((2, 1, 4, 4), 255, 240)


def test_palettes_are_their_colours(tmp_path):
    image = Image.new("P", (2, 2))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 1), 1)
    found = load_samples(folder(tmp_path, [image, image]))
    assert (found.x[0, :, 0, 0].tolist(), found.x[0, :, 1, 1].tolist()) == ([10, 20, 30], [40, 50, 60])
    assert found.mode == "P"


def test_transparent_colours_of_a_palette_are_white(tmp_path):
    image = Image.new("P", (2, 2))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 1), 1)
    found = load_samples(folder(tmp_path, [image, image], transparency=1))
    assert found.x[0, :, 1, 1].tolist() == [255, 255, 255]


def test_two_values_are_black_and_white(tmp_path):
    found = load_samples(folder(tmp_path, [np.array([[True, False]])] * 2))
    assert (found.x[0, 0].tolist(), found.mode) == ([[255, 0]], "1")


@pytest.mark.parametrize(("mode", "colour", "rgb"), [("CMYK", (0, 255, 255, 0), [255, 0, 0])])
def test_inks_are_converted_to_rgb(tmp_path, mode, colour, rgb):
    found = load_samples(folder(tmp_path, [Image.new(mode, (2, 2), colour)] * 2, "tif"))
    assert (found.x[0, :, 0, 0].tolist(), found.mode) == (rgb, mode)


def test_lab_is_refused(tmp_path):
    assert "mode LAB" in refusal(folder(tmp_path, [Image.new("LAB", (2, 2))] * 2, "tif"))


@pytest.mark.parametrize("suffix", ["gif", "tif"])
def test_several_frames_are_refused(tmp_path, suffix):
    frames = [Image.new("L", (2, 2), shade) for shade in (0, 100, 200)]
    image = saved(frames[0], suffix, save_all=True, append_images=frames[1:])
    assert len(list(ImageSequence.Iterator(Image.open(io.BytesIO(image))))) == 3
    said = refusal(folder(tmp_path, [image, image], suffix))
    assert "3 frames" in said
    assert f"one.{suffix}" in said


def test_photographs_are_turned_upright(tmp_path):
    """Orientation 6: the camera was held so that the first row of the file is the right side of the scene."""
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.array([[0, 255], [128, 64]], np.uint8)
    found = load_samples(folder(tmp_path, [pixels, pixels], exif=exif))
    assert found.x[0, 0].tolist() == [[128, 0], [64, 255]]


# Files that cannot be read


def test_a_truncated_file_is_named(tmp_path):
    whole = saved(np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8), "png")
    said = refusal(folder(tmp_path, [whole, whole[: len(whole) // 2]]))
    assert "class1" in said
    assert "cannot be decoded" in said


def test_a_decompression_bomb_is_one_line(tmp_path, monkeypatch, recwarn):
    small, large = (np.zeros((side, side), np.uint8) for side in (4, 16))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    said = refusal(folder(tmp_path, [small, large]))
    assert "class1" in said
    assert "16 × 16" in said or "256 pixels" in said
    assert not recwarn.list


def test_formats_that_are_not_listed_are_refused(tmp_path):
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2)).save(buffer, "PCX")
    assert "PNG, JPEG" in refusal(folder(tmp_path, [buffer.getvalue()] * 2, "png"))
