"""A site's final model and its predictions, from the files in the site's folder, which are only read.

The site writes its final model when the last parcel comes (`stored_model.py`). Where that file is missing, the
agreement, the personal state, the last parcel and the site's own samples give the same model. Anybody who can read the
folder can build it, also while the site takes part.
"""

import tomllib
from pathlib import Path

from stratafl.config.deployment import new_samples_of
from stratafl.deploy.member import AGREED, FILE, NODE, STATE, SiteMember
from stratafl.deploy.stored_model import ALONE_MODEL, MODEL, read_model
from stratafl.errors import DeployError
from stratafl.execute.exchange import read_site, site_folder, state_form
from stratafl.execute.exchange.site_store import DELIVERED
from stratafl.export import ModelFacts, Predictor, export_model
from stratafl.export.predicted import Predicted, predict_samples
from stratafl.files import explained, read_plain

MAX_NODE_BYTES = 1 << 20  # bytes of that file


def member_in(folder: Path, *, trust: bool = False) -> SiteMember:
    """The site that has this folder, with the samples that it joined with."""
    path = folder / NODE
    if not path.exists() or not (folder / FILE).exists():
        raise DeployError(
            f"'{folder}' is not the folder of a site: name the folder that 'strata join' made, sites/NAME"
        )
    try:
        with explained("read", path):
            node = tomllib.loads(read_plain(path, MAX_NODE_BYTES).decode())
        return SiteMember(folder, str(node["site"]), str(node["data"]), trust)
    except (ValueError, KeyError) as error:
        raise DeployError(f"'{path}' is damaged: run 'strata join' again, which rewrites it") from error


def final_model(member: SiteMember, alone: bool = False) -> Predictor:
    """The model that a site ends with, or the one that it trained alone; both take raw samples."""
    root, federation = member.folder / STATE, member.file.deploy.name
    if not (member.folder / AGREED).exists() or not (site_folder(root, federation, member.name) / DELIVERED).exists():
        wait = "the host sends it after the last round to every site that has joined"
        raise DeployError(f"site '{member.name}' has no final model yet: {wait}")
    mark = read_site(root, federation, member.name, {}).delivery_mark()
    path, template = member.folder / (ALONE_MODEL if alone else MODEL), member.model_template(alone)
    stored = None if mark is None else read_model(path, mark, template)
    if stored is not None:
        return stored
    if alone:
        why = "it trains one at the end of a federation with deploy.report, when the host asks for its scores"
        raise DeployError(f"site '{member.name}' has no model that it trained alone: {why}")
    site = member.site()
    final = read_site(root, federation, member.name, state_form(site.enrol())).final()
    if final is None:
        raise DeployError(f"site '{member.name}' no longer has its final model: its folder has changed")
    module = site.module(site.deployed(final.round, final.state, final.parcel))
    return Predictor(module, site.runtime.federation.preprocessing.of(0), site.runtime.dtype)


def export_final(member: SiteMember, path: Path, alone: bool = False) -> None:
    """Write that model to a file, as `export_model` does."""
    facts = ModelFacts.of(member.name, member.agreed_format())
    export_model(final_model(member, alone), path, facts, f"site '{member.name}'")


def predicted(member: SiteMember, place: Path, alone: bool = False) -> Predicted:
    """What a site's final model says of the samples in a file or folder."""
    model, agreed = final_model(member, alone), member.agreed_format()
    samples = new_samples_of(member.file.experiment, agreed, place)
    return predict_samples(model, samples, agreed, f"site '{member.name}'")
