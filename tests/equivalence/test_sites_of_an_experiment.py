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

    @property
    def experiment(self):
        return EXPERIMENT

    def own(self, agreed, client):
        return site_federation_of(self.experiment, agreed, self.samples[client], client)

    def a_site(self, client):
        blueprint = self.blueprint()
        return site_of(self.experiment, blueprint, self.own(blueprint.samples, client), client, self.widest)


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


TEXTS = {
    "model": {"name": "fasttext", "vocabulary": 90, "width": 4, "pads": False},
    "data": {"vocabulary": 90, "seed": 3},
    "train": {"lr": 0.5, "batch": 5},
}
XRAYS = {
    "model": {"name": "mlp", "hidden": [8]},
    "data": {"size": 6, "flip": "both", "crop": 1, "seed": 3},
    "train": {"lr": 0.1, "batch": 5},
}


def text_files(folder):
    words, rng = ["fever", "cough", "pain", "rest", "sleep", "walk", "eats", "calm"], np.random.default_rng(2)
    rows = [(" ".join(rng.choice(words, 5 + n % 7)), "ab"[n % 2], f"s{n % 3}") for n in range(66)]
    for name in ("all", "s0", "s1", "s2"):
        lines = [f"{text},{label},{site}" for text, label, site in rows if name in ("all", site)]
        (folder / f"{name}.csv").write_text("\n".join(["note,label,client", *lines, ""]))
    return folder / "all.csv", [folder / f"s{n}.csv" for n in range(3)]


def image_files(folder):
    image, rng = pytest.importorskip("PIL.Image"), np.random.default_rng(2)
    for number in range(66):
        path = folder / "all" / f"s{number % 3}" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(rng.normal(18_000, 2_000, (8, 8)).astype(np.uint16)).save(path)
    return f"{folder / 'all'}/", [f"{folder / 'all' / f's{n}'}/" for n in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(("tables", "files"), [(TEXTS, text_files), (XRAYS, image_files)], ids=["texts", "xrays"])
def test_sites_with_texts_and_with_images_end_where_the_simulation_ends(tmp_path, tables, files):
    place, places = files(tmp_path)
    run = {"algorithm": {"name": "fedper"}, "run": {"rounds": 3, "seed": 8}}
    experiment = from_tables({**tables, **run, "data": {**tables["data"], "name": str(place)}})
    sim = simulation_of(experiment)
    agreed = SampleFormat.from_table(SampleFormat.of(sim.runtime.federation).to_table())

    class Sites(Own):
        experiment = from_tables({**tables, **run, "data": {**tables["data"], "name": "all.csv"}})

    own = {client: str(place) for client, place in enumerate(places)}
    sites = Sites(partial(blueprint_of, experiment, agreed, 3), own)
    assert difference(sites.run().everything(), everything(sim, sim.run(Matrix()))) == 0
