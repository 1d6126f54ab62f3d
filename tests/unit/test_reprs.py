"""Reprs: one short line for everything public, and nothing of anybody's data in it."""

import collections.abc
import dataclasses
import importlib
import inspect
import pkgutil
import typing

import numpy as np
import pytest
import torch
from torch import nn

import stratafl
from stratafl.algorithms import fedavg
from stratafl.config.assemble import samples_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.core.records import _CLASSES
from stratafl.core.reprs import short_repr
from stratafl.data import Assignment
from stratafl.runs import Run

CANARIES = ("canary", "7.125", "-333.5")
LONGEST = 300
WITHOUT = {"stratafl.__main__"}


def classes():
    """Every dataclass and named tuple of the package."""
    names = [each.name for each in pkgutil.walk_packages(stratafl.__path__, "stratafl.")]
    for name in (each for each in names if each not in WITHOUT):
        for found in vars(importlib.import_module(name)).values():
            own = inspect.isclass(found) and found.__module__ == name
            if own and (dataclasses.is_dataclass(found) or hasattr(found, "_fields")):
                yield found


def holds_values(hint):
    """Whether a type has tensors or arrays in it; a function of them has none."""
    if inspect.isclass(hint) and issubclass(hint, torch.Tensor | np.ndarray):
        return True
    origin = typing.get_origin(hint)
    if origin is collections.abc.Callable:
        return False
    return (inspect.isclass(origin) and issubclass(origin, np.ndarray)) or any(map(holds_values, typing.get_args(hint)))


@pytest.mark.budget(3, "imports every module")
def test_whatever_holds_tensors_or_arrays_is_shown_by_kind_and_size():
    short = [c for c in classes() if c.__repr__.__module__ == "stratafl.core.reprs"]
    assert len(short) > 25
    others = [c for c in classes() if c not in short]
    assert [c for c in others if any(map(holds_values, typing.get_type_hints(c).values()))] == []


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a table whose values, labels and clients can be found wherever they are printed."""
    place = tmp_path_factory.mktemp("reprs")
    lines = ["a,b,client,label"]
    lines += [f"{7.125 + at},{-333.5 * (at + 1)},canary-{at // 12},canary {at % 2}" for at in range(36)]
    (place / "my.csv").write_text("\n".join(lines) + "\n")
    given = [f"data.name={place / 'my.csv'}", "model.hidden=[4]", "run.rounds=1", "data.normalise=columns"]
    with Run.create(with_settings(Experiment(), given), place / "run") as run:
        list(run.rounds())
    return run


def inside(value):
    """The parts of an object, one step down."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set):
        return list(value)
    return list(vars(value).values()) if hasattr(value, "__dict__") else []


def reachable(*roots):
    """All objects of this package that can be reached from some."""
    seen, open_ones = dict[int, object](), list(roots)
    while open_ones:
        value = open_ones.pop()
        ours = type(value).__module__.startswith("stratafl")
        if id(value) in seen or isinstance(value, type) or not (ours or isinstance(value, dict | list | tuple | set)):
            continue
        seen[id(value)] = value
        open_ones += inside(value)
    return [value for value in seen.values() if type(value).__module__.startswith("stratafl")]


def test_nothing_public_prints_data(run):
    fitted = stratafl.load(run.folder)
    samples = samples_of(run.experiment.data, 0)
    progress, entry = run.trial.round(run.sim.start())
    found = reachable(fitted, run, samples, progress, entry, Assignment([np.arange(900)]))
    kinds = {type(value).__name__ for value in found}
    wanted = {"Fitted", "Federation", "Simulation", "Progress", "Runtime", "Setup", "Trial", "RoundLines", "Samples"}
    assert wanted <= kinds
    for value in found:
        shown = repr(value)
        assert not [canary for canary in CANARIES if canary in shown], type(value)
        settings = type(value) in _CLASSES.values()  # whose repr is what they are rebuilt from
        if not settings and not isinstance(value, nn.Module) and not _is_settings(value):
            assert len(shown) <= LONGEST, shown
            assert "\n" not in shown


def _is_settings(value):
    return type(value).__module__ in ("stratafl.config.experiment", "stratafl.runs.loggers")


def test_what_is_said(run):
    fitted = stratafl.load(run.folder)
    assert repr(fitted) == "Fitted(3 clients, 2 classes, after round 1 of 1)"
    assert repr(fitted.sim.runtime.federation) == (
        "Federation('my', 3 clients, 36 samples of float32[2], 2 classes, 21 train, 6 validation, 9 test)"
    )
    assert repr(fitted.progress).startswith("Progress(t=1, server=dict of ")
    assert repr(run) == f"Run('{run.folder}', after round 1 of 1)"
    assert repr(Assignment([np.arange(900)])) == "Assignment(train=list of 1, overlap=False)"


def test_a_regression_says_so():
    clients = [(np.ones((8, 2)), np.linspace(0, 1, 8))] * 2
    fitted = stratafl.fit(fedavg(), clients, nn.Linear(2, 1), rounds=2)
    assert repr(fitted) == f"Fitted(2 clients, regression, after round {fitted.round} of 2)"


def test_fields_by_hand():
    @short_repr
    @dataclasses.dataclass(frozen=True, eq=False)
    class Held:
        x: torch.Tensor
        y: np.ndarray
        name: str
        rate: float
        nothing: None = None
        several: tuple = (1, 2, 3)

    assert repr(Held(torch.zeros(2, 3), np.zeros(4, np.uint8), "n" * 99, 0.5)) == (
        f"Held(x=float32[2, 3], y=uint8[4], name='{'n' * 60}…', rate=0.5, several=tuple of 3)"
    )
