"""Sites that read their own files, and a server without data, end where `strata run` on all files ends."""

import csv
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from deployed import Deployed
from stratafl.api import Fitted
from stratafl.config.assemble import simulation_of
from stratafl.config.deployment import blueprint_of, site_federation_of, site_of
from stratafl.config.experiment import from_tables
from stratafl.data.sample_format import SampleFormat
from stratafl.execute import Matrix
from stratafl.export import Predictor
from stratafl.testing import difference, everything

SITES = {"berlin": ("cat", "dog"), "lyon": ("ant", "cat"), "oslo": ("dog", "ant")}


class Own(Deployed):
    """Sites that read their files."""

    def own(self, agreed, client):
        return site_federation_of(EXPERIMENT, agreed, self.samples[client], client)

    def a_site(self, client):
        blueprint = self.blueprint()
        return site_of(EXPERIMENT, blueprint, self.own(blueprint.samples, client), client, self.widest)


EXPERIMENT = from_tables(
    {
        "algorithm": {"name": "fedper"},
        "model": {"name": "mlp", "hidden": [8]},
        "data": {"name": "all.csv", "normalise": "columns", "validation": 0.2, "test": 0.3, "seed": 3},
        "train": {"lr": 0.1, "batch": 10},
        "run": {"rounds": 4, "participation": 0.7, "seed": 8},
    }
)


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(1)
    rows = [
        {"a": rng.normal(50, 9), "b": rng.normal(0.1, 3), "label": rng.choice(SITES[site]), "client": site}
        for site in rng.choice(list(SITES), 120, p=[0.2, 0.5, 0.3])
    ]
    for name, columns in {"all": ["a", "b", "label", "client"], **dict.fromkeys(SITES, ("label", "b", "a"))}.items():
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows([row for row in rows if name in ("all", row["client"])])
    return tmp_path


@pytest.mark.slow
def test_sites_with_their_own_files_end_where_the_simulation_ends(files):
    whole = replace(EXPERIMENT, data=replace(EXPERIMENT.data, name=str(files / "all.csv")))
    sim = simulation_of(whole)
    federation = sim.runtime.federation
    assert federation.client_names == tuple(sorted(SITES))
    agreed = SampleFormat.from_table(SampleFormat.of(federation).to_table())  # as it would be written down
    counts = [int(n) for n in federation.counts("train")]
    assert len(set(counts)) == 3
    own = {client: str(files / f"{name}.csv") for client, name in enumerate(sorted(SITES))}
    sites = Own(partial(blueprint_of, EXPERIMENT, agreed, 3), own)
    progress = sim.run(Matrix())
    assert difference(sites.run().everything(), everything(sim, progress)) == 0
    site, raw = sites.a_site(1), torch.tensor([[51.0, 0.2], [40.0, -3.0]])
    predictor = Predictor(site.module(sites.deployed(site)), site.runtime.federation.preprocessing.of(0), torch.float32)
    assert torch.equal(predictor(raw), Fitted(sim, progress, []).client(1).predictor(raw))
