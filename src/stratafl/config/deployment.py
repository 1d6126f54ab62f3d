"""From an experiment to the members of a deployment: what all agree on, and the samples of one site.

The tables of an experiment mean what they mean in a simulation, except [data]: where the samples are is each site's own
business, and how they are divided is given. A site that reads its file in another way says so in its own tables.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from stratafl.algorithms.sent_fields import Sent, sent_fields
from stratafl.config.assemble import (
    algorithm_of,
    federation_to_run,
    model_of,
    reading_limit,
    samples_of,
    seeds_of,
    split_plan,
)
from stratafl.config.experiment import Experiment, from_tables, named_files, read_as, to_tables
from stratafl.config.migrations import UNNUMBERED_FEDERATION, migrate
from stratafl.config.setting_tables import DataTable, reading_of
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.annotations import Range
from stratafl.core.phased import Phased
from stratafl.core.records import from_settings, record, to_settings
from stratafl.core.secure_sums import MIN_SITES
from stratafl.data import Federation
from stratafl.data.reading import CHOOSING
from stratafl.data.sample_format import SampleFormat
from stratafl.data.site_samples import NewSamples, new_samples, site_columns, site_federation, with_agreed_codes
from stratafl.data.tables.introduced_columns import IntroducedColumn
from stratafl.errors import RecordError, shown, unknown
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.exchange.protocol import check_exchange_name
from stratafl.execute.roster import Roster
from stratafl.execute.rounds import clip_of, limit_of
from stratafl.execute.server import Server
from stratafl.execute.site import Site
from stratafl.policies.class_weights import POOLED
from stratafl.policies.train import with_class_weights
from stratafl.runtime.speed import Speed

MAX_ROUNDS = 1_000_000
ALL_PHASES_ROUNDS = 1000  # in so long a run, every phase of a method begins
DEPLOY = "deploy"  # the table of a file that has the others of an experiment too
_Seconds = Range(above=0, most=31_536_000)


@record
class DeployTable:
    """A deployed federation: its sites, and how patient its host is."""

    sites: Annotated[tuple[str, ...], "names of the sites that train; their order gives the client numbers"]
    name: Annotated[str, "the name of the federation"] = "federation"
    predict: Annotated[tuple[str, ...], "sites that only predict: they get a model after the last round"] = ()
    wait: Annotated[float, _Seconds, "seconds to wait for sites that are not connected before the host stops"] = 3600.0
    deadline: Annotated[float, _Seconds, "seconds after which a round continues without the sites that are missing"] = (
        600.0
    )
    least: Annotated[int, Range(least=1, most=1_000_000), "minimum number of uploads that complete a round"] = 1
    failures: Annotated[
        int, Range(least=1, most=1000), "consecutive rounds that a site may miss before it is set aside"
    ] = 3
    megabytes: Annotated[
        float, Range(above=0, most=1e9), "MB that a site may send per minute; the gate refuses more"
    ] = 4000.0
    scores: Annotated[bool, "whether sites report the test scores of the models that they receive"] = True
    report: Annotated[
        bool, "whether, at the end, each site also trains alone, and all get a report (needs `scores`)"
    ] = True
    classes: Annotated[
        Annotated[int, Range(least=1, most=10_000)] | tuple[str, ...],
        "the classes in the order of the model's outputs; a number n: 0 to n − 1; none: `data.targets` are numbers",
    ] = ()

    def __post_init__(self) -> None:
        check_exchange_name("a federation", self.name)
        names = self.all_sites
        for name in names:
            check_exchange_name("a site", name)
        if not self.sites:
            raise RecordError("deploy.sites is empty: name the sites that train")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise RecordError(f"two sites are named '{shown(twice)}': give every site its own name")
        if len(set(self.class_names)) < len(self.class_names):
            raise RecordError("deploy.classes names a class twice: name every class once")
        if self.least > len(self.sites):
            raise RecordError(f"deploy.least = {self.least}, but there are {len(self.sites)} sites: set it lower")

    @property
    def all_sites(self) -> tuple[str, ...]:
        """In the order of their numbers as clients: those that only predict come after the others."""
        return (*self.sites, *self.predict)

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.classes))) if isinstance(self.classes, int) else self.classes

    def number(self, site: str) -> int:
        """The number of a site as a client."""
        if site not in self.all_sites:
            raise unknown(f"site of federation '{self.name}'", site, self.all_sites)
        return self.all_sites.index(site)


SIMULATED = ("data.shift", "run.drop", "run.slow")  # differences between clients that a federation really has
REGRESSION = "to predict numbers, set data.targets = 'numbers' instead"
OF_THE_HOST = ("wait", "deadline", "least", "failures", "megabytes")


@record
class FederationFile:
    """What host and sites are given: an experiment, and the table [deploy]."""

    experiment: Experiment
    deploy: DeployTable

    def __post_init__(self) -> None:
        _refuse_files(_without_place(self.experiment))
        for key in CHOOSING:
            if getattr(self.experiment.data, key) is not None:
                raise RecordError(f"data.{key} is for simulations: leave it out, because sites use all their samples")
        for path in SIMULATED:
            table, _, key = path.partition(".")
            if getattr(getattr(self.experiment, table), key) != getattr(getattr(Experiment(), table), key):
                raise RecordError(f"{path} is for simulations: leave it out of a federation")
        limited = next((key for key in ("norm_limit", "norm_clip") if getattr(self.experiment.server, key)), None)
        if self.experiment.server.secure and limited is not None:
            raise RecordError(
                f"server.{limited} compares single updates, which server.secure hides: leave one of them out"
            )
        if self.experiment.server.secure and len(self.deploy.sites) < MIN_SITES:
            count = len(self.deploy.sites)
            raise RecordError(f"server.secure opens sums of at least {MIN_SITES} sites, but {count} train: add sites")
        if self.experiment.train.class_weight == POOLED:
            with_class_weights(self.experiment.train, (), None)  # which says why not
        if self.experiment.run.rounds > MAX_ROUNDS:  # what is sent in each of them is looked at before the first
            raise RecordError(f"run.rounds = {self.experiment.run.rounds:,}: a federation has at most {MAX_ROUNDS:,}")

    def check_classes(self) -> None:
        """Raise if sites would have to say which classes they hold: the host has no samples, so its file lists them."""
        if not self.deploy.classes and self.experiment.data.targets != "numbers":
            how = 'classes = ["no", "yes"], or classes = 10 if labels are 0 to 9'
            raise RecordError(f"the federation's file does not list the classes: add to [deploy] {how}; {REGRESSION}")

    def tables(self) -> dict[str, dict[str, Any]]:
        return {**to_tables(self.experiment), DEPLOY: to_settings(self.deploy)}

    def common(self) -> "FederationFile":
        """What host and sites must have alike: all but how patient the host is, which it may change."""
        usual: dict[str, Any] = {
            field.name: field.default for field in dataclasses.fields(self.deploy) if field.name in OF_THE_HOST
        }
        return dataclasses.replace(self, deploy=dataclasses.replace(self.deploy, **usual))

    def as_begun(self, stored: Mapping[str, Any]) -> "FederationFile":
        """With what it leaves out as it was when a federation's folder was made, which holds these tables."""
        return federation_from({**self.tables(), "format": stored.get("format", UNNUMBERED_FEDERATION)})

    def invited(self) -> "FederationFile":
        """What sites are given: all but where the host's own samples are."""
        return dataclasses.replace(self, experiment=_without_place(self.experiment))


