"""What pFedLA's Fig. 5 and 6 show, on the digits."""

import importlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # 25 rounds of twenty clients


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("examples.pfedla_weights")


def test_weights_follow_the_classes_that_clients_share(example):
    """Fig. 5, in the first layer: self > the same classes > three of four shared > everybody else."""
    alpha = example.weights(example.TARGET, seed=0, rounds=25, hyper_lr=0.2)
    own, same, similar, rest = example.ranked(alpha["fc1"])
    assert own > same > similar > rest
    for layer in ("fc2", "fc"):  # nearer to the output, who has the same classes is as good as oneself
        own, same, similar, rest = example.ranked(alpha[layer])
        assert min(own, same) > similar > rest


def test_weights_fall_along_a_chain_of_clients(example):
    """Fig. 6: at distances 0 to 7 clients share 4, 3, 2, 1, 0, 0, 0 and again 1 of four classes."""
    for alpha in example.weights(example.CHAIN, seed=0, rounds=25, hyper_lr=0.2).values():
        bands = example.band(alpha)
        assert bands[:4] == sorted(bands[:4], reverse=True)
        assert bands[3] > max(bands[4:7])
