"""The fields of a site's uploads and downloads, with their sizes in bytes, read from the forms.

    sent_fields(fedper(), blueprint.setup()).stages[0].upload

Nothing here is written by hand for a method: fields, tensors and sizes are those of `Algorithm.upload_form` and
`Algorithm.download_form`, by which every message is checked. What a field means is in `field_meanings.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stratafl.algorithms.field_meanings import Direction, Meaning, meaning_of
from stratafl.core.algorithm import Algorithm
from stratafl.core.form import FieldForm, Form, TensorForm
from stratafl.core.layers import Layer
from stratafl.core.layout import Layout, Rows
from stratafl.core.rehearsal import Rehearsal
from stratafl.core.reprs import short_repr
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, flatten, rows_of

MAX_MISSING_NAMED = 3  # layers: if no more are missing, those are named instead of the others
MAX_NAMED = 8  # layers


@short_repr
@dataclass(frozen=True)
class SentField:
    """A field as it travels: what it means, its tensors, and how many numbers and bytes it takes at most."""

    direction: Direction
    name: str
    meaning: Meaning
    common: bool  # whether it is the same for all sites
    mask: str  # none, layers or columns: whether a part of it is left out, which a mask says
    tensors: Mapping[str, TensorForm]  # by tensor of the model; of a field that is no tensors of the model, by ""
    layers: str  # which layers they are of, in words
    values: int
    running: int  # how many of the values are running statistics of normalisations
    bytes: int  # with masks

    @property
    def exact(self) -> bool:
        """Whether it always takes these bytes; else it takes at most as many."""
        return self.mask == "none"

    @property
    def is_model(self) -> bool:
        return "" not in self.tensors

    def to_table(self) -> dict[str, Any]:
        """For JSON."""
        tensors = {name: {"dtype": x.dtype, "shape": list(x.shape)} for name, x in self.tensors.items()}
        return {
            "field": self.name,
            "kind": self.meaning.kind,
            "meaning": self.meaning.says,
            "common": self.common,
            "mask": self.mask,
            **({"layers": self.layers, "tensors": tensors} if self.is_model else tensors[""]),
            "values": self.values,
            "running_statistics": self.running,
            "bytes": self.bytes,
            "exact": self.exact,
        }


@short_repr
@dataclass(frozen=True)
class SentStage:
    """Rounds in which the same fields travel in one direction.

    Rounds are counted from 1; `last` is None if it is the last stage. `finish` is the pass that some methods add after
    the last round.
    """

    first: int
    last: int | None
    fields: tuple[SentField, ...]
    finish: bool = False

    @property
    def rounds(self) -> str:
        if self.finish:
            return "after the last round"
        if self.last is None:
            return "every round" if self.first == 1 else f"from round {self.first:,}"
        return f"round {self.first:,}" if self.first == self.last else f"rounds {self.first:,} to {self.last:,}"

    @property
    def bytes(self) -> int:
        """Of all fields, at most."""
        return sum(field.bytes for field in self.fields)

    @property
    def exact(self) -> bool:
        return all(field.exact for field in self.fields)

    def to_table(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rounds": {"first": self.first, "last": self.last, "finish": self.finish},
            "bytes": self.bytes,
            "exact": self.exact,
            "fields": [field.to_table() for field in self.fields],
        }


@short_repr
@dataclass(frozen=True)
class Sent:
    """What travels between a site and the server."""

    uploads: tuple[SentStage, ...]
    downloads: tuple[SentStage, ...]
    stays: str  # the layers or tensors of the model that never leave a site, in words; "" if there are none
    blended: str  # those that leave it in the place of others, blended with them
    own_model: bool  # whether what is uploaded is another model than the one that a site uses

    def to_table(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "upload": [stage.to_table() for stage in self.uploads],
            "download": [stage.to_table() for stage in self.downloads],
            "stays": self.stays,
            "blended": self.blended,
            "own_model": self.own_model,
        }


def sent_fields(algorithm: Algorithm, setup: Setup) -> Sent:
    """What travels between a site and the server, stage by stage."""
    server, phases = algorithm.init(setup), list(_phases(algorithm, setup))
    uploads, downloads = list[SentStage](), list[SentStage]()
    for rnd, last in phases:
        up, down = algorithm.upload_form(rnd, server), algorithm.download_form(rnd, torch.tensor([0]))
        _add(uploads, rnd, last, _fields("up", up, setup.layout))
        _add(downloads, rnd, last, _fields("down", down, setup.layout))
    fields = [field for stage in uploads for field in stage.fields]
    left = {name for field in fields if field.is_model for name in field.tensors}
    own_model = bool(fields) and algorithm.row not in {field.name.partition(".")[0] for field in fields}
    # Of another model any tensor may stay.
    asked = [name for name in setup.layout.specs if own_model or name not in left] if fields else []
    mixed = {name for rnd, _ in phases for name in blended(algorithm, rnd, server, asked)}
    stays = [name for name in setup.layout.specs if name not in left | mixed]
    return Sent(
        tuple(uploads),
        tuple(downloads),
        layers_of(stays, setup.layout),
        layers_of(mixed, setup.layout),
        own_model and not mixed,
    )


def _phases(algorithm: Algorithm, setup: Setup) -> Iterator[tuple[Round, int | None]]:
    """The first round of each phase, and the number of its last."""
    rounds = max(setup.rounds, 1)
    plans = [algorithm.plan(t, setup.rounds) for t in range(rounds)]
    starts = [t for t in range(rounds) if not t or plans[t].phase != plans[t - 1].phase]
    for t, end in zip(starts, [*starts[1:], None], strict=True):
        yield Round(setup, t, plans[t]), end
    for t in range(setup.rounds, setup.rounds + algorithm.requires.extra_rounds):
        yield Round(setup, t, algorithm.plan(t, setup.rounds)), t + 1


def _add(stages: list[SentStage], rnd: Round, last: int | None, fields: tuple[SentField, ...]) -> None:
    """One more phase; if the same travels as in the one before, the same stage goes on."""
    finish, first = rnd.t >= max(rnd.setup.rounds, 1), rnd.t + 1
    if stages and not finish and stages[-1].fields == fields:
        first = stages.pop().first
    stages.append(SentStage(first, last, fields, finish))


def _fields(direction: Direction, form: Form, layout: Layout) -> tuple[SentField, ...]:
    """By name; a field without tensors, such as running statistics of a model that has none, is left out."""
    sent = (_field(direction, name, form.fields[name], layout) for name in sorted(form.fields))
    return tuple(field for field in sent if field.tensors)


def _field(direction: Direction, name: str, form: FieldForm, layout: Layout) -> SentField:
    tensors = {"": form.value} if isinstance(form.value, TensorForm) else dict(form.value)
    running = [x for key, x in tensors.items() if key and layout.specs[key].is_statistic]
    return SentField(
        direction,
        name,
        meaning_of(direction, name),
        form.common,
        form.mask,
        tensors,
        "" if "" in tensors else layers_of(tensors, layout),
        sum(x.size for x in tensors.values()),
        sum(x.size for x in running),
        sum(entry.bytes for _, entry in Form({name: form}).entries(layout)),
    )


# Personal tensors that leave a site after all, blended into others
#
# A form shows which tensors are in an upload, not what they are made of. FedCP sends (h_p + h_g)/2 in the place of the
# shared head h_g, which the server knows, so it can compute the personal head h_p. A rehearsal trains nothing, so an
# upload that changes with a personal tensor holds that tensor in some way.


def blended(algorithm: Algorithm, rnd: Round, server: State, names: Iterable[str]) -> tuple[str, ...]:
    """The tensors among `names` on which a site's upload depends although no step trains.

    All of them if that cannot be found out: then none is shown to stay.
    """
    personal = list(names)
    try:
        client, task = algorithm.rehearsed(rnd, server)
        row = rows_of(client, algorithm.row)

        def changes(changed: Iterable[str]) -> bool:
            """Whether the upload changes with these tensors."""
            other = {**row, **{name: row[name] + _noise(row[name]) for name in changed}}
            return not _same(usual, _upload(algorithm, rnd, {**client, algorithm.row: other}, task))

        usual = _upload(algorithm, rnd, client, task)
        tensors = [name for name in personal if name in row]
        return tuple(name for name in tensors if changes([name])) if tensors and changes(tensors) else ()
    except Exception:  # a method that says its form itself need not bear a rehearsal
        return tuple(personal)


def _noise(like: Tensor) -> Tensor:
    """The same each time; a constant would go unnoticed where only differences are sent."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like)


