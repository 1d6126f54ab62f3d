"""Candidates: all methods that a full comparison would run, and the short list that the data suggests.

`comparable` is what a full comparison would run: its client-steps are what advice is given a tenth of. `short_list`
takes from it what the facts of the federation speak for, and says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stratafl.advice.look import MOST_GROUPS, STRONG, Facts
from stratafl.algorithms.declaration import METHODS
from stratafl.core.layout import Layout
from stratafl.core.reprs import short_repr

TRAINS_ALONE = "local"
GROUPS = (2, 4)  # of clients, that a comparison would try


@short_repr
@dataclass(frozen=True)
class Candidate:
    """A method with its options, and what a round of it costs.

    `epochs` are descents over a client's training samples per round, and `tuning` before use, in multiples of
    `train.epochs`. Candidates with the same `training` differ only in what they do before use: one training serves all.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: float = 1.0
    tuning: float = 0.0
    training: str = ""
    personal: str = ""  # the layers that stay with the client, as a selection; "" for none or all
    why: str = ""

    @property
    def name(self) -> str:
        options = ", ".join(f"{key} {value}" for key, value in self.options.items())
        return f"{self.method} ({options})" if options else self.method

    @property
    def label(self) -> str:
        """As papers write it."""
        return self.name.replace(self.method, METHODS[self.method].label, 1)

    @property
    def trunk(self) -> str:
        """What names its training."""
        return self.training or self.name


def comparable(layout: Layout, classes: int | None, clients: int, epochs: int = 1) -> list[Candidate]:
    """What a full comparison on this model and data would run, each method at its defaults; `epochs` of a round."""
    kinds = {layer.kind for layer in layout.layers}
    depth = len(set(layout.leaders))
    candidates = [
        Candidate(TRAINS_ALONE, personal="all"),
        Candidate("fedavg", training="fedavg"),
        Candidate("fedavgft", training="fedavg", tuning=1 / epochs),
        Candidate("fedavglpft", training="fedavg", tuning=2 / epochs),
        Candidate("ditto", epochs=2, personal="all"),
        Candidate("heurfedamp"),
        Candidate("flayer"),
    ]
    if depth > 1:  # else the head is the model
        candidates += [
            Candidate("fedper", {"personal": "head"}, personal="head"),
            Candidate("fedrep", {"personal": "head"}, epochs=1 + 1 / epochs, personal="head"),
            Candidate("lgfedavg", {"shared": "head"}, personal="base"),
        ]
    if depth > 2:
        candidates.append(Candidate("fedper", {"personal": "last:2"}, personal="last:2"))
    if "batchnorm" in kinds:
        candidates.append(Candidate("fedbn", personal="batchnorm"))
    if classes is not None and classes > 1:
        candidates += [Candidate(name, personal="head.prior") for name in ("fedprior", "fedstrata")]
        candidates.append(Candidate("fedrod", personal="head.personal"))
    return [*candidates, *(Candidate("ifca", {"groups": groups}) for groups in GROUPS if clients >= 2 * groups)]


def short_list(facts: Facts, every: Sequence[Candidate]) -> list[Candidate]:
    """Those that the facts speak for, each with why; training alone and one model for all are always among them."""
    by_name = {each.name: each for each in every}
    chosen: dict[str, Candidate] = {}

    def take(name: str, why: str) -> None:
        if name in by_name and name not in chosen:
            chosen[name] = replace(by_name[name], why=why)

    take(TRAINS_ALONE, "the baseline: each client trains alone")
    take("fedavg", "one model for all, the simplest way to share")
    take("fedavgft", "FedAvg's model, fine-tuned by each client for one epoch; shares FedAvg's training")
    take("fedavglpft", "the same, fine-tuning the head first; shares FedAvg's training")
    shifted = facts.shift is not None and facts.shift.there and facts.shift.value >= STRONG
    skewed = facts.skew is not None and facts.skew.there
    if shifted and facts.groups:
        count = max(max(GROUPS), min(facts.group_count, MOST_GROUPS))  # a model too many costs bytes, one too few more
        name = f"ifca (groups {count})"
        by_name.setdefault(name, Candidate("ifca", {"groups": count}))
        take(name, f"features form {facts.group_count} groups of clients: each group can have its own model")
    if shifted:
        take("heurfedamp", "features differ: clients with similar models share most")
    else:
        take("fedprior", "each class looks the same at all clients: only class frequencies stay with the client")
        take("fedstrata", "as FedPrior, with larger steps near the output; clients send what changed most")
    if skewed:
        take("fedper (personal head)", "clients have different classes: they conflict in the head")
    if skewed and not shifted:
        take("flayer", "clients have different classes: each mixes the shared head with its own")
    if shifted and not facts.groups:
        take("lgfedavg (shared head)", "features differ: each client has its own base")
    if facts.batchnorm:
        take("fedbn", "the model has BatchNorm, whose statistics can stay with each client")
    if facts.classes is None and not shifted:
        take("fedper (personal head)", "to see whether a personal head helps")
    return list(chosen.values())
