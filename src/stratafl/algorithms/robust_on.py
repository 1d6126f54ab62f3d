"""Robust merges on any method whose server averages: functions from record to record.

    with_median(fedper())                    # fedper+median
    with_clipped(fedopt(), norm=0.5)         # fedopt+clipped

`server.merge` does the same for a whole configuration, and goes with any composition (`fedper+q8`); by name, methods
with several merges can be compared. The merges are in `stratafl.policies.robust`.
"""

from typing import Annotated

from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Fixed
from stratafl.core.records import validated
from stratafl.policies.krum import Keep, Wrong
from stratafl.policies.merge import Positive
from stratafl.policies.robust import Factor, Share, robust

SAFE = Fixed("how much wrong clients may do: on honest ones a tuner would switch it off")


@validated
def with_median(host: Algorithm) -> Algorithm:
    """Of each column the server takes the median of those who sent it, every client once."""
    return robust(host, "median")


@validated
def with_trimmed(host: Algorithm, *, trim: Annotated[Share, SAFE] = 0.2) -> Algorithm:
    """Of each column the server leaves out the share `trim` of the smallest and of the largest values."""
    return robust(host, "trimmed", share=trim)


@validated
def with_clipped(
    host: Algorithm, *, norm: Annotated[Positive, SAFE] | None = None, factor: Annotated[Factor, SAFE] = 1.0
) -> Algorithm:
    """No update is longer than `norm`, or without it than `factor` times the cohort's median."""
    return robust(host, "clipped", factor=factor, norm=norm)


@validated
def with_krum(host: Algorithm, *, f: Annotated[Wrong, SAFE] = 1, keep: Annotated[Keep, SAFE] = 1) -> Algorithm:
    """The server takes the `keep` uploads that lie nearest to others, of clients of which `f` may be wrong."""
    return robust(host, "krum", f=f, keep=keep)
