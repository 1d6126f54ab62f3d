"""Meanings of the fields of uploads and downloads, which a form cannot say: a kind and one sentence for each.

`sent_fields.py` finds out from forms which fields travel, of what shape and size. A test fails if a method or a
composition of the catalogue has a field that is not here. What a server could learn from each kind
is in docs/understand/what-the-server-learns.md.
"""

from dataclasses import dataclass
from typing import Literal

Direction = Literal["up", "down"]
Kind = Literal[
    "model", "gradient", "count", "class counts", "features", "running statistics", "score", "choice", "unknown"
]
KINDS: dict[Kind, str] = {
    "model": "tensors of a model, or their changes",
    "gradient": "a gradient, or a sum of gradients",
    "count": "a number of samples",
    "class counts": "how many samples of each class there are",
    "features": "means and spreads of the head's inputs",
    "running statistics": "means and variances of activations, kept by normalisation layers",
    "score": "how well models do on a site's samples",
    "choice": "which of several models fits a site",
    "unknown": "the method does not declare what it is",
}


@dataclass(frozen=True)
class Meaning:
    """What a field is, and what it says of a site or of the others."""

    kind: Kind
    says: str


UNKNOWN = Meaning("unknown", "its meaning is not declared: ask the author of the method")
_UP = {
    "theta": Meaning("model", "the model after training on this site's samples"),
    "core": Meaning("model", "this site's own model of a mixture, which every other site receives unchanged"),
    "c_change": Meaning("gradient", "the change of this site's control variate, which is its mean gradient"),
    "statistics": Meaning("running statistics", "means and variances inside the model, on this site's samples"),
    "samples": Meaning("count", "how many training samples this site has"),
    "class_counts": Meaning("class counts", "how many training samples of each class this site has"),
    "prototypes": Meaning("features", "the mean features of this site's samples, class by class"),
    "feature_mean": Meaning("features", "the mean features of all of this site's training samples"),
    "means": Meaning("features", "the mean features of each class, mixed with those of all sites"),
    "covariance": Meaning("features", "how features vary together within classes, mixed with that of all sites"),
    "H": Meaning("features", "mean features class by class, times the share of the class"),
    "V": Meaning("features", "how far this site's features spread around their class means"),
    "fisher": Meaning("gradient", "the sum of the squared norms of this site's gradients, one number"),
    "gain": Meaning("score", "how much each received model lowers this site's validation loss"),
    "group": Meaning("choice", "the number of the model that fits this site's training samples best"),
}
_DOWN = {
    "theta": Meaning("model", "the model from which this site starts"),
    "cores": Meaning("model", "the models of all sites, each as its site sent it"),
    "models": Meaning("model", "models of individual other sites, as they sent them"),
    "groups": Meaning("model", "a model for each group of sites"),
    "heads": Meaning("model", "a mixture of the heads of all sites, made for this one"),
    "u": Meaning("model", "a mixture of the models of all sites, made for this one"),
    "c": Meaning("gradient", "the mean gradient over all sites"),
    "statistics": Meaning("running statistics", "means and variances inside the model, over all sites"),
    "sizes": Meaning("count", "how many training samples each site has"),
    "prototypes": Meaning("features", "the mean features of each class, over all sites"),
    "known": Meaning("choice", "which classes any site has had so far"),
    "feature_mean": Meaning("features", "the mean features, over all sites"),
    "means": Meaning("features", "the mean features of each class, over all sites"),
    "covariance": Meaning("features", "how features vary together within classes, over all sites"),
}
# What a field travels as if it is compressed, of which `policies/codecs.py` names the parts, or has noise of the site.
_PARTS = {
    "codes": "8 or 4 bits per number",
    "scale": "the largest number of each tensor",
    "places": "which numbers changed most",
    "values": "the numbers that changed most",
    "update": "its change, shortened, to which this site adds noise",
}


def meaning_of(direction: Direction, field: str) -> Meaning:
    """What a field means; of what travels instead of it, what the field does and how it travels."""
    meanings = _UP if direction == "up" else _DOWN
    if field in meanings:
        return meanings[field]
    whole, _, part = field.rpartition(".")
    if direction == "up" and whole in meanings and part in _PARTS:
        return Meaning(meanings[whole].kind, f"{meanings[whole].says}: {_PARTS[part]}")
    return UNKNOWN