def _without_place(experiment: Experiment) -> Experiment:
    return _with_data(experiment, name=DataTable().name, path=None)


def _with_data(experiment: Experiment, **settings: Any) -> Experiment:
    """With these settings of the data, and without the defaults of other data."""
    return dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, **settings))


def _refuse_files(experiment: Experiment) -> None:
    """Raise if a setting names a file: with it, a host would choose what a site reads, and perhaps sends."""
    for setting, name in named_files(experiment).items():
        wrong = f"{setting} = '{shown(name)}' names a file or folder, which a host may not choose for its sites"
        raise RecordError(f"{wrong}: leave it out of the host's file")


def is_federation(folder: Path) -> bool:
    """Whether a folder is that of a host or of a site."""
    return (folder / "federation.toml").is_file()


def read_federation(path: Path, *, plain: bool = False) -> FederationFile:
    """The file of a federation: the tables of an experiment, and [deploy]. A `plain` one was stored in its folder."""
    return read_as(path, _federation_stored if plain else federation_from, plain=plain)


def _federation_stored(tables: Mapping[str, Any]) -> FederationFile:
    """The federation of tables that were written for a host or a site: what they leave out is as it was then."""
    return federation_from({"format": UNNUMBERED_FEDERATION, **tables})


def federation_from(tables: Mapping[str, Any], *, divides: bool = False) -> FederationFile:
    """The federation of tables; `divides` if it divides the data that they name, which is the digits if they name none.

    Otherwise the samples are those of the sites, and defaults that belong to the digits do not hold.
    """
    if DEPLOY not in tables:
        raise RecordError('it has no table [deploy]: add one with sites = ["…", "…"]')
    rest = migrate({name: table for name, table in tables.items() if name != DEPLOY}, deployed=True)
    data = rest.get("data", {})
    if divides or not isinstance(data, Mapping) or "name" in data:
        experiment = from_tables(rest)
    else:
        experiment = from_tables({**rest, "data": {"name": "sites/", **data}})
        experiment = _with_data(experiment, name=DataTable().name)
    return FederationFile(experiment, from_settings(DEPLOY, DeployTable, tables[DEPLOY]))


