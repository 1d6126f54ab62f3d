"""What the method of an experiment would send, for `strata list` and for the documents: nothing is run."""

from dataclasses import replace

from stratafl.algorithms.sent_fields import Sent, sent_fields
from stratafl.config.assemble import federation_to_run
from stratafl.config.deployment import blueprint_of
from stratafl.config.experiment import Experiment
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.data.sample_format import SampleFormat

LONG = 1000  # rounds, in which every phase of a method begins


def sent_of(experiment: Experiment, trust: Trust | bool = NO_TRUST) -> Sent:
    """What travels with the model, data, clients and options of the experiment, however long it is."""
    longer = replace(experiment.run, rounds=max(experiment.run.rounds, LONG), device="cpu")
    experiment = replace(experiment, run=longer)
    federation = federation_to_run(experiment)
    blueprint = blueprint_of(experiment, SampleFormat.of(federation), federation.clients, trust)
    return sent_fields(blueprint.algorithm, blueprint.setup())
