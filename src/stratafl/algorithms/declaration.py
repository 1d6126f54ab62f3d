"""How a method declares itself to the catalogue: one decorator at its builder.

    @method(
        "personal parts",
        paper="Collins et al., 2021",
        title="Exploiting Shared Representations for Personalized Federated Learning",
        sends="the base",
        new_client="the shared base and the initial head",
    )
    def fedrep(
        *, head_epochs: Annotated[int, Range(least=0), Tune(1, 10)] = 1, train: LocalTraining = LocalTraining()
    ) -> Layerwise:

The idea is in the docstring of the builder or of its module, whose first paragraph is `FedRep (Collins et al., 2021):
FedPer that …`. `Tune` says in which range a tuner looks for a number, `Fixed` why it does not look. A method is in the
catalogue once `stratafl.algorithms` imports it.
"""

import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar

from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Fixed, Range, Tune, parts, union
from stratafl.core.layers import Select
from stratafl.core.records import validated
from stratafl.errors import RecordError, unknown

P = ParamSpec("P")
A = TypeVar("A", bound=Algorithm)
Kind = Literal[
    "global",
    "fine-tuned",
    "personal parts",
    "mixtures",
    "regularised and meta",
    "hypernetwork",
    "clustered",
    "smallest personal part",
    "controls",
]
KINDS: dict[Kind, str] = {
    "global": "one model for all clients",
    "fine-tuned": "one model, which each client trains a little more before use",
    "personal parts": "some parts are shared, the others stay with the client",
    "mixtures": "each client gets its own mixture of models",
    "regularised and meta": "personal models near the shared one, or one step from it",
    "hypernetwork": "a network on the server generates or weights the models",
    "clustered": "groups of clients, with a model for each group",
    "smallest personal part": "everything but a few numbers per client is shared",
    "controls": "they show where the gains of other methods come from",
}
METHODS: dict[str, "Method"] = {}
GIVEN = "train"  # not an option of the method: it comes from the table [train]


@dataclass(frozen=True)
class Hyperparameter:
    """An option of a method: which values it may have, and which are sensible."""

    name: str
    type: str  # int, float, bool, str or layers; several with " or " between
    default: Any
    limits: Range | None
    choices: tuple[Any, ...]  # the texts it may be; () if any
    tune: Tune | None
    fixed: str | None  # why a tuner leaves this number alone


@dataclass(frozen=True)
class Method:
    """What the catalogue knows of a method."""

    name: str
    builder: Callable[..., Algorithm]
    kind: Kind
    label: str  # as papers write it
    idea: str
    paper: str | None  # authors and year; None if it is not published
    title: str | None
    sends: str  # what a client uploads
    new_client: str  # what a client that never took part starts from
    also: tuple[str, ...] = ()  # other names that papers use

    @property
    def year(self) -> int | None:
        year = re.search(r"\d{4}", self.paper or "")
        return int(year[0]) if year else None

    @property
    def reading(self) -> str:
        """How the paper is read here and what the options mean, a line for each paragraph."""
        text = inspect.getdoc(self.builder) or ""
        return "\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))

    @property
    def hyperparameters(self) -> tuple[Hyperparameter, ...]:
        hints = typing.get_type_hints(self.builder, include_extras=True)
        options = inspect.signature(self.builder).parameters.values()
        return tuple(hyperparameter(p.name, hints[p.name], p.default) for p in options if p.name != GIVEN)

    def is_called(self, name: str) -> bool:
        """Whether a paper may mean this method by a name, such as 'Per-FedAvg' for perfedavg."""
        return _plain(name) in map(_plain, (self.name, self.label, *self.also))


def method(
    kind: Kind,
    *,
    paper: str | None = None,
    title: str | None = None,
    sends: str = "the whole model",
    new_client: str = "the global model",
    also: tuple[str, ...] = (),
) -> Callable[[Callable[P, A]], Callable[P, A]]:
    """Put a builder into the catalogue under its name, and check its arguments (`validated`)."""
    if kind not in KINDS:
        raise unknown("kind of method", kind, sorted(KINDS))

    def declare(function: Callable[P, A]) -> Callable[P, A]:
        builder, name = validated(function), function.__name__
        declared = METHODS.get(name)
        if declared is not None and declared.builder.__module__ != function.__module__:
            places = f"in {declared.builder.__module__} and in {function.__module__}"
            raise RecordError(f"two methods are called '{name}': {places}: rename one of them")
        label, idea = _introduced(function, paper)
        METHODS[name] = Method(name, builder, kind, label, idea, paper, title, sends, new_client, also)
        return builder

    return declare


def hyperparameter(name: str, hint: Any, default: Any) -> Hyperparameter:
    """What the annotation of an option says of it."""
    plain = [(each, markers) for each, markers in _alternatives(hint) if each is not type(None)]
    markers = [marker for _, marks in plain for marker in marks]
    words = list(dict.fromkeys(_word(each) for each, _ in plain))
    return Hyperparameter(
        name,
        "layers" if "layers" in words else " or ".join(words),
        default,
        next((marker for marker in markers if isinstance(marker, Range)), None),
        tuple(text for each, _ in plain if typing.get_origin(each) is Literal for text in typing.get_args(each)),
        next((marker for marker in markers if isinstance(marker, Tune)), None),
        next((marker.reason for marker in markers if isinstance(marker, Fixed)), None),
    )


def _introduced(function: Callable[..., Any], paper: str | None) -> tuple[str, str]:
    """The name that papers use, and the idea: `FedPer (Arivazhagan et al., 2019): shared base …`, or `Local: …`."""
    start = re.compile(r"([^():.]+)" + (rf" \({re.escape(paper)}[^()]*\)" if paper else "") + ": (.+)")
    for text in (function.__doc__, sys.modules[function.__module__].__doc__):
        if match := start.fullmatch(_first_paragraph(text)):
            return match[1], _capital(match[2])
    begin = f"{function.__name__.capitalize()} ({paper}): " if paper else f"{function.__name__.capitalize()}: "
    raise RecordError(f"{function.__name__}: start its docstring, or that of its module, with '{begin}' and the idea")


def _first_paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())


def _capital(text: str) -> str:
    return text if any(letter.isupper() for letter in text.split()[0]) else text[0].upper() + text[1:]


def _alternatives(hint: Any, outer: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The types that a hint allows, each with the markers that hold for it."""
    plain, markers = parts(hint)
    for member in union(plain):
        yield from _alternatives(member, (*outer, *markers))
    if not union(plain):
        yield plain, (*outer, *markers)


def _word(hint: Any) -> str:
    kind = typing.get_origin(hint) or hint
    return "str" if kind is Literal else "layers" if kind is Select else getattr(kind, "__name__", str(kind))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
