"""A saved state keeps the names, types and shapes that it starts with: so of every method of the catalogue."""

from dataclasses import replace

import pytest
import torch

from stratafl.algorithms import ALGORITHMS, algorithm, fedalp, fedavg30local, fedlag, flayer, pfedla
from stratafl.errors import DamagedError, RunError
from stratafl.execute import Matrix
from stratafl.execute.simulation import SavedForm
from stratafl.testing import Case
from tiers import slow_except

ACTING = {
    "fedalp": fedalp(groups=2, warmup=1),
    "fedlag": fedlag(k=2, xi=0.0, warmup=0),
    "flayer official": flayer(preset="official"),
    "pfedla": pfedla(hyper_lr=0.5),
}
EVERY = {**{name: algorithm(name) for name in ALGORITHMS}, "fedavg30local": fedavg30local(warmup=1), **ACTING}


@pytest.mark.parametrize("name", slow_except(["fedper", "flayer", "pfedla"], sorted(EVERY)))
def test_every_method_keeps_the_form_it_starts_with(name):
    sim = Case(EVERY[name], "local", 0.5, rounds=2).plain
    progress, form = sim.start(), SavedForm.of(sim)
    for t in range(2):
        form.check(t, progress.tensors())
        progress, _ = sim.round(progress, Matrix())
    form.check(2, progress.tensors())


def test_a_state_that_changes_its_shape_is_told_before_it_is_saved():
    sim = Case(algorithm("fedper"), "local", 1.0, rounds=1).plain
    form, progress = SavedForm.of(sim), sim.start()
    grown = replace(progress, server={**progress.server, "more": torch.zeros(3)})
    with pytest.raises(RunError, match="'server/more'"):
        form.check_before_saving(grown.tensors())
    with pytest.raises(DamagedError, match="'server/more'"):
        form.check(0, grown.tensors())
