"""Pages of the documentation that are made from the source: `python docs/tools/pages.py` writes them.

    docs/methods/README.md           the index of methods, from what each declares of itself
    docs/methods/*.md, docs/pictures/methods/*.svg      by method_pages.py
    docs/reference/settings.md                    its tables of settings, from their records
    docs/reference/sent-fields.md                 its tables, from the forms of uploads and downloads

A test fails if a page is not what this would write.
"""

import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from typing import Any, Literal

from stratafl.algorithms import ALGORITHMS
from stratafl.algorithms.declaration import KINDS, METHODS, Method
from stratafl.algorithms.field_meanings import Direction, Meaning
from stratafl.algorithms.sent_fields import Sent, SentField, SentStage
from stratafl.algorithms.what_leaves import MASKS
from stratafl.config.deployment import DEPLOY, DeployTable, sent_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.setting_tables import TABLES
from stratafl.core.annotations import Named, Range, parts
from stratafl.core.records import keys_of

DOCS = Path(__file__).parents[1]
TABLES_BEGIN = "## Methods\n"
MODEL = "convnorm"  # it has normalisation layers, so that their running statistics show
COMPOSED = ("fedper+q8", "fedper+q4", "fedper+topk", "fedper+lag", "fedper+flayer", "fedper", "scaffold+q8", "scaffold")
MAX_NAMED_METHODS = 4
MAX_CELL = 9  # the last column that is read of the table of all methods
FOR_THIS_SITE = "for this site"
_HEAD = """# Methods

| your clients | try first |
|---|---|
| differ in how often classes occur | [FedPrior](fedprior.md), [FedStrata](fedstrata.md) |
| hold only a few of the classes | [Local](local.md), [FedPrior](fedprior.md), [FLAYER](flayer.md) |
| differ in the rule behind the answers | [FedPer](fedper.md), [FLAYER](flayer.md), [Local](local.md) |
| differ strongly in what a class looks like | [Local](local.md), [LG-FedAvg](lgfedavg.md) |
| form groups, or have different scanners or sensors | [IFCA](ifca.md), [FedPer](fedper.md), [Local](local.md) |
| have different scanners, and a model with BatchNorm | [FedBN](fedbn.md) |
| are very similar | [FedAvg](fedavg.md), [FedPrior](fedprior.md) |

Compare with [Local](local.md) and [FedAvg](fedavg.md) in any case. [Choosing a method](../understand/choosing.md) \
gives the reasons and what was measured, and `strata advise` measures on your data. You can add FLAYER's parts, LAG, \
ConFREE and a class prior to other methods, as in `fedper+flayer` or `fedala+prior` ([compositions](composition.md)).

In the tables, *0.1* and *0.5* are accuracies in % on MNIST with Dirichlet shares: at 0.1 clients hold few classes, \
at 0.5 most. *Time* is that of a round, relative to FedAvg's ([setting](../results/methods.md)). *Layers* shows \
what a client's training starts from, layer by layer from the input to the head: ● received, the same for all \
clients; ◐ received, but made or mixed for this client; ◒ received or the client's own, as the server chooses; ○ \
the client's own. Each page pictures one round with the same model and says what travels for the digits.
"""
_TAIL = """## Not included

Each of these needs a mechanism that no step of the catalogue has. None of them was run. The descriptions are from the \
papers' abstracts and the public code that is linked. FedAF, which FedLAG's tables list, is not included either: [the \
paper leaves open what it is](fedlag.md#readings).

| method | what it would need |
|---|---|
| cwFedAvg (ICCV 2025), [code](https://github.com/regulationLee/cwFedAvg) | A global model for each class, or one for \
each class of the output layer only. They are mixed for each client by its class frequencies, which are read from the \
norms of the rows of the client's output layer; a term of the loss keeps these norms near the frequencies. |
| FedSelect (CVPR 2024), [code](https://github.com/lapisrocks/fedselect) | Personal parameters chosen one by one and \
not by layer: a mask of each client that grows over the rounds, by how much a parameter changed, and training that \
alternates between what is personal and what is shared. |
| Floco (NeurIPS 2024), [code](https://github.com/adap/flower/tree/main/baselines/floco) | An output layer drawn in \
each training step from a simplex of output layers. In one round the server gives each client a region of the \
simplex, by the client's update of them. |
| FedDRM (ICLR 2026), [code](https://github.com/zijianwang0510/FedDRM) | A second, shared output layer that predicts \
the client, so that a query can go to the client that fits it best. No metric here scores that. |
"""


# The index of methods


def index_page(folder: Path) -> str:
    """docs/methods/README.md: a table for each kind, with links to the pages in this folder."""
    parts = [_HEAD]
    for kind, meaning in KINDS.items():
        rows = [_row(METHODS[name], folder) for name in sorted(METHODS) if METHODS[name].kind == kind]
        head = [
            f"## {kind.capitalize()}",
            "",
            f"{meaning.capitalize()}.",
            "",
            "| method | idea | layers | 0.1 | 0.5 | time |",
        ]
        parts += ["\n".join([*head, "|---|---|---|---:|---:|---:|", *rows, ""])] if rows else []
    return "\n".join([*parts, _TAIL])


def _row(method: Method, folder: Path) -> str:
    page = _page(method, folder)
    label = f"[{method.label}]({page})" if page else method.label
    scores = " | ".join(_scores(folder).get(method.name, ("–", "–", "–")))
    return f"| {label} `{method.name}` | {method.idea} | {_symbols(method, folder)} | {scores} |"


