"""What the first process tells the others, with both in one process, one after the other."""

import pytest

from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.errors import RunError
from stratafl.execute.process_group import ProcessGroup
from stratafl.runs import FollowerRun, Run
from stratafl.runs.distributed import hand_out


class First(ProcessGroup):
    """Rank 0 of two, whose words are kept."""

    world_size = 2

    def __init__(self):
        self.said = []

    def told(self, value):
        self.said.append(value)
        return value


class Second(ProcessGroup):
    """Rank 1, who hears them later."""

    rank, world_size = 1, 2

    def __init__(self, said):
        self._said = iter(said)

    def told(self, value):
        return next(self._said)

    def deal(self, sim, clients):
        return {}


def test_what_the_first_found_out_about_speed_holds_for_all():
    experiment = with_settings(Experiment(), ["model.name=cnn", "data.clients=3", "run.rounds=1"])
    paths = simulation_of(experiment).runtime.tuning["products"]
    assert set(paths.values()) == {True}
    sim = simulation_of(experiment, {"products": dict.fromkeys(paths, False)})
    first = First()
    hand_out(first, experiment, sim, sim.start(), [])
    assert FollowerRun(Second(first.said)).sim.runtime.tuning == sim.runtime.tuning


def test_client_states_on_disk_are_refused_before_a_directory_is_made(tmp_path):
    experiment = with_settings(Experiment(), ["run.store=disk", "run.rounds=1"])
    with pytest.raises(RunError, match=r"run\.store=ram"):
        Run.create(experiment, tmp_path / "run", First())
    assert not (tmp_path / "run").exists()
