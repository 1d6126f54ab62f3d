"""Layers by name: what a layer is, and how a set of layers is chosen without naming a model.

A `Select` is a short text, the same in Python, TOML and on the command line:

    all · none · head · base                 where the layer is
    convolution · linear · embedding · batchnorm      what the layer is
    first:2 · middle:2 · last:2              counted in forward order (a normalisation follows what it normalises)
    blocks:2                                 the last blocks, classifier included (FedPer's K_P)
    conv1 · layer4 · layer4.1.bn2            a layer, or everything below a module
    *.lora_B · encoder.layer.[0-5].*         a pattern for the name of a layer, or for a part of it between dots
    *.bias                                   a pattern for names of tensors: layers that have no other ones
    head.personal                            a part of the head, unless a layer or module has this very name
    layer:head                               a layer that is called like a rule
    head+batchnorm · not head                unions and complements
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations

from stratafl.core.annotations import textual
from stratafl.errors import RecordError, UnknownNameError, choices, unknown

KINDS = ("convolution", "linear", "embedding", "batchnorm")
NORMALISATIONS = ("batchnorm", "norm")
RULES = ("all", "none", "head", "base", *KINDS)
_OPPOSITES = {"all": "none", "none": "all", "head": "base", "base": "head"}
COUNTED = ("first", "middle", "last", "blocks")
LAYER_PREFIX = "layer"
GLOB = "*?["  # what makes a term a pattern


@dataclass(frozen=True)
class Layer:
    """A named set of columns."""

    name: str
    kind: str  # convolution, linear, embedding, recurrent, attention, batchnorm, norm, block, other
    block: str
    head: bool
    normalises: str | None
    tensors: tuple[str, ...]
    part: str = ""  # its place in a head of several layers, such as `personal`
    composed: bool = False  # whether it is a part of a composed head, all of which counts as one layer

    @property
    def computes(self) -> bool:
        """Whether it is more than a normalisation, whether or not that is known to follow some layer."""
        return self.kind not in NORMALISATIONS


@dataclass(frozen=True)
class Select:
    """A set of layers, to be resolved against the layers of a model."""

    terms: tuple[str, ...]
    inverted: bool = False

    @staticmethod
    def parse(text: str) -> "Select":
        """The selection that a text such as `not last:2` or `head+batchnorm` means."""
        bare = text.lstrip()
        if bare.startswith("not "):
            return ~Select.parse(bare.removeprefix("not "))
        terms = tuple(t.strip() for t in bare.replace(",", "+").split("+") if t.strip())
        if not terms:
            raise RecordError(f"'{text}' selects nothing: write 'none', or a rule or layer such as 'head'")
        return Select(tuple(map(_checked, terms)))

    def __str__(self) -> str:
        return ("not " if self.inverted else "") + "+".join(self.terms)

    def __repr__(self) -> str:
        return f"select({str(self)!r})"

    def __invert__(self) -> "Select":
        opposite = _OPPOSITES.get(self.terms[0]) if len(self.terms) == 1 and not self.inverted else None
        return Select((opposite,)) if opposite else Select(self.terms, not self.inverted)

    def resolve(self, layers: Sequence[Layer], frozen: Sequence[str] = ()) -> tuple[str, ...]:
        """The names of the chosen layers, in forward order; `frozen` are tensors that belong to none."""
        chosen = {name for term in self.terms for name in _trained(term, layers, frozen)}
        return tuple(layer.name for layer in layers if (layer.name in chosen) != self.inverted)


def select(selection: "str | Select") -> Select:
    """A selection from its text, or itself."""
    if not isinstance(selection, str | Select):
        raise RecordError(f"choose layers with a string such as 'head' or 'conv1+fc', not {selection!r}")
    return Select.parse(selection) if isinstance(selection, str) else selection


def _checked(term: str) -> str:
    rule, colon, count = term.partition(":")
    if colon and rule not in (*COUNTED, LAYER_PREFIX):
        raise unknown("layer rule", rule, (*COUNTED, LAYER_PREFIX))
    if colon and rule != LAYER_PREFIX and not count.isdecimal():
        raise RecordError(f"'{term}' needs a number of layers, such as '{rule}:2'")
    return term


def _trained(term: str, layers: Sequence[Layer], frozen: Sequence[str]) -> set[str]:
    try:
        return _chosen(term, layers)
    except UnknownNameError:
        matching = [name for name in frozen if is_below(name, term) or _matches(name, term)]
        if not matching:
            raise
        few = choices([layer.name for layer in layers])
        raise RecordError(
            f"'{term}' selects frozen tensors alone, such as '{matching[0]}', which all clients share and none trains: "
            f"set requires_grad=True for them; else {few}"
        ) from None


def _chosen(term: str, layers: Sequence[Layer]) -> set[str]:
    rule, colon, count = term.partition(":")
    if rule == LAYER_PREFIX and colon:
        return _named(count, layers)
    if colon:
        return _last_blocks(layers, int(count)) if rule == "blocks" else _counted(rule, int(count), layers)
    if term in KINDS and any(layer.kind == "block" for layer in layers):
        raise RecordError(f"'{term}' cannot be chosen where layers are whole blocks: use granularity 'module'")
    if term in KINDS:
        return {layer.name for layer in layers if layer.kind == term}
    if term in RULES:
        return {layer.name for layer in layers if term == "all" or term == ("head" if layer.head else "base")}
    return _named(term, layers)


def _matching(pattern: str, layers: Sequence[Layer]) -> set[str]:
    """The layers whose names, or all of whose tensors, match a pattern; it may begin and end at any dot."""
    matching = {layer.name for layer in layers if _matches(layer.name, pattern)}
    matching |= {layer.name for layer in layers if all(_matches(name, pattern) for name in layer.tensors)}
    if matching:
        return matching
    tensors = [name for layer in layers for name in layer.tensors if _matches(name, pattern)]
    if tensors:
        rule = "choose whole layers, or use granularity 'tensor'"
        raise RecordError(f"'{pattern}' matches tensors such as '{tensors[0]}', but no whole layer: {rule}")
    raise unknown("layer", pattern, [layer.name for layer in layers])


def _matches(path: str, pattern: str) -> bool:
    names = path.split(".")
    return any(fnmatchcase(".".join(names[i:j]), pattern) for i, j in combinations(range(len(names) + 1), 2))


def _named(term: str, layers: Sequence[Layer]) -> set[str]:
    if any(letter in term for letter in GLOB):
        return _matching(term, layers)
    named = {layer.name for layer in layers if is_below(layer.name, term)}
    if not named and term.startswith("head."):
        named = {layer.name for layer in layers if layer.part and is_below(layer.part, term.removeprefix("head."))}
    if not named:
        parts = [f"head.{layer.part}" for layer in layers if layer.part]
        raise unknown("layer", term, [*(layer.name for layer in layers), *parts, *RULES])
    return named


def is_below(path: str, module: str) -> bool:
    """Whether a path is that of a module, or of something in it."""
    return path == module or path.startswith(module + ".")


def leaders(layers: Sequence[Layer]) -> dict[str, str]:
    """For each layer the one it is counted with: what it normalises, the first of a composed head, else itself."""
    first = next((layer.name for layer in layers if layer.composed), "")
    composed = {layer.name for layer in layers if layer.composed}
    counted = {layer.name: layer.normalises or layer.name for layer in layers}
    return {name: first if {name, leader} & composed else leader for name, leader in counted.items()}


def _counted(rule: str, count: int, layers: Sequence[Layer]) -> set[str]:
    counted = leaders(layers)
    units = list(dict.fromkeys(counted[layer.name] for layer in layers if counted[layer.name] == layer.name))
    if count > len(units):
        raise RecordError(f"'{rule}:{count}' asks for {count} layers, but there are {len(units)}: {', '.join(units)}")
    start = {"first": 0, "middle": (len(units) - count) // 2, "last": len(units) - count}[rule]
    chosen = set(units[start : start + count])
    return {layer.name for layer in layers if counted[layer.name] in chosen}


def _last_blocks(layers: Sequence[Layer], count: int) -> set[str]:
    blocks = list(dict.fromkeys(layer.block for layer in layers))
    if count > len(blocks):
        raise RecordError(f"'blocks:{count}' asks for {count} blocks, but there are {len(blocks)}: {', '.join(blocks)}")
    chosen = set(blocks[len(blocks) - count :])
    return {layer.name for layer in layers if layer.block in chosen}


textual(Select, Select.parse)
