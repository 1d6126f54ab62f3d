"""The tables of docs/what_the_server_learns.md, made from what methods send."""

from collections.abc import Iterable, Sequence

from stratafl.algorithms import ALGORITHMS
from stratafl.algorithms.field_meanings import Direction, Meaning
from stratafl.algorithms.sent_fields import Sent, SentField, Stage
from stratafl.algorithms.what_leaves import MASKS
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.sent import sent_of

MODEL = "convnorm"  # it has normalisation layers, so that their running statistics show
COMPOSED = ("fedper+q8", "fedper+q4", "fedper+topk", "fedper+lag", "fedper+flayer", "fedper", "scaffold+q8", "scaffold")
FEW = 4  # methods that are named
OWN = "for this site"


def sent_tables() -> str:
    """A table of methods, one of compositions, and one of fields."""
    methods = {name: _sent(name) for name in ALGORITHMS}
    composed = {name: methods.get(name) or _sent(name) for name in COMPOSED}
    whole = next(field.bytes for field in methods["fedavg"].uploads[0].fields if field.name == "theta")
    said = (
        f"Model `{MODEL}` on the digits, {Experiment().data.clients} sites; the whole model takes {whole:,} bytes. "
        f"What arrives is the same for all sites, except where it says *{OWN}*."
    )
    parts = [
        "### Methods",
        f"{said} `strata list METHOD --model NAME --data NAME` prints the same for yours.",
        _methods_table(methods),
        "### Compositions",
        _methods_table(dict(sorted(composed.items()))),
        "### Fields",
        _fields_table("up", "leaves a site", methods),
        _fields_table("down", "arrives at a site", methods),
    ]
    return "\n\n".join(parts) + "\n"


def _sent(name: str) -> Sent:
    return sent_of(with_values(Experiment(), {"algorithm.name": name, "model.name": MODEL}))


def _methods_table(methods: dict[str, Sent]) -> str:
    head = ("method", "leaves a site", "bytes", "never leaves", "arrives", "bytes")
    rows = [
        (
            f"`{name}`",
            _stages(sent.uploads),
            _bytes(sent.uploads),
            _stays(sent),
            _stages(sent.downloads),
            _bytes(sent.downloads),
        )
        for name, sent in methods.items()
    ]
    return _table(head, rows)


def _stages(stages: Sequence[Stage]) -> str:
    """The fields of each stage, with its rounds if there are several."""
    return "<br>".join(f"{_when(stages, stage)}{_fields(stage.fields)}" for stage in stages)


def _bytes(stages: Sequence[Stage]) -> str:
    return "<br>".join(f"{'' if stage.exact else '≤ '}{stage.bytes:,}" for stage in stages)


def _when(stages: Sequence[Stage], stage: Stage) -> str:
    return "" if len(stages) == 1 else f"{stage.rounds}: "


def _fields(fields: Iterable[SentField]) -> str:
    return ", ".join(map(_field, fields)) or "nothing"


def _field(field: SentField) -> str:
    own = [f"*{OWN}*"] if field.direction == "down" and not field.common else []
    parts = [*([field.layers] if field.is_model else []), *([MASKS[field.mask]] if field.mask in MASKS else []), *own]
    return f"`{field.name}` ({'; '.join(parts)})" if parts else f"`{field.name}`"


def _stays(sent: Sent) -> str:
    own = ["the model it uses"] if sent.own_model else []
    mixed = [f"(*{sent.blended}* leaves blended)"] if sent.blended else []
    return ", ".join([*own, *([sent.stays] if sent.stays else []), *mixed]) or "–"


def _fields_table(direction: Direction, title: str, methods: dict[str, Sent]) -> str:
    meanings: dict[str, Meaning] = {}
    users: dict[str, list[str]] = {}
    for name, sent in methods.items():
        stages = sent.uploads if direction == "up" else sent.downloads
        found = {field.name: field.meaning for stage in stages for field in stage.fields}
        meanings |= found
        for field in found:
            users.setdefault(field, []).append(name)
    rows = [(f"`{name}`", meanings[name].kind, meanings[name].says, _users(users[name])) for name in sorted(meanings)]
    return _table((title, "kind", "what it is", "methods"), rows)


def _users(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= FEW else f"{len(names)} methods"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first, *rest = ("| " + " | ".join(line) + " |" for line in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *rest])
