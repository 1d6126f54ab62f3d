"""The precision of products on a GPU: the one place that sets torch's switches, and sets them back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from stratafl.errors import RecordError
from stratafl.runtime.products import rounding

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS = ("fp32", "tf32", "bf16")


def check_precision(name: str, device: torch.device) -> None:
    if name != "fp32" and device.type != "cuda":
        raise RecordError(f"precision '{name}' needs a GPU, and this runs on '{device.type}': use fp32")


@contextmanager
def precision(name: Precision) -> Iterator[None]:
    """Products of float32 factors: exact, rounded to 10 bits (tf32) or to 7 bits (bf16); sums are always float32."""
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if name == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = name != "fp32"
    try:
        with rounding(torch.bfloat16 if name == "bf16" else None):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution
