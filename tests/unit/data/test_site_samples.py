"""One site's samples by what was agreed: the same numbers, columns and splits as where all sites' files are read."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from stratafl.data import IID, Reading, from_samples, load_samples
from stratafl.data.preprocessing import Preprocessing, Scaling
from stratafl.data.sample_format import SampleFormat
from stratafl.data.site_samples import site_federation
from stratafl.data.splitting import SplitPlan
from stratafl.errors import DataError

SPLIT = SplitPlan(0.2, 0.3, seed=4)
NAMES = {"berlin": ("cat", "dog"), "lyon": ("ant", "cat"), "oslo": ("dog",)}  # classes that a site has


@pytest.fixture
def files(tmp_path):
    """A table of all sites, and one of each site with its columns in another order."""
    rng = np.random.default_rng(1)
    rows = [
        {"height": rng.normal(50, 9), "weight": rng.normal(0.1, 3), "label": rng.choice(NAMES[site]), "client": site}
        for site in rng.choice(list(NAMES), 90)
    ]
    _write(tmp_path / "all.csv", rows, ["height", "weight", "label", "client"])
    for site in NAMES:
        _write(tmp_path / f"{site}.csv", [r for r in rows if r["client"] == site], ["label", "weight", "height"])
    return tmp_path


def _write(path, rows, columns):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def pooled(files, plan=SPLIT, **reading):
    samples = load_samples(str(files / "all.csv"), Reading(**reading))
    return from_samples(samples, plan, clients=3, partition=None, fallback=IID())


def of_site(files, agreed, client, name, plan=SPLIT, **more):
    return site_federation(load_samples(str(files / f"{name}.csv")), agreed, plan, client=client, **more)


def held(federation, client, split):
    mine = federation.split(split).of(client)
    return federation.x[mine], federation.y[mine]


@pytest.mark.parametrize(
    ("normalise", "split"),
    [("auto", "stratified"), ("columns", "stratified"), ("none", "stratified"), ("none", "ordered")],
)
def test_a_site_has_the_samples_and_splits_that_a_simulation_gives_it(files, normalise, split):
    plan = replace(SPLIT, split=split)
    whole = pooled(files, plan, normalise=normalise)
    agreed = SampleFormat.of(whole)
    assert agreed.preprocessing.classes == ("ant", "cat", "dog")
    for client, name in enumerate(sorted(NAMES)):
        mine = of_site(files, agreed, client, name, plan)
        for part in ("train", "validation", "test"):
            assert len(held(mine, 0, part)[0]) > 1
            for own, simulated in zip(held(mine, 0, part), held(whole, client, part), strict=True):
                assert torch.equal(own, simulated)
        assert mine.preprocessing.of(0) == whole.preprocessing.of(client)
        assert SampleFormat.of(mine) == agreed


def test_another_client_number_is_another_split(files):
    agreed = SampleFormat.of(pooled(files))
    first, second = (of_site(files, agreed, client, "lyon") for client in (1, 2))
    assert not torch.equal(held(first, 0, "test")[0], held(second, 0, "test")[0])


def test_a_site_standardises_by_its_own_training_samples(files):
    agreed = SampleFormat.of(pooled(files))
    assert agreed.own_columns
    mine = of_site(files, agreed, 1, "lyon")
    seen = held(mine, 0, "train")[0].double()
    assert torch.allclose(seen.mean(0), torch.zeros(2).double(), atol=1e-6)
    assert torch.allclose(seen.std(0, correction=0), torch.ones(2).double(), atol=1e-5)
    assert mine.preprocessing.of(0).columns is not None
    predicts = of_site(files, agreed, 1, "lyon", trains=False)  # by all its samples, since it trains on none
    assert torch.allclose(predicts.x.double().mean(0), torch.zeros(2).double(), atol=1e-6)
    with pytest.raises(DataError, match="'empty'"):
        agreed.client({}, "empty")
    with pytest.raises(DataError, match="own"):
        replace(SampleFormat.of(pooled(files, normalise="pooled")), own_columns=True)


def test_a_site_that_does_not_train_tests_on_all_it_has(files):
    agreed = SampleFormat.of(pooled(files))
    mine = of_site(files, agreed, 3, "oslo", trains=False)
    counts = {split: int(mine.counts(split)) for split in ("train", "validation", "test")}
    assert counts["train"] == counts["validation"] == 0 < counts["test"]


def test_what_was_not_agreed_on_is_refused(files):
    agreed = SampleFormat.of(pooled(files))
    fewer = replace(agreed, classes=2, preprocessing=replace(agreed.preprocessing, classes=("ant", "cat")))
    with pytest.raises(DataError, match=r"class 'dog'.*ant, cat"):
        of_site(files, fewer, 0, "berlin")
    with pytest.raises(DataError, match=r"'berlin'.*'age'.*height, age"):
        of_site(files, replace(agreed, columns=("height", "age")), 0, "berlin")
    one = replace(agreed, columns=("height",), preprocessing=replace(agreed.preprocessing, shape=(1,)))
    with pytest.raises(DataError, match=r"'berlin'.*'weight'"):
        of_site(files, one, 0, "berlin")
    with pytest.raises(DataError, match=r"'all'.*'berlin'.*'lyon'.*'oslo'"):
        of_site(files, agreed, 0, "all")


def test_whole_numbers_are_no_classes_where_numbers_are_predicted(tmp_path):
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((40, 3)), np.round(rng.normal(5, 2, 40), 1)
    y[20:] = np.round(y[20:])  # a site that has whole numbers alone
    np.savez(tmp_path / "all.npz", x=x, y=y, client=np.arange(40) // 20)
    np.savez(tmp_path / "own.npz", x=x[20:], y=y[20:])
    whole = load_samples(str(tmp_path / "all.npz"), Reading(targets="scaled"))
    simulated = from_samples(whole, SPLIT, clients=2, partition=None, fallback=IID())
    own = load_samples(str(tmp_path / "own.npz"))
    assert own.names is not None
    mine = site_federation(own, SampleFormat.of(simulated), SPLIT, client=1)
    for split in ("train", "test"):
        for here, there in zip(held(mine, 0, split), held(simulated, 1, split), strict=True):
            assert torch.equal(here, there)
    labelled = replace(own, names=("a", "b"), y=own.y % 2)
    with pytest.raises(DataError, match=r"'own'.*'a'.*'b'"):
        site_federation(labelled, SampleFormat.of(simulated), SPLIT, client=1)


def test_classes_without_names_are_the_numbers_that_a_site_has():
    agreed = SampleFormat(Preprocessing("float32", (2,)), 10)
    samples = load_like(np.zeros((6, 2), np.float32), np.array([0, 1, 1, 0, 1, 0]), ("3", "7"))
    mine = site_federation(samples, agreed, SplitPlan(test=0.5), client=0)
    assert sorted(set(mine.y.tolist())) == [3, 7]


def load_like(x, y, names):
    from stratafl.data import Samples

    return Samples(x, y, len(names), names, name="own")


def test_pixels_stay_bytes_and_are_scaled_as_agreed():
    agreed = SampleFormat(Preprocessing("uint8", (1, 2, 2), Scaling((0.5,), (0.25,))), 2)
    x = np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2)
    mine = agreed.client({"train": (x, np.array([0, 1, 1]))}, "own")
    assert mine.x.dtype == agreed.kept == torch.uint8
    assert torch.allclose(mine.inputs(mine.x[:1], torch.float32).flatten(), (torch.arange(4) / 255 - 0.5) / 0.25)
    with pytest.raises(DataError, match=r"0.*255"):
        agreed.client({"train": (x / 255, np.array([0, 1, 1]))}, "own")


def test_a_format_goes_to_a_table_and_back(files):
    for agreed in (
        SampleFormat.of(pooled(files, normalise="columns")),
        SampleFormat(Preprocessing("uint8", (1, 2, 2), Scaling((0.5,), (0.25,))), None, (3,), torch.float64),
        SampleFormat(Preprocessing("int64", (7,)), 4, own_columns=True),
    ):
        table = agreed.to_table()
        assert SampleFormat.from_table(json.loads(json.dumps(table))) == agreed
        for wrong in ({"classes": 0}, {"dtype": "int64"}, {"own_columns": 1}, {"columns": [3]}, {"more": 1}):
            with pytest.raises(ValueError, match=r"its|it needs"):
                SampleFormat.from_table({**table, **wrong})


def test_without_samples_there_are_zeros_of_the_format():
    agreed = SampleFormat(Preprocessing("int64", (7,)), None, (2,), torch.float64)
    nobody = agreed.client({})
    assert (len(nobody.x), nobody.clients, nobody.x.dtype, nobody.y.dtype) == (0, 1, torch.int64, torch.float64)
    assert [tuple(x.shape) for x in agreed.zeros(2)] == [(2, 7), (2, 2)]
