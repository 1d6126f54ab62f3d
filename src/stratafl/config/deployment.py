"""From an experiment to the members of a deployment: what all agree on, and the samples of one site.

The tables of an experiment mean what they mean in a simulation, except [data]: where the samples are is each site's own
business, and how they are divided is given. A site that reads its file in another way says so in its own tables.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from stratafl.config.assemble import algorithm_of, model_of, reading_limit, samples_of, seeds_of
from stratafl.config.experiment import Experiment
from stratafl.config.trust import NOTHING, Trust
from stratafl.data import Federation
from stratafl.data.sample_format import SampleFormat
from stratafl.data.site_samples import site_federation
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.roster import Roster
from stratafl.execute.server import Server
from stratafl.execute.site import Site
from stratafl.execute.uploads import DEPLOYED
from stratafl.runtime.speed import Speed


def blueprint_of(
    experiment: Experiment, samples: SampleFormat, clients: int, trust: Trust | bool = NOTHING
) -> Blueprint:
    """What the members of a deployment agree on: a simulation of the experiment with such samples has the same."""
    run, model = experiment.run, experiment.model
    return Blueprint(
        algorithm_of(experiment, trust),
        model_of(model, samples.shape, samples.classes, trust),
        samples,
        clients,
        rounds=run.rounds,
        participation=run.participation,
        seeds=seeds_of(experiment),
        granularity=run.granularity,
        buffers=run.buffers,
        head=model.head,
        weights=None if model.weights is None else Path(model.weights),
        engine=run.engine,
    )


def server_of(experiment: Experiment, blueprint: Blueprint, roster: Roster) -> Server:
    """The server of a blueprint, with the experiment's limit to the length of updates or a deployment's own."""
    limit = experiment.server.norm_limit
    return Server.of(blueprint, roster, norm_limit=DEPLOYED if limit is None else limit or None)


def site_federation_of(
    experiment: Experiment, agreed: SampleFormat, place: str, client: int, *, trains: bool = True
) -> Federation:
    """The samples of one site, read from its own file or folder as the experiment says, split as a simulation does."""
    data, seed = dataclasses.replace(experiment.data, name=place), seeds_of(experiment).partition
    return site_federation(
        samples_of(data, seed, reading_limit(experiment.run)),
        agreed,
        client=client,
        validation=data.validation,
        test=data.test,
        seed=seed,
        split=data.split,
        trains=trains,
    )


def site_of(
    experiment: Experiment, blueprint: Blueprint, federation: Federation, client: int, widest: Mapping[str, int] | None
) -> Site:
    """The site of these samples, which computes on the device and in the ways that the experiment names."""
    run = experiment.run
    speed = Speed(run.precision, run.graphs, run.compile, run.convolutions)
    return Site.of(blueprint, federation, client, device=run.device, speed=speed, widest=widest)
