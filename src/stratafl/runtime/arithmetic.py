"""With how many digits a GPU multiplies: the one place where torch's switches are set, and set back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from stratafl.errors import RecordError
from stratafl.runtime.modules import rounding

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS = ("fp32", "tf32", "bf16")


def check_precision(name: str, device: torch.device) -> None:
    """Refuse fewer digits where there is no GPU that would be faster with them."""
    if name != "fp32" and device.type != "cuda":
        raise RecordError(f"precision '{name}' is for GPUs, and this runs on '{device.type}': use fp32")


@contextmanager
def precision(name: Precision) -> Iterator[None]:
    """Products of float32 as they are, of 10 bits each (tf32), or of 7 bits each (bf16); sums are always float32."""
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if name == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = name != "fp32"
    try:
        with rounding(torch.bfloat16 if name == "bf16" else None):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution
