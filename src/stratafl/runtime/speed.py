"""Options for speed, none of which changes results beyond rounding."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from stratafl.errors import unknown
from stratafl.runtime.convolutions import convolutions, faster_as_products
from stratafl.runtime.precision import PRECISIONS, Precision

Choice = Literal["auto", "on", "off"]
Convolutions = Literal["auto", "product", "stock"]
CHOICES = ("auto", "on", "off")
CONVOLUTIONS = ("auto", "product", "stock")


@dataclass(frozen=True)
class Speed:
    """Precision of products, whether steps are captured and compiled, and how convolutions are computed.

    `products` says for each convolution whether it is a product. Without it, all are on a CPU, because the bits of a
    product do not depend on the other clients of a chunk; on a GPU the faster way is measured.
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

    def captures(self, device: torch.device) -> bool:
        """Whether steps are captured (on a CPU: kept with fixed tensors, as in tests)."""
        return "on" in (self.graphs, self.compile) or (self.graphs == "auto" and device.type == "cuda")


USUAL = Speed()


def with_convolutions(speed: Speed, module: nn.Module, sample: Tensor, clients: int, batch: int) -> Speed:
    """The same with `products` filled in, for this number of clients and samples on the sample's device."""
    if speed.products is not None:
        return speed
    if speed.convolutions == "auto" and sample.is_cuda and speed.compile != "on":
        return replace(speed, products=faster_as_products(module, sample, clients, batch))
    stock = speed.convolutions == "stock"
    return replace(speed, products=dict.fromkeys(convolutions(module), not stock))
