"""Columns of DataFrames are taken by name: their order means nothing, and a missing one is refused by its name."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stratafl
from stratafl.algorithms import fedavg
from stratafl.data import from_clients
from stratafl.data.builders import federate, from_splits
from stratafl.errors import DataError
from stratafl.policies import LocalTraining

NAMES = ("age", "mg/dl", "2")
REVERSED = NAMES[::-1]


class Frame:
    """What we use of a DataFrame."""

    def __init__(self, values: Any, columns: Sequence[Any]) -> None:
        self._values, self._columns = np.asarray(values), list(columns)

    @property
    def columns(self) -> list[Any]:
        return self._columns

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, columns: Any) -> Any:
        if isinstance(columns, str):
            return self._values[:, self._columns.index(columns)]
        return Frame(self._values[:, [self._columns.index(each) for each in columns]], columns)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._values, dtype)


def arrays(clients: int = 2, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    xs = [rng.normal(size=(20, 3)).astype(np.float32) for _ in range(clients)]
    return [(x, (x[:, 0] > 0).astype(int)) for x in xs]


def frames(orders: Sequence[Sequence[str]] = (NAMES, REVERSED)) -> list[tuple[Frame, np.ndarray]]:
    """The same samples, each client's in an order of its own."""
    return [(Frame(x, NAMES)[order], y) for (x, y), order in zip(arrays(), orders, strict=True)]


def test_a_federation_of_tables_is_that_of_arrays_in_one_order():
    plain = from_clients(arrays())
    for made in (from_clients(frames()), from_splits([{"train": pair} for pair in frames()])):
        assert torch.equal(made.x, plain.x)
        assert made.column_names == NAMES
    assert from_clients(frames((REVERSED, NAMES))).column_names == REVERSED
    assert plain.column_names == ()
    x, y = frames()[0]
    assert federate(x, y, [range(10), range(10, 20)]).column_names == NAMES


def test_a_table_and_an_array_go_together_by_position():
    (frame, y), (x, z) = frames()[0], arrays()[1]
    assert torch.equal(
        from_clients([(x, z), (frame, y)]).x, torch.cat([torch.tensor(x), torch.tensor(np.array(frame))])
    )


@pytest.mark.parametrize("columns", [("age", "mg/dl", "3"), ("age", "mg/dl")])
@pytest.mark.parametrize("first", [True, False])
def test_a_column_that_a_client_lacks_is_refused_by_its_name(columns, first):
    (frame, y), (x, z) = frames()[0], arrays()[1]
    other = (Frame(x[:, : len(columns)], columns), z)
    with pytest.raises(DataError, match=r"client \d.*'[23]'"):
        from_clients([(frame, y), other] if first else [other, (frame, y)])


def test_two_columns_of_one_name_are_refused_where_names_matter():
    (frame, y), (x, z) = frames()[0], arrays()[1]
    with pytest.raises(DataError, match=r"client 1 .*'age'"):
        from_clients([(frame, y), (Frame(x, ("age", "age", "2")), z)])


def test_columns_that_are_only_numbered_are_taken_by_position():
    (x, y), (_, z) = arrays()
    assert from_clients([(Frame(x, range(3)), y), (Frame(x, NAMES), z)]).column_names == NAMES
    assert from_clients([(Frame(x, range(3)), y)]).column_names == ()


def test_targets_of_several_columns_are_taken_by_name_and_a_single_one_has_any_name():
    (x, _), (x2, _) = arrays()
    y = np.random.default_rng(1).normal(size=(20, 2))
    named = Frame(y, ("a", "b"))
    assert torch.equal(from_clients([(x, named), (x2, named[["b", "a"]])]).y, from_clients([(x, y), (x2, y)]).y)
    with pytest.raises(DataError, match=r"y of client 1 .*'c'"):
        from_clients([(x, named), (x2, Frame(y, ("a", "c")))])
    single = from_clients([(x, Frame(y[:, :1], ["y"])), (x2, Frame(y[:, :1], ["target"]))])
    assert single.y.shape == (40, 1)


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(0)
    return stratafl.fit(
        fedavg(train=LocalTraining(lr=0.1)), frames(), nn.Sequential(nn.Linear(3, 2)), rounds=1, validation=0
    )


def test_outputs_do_not_depend_on_the_order_of_columns(fitted):
    x = Frame(arrays()[0][0], NAMES)
    more = Frame(np.hstack([np.array(x), np.full((20, 1), 9.0)]), [*NAMES, "label"])
    outputs = fitted.client(0).outputs(x)
    assert torch.equal(fitted.client(0).outputs(np.array(x)), outputs)
    for other in (x[REVERSED], more, more[["label", *REVERSED]]):
        assert torch.equal(fitted.client(0).outputs(other), outputs)
        assert torch.equal(fitted.client(0).predict(other), outputs.argmax(-1))


def test_a_column_that_is_missing_in_a_prediction_is_named(fitted):
    x = arrays()[0][0]
    with pytest.raises(DataError, match=r"'mg/dl'"):
        fitted.client(0).outputs(Frame(x, ("age", "mg", "2")))
    with pytest.raises(DataError, match=r"2 columns \('age', '2'\)"):
        fitted.client(0).predict(Frame(x[:, :1], ["mg/dl"]))


@pytest.mark.budget(2, "imports pandas")
def test_data_frames_of_pandas_and_tables_of_pyarrow(fitted):
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    x = arrays()[0][0]
    frame = pandas.DataFrame(x, columns=list(NAMES)).assign(columns="text", column_names="text")
    outputs = fitted.client(0).outputs(x)
    for table in (frame, frame[list(frame)[::-1]], pyarrow.Table.from_pandas(frame)):
        assert torch.equal(fitted.client(0).outputs(table), outputs)
    assert torch.equal(fitted.client(0).outputs(pandas.DataFrame(x)), outputs)  # whose columns are numbered
    with pytest.raises(DataError, match="'age'"):
        fitted.client(0).outputs(frame.drop(columns="age"))


def test_frames_of_more_than_numbers_are_encoded_and_rows_predicted_as_they_are():
    rng, clients = np.random.default_rng(0), {}
    for name in ("Basel", "Bern"):
        age = rng.normal(60, 10, 40)
        cells = [[None if i % 7 == 0 else age[i], "ICU" if i % 3 else "ER", f"{name}{i}"] for i in range(40)]
        frame = Frame(np.array(cells, object), ("age", "ward", "id"))
        clients[name] = (frame, np.where(age > 60, "old", "young"))
    fitted = stratafl.fit(fedavg(), clients, lambda shape, classes: nn.Linear(shape[0], classes), rounds=1)
    table = fitted.sim.runtime.federation.table
    assert table.inputs == ("age", "age missing", "ward=ER", "ward=ICU", "ward=other")
    bern, frame = fitted.client("Bern"), clients["Bern"][0]
    assert torch.equal(bern.outputs(frame), bern.outputs(frame[["ward", "age"]]))
    with pytest.raises(DataError, match="'ward'"):
        bern.predict(frame[["age"]])
