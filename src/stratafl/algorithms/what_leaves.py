"""Everything that leaves a site, as lines of text that its owner reads before joining."""

from textwrap import wrap

from stratafl.algorithms.sent_fields import Sent, SentField, SentStage, sent_fields
from stratafl.core.algorithm import Algorithm
from stratafl.core.round import Setup
from stratafl.errors import counted

WIDTH = 100
MIN_TEXT_WIDTH = 30  # letters of a line that descriptions have in any case
_GAP = "  "
MASKS = {"layers": "some layers left out", "columns": "a part of each tensor, and which"}


def what_leaves(algorithm: Algorithm, setup: Setup, width: int = WIDTH) -> list[str]:
    """What leaves a site in a round, fields by name with bytes and their sum, and what stays."""
    return lines_of(sent_fields(algorithm, setup), width)


def lines_of(sent: Sent, width: int = WIDTH) -> list[str]:
    """The same of what is known already."""
    lines = [line for stage in sent.uploads for line in _stage_lines(stage, width)]
    ends = [f"may leave this site, blended into other tensors: {sent.blended}"] if sent.blended else []
    ends.append(f"never leaves this site: {what_stays(sent)}")
    return [*lines, *(line for end in ends for line in wrap(end, width, subsequent_indent=_GAP))]


def what_stays(sent: Sent) -> str:
    """What never leaves a site, in words."""
    if sent.stays == "all layers":
        return "samples, labels and the model"
    parts = [f"from the model: {sent.stays}"] if sent.stays else []
    parts += ["the model that this site uses, which is never sent"] if sent.own_model else []
    return "; ".join(["samples and labels", *parts])


def described(field: SentField) -> str:
    """What a field means, and what of the model it holds."""
    parts = [field.layers] if field.is_model else []
    if field.running and field.meaning.kind != "running statistics":
        parts.append(f"with {counted(field.running, 'running statistic')}")
    parts += [MASKS[field.mask]] if field.mask in MASKS else []
    parts += ["the same for all sites" if field.common else "for this site alone"] if field.direction == "down" else []
    return f"{field.meaning.says} ({'; '.join(parts)})" if parts else field.meaning.says


def size(part: SentField | SentStage) -> str:
    """Its bytes, and whether there may be fewer."""
    return f"{'' if part.exact else 'at most '}{counted(part.bytes, 'byte')}"


def _stage_lines(stage: SentStage, width: int) -> list[str]:
    if not stage.fields:
        return [f"leaves this site, {stage.rounds}: nothing"]
    rows = [(field.name, size(field), f"{field.meaning.kind}: {described(field)}") for field in stage.fields]
    rows.append(("total", size(stage), "plus a header with names and shapes"))
    names, sizes = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"leaves this site, {stage.rounds}:"]
    for name, taken, text in rows:
        begin = f"{_GAP}{name:<{names}}{_GAP}{taken:>{sizes}}{_GAP}"
        first, *more = wrap(text, max(width - len(begin), MIN_TEXT_WIDTH))
        lines += [begin + first, *(" " * len(begin) + line for line in more)]
    return lines
