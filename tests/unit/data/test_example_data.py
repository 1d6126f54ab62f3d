"""The scripts in examples/ that write data with natural clients, on a few lines of each source."""

import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stratafl.data import load_samples

PLAY = """ACT I.

Scene I. A room.

[Enter A and B.]

ANN.
Who is [aside] there?
Speak.

BEN
Nobody,
 I say.

A line without a speaker goes on.

ANN.
Then sing.
"""


@pytest.fixture(params=["shakespeare", "movielens"])
def example(request, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    return importlib.import_module(f"examples.{request.param}")


@pytest.mark.parametrize("example", ["shakespeare"], indirect=True)
def test_roles_of_plays_and_the_character_after_each_window(example, monkeypatch, tmp_path):
    said = [("ANN", "Who is there? Speak."), ("BEN", "Nobody, I say."), ("ANN", "Then sing.")]
    assert list(example.speeches(PLAY)) == said
    for name, value in {"FEWEST": 15, "LENGTH": 4, "STEP": 10}.items():
        monkeypatch.setattr(example, name, value)
    texts = example.roles({"hamlet": PLAY, "lear": PLAY.replace("BEN", "CEM").replace(" I say", " I do say it")})
    assert texts["hamlet, ANN"] == "Who is there? Speak. Then sing."
    assert set(texts) == {"hamlet, ANN", "lear, ANN", "lear, CEM"}  # BEN says 14 characters
    arrays = example.samples(texts)
    characters = sorted({*"".join(texts.values())})
    pairs = [
        ("".join(characters[n - 1] for n in x), characters[y - 1])
        for x, y in zip(arrays["x"], arrays["y"], strict=True)
    ]
    assert pairs[:3] == [("Who ", "i"), ("re? ", "S"), (" The", "n")]
    np.savez(tmp_path / "roles.npz", **arrays)
    found = load_samples(str(tmp_path / "roles.npz"))
    assert found.x.dtype.kind == "i"  # tokens
    assert found.owner.tolist() == ["hamlet, ANN"] * 3 + ["lear, ANN"] * 3 + ["lear, CEM"] * 2


@pytest.mark.parametrize("example", ["movielens"], indirect=True)
def test_ratings_of_people_with_60_to_290_of_them_in_the_order_of_time(example, monkeypatch, tmp_path):
    monkeypatch.setattr(example, "FEWEST", 2)
    monkeypatch.setattr(example, "MOST", 3)
    rows = [  # the third has a single rating, the fourth four
        (1, 4.5, 20, "Comedy|Drama"), (1, 0.5, 10, "Drama"), (2, 3.0, 5, "(no genres listed)"), (2, 2.5, 6, "Comedy"),
        (3, 5.0, 1, "Drama"), *[(4, 1.0, at, "Drama") for at in range(4)],
    ]  # fmt: skip
    ratings = pd.DataFrame(rows, columns=["userId", "rating", "timestamp", "genres"]).assign(year=1990.0)
    example.table_of(ratings).to_csv(tmp_path / "films.csv", index=False)
    found = load_samples(str(tmp_path / "films.csv"))
    assert found.columns == ("year", "Comedy", "Drama")
    assert found.x.tolist() == [[1990, 0, 1], [1990, 1, 1], [1990, 0, 0], [1990, 1, 0]]
    assert [found.names[label] for label in found.y] == ["1", "5", "3", "3"]  # half stars are rounded up
    assert found.owner.tolist() == ["person001"] * 2 + ["person002"] * 2