@cache
def _scores(folder: Path) -> dict[str, tuple[str, ...]]:
    """Accuracy at 0.1 and 0.5 and the time of a round, from the table of all methods."""
    results = folder.parent / "results/methods.md"
    text = results.read_text(encoding="utf-8") if results.exists() else ""
    rows = [[cell.strip(" *`") for cell in line.split("|")] for line in text.splitlines() if line.startswith("| ")]
    return {
        row[1]: (row[2].partition(" ±")[0], row[5].partition(" ±")[0], row[9]) for row in rows if len(row) > MAX_CELL
    }


def _symbols(method: Method, folder: Path) -> str:
    """What training starts from, layer by layer, as the method's picture says."""
    picture = folder.parent / f"pictures/methods/{method.name}.svg"
    symbols = re.search('data-symbols="([^"]*)"', picture.read_text(encoding="utf-8")) if picture.exists() else None
    return f"`{symbols[1]}`" if symbols else "–"


def _page(method: Method, folder: Path) -> str | None:
    """Its own page, or that of the method beside it in its file, or the one that names it where it says `Code:`."""
    module = method.builder.__module__.rpartition(".")[2]
    for name in (method.name, module):
        if (folder / f"{name}.md").exists():
            return f"{name}.md"
    named = rf"\b{method.name}\b"
    return next((page.name for page in sorted(folder.glob("*.md")) if re.search(named, _code_line(page))), None)


def _code_line(page: Path) -> str:
    lines = page.read_text(encoding="utf-8").splitlines()
    return next((line for line in lines if "Code:" in line), "")


# What travels, method by method and field by field


def sent_tables() -> str:
    """A table of methods, one of compositions, and one of fields."""
    methods = {name: _sent(name) for name in ALGORITHMS}
    composed = {name: methods.get(name) or _sent(name) for name in COMPOSED}
    whole = next(field.bytes for field in methods["fedavg"].uploads[0].fields if field.name == "theta")
    setting = (
        f"Model `{MODEL}` on the digits, {Experiment().data.clients} sites; the whole model takes {whole:,} bytes. "
        f"What arrives is the same for all sites, except where it says *{FOR_THIS_SITE}*."
    )
    parts = [
        "## Methods",
        f"{setting} `strata list METHOD --model NAME --data NAME` prints the same for your model and data.",
        _methods_table(methods),
        "## Compositions",
        _methods_table(dict(sorted(composed.items()))),
        "## Fields",
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


def _stages(stages: Sequence[SentStage]) -> str:
    """The fields of each stage, with its rounds if there are several."""
    return "<br>".join(f"{_when(stages, stage)}{_fields(stage.fields)}" for stage in stages)


def _bytes(stages: Sequence[SentStage]) -> str:
    return "<br>".join(f"{'' if stage.exact else '≤ '}{stage.bytes:,}" for stage in stages)


def _when(stages: Sequence[SentStage], stage: SentStage) -> str:
    return "" if len(stages) == 1 else f"{stage.rounds}: "


def _fields(fields: Iterable[SentField]) -> str:
    return ", ".join(map(_field, fields)) or "nothing"


def _field(field: SentField) -> str:
    own = [f"*{FOR_THIS_SITE}*"] if field.direction == "down" and not field.common else []
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
        by_name = {field.name: field.meaning for stage in stages for field in stage.fields}
        meanings |= by_name
        for field in by_name:
            users.setdefault(field, []).append(name)
    rows = [(f"`{name}`", meanings[name].kind, meanings[name].says, _users(users[name])) for name in sorted(meanings)]
    return _table((title, "kind", "what it is", "methods"), rows)


def _users(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= MAX_NAMED_METHODS else f"{len(names)} methods"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first, *rest = ("| " + " | ".join(line) + " |" for line in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *rest])


# Settings


def settings_tables(tables: Mapping[str, type[Any]]) -> str:
    """All keys of all tables with their defaults, limits and meaning, as Markdown."""
    lines = []
    for name, cls in tables.items():
        lines += [f"## [{name}]", "", "| key | default | meaning |", "|---|---|---|"]
        for key, setting in keys_of(cls).items():
            lines.append(f"| `{key}` | {_default(setting.default)} | {setting.meaning}{_allowed(setting.hint)} |")
        lines.append("")
    return "\n".join(lines)


def _default(value: Any) -> str:
    if value is MISSING:
        return "required"
    if isinstance(value, tuple):
        value = list(value)
    return "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _allowed(hint: Any) -> str:
    hint, markers = parts(hint)
    words = [str(marker) for marker in markers if isinstance(marker, Range | Named)]
    if typing.get_origin(hint) is Literal:
        words.append("one of " + ", ".join(f"`{name}`" for name in typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        words += [str(marker).replace("one", "any", 1) for marker in parts(typing.get_args(hint)[0])[1]]
    return f" ({', '.join(filter(None, words))})" if any(words) else ""


def main() -> None:
    """Write all pages."""
    from method_pages import write  # only a script finds its neighbours

    write()
    folder, fields = DOCS / "methods", DOCS / "reference/sent-fields.md"
    (folder / "README.md").write_text(index_page(folder), encoding="utf-8")
    before, _, _ = fields.read_text(encoding="utf-8").partition(TABLES_BEGIN)
    settings = DOCS / "reference/settings.md"
    head, _, _ = settings.read_text(encoding="utf-8").partition("## ")
    settings.write_text(head + settings_tables({**TABLES, DEPLOY: DeployTable}), encoding="utf-8")
    fields.write_text(before + sent_tables(), encoding="utf-8")


if __name__ == "__main__":
    main()
