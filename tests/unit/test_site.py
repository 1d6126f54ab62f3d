"""The documentation site's tools: links into the source, formulas, the reference of the command, the check of pages."""

import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stratafl.cli import main as strata

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs/tools"))
pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")

import check_site  # noqa: E402
import command_page  # noqa: E402
import site_hooks  # noqa: E402

FLAYER = "src/stratafl/algorithms/flayer.py"
INSIDE = SimpleNamespace(repo_url=None, extra={"branch": "main"})
REPOSITORY = SimpleNamespace(repo_url="https://git.example/us/stratafl/", extra={"branch": "main"})


def line_of(name):
    return site_hooks.definitions(ROOT / FLAYER)[name]


def rendered(text, uri="methods/flayer.md", config=INSIDE):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri), meta={})
    return site_hooks.on_page_markdown(text, page, config, None)


@pytest.mark.parametrize(("uri", "found"), [("notebook/a.md", False), ("results/short/a.md", False), ("a.md", True)])
def test_evidence_is_not_searched(uri, found):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri), meta={})
    site_hooks.on_page_markdown("# A", page, INSIDE, None)
    assert page.meta.get("search", {}).get("exclude", False) is not found


def test_a_link_to_a_definition_leads_to_its_line():
    name = next(name for name in site_hooks.definitions(ROOT / FLAYER) if name[0].isupper() and "." not in name)
    line = line_of(name)
    words = (ROOT / FLAYER).read_text(encoding="utf-8").splitlines()[line - 1]
    assert name in words
    link = f"[rates](../../{FLAYER}#{name})"
    assert rendered(link, config=REPOSITORY) == f"[rates](https://git.example/us/stratafl/blob/main/{FLAYER}#L{line})"
    assert rendered(link) == f"[rates](../source/{FLAYER}.md#__codelineno-0-{line})"
    place = f"`algorithms/flayer.py:{name}`"
    assert rendered(place) == f"[{place}](../source/{FLAYER}.md#__codelineno-0-{line})"


@pytest.mark.parametrize(
    ("link", "uri", "leads_to"),
    [
        ("../../CONTRIBUTING.md#add-a-method", "guide/data.md", "../design/contributing.md#add-a-method"),
        ("../../README.md", "guide/data.md", "../index.md"),
        ("docs/guide/data.md#texts", "design/contributing.md", "../guide/data.md#texts"),
        ("ARCHITECTURE.md", "design/contributing.md", "architecture.md"),
        ("examples/halfway.py", "design/contributing.md", "../source/examples/halfway.py.md"),
        ("../../src/stratafl/core", "guide/data.md", "../source/src/stratafl/core.md"),
        ("fedper.md", "methods/flayer.md", "fedper.md"),
        ("https://example.org/src", "methods/flayer.md", "https://example.org/src"),
        ("#own", "methods/flayer.md", "#own"),
    ],
)
def test_links_out_of_the_documents_lead_to_pages_of_the_site(link, uri, leads_to):
    assert rendered(f"see [this]({link}).", uri) == f"see [this]({leads_to})."


@pytest.mark.parametrize("link", [f"../../{FLAYER}#NoSuchName", "../../src/stratafl/no_such_file.py"])
def test_a_link_to_what_is_not_there_is_a_warning(link, caplog):
    with caplog.at_level(logging.WARNING):
        rendered(f"[x]({link})")
    assert len(caplog.records) == 1


def test_code_is_not_rewritten():
    code = f"```python\nlinks = '[x](../../{FLAYER})'\n```\n"
    assert rendered(code) == code


def test_formulas_become_mathml():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="methods/flayer.md"))
    html = site_hooks.on_page_content(
        r'<p><span class="arithmatex">\(\theta_k &lt; 1\)</span></p><div class="arithmatex">\[a = \frac{b}{c}\]</div>',
        page,
        None,
        None,
    )
    assert "arithmatex" not in html
    assert html.count("<math") == 2
    assert "<mfrac>" in html
    assert 'display="block"' in html


@pytest.mark.budget(2, "loads the whole command")
def test_the_reference_of_the_command_has_every_option(capsys):
    page = command_page.commands_page()
    for words in (["compare"], ["data", "show"]):
        assert strata([*words, "--help"]) == 0
        section = page.partition(f"## `strata {' '.join(words)}`")[2].partition("\n## ")[0]
        options = re.findall(r"^│ (?:\* +)?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
        assert len(options) > 1
        assert all(f"`{option}" in section for option in options if option != "--help"), options


def test_the_check_of_the_site_reports_what_is_wrong(tmp_path):
    (tmp_path / "a.css").write_text("@font-face { src: url(https://fonts.example/x.woff2) }", encoding="utf-8")
    (tmp_path / "index.html").write_text(
        '<h1 id="top">x</h1><a href="#top"></a><a href="https://example.org">fine</a><link rel=stylesheet href="a.css">'
        '<a href="#none"></a><a href="gone/"></a><img src="gone.png"><script src="//cdn.example/x.js"></script>',
        encoding="utf-8",
    )
    lines = list(check_site.problems(tmp_path))
    assert len(lines) == 5
    assert all(any(word in line for line in lines) for word in ("#none", "gone/", "gone.png", "cdn.", "fonts."))
