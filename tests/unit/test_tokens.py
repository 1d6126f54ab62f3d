"""Tokens that a model's embedding table does not have are refused before the first round, and in a prediction."""

import numpy as np
import pytest
import torch
from torch import nn

import stratafl
from stratafl.algorithms import fedavg
from stratafl.errors import DataError
from stratafl.execute.tokens import check_given, table_size
from stratafl.models import build


def texts(highest: int, lowest: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Two clients with eight texts of three tokens; the second has one with these tokens."""
    clients = [(np.full((8, 3), 1, dtype=np.int64), np.arange(8) % 2) for _ in range(2)]
    clients[1][0][5] = (lowest, 1, highest)
    return clients


def model() -> nn.Module:
    return build("embedding", shape=(3,), classes=2, vocabulary=10, width=2)


@pytest.mark.parametrize(("tokens", "wrong"), [((10, 0), 10), ((9, -1), -1), ((10**12, 0), 10**12)])
def test_a_token_outside_of_the_table_is_one_line_with_client_and_range(tokens, wrong):
    with pytest.raises(DataError, match=f"client '1' .*token {wrong}, .*0 to 9"):
        stratafl.fit(fedavg(), texts(*tokens), model(), rounds=1, validation=0)


def test_tokens_at_both_ends_of_the_table_are_taken_and_others_are_not_predicted():
    fitted = stratafl.fit(fedavg(), texts(9), model(), rounds=1, validation=0)
    assert fitted.client(0).predict(np.array([[0, 9, 1]])).shape == (1,)
    with pytest.raises(DataError, match=r"sample 1 .*token 10, .*0 to 9"):
        fitted.client(0).predict(np.array([[0, 9, 1], [0, 10, 99]]))


class Columns(nn.Module):
    """Looks each column up in a table of its own, which says nothing about the others."""

    def __init__(self) -> None:
        super().__init__()
        self.few, self.many = nn.Embedding(2, 2), nn.Embedding(50, 2)

    def forward(self, x):
        return self.few(x[:, 0]) + self.many(x[:, 1])


def test_only_a_table_that_takes_whole_samples_bounds_them():
    assert table_size(Columns(), (2,), torch.int64) is None
    assert table_size(model(), (3,), torch.int64) == 10
    assert table_size(model(), (3,), torch.float32) is None
    assert table_size(nn.Linear(3, 2), (3,), torch.int64) is None
    with pytest.raises(DataError, match=r"\b1\b.*\b10\b.*\b9\b"):
        check_given(model(), torch.tensor([[0, 9, 1], [3, 10, 11]]))
    check_given(model(), torch.tensor([[0, 9, 1]]))


class Bert(nn.Module):
    """The tables of BERT: of words, of positions, and of two token types."""

    def __init__(self, positions: int = 4, width: int = 2) -> None:
        super().__init__()
        self.words, self.positions, self.types = (nn.Embedding(rows, width) for rows in (30, positions, 2))
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        places = torch.arange(x.shape[1]).expand_as(x)
        return self.head((self.words(input=x) + self.positions(places) + self.types(torch.zeros_like(x))).mean(1))


@pytest.mark.parametrize("length", [1, 3, 4])
def test_tables_of_positions_and_token_types_do_not_bound_tokens(length):
    assert table_size(Bert(), (length,), torch.int64) == 30
    assert table_size(Bert(), (length,), torch.int32) == 30


def test_a_model_with_the_tables_of_bert_is_trained_and_predicts():
    fitted = stratafl.fit(fedavg(), texts(29), Bert, rounds=1, validation=0)
    assert fitted.client(0).predict(np.array([[0, 29, 1]])).shape == (1,)
    with pytest.raises(DataError, match=r"sample 0 .*token 30, .*0 to 29"):
        fitted.client(0).predict(np.array([[0, 30, 1]]))
    with pytest.raises(DataError, match=r"client '1' .*token 30, .*0 to 29"):
        stratafl.fit(fedavg(), texts(30), Bert, rounds=1, validation=0)


class Shifted(Bert):
    """Looks up the token after each, of which its table says nothing to us."""

    def forward(self, x):
        return super().forward(x + 1)


def test_a_table_that_takes_something_made_of_tokens_does_not_bound_them():
    assert table_size(Shifted(), (3,), torch.int64) is None
