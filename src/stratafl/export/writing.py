"""A client's model in a file that other programs read."""

import json
import logging
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from stratafl.config.plugins import said
from stratafl.data.preprocessing import Preprocessing
from stratafl.errors import ModelError, RunError
from stratafl.export.predictor import Predictor
from stratafl.models import save_weights


def to_safetensors(module: nn.Module, path: Path, preprocessing: Preprocessing) -> None:
    """All parameters and buffers by their names, and in the metadata what is to be done to samples and outputs."""
    save_weights(module, path, {"preprocessing": json.dumps(preprocessing.to_table())})


def to_onnx(model: Predictor, samples: Tensor, path: Path) -> None:
    """The model as ONNX with what is done to raw samples, for any number of them at a time, where torch can."""
    try:
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModelError("ONNX needs 'onnxscript', which is not installed: pip install 'stratafl[onnx]'") from error
    batch = torch.export.Dim("batch")
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with _quiet():
            program = torch.onnx.export(model, (samples,), dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
            assert program is not None  # it is, when no file is named
            program.save(partial)
        partial.replace(path)
    except OSError as error:
        raise RunError(f"cannot write '{path}': {error.strerror}") from error
    except Exception as error:  # torch cannot export every module, and says so in many ways
        raise ModelError(f"{type(model.module).__name__} cannot be exported to ONNX: {said(error)}") from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks about packages that it would also know."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
