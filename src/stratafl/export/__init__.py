"""A client's model outside stratafl: with its preprocessing, and in files that other programs read."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stratafl.core.describe import COMPOSED, columns
from stratafl.data.preprocessing import Preprocessing, numbers
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import DataError, ModelError, RunError, first_line
from stratafl.export.table_inputs import name_columns
from stratafl.files import atomically, write_atomically
from stratafl.models import own_model, save_weights

__all__ = [
    "ModelFacts",
    "Predictor",
    "check_model",
    "export_model",
    "finite_outputs",
    "to_adapter",
    "to_onnx",
    "to_safetensors",
]
PREPROCESSING = "preprocessing.json"  # beside an adapter
MODULES_TO_SAVE = "modules_to_save"


@dataclass(frozen=True)
class ModelFacts:
    """What a file says of its model besides the preprocessing: whose it is, and the names of classes and columns."""

    client: str
    classes: tuple[str, ...] = ()  # in the order of the outputs; () if numbers are predicted
    columns: tuple[str, ...] = ()

    @staticmethod
    def of(client: str, form: SampleFormat) -> "ModelFacts":
        return ModelFacts(client, form.class_names, form.columns)

    @property
    def metadata(self) -> dict[str, str]:
        lists = {"classes": self.classes, "columns": self.columns}
        return {"client": self.client, **{key: json.dumps(names) for key, names in lists.items() if names}}


class Predictor(nn.Module):
    """Preprocesses raw samples, applies the model, and undoes the standardisation of targets.

    `module` is the model itself; the state dict holds its tensors under `module.`, and nothing else.
    """

    module: nn.Module
    scale: Tensor
    shift: Tensor
    column_mean: Tensor
    column_factor: Tensor
    target_mean: Tensor
    target_deviation: Tensor

    def __init__(self, module: nn.Module, preprocessing: Preprocessing, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.preprocessing, self.dtype = module, preprocessing, dtype
        scaling, columns, targets = preprocessing.scaling, preprocessing.columns, preprocessing.targets
        if scaling is not None:
            sample = torch.empty((1, *preprocessing.shape), dtype=preprocessing.kind)
            tensors = scaling.tensors(sample, dtype)
            self._keep(*("scale", "shift")[: len(tensors)], values=tensors)
        if columns is not None:
            mean, _, factor = columns.tensors()
            self._keep("column_mean", "column_factor", values=(mean, factor))
        if targets is not None:
            mean, deviation, _ = targets.tensors()
            self._keep("target_mean", "target_deviation", values=(mean, deviation))
        self.train(module.training)

    def _keep(self, *names: str, values: tuple[Tensor, ...]) -> None:
        for name, value in zip(names, values, strict=True):
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.module(self.inputs(x))
        if self.preprocessing.targets is None:
            return outputs
        shape = outputs.shape[1:] if len(self.target_mean) > 1 else ()
        mean, deviation = self.target_mean.reshape(shape), self.target_deviation.reshape(shape)
        return (outputs.double() * deviation + mean).to(outputs.dtype)

    def inputs(self, x: Tensor) -> Tensor:
        """Raw samples as the model takes them, with the same arithmetic as in training."""
        kind = self.preprocessing.kind
        if self.preprocessing.table is not None:
            x, kind = self.preprocessing.table.applied(x), torch.float32
        if self.preprocessing.columns is not None:
            x = x.to(kind) if kind.is_floating_point else x
            return ((x.double() - self.column_mean) * self.column_factor).to(self.dtype)
        if self.preprocessing.scaling is not None:
            scale = (self.scale,) if self.preprocessing.scaling.own else (self.scale, self.shift)
            return numbers(x.to(kind), self.dtype, scale)
        if kind.is_floating_point or kind == torch.uint8:
            return x.to(self.dtype)
        return x


def check_model(model: nn.Module, whose: str) -> None:
    """Refuse a model that is not finite: its most probable class would be class 0 for every sample."""
    tensors = [x for x in (*model.parameters(), *model.buffers()) if x.is_floating_point()]
    if not all(bool(x.isfinite().all()) for x in tensors):
        raise ModelError(
            f"the model of {whose} is not finite, so it can predict nothing: train again with a lower learning rate, "
            "or look at the data of this client"
        )


def finite_outputs(outputs: Tensor, model: nn.Module, whose: str) -> Tensor:
    """The outputs of a model; refused if one is not finite, because of the model or of a sample."""
    wrong = (~outputs.isfinite()).flatten(1).any(1) if outputs.ndim > 1 else ~outputs.isfinite()
    if bool(wrong.any()):
        check_model(model, whose)
        first = int(wrong.nonzero()[0])
        raise DataError(
            f"the model of {whose} gives a number that is not finite for sample {first}: check the values of this "
            "sample, such as their unit"
        )
    return outputs


def export_model(model: Predictor, path: Path, facts: ModelFacts, whose: str = "this client") -> None:
    """Write a model to `NAME.onnx`, with its preprocessing, or to `NAME.safetensors`; no file is overwritten.

    A name without an ending is a folder, for the adapter of a PEFT model.
    """
    check_model(model, whose)
    if path.exists():
        raise RunError(f"'{path}' exists: choose another name, or remove it")
    if path.suffix == ".onnx":
        to_onnx(model, path, facts)
    elif path.suffix == ".safetensors":
        to_safetensors(own_model(model.module), path, model.preprocessing, facts)
    elif not path.suffix:
        to_adapter(own_model(model.module), path, model.preprocessing, facts)
    else:
        raise RunError(
            f"cannot export to '{path}': choose a name that ends in .onnx or .safetensors, or a folder for an adapter"
        )


def to_safetensors(module: nn.Module, path: Path, preprocessing: Preprocessing, facts: ModelFacts) -> None:
    """Write all parameters and buffers by name; the metadata holds the facts, and the preprocessing as JSON."""
    save_weights(module, path, {"preprocessing": json.dumps(preprocessing.to_table()), **facts.metadata})


class _WithProbabilities(nn.Module):
    """The logits of a model, and the probabilities that follow from them."""

    def __init__(self, model: Predictor) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(x)
        return logits, logits.softmax(-1)


def to_onnx(model: Predictor, path: Path, facts: ModelFacts) -> None:
    """Write the model with its preprocessing as ONNX, for batches of any size.

    The input is `x`. The outputs are `logits` and `probabilities` of the classes, or `values` of a regression.
    """
    try:
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModelError("ONNX needs onnxscript, which is not installed: pip install 'stratafl[onnx]'") from error
    samples = torch.zeros((2, *model.preprocessing.shape), dtype=model.preprocessing.kind)
    module: nn.Module = _WithProbabilities(model).eval() if facts.classes else model
    outputs = ["logits", "probabilities"] if facts.classes else ["values"]
    batch = torch.export.Dim("batch")
    try:
        with _quiet(), atomically(path) as partial:
            program = torch.onnx.export(
                module,
                (samples,),
                input_names=["x"],
                output_names=outputs,
                dynamo=True,
                dynamic_shapes=({0: batch},),
                verbose=False,
            )
            assert program is not None  # it is if no file is named
            program.model.metadata_props.update(facts.metadata)
            program.save(partial)
            if model.preprocessing.table is not None:
                name_columns(partial, model.preprocessing.table)
    except OSError as error:
        raise RunError(f"cannot write '{path}': {error.strerror}") from error
    except Exception as error:  # torch refuses some modules, with many types of errors
        name = type(own_model(model.module)).__name__
        raise ModelError(f"{name} cannot be exported to ONNX: {first_line(error, typed=True)}") from error


def to_adapter(module: nn.Module, folder: Path, preprocessing: Preprocessing, facts: ModelFacts) -> None:
    """Write what was trained of a PEFT model to a folder, for `PeftModel.from_pretrained`; the base is not in it."""
    save: Any = getattr(module, "save_pretrained", None)
    if not callable(save) or not hasattr(module, "peft_config"):
        raise RunError(
            f"cannot export to '{folder}': a folder is for the adapter of a PEFT model, and {type(module).__name__} is "
            "not one; choose a name that ends in .onnx or .safetensors"
        )
    _check_adapter(module)
    try:
        with _quiet(), atomically(folder) as partial:
            save(partial, save_embedding_layers=False)  # frozen, and looking for their size would ask the hub
            (partial / "README.md").unlink(missing_ok=True)  # an empty form
            about = {"preprocessing": preprocessing.to_table(), **facts.metadata}
            write_atomically(partial / PREPROCESSING, json.dumps(about).encode())
    except OSError as error:
        raise RunError(f"cannot write '{folder}': {error.strerror}") from error


def _check_adapter(module: nn.Module) -> None:
    """Refuse a model of which PEFT would not keep all that was trained."""
    if any(getattr(sub, COMPOSED, False) for sub in module.modules()):
        raise ModelError("this method has replaced the head, so PEFT cannot load it: export to NAME.safetensors")
    from peft import get_peft_model_state_dict  # the module is one of its own

    added = {MODULES_TO_SAVE, *getattr(module, "active_adapters", [])}  # to the names of tensors, and not in the file
    saved = set(get_peft_model_state_dict(module, save_embedding_layers=False))
    for name in columns(module):
        if ".".join(part for part in name.split(".") if part not in added) not in saved:
            raise ModelError(
                f"'{name}' is trained but not part of the adapter: add its layer to modules_to_save of the PEFT "
                "configuration, or export to NAME.safetensors"
            )


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
