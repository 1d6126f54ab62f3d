"""Drawing models: initial weights are a function of (seed, number, purpose), the same in every process and site."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from stratafl.core import keys
from stratafl.core.algorithm import Algorithm
from stratafl.core.describe import COMPOSED, freeze, head_of, light_copy
from stratafl.core.layers import Select
from stratafl.core.layout import Granularity
from stratafl.core.reprs import short_repr
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import ModelError
from stratafl.models import Adaptation, load_weights, own_model, without_fast_paths

ModelSource = nn.Module | Callable[[], nn.Module]
LORA = ".lora_"  # in the paths of layers of PEFT
NO_LAYER = Select(("none",))
COMMON, PER_CLIENT = "model", "own model"  # the model that all start from, and one for each client


def filled(template: nn.Module, state: Mapping[str, Tensor], *, light: bool = False) -> nn.Module:
    """A copy of a model with these columns, in evaluation mode; a light one, to be read only, shares frozen tensors."""
    module = light_copy(template) if light else copy.deepcopy(template)
    module.load_state_dict(dict(state), strict=False)  # a row has no counters
    return module.eval()


@short_repr
@dataclass(frozen=True)
class ModelDraw:
    """Draws models on the CPU, each from a generator of its own; torch's own generator is left as it was."""

    model: ModelSource
    algorithm: Algorithm
    samples: SampleFormat
    seed: int
    dtype: torch.dtype
    head: str | None
    frozen: Select
    granularity: Granularity

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
            module = without_fast_paths(self._module(redrawn=purpose != COMMON))
            numbers = self.samples.are_numbers
            kind = torch.get_default_dtype() if numbers else self.samples.kept
            example = torch.zeros(1, *self.samples.shape, dtype=kind)
            if weights is not None:
                load_weights(module.to(self.dtype), weights)
                example = example.to(self.dtype) if numbers else example
            with torch.no_grad():  # in evaluation mode, so that an extension may run the model and keep its statistics
                return self._extended(self._adaptation(module.eval(), example)(module), example).to(self.dtype)

    def _adaptation(self, module: nn.Module, example: Tensor) -> Adaptation:
        """The same for all models, so it is found with the first one."""
        if not self._adaptations:
            samples = self.samples
            self._adaptations.append(Adaptation.of(module, example, samples.classes, samples.preprocessing.inputs))
        return self._adaptations[0]

    @cached_property
    def _adaptations(self) -> list[Adaptation]:
        return []

    def _extended(self, module: nn.Module, example: Tensor) -> nn.Module:
        extended = self.algorithm.extend(module, example, self.samples.classes, head_of(module, self.head))
        composed = any(getattr(sub, COMPOSED, False) for sub in extended.modules())
        if composed and getattr(module, "one_logit", False):
            name = type(own_model(module)).__name__
            raise ModelError(f"{name} gives one logit for two classes, but this method replaces its head: give it two")
        return extended

    def _module(self, redrawn: bool) -> nn.Module:
        module = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()
        if self.frozen != NO_LAYER:
            freeze(module, self.frozen, granularity=self.granularity, head=self.head)
        if not isinstance(self.model, nn.Module):
            return module
        for path, sub in module.named_modules() if redrawn else ():
            reset, parameters = getattr(sub, "reset_parameters", None), list(sub.parameters(recurse=False))
            trained = [p for p in parameters if p.requires_grad]
            if (parameters and not trained) or (
                LORA in path and parameters and not any(bool(p.any()) for p in trained)
            ):
                continue  # a frozen layer, or one that starts at zero so that an adapter adds nothing
            if callable(reset):
                reset()
            elif parameters:
                raise ModelError(
                    f"'{path}' cannot draw new weights for each client: pass a function that makes the model"
                )
        return module
