"""What no method takes: every option of every builder, with what the refusal says."""

import pytest

from stratafl.algorithms import ALGORITHMS
from stratafl.algorithms.flayer import LayerRate
from stratafl.errors import StrataError
from stratafl.policies import LocalTraining

NAN, INF = float("nan"), float("inf")
REFUSED = [
    ("fedalp", {"beta": -0.1}, "fedalp.beta must be at least 0, not -0.1"),
    ("fedalp", {"beta": 1.01}, "fedalp.beta must be at most 1, not 1.01"),
    ("fedalp", {"beta": NAN}, "fedalp.beta must be a finite number, not nan"),
    ("fedalp", {"groups": 0}, "fedalp.groups must be at least 1, not 0"),
    ("fedalp", {"groups": 2.5}, "fedalp.groups must be a whole number, not 2.5"),
    ("fedalp", {"warmup": 0}, "fedalp.warmup must be at least 1, not 0"),
    ("fedalp", {"warmup": 1.5}, "fedalp.warmup must be a whole number, not 1.5"),
    ("fedalp", {"base": "recieved"}, "fedalp.base 'recieved'; did you mean 'received'?"),
    ("fedalp", {"gamma": "grup"}, "fedalp.gamma 'grup'; did you mean 'group'?"),
    ("fedalp", {"features": "angles"}, "fedalp.features 'angles'; did you mean 'angle'?"),
    ("fedavg30local", {"warmup": -1}, "fedavg30local.warmup must be at least 0, not -1"),
    ("fedavg30local", {"warmup": 1.5}, "fedavg30local.warmup must be a whole number, not 1.5"),
    ("fedavg30local", {"warmup": True}, "fedavg30local.warmup must be a whole number, not True"),
    ("fedlag", {"xi": -1.0}, "fedlag.xi must be above -1, not -1.0"),
    ("fedlag", {"xi": 0.01}, "fedlag.xi must be at most 0, not 0.01"),
    ("fedlag", {"xi": NAN}, "fedlag.xi must be a finite number, not nan"),
    ("fedlag", {"k": -1}, "fedlag.k must be at least 0, not -1"),
    ("fedlag", {"k": 1.5}, "fedlag.k must be a whole number, not 1.5"),
    ("fedlag", {"warmup": -1}, "fedlag.warmup must be at least 0, not -1"),
    ("fedlag", {"warmup": 1.5}, "fedlag.warmup must be a whole number, not 1.5"),
    ("fedlag", {"weights": "sample"}, "fedlag.weights 'sample'; did you mean 'samples'?"),
    ("fedlag", {"bn": "averagd"}, "fedlag.bn 'averagd'; did you mean 'averaged'?"),
    ("fedper", {"finetune": -1}, "fedper.finetune must be at least 0, not -1"),
    ("fedper", {"initial": "comon"}, "fedper.initial 'comon'; did you mean 'common'?"),
    ("fedper", {"personal": 2}, "fedper.personal must be a text, not 2"),
    ("fedper", {"personal": "last:2", "linear_base": True}, "personal is 'last:2'"),
    ("fedprox", {"strength": -1.0}, "fedprox.strength must be at least 0, not -1.0"),
    ("fedrep", {"head_epochs": -1}, "fedrep.head_epochs must be at least 0, not -1"),
    ("lgfedavg", {"shared": 3}, "lgfedavg.shared must be a text, not 3"),
    ("flayer", {"s": 0}, "flayer.s must be at least 1, not 0"),
    ("flayer", {"s": "2"}, "flayer.s must be a whole number, not '2'"),
    ("flayer", {"s": 1.5}, "flayer.s must be a whole number, not 1.5"),
    ("flayer", {"s": True}, "flayer.s must be a whole number, not True"),
    ("flayer", {"guide": "no"}, "flayer.guide must be true or false, not 'no'"),
    ("flayer", {"rates": 1}, "flayer.rates must be true or false, not 1"),
    ("flayer", {"mask": None}, "flayer.mask must be true or false, not None"),
    ("flayer", {"least": "0.1"}, "flayer.least must be a number, not '0.1'"),
    ("flayer", {"least": -0.1}, "flayer.least must be at least 0, not -0.1"),
    ("flayer", {"least": 1.5}, "flayer.least must be at most 1, not 1.5"),
    ("flayer", {"accuracy": 1.5}, "flayer.accuracy must be at most 1, not 1.5"),
    ("flayer", {"accuracy": -1}, "flayer.accuracy must be at least 0, not -1"),
    ("flayer", {"accuracy": True}, "flayer.accuracy must be one of train, validation or a number"),
    ("flayer", {"accuracy": None}, "flayer.accuracy must be one of train, validation or a number"),
    ("flayer", {"accuracy": "test"}, "train, validation"),
    ("flayer", {"accuracy": "validatoin"}, "did you mean 'validation'?"),
    ("flayer", {"accuracy": 0.3, "accuracy_of": "initialised"}, "accuracy=0.3 is never measured"),
    ("flayer", {"accuracy_of": "training"}, "flayer.accuracy_of 'training'; did you mean 'trained'?"),
    ("flayer", {"unsent": "zeros"}, "flayer.unsent 'zeros'; did you mean 'zero'?"),
    ("flayer", {"preset": "oficial"}, "flayer.preset 'oficial'; did you mean 'official'?"),
    ("flayer", {"preset": "official", "s": 2}, "its parts cannot be switched: leave out s=2"),
    ("flayer", {"preset": "official", "mask": False}, "leave out mask=False"),
    ("flayer", {"preset": "official", "p": "4"}, "flayer.p must be a whole number, not '4'"),
    ("flayer", {"preset": "official", "p": 0}, "p must be at least 1, not 0"),
    ("flayer", {"preset": "official", "middle": 0}, "middle must be above 0, not 0"),
    ("flayer", {"preset": "official", "train": LocalTraining(momentum=0.9, drop_last=True)}, "plain SGD"),
    ("flayer", {"preset": "official", "train": LocalTraining()}, "set train.drop_last to true"),
    ("flayer", {"p": 4}, "p and middle are options of the preset 'official': leave out p=4"),
    ("flayer", {"middle": 1.0}, "leave out middle=1.0"),
    ("heurpfedla", {"hyper_lr": INF}, "heurpfedla.hyper_lr must be a finite number, not inf"),
    ("heurpfedla", {"hyper_lr": "fast"}, "heurpfedla.hyper_lr must be a number, not 'fast'"),
    ("heurpfedla", {"k": -1}, "heurpfedla.k must be at least 0, not -1"),
    ("heurpfedla", {"k": 1.5}, "heurpfedla.k must be a whole number, not 1.5"),
    ("heurpfedla", {"depth": True}, "heurpfedla.depth must be a whole number, not True"),
    ("pfedla", {"hyper_lr": -1.0}, "pfedla.hyper_lr must be at least 0, not -1.0"),
    ("pfedla", {"hyper_lr": NAN}, "pfedla.hyper_lr must be a finite number, not nan"),
    ("pfedla", {"embedding": 2.5}, "pfedla.embedding must be a whole number, not 2.5"),
    ("pfedla", {"width": 0}, "pfedla.width must be at least 1, not 0"),
    ("pfedla", {"sign": "up"}, "descent, public"),
    ("pfedla", {"unit": "layers"}, "pfedla.unit 'layers'; did you mean 'layer'?"),
    ("pfedla", {"normalise": "relus"}, "pfedla.normalise 'relus'; did you mean 'relu'?"),
    ("pfedla", {"initial": "drown"}, "pfedla.initial 'drown'; did you mean 'drawn'?"),
    ("simmix", {"sharpness": -1.0}, "simmix.sharpness must be at least 0, not -1.0"),
    ("simmix", {"unit": "block"}, "layer, model"),
]


@pytest.mark.parametrize(("name", "options", "says"), REFUSED)
def test_a_bad_option_is_refused_in_one_line(name, options, says):
    with pytest.raises(StrataError) as refused:
        ALGORITHMS[name](**options)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("floor", [0, -1.0, NAN, INF, "small"])
def test_the_floor_of_a_norm_is_above_zero(floor):
    with pytest.raises(StrataError, match=r"^LayerRate\.floor must be"):
        LayerRate(floor=floor)
