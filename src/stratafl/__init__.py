"""Personalised federated learning, layer by layer.

A federation is a matrix: rows are clients, columns are parameters, and columns are grouped into named layers.
`fit` trains on your own arrays, `load` reads a run directory; both return a `Fitted`. `compare`, `tune` and `advise`
are the commands of these names for the same arrays.
"""

from typing import TYPE_CHECKING, Any

from stratafl.version import VERSION

if TYPE_CHECKING:
    from stratafl.api import Fitted, advise, compare, fit, load, tune

__version__ = VERSION
__all__ = ["Fitted", "__version__", "advise", "compare", "fit", "load", "tune"]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    # Imported when used, so that `strata --help` does not wait for torch.
    if name == "__version__" or name not in __all__:
        raise AttributeError(f"module 'stratafl' has no attribute '{name}'")
    from stratafl import api

    return getattr(api, name)
