"""Differential privacy on a method: a function from record to record that replaces its one plain mean.

with_private(fedper(), norm=0.5, noise=2.0)                   # fedper+private: the server adds the noise
with_private(fedper(), dp="distributed", dp_colluding=1)      # the clients do, under secure sums
"""

from dataclasses import replace
from typing import Annotated, Literal

from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Fixed
from stratafl.core.fields import Start
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.records import validated
from stratafl.core.steps import Send
from stratafl.errors import RecordError
from stratafl.policies.compress import Received
from stratafl.policies.merge import Mean, Positive
from stratafl.policies.private import (
    Count,
    Delta,
    Noise,
    PrivateMean,
    SendPrivateUpdate,
    SumOfPrivateUpdates,
)

PROMISED = Fixed("the promised privacy: a tuner would give it up, and each of its runs costs privacy")
PrivacyModel = Literal["central", "local", "distributed"]


@validated
def with_private(
    host: Algorithm,
    *,
    norm: Annotated[Positive, PROMISED] = 1.0,
    noise: Annotated[Noise, PROMISED] = 1.0,
    dp_delta: Annotated[Delta, PROMISED] = 1e-5,
    dp: Annotated[PrivacyModel, PROMISED] = "central",
    dp_budget: Annotated[Positive, PROMISED] | None = None,
    dp_colluding: Annotated[Count, PROMISED] = 0,
    dp_by_layer: bool = False,
) -> Algorithm:
    """Updates are at most `norm` long, every client counts once, and their sum gets noise of `noise` times `norm`.

    `dp` says who adds it: the server (`central`), each client all of it (`local`) or all clients together, in secure
    sums (`distributed`), of whom `dp_colluding` may help the server. A run ends before ε exceeds `dp_budget`.
    With `dp_by_layer` each of L shared layers is at most `norm`/√L long, for the same ε.
    """
    if not isinstance(host, Layerwise):
        raise RecordError(
            "a private mean needs a method of one phase whose rounds share only a model: choose another method"
        )
    mean = host.merge[0] if len(host.merge) == 1 else None
    if type(mean) is not Mean:
        steps = ", ".join(type(step).__name__ for step in host.merge) or "nothing"
        raise RecordError(
            f"a private mean replaces one plain mean (Mean), but this method merges by {steps}, which adds no noise: "
            "choose a method such as fedavg, fedper or fedrep"
        )
    if not _is_model(host, mean.field):
        raise RecordError(f"a private mean averages a model, but '{mean.field}' is not one: choose another method")
    if mean.unsent != "held" or mean.clip is not None:
        raise RecordError(
            "a private mean clips updates itself and counts unsent columns as unchanged: leave out clip and unsent"
        )
    if dp_colluding and dp != "distributed":
        raise RecordError(f"dp_colluding has no meaning with dp='{dp}': leave it out, or choose dp='distributed'")
    layers = _sent(host, mean.field)
    if dp == "central":
        private = PrivateMean(
            mean.field, clip=norm, noise=noise, delta=dp_delta, layers=layers, budget=dp_budget, by_layer=dp_by_layer
        )
        return replace(host, merge=(private,))
    merge = SumOfPrivateUpdates(mean.field, norm, noise, dp_delta, layers, dp_budget, dp, dp_colluding)
    send = SendPrivateUpdate(_sender(host, mean.field), mean.field, norm, noise, dp, layers, dp_by_layer)
    return replace(host, mix=(*host.mix, Received(mean.field)), send=(send,), merge=(merge,))


def _is_model(host: Layerwise, field: str) -> bool:
    """Whether the server keeps one model for all clients, which this mean writes."""
    spec = host.server_fields[field]
    return isinstance(spec, Start) and not spec.per_client and spec.copies is None


def _sent(host: Layerwise, field: str) -> Select:
    """The layers that clients send."""
    layers = [getattr(step, "layers", None) for step in host.send if f"up.{field}" in step.writes]
    return layers[0] if len(layers) == 1 and isinstance(layers[0], Select) else select("all")


def _sender(host: Layerwise, field: str) -> Send:
    """The step that sends the whole model, whose every column gets noise at its client."""
    senders = [step for step in host.send if f"up.{field}" in step.writes]
    serving = [step for step in host.serve if f"down.{field}" in step.writes]
    if host.pack:
        raise RecordError("packed uploads carry no noise of clients: leave the compression out, or choose dp='central'")
    if len(senders) != 1 or len(serving) != 1 or senders[0].masked or serving[0].masked:
        raise RecordError(
            "noise of clients needs updates of which every column is sent, because which ones are would tell of the "
            "data: choose a method without masks, or dp='central'"
        )
    return senders[0]
