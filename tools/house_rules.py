"""The rules that keep the source light, checked by `make lint`: names, sizes, and words in tests.

    python tools/house_rules.py            print what breaks a rule; exit code 1 if something does
    python tools/house_rules.py --lines    print the code lines of each package beside its budget

Code lines are lines without blank ones, comments and docstrings. The budget of each package is in pyproject.toml,
[tool.stratafl.lines]. A change that needs more raises it in the same commit and says why.
"""

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "stratafl"
MAX_FILE_LINES = 450
MIN_HELPER_LINES = 60  # code lines; a module of fewer that only a neighbour imports is a fragment of it
VAGUE_NAMES = {"each", "found", "one", "given", "known", "own", "mine", "held", "kept", "said", "made", "there", "told"}
VAGUE_CONSTANTS = {
    *(
        "MOST",
        "AT_ONCE",
        "LONGEST",
        "LARGEST",
        "LEAST",
        "OWN",
        "FEW",
        "MANY",
        "SOON",
        "KEPT",
        "HELD",
        "ENOUGH",
        "CLEAR",
    ),
    *("CLOSE", "NEAR", "SMALL", "LONG", "ALONE", "USUAL", "WORST", "NEEDED", "NAMED", "SHOWN", "NOTHING", "WHOLE"),
}
OPTION_NAMES = {"own"}  # options of methods, which configurations store
SAFE_STARTERS = {"child_processes.py", "guardian.py"}  # the latter runs isolated and imports nothing of ours
PROCESS_MODULES = {"multiprocessing", "concurrent.futures.process", "pty", "runpy", "torch.multiprocessing"}
STARTS = re.compile(
    r"subprocess\.(Popen|run|call|check_call|check_output|getoutput|getstatusoutput)"
    r"|os\.(system|popen|exec\w+|spawn\w+|posix_spawnp?|fork\w*)|(\w+\.)*ProcessPoolExecutor"
)
ENTRY_POINTS = {"main"}  # of modules that are run, not imported
_SENTENCE = re.compile(r"(?:\b[A-Za-z][a-z']*,? ){4,}[a-z']+\b")  # five words in a row

Module = tuple[Path, ast.Module, str]


