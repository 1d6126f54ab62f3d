"""Small mutations of the source: each changes one value, and some test must notice.

A mutant is an entry `[[mutant]]` in a TOML file of this directory: a text `old` that occurs once in `file`, the text
`new` that takes its place, one sentence on what breaks, and the tests that should notice. `python tests/mutants`
tries them (`__main__.py`). The source is never changed: a mutant lives in a copy that comes first on PYTHONPATH, so
that processes started by a test run it too.
"""

import ast
import itertools
import os
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCE = ROOT / "src"
PACKAGE = "stratafl"


@dataclass(frozen=True)
class Mutant:
    """One mutation; `name` is `area/name`, where the area is the TOML file."""

    name: str
    file: str  # below src/stratafl
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        return SOURCE / PACKAGE / self.file

    def mutated(self) -> str:
        """The text of the file with the mutation; an error if `old` is missing or ambiguous."""
        text = self.path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its old text occurs {count} times in {self.file}, instead of once")
        return text.replace(self.old, self.new)

    def first_line(self) -> int:
        """The first line that the mutation changes, counted from 1."""
        before, after = self.path.read_text(encoding="utf-8").splitlines(), self.mutated().splitlines()
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
        return sum(1 for _ in same) + 1


def load_mutants(folder: Path = HERE) -> list[Mutant]:
    """The mutants of all areas, in the order of their files."""
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            tests = tuple(table.pop("tests"))
            mutants.append(Mutant(**{**table, "name": f"{path.stem}/{table['name']}"}, tests=tests))
    return mutants


class Overlay:
    """A copy of the source in which one file at a time is another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ticks = itertools.count(1_000_000_000)
        shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))

    @contextmanager
    def replaced(self, file: str, text: str) -> Iterator[Path]:
        path = self.folder / PACKAGE / file
        original = path.read_text(encoding="utf-8")
        self._write(path, text)
        try:
            yield self.folder
        finally:
            self._write(path, original)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        tick = next(self._ticks)  # Python compiles a file anew if its time differs, in whole seconds
        os.utime(path, (tick, tick))


# Marks the statements that mutants change, so that a run records which tests execute them.
_PROBE = """
import os as _os
_seen = set()
def hit(name):
    test = _os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" ", 1)[0]
    if test and (name, test) not in _seen:
        _seen.add((name, test))
        with open(_os.path.join(_os.environ["MUTANT_MAP"], str(_os.getpid())), "a") as file:
            file.write(f"{name}\\t{test}\\n")
"""


def write_probes(mutants: list[Mutant], folder: Path) -> None:
    """Write a copy of the source that records which test executes the statement of which mutant."""
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "mutant_probe.py").write_text(_PROBE)
    for file in sorted({mutant.file for mutant in mutants}):
        places = {mutant.name: mutant.first_line() for mutant in mutants if mutant.file == file}
        tree = ast.parse((SOURCE / PACKAGE / file).read_text(encoding="utf-8"))
        for name, line in places.items():
            _add_probe(tree, name, line)
        (folder / PACKAGE / file).write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")


def _add_probe(tree: ast.Module, name: str, line: int) -> None:
    """Put a probe before the innermost statement that contains the line."""
    best: tuple[int, list[ast.stmt], int] | None = None
    for node in ast.walk(tree):
        for body in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
            for index, statement in enumerate(body if isinstance(body, list) else []):
                first, last = statement.lineno, statement.end_lineno or statement.lineno
                if first <= line <= last and (best is None or last - first < best[0]):
                    best = (last - first, body, index)
    if best is not None:
        _, body, index = best
        docstring = index == 0 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        probe = ast.parse(f"__import__('mutant_probe').hit({name!r})").body[0]
        for part in ast.walk(probe):
            if hasattr(part, "lineno"):
                part.lineno = part.end_lineno = body[index].lineno
        body.insert(index + docstring, probe)
