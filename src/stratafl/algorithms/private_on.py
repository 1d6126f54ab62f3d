"""Differential privacy for clients on methods whose server does nothing but average a model.

    with_private(fedper(), norm=0.5, noise=1.0)        # fedper+private

Whatever a server makes of uploads beside that mean would reach other clients without noise, so such methods are
refused. The mean is in `stratafl.policies.private`, what it guarantees in `stratafl.policies.accountant`.
"""

from dataclasses import replace
from typing import Annotated

from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Fixed
from stratafl.core.fields import Start
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.records import validated
from stratafl.errors import RecordError
from stratafl.policies.merge import Mean, Positive
from stratafl.policies.private import Delta, Noise, PrivateMean

OWN = Fixed("what privacy is promised: a tuner would give it up, and each of its runs costs privacy")


@validated
def with_private(
    host: Algorithm,
    *,
    norm: Annotated[Positive, OWN] = 1.0,
    noise: Annotated[Noise, OWN] = 1.0,
    dp_delta: Annotated[Delta, OWN] = 1e-5,
) -> Algorithm:
    """Updates are at most `norm` long, every client counts once, and the sum gets noise of `noise` times `norm`."""
    if not isinstance(host, Layerwise):
        raise RecordError("a private mean needs a method of one phase, of which every round shares a model and no more")
    mean = host.merge[0] if len(host.merge) == 1 else None
    if type(mean) is not Mean:
        steps = ", ".join(type(step).__name__ for step in host.merge) or "nothing"
        raise RecordError(
            f"a private mean takes the place of one plain mean (Mean), and this method merges by {steps}, of which "
            "other clients would see more: choose one such as fedavg, fedper or fedrep"
        )
    if not _is_model(host, mean.field):
        raise RecordError(f"a private mean is of a model, and '{mean.field}' is none: choose another method")
    if mean.unsent != "held" or mean.clip is not None:
        raise RecordError("a private mean clips by itself and counts what is not sent as no change: leave both out")
    private = PrivateMean(mean.field, clip=norm, noise=noise, delta=dp_delta, layers=_sent(host, mean.field))
    return replace(host, merge=(private,))


def _is_model(host: Layerwise, field: str) -> bool:
    """Whether all that the server keeps is one model for everybody, which this mean writes."""
    spec = host.server_fields[field]
    return isinstance(spec, Start) and not spec.per_client and spec.copies is None


def _sent(host: Layerwise, field: str) -> Select:
    """The layers that clients send."""
    each = [getattr(step, "layers", None) for step in host.send if f"up.{field}" in step.writes]
    return each[0] if len(each) == 1 and isinstance(each[0], Select) else select("all")
