"""Models of others: `AdaptedModel` takes one tensor and gives one tensor of outputs, whatever the module in it does.

Engines, methods, metrics and exports know one tensor of samples and one of outputs. Three things are translated here
and nowhere else:

- named inputs, such as `input_ids` and `attention_mask`, are stacked in a sample, `[n, k, …]`, and taken apart;
- of an output that is a tuple, a dict or a library's record, the logits are taken;
- one logit z for two classes becomes the logits (0, z), whose cross-entropy is the binary one, log(1 + e^z) − y·z.
"""

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stratafl.errors import ModelError, check_known, shown

LOGITS = "logits"
_MAX_NAMED_OUTPUTS = 6  # outputs that a message names


class AdaptedModel(nn.Module):
    """A module as a function of one tensor; the module itself is `inner`."""

    def __init__(self, inner: nn.Module, inputs: tuple[str, ...], one_logit: bool) -> None:
        super().__init__()
        self.inner, self.inputs, self.one_logit = inner, inputs, one_logit
        self.head_name = getattr(inner, "head_name", None)
        self.train(inner.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.finished(logits_of(run_named(self.inner, x, self.inputs), type(self.inner).__name__))

    def finished(self, outputs: Tensor) -> Tensor:
        """Outputs of the head as everything else takes them."""
        return two_logits(outputs) if self.one_logit else outputs

    def extra_repr(self) -> str:
        return f"inputs={self.inputs}, one_logit={self.one_logit}"


@dataclass(frozen=True)
class Adaptation:
    """What a module needs to be a function from one tensor to one tensor."""

    inputs: tuple[str, ...] = ()  # names of the inputs that a sample stacks
    takes_logits: bool = False  # whether its output is more than a tensor
    one_logit: bool = False  # whether it gives one logit for two classes

    @staticmethod
    def of(module: nn.Module, example: Tensor, classes: int | None, inputs: tuple[str, ...] = ()) -> "Adaptation":
        """Found by running a copy on an example. A module that fails is left to those who say why."""
        _check_inputs(module, inputs)
        try:
            with torch.no_grad():
                output = run_named(shared_copy(module).eval(), example, inputs)
        except Exception:  # a user's module may fail in any way
            return Adaptation(inputs)
        takes_logits = not isinstance(output, Tensor)
        logits = logits_of(output, type(module).__name__)
        return Adaptation(inputs, takes_logits, classes == 2 and logits.shape[1:].numel() == 1)

    def __call__(self, module: nn.Module) -> nn.Module:
        needed = self.inputs or self.takes_logits or self.one_logit
        return AdaptedModel(module, self.inputs, self.one_logit) if needed else module


def own_model(module: nn.Module) -> nn.Module:
    """The module as its author made it."""
    return module.inner if isinstance(module, AdaptedModel) else module


def run_named(module: nn.Module, x: Tensor, inputs: tuple[str, ...]) -> Any:
    return module(**{name: x[:, place] for place, name in enumerate(inputs)}) if inputs else module(x)


def logits_of(output: Any, name: str) -> Tensor:
    """A tensor, `logits` by name, the only tensor of a dict, or the first part of a tuple."""
    if isinstance(output, Tensor):
        return output
    logits = output.get(LOGITS) if isinstance(output, Mapping) else getattr(output, LOGITS, None)
    parts = list(output.values()) if isinstance(output, Mapping) else output
    if logits is None and isinstance(parts, list | tuple) and (not isinstance(output, Mapping) or len(parts) == 1):
        logits = parts[0] if parts else None
    if isinstance(logits, Tensor):
        return logits
    named = [shown(key) for key in output][:_MAX_NAMED_OUTPUTS] if isinstance(output, Mapping) else []
    kind = f"{type(output).__name__} with {', '.join(named)}" if named else type(output).__name__
    raise ModelError(
        f"{name} returns a {kind}, but must return a tensor of outputs, a tuple that begins with it, or a dict with "
        f"'{LOGITS}': choose a model with a head, such as one for sequence classification"
    )


def two_logits(z: Tensor) -> Tensor:
    """(0, z) of one logit z: the softmax gives class 1 the probability 1 / (1 + e^−z)."""
    z = z.reshape(-1, 1)
    return torch.cat([torch.zeros_like(z), z], 1)


def without_fast_paths(module: nn.Module) -> nn.Module:
    """Torch's encoders have another way for inference, which drops padded places and has no rule for stacked clients.

    A model that reads those places would predict otherwise than it was evaluated.
    """
    for sub in module.modules():
        if isinstance(sub, nn.TransformerEncoderLayer):
            sub.activation_relu_or_gelu = 0
        if isinstance(sub, nn.TransformerEncoder):
            sub.enable_nested_tensor = sub.use_nested_tensor = False
    return module


def shared_copy(module: nn.Module) -> nn.Module:
    """A copy with buffers of its own that shares the values of its parameters."""
    shared: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters()}
    return copy.deepcopy(module, shared)


def _check_inputs(module: nn.Module, inputs: tuple[str, ...]) -> None:
    """Refuse names that the module does not take."""
    parameters = inspect.signature(module.forward).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_known(f"input of {type(module).__name__}", inputs, list(parameters))
