"""Shift: what makes the samples of one client differ from those of the others, whichever samples a partition gives it.

A shift changes the images or the labels of a client once, when its federation is built, in all three splits. So every
executor, evaluation, export and digest sees the same samples and needs no code for it. To add a kind, write a function
from images to images, and name it in `KINDS` and `Shift._shifted`.

All draws come from keys. Sines are rounded to 20 bits and sums are added term by term in float64, so every machine gets
the same samples, bit for bit.
"""

from collections.abc import Callable
from dataclasses import replace
from math import comb, cos, isqrt, radians, sin
from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stratafl.core import keys
from stratafl.core.annotations import Range
from stratafl.core.records import record
from stratafl.core.reprs import short_repr
from stratafl.data.federation import Federation
from stratafl.data.preprocessing import PIXELS
from stratafl.errors import DataError, unknown

# In the order in which they are applied: the scene is turned, the lens blurs it, the sensor colours it and adds noise.
KINDS = ("domains", "rotation", "blur", "colour", "noise", "labels")
DOMAINS = ("none", "rotation", "blur", "colour", "noise")  # what each group of `domains` has, in turn
PLUS, STRENGTH = "+", 0.5
LARGEST_TURN = 180  # degrees, at strength 1
DARKEST, NOISIEST = 0.8, 0.5  # the loss of contrast, and the deviation of noise as a share of the range, at strength 1
WIDEST_BLUR = 1 / 4  # the deviation of a blur at strength 1, as a share of the shorter side
_CHUNK = 1 << 22  # pixels that get noise at a time
Images = NDArray[np.float64]  # [n, …, H, W]


@record
class Shift:
    """`kinds` of shift of a `strength` from 0 to 1, drawn by `seed` for each client, or for each of `groups` of them.

    `labels` and `domains` have groups in any case, by default 4 and 5.
    """

    kinds: tuple[str, ...]
    strength: Annotated[float, Range(least=0, most=1)] = STRENGTH
    groups: Annotated[int, Range(least=1)] | None = None
    seed: int = 0

    def applied(self, federation: Federation) -> Federation:
        """The federation with each client's own samples shifted; a sample of several clients becomes several."""
        self._check(federation)
        apart = federation.apart()
        x, y, descriptions = apart.x.numpy().copy(), apart.y.clone(), list[str]()
        low, high = _range_of(apart)
        draws = {kind: self._draws(kind, apart.clients) for kind in self.kinds}
        for client in range(apart.clients):
            rows = torch.cat([ragged.of(client) for ragged in apart.splits.values()]).unique()
            words = list[str]()
            for kind in self.kinds:
                draw = draws[kind][client]
                if kind == "labels":
                    new, word = draw.permuted(int(apart.classes or 0), self.strength)
                    y[rows] = new[y[rows]]
                else:
                    images = _Images(x[rows.numpy()].astype(np.float64), rows, low, high)
                    done, word = draw.shifted(kind, images, self.strength)
                    x[rows.numpy()] = (np.rint(done) if x.dtype.kind in "iu" else done).astype(x.dtype)
                words.append(word)
            descriptions.append(", ".join(word for word in words if word))
        return replace(apart, x=torch.from_numpy(x), y=y, shifts=tuple(descriptions))

    def _draws(self, kind: str, clients: int) -> "list[_Draw]":
        """What each client draws for a kind: as its group does, if there are groups."""
        usual = {"labels": 4, "domains": len(DOMAINS)}.get(kind)
        count, everybody = self.groups or usual, torch.arange(clients)
        group = everybody
        if count is not None:
            key = keys.keys(self.seed, 0, torch.tensor([0]), "shift/groups")
            order = keys.shuffles(key, torch.tensor([clients]), clients)[0]
            group = torch.empty_like(everybody)
            group[order] = everybody % count
        drawn = keys.keys(self.seed, 0, group, f"shift/{kind}")
        return [_Draw(int(number), key) for number, key in zip(group.tolist(), drawn, strict=True)]

    def _check(self, federation: Federation) -> None:
        x = federation.x
        if "labels" in self.kinds and not federation.classes:
            raise DataError("data.shift = 'labels' permutes classes, but the targets are numbers: choose another kind")
        pictures = [kind for kind in self.kinds if kind != "labels"]
        if pictures and (x.ndim < 3 or federation.text is not None or not (x.is_floating_point() or x.dtype in PIXELS)):
            raise DataError(f"data.shift = '{pictures[0]}' is for images: use 'labels', or leave it out")


def shift_kinds(text: str) -> tuple[str, ...]:
    """The kinds of a text such as `rotation+noise`, in the order in which they are applied."""
    names = text.split(PLUS)
    for name in names:
        if name not in KINDS:
            raise unknown("data.shift", name, KINDS)
    return tuple(kind for kind in KINDS if kind in names)


@short_repr
class _Images(NamedTuple):
    """The images of a client, their numbers in the federation, and the range of all values."""

    values: Images
    rows: Tensor
    low: float
    high: float


@short_repr
class _Draw(NamedTuple):
    """The random numbers of a client or group."""

    group: int
    key: Tensor

    def whole(self, count: int, place: int = 0) -> int:
        """A whole number below `count`."""
        return int(keys.stream(self.key, torch.tensor(place)) >> 33 & 0x3FFFFFFF) % count

    def share(self, place: int = 0) -> float:
        """A number from 0 to 1 with 23 random bits."""
        return float(keys.uniform(self.key, torch.tensor(place), torch.float64))

    def permuted(self, classes: int, strength: float) -> tuple[Tensor, str]:
        """The new label of each class: a share `strength` of them change places in a circle; none in group 0."""
        new, moved = torch.arange(classes), min(classes, max(2, round(strength * classes)))
        if self.group == 0 or strength == 0 or classes < 2:
            return new, "labels as they are"
        chosen = keys.shuffles(self.key[None], torch.tensor([classes]), classes)[0][:moved]
        new[chosen] = chosen.roll(1)
        return new, " ".join(f"{old}→{int(label)}" for old, label in enumerate(new) if old != int(label))

    def shifted(self, kind: str, images: _Images, strength: float) -> tuple[Images, str]:
        """The images with one kind of shift, and what was done in words."""
        if kind == "domains":
            domain = DOMAINS[self.group % len(DOMAINS)]
            return (images.values, "as they are") if domain == "none" else _SHIFTS[domain](images, self, strength, True)
        return _SHIFTS[kind](images, self, strength, False)