def modules(folder: Path = SOURCE) -> list[Module]:
    texts = [(path, path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]
    return [(path, ast.parse(text), text) for path, text in texts]


def place(path: Path, line: int | None = None) -> str:
    return f"{path.relative_to(ROOT)}{f':{line}' if line else ''}"


def repeated_names(source: list[Module]) -> Iterator[str]:
    """Two classes, two modules or two public functions never share a name."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, tree, _ in source:
        if not path.stem.startswith("__"):
            places["module", path.stem].append(place(path))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places["class", node.name].append(place(path, node.lineno))
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in ENTRY_POINTS:
                places["function", node.name].append(place(path, node.lineno))
    for (kind, name), where in places.items():
        if len(where) > 1:
            yield f"{where[0]}: the {kind} name '{name}' is also in {', '.join(where[1:])}: rename all but one"


def vague_names(source: list[Module]) -> Iterator[str]:
    """Variables and constants are named after their role; `each` may stand in a comprehension of one line."""
    for path, tree, _ in source:
        short = {id(part) for node in ast.walk(tree) if _is_short_comprehension(node) for part in ast.walk(node)}
        stored = {id(part) for node in ast.walk(tree) for part in _stored_names(node)}
        for node in ast.walk(tree):
            name, is_new = _new_name(node)
            if id(node) in stored:
                continue
            if is_new and name in VAGUE_NAMES and not (name == "each" and id(node) in short):
                yield f"{place(path, node.lineno)}: the variable '{name}' does not say its role"
            elif is_new and name.lstrip("_") in VAGUE_CONSTANTS:
                yield f"{place(path, node.lineno)}: the constant '{name}' does not say what it limits"


def _is_short_comprehension(node: ast.AST) -> bool:
    kinds = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
    return isinstance(node, kinds) and node.lineno == node.end_lineno


def _stored_names(node: ast.AST) -> list[ast.AST]:
    """Fields of records and options of methods: files have these names."""
    if isinstance(node, ast.ClassDef):
        return [line.target for line in node.body if isinstance(line, ast.AnnAssign)]
    if isinstance(node, ast.FunctionDef):
        return [argument for argument in node.args.kwonlyargs if argument.arg in OPTION_NAMES]
    return []


def _new_name(node: ast.AST) -> tuple[str, bool]:
    if isinstance(node, ast.Name):
        return node.id, isinstance(node.ctx, ast.Store)
    return (node.arg, True) if isinstance(node, ast.arg) else ("", False)


def long_files(source: list[Module]) -> Iterator[str]:
    for path, _, text in source:
        if (lines := text.count("\n")) > MAX_FILE_LINES:
            yield f"{place(path)}: {lines} lines; divide it by subject (at most {MAX_FILE_LINES})"


def fragments(source: list[Module]) -> Iterator[str]:
    """A short module that only one neighbour imports belongs into that neighbour, if both fit into one file."""
    names = {_dotted(path): path for path, _, _ in source}
    importers: dict[Path, set[Path]] = defaultdict(set)
    for path, tree, _ in source:
        for name in _imported(tree, path):
            target = names.get(name)
            if target is not None and target != path:
                importers[target].add(path)
    sizes = {path: (code_lines(tree, text), text.count("\n")) for path, tree, text in source}
    for path, users in importers.items():
        user = next(iter(users))
        is_private = len(users) == 1 and user.parent == path.parent
        is_named_by_python = bool({user.stem, path.stem} & {"__init__", "__main__"})
        fits = sizes[path][0] < MIN_HELPER_LINES and sizes[path][1] + sizes[user][1] <= MAX_FILE_LINES
        if is_private and fits and not is_named_by_python:
            yield f"{place(path)}: {sizes[path][0]} code lines that only {place(user)} uses: put them there"


def _dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, path: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def code_lines(tree: ast.Module, text: str) -> int:
    """Lines that are neither blank nor only comment or docstring."""
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    docstrings = {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(1 for number, line in lines if line and line[0] != "#" and number not in docstrings)


def package_lines(source: list[Module]) -> Counter[str]:
    lines: Counter[str] = Counter()
    for path, tree, text in source:
        parts = path.relative_to(SOURCE).parts
        lines[parts[0] if len(parts) > 1 else "stratafl"] += code_lines(tree, text)
    return lines


def line_budgets() -> dict[str, int]:
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    return dict(tables.get("stratafl", {}).get("lines", {}))


def over_budget(source: list[Module]) -> Iterator[str]:
    budgets = line_budgets()
    for package, lines in sorted(package_lines(source).items()):
        if lines > (budget := budgets.get(package, 0)):
            yield f"src/stratafl/{package}: {lines} code lines, {budget} allowed by [tool.stratafl.lines]"


def sentences_in_tests(folder: Path) -> Iterator[str]:
    """A test asserts the class of an error, its exit code and the values in it; the words are in a snapshot."""
    for path, tree, _ in modules(folder):
        checked = [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
        checked += [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "match"]
        for part in (part for node in checked for part in ast.walk(node)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and _SENTENCE.search(part.value):
                yield f"{place(path, part.lineno)}: a sentence in a test: '{part.value[:60]}'"


def unsafe_processes(source: list[Module]) -> Iterator[str]:
    """A process gets an environment by `safe_environment`; only child_processes.py says which Python runs."""
    for path, tree, _ in source:
        if path.name in SAFE_STARTERS:
            continue
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        for name in sorted(modules & PROCESS_MODULES):
            yield f"{place(path)}: '{name}' starts processes that import from the current folder: use subprocess"
        for node in ast.walk(tree):
            text = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Call) else ""
            if text == "sys.executable" or (isinstance(node, ast.ImportFrom) and node.module == "subprocess"):
                yield f"{place(path, node.lineno)}: use child_processes.python_command, and import subprocess"
            if (
                isinstance(node, ast.Call)
                and STARTS.fullmatch(ast.unparse(node.func))
                and not _has_safe_environment(node)
            ):
                yield f"{place(path, node.lineno)}: a process without env=safe_environment(…)"


def _has_safe_environment(call: ast.Call) -> bool:
    values = [keyword.value for keyword in call.keywords if keyword.arg == "env"]
    return any(isinstance(value, ast.Call) and ast.unparse(value.func) == "safe_environment" for value in values)


RULES = {
    "names": repeated_names,
    "words": vague_names,
    "long": long_files,
    "fragments": fragments,
    "lines": over_budget,
    "processes": unsafe_processes,
}


def main() -> None:
    source = modules()
    if "--lines" in sys.argv:
        budgets = line_budgets()
        for package, lines in sorted(package_lines(source).items()):
            print(f"{package:12} {lines:6} {budgets.get(package, '')}")
        print(f"{'sum':12} {sum(package_lines(source).values()):6}")
        return
    chosen = sys.argv[1:] or [*RULES, "tests"]
    problems = [line for rule in chosen if rule in RULES for line in RULES[rule](source)]
    problems += list(sentences_in_tests(ROOT / "tests")) if "tests" in chosen else []
    print("\n".join(problems) or "no rule is broken")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
