"""What is done to be fast, none of which changes what is computed beyond rounding."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from stratafl.errors import unknown
from stratafl.runtime.arithmetic import PRECISIONS, Precision
from stratafl.runtime.convolutions import convolutions, measured

Choice = Literal["auto", "on", "off"]
Convolutions = Literal["auto", "product", "stock"]
CHOICES = ("auto", "on", "off")
CONVOLUTIONS = ("auto", "product", "stock")


@dataclass(frozen=True)
class Speed:
    """Digits of products, steps kept as programs (captured on a GPU), steps compiled, and kinds of convolution.

    `products` says of each convolution whether it is a product; without it, that is decided: on a CPU all are, because
    their bits do not depend on who is beside a client; on a GPU by measurement.
    """

    precision: Precision = "fp32"
    graphs: Choice = "auto"
    compile: Choice = "auto"
    convolutions: Convolutions = "auto"
    products: Mapping[str, bool] | None = None

    def __post_init__(self) -> None:
        kinds = {"precision": PRECISIONS, "graphs": CHOICES, "compile": CHOICES, "convolutions": CONVOLUTIONS}
        for name, allowed in kinds.items():
            if getattr(self, name) not in allowed:
                raise unknown(name, str(getattr(self, name)), allowed)

    def keeps(self, device: torch.device) -> bool:
        """Whether steps are kept as programs."""
        return "on" in (self.graphs, self.compile) or (self.graphs == "auto" and device.type == "cuda")


USUAL = Speed()


def settled(speed: Speed, module: nn.Module, sample: Tensor, clients: int, batch: int) -> Speed:
    """The same with every convolution decided, for so many clients and samples on the sample's device."""
    if speed.products is not None:
        return speed
    if speed.convolutions == "auto" and sample.is_cuda and speed.compile != "on":
        return replace(speed, products=measured(module, sample, clients, batch))
    stock = speed.convolutions == "stock"
    return replace(speed, products=dict.fromkeys(convolutions(module), not stock))
