"""The layer laboratory: what happens to each layer, for any algorithm."""

from stratafl.analysis.cka import cka
from stratafl.analysis.lab import Lab

__all__ = ["Lab", "cka"]
