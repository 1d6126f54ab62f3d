"""What the papers' figures show, on the digits, where it is stable over seeds; the scripts are in examples/."""

import importlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"examples.{name}")


def test_fedalp_global_accuracy_falls_with_beta(example):
    """Fig. 4, one digit per client: local models gain, the global one loses."""
    found = {beta: example("fedalp_beta").accuracies("classes", beta, seed=0) for beta in (0.0, 0.6, 1.0)}
    own, global_model = ({beta: pair[i] for beta, pair in found.items()} for i in (0, 1))
    assert own[0.0] == global_model[0.0]
    assert own[0.6] > own[0.0] + 0.1
    assert own[1.0] > own[0.0] + 0.1
    assert global_model[0.0] > global_model[0.6] > global_model[1.0]


def test_fedlag_conflicts_are_those_of_uneven_data(example):
    """Figs. 12 and 13, early rounds: nearly none in the hidden layers on IID data, many on Dirichlet(0.1)."""
    script = example("fedlag_conflicts")
    even, uneven = (script.conflicts(script.DATA[kind], seed=0, rounds=5) for kind in ("iid", "dirichlet"))
    hidden = ("fc1", "fc2", "fc3")
    assert max(share for layer in hidden for share in even[layer]) < 0.02
    assert sum(share for layer in hidden for share in uneven[layer]) / 15 > 0.15
    assert min(uneven["fc"]) > max(even["fc"]) + 0.1


def test_fedlag_conflicts_of_the_toy_set(example):
    """Appendix G: users of different domains conflict, users of the same do not."""
    script = example("fedlag_layers")
    assert set(script.toy_conflicts(different=False)) == {0.0}
    assert min(script.toy_conflicts(different=True)) > 0.6
