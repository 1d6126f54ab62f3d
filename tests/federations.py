"""Six federations of the packaged digits in which sharing a model helps everybody, some clients or nobody.

Each function takes a seed, from which it draws who holds what, and gives the federation and a function that makes its
model. They are small: `ROUNDS` rounds of one method, at the learning rate `LR`, take a few seconds. `FEDERATIONS` has
all six by name.

    skew_01     strong label skew: few classes per client, most clients do well alone
    skew_05     moderate label skew
    skew_10     hardly any label skew: everybody gains from the others
    shifted     the same classes, but each group of clients sees its images turned, inverted or both
    mixture     two thirds are alike and gain; one third has few classes, inverted and turned images, and is in the way
    tiny        75 clients with a dozen training samples each
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from stratafl.data import Federation, federate
from stratafl.data.digits import digits_arrays
from stratafl.data.partitions import Dirichlet
from stratafl.models import MLP

CLASSES = 10
ROUNDS, LR = 40, 0.1  # with batches of 10 and one local epoch; validation scores hardly rise after that
VALIDATION, TEST = 0.2, 0.3
Images = NDArray[np.float32]
Held = list[NDArray[np.int64]]  # the samples of each client


class Case(NamedTuple):
    """A federation, and a function that makes the model that its clients train."""

    federation: Federation
    model: Callable[[], nn.Module]


def skew_01(seed: int = 0) -> Case:
    """20 clients, each class divided by Dirichlet(0.1): a client has about four classes, most of it from one or two."""
    return _skewed(0.1, seed)


def skew_05(seed: int = 0) -> Case:
    """20 clients, each class divided by Dirichlet(0.5): a client has most classes, in unequal numbers."""
    return _skewed(0.5, seed)


def skew_10(seed: int = 0) -> Case:
    """20 clients, each class divided by Dirichlet(10): nearly the same distribution everywhere."""
    return _skewed(10, seed)


def shifted(seed: int = 0) -> Case:
    """20 clients with the same classes; five each see images as they are, turned by 90°, inverted, and both."""
    x, y = digits_arrays()
    held = _dirichlet(10, y, 20, seed)
    views = (_upright, _turned, _inverted, lambda images: _inverted(_turned(images)))
    for client, mine in enumerate(held):
        x[mine] = views[client % len(views)](x[mine])
    return _case("shifted", x, y, held, seed)


def mixture(seed: int = 0) -> Case:
    """16 clients with nearly equal distributions, and 8 with few classes whose images are inverted and turned by 180°.

    The first 16 gain from each other. The other 8 do better without them, and the 16 do better without the 8.
    """
    x, y = digits_arrays()
    drawn = np.random.default_rng([seed, 8]).permutation(len(y))
    alike, apart = drawn[: len(y) * 2 // 3], drawn[len(y) * 2 // 3 :]
    held = [alike[mine] for mine in _dirichlet(10, y[alike], 16, seed)]
    odd = [apart[mine] for mine in _dirichlet(0.1, y[apart], 8, seed)]
    for mine in odd:
        x[mine] = _inverted(_turned(x[mine], quarters=2))
    return _case("mixture", x, y, held + odd, seed)


def tiny(seed: int = 0) -> Case:
    """75 clients of 24 samples on average, at least 10, half of them for training; each class by Dirichlet(1)."""
    x, y = digits_arrays()
    return _case("tiny", x, y, _dirichlet(1, y, 75, seed), seed)


FEDERATIONS: dict[str, Callable[[int], Case]] = {
    each.__name__: each for each in (skew_01, skew_05, skew_10, shifted, mixture, tiny)
}


def _skewed(alpha: float, seed: int) -> Case:
    x, y = digits_arrays()
    return _case(f"skew {alpha:g}", x, y, _dirichlet(alpha, y, 20, seed), seed)


def _case(name: str, x: Images, y: NDArray[np.int64], held: Held, seed: int) -> Case:
    made = federate(x, y, held, classes=CLASSES, validation=VALIDATION, test=TEST, minimum_test=2, seed=seed, name=name)
    return Case(made, partial(MLP, shape=(1, 8, 8), classes=CLASSES, hidden=(48,)))


def _dirichlet(alpha: float, y: NDArray[np.int64], clients: int, seed: int) -> Held:
    drawn = Dirichlet(alpha=alpha, minimum=10, draws=100_000)(y, clients, seed)
    assert isinstance(drawn, list)
    return drawn


def _upright(images: Images) -> Images:
    return images


def _turned(images: Images, quarters: int = 1) -> Images:
    return np.rot90(images, quarters, axes=(-2, -1))


def _inverted(images: Images) -> Images:
    return 1 - images
