"""Hospitals with the habits of real ones: small files as their sites would have them."""

from pathlib import Path

import numpy as np
from PIL import Image

NORMAL, OPACITY = 40, 14  # pictures of a site


def write_xrays(
    folder: Path, sites: int = 6, normal: int = NORMAL, opacity: int = OPACITY, side: int = 32, seed: int = 0
) -> Path:
    """Pictures of 16 bits, a folder per site and class: each site has its own exposure, opacities a bright patch."""
    rng, patch = np.random.default_rng(seed), max(1, side * 9 // 32)
    for site in range(sites):
        for label, count in (("normal", normal), ("opacity", opacity)):
            target = folder / f"site{site}" / label
            target.mkdir(parents=True)
            for number in range(count):
                picture = rng.normal(18000 + 1500 * site, 2500, (side, side))
                if label == "opacity":
                    row, column = rng.integers(side // 8, side - patch - 2, 2)
                    picture[row : row + patch, column : column + patch] += 9000
                Image.fromarray(picture.clip(0, 65535).astype(np.uint16)).save(target / f"{number}.png")
    return folder
