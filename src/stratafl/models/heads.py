"""Composed heads: they replace the head of a model, at its path, by parts, some of them shared and some personal.

    model = HeadExtension("two")(model, example, classes, head="fc")     # fc.generic and fc.personal

Every part is a layer of its own, `head.personal` names it in any model, and the whole head counts as one layer for
`last:1` and as one block for `blocks:1`. The original weights are kept; called with features only, a composed head
gives what the client predicts with, and the same every time.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, relu, softmax

from stratafl.core.records import record
from stratafl.errors import ModelError, first_line

Kind = Literal["two", "bias", "prior", "shift", "gated", "conditional"]


class ComposedHead(nn.Module):
    """A head whose children are layers of their own; derive from it to write another one."""

    is_composed_head = True


class Offset(nn.Module):
    """Adds a vector to what it is given."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.value


class OwnOffset(Offset):
    """An offset that each client computes from its own data: it is not trained and never sent."""

    is_own = True

    def __init__(self, value: Tensor) -> None:
        nn.Module.__init__(self)
        self.register_buffer("value", value)


class TwoHeads(ComposedHead):
    """The sum of the outputs of a generic and a personal head (FedRoD)."""

    def __init__(self, generic: nn.Module, personal: nn.Module) -> None:
        super().__init__()
        self.generic, self.personal = generic, personal

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.generic(z) + self.personal(z)
        return out


class BiasedHead(ComposedHead):
    """A head without the bias of its outputs, and this bias."""

    def __init__(self, linear: nn.Module, bias: Offset) -> None:
        super().__init__()
        self.linear, self.bias = linear, bias

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.bias(self.linear(z))
        return out


class PriorHead(ComposedHead):
    """A head and a vector that is added to its outputs, such as the log of a client's class frequencies."""

    def __init__(self, linear: nn.Module, prior: OwnOffset) -> None:
        super().__init__()
        self.linear, self.prior = linear, prior

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.prior(self.linear(z))
        return out


class ShiftedHead(ComposedHead):
    """A head and a vector that is added to the features it is given (FedDBE)."""

    def __init__(self, inner: nn.Module, shift: Offset) -> None:
        super().__init__()
        self.inner, self.shift = inner, shift

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.inner(self.shift(z))
        return out


class Policy(nn.Module):
    """Two scores for each of d numbers: `[B, d]` to `[B, 2, d]`, ReLU(LayerNorm(W·x + b))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(2 * width)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = relu(self.norm(self.linear(x))).unflatten(-1, (2, -1))
        return scores


class GatedHead(ComposedHead):
    """A policy divides every feature between a personal and a generic head (FedCP).

    h_p(r⊙z) + h_g(s⊙z) with (r, s) = softmax of the policy's scores for z⊙v, where v is the normalised column sum of
    the personal head's weight; no gradient goes through v. `noise`, `[B, 2, d]`, is added to the scores: with Gumbel
    noise the shares are FedCP's in training.
    """

    def __init__(self, personal: nn.Linear, generic: nn.Linear, policy: Policy) -> None:
        super().__init__()
        self.personal, self.generic, self.policy = personal, generic, policy

    def shares(self, z: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """How much of each feature is personal and how much is generic, which add up to 1."""
        context = normalize(self.personal.weight.detach().sum(0), dim=0)
        scores = self.policy(z * context)
        personal, generic = softmax(scores if noise is None else scores + noise, dim=1).unbind(1)
        return personal, generic

    def forward(self, z: Tensor, noise: Tensor | None = None) -> Tensor:
        r, s = self.shares(z, noise)
        out: Tensor = self.personal(r * z) + self.generic(s * z)
        return out


class Branch(nn.Module):
    """LayerNorm(ReLU(W·c + b)), as wide as what it is given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, condition: Tensor) -> Tensor:
        out: Tensor = self.norm(relu(self.linear(condition)))
        return out


class Valve(nn.Module):
    """GPFL's conditional valve CoV(z, c) = ReLU(z⊙(γ(c) + 1) + β(c)), for features `[B, d]` and a condition `[d]`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = Branch(width), Branch(width)

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        return relu(z * (self.gamma(condition) + 1) + self.beta(condition))


class ClassEmbedding(nn.Embedding):
    """A vector for each class; without class numbers all of them, `[classes, d]`, and no lookup to differentiate."""

    def forward(self, classes: Tensor | None = None) -> Tensor:
        return self.weight if classes is None else super().forward(classes)


class ConditionalHead(ComposedHead):
    """A classifier of what a valve leaves of the features, given the client's classes (GPFL): h(CoV(z, p)).

    p = Σ_c f_c·e_c, with the client's class frequencies f (zeros at the start, which a method sets and never trains)
    and the class embeddings e; no gradient goes through p. An objective calls the parts: `head.valve` with features and
    a condition, `head.embedding` with class numbers or without, `head.classifier`.
    """

    def __init__(self, classifier: nn.Module, embedding: ClassEmbedding, valve: Valve, frequencies: Offset) -> None:
        super().__init__()
        self.classifier, self.embedding, self.valve = classifier, embedding, valve
        self.frequencies = frequencies

    def condition(self) -> Tensor:
        """p: the client's own mean of the class embeddings."""
        return self.frequencies.value.detach() @ self.embedding.weight.detach()

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.valve(z, self.condition()))
        return out


