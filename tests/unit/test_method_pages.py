"""Pages of methods: their form, the names in the source that they link to, and what is made from the methods."""

import ast
import re
import sys
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stratafl.algorithms.declaration import METHODS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/methods"
PICTURES = ROOT / "docs/pictures/methods"
PAGES = [path.name for path in sorted(FOLDER.glob("*.md")) if path.name not in ("README.md", "composition.md")]
PARTS = [
    "Idea",
    "When to use it",
    "What is shared",
    "Run it",
    "Equations",
    "Readings",
    "Differences from public code",
    "Options",
    "Scores",
]
LINK = re.compile(r"\]\(([^()\s#]+\.py)#([\w.]+)\)")


@pytest.fixture(scope="module")
def made():
    """docs/tools/method_pages.py, which its script finds beside itself."""
    sys.path.insert(0, str(ROOT / "docs/tools"))
    try:
        import method_pages

        return method_pages
    finally:
        sys.path.pop(0)


@cache
def definitions(file):
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
        names |= {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return names


def text(name):
    return (FOLDER / name).read_text(encoding="utf-8")


def methods_of(name):
    return re.search(r"<!-- made: picture ([\w, ]+) -->", text(name))[1].replace(",", " ").split()


def test_every_method_has_a_page_and_a_picture():
    assert sorted(method for name in PAGES for method in methods_of(name)) == sorted(METHODS)
    assert {path.stem for path in PICTURES.glob("*.svg")} == set(METHODS)


@pytest.mark.parametrize("name", PAGES)
def test_pages_have_one_form(name):
    titles = [title for title in re.findall(r"^## (.+)$", text(name), re.MULTILINE) if title in PARTS]
    assert titles == PARTS
    assert len(re.findall(r"^Code: ", text(name), re.MULTILINE)) == 1
    differences = text(name).partition("## Differences from public code\n")[2].partition("\n## ")[0]
    items = re.findall(r"^(\d+)\. (.+)$", differences, re.MULTILINE)
    assert [int(number) for number, _ in items] == list(range(1, len(items) + 1)) != []


@pytest.mark.parametrize("name", [*PAGES, "composition.md"])
def test_links_name_what_the_source_defines(name):
    for path, definition in LINK.findall(text(name)):
        assert definition in definitions((FOLDER / path).resolve()), f"{name}: {path} does not define {definition}"


def test_every_option_has_a_meaning(made):
    options = {(name, option.name) for name, method in METHODS.items() for option in method.hyperparameters}
    missing = [pair for pair in options if not {".".join(pair), pair[1]} & set(made.MEANINGS)]
    assert not missing, f"add to MEANINGS in docs/tools/method_pages.py: {missing}"
    known = {name for pair in options for name in (pair[1], ".".join(pair))}
    assert set(made.MEANINGS) <= known


def test_pictures_say_what_they_show():
    for path in PICTURES.glob("*.svg"):
        picture = ElementTree.parse(path).getroot()
        words = {child.tag.rpartition("}")[2]: child.text for child in picture[:2]}
        assert set(words) == {"title", "desc"}, path.name
        assert all(words.values()), path.name


@pytest.mark.parametrize(
    ("method", "symbols"), [("fedavg", "●●●●"), ("fedper", "●●●○"), ("lgfedavg", "○○○●"), ("local", "○○○○")]
)
@pytest.mark.slow
def test_a_picture_tells_received_layers_from_kept_ones(made, method, symbols):
    assert made.picture_of(method).symbols == symbols


@pytest.mark.slow
def test_a_picture_tells_mixtures_parts_and_choices(made):
    flayer = {title: cells for title, cells, _ in made.picture_of("flayer").rows}
    assert [cell.word for cell in flayer["training starts from"]] == ["received"] * 3 + ["mixture"]
    assert {cell.word for cell in flayer["sent"]} == {"a part"}
    assert [bool(cell.word) for cell in flayer["stays at the client"]] == [False] * 3 + [True]
    assert {cell.kind for cell in made.picture_of("fedlag").rows[1][1]} == {"either"}
    fedbabu = {title: cells for title, cells, _ in made.picture_of("fedbabu").rows}
    assert [cell.word for cell in fedbabu["trained"]] == ["trained"] * 3 + ["fixed"]
    assert made.picture_of("fedcp").rows[3][1][3].word == "blended"


@pytest.mark.slow
def test_pages_and_pictures_are_what_the_tool_writes(made):
    for name in METHODS:
        drawn = made.drawn(made.picture_of(name))
        assert (PICTURES / f"{name}.svg").read_text(encoding="utf-8") == drawn, "run docs/tools/pages.py"
    for path in made.pages():
        assert path.read_text(encoding="utf-8") == made.filled(path.read_text(encoding="utf-8")), (
            f"{path.name}: run docs/tools/pages.py"
        )