# Each kind: images and a draw, the strength, and whether it is taken in full instead of up to what is drawn


def rotated(images: _Images, draw: _Draw, strength: float, full: bool) -> tuple[Images, str]:
    """Turned about the centre by whole degrees, up to 180 · strength either way; the border is continued outwards."""
    most = int(LARGEST_TURN * strength)
    degrees = most if full else draw.whole(2 * most + 1) - most
    return rotated_by(images.values, degrees), f"{degrees:+d}°"


def rotated_by(values: Images, degrees: int) -> Images:
    """Anticlockwise about the centre, with bilinear interpolation."""
    height, width = values.shape[-2:]
    c, s = (round(f(radians(degrees)) * (1 << 20)) / (1 << 20) for f in (cos, sin))
    row, column = np.arange(height)[:, None] - (height - 1) / 2, np.arange(width)[None] - (width - 1) / 2
    from_row = np.clip(row * c + column * s + (height - 1) / 2, 0, height - 1)
    from_column = np.clip(column * c - row * s + (width - 1) / 2, 0, width - 1)
    top, left = np.floor(from_row).astype(np.int64), np.floor(from_column).astype(np.int64)
    bottom, right = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    a, b = from_row - top, from_column - left
    above = values[..., top, left] * (1 - b) + values[..., top, right] * b
    below = values[..., bottom, left] * (1 - b) + values[..., bottom, right] * b
    done: Images = above * (1 - a) + below * a
    return done


def blurred(images: _Images, draw: _Draw, strength: float, full: bool) -> tuple[Images, str]:
    """Averaged with binomial weights, whose deviation is up to strength · the shorter side / 4."""
    side = min(images.values.shape[-2:])
    deviation = strength * side * WIDEST_BLUR * (1.0 if full else draw.share())
    passes = int(2 * deviation * deviation + 0.5)
    return smoothed(images.values, passes), f"blur {(passes / 2) ** 0.5:.1f} px"


def smoothed(values: Images, passes: int) -> Images:
    """As many passes of ¼, ½, ¼ along each axis, at once; the border is continued outwards."""
    reach = min(passes, isqrt(8 * passes) + 1)  # four deviations
    counts = [comb(2 * passes, passes + k) for k in range(-reach, reach + 1)]
    for axis in (-2, -1):
        size, total = values.shape[axis], np.zeros_like(values)
        for offset, count in zip(range(-reach, reach + 1), counts, strict=True):
            places = np.clip(np.arange(size) + offset, 0, size - 1)
            total = total + values.take(places, axis) * (count / sum(counts))
        values = total
    return values


def recoloured(images: _Images, draw: _Draw, strength: float, full: bool) -> tuple[Images, str]:
    """Each channel with less contrast, by up to 0.8 · strength, and brighter or darker by up to half of strength."""
    values, middle, span = images.values, (images.low + images.high) / 2, images.high - images.low
    channels = values.shape[1] if values.ndim > 3 else 1
    contrast = [1 - DARKEST * strength * (1.0 if full else draw.share(2 * c)) for c in range(channels)]
    lighter = [strength * (draw.share(2 * c + 1) - 0.5) for c in range(channels)]
    wide = (channels, 1, 1) if values.ndim > 3 else ()
    gain, offset = np.array(contrast).reshape(wide), np.array(lighter).reshape(wide)
    done = np.clip((values - middle) * gain + middle + offset * span, images.low, images.high)
    words = f"contrast {np.mean(contrast):.2f}, brightness {np.mean(lighter):+.2f}"
    return done, words


def noisy(images: _Images, draw: _Draw, strength: float, full: bool) -> tuple[Images, str]:
    """With noise that is nearly normal, the sum of four uniform numbers, of deviation up to 0.5 · strength."""
    level = NOISIEST * strength * (1.0 if full else draw.share())
    span, done = images.high - images.low, images.values.copy()
    pixels = int(np.prod(done.shape[1:]))
    step, index = max(1, _CHUNK // pixels), torch.arange(pixels)
    for begin in range(0, len(done), step):
        key = keys.fold(draw.key, images.rows[begin : begin + step] + 1)[:, None]
        bits = sum((keys.stream(key, 4 * index + k) >> 41) for k in range(4))  # each from −2²² to 2²² − 1
        normal = (torch.as_tensor(bits).double().numpy() + 2) / (1 << 23) * 1.7320508075688772
        part = done[begin : begin + step]
        done[begin : begin + step] = part + normal.reshape(part.shape) * (level * span)
    return np.clip(done, images.low, images.high), f"noise {level:.2f}"


_SHIFTS: dict[str, Callable[[_Images, _Draw, float, bool], tuple[Images, str]]] = {
    "rotation": rotated, "blur": blurred, "colour": recoloured, "noise": noisy,
}  # fmt: skip


def _range_of(federation: Federation) -> tuple[float, float]:
    x = federation.x
    if x.dtype in PIXELS:
        return 0.0, float(PIXELS[x.dtype])
    return (float(x.min()), float(x.max())) if x.is_floating_point() else (0.0, 0.0)
