"""Personalised federated learning, layer by layer.

A federation is a matrix: rows are clients, columns are parameters, and columns are grouped into named layers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratafl.api import Fitted, fit, load

__version__ = "0.1.0.dev0"
__all__ = ["Fitted", "__version__", "fit", "load"]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    # Late, so that `strata --help` need not wait for torch.
    if name not in ("Fitted", "fit", "load"):
        raise AttributeError(f"module 'stratafl' has no attribute '{name}'")
    from stratafl import api

    return getattr(api, name)
