"""Pages of results: their numbers are those of the result files."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"
PAPERS = ("flayer", "fedper", "pfedla", "fedalp", "fedlag")
PAGES = ("README", *PAPERS)
FRACTION = re.compile(r"\d+\.\d+(?!\.?\d)")
VERSION = re.compile(r"torch [\d.]+|section \d\.\d|Theorem \d\.\d")


@pytest.fixture(scope="module")
def tool():
    """docs/tools/result_pages.py, which its script finds beside itself."""
    sys.path.insert(0, str(ROOT / "docs/tools"))
    try:
        import result_pages

        return result_pages
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("page", [*PAGES, "which-method"])
def test_tables_are_made_from_the_result_files(tool, page):
    text = (RESULTS / f"{page}.md").read_text(encoding="utf-8")
    assert "<!-- made: " in text
    assert tool.made(text, tool.specification()) == text, "run docs/tools/result_pages.py"


def test_pictures_are_drawn_from_the_result_files(tool):
    drawn = tool.drawn(tool.specification())
    assert {path.stem for path in tool.PICTURES.glob("*.svg")} == set(drawn) == {*PAPERS, "which-method"}
    for name, content in drawn.items():
        assert (tool.PICTURES / f"{name}.svg").read_text(encoding="utf-8") == content, "run docs/tools/result_pages.py"


def sources(page, text):
    """What a page may take numbers from: the recipes and result files of its paper, and what it links to."""
    linked = [RESULTS / name for name in re.findall(r"\]\(([^)#\s]+\.(?:md|csv))", text)]
    own = "*" if page == "README" else f"*{page}*"
    files = {
        *(path for path in linked if {"short", "headline", "notebook"} & set(path.parts) or path.name == "tuned.md"),
        *RESULTS.glob(f"short/{own}"),
        *RESULTS.glob(f"headline/{own}"),
        *(ROOT / "src/stratafl/recipes").glob("*/*.toml" if page == "README" else f"{page}/*.toml"),
    }
    fractions = {path: FRACTION.findall(path.read_text(encoding="utf-8")) for path in files}
    shares = [100 * float(share) for path, found in fractions.items() if path.suffix == ".csv" for share in found]
    return {each for found in fractions.values() for each in found} | {f"{share:.1f}" for share in shares}


@pytest.mark.parametrize("page", PAGES)
def test_every_fraction_of_a_page_is_in_a_result_file(page):
    text = (RESULTS / f"{page}.md").read_text(encoding="utf-8")
    prose = VERSION.sub("", re.sub(r"```.*?```|\]\([^)]*\)", "", text, flags=re.DOTALL))
    assert set(FRACTION.findall(prose)) <= sources(page, text)


def test_a_result_file_is_read_as_it_is_written(tool):
    found = tool.result("headline/flayer-table2.md")
    assert (found.recipe, found.scale, found.settings["run.rounds"]) == ("flayer/table2", "headline", "200")
    assert found.numbers["test accuracy, %"]["FedALA", "CIFAR-100, CNN: here"] == "59.75 ± 0.61"
    assert found.numbers["test accuracy, %"]["FedALA", "CIFAR-100, CNN: paper"] == "56.98"
    best = found.judged[0]
    assert "best" in best.claim
    assert (best.holds, best.noise, best.short) == (False, False, "✗ −2.9 ± 0.5")


def judged(tool, words, why="A against B: +1.0 (± 0.5 over 3 seeds)"):
    return tool.Judged("", "", words, why)


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ([], "– not run"),
        (["✓ holds"], "✓ holds"),
        (["✓ holds", "✗ does not hold, within noise"], "✓ holds (✓ 1; ✗ 1, 1 within noise)"),
        (["✗ does not hold", "✓ holds, within noise"], "✗ does not (✓ 1, 1 within noise; ✗ 1)"),
        (["✓ holds", "✗ does not hold"], "in part (✓ 1; ✗ 1)"),
        (["✓ holds, within noise"], "? cannot be told (within noise)"),
        (["✓ holds, with one seed"], "✓ holds, one seed"),
        (["✗ does not hold, with one seed", "✓ holds, within noise"], "? cannot be told (✓ 1, 1 within noise; ✗ 1)"),
        (["✓ holds, with one seed", "✗ does not hold"], "✗ does not (✓ 1; ✗ 1)"),
    ],
)
def test_only_a_sure_verdict_decides_a_claim(tool, monkeypatch, verdicts, status):
    monkeypatch.setattr(tool, "evidence", lambda claim: [judged(tool, words) for words in verdicts])
    assert tool.status({}) == status


def test_a_claim_that_no_result_file_has_is_refused(tool):
    with pytest.raises(AssertionError):
        tool.evidence({"evidence": [["headline/flayer-table2.md", "cheap"]]})
