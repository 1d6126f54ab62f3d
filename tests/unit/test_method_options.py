"""Options that no method takes: the refusal is one line that names the option and its value, or the nearest match."""

from typing import Any

import pytest

from stratafl.algorithms import ALGORITHMS
from stratafl.algorithms.flayer import LayerRate
from stratafl.errors import StrataError
from stratafl.policies import LocalTraining

NAN, INF = float("nan"), float("inf")
REFUSED: dict[str, list[dict[str, Any]]] = {
    "fedalp": [
        *({"beta": x} for x in (-0.1, 1.01, NAN)),
        *({"groups": x} for x in (0, 2.5)),
        *({"warmup": x} for x in (0, 1.5)),
    ],
    "fedavg30local": [{"warmup": x} for x in (-1, 1.5, True)],
    "fedlag": [
        *({"xi": x} for x in (-1.0, 0.01, NAN)),
        *({"k": x} for x in (-1, 1.5)),
        *({"warmup": x} for x in (-1, 1.5)),
    ],
    "fedper": [{"finetune": -1}, {"personal": 2}],
    "fedprox": [{"strength": -1.0}],
    "fedrep": [{"head_epochs": -1}],
    "lgfedavg": [{"shared": 3}],
    "flayer": [
        *({"s": x} for x in (0, "2", 1.5, True)),
        *({"guide": "no"}, {"rates": 1}, {"mask": None}),
        *({"least": x} for x in ("0.1", -0.1, 1.5)),
        *({"accuracy": x} for x in (1.5, -1, True, None, "test")),
    ],
    "heurpfedla": [*({"hyper_lr": x} for x in (INF, "fast")), *({"k": x} for x in (-1, 1.5)), {"depth": True}],
    "pfedla": [*({"hyper_lr": x} for x in (-1.0, NAN)), {"embedding": 2.5}, {"width": 0}, {"sign": "up"}],
    "simmix": [{"sharpness": -1.0}, {"unit": "block"}],
}
MISSPELT = [
    ("fedalp", "base", "recieved", "received"),
    ("fedalp", "gamma", "grup", "group"),
    ("fedalp", "features", "angles", "angle"),
    ("fedlag", "weights", "sample", "samples"),
    ("fedlag", "bn", "averagd", "averaged"),
    ("fedper", "initial", "comon", "common"),
    ("flayer", "accuracy", "validatoin", "validation"),
    ("flayer", "accuracy_of", "training", "trained"),
    ("flayer", "unsent", "zeros", "zero"),
    ("flayer", "preset", "oficial", "official"),
    ("pfedla", "unit", "layers", "layer"),
    ("pfedla", "normalise", "relus", "relu"),
    ("pfedla", "initial", "drown", "drawn"),
]
TOGETHER: list[tuple[str, dict[str, Any], str]] = [
    ("fedper", {"personal": "last:2", "linear_base": True}, "'last:2'"),
    ("flayer", {"accuracy": 0.3, "accuracy_of": "initialised"}, "accuracy_of='initialised'"),
    ("flayer", {"preset": "official", "s": 2}, "s=2"),
    ("flayer", {"preset": "official", "mask": False}, "mask=False"),
    ("flayer", {"preset": "official", "p": 0}, "p must"),
    ("flayer", {"preset": "official", "middle": 0}, "middle must"),
    ("flayer", {"preset": "official", "train": LocalTraining(momentum=0.9, drop_last=True)}, "SGD"),
    ("flayer", {"preset": "official", "train": LocalTraining()}, "train.drop_last"),
    ("flayer", {"p": 4}, "p=4"),
    ("flayer", {"middle": 1.0}, "middle=1.0"),
]


def refusal(name: str, options: dict[str, Any]) -> str:
    with pytest.raises(StrataError) as refused:
        ALGORITHMS[name](**options)
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_option_is_refused_with_its_name_and_value(name: str) -> None:
    for options in REFUSED[name]:
        ((option, value),) = options.items()
        message = refusal(name, options)
        assert f"{name}.{option} " in message, message
        assert repr(value) in message, message


@pytest.mark.parametrize(("name", "option", "value", "nearest"), MISSPELT)
def test_a_misspelt_choice_has_a_nearest_match(name: str, option: str, value: str, nearest: str) -> None:
    message = refusal(name, {option: value})
    assert f"{name}.{option} '{value}'" in message
    assert f"'{nearest}'?" in message


@pytest.mark.parametrize(("name", "options", "value"), TOGETHER)
def test_options_that_contradict_each_other_are_refused(name: str, options: dict[str, Any], value: str) -> None:
    assert value in refusal(name, options)


@pytest.mark.parametrize("floor", [0, -1.0, NAN, INF, "small"])
def test_the_floor_of_a_norm_is_above_zero(floor: Any) -> None:
    with pytest.raises(StrataError, match=r"^LayerRate\.floor "):
        LayerRate(floor=floor)
