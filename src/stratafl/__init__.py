"""Personalised federated learning, layer by layer.

    fitted = stratafl.fit("fedper", {"Basel": (x, y), "Bern": (x2, y2)}, "mlp", rounds=10, lr=0.1)
    fitted.client("Basel").predict(x_new)

`fit` trains on your own samples, `load` reads a run directory; both return a `Fitted`. `compare`, `tune` and `advise`
are the commands of these names for the same samples. `digits` and `partition` give samples to try them on. The names
listed in `__all__` are public, and so is `stratafl.methods`, from which the author of a method imports.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stratafl.version import VERSION

if TYPE_CHECKING:
    from stratafl.api import (
        AdviceResult,
        BestMethod,
        ComparisonResult,
        CrossSiteResult,
        Fitted,
        FittedClient,
        Guarded,
        Predictions,
        StrataError,
        TuningResult,
        advise,
        compare,
        digits,
        fit,
        load,
        partition,
        tune,
    )

__version__ = VERSION
__all__ = [
    "AdviceResult",
    "BestMethod",
    "ComparisonResult",
    "CrossSiteResult",
    "Fitted",
    "FittedClient",
    "Guarded",
    "Predictions",
    "StrataError",
    "TuningResult",
    "__version__",
    "advise",
    "compare",
    "digits",
    "fit",
    "load",
    "partition",
    "tune",
]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    # Imported when used, so that `strata --help` does not wait for torch.
    if name == "methods":
        return import_module("stratafl.methods")
    if name == "__version__" or name not in __all__:
        raise AttributeError(f"module 'stratafl' has no attribute '{name}'")
    from stratafl import api

    return getattr(api, name)
