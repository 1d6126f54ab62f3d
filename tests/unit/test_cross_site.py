"""Cross-site evaluation: every client's model on every client's test samples."""

import numpy as np
import pytest
import torch
from torch import nn

import stratafl
from stratafl.algorithms import local
from stratafl.errors import DataError, UnknownNameError
from stratafl.evaluation.cross_site import CrossSite, cross_site_from
from stratafl.policies import LocalTraining

X = np.array([[-2.0], [-1.0], [1.0], [2.0]] * 3, np.float32)
RISING, FALLING, ALWAYS = (X[:, 0] > 0).astype(int), (X[:, 0] < 0).astype(int), np.ones(len(X), int)


def client(y, test_x, test_y):
    return {"train": (X, y), "test": (np.array(test_x, np.float32)[:, None], np.array(test_y))}


@pytest.fixture(scope="module")
def fitted():
    clients = {
        "rising": client(RISING, [1, 2, -1], [1, 1, 0]),
        "falling": client(FALLING, [1, -1, -2], [0, 1, 1]),
        "always": client(ALWAYS, [1, 2, -1, 3], [1, 1, 1, 1]),
    }
    method = local(train=LocalTraining(lr=1.0, epochs=5))
    return stratafl.fit(method, clients, lambda: nn.Linear(1, 2), rounds=3, normalise="none")


def test_the_table_by_hand(fitted):
    # The first model says 1 where x > 0, the second where x < 0, and the third always: so the third is right for two of
    # three samples of the others, and on its samples, three of four above 0, the others are right for 3/4 and for 1/4.
    by_hand = [[1, 0, 3 / 4], [0, 1, 1 / 4], [2 / 3, 2 / 3, 1]]
    table = fitted.cross_site("accuracy")
    assert table.values.tolist() == [pytest.approx(row) for row in by_hand]
    assert table.to_pandas().loc["always", "falling"] == pytest.approx(2 / 3)
    assert "<svg" in table._repr_html_()
    some = fitted.cross_site("accuracy", clients=["always", "rising"])
    assert some.values.tolist() == [pytest.approx([1, 2 / 3]), pytest.approx([3 / 4, 1])]


def test_the_diagonal_is_the_clients_own_score_and_a_metric_may_be_undefined(fitted):
    assert fitted.cross_site("accuracy").values.diag().tolist() == [
        fitted.client(i).metric("accuracy") for i in range(3)
    ]
    undefined = fitted.cross_site("auroc").values.isnan()  # the third client has one class
    assert undefined[:, 2].all()
    assert not undefined[:, :2].any()


def test_a_table_is_read_as_it_was_written():
    table = CrossSite("auroc", "test", ("a", "b"), torch.tensor([[0.5, torch.nan], [1.0, 0.25]], dtype=torch.float64))
    again = cross_site_from(table.to_table())
    assert again.names == ("a", "b")
    assert torch.equal(again.values.nan_to_num(7), table.values.nan_to_num(7))
    with pytest.raises(DataError):
        cross_site_from({**table.to_table(), "names": ["a"]})


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"metric": "acuracy"}, UnknownNameError),
        ({"metric": "mae"}, DataError),
        ({"split": "train"}, UnknownNameError),
        ({"clients": []}, DataError),
        ({"clients": [0, "rising"]}, DataError),
        ({"clients": ["risin"]}, UnknownNameError),
    ],
)
def test_what_has_no_table_is_refused(fitted, asked, error):
    with pytest.raises(error):
        fitted.cross_site(**asked)
