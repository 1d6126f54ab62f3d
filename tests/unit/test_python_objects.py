"""Clients with names, labels with names, torch's datasets and a person's own splits, as Python has them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import stratafl
from stratafl.algorithms import fedper
from stratafl.data import from_clients, from_splits
from stratafl.data.builders import with_scaled_pixels
from stratafl.errors import DataError, RecordError, UnknownNameError
from stratafl.evaluation.metrics import METRICS

NAMES = ("Basel", "Bern", "Chur")
CLASSES = np.array(["benign", "malignant", "unclear"])


class Pairs(Dataset):
    """A dataset of a person's own."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        return self.items[place]


def arrays(count=16, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((count, 4)).astype(np.float32), np.arange(count) % 3) for _ in NAMES]


def model():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def fitted_on(clients, **options):
    return stratafl.fit(fedper(), clients, model, rounds=2, normalise="none", **options)


@pytest.fixture(scope="module")
def numbered():
    return fitted_on(arrays())


@pytest.fixture(scope="module")
def named():
    return fitted_on({name: (x, CLASSES[y]) for name, (x, y) in zip(NAMES, arrays(), strict=True)})


X = arrays(5, seed=3)[0][0]


def test_names_of_clients_and_classes_change_no_number(numbered, named):
    assert (named.client_names, named.classes) == (NAMES, tuple(CLASSES))
    assert (numbered.client_names, numbered.classes) == (("0", "1", "2"), ("0", "1", "2"))
    for number, name in enumerate(NAMES):
        for client in (number, name):
            assert torch.equal(named.client(client).outputs(X), numbered.client(number).outputs(X))
            with pytest.warns(DeprecationWarning, match="client"):
                assert torch.equal(named.predict(client, X), numbered.predict(number, X))
        assert named.metric("accuracy", client=name) == numbered.metric("accuracy", client=number)
        assert torch.equal(named.confusion(name), numbered.confusion(number))


def test_forms_with_the_client_first_work_and_are_deprecated(named, tmp_path):
    bern = named.client("Bern")
    for old, new in (
        (lambda: named.outputs(1, X), bern.outputs(X)),
        (lambda: named.predictor(1)(torch.from_numpy(X)), bern.outputs(X)),
        (lambda: named.model(1).state_dict()["0.weight"], bern.state["0.weight"]),
        (lambda: named.export(1, tmp_path / "bern.safetensors"), tmp_path / "bern.safetensors"),
    ):
        with pytest.warns(DeprecationWarning, match="client") as warned:
            given = old()
        assert len(warned) == 1
        assert torch.equal(given, new) if isinstance(new, torch.Tensor) else given == new


def test_a_client_is_an_object(named, numbered, tmp_path):
    bern, second = named.client("Bern"), numbered.client(1)
    assert (bern.number, bern.name, second.name) == (1, "Bern", "1")
    logits = bern.outputs(X)
    assert bern.predict(X).tolist() == CLASSES[logits.argmax(1).numpy()].tolist()
    assert torch.equal(second.predict(X), logits.argmax(1))
    exponentials = logits.exp()
    assert torch.allclose(bern.predict_proba(X), exponentials / exponentials.sum(1, keepdim=True))
    with torch.no_grad():
        assert torch.equal(bern.model(torch.from_numpy(X)), logits)
        assert torch.equal(bern.predictor(torch.from_numpy(X)), logits)
    assert bern.metric("accuracy") == named.metric("accuracy", client=1)
    assert torch.equal(bern.confusion(), named.confusion(1))
    assert bern.export(tmp_path / "bern.safetensors").exists()


def test_a_regression_has_no_probabilities():
    rng = np.random.default_rng(0)
    clients = {name: (rng.standard_normal((12, 4)), rng.standard_normal(12)) for name in NAMES}
    fitted = stratafl.fit(fedper(), clients, nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1), nn.Flatten(0)), rounds=1)
    chur = fitted.client("Chur")
    assert torch.equal(chur.predict(X), chur.outputs(X))
    with pytest.raises(DataError, match="predict"):
        chur.predict_proba(X)


@pytest.mark.parametrize("client", ["basel", "3", 3, -1, 1.0, None, True])
def test_a_client_that_is_not_there_is_refused(named, client):
    with pytest.raises((DataError, UnknownNameError)) as error:
        named.client(client)
    assert str(client) in str(error.value)


def test_numbers_of_numpy_and_torch_are_numbers(named):
    assert [named.client(number).name for number in (np.int64(1), torch.tensor(2))] == ["Bern", "Chur"]


def test_a_number_that_is_the_name_of_another_client_is_refused(tmp_path):
    fitted = fitted_on(dict(enumerate(arrays(), 1)))  # client(1) would be the second one
    for number in (1, 2, 3):
        with pytest.raises(DataError, match=f"client number {number - 1}"):
            fitted.client(number)
    assert (fitted.client(0).name, fitted.client("2").number) == ("1", 1)
    assert fitted.client("2").metric("accuracy") == fitted.predictions().of(1).value(METRICS["accuracy"])
    assert fitted.add_client("2020", *arrays(seed=4)[0]).name == "2020"
    assert torch.equal(
        stratafl.load(fitted.save(tmp_path / "saved")).client("3").outputs(X), fitted.client("3").outputs(X)
    )


@pytest.mark.parametrize(
    "option",
    [
        {"evaluate_every": "2"},
        {"evaluate_every": 1.5},
        {"seed": "a"},
        {"seed": -1},
        {"new_clients": "x"},
        {"metric": 3},
    ],
)
def test_an_option_of_the_wrong_kind_is_one_line(option):
    with pytest.raises(RecordError, match=next(iter(option))):
        fitted_on(arrays(), **option)


