"""FedPer (Arivazhagan et al., 2019): shared base layers by FedAvg, private top layers that never leave the client.

Algorithm 1 (client) and Algorithm 2 (server) of the paper; any fixed set of personal layers, not only the top ones.
"""

from dataclasses import replace
from typing import Annotated, Literal

from torch import Tensor, nn

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Fixed, Range
from stratafl.core.fields import Start
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.records import record
from stratafl.errors import ModelError, RecordError
from stratafl.models import LinearBase, Staged
from stratafl.policies import Broadcast, LocalTraining, Upload


@method(
    "personal parts",
    paper="Arivazhagan et al., 2019",
    title="Federated Learning with Personalization Layers",
    sends="the base: all but the personal layers",
    new_client="the shared base and the initial head",
)
def fedper(
    *,
    personal: str | Select = "head",
    initial: Literal["common", "own"] = "common",
    finetune: Annotated[int, Range(least=0), Fixed("an experiment in the appendix")] = 0,
    linear_base: bool = False,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """`personal` layers W_P stay (`blocks:2` is the paper's K_P = 2); the rest, W_B, is averaged with γ_j = n_j/Σn.

    `initial="own"` draws W_P^(0) for each client (Algorithm 1 line 1), `finetune` epochs train W_P alone before the
    joint ones (appendix A.3), `linear_base` replaces all that is not personal by one linear layer (4.4).
    """
    private = select(personal)
    first = replace(train, layers=private, epochs=finetune, steps=None, purpose="finetune")
    return replace(
        fedavg(train=train),
        serve=(Broadcast(~private),),  # Algorithm 2 lines 3 and 7
        train=(first, train) if finetune else (train,),  # Algorithm 1 line 5: W_B and W_P jointly
        send=(Upload(~private),),  # Algorithm 1 line 6
        server={"theta": Start(~private)},
        client={"theta": Start(private, own=initial == "own")},
        extension=LinearBaseExtension(_blocks(private)) if linear_base else None,
    )


def _blocks(personal: Select) -> int:
    """K_P: how many blocks are personal, the classifier included."""
    rule, _, count = str(personal).partition(":")
    if rule not in ("head", "blocks"):
        raise RecordError(f"linear_base needs personal 'head' or 'blocks:K', not '{personal}'")
    return int(count or 1)


@record
class LinearBaseExtension:
    """Replace the base by one linear layer whose output has the shape that the first personal block expects."""

    personal: int = 1

    def __call__(self, module: nn.Module, example: Tensor, classes: int | None, head: str) -> nn.Module:
        if not isinstance(module, Staged):
            raise ModelError(f"a linear base needs a model in stages, but {type(module).__name__} has none")
        return LinearBase(module, self.personal, tuple(example.shape[1:]))
