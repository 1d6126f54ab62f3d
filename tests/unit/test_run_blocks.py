"""Pages of docs/start and docs/tutorials show what their code prints today (docs/tools/run_blocks.py)."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "docs/tools/run_blocks.py"
FEDERATION = "docs/start/federation.md"  # mostly waits for its processes
TRAINING = {"docs/start/images.md", "docs/start/huggingface.md", "docs/tutorials/images.py"}  # a CNN, a BERT, a tuner
PAGES = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/start/*.md")) if path.stem != "README"]
NOTEBOOKS = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/tutorials/*.py"))]


@pytest.fixture
def tool():
    return runpy.run_path(str(TOOL))


@pytest.fixture
def page(tool, tmp_path, monkeypatch):
    """A function that runs a page of this text."""
    monkeypatch.chdir(tmp_path)

    def outputs(text):
        path = tmp_path / "page.md"
        path.write_text(text, encoding="utf-8")
        return tool["page_with_outputs"](path)

    return outputs


def test_blocks_share_a_folder_and_variables(page):
    code = "```toml\n# a.toml\nx = 1\n```\n\n```bash\ncat a.toml\n```\n\n```text\n```\n\n```python\ny = 2\n```\n"
    shown = page(f"{code}\n```python\nprint(y)\ny + 1\n```\n\n```text\n…\n```\n")
    assert "cat a.toml\n```\n\n```text\nx = 1\n```" in shown
    assert shown.endswith("y + 1\n```\n\n```text\n2\n3\n```\n")


def test_lines_that_were_left_out_stay_out(page):
    shown = page("```bash\nseq 9\n```\n\n```text\n1\n2\n…\n9\n```\n\n```text\nnot an output\n```\n")
    assert shown == "```bash\nseq 9\n```\n\n```text\n1\n2\n…\n9\n```\n\n```text\nnot an output\n```\n"


def test_a_command_that_fails_is_an_error(tool, page):
    with pytest.raises(Exception, match="exit code 3"):
        page("```bash\nexit 3\n```\n")
    with pytest.raises(Exception, match="ZeroDivisionError"):
        page("```python\n1 / 0\n```\n")


def test_a_notebook_is_texts_and_code(tool):
    source = "# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nx = 1\nx\n"
    assert [*tool["cells"](source)] == [(True, "# Title\n\nText."), (False, "x = 1\nx")]
    assert tool["run_python"]("print(1)\n2 + 3", {}) == ("1\n", 5)


def test_every_notebook_is_shown_with_its_outputs():
    for notebook in NOTEBOOKS:
        code = (ROOT / notebook).read_text(encoding="utf-8")
        shown = (ROOT / notebook).with_suffix(".md").read_text(encoding="utf-8")
        cells = [content for is_text, content in runpy.run_path(str(TOOL))["cells"](code) if not is_text]
        assert cells
        for cell in cells:
            assert f"```python\n{cell}\n```" in shown, f"run docs/tools/run_blocks.py {notebook}"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "paths",
    [
        [FEDERATION],
        [path for path in PAGES if path not in TRAINING | {FEDERATION}],
        [path for path in NOTEBOOKS if path not in TRAINING],
        pytest.param(sorted(TRAINING), marks=pytest.mark.nightly),
    ],
    ids=["federation", "start", "tutorials", "training"],
)
def test_code_prints_what_the_pages_show(paths):
    """Several pages by one process: importing what they need takes it longer than many of them."""
    ended = subprocess.run([sys.executable, TOOL, "--check", *paths], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
