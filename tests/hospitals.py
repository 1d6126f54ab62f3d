"""Hospitals with the habits of real ones: small files as their sites would have them.

`patients` draws a table in which one death in eight is to be predicted, and `write_patients` writes it as a csv that
`strata run --data` takes: the client is in the column `hospital`, the label in `died`. Columns have very different
scales, risks differ a little between hospitals, and hospitals are small, so that most gain from the others.
"""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

NORMAL, OPACITY = 40, 14  # pictures of a site
HOSPITALS = ("Arles", "Bath", "Celje", "Dole", "Esbjerg", "Faro", "Genk", "Hamar", "Imola", "Jena", "Kassel", "Leiden")
WARDS = ("intensive", "emergency", "surgery", "heart")
Patients = dict[str, NDArray[np.generic]]  # by column


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


def patients(
    seed: int = 0, hospitals: int = 12, smallest: int = 60, largest: int = 500, differ: float = 0.3
) -> Patients:
    """The patients of all hospitals; `differ` is how much the risks of a hospital differ from the others'."""
    rng = np.random.default_rng(seed)
    parts = [
        _of_hospital(rng, HOSPITALS[i], int(rng.integers(smallest, largest)), 4 * (i % 4), differ)
        for i in range(hospitals)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def write_patients(path: Path, columns: Patients) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    return path


def _of_hospital(rng: np.random.Generator, name: str, count: int, older: float, differ: float) -> Patients:
    age = rng.normal(57 + older, 15, count).clip(18, 99).round(1)
    kidneys, pressure, weight = rng.lognormal(0, 0.5, count), rng.normal(132, 20, count), rng.normal(27, 4, count)
    ward, smokes = rng.integers(0, len(WARDS), count), rng.random(count) < 0.2
    of_kidneys, of_pressure = 1 + rng.normal(0, differ, 2)
    risk = 0.04 * (age - 60) + 1.2 * of_kidneys * (kidneys - 1) + 0.02 * of_pressure * (pressure - 130)
    risk += 0.8 * (ward == 0) + 0.6 * smokes + rng.normal(0, 0.5, count)
    died = rng.random(count) < 1 / (1 + np.exp(3.2 - risk))
    return {
        "hospital": np.full(count, name),
        "day": rng.integers(0, 365, count),
        "age": age,
        "weight": weight.round(1),
        "kidneys": kidneys.round(2),
        "pressure": pressure.round(),
        "smokes": smokes.astype(int),
        **{f"ward_{each}": (ward == number).astype(int) for number, each in enumerate(WARDS)},
        "died": died.astype(int),
    }