def test_the_guard_takes_names(named):
    guarded = named.guard(epochs=1)
    by_name, by_number = (guarded.model(client).state_dict() for client in ("Chur", 2))
    assert all(torch.equal(x, by_number[name]) for name, x in by_name.items())
    with pytest.raises(UnknownNameError, match="Chur"):
        guarded.model("Churr")


def test_without_names_the_number_is_the_name(numbered):
    assert numbered.client("1").number == 1


def test_datasets_and_loaders_are_the_arrays_that_they_give():
    plain = from_clients(arrays(), seed=2)
    tensors = [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in arrays()]
    items = [Pairs(list(zip(torch.from_numpy(x), y.tolist(), strict=True))) for x, y in arrays()]
    loaders = [DataLoader(each, batch_size=5, shuffle=True) for each in tensors]
    for clients in (tensors, items, loaders):
        federation = from_clients(clients, seed=2)
        assert torch.equal(federation.x, plain.x)
        assert torch.equal(federation.y, plain.y)
        assert all(torch.equal(federation.splits[s].indices, plain.splits[s].indices) for s in plain.splits)


def test_labels_of_all_clients_are_numbered_together():
    x = np.zeros((2, 4), np.float32)
    clients = {"a": (x, ["late", "early"]), "b": (x, np.array(["10", "9"], object)), "c": (x, [b"early", b"9"])}
    federation = from_clients(clients, test=0.0)
    assert federation.class_names == ("9", "10", "early", "late")
    assert federation.y.tolist() == [3, 2, 1, 0, 2, 0]


def test_splits_of_a_persons_own_stay_as_they_are():
    (x, y), *_ = arrays()
    parts = {"train": (x[:8], CLASSES[y[:8]]), "test": TensorDataset(torch.from_numpy(x[8:]), torch.from_numpy(y[8:]))}
    with pytest.raises(DataError):  # names in one split and numbers in another
        from_splits({"a": parts})
    parts["test"] = (x[8:], CLASSES[y[8:]])
    federation = from_splits({"a": parts, "b": {"train": (x, CLASSES[y])}})
    assert federation.client_names == ("a", "b")
    assert [federation.counts(split).tolist() for split in ("train", "validation", "test")] == [[8, 16], [0, 0], [8, 0]]
    fitted = fitted_on({"a": parts, "b": {"train": (x, CLASSES[y])}})
    assert torch.equal(fitted.sim.runtime.federation.splits["train"].indices, federation.splits["train"].indices)
    assert fitted.round == 2  # without validation samples the last one


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


ONE = np.zeros((3, 4), np.float32)
WRONG = {
    "a generator": ({"a": (ONE, [0, 1, 0]), "b": iter([])}, "client 'b' is a list_iterator"),
    "a stream": ([Stream()], "client 0 is a Stream"),
    "samples without labels": ([Pairs([np.zeros(4), np.ones(4)])], "sample 0 of client 0 is a ndarray"),
    "samples of two shapes": ([Pairs([(np.zeros(4), 0), (np.zeros(3), 1)])], "the samples of client 0 differ in shape"),
    "an empty dataset": ({"a": Pairs([])}, "client 'a' has no data"),
    "names and numbers": ([(ONE, ["a", "b", "a"]), (ONE, [0, 1, 0])], "neither numbers nor names"),
    "a label that is missing": ([(ONE, np.array(["a", None, "b"], object))], "None in row 2"),
    "two clients of one name": ({1: (ONE, [0, 1, 0]), "1": (ONE, [0, 1, 0])}, "named '1'"),
    "no client": ({}, "0 clients"),
    "a split of another name": ({"a": {"train": (ONE, [0, 1, 0]), "dev": (ONE, [0, 1, 0])}}, "'dev'"),
    "no training samples": ({"a": {"test": (ONE, [0, 1, 0])}}, "client 'a' has no training sample"),
    "splits and pairs": ({"a": {"train": (ONE, [0, 1, 0])}, "b": (ONE, [0, 1, 0])}, "client 'b' is a tuple"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_taken_is_one_line(name):
    clients, values = WRONG[name]
    with pytest.raises((DataError, UnknownNameError)) as error:
        fitted_on(clients)
    assert values in str(error.value)
    assert "\n" not in str(error.value)


def test_images_of_bytes_are_scaled_as_files_are_and_by_predict_too():
    rng = np.random.default_rng(0)
    pixels, y = rng.integers(0, 256, (24, 1, 3, 3), dtype=np.uint8), np.arange(24) % 2
    scaled = (pixels / 127.5 - 1).astype(np.float32)
    network = nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
    of_bytes, of_numbers, as_bytes = (
        stratafl.fit(fedper(), [(x, y), (x, y)], network, rounds=2, normalise=normalise)
        for x, normalise in ((pixels, "auto"), (scaled, "auto"), (pixels, "none"))
    )
    answers = of_bytes.client(0).outputs(pixels)
    torch.testing.assert_close(answers, of_numbers.client(0).outputs(scaled), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(answers, as_bytes.client(0).outputs(pixels))
    with pytest.raises(DataError, match="uint8"):
        of_numbers.client(0).predict(pixels)  # how the floats were scaled is not known


def test_masks_of_zeros_and_ones_stay_what_they_are():
    masks = (np.random.default_rng(0).random((24, 1, 3, 3)) < 0.5).astype(np.uint8)
    federation = with_scaled_pixels(from_clients([(masks, np.arange(24) % 2)]))
    assert federation.scaling is None
