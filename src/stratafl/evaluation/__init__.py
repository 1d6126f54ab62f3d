"""The layer laboratory: what happens to each layer, for any algorithm."""

from stratafl.evaluation.cka import cka
from stratafl.evaluation.lab import Lab

__all__ = ["Lab", "cka"]
