"""The digits that come with the package."""

import numpy as np
import pytest
import torch

from stratafl.data import IID, Classes, Dirichlet, digits_arrays, digits_federation


def test_the_arrays_are_the_known_digits():
    x, y = digits_arrays()
    assert (x.shape, x.dtype, y.dtype) == ((1797, 1, 8, 8), np.float32, np.int64)
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert np.array_equal(x * 16, np.round(x * 16))


def test_the_first_image_is_the_first_zero():
    x, y = digits_arrays()
    assert y[:10].tolist() == list(range(10))
    assert (x[0, 0, 1] * 16).tolist() == [0, 0, 13, 15, 10, 15, 5, 0]


@pytest.mark.parametrize("seed", range(10))
def test_the_default_can_be_drawn(seed):
    federation = digits_federation(seed=seed)
    totals = federation.counts("train") + federation.counts("test")
    assert federation.clients == 20
    assert totals.sum() == 1797
    assert totals.min() >= 10
    assert federation.counts("test").min() >= 2
    assert torch.equal(federation.counts("test"), (totals + 3) // 4)


def test_the_default_is_skewed():
    counts = digits_federation().class_counts("train").double()
    assert (counts.max(dim=1).values / counts.sum(dim=1)).mean() > 0.5  # an even client has 0.1


def test_the_digits_are_a_federation_of_ten_classes():
    federation = digits_federation(clients=5, partition=IID(), validation=0.1, test=0.2)
    assert (federation.name, federation.classes) == ("digits", 10)
    assert federation.counts("validation").tolist() == [36] * 5
    assert federation.counts("test").tolist() == [72] * 5
    assert federation.x.dtype == torch.float32


def test_every_client_has_two_test_samples_where_there_is_a_test_part():
    federation = digits_federation(clients=300, partition=IID(), test=0.1)  # 5 or 6 samples each
    assert federation.counts("test").unique().tolist() == [2]


def test_partition_seed_and_dtype_are_passed_on():
    federation = digits_federation(partition=Classes(per_client=1), dtype=torch.float64)
    assert ((federation.class_counts("train") > 0).sum(dim=1) == 1).all()
    assert federation.x.dtype == torch.float64
    assert not torch.equal(digits_federation(seed=0).counts("train"), digits_federation(seed=1).counts("train"))
    assert torch.equal(
        digits_federation().split("train").indices,
        digits_federation(partition=Dirichlet(0.1, 10)).split("train").indices,
    )
