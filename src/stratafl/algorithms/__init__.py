"""The catalogue: name → builder. Names are lower case without punctuation."""

from collections.abc import Callable
from typing import Any

from stratafl.algorithms.fedalp import fedalp
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.fedavg30local import fedavg30local
from stratafl.algorithms.fedbn import fedbn
from stratafl.algorithms.fedlag import fedlag
from stratafl.algorithms.fedper import fedper
from stratafl.algorithms.fedprox import fedprox
from stratafl.algorithms.fedrep import fedrep
from stratafl.algorithms.flayer import flayer
from stratafl.algorithms.lgfedavg import lgfedavg
from stratafl.algorithms.local import local
from stratafl.algorithms.pfedla import heurpfedla, pfedla
from stratafl.algorithms.simmix import simmix
from stratafl.core.algorithm import Algorithm
from stratafl.errors import unknown

__all__ = ["ALGORITHMS", "algorithm", "fedalp", "fedavg", "fedavg30local", "fedbn", "fedlag", "fedper", "fedprox"]
__all__ += ["fedrep", "flayer", "heurpfedla", "lgfedavg", "local", "pfedla", "simmix"]

_BUILDERS: list[Callable[..., Algorithm]] = [fedalp, fedavg, fedavg30local, fedbn, fedlag, fedper, fedprox, fedrep]
_BUILDERS += [flayer, heurpfedla, lgfedavg, local, pfedla, simmix]
ALGORITHMS = {builder.__name__: builder for builder in _BUILDERS}


def algorithm(name: str, **options: Any) -> Algorithm:
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, sorted(ALGORITHMS))
    return ALGORITHMS[name](**options)
