"""Run the code of pages and tutorials, and write what it prints into them.

    python docs/tools/run_blocks.py docs/start/table.md            run its blocks, write their output below them
    python docs/tools/run_blocks.py docs/tutorials/own_table.py    run the notebook, write own_table.md beside it
    python docs/tools/run_blocks.py --check FILE …                 write nothing; exit code 1 if output has changed

A page's `bash` and `python` blocks run in order, in one new folder that holds the scripts beside the page. The Python
blocks of a page share their variables. A `text` block directly below is the output; a line `…` in it stands for lines
that were left out, and stays there. Blocks in any other language, such as `console` or `toml`, do not run; a first line
`# FILE.toml` or `# FILE.py` says that the block is the content of that file, which the later blocks find.

A tutorial is a Python file in jupytext's percent format, which Jupyter and VS Code open as a notebook.

`--check` compares words and ignores numbers, because numbers differ between machines.
"""

import ast
import base64
import contextlib
import difflib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ALIKE = 0.85  # of the words of two outputs: a ranking may have another order on another machine
WIDTH = "100"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w-]+\.(?:toml|py))\n")
_PROGRESS = re.compile(r"\d+ of \d+ rounds")  # printed every few seconds
_CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)


class BlockError(Exception):
    """A block that ended with an error."""


def run_shell(command: str) -> str:
    ended = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if ended.returncode:
        raise BlockError(f"exit code {ended.returncode}:\n{command}\n{ended.stdout}")
    return ended.stdout


def run_python(source: str, variables: dict[str, Any]) -> tuple[str, Any]:
    """What a cell prints, and the value of its last line if that is an expression."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            exec(compile(ast.Module(body, []), "cell", "exec"), variables)
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), variables) if last else None
        except Exception as error:
            raise BlockError(f"{source}\n{printed.getvalue()}\n{traceback.format_exc()}") from error
    return printed.getvalue(), value


def tidy(output: str) -> str:
    """Without colours, progress, and spaces at the ends of lines."""
    lines = [line for line in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", output).splitlines() if not _PROGRESS.match(line)]
    return "".join(f"{line.rpartition(chr(13))[2].rstrip()}\n" for line in lines).strip("\n") + "\n"


def shortened(output: str, shown: str) -> str:
    """The output without the lines for which `shown` has a line `…`."""
    before, left_out, after = shown.partition("\n…\n")
    if not left_out:
        return output
    lines = output.splitlines()
    head, tail = before.count("\n") + 1, after.count("\n")
    return "\n".join([*lines[:head], "…", *lines[len(lines) - tail :]]) + "\n"


def page_with_outputs(page: Path) -> str:
    """The text of a page, its outputs replaced by those of today."""
    text, variables, parts, end = page.read_text(encoding="utf-8"), {"__name__": "__main__"}, [], 0
    output = None
    for block in _FENCE.finditer(text):
        language, code = block.groups()
        between = text[end : block.start()]
        parts.append(between)
        if language == "text" and output is not None and not between.strip():
            parts.append(f"```text\n{shortened(tidy(output), code)}```\n")
        else:
            parts.append(block.group())
        output = None
        if language == "bash":
            output = run_shell(code)
        elif named := _FILE.match(code):
            Path(named[1]).write_text(code[named.end() :], encoding="utf-8")
        elif language == "python":
            output, value = run_python(code, variables)
            output += "" if value is None else f"{value!r}\n"
        end = block.end()
    return "".join([*parts, text[end:]])


def cells(source: str) -> Iterator[tuple[bool, str]]:
    """The cells of a notebook in percent format: whether it is text, and its content."""
    begins = [*_CELL.finditer(source)]
    for begin, following in zip(begins, [*begins[1:], None], strict=True):
        content = source[begin.end() : following.start() if following else None].strip("\n")
        is_text = "[markdown]" in begin[1]
        yield is_text, re.sub(r"^# ?", "", content, flags=re.MULTILINE) if is_text else content


def as_markdown(value: Any, pictures: Path, name: str) -> str:
    """A value as a notebook shows it: a picture, HTML or text."""
    if hasattr(value, "_repr_html_"):
        html = re.sub(r"<style scoped>.*?</style>", "", value._repr_html_(), flags=re.DOTALL)
        return "<div>" + re.sub(r"\s*\n\s*", " ", html) + "</div>\n"
    if hasattr(value, "_repr_png_"):
        content = value._repr_png_()
        pictures.mkdir(exist_ok=True)
        path = pictures / f"{name}.png"
        path.write_bytes(base64.b64decode(content) if isinstance(content, str) else content)
        return f"![]({pictures.name}/{path.name})\n"
    return f"```text\n{tidy(repr(value))}```\n"


def tutorial_with_outputs(notebook: Path, pictures: Path) -> str:
    """A notebook as a page: its texts, its code and what that prints and shows."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    download = f"[Download this notebook]({notebook.name}): a text file in jupytext's percent format, which Jupyter "
    download += "(with jupytext) and VS Code open. The outputs below are those of a run on two cores.\n"
    parts = []
    for number, (is_text, content) in enumerate(cells(notebook.read_text(encoding="utf-8"))):
        if is_text:
            parts.append(f"{content}\n")
            if number == 0:
                parts.append(download)
            continue
        parts.append(f"```python\n{content}\n```\n")
        printed, value = run_python(content, variables)
        if printed.strip():
            parts.append(f"```text\n{tidy(printed)}```\n")
        if value is not None:
            parts.append(as_markdown(value, pictures, f"{notebook.stem}_{number}"))
    return "\n".join(parts)


def words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL))


def updated(path: Path, check: bool) -> bool:
    """Whether a page has the outputs of today, or was given them."""
    target = path.with_suffix(".md")
    before = target.read_text(encoding="utf-8") if target.exists() else ""
    with tempfile.TemporaryDirectory() as folder:
        for script in path.parent.glob("*.py"):
            shutil.copy(script, folder)
        pictures = Path(folder, "pictures") if check else path.parent / "pictures"
        with contextlib.chdir(folder):
            sys.path.insert(0, folder)
            after = tutorial_with_outputs(path, pictures) if path.suffix == ".py" else page_with_outputs(path)
            sys.path.remove(folder)
    if not check:
        target.write_text(after, encoding="utf-8")
        return True
    alike = difflib.SequenceMatcher(None, words(before), words(after), autojunk=False).ratio()
    if alike < ALIKE:
        print("\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="")))
        print(f"{target}: {alike:.0%} of the words agree; run docs/tools/run_blocks.py {path}")
    return alike >= ALIKE


def main() -> None:
    """Update the files named on the command line, or check them."""
    arguments = sys.argv[1:]
    warnings.simplefilter("ignore", FutureWarning)  # of other libraries
    os.environ.update(COLUMNS=WIDTH, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", NO_COLOR="1")
    paths = [Path(name).resolve() for name in arguments if name != "--check"]
    unchanged = [updated(path, "--check" in arguments) for path in paths]
    if not all(unchanged):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
