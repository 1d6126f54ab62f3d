"""Personalised federated learning, layer by layer.

A federation is a matrix: rows are clients, columns are parameters, and columns are grouped into named layers.
`fit` trains on your own arrays, `load` reads a run directory; both return a `Fitted`.
"""

from typing import TYPE_CHECKING, Any

from stratafl.version import VERSION

if TYPE_CHECKING:
    from stratafl.api import Fitted, fit, load

__version__ = VERSION
__all__ = ["Fitted", "__version__", "fit", "load"]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    # Imported when used, so that `strata --help` does not wait for torch.
    if name not in ("Fitted", "fit", "load"):
        raise AttributeError(f"module 'stratafl' has no attribute '{name}'")
    from stratafl import api

    return getattr(api, name)
