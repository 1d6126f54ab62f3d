"""Write a client's model to a file that other programs read."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from stratafl.data.preprocessing import Preprocessing
from stratafl.errors import ModelError, RunError, first_line
from stratafl.export.predictor import Predictor
from stratafl.files import atomically
from stratafl.models import save_weights


def to_safetensors(module: nn.Module, path: Path, preprocessing: Preprocessing) -> None:
    """Write all parameters and buffers by name, and the preprocessing as JSON in the metadata."""
    save_weights(module, path, {"preprocessing": json.dumps(preprocessing.to_table())})


def to_onnx(model: Predictor, samples: Tensor, path: Path) -> None:
    """Write the model with its preprocessing as ONNX, for batches of any size."""
    try:
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModelError("ONNX needs onnxscript, which is not installed: pip install 'stratafl[onnx]'") from error
    batch = torch.export.Dim("batch")
    try:
        with _quiet(), atomically(path) as partial:
            program = torch.onnx.export(model, (samples,), dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
            assert program is not None  # it is if no file is named
            program.save(partial)
    except OSError as error:
        raise RunError(f"cannot write '{path}': {error.strerror}") from error
    except Exception as error:  # torch refuses some modules, with many types of errors
        raise ModelError(
            f"{type(model.module).__name__} cannot be exported to ONNX: {first_line(error, typed=True)}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks about optional packages."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