def _upload(algorithm: Algorithm, rnd: Round, client: State, task: Rehearsal) -> Rows:
    upload = algorithm.work(rnd, client, task).upload
    return flatten({name: field.value for name, field in upload.poisoned(rnd.layout).items()})


def _same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(x.nan_to_num(0), b[name].nan_to_num(0)) for name, x in a.items())


# Layers in words


def layers_of(names: Iterable[str], layout: Layout) -> str:
    """Which layers these tensors make up; of a layer that is there in part, what is there."""
    tensors = set(names)
    trained, running = tensors & set(layout.trainable()), {name for name in tensors if layout.specs[name].is_statistic}
    if not running and _bare(trained, layout):
        every = {name for layer in layout.layers if trained & set(layer.tensors) for name in layer.tensors}
        return f"{_layers(every, layout)}{', ' if len(every) < len(layout.specs) else ' '}without running statistics"
    if running and running == tensors:
        every = {name for name, spec in layout.specs.items() if spec.is_statistic}
        layers = [layer.name for layer in layout.layers if running & set(layer.tensors)]
        return "running statistics" if running == every else f"running statistics of {_joined(layers)}"
    return _layers(tensors, layout)


def _bare(trained: set[str], layout: Layout) -> bool:
    """Whether these are all trained tensors of some layers, of which at least one has running statistics."""
    touched = [layer.tensors for layer in layout.layers if trained & set(layer.tensors)]
    missing = [name for tensors in touched for name in tensors if name not in trained]
    return bool(missing) and not any(layout.specs[name].trainable for name in missing)


