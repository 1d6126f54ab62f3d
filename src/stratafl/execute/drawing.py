"""Drawing models: initial weights are a function of (seed, number, purpose), the same in every process and site."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from stratafl.core import keys
from stratafl.core.algorithm import Algorithm
from stratafl.core.describe import head_of
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import ModelError
from stratafl.models import load_weights

ModelSource = nn.Module | Callable[[], nn.Module]
COMMON, PER_CLIENT = "model", "own model"  # the model that all start from, and one for each client


def filled(template: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a model with these columns, in evaluation mode."""
    module = copy.deepcopy(template)
    module.load_state_dict(dict(state), strict=False)  # a row has no counters
    return module.eval()


@dataclass(frozen=True)
class ModelDraw:
    """Draws models on the CPU, each from a generator of its own; torch's own generator is left as it was."""

    model: ModelSource
    algorithm: Algorithm
    samples: SampleFormat
    seed: int
    dtype: torch.dtype
    head: str | None

    def common(self, weights: Path | None) -> nn.Module:
        """The model that all start from; with weights from a file, its own or those of the model that is extended."""
        module = self(0, COMMON)
        if weights is None:
            return module
        try:
            load_weights(module, weights)
            return module
        except ModelError as error:
            try:
                return self(0, COMMON, weights)
            except ModelError:
                raise error from None

    def base(self) -> nn.Module:
        """The model before the algorithm extends it, with weights that nothing depends on."""
        with keys.torchs_generator():
            return self._module(redrawn=False)

    def __call__(self, number: int, purpose: str, weights: Path | None = None) -> nn.Module:
        """The extended model; the model that is extended has the given weights, if there are any."""
        with keys.torchs_generator(keys.generator(self.seed, number, purpose).initial_seed()):
            module = self._module(redrawn=purpose != COMMON)
            numbers = self.samples.are_numbers
            kind = torch.get_default_dtype() if numbers else self.samples.kept
            example = torch.zeros(1, *self.samples.shape, dtype=kind)
            if weights is not None:
                load_weights(module.to(self.dtype), weights)
                example = example.to(self.dtype) if numbers else example
            with torch.no_grad():  # in evaluation mode, so that an extension may run the model and keep its statistics
                head = head_of(module, self.head)
                return self.algorithm.extend(module.eval(), example, self.samples.classes, head).to(self.dtype)

    def _module(self, redrawn: bool) -> nn.Module:
        if not isinstance(self.model, nn.Module):
            return self.model()
        module = copy.deepcopy(self.model)
        for path, sub in module.named_modules() if redrawn else ():
            reset = getattr(sub, "reset_parameters", None)
            if callable(reset):
                reset()
            elif next(sub.parameters(recurse=False), None) is not None:
                raise ModelError(
                    f"'{path}' cannot draw new weights for each client: pass a function that makes the model"
                )
        return module
