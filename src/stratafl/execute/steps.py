"""What executors ask the steps of an algorithm before the first round."""

import logging

from stratafl.core.algorithm import Algorithm
from stratafl.data.federation import Federation
from stratafl.errors import DataError

log = logging.getLogger("stratafl")


def check_splits(algorithm: Algorithm, federation: Federation) -> None:
    if algorithm.leaks is not None:
        log.warning("%s: its results cannot be compared with those of other methods", algorithm.leaks)
    elif "test" in algorithm.splits:
        raise DataError("the algorithm asks for the test split, which no algorithm is given")
    for split in algorithm.splits:
        if int(federation.counts(split).min()) == 0:
            raise DataError(f"the algorithm needs the split '{split}', which some clients do not have: make it larger")


def check_batches(algorithm: Algorithm, federation: Federation, new_clients: int) -> None:
    largest = int(federation.counts("train")[: federation.clients - new_clients].max())
    for step in algorithm.steps:
        batch = getattr(step, "batch", 1)
        if getattr(step, "drop_last", False) and batch > largest:
            raise DataError(
                f"drop_last with batches of {batch} leaves nothing to train on: the largest client has {largest}"
            )


def any_evaluates(algorithm: Algorithm) -> bool:
    """Whether a step of the algorithm scores clients."""
    return any(getattr(step, "evaluates", False) for step in algorithm.steps)
