"""Protocols: named groups of settings for choices that differ between papers and between code bases.

A protocol only sets defaults: any setting of a configuration or a command takes precedence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratafl.algorithms import ALGORITHMS

# The digits that come with the package are there for a first look. This setting was chosen, among nine, because the
# effect of personal layers shows in it: at a concentration of 0.1 training alone is as good.
DATA_SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"data.alpha": 0.3, "train.lr": 0.1},
    "ag-news": {"model.name": "fasttext"},
}
# Of models, and of models for your own texts: chosen on validation samples, see docs/results/defaults.md.
MODEL_SETTINGS: dict[str, dict[str, Any]] = {"transformer": {"train.optimizer": "adam", "train.lr": 0.001}}
TEXT_MODEL = "fasttext"  # of your own texts, unless you name one
TEXT_SETTINGS: dict[str, dict[str, Any]] = {
    "fasttext": {"model.pads": False, "train.optimizer": "adam", "train.lr": 0.03},
    "embedding": {"model.pads": False, "train.optimizer": "adam", "train.lr": 0.03},
    "transformer": {},
}


@dataclass(frozen=True)
class Protocol:
    """What it says, and its settings as `table.key`, or `method.option` for one method alone."""

    says: str
    settings: Mapping[str, Any]

    def tables(
        self, method: str, data: str, model: str | None = None, vocabulary: int | None = None
    ) -> dict[str, dict[str, Any]]:
        """The settings for a method, or else those of a data set and of a model, as tables of a configuration.

        `vocabulary` is that of your own texts.
        """
        tables: dict[str, dict[str, Any]] = {}
        usual = {**DATA_SETTINGS.get(data, {}), **_of_model(model, vocabulary)}
        for path, value in {**usual, **self.settings}.items():
            table, _, key = path.partition(".")
            if table in ALGORITHMS and table != method:
                continue
            tables.setdefault("algorithm" if table == method else table, {})[key] = value
        return tables


def text_options(model: str, vocabulary: int) -> dict[str, Any]:
    """The options that a model of the catalogue gets for your own texts."""
    settings = {"model.vocabulary": vocabulary, **TEXT_SETTINGS[model]} if model in TEXT_SETTINGS else {}
    return {path.removeprefix("model."): value for path, value in settings.items() if path.startswith("model.")}


def training_options(model: str, vocabulary: int | None) -> dict[str, Any]:
    """The optimiser and learning rate that a model of the catalogue gets; `vocabulary` is that of your own texts."""
    settings = _of_model(model, vocabulary)
    return {path.removeprefix("train."): value for path, value in settings.items() if path.startswith("train.")}


def _of_model(model: str | None, vocabulary: int | None) -> dict[str, Any]:
    if vocabulary is None:
        return MODEL_SETTINGS.get(model or "", {})
    name = model or TEXT_MODEL
    texts = {"model.vocabulary": vocabulary, **TEXT_SETTINGS[name]} if name in TEXT_SETTINGS else {}
    return {"model.name": name, **MODEL_SETTINGS.get(name, {}), **texts}


_TEST_SELECTED = {"data.validation": 0.0, "data.split": "random", "evaluate.select": "best", "evaluate.metric": "plain"}
_TEST_SELECTED |= {"server.norm_limit": 0.0}  # papers average whatever clients send
_PFLLIB = {**_TEST_SELECTED, "data.test": 0.25, "train.drop_last": True}
_PFLLIB |= {"run.buffers": "local", "evaluate.stage": "received"}
_LAST = {**_TEST_SELECTED, "evaluate.select": "last", "evaluate.stage": "received", "evaluate.average": "clients"}

PROTOCOLS: dict[str, Protocol] = {
    "clean": Protocol(
        "the round is selected on validation data, BatchNorm statistics follow their layer, no sample is dropped", {}
    ),
    "pfllib": Protocol(
        "PFLlib's: no validation, last batches dropped, statistics stay with clients, the best test accuracy of models "
        "as received, over all samples",
        _PFLLIB,
    ),
    "flayer-official": Protocol(
        "the FLAYER authors' code: PFLlib's protocol with their published method, in which test accuracy steers "
        "training",
        {**_PFLLIB, "flayer.preset": "official"},
    ),
    "fl-bench": Protocol(
        "FL-bench's: no validation, batches of 32, statistics stay with clients, the best test accuracy right after "
        "local training",
        {**_TEST_SELECTED, "data.test": 0.25, "train.batch": 32, "run.buffers": "local", "evaluate.stage": "trained"},
    ),
    "flayer": Protocol(
        "for FLAYER's tables: PFLlib's, as in the published code, with the paper's batches of 10",
        {**_PFLLIB, "train.batch": 10},
    ),
    "fedper": Protocol(
        "for FedPer's figures: the mean over clients of the test accuracy of models as received, at the last round",
        {**_LAST, "train.epochs": 4, "train.batch": 128, "train.lr": 0.01},
    ),
    "pfedla": Protocol(
        "for pFedLA's tables: the mean over clients of the test accuracy of models as mixed for them, last round",
        {**_LAST, "run.buffers": "local", "data.test": 0.3, "train.epochs": 10, "train.batch": 32, "train.lr": 0.01},
    ),
    "fedalp": Protocol(
        "for FedALP's tables: the mean over clients of the test accuracy of models as received, at the last round",
        {**_LAST, "train.epochs": 20, "train.batch": 50},
    ),
    "fedlag": Protocol(
        "for FedLAG's tables: PFLlib's with batches of 16, as in the published code (the paper does not say)",
        {**_PFLLIB, "train.batch": 16},
    ),
}