def invited_from(tables: Mapping[str, Any]) -> FederationFile:
    """The federation of an invitation, which names no file of the site that reads it."""
    file = _federation_stored(tables)
    _refuse_files(file.experiment)
    return file


def blueprint_of(
    experiment: Experiment, samples: SampleFormat, clients: int, trust: Trust | bool = NO_TRUST
) -> Blueprint:
    """What the members of a deployment agree on: a simulation of the experiment with such samples has the same."""
    run, model = experiment.run, experiment.model
    names = samples.preprocessing.classes or tuple(map(str, range(samples.classes or 0)))
    return Blueprint(
        with_class_weights(algorithm_of(experiment, trust), names if samples.classes else None, None),
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
        frozen=model.frozen,
    )


def server_of(experiment: Experiment, blueprint: Blueprint, roster: Roster, secret: bytes | None = None) -> Server:
    """The server of a blueprint, with the limit to the length of updates that a simulation of the experiment has."""
    secure = experiment.server.secure
    limit = limit_of(experiment.server.norm_limit, blueprint.algorithm, secure)
    clip = clip_of(experiment.server.norm_clip, limit)
    return Server.of(blueprint, roster, norm_limit=limit, norm_clip=clip, secret=secret, secure=secure)


def site_federation_of(
    experiment: Experiment, agreed: SampleFormat, place: str, client: int, *, trains: bool = True
) -> Federation:
    """The samples of one site, read from its own file or folder as the experiment says, split as a simulation does."""
    data, plan = dataclasses.replace(experiment.data, name=place), split_plan(experiment)
    limit = reading_limit(experiment.run)
    samples, table = samples_of(data, plan.seed, limit), agreed.preprocessing.table
    if table is not None:
        samples = with_agreed_codes(samples, table, Path(place), reading_of(data, plan.seed, limit))
    return site_federation(samples, agreed, plan, client=client, trains=trains)


def site_columns_of(experiment: Experiment, place: str, client: int) -> list[IntroducedColumn]:
    """What a site says of the columns of its table; [] if it is not encoded."""
    data, plan = dataclasses.replace(experiment.data, name=place), split_plan(experiment)
    samples = samples_of(data, plan.seed, reading_limit(experiment.run))
    return site_columns(samples, plan, client) if samples.codes else []


def new_samples_of(experiment: Experiment, agreed: SampleFormat, place: Path) -> NewSamples:
    """Samples to predict, read as the experiment says."""
    limit = reading_limit(experiment.run)
    return new_samples(place, reading_of(experiment.data, seeds_of(experiment).partition, limit), agreed)


def site_of(
    experiment: Experiment, blueprint: Blueprint, federation: Federation, client: int, widest: Mapping[str, int] | None
) -> Site:
    """The site of these samples, which computes on the device and in the ways that the experiment names."""
    run = experiment.run
    speed = Speed(run.precision, run.graphs, run.compile, run.convolutions)
    return Site.of(blueprint, federation, client, device=run.device, speed=speed, widest=widest)


def sent_of(experiment: Experiment, trust: Trust | bool = NO_TRUST) -> Sent:
    """What a run of the experiment would send, for `strata list` and for the documents; nothing is run."""
    algorithm, rounds = algorithm_of(experiment, trust), experiment.run.rounds
    if isinstance(algorithm, Phased) and algorithm.before(rounds) >= rounds:
        rounds = ALL_PHASES_ROUNDS
    experiment = dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, rounds=rounds, device="cpu"))
    federation = federation_to_run(experiment)
    blueprint = blueprint_of(experiment, SampleFormat.of(federation), federation.clients, trust)
    return sent_fields(blueprint.algorithm, blueprint.setup())
