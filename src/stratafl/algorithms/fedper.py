"""FedPer, for any fixed set of personal layers; FedBN, FedRep and LG-FedAvg have other layers or another order."""

from dataclasses import replace
from typing import Annotated, Literal

from torch import Tensor, nn

from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range
from stratafl.core.fields import Start
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.records import record, validated
from stratafl.errors import ModelError, RecordError
from stratafl.models import LinearBase, Staged
from stratafl.policies import SGD, Broadcast, Upload


@validated
def fedper(
    *,
    personal: str | Select = "head",
    initial: Literal["common", "own"] = "common",
    finetune: Annotated[int, Range(least=0)] = 0,
    linear_base: bool = False,
    train: SGD = SGD(),
) -> Layerwise:
    """FedPer (Arivazhagan et al., 2019): shared base layers by FedAvg, private top layers that never leave the client.

    Personal layers W_P stay (`blocks:2` is the paper's K_P = 2); the rest, W_B, is averaged with γ_j = n_j/Σn.
    `initial="own"` draws W_P^(0) for each client (Algorithm 1 line 1), `finetune` trains W_P alone for so many epochs
    before the joint ones (appendix A.3), `linear_base` replaces all that is not personal by one linear layer (4.4).
    """
    kept = select(personal)
    first = replace(train, layers=kept, epochs=finetune, steps=None, purpose="finetune")
    return replace(
        fedavg(train=train),
        serve=(Broadcast(~kept),),  # Algorithm 2 lines 3 and 7
        train=(first, train) if finetune else (train,),  # Algorithm 1 line 5: W_B and W_P jointly
        send=(Upload(~kept),),  # Algorithm 1 line 6
        server={"theta": Start(~kept)},
        client={"theta": Start(kept, own=initial == "own")},
        extension=LinearBaseExtension(_blocks(kept)) if linear_base else None,
    )


def _blocks(personal: Select) -> int:
    """K_P: how many blocks are personal, the classifier included."""
    rule, _, count = str(personal).partition(":")
    if rule not in ("head", "blocks"):
        raise RecordError(f"a linear base replaces all but 'head' or the last 'blocks:K', personal is '{personal}'")
    return int(count or 1)


@record
class LinearBaseExtension:
    """Replace the base by one linear layer whose output has the shape that the first personal block expects."""

    personal: int = 1

    def __call__(self, module: nn.Module, example: Tensor, classes: int | None) -> nn.Module:
        if not isinstance(module, Staged):
            raise ModelError(f"a linear base needs a model in stages, which {type(module).__name__} is not")
        return LinearBase(module, self.personal, tuple(example.shape[1:]))


def fedbn(*, train: SGD = SGD()) -> Layerwise:
    """FedBN (Li et al., 2021): BatchNorm layers and their statistics stay with the client.

    Layers are chosen by what they are: the name test of public code (`"bn" in name`) misses the BatchNorm of a ResNet's
    shortcuts and averages it.
    """
    return fedper(personal="batchnorm", train=train)


@validated
def fedrep(
    *, personal: str | Select = "head", head_epochs: Annotated[int, Range(least=0)] = 1, train: SGD = SGD()
) -> Layerwise:
    """FedRep (Collins et al., 2021): FedPer that trains the head first, with the base frozen, then the base.

    τ_h epochs on h_k with φ frozen, then τ_b (= train.epochs) epochs on φ_k with h_k frozen.
    """
    head = select(personal)
    return replace(
        fedper(personal=head),
        train=(
            replace(train, layers=head, epochs=head_epochs, steps=None, purpose="head"),
            replace(train, layers=~head),
        ),
    )


@validated
def lgfedavg(*, shared: str | Select = "head", train: SGD = SGD()) -> Layerwise:
    """LG-FedAvg (Liang et al., 2020), the mirror of FedPer: local representation, global head."""
    return fedper(personal=~select(shared), train=train)
