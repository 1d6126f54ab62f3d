"""The index of methods in the documents, made from the catalogue."""

import re
from pathlib import Path

from stratafl.algorithms.methods import KINDS, METHODS, Method

_HEAD = """# Methods

`strata list` prints this table, `strata list fedrep` what there is to know of one method: options with their defaults \
and sensible ranges, what is sent, what a new client gets. `--json` is the same for programs. \
FLAYER's parts and LAG can be put on other methods, as `fedper+flayer`: see [compositions](composition.md).

FedAF, which FedLAG's tables list, is not here: its clients condense their data, the server trains on that, and there is
no client's model to share layer by layer.
"""


def index_page(folder: Path) -> str:
    """docs/algorithms/README.md: a table for each kind, with links to the pages in this folder."""
    parts = [_HEAD]
    for kind, meaning in KINDS.items():
        rows = [_row(METHODS[name], folder) for name in sorted(METHODS) if METHODS[name].kind == kind]
        head = [f"## {kind.capitalize()}", "", f"{meaning.capitalize()}.", "", "| method | name | idea | paper |"]
        parts += ["\n".join([*head, "|---|---|---|---|", *rows, ""])] if rows else []
    return "\n".join(parts)


def _row(method: Method, folder: Path) -> str:
    page = _page(method, folder)
    label = f"[{method.label}]({page})" if page else method.label
    paper = f"{method.paper}: *{method.title}*" if method.paper else "–"
    return f"| {label} | `{method.name}` | {method.idea} | {paper} |"


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
