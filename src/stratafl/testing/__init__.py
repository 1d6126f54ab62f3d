"""The contract: what every algorithm must satisfy, ours and yours.

    from stratafl.testing import check_algorithm
    check_algorithm(my_algorithm())

It runs the algorithm on a small federation (convolution, BatchNorm and dropout; ragged clients, one of them smaller
than a batch), under both rules for buffers, with full and half participation, and raises a `ContractError` that names
the law that was broken. Phases are shortened so that every one of them is reached. The laws are in `laws.py`.
"""

from stratafl.algorithms.special_cases import SpecialCase
from stratafl.testing.case import (
    CLASSES,
    SHAPE,
    SIZES,
    Case,
    difference,
    everything,
    tiny_federation,
    tiny_model,
    within_reach,
)
from stratafl.testing.contract import SETTINGS, check_algorithm, check_special_case, law_results

__all__ = [
    "CLASSES",
    "SETTINGS",
    "SHAPE",
    "SIZES",
    "Case",
    "SpecialCase",
    "check_algorithm",
    "check_special_case",
    "difference",
    "everything",
    "law_results",
    "tiny_federation",
    "tiny_model",
    "within_reach",
]
