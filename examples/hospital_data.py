"""Three small made-up data sets with the habits of real ones: `python examples/hospital_data.py FOLDER`.

    hospitals.csv           12 hospitals of 60 to 500 patients, of whom about 12 % died: identifiers, dates, categories,
                            missing values, effects that differ a little between hospitals; two code sex and smoking in
                            their own way
    clinical_notes.parquet  short texts of eight clinics, about 30 % of them of patients to admit
    xrays/                  16-bit pictures of six sites, each with its own exposure: 40 normal ones, and 14 with a
                            brighter patch

docs/results/newcomer.md shows where the documentation leads somebody who has them. Needs pandas, pillow and pyarrow.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

HOSPITALS = (
    *("Aarau", "Bergen", "Cork", "Delft", "Evora", "Ferrara"),
    *("Gdansk", "Herne", "Ioannina", "Jena", "Kotka", "Lund"),
)
OWN_CODES = ("Cork", "Jena")
ILL = ("fever", "cough", "acute", "dyspnea", "sepsis", "pain")
WELL = ("routine", "stable", "healthy", "follow-up", "normal", "well")
FILLER = (
    *("patient", "was", "seen", "by", "the", "doctor", "on", "monday"),
    *("in", "this", "ward", "with", "a", "note", "of", "history"),
)
PICTURES = {"normal": 40, "opacity": 14}


def patients(rng: np.random.Generator, number: int, hospital: str) -> pd.DataFrame:
    """The rows of one hospital."""
    n = int(rng.integers(60, 500))
    age = rng.normal(58 + (3 * number) % 14, 15, n).clip(18, 99)
    creatinine, pressure, bmi = (
        np.exp(rng.normal(0, 0.5, n)),
        rng.normal(130 + 5 * (number % 3), 20, n),
        rng.normal(26, 4, n),
    )
    ward = rng.choice(["ICU", "ER", "Surgery", "Cardiology"], n, p=[0.2, 0.4, 0.2, 0.2])
    sex, smoker = rng.choice(["F", "M"], n), rng.choice(["yes", "no", ""], n, p=[0.2, 0.6, 0.2])
    own = rng.normal(0, 0.3, 2)
    risk = -3.2 + 0.04 * (age - 60) + 1.2 * (creatinine - 1) * (1 + own[0]) + 0.8 * (ward == "ICU")
    risk += 0.6 * (smoker == "yes")
    risk += 0.02 * (pressure - 130) * (1 + own[1]) + rng.normal(0, 0.5, n)
    died = (rng.random(n) < 1 / (1 + np.exp(-risk))).astype(int)
    bmi[rng.random(n) < 0.15], creatinine[rng.random(n) < 0.25] = np.nan, np.nan
    admitted = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 365, n), unit="D")
    if hospital in OWN_CODES:
        sex = np.where(sex == "F", "0", "1")
        smoker = np.select([smoker == "yes", smoker == "no"], ["J", "N"], "")
    columns = {
        "patient_id": [f"{hospital[:2]}-{row:04d}" for row in range(n)],
        "hospital": hospital,
        "admitted": admitted.strftime("%Y-%m-%d"),
        "age": age.round(1),
        "sex": sex,
        "bmi": bmi.round(1),
        "creatinine": creatinine.round(2),
        "pressure": pressure.round(),
        "ward": ward,
        "smoker": smoker,
        "died_30d": died,
    }
    return pd.DataFrame(columns)


def notes(rng: np.random.Generator) -> pd.DataFrame:
    """Texts with their labels and clinics."""
    rows = []
    for clinic in range(8):
        for _ in range(int(rng.integers(60, 160))):
            admit = rng.random() < 0.3
            words = [*rng.choice(FILLER, 10 + clinic), *rng.choice(ILL if admit else WELL, 3)]
            rng.shuffle(words)
            rows.append(
                {"text": " ".join(words), "label": "admit" if admit else "discharge", "client": f"clinic{clinic}"}
            )
    return pd.DataFrame(rows)


def write_xrays(rng: np.random.Generator, folder: Path) -> None:
    """A folder for each site, in it one for each class."""
    for site in range(6):
        for label, count in PICTURES.items():
            target = folder / f"site{site}" / label
            target.mkdir(parents=True)
            for number in range(count):
                picture = rng.normal(18000 + 1500 * site, 2500, (32, 32))
                if label == "opacity":
                    row, column = rng.integers(4, 20, 2)
                    picture[row : row + 9, column : column + 9] += 9000
                Image.fromarray(picture.clip(0, 65535).astype(np.uint16)).save(target / f"{number}.png")


if __name__ == "__main__":
    folder, rng = Path(sys.argv[1]), np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    tables = [patients(rng, number, hospital) for number, hospital in enumerate(HOSPITALS)]
    pd.concat(tables, ignore_index=True).to_csv(folder / "hospitals.csv", index=False)
    notes(rng).to_parquet(folder / "clinical_notes.parquet")
    write_xrays(rng, folder / "xrays")
