"""FLAYER's equations with one ingredient of its authors' code at a time, and the code without one of them.

strata reproduce examples/flayer_ingredients.toml --trust
strata reproduce examples/flayer_ingredients.toml --trust --scale short --set data.path=shards/
"""

from dataclasses import replace

from stratafl.algorithms.flayer import LayerRate, TopChange
from stratafl.algorithms.flayer_official import ChildRates, HeadEpoch, KernelTop, official
from stratafl.methods import Accuracy, Layerwise, LocalTraining, Remember, fedavg, fedper, flayer

LEAKS = "the test accuracy of each client steers its training"
MIDDLE = 20.0  # the code's factor for layers between the first and the head of the CNN


def equations_head_epoch(*, train: LocalTraining) -> Layerwise:
    """Eq. 2–9, and the code's extra epoch for the head after Eq. 2."""
    method = flayer(train=train)
    guide = method.mix[0]
    return replace(method, mix=(guide, _head_epoch(train), Remember()))


def equations_rates(*, middle: float = MIDDLE, train: LocalTraining) -> Layerwise:
    """Eq. 2 and 5–9, and the code's rates in place of Eq. 4."""
    method = flayer(train=train)
    return replace(method, train=(_child_rates(train, middle), Accuracy("train")))


def equations_accuracy(*, train: LocalTraining) -> Layerwise:
    """Eq. 2–9 with A_k as in the code: test accuracy of the model as initialised."""
    method = flayer(train=train, accuracy_of="initialised")
    descent = method.train[1]
    return replace(method, train=(Accuracy("test"), descent), leaks=LEAKS)


def equations_masks(*, train: LocalTraining) -> Layerwise:
    """Eq. 2–4, and the code's masks in place of Eq. 5–9."""
    return replace(flayer(train=train), send=(KernelTop(),))


def code_train_accuracy(*, train: LocalTraining) -> Layerwise:
    """The code with A_k of training data: nothing leaks."""
    method = _code(train)
    return replace(method, train=(Accuracy("train"), method.train[1]), leaks=None)


def code_no_head_epoch(*, train: LocalTraining) -> Layerwise:
    """The code without its extra epoch for the head."""
    method = _code(train)
    return replace(method, mix=(method.mix[0], Remember()))


def code_layer_rate(*, train: LocalTraining) -> Layerwise:
    """The code with Eq. 4 in place of its rates."""
    method = _code(train)
    descent = replace(train, rates=(*train.rates, LayerRate()), shuffle=False)
    return replace(method, train=(method.train[0], descent))


def code_masks(*, train: LocalTraining) -> Layerwise:
    """The code with Eq. 5–9 in place of its masks."""
    return replace(_code(train), send=(TopChange(),))


def fedavg_rates(*, train: LocalTraining) -> Layerwise:
    """FedAvg with the code's rates."""
    return replace(fedavg(), train=(_child_rates(train, MIDDLE),))


def fedper_rates(*, train: LocalTraining) -> Layerwise:
    """FedPer with the code's rates."""
    return replace(fedper(), train=(_child_rates(train, MIDDLE),))


def _code(train: LocalTraining) -> Layerwise:
    return official(train=replace(train, shuffle=False))


def _head_epoch(train: LocalTraining) -> HeadEpoch:
    return HeadEpoch(2, train.lr, train.batch)


def _child_rates(train: LocalTraining, middle: float) -> ChildRates:
    return ChildRates(train.lr, train.batch, train.epochs, middle)
