"""Write a raw table of hospitals and its new patients: `python hospitals.py hospitals.csv new_patients.csv`.

The table has the habits of real data: identifiers, dates, texts, empty cells and rare labels. Cork codes sex and
smoking in its own way. The second file holds twelve more patients of Cork, without a label.
"""

import csv
import sys

import numpy as np

SITES = {"Aarau": 210, "Bergen": 80, "Cork": 90, "Delft": 180, "Evora": 60, "Ferrara": 120, "Gdansk": 100, "Herne": 70}
WARDS = ("intensive care", "emergency", "surgery", "cardiology")


def patients(rng, site, count):
    """Rows of one hospital, as dicts."""
    slope = 2.5 * (1 + rng.normal(0, 0.3))  # hospitals differ a little
    for number in range(count):
        age, pressure = rng.normal(63, 15), rng.normal(132, 20)
        creatinine, ward = np.exp(rng.normal(0, 0.5)), rng.choice(WARDS, p=(0.2, 0.4, 0.2, 0.2))
        sex, smoker = rng.choice(("F", "M")), rng.choice(("yes", "no", ""), p=(0.2, 0.6, 0.2))
        risk = 0.1 * (age - 63) + slope * (creatinine - 1) + 0.06 * (pressure - 132) - 3.2
        risk += 2 * (ward == "intensive care") + 1.2 * (smoker == "yes")
        if site == "Cork":
            sex, smoker = {"F": "0", "M": "1"}[sex], {"yes": "J", "no": "N", "": ""}[smoker]
        yield {
            "patient": f"{site[:2]}-{number:04d}",
            "hospital": site,
            "admitted": np.datetime64("2024-01-01") + int(rng.integers(365)),
            "age": round(float(np.clip(age, 18, 99)), 1),
            "sex": sex,
            "creatinine": "" if rng.random() < 0.2 else round(creatinine, 2),
            "pressure": round(pressure),
            "ward": ward,
            "smoker": smoker,
            "died": int(rng.random() < 1 / (1 + np.exp(-risk))),
        }


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    table, new_patients = sys.argv[1:]
    rng = np.random.default_rng(0)
    write(table, [row for site, count in SITES.items() for row in patients(rng, site, count)])
    write(new_patients, [{**row, "died": ""} for row in patients(rng, "Cork", 12)])
