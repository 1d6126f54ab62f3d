"""Errors: one sentence with what was given, the nearest match and what exists."""

import pytest

from stratafl import errors
from stratafl.errors import ContractError, DataError, PartitionError, StrataError, UnknownNameError, unknown

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_a_strata_error_with_exit_code_2(cls):
    assert issubclass(cls, StrataError)
    assert cls.exit_code == 2
    assert cls.__doc__


def test_a_partition_error_is_a_data_error():
    assert issubclass(PartitionError, DataError)


def test_a_contract_error_names_its_law():
    error = ContractError("purity", "fold")
    assert error.law == "purity"
    assert str(error) == "law 'purity': fold"


@pytest.mark.parametrize(
    ("given", "existing", "sentence"),
    [
        ("conv11", ["conv1", "fc"], "unknown layer 'conv11'; did you mean 'conv1'? Choose one of: conv1, fc"),
        ("xyz", ["conv1", "fc"], "unknown layer 'xyz'; choose one of: conv1, fc"),
        ("xyz", [], "unknown layer 'xyz'; there is none"),
    ],
)
def test_the_sentence_for_an_unknown_name(given, existing, sentence):
    error = unknown("layer", given, existing)
    assert isinstance(error, UnknownNameError)
    assert str(error) == sentence


@pytest.mark.parametrize(("count", "cut"), [(60, False), (61, True)])
def test_long_lists_are_cut(count, cut):
    message = str(unknown("layer", "?", [f"layer{i}" for i in range(count)]))
    assert (f", … ({count} in all)" in message) == cut
    assert ("layer60" in message) is False
    assert "layer59" in message


def test_names_may_come_from_any_iterable():
    assert "did you mean 'fc'?" in str(unknown("layer", "fcc", (name for name in ("fc", "conv1"))))
    assert "choose one of: b, a" in str(unknown("field", "?", {"b": 1, "a": 2}))
