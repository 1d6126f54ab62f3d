"""All sentences of the source in one file, so that a review sees every change of wording.

    python tools/messages.py            write tests/messages.txt
    python tools/messages.py --check    exit code 1 if the file is not that of the source

Tests assert classes, exit codes and values, not words. A sentence is a string of three words or more that is no
docstring: messages, warnings, help, cells of tables. `{}` stands where a value is put in.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "stratafl"
SNAPSHOT = ROOT / "tests" / "messages.txt"
_WORDS = re.compile(r"[A-Za-z]{2,}[^A-Za-z]+[A-Za-z]+[^A-Za-z]+[A-Za-z]{2,}")


def template(node: ast.expr) -> str | None:
    """The text of a string, with `{}` for each value that is put in; None if it is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def sentences(tree: ast.Module) -> Iterator[str]:
    """The sentences of a module, in the order of its lines."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in _parts(node)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr)]
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in sorted(strings, key=lambda node: (node.lineno, node.col_offset)):
        text = None if id(node) in inner | alone else template(node)
        if text is not None and _WORDS.search(text):
            yield " ".join(text.split())


def _parts(joined: ast.JoinedStr) -> Iterator[ast.AST]:
    """The literal parts of an f-string, not the strings inside its values."""
    for part in joined.values:
        if isinstance(part, ast.Constant):
            yield part
        elif isinstance(part, ast.FormattedValue) and part.format_spec is not None:
            yield from ast.walk(part.format_spec)


def snapshot() -> str:
    blocks = []
    for path in sorted(SOURCE.rglob("*.py")):
        lines = list(sentences(ast.parse(path.read_text(encoding="utf-8"))))
        if lines:
            blocks.append("\n".join([f"== {path.relative_to(SOURCE)}", *lines]))
    return "\n\n".join(blocks) + "\n"


def main() -> None:
    if "--check" not in sys.argv:
        SNAPSHOT.write_text(snapshot(), encoding="utf-8")
    elif not SNAPSHOT.exists() or SNAPSHOT.read_text(encoding="utf-8") != snapshot():
        sys.exit("tests/messages.txt does not show the words of the source: run `make messages` and read its diff")


if __name__ == "__main__":
    main()
