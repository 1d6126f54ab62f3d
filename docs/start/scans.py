"""Write 16-bit images of four clinics: `python scans.py scans`. A folder per clinic, in it a folder per class.

Each clinic has its own exposure. An opacity is a bright patch. `new.png` is one more image, of the last clinic.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

CLINICS, COUNTS, SIDE, PATCH = ("Basel", "Bern", "Chur", "Thun"), {"normal": 40, "opacity": 25}, 28, 7


def scan(rng, clinic, label):
    picture = rng.normal(16_000 + 3_000 * clinic, 2_500, (SIDE, SIDE))
    if label == "opacity":
        row, column = rng.integers(2, SIDE - PATCH - 2, 2)
        picture[row : row + PATCH, column : column + PATCH] += 7_000
    return Image.fromarray(picture.clip(0, 65_535).astype(np.uint16))


if __name__ == "__main__":
    folder, rng = Path(sys.argv[1]), np.random.default_rng(0)
    for number, clinic in enumerate(CLINICS):
        for label, count in COUNTS.items():
            target = folder / clinic / label
            target.mkdir(parents=True)
            for i in range(count):
                scan(rng, number, label).save(target / f"{i:02d}.png")
    scan(rng, 3, "opacity").save("new.png")
