"""Shamir's secret sharing: any `threshold` shares give the secret, fewer give nothing."""

from collections.abc import Callable, Mapping, Sequence
from secrets import randbelow

PRIME = 2**256 + 297  # the smallest prime above 2^256, so that every secret of 32 bytes is a number below it
SECRET_BYTES, SHARE_BYTES = 32, 33


def split_secret(
    secret: bytes, places: Sequence[int], threshold: int, draw: Callable[[int], int] = randbelow
) -> dict[int, int]:
    """A share for each place (1, 2, …): the values there of a random polynomial that is the secret at 0."""
    coefficients = [int.from_bytes(secret, "big"), *(draw(PRIME) for _ in range(threshold - 1))]
    return {place: _value(coefficients, place) for place in places}


def join_shares(shares: Mapping[int, int]) -> int:
    """The value at 0 of the polynomial through these points, by Lagrange."""
    total = 0
    for place, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != place:
                above, below = above * other % PRIME, below * (other - place) % PRIME
        total += share * above * pow(below, -1, PRIME)
    return total % PRIME


def _value(coefficients: Sequence[int], x: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * x + coefficient) % PRIME
    return total