def _layers(tensors: set[str], layout: Layout) -> str:
    whole = [layer.name for layer in layout.layers if tensors.issuperset(_sendable(layer, layout))]
    missing = [layer.name for layer in layout.layers if tensors.isdisjoint(layer.tensors)]
    if len(whole) == len(layout.layers):
        return "all layers"
    if len(whole) + len(missing) == len(layout.layers) and len(missing) <= MAX_MISSING_NAMED < len(whole):
        return f"all layers but {', '.join(missing)}"
    return _joined([word for layer in layout.layers for word in _words(layer, tensors, layout)])


def _sendable(layer: Layer, layout: Layout) -> tuple[str, ...]:
    """Its tensors without those that each client computes from its own data, unless it has no others."""
    return tuple(name for name in layer.tensors if not layout.specs[name].own) or layer.tensors


def _words(layer: Layer, tensors: set[str], layout: Layout) -> list[str]:
    present = tuple(name for name in layer.tensors if name in tensors)
    if present == _sendable(layer, layout):
        return [layer.name]
    if present and not any(layout.specs[name].trainable for name in present):
        return [f"running statistics of {layer.name}"]
    return list(present)


def _joined(words: list[str]) -> str:
    more = f" and {len(words) - MAX_NAMED + 1} more" if len(words) > MAX_NAMED else ""
    return ", ".join(words[: MAX_NAMED - 1] if more else words) + more
