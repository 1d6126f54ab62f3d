"""A site as a member of a federation: its file, its samples and what was agreed; messages go in, answers come out.

`client_app.py` gives it Flower's messages. Everything that must survive is in the site's folder:

    federation.toml    the experiment and [deploy], as the site was given it
    node.toml          its name, and where its samples are, as its owner said
    agreement.json     what was agreed on, as the host sent it
    state/             the personal state (execute/exchange/site_store.py)
    sites.pub          under secure sums, the keys of all sites that its owner agreed to
    model.safetensors  the final model (stored_model.py)
    alone.safetensors  the model that it trained alone, for its scores
    scores.json        how its models compare (site_scores.py)
    report.json        the same of all sites that share it (federation_report.py)
    noise.key          the secret of a site that adds noise (docs/guide/privacy.md), and in noise.json to which uploads
"""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from torch import nn

from stratafl.config.assemble import federation_of
from stratafl.config.deployment import (
    FederationFile,
    blueprint_of,
    read_federation,
    site_columns_of,
    site_federation_of,
    site_of,
)
from stratafl.config.experiment import Experiment, with_values
from stratafl.core.secure_sums import check_secure
from stratafl.core.state import State
from stratafl.data.federation import Federation
from stratafl.data.sample_format import SampleFormat
from stratafl.deploy.agreement import (
    MAX_AGREEMENT_BYTES,
    Introduction,
    Offer,
    check_digests,
    check_names,
    compared_facts,
    introduced_format,
    shareable_format,
    with_listed_classes,
)
from stratafl.deploy.certificates import secret_of
from stratafl.deploy.courier import Kind
from stratafl.deploy.federation_report import FederationReport
from stratafl.deploy.secure.site_sums import SiteSums, session_of
from stratafl.deploy.signing_keys import SIGNING_KEY, SITE_KEYS, read_signing_key, read_site_keys
from stratafl.deploy.site_scores import SiteScores, alone_blueprint, compared
from stratafl.deploy.stored_model import MODEL, write_model
from stratafl.errors import DamagedError, DataError, StrataError, WireError, counted, shown
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.exchange import SiteExchange, open_site, site_folder, state_form
from stratafl.execute.exchange.blocks import BlockCache
from stratafl.execute.exchange.site_store import BLOCKS, SiteStore
from stratafl.execute.site import Site
from stratafl.files import json_value, private_folder, read_plain, write_atomically
from stratafl.policies.accountant import most_rounds, rounds_allowed

log = logging.getLogger("stratafl.deploy")
FILE, AGREED, STATE, SCORES = "federation.toml", "agreement.json", "state", "scores.json"
CONSENT, NODE = "consent.json", "node.toml"
MAX_CONSENT_BYTES = 1 << 22  # bytes of that file
MAX_SCORES_BYTES = 1 << 16  # bytes of its scores
NOISE, RELEASED = "noise.key", "noise.json"
MAX_RELEASED_BYTES = 1 << 22  # bytes of that file


@dataclass
class Working:
    """What the exchange lets a site compute, and the score of the model that it last received."""

    site: Site
    scores: bool
    digests: Mapping[str, str]  # of what all agree on, as this site computes them
    rounds: int  # in which it takes part at most: those that its privacy allows, if there is a budget
    sums: SiteSums | None = None  # if the host sees sums of uploads alone
    releases: "Releases | None" = None  # None: it sends nothing that has noise of its own
    score: float | None = None

    def enrol(self) -> State:
        return self.site.enrol()

    def work(self, round: int, download: bytes, state: State) -> tuple[State, bytes]:
        done = self.site.work(round, state, download)
        if self.releases is not None:
            self.releases.add(done.upload)
        self.score = self._scored(round, download, state) if self.scores else None
        if self.sums is None:
            return done.state, done.upload
        return done.state, self.sums.hide(round, download, self.site.contribution(round, done.upload))

    def _scored(self, round: int, download: bytes, state: State) -> float | None:
        if not self.site.samples["test"]:
            return None
        scores = self.site.scores(round, self.site.received(round, state, download), "test")
        classes = self.site.runtime.federation.classes
        if classes is not None and not bool(scores.loss.isfinite().all()):
            return 1 / classes  # a model that is not finite counts as guessing, not as its first class
        score = float((scores.loss if classes is None else scores.hits).sum() / scores.count.sum())
        return score if isfinite(score) else None