@record
class HeadExtension:
    """Replace the head by a composed one that starts from its weights.

    With `two`, `bias`, `prior` and `shift` the model starts with the outputs that it had.
    """

    kind: Kind

    def __call__(self, module: nn.Module, example: Tensor, classes: int | None, head: str) -> nn.Module:
        original = _head(module, head)
        features, outputs = _sizes(module, example, original, head)
        composed = _composed(self.kind, original, features, outputs, classes)
        like = next(original.parameters())
        return replace_head(module, head, composed.to(like.device, like.dtype).train(original.training))


def replace_head(module: nn.Module, path: str, head: nn.Module) -> nn.Module:
    """The module with another head at the path of its head; changed in place."""
    _head(module, path)
    module.set_submodule(path, head)
    return module


def _head(module: nn.Module, path: str) -> nn.Module:
    if not path:
        name = type(module).__name__
        raise ModelError(f"{name} is one layer and has no separate head: pass nn.Sequential(nn.Flatten(), …)")
    return module.get_submodule(path)


def _composed(
    kind: Kind, head: nn.Module, features: tuple[int, ...], outputs: tuple[int, ...], classes: int | None
) -> ComposedHead:
    if kind == "shift":
        return ShiftedHead(head, Offset(torch.zeros(features)))
    if kind == "prior":
        return PriorHead(head, OwnOffset(torch.zeros(outputs)))
    if kind == "bias":
        return BiasedHead(head, Offset(_taken_bias(head)))
    width, out = _flat(kind, "features", features), _flat(kind, "outputs", outputs)
    if kind == "two":
        return TwoHeads(head, _linear(torch.zeros(out, width), torch.zeros(out)))
    if kind == "gated":
        if not isinstance(head, nn.Linear):
            raise ModelError(f"a gated head needs a head that is one nn.Linear, but this one is {_kind(head)}")
        bias = None if head.bias is None else head.bias.detach().clone()
        return GatedHead(_linear(head.weight.detach().clone(), bias), head, Policy(width))
    if classes is None:
        raise ModelError("a conditional head needs classes, but the targets of this federation are numbers")
    return ConditionalHead(head, ClassEmbedding(classes, width), Valve(width), Offset(torch.zeros(classes)))


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    out, width = weight.shape
    linear: nn.Linear = nn.utils.skip_init(
        nn.Linear, width, out, bias=bias is not None
    )  # a draw would change the next part's
    linear.weight = nn.Parameter(weight)
    if bias is not None:
        linear.bias = nn.Parameter(bias)
    return linear


def _taken_bias(head: nn.Module) -> Tensor:
    """The bias of the head's outputs, taken away from it."""
    last = head
    while isinstance(last, nn.Sequential) and len(last):
        last = last[-1]
    if not isinstance(last, nn.Linear):
        raise ModelError(
            f"the bias of {_kind(head)} cannot be split off: end with nn.Linear, alone or in nn.Sequential"
        )
    bias = last.weight.new_zeros(last.out_features) if last.bias is None else last.bias.detach().clone()
    last.bias = None  # type: ignore[assignment]
    return bias


def _sizes(module: nn.Module, example: Tensor, head: nn.Module, path: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of one sample's features and outputs, from the head itself or from a run on the example."""
    if isinstance(head, nn.Linear):
        return (head.in_features,), (head.out_features,)
    seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def see(_: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        seen.append((tuple(inputs[0].shape[1:]), tuple(out.shape[1:])))

    dtype = next(module.parameters()).dtype
    hook = head.register_forward_hook(see)
    try:
        with torch.no_grad():
            module(example.to(dtype) if example.is_floating_point() else example)
    except Exception as error:  # a user's module may fail in any way
        raise ModelError(f"the head '{path}' cannot be replaced: {first_line(error, typed=True)}") from error
    finally:
        hook.remove()
    if not seen:
        raise ModelError(f"the head '{path}' cannot be replaced, because the model does not call it: name another head")
    return seen[-1]


def _flat(kind: Kind, what: str, shape: tuple[int, ...]) -> int:
    if len(shape) != 1:
        axes = ", ".join(map(str, shape))
        raise ModelError(f"a head of kind '{kind}' needs {what} [B, n], not [B, {axes}]: flatten its input")
    return shape[0]


def _kind(head: nn.Module) -> str:
    return type(head).__name__
