"""The catalogue: name → builder. Names are lower case without punctuation."""

from collections.abc import Callable
from typing import Any

from stratafl.algorithm import Algorithm
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.fedbn import fedbn
from stratafl.algorithms.fedper import fedper
from stratafl.algorithms.fedprox import fedprox
from stratafl.algorithms.fedrep import fedrep
from stratafl.algorithms.lgfedavg import lgfedavg
from stratafl.algorithms.local import local
from stratafl.errors import unknown

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    builder.__name__: builder for builder in (fedavg, fedbn, fedper, fedprox, fedrep, lgfedavg, local)
}


def algorithm(name: str, **options: Any) -> Algorithm:
    """An algorithm by its name."""
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, sorted(ALGORITHMS))
    return ALGORITHMS[name](**options)


__all__ = ["ALGORITHMS", "algorithm", "fedavg", "fedbn", "fedper", "fedprox", "fedrep", "lgfedavg", "local"]
