"""Code blocks of the documents, and what a block must fulfil: CONTRIBUTING.md has the conventions for those who write.

bash, console   commands: every one exists, its options are parsed, its settings and names are known
python          runs, in the order of the page; after `<!-- not run: REASON -->` its imports must exist
toml            settings of an experiment, a federation or a recipe
text            output
"""

import ast
import importlib
import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from stratafl.algorithms import ALGORITHMS
from stratafl.cli import app as cli_app
from stratafl.cli.command_options import SHORT_FOR, names_in, settings_of
from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.setting_tables import TABLES
from stratafl.runs.comparison import shared_and_own

ROOT = Path(__file__).parents[1]
SHELLS = ("bash", "console")
LANGUAGES = (*SHELLS, "python", "toml", "json", "text")
PROGRAMS = {"apt-get", "cd", "cp", "docker", "dpkg", "export", "flower-supernode", "flwr", "git", "head"}
PROGRAMS |= {"mkdir", "npm", "pip", "sudo", "tail", "tar"}
PROGRAMS |= {"echo", "flower-superlink", "openssl", "ssh-keygen"}
_FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2`*[ ]*$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: \S.* -->\s*\Z")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    not_run: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            match[3].strip(),
            re.sub(rf"^{match[1]}", "", match[4], flags=re.MULTILINE) if match[1] else match[4],
            _NOT_RUN.search(text[: match.start()]) is not None,
        )
        for match in _FENCE.finditer(text)
    ]


def commands_of(block: Block) -> list[str]:
    """The commands of a block, one line each, without comments; of a console those after its prompt."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    parts = [re.split(r"(?:^|\s+)#\s", line)[0].strip() for line in lines]
    return [part for part in parts if part]


def check_commands(block: Block) -> None:
    for line in commands_of(block):
        for command in re.split(r"\s(?:&&|\|)\s", line.rstrip("& ")):
            try:
                check_command(shlex.split(command.replace("…", "...")), Path(block.page).parent)
            except Exception as error:
                raise AssertionError(f"{block}: '{command}': {type(error).__name__}: {error}") from error


def check_command(words: list[str], folder: Path) -> None:
    """That a command can be given, without giving it."""
    while re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    program, *arguments = [words[0].removeprefix(".venv/bin/"), *words[1:]]
    if program == "torchrun":
        program, *arguments = arguments[arguments.index("strata") :]
    if program == "strata":
        check_strata(arguments)
    elif program == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert arguments[0] in targets, f"there is no target {arguments[0]}"
    elif program in ("python", "pytest") or words[:2] == ["sudo", "python"]:
        scripts = [word for word in arguments if word.endswith(".py")]
        assert all((ROOT / word).exists() or (ROOT / folder / word).exists() for word in scripts), scripts
    else:
        assert program in PROGRAMS, f"{program} is none of {sorted(PROGRAMS)}"


@cache
def _root() -> Any:
    return typer.main.get_command(cli_app.app)


def check_strata(arguments: list[str]) -> None:
    command, name = _root(), "strata"
    while getattr(command, "commands", None) and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        command = command.commands[name]
    if "--help" in arguments or not arguments:
        return
    if getattr(command, "commands", None):  # `strata` itself, whose options end it
        assert {option for each in command.params for option in each.opts} >= {arguments[0]}, arguments
        return
    params = command.make_context(name, [*arguments]).params
    check_settings(name, params)


def check_settings(command: str, params: dict[str, Any]) -> None:
    """That the settings of a command are known, its methods among them; what names the reader's files is left out."""
    shortcuts = {key: value for key, value in params.items() if key in SHORT_FOR and key != "log"}
    if command not in ("run", "compare", "tune", "advise") or params.get("config") or params.get("tuned"):
        return
    settings = settings_of(params.get("set") or params.get("settings"), **shortcuts)
    for path in ("data.name", "model.name", "evaluate.metric"):
        if "." in str(settings.get(path, "")) or ":" in str(settings.get(path, "")) or "/" in str(settings.get(path)):
            del settings[path]  # the reader's own
    methods = names_in(params.get("algorithms") or settings.get("algorithm.name") or "fedavg")
    common, per_method = (settings, {}) if command == "run" else shared_and_own(methods, settings)
    for method in methods:
        if ":" not in method:
            base = with_values(Experiment(), {**common, "algorithm.name": method})
            algorithm_of(with_values(base, per_method.get(method, {})))


def check_toml(block: Block) -> None:
    """Tables of a configuration hold known keys; other TOML is parsed."""
    tables = tomllib.loads(block.text)
    for name, table in tables.items():
        if name in TABLES and isinstance(table, dict) and name not in ("algorithm", "model"):
            with_values(Experiment(), {f"{name}.{key}": value for key, value in table.items() if key != "name"})
        if name == "algorithm":
            assert table.get("name", "fedavg").split("+")[0] in ALGORITHMS


def check_json(block: Block) -> None:
    """One value after another."""
    text = block.text.strip()
    while text:
        _, end = json.JSONDecoder().raw_decode(text)
        text = text[end:].strip()


def check_imports(block: Block) -> None:
    """That Python can be parsed, and what it imports of ours is there."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stratafl"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), f"{block}: {node.module} has no {alias.name}"


# Which commands can be run here, on little data

SMALL = {
    "run": ["--rounds", "2"],
    "compare": ["--rounds", "2", "--seeds", "1", "--jobs", "1"],
    "tune": ["--rounds", "2", "--seeds", "1", "--jobs", "1", "--trials", "2"],
    "check": ["--quick"],
}
READING = ("list", "report", "predict", "export", "data show", "audit", "add-client", "resume")


def runnable(words: list[str]) -> list[str] | None:
    """The arguments of a command that runs in a second or two in this folder, made small; None if it does not."""
    if words[0] != "strata":
        return None
    arguments = words[1:]
    name = " ".join(arguments[:2]) if arguments[0] == "data" else arguments[0]
    named = dict(pairwise(arguments))
    data = [value for key, value in named.items() if key in ("--data", "-d")]
    data += [value.partition("=")[2] for value in arguments if value.startswith("data.path=")]
    if any(key in named for key in ("--device", "--config", "--model", "-m", "--tuned", "--log", "--protocol")):
        return None
    if not all(name == "digits" or Path(name).exists() for name in data):
        return None
    if name in ("run", "compare", "tune"):
        small = SMALL[name][: 6 if "--grid" in arguments else None]
        return None if any(":" in word for word in arguments) else [*arguments, *small]
    if name in READING:
        folders = [word for word in arguments if word.startswith(("runs/", "sites/", "federations/"))]
        return arguments if all(Path(word).exists() for word in folders) else None
    return None
