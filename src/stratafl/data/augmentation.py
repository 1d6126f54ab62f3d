"""Augmentation: training images are flipped and cropped at random, keyed by seed, client, round and step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stratafl.core import keys

FLIPS = ("none", "horizontal", "vertical", "both")
_PURPOSE = "augmentation"


@dataclass(frozen=True)
class Augmentation:
    """Each image is mirrored with probability ½ along each axis of `flip`, and moved by up to `crop` pixels each way.

    What a move leaves empty is filled with the mirror image of the border, so that no value appears that is not there.
    """

    flip: str = "none"
    crop: int = 0

    def applied(self, x: Tensor, key: Tensor) -> Tensor:
        """The images `[*K, B, …, H, W]` of batches with these keys `[*K]`: the same for any number of clients."""
        place = torch.arange(x.shape[key.ndim], device=x.device)
        sample_keys = keys.fold(keys.fold(key, keys.purpose_number(_PURPOSE))[..., None], place)[..., None]
        draws = keys.stream(sample_keys, torch.arange(4, device=x.device))  # [*K, B, 4]
        for axis, side in ((-2, "vertical"), (-1, "horizontal")):
            size = x.shape[axis]
            places = torch.arange(size, device=x.device).expand(*draws.shape[:-1], size)
            if self.crop:
                moved = places + ((draws[..., axis] >> 33) & 0x3FFFFFFF)[..., None] % (2 * self.crop + 1) - self.crop
                places = (size - 1) - ((size - 1) - moved.abs()).abs()
            if self.flip in (side, "both"):
                places = torch.where(draws[..., axis - 2, None] < 0, size - 1 - places, places)
            shape = (*draws.shape[:-1], *(1,) * (x.ndim - draws.ndim))
            index = places.reshape(*shape, size) if axis == -1 else places.reshape(*shape[:-1], size, 1)
            x = x.take_along_dim(index, axis)
        return x
