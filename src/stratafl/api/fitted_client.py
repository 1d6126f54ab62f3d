"""One client of a trained federation: its model, its predictions, its metrics and its export."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stratafl.api.added import AddedClient
from stratafl.api.guarded import module_of
from stratafl.core.reprs import holder
from stratafl.data.arrays import Array
from stratafl.data.preprocessing import Preprocessing
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import DataError, shown
from stratafl.evaluation.evaluate import state_dict
from stratafl.execute import Progress, Simulation
from stratafl.execute.tokens import check_given
from stratafl.export import ModelFacts, Predictor, export_model, finite_outputs
from stratafl.models import own_model


class Federated(Protocol):
    """What a client needs of its federation."""

    @property
    def sim(self) -> Simulation: ...
    @property
    def progress(self) -> Progress: ...
    @property
    def saved(self) -> Mapping[int, Mapping[str, Tensor]] | None: ...
    @property
    def added(self) -> Mapping[int, AddedClient]: ...
    @property
    def round(self) -> int: ...
    def name_of(self, client: int) -> str: ...
    def metric(
        self,
        metric: str | Callable[..., object],
        split: str = "test",
        average: str = "auto",
        client: int | str | None = None,
    ) -> float: ...
    def confusion(self, client: int | str | None = None, split: str = "test") -> Tensor: ...


@holder
class FittedClient:
    """One client of a trained federation: its own model as it would be deployed.

    `Fitted.client` returns it.

    Attributes:
        fitted: The federation.
        number: The number of the client.
    """

    fitted: Federated
    number: int

    def _about(self) -> str:
        return f"'{shown(self.name)}' after round {self.fitted.round}"

    @property
    def name(self) -> str:
        """The name of the client, or its number as text."""
        return self.fitted.name_of(self.number)

    @cached_property
    def state(self) -> Mapping[str, Tensor]:
        """The tensors of the model by name, as a copy."""
        fitted, number = self.fitted, self.number
        if number not in fitted.added and fitted.saved is None:
            return state_dict(fitted.sim, fitted.progress, number)
        stored = fitted.added[number].state if number in fitted.added else (fitted.saved or {})[number]
        return {name: x.clone() for name, x in stored.items()}  # clients of a saved folder share equal tensors

    @cached_property
    def model(self) -> nn.Module:
        """Your own module in evaluation mode, yours to change; it takes samples scaled and standardised."""
        return own_model(module_of(self.fitted.sim, self.state))

    @cached_property
    def predictor(self) -> Predictor:
        """The model with its preprocessing, as one module that takes raw samples.

        The model is its `module`. For a regression with standardised targets, outputs are in the data's own unit.
        Clients share its frozen tensors, so change `model` instead.
        """
        module = module_of(self.fitted.sim, self.state, light=True)
        return Predictor(module, self.preprocessing, self.fitted.sim.runtime.dtype)

    @property
    def preprocessing(self) -> Preprocessing:
        """What is done to its raw samples."""
        if self.number in self.fitted.added:
            return self.fitted.added[self.number].preprocessing
        return self.fitted.sim.runtime.federation.preprocessing.of(self.number)

    def outputs(self, x: Array) -> Tensor:
        """What the model gives for raw samples, as they are in the data.

        Args:
            x: An array or a DataFrame, whose columns are taken by name where the data has names for them. Texts may be
                a list.

        Returns:
            Logits of the classes `[n, K]`, or numbers `[n, 1]`.
        """
        sim = self.fitted.sim
        samples = SampleFormat.of(sim.runtime.federation).raw_samples(x)
        if sim.template is not None:
            check_given(sim.template, samples)
        with torch.no_grad():
            outputs: Tensor = (model := self.predictor)(samples)
        return finite_outputs(outputs, model, named_client(self.fitted, self.number))

    def predict_proba(self, x: Array) -> Tensor:
        """The probability of each class for raw samples.

        Args:
            x: Samples, as `outputs` takes them.

        Returns:
            Probabilities `[n, K]`, in the order of `Fitted.classes`.
        """
        if self.fitted.sim.setup.classes is None:
            raise DataError("a regression has no probabilities: use predict")
        return self.outputs(x).softmax(-1)

    def predict(self, x: Array) -> Tensor | NDArray[Any]:
        """The class of each raw sample, or for a regression the number.

        Args:
            x: Samples, as `outputs` takes them.

        Returns:
            Classes as the data calls them, by name or by number.
        """
        outputs = self.outputs(x)
        if self.fitted.sim.setup.classes is None:
            return outputs
        names, numbers = self.fitted.sim.runtime.federation.class_names, outputs.argmax(-1)
        return named_classes(names)[numbers.numpy()] if names else numbers

    def metric(self, metric: str | Callable[..., object], split: str = "test") -> float:
        """A metric of the model on the client's own held-out samples.

        Args:
            metric: A name, or a function, as in `Fitted.metric`.
            split: `"test"` or `"validation"`.
        """
        return self.fitted.metric(metric, split, client=self.name)

    def confusion(self, split: str = "test") -> Tensor:
        """How many of the client's samples of each class (rows) are given each class (columns), `[K, K]`."""
        return self.fitted.confusion(self.name, split)

    def export(self, path: str | Path) -> Path:
        """Write the model to a file.

        ONNX takes raw samples, as `predict` does. Safetensors holds the weights of `model`; its metadata describes the
        preprocessing of samples and outputs as JSON (`preprocessing`).

        Args:
            path: `NAME.onnx` or `NAME.safetensors`. An existing file is never overwritten.

        Returns:
            The path.
        """
        target = Path(path)
        form = SampleFormat.of(self.fitted.sim.runtime.federation)
        export_model(self.predictor, target, ModelFacts.of(self.name, form), named_client(self.fitted, self.number))
        return target


def named_classes(names: Sequence[str]) -> NDArray[Any]:
    """Names of classes as the data has them: whole numbers, if all of them are."""
    whole = all(name.removeprefix("-").isdecimal() and str(int(name)) == name for name in names)
    return np.array([int(name) for name in names]) if whole else np.array(names)


def named_client(fitted: Federated, client: int) -> str:
    """Words for a client in messages."""
    named = client in fitted.added or fitted.sim.runtime.federation.client_names
    return f"client '{shown(fitted.name_of(client))}'" if named else f"client {client}"