@dataclass(frozen=True)
class Releases:
    """Which noisy uploads a site has made, in a file: another one of the same round spends privacy again.

    It makes at most as many as the client that takes part most often, in all rounds that the budget allows.
    """

    path: Path
    most: int

    def add(self, upload: bytes) -> None:
        """Before an upload leaves. One that is computed again, after a crash, has the same noise and counts once."""
        digests, digest = self._digests(), sha256(upload).hexdigest()
        if digest in digests:
            return
        if len(digests) >= self.most:
            raise WireError(
                f"this site has sent {counted(len(digests), 'noisy upload')}, which is all that its privacy allows"
            )
        write_atomically(self.path, json.dumps({"uploads": [*digests, digest]}).encode())

    def _digests(self) -> list[str]:
        if not self.path.exists():
            return []
        try:
            return [str(digest) for digest in json_value(read_plain(self.path, MAX_RELEASED_BYTES))["uploads"]]
        except (ValueError, KeyError, TypeError) as error:
            why = "it says how much privacy this site has spent"
            raise DamagedError(f"'{self.path}' is damaged: restore it, because {why}") from error


@dataclass
class SiteMember:
    """One site; `place` is where its samples are, which stays a secret of the site."""

    folder: Path
    name: str
    place: str
    trust: bool = False
    _working: Working | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.file = read_federation(self.folder / FILE, plain=True)
        self.client = self.file.deploy.number(self.name)
        self.trains = self.name in self.file.deploy.sites

    @property
    def rounds(self) -> int:
        """How many rounds its owner has agreed to: the number in the site's own file, which consent is to."""
        return self.file.experiment.run.rounds

    # Messages

    def answer(self, kind: Kind, table: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """The answer to a message of the host; whoever calls this knows that it is the host's (`signatures.py`)."""
        if kind == "round":
            return self.round(body)
        if kind == "secure":
            return self.sum_up(table)
        answers = {"introduce": self.introduce, "agree": self.agree, "report": self.report}
        return answers[kind](table), b""

    def introduce(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """What this site says of itself."""
        self._check_federation(table)
        self.file.check_classes()
        federation = self._federation(self._own_format)
        format, columns = self._own_format, site_columns_of(self.file.experiment, self.place, self.client)
        pooled = format.preprocessing.columns is not None
        return Introduction(introduced_format(format), *_counts(federation), tuple(columns), pooled).to_table()

    def agree(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Take what was agreed on, if it is what this site said of itself; it is kept until another is agreed on."""
        self._check_federation(table)
        agreed = Offer.from_table(table)
        self._check_format(agreed.agreement.format)
        working = self._made(agreed)
        write_atomically(self.folder / AGREED, json.dumps(table).encode())
        self._working = working
        return {"digests": dict(working.digests)}

    def round(self, data: bytes) -> tuple[dict[str, Any], bytes]:
        """The answer to a message of the exchange, and what else the host is told."""
        working = self._ready()
        working.score = None
        name, form = self.file.deploy.name, state_form(working.enrol())
        with open_site(self.folder / STATE, name, self.name, form) as store:
            exchange = SiteExchange(store, working, working.rounds)
            reply = exchange.answer(data)
            if exchange.delivered:
                self._write_model(store, working.site)
                if working.sums is not None:
                    working.sums.end()
        return ({} if working.score is None else {"score": working.score}), reply

    def report(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """The scores of this site's models, unless its owner keeps them; what others share is kept for its owner."""
        self._check_federation(table)
        if not self.file.deploy.report or not self.trains:
            raise WireError("the host asks for scores, but this site has not agreed to that")
        scores = self._own_scores()
        report = FederationReport.load(self.folder, self.file) or FederationReport(scores.rounds)
        if "report" in table:
            report = FederationReport.from_table(table["report"], self.file)
        replace(report, rounds=scores.rounds, scores={**report.scores, self.name: scores}).save(self.folder)
        return {} if keeps_scores(self.folder) else {"scores": scores.to_table()}

    def _own_scores(self) -> SiteScores:
        """Computed once for each end of the federation: training alone takes as long as its rounds did here."""
        working, path = self._ready(), self.folder / SCORES
        form = state_form(working.enrol())
        with open_site(self.folder / STATE, self.file.deploy.name, self.name, form) as store:
            final = store.final()
        if final is None:
            raise WireError("this site has no final model yet, so it has no scores")
        with suppress(ValueError, WireError, KeyError, TypeError):
            record = json_value(read_plain(path, MAX_SCORES_BYTES)) if path.exists() else {}
            if record["mark"] == final.mark:
                return SiteScores.from_table(record["scores"])
        agreed = self._kept()
        blueprint = self._blueprint(agreed.agreement.format)
        scores = compared(working.site, final, self.file.experiment, blueprint, agreed.widest, self.folder)
        write_atomically(path, json.dumps({"mark": final.mark, "scores": scores.to_table()}).encode())
        return scores

    def sum_up(self, table: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """The answer to a step of a secure sum (deploy/secure)."""
        self._check_federation(table)
        working = self._ready()
        if working.sums is None:
            raise WireError("this site has not agreed to secure sums (server.secure), so it takes part in none")
        with private_folder(working.sums.folder):
            return working.sums.answer(table, working.site.invited(session_of(table).round))

    def _write_model(self, store: SiteStore, site: Site) -> None:
        """What the site ends with, as a model; without its file, `strata predict` computes it from the samples."""
        try:
            if (final := store.final()) is not None:
                rows = site.deployed(final.round, final.state, final.parcel)
                write_model(self.folder / MODEL, site, rows, final.mark)
        except StrataError as error:
            log.warning("the final model was not written: %s", error)

    def clear_blocks(self) -> None:
        """Make room on a full disk: what is removed can be downloaded again."""
        BlockCache(site_folder(self.folder / STATE, self.file.deploy.name, self.name) / BLOCKS).clear()

    # Parts

    def _check_federation(self, table: Mapping[str, Any]) -> None:
        name = self.file.deploy.name
        if table.get("federation") != name:
            raise WireError(
                f"this message is for federation '{shown(table.get('federation'))}', but this site is in '{name}'"
            )

    def _check_format(self, agreed: SampleFormat) -> None:
        """Refuse to read samples in another way than its own: only classes and the order of columns come from others.

        A host that chose means and deviations, or a type with fewer bits, would choose what this site learns.
        """
        try:
            check_names(agreed)
        except DataError as error:
            raise WireError(str(error)) from error
        ours = self._own_format
        # Means and deviations are refused by `Agreement.from_table`.
        alike = agreed.preprocessing.scaling == ours.preprocessing.scaling
        if self.trains:
            facts = compared_facts(ours, agreed, listed=bool(self.file.deploy.classes))
            alike &= all(here == common for _, here, common in facts)
        if not alike:
            wrong = "the host asks this site to read its samples differently from what its own file says"
            raise WireError(f"{wrong}: ask the host which site introduced that")

    def site(self) -> Site:
        """What this site computes with, as it was agreed on."""
        return self._ready().site

    def model_template(self, alone: bool = False) -> nn.Module:
        """The model as it was drawn, into which its tensors fit; it needs no samples."""
        blueprint = self._blueprint(self.agreed_format())
        return (alone_blueprint(blueprint, self.rounds) if alone else blueprint).module.cpu()

    def agreed_format(self) -> SampleFormat:
        return self._kept().agreement.format

    def _ready(self) -> Working:
        if self._working is None:
            self._working = self._made(self._kept())
        return self._working

    def _kept(self) -> Offer:
        path = self.folder / AGREED
        if not path.exists():
            raise WireError("this site has no agreement yet: the host sends one first")
        try:
            return Offer.from_table(json_value(read_plain(path, MAX_AGREEMENT_BYTES)))
        except (WireError, ValueError) as error:
            raise DamagedError(f"'{path}' is damaged ({error}): the host sends it again when it starts") from error

    def _made(self, agreed: Offer) -> Working:
        federation = self._federation(agreed.agreement.format)
        entry = agreed.agreement.roster.entry(self.name)
        if (entry.client, entry.samples, entry.validation) != (self.client, *_counts(federation)):
            problem = f"the host expects {entry.samples} training samples of this site, but its samples differ"
            raise WireError(
                f"{problem}: restore the samples with which the site joined; they cannot change until the end"
            )
        blueprint = self._blueprint(agreed.agreement.format)
        wrong = check_digests(blueprint.digests, agreed.digests)
        if wrong:
            raise WireError(wrong)
        site = site_of(self.file.experiment, blueprint, federation, self.client, agreed.widest)
        releases, rounds = None, rounds_allowed(site.algorithm, site.setup)
        if site.algorithm.requires.client_noise:
            site = site.with_secret(secret_of(self.folder / NOISE))
            if not site.algorithm.requires.secure:  # in secure sums, it takes part in opening one sum of a round
                releases = Releases(self.folder / RELEASED, most_rounds(site.setup, rounds))
        secure = self.file.experiment.server.secure
        if secure:
            check_secure(site.algorithm, site.setup)
        sums = self._sums(agreed.agreement.format) if secure and self.trains else None
        reports = self.file.deploy.scores and not keeps_scores(self.folder)
        return Working(site, reports, blueprint.digests, rounds, sums, releases)

    def _sums(self, format: SampleFormat) -> SiteSums:
        key, keys = read_signing_key(self.folder / SIGNING_KEY), read_site_keys(self.folder / SITE_KEYS)
        folder = site_folder(self.folder / STATE, self.file.deploy.name, self.name)
        return SiteSums(folder, self.file.deploy.name, self.name, self.file.deploy.sites, key, keys, format.to_table())

    def _blueprint(self, agreed: SampleFormat) -> Blueprint:
        return blueprint_of(self.file.experiment, agreed, len(self.file.deploy.sites), self.trust)

    @cached_property
    def _own_format(self) -> SampleFormat:
        return own_format(self.file, self.place)

    def _federation(self, agreed: SampleFormat) -> Federation:
        return site_federation_of(self.file.experiment, agreed, self.place, self.client, trains=self.trains)


def keeps_scores(folder: Path) -> bool:
    """Whether the owner of a site has said at joining that its scores stay there; a damaged file counts as yes."""
    path = folder / CONSENT
    if not path.exists():
        return False
    with suppress(ValueError, DamagedError):
        record = json_value(read_plain(path, MAX_CONSENT_BYTES))
        return not isinstance(record, dict) or record.get("keeps_scores") is True
    return True


def own_format(file: FederationFile, place: str) -> SampleFormat:
    """The format of a site's own samples, without what they are like, with the classes of the federation."""
    experiment = file.experiment
    alone = {"channel": "'image', 'half' or 'unit'", "pooled": "'columns'"}
    samples = site_samples(experiment, place)
    if experiment.data.normalise in alone and samples.table is None:  # its numbers would leave the site
        wrong = f"data.normalise = '{experiment.data.normalise}' would need means over all sites"
        raise DataError(f"{wrong}: use {alone[experiment.data.normalise]}")
    if experiment.data.tokens == "trained":
        raise DataError("data.tokens = 'trained' would need the texts of all sites: use 'hashed'")
    format = with_listed_classes(shareable_format(SampleFormat.of(samples)), file.deploy.class_names)
    return check_names(format)


def site_samples(experiment: Experiment, place: str) -> Federation:
    """A site's own samples, read as the experiment says."""
    return federation_of(with_values(experiment, {"data.name": place, "data.clients": 1, "data.partition": "iid"}))


def _counts(federation: Federation) -> tuple[int, int]:
    train, validation = (len(federation.splits[split].indices) for split in ("train", "validation"))
    return train, validation
