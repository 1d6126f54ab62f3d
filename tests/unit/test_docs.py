"""What the documents show runs as it is printed, and what they list is what there is."""

import ast
import importlib
import re
import runpy
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from stratafl.algorithms import ALGORITHMS, fedavg
from stratafl.algorithms.field_meanings import KINDS as KINDS_OF_FIELDS
from stratafl.algorithms.special_cases import SpecialCase
from stratafl.cli import main as strata
from stratafl.config.assemble import algorithm_of, federation_of
from stratafl.config.deployment import DEPLOY, DeployTable
from stratafl.config.experiment import from_tables
from stratafl.config.setting_tables import TABLES, partition_of
from stratafl.config.trust import parameters
from stratafl.data import PARTITIONS, digits_federation, federate
from stratafl.data.formats.columns import Request
from stratafl.models import MODELS
from stratafl.recipes import parse_recipe, recipe_names
from stratafl.recipes.claims import KINDS
from stratafl.testing import check_algorithm, check_special_case

ROOT = Path(__file__).parents[2]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name, kind="python"):
    return re.findall(rf"```{kind}\n(.*?)```", text(name), re.DOTALL)


def run(block, **space):
    exec(compile(block, "document", "exec"), space)  # our own text
    return space


@cache
def defined(file):
    """The names that a module defines at its top level, and `Class.method` of its classes."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


DOCUMENTS = [p.relative_to(ROOT).as_posix() for p in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])]
PLACES = r"`((?:\w+/)+\w+\.py)(?::([\w.]+))?`"


@pytest.mark.parametrize(
    "document",
    ["ARCHITECTURE.md", "docs/understand/glossary.md", *(d for d in DOCUMENTS if d.startswith("docs/design/"))],
)
def test_what_the_tables_name_is_there(document):
    places = re.findall(PLACES, text(document))
    assert len(places) > 20 or document.startswith("docs/design/")
    for path, name in places:
        file = ROOT / "src/stratafl" / path
        assert file.exists(), f"{document}: there is no {path}"
        assert not name or name in defined(file), f"{document}: {path} does not define {name}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    prose = re.sub(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", "`…`", text(document))  # code may show a link
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose):
        if not target.startswith(("http:", "https:")):
            assert (ROOT / document).parent.joinpath(target).exists(), f"{document} links to {target}"


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_packages_are_called_by_their_names(document):
    there = {p.parent.name for p in (ROOT / "src/stratafl").glob("*/__init__.py")}
    told = set(re.findall(r"src/stratafl/(\w+)(?=[/)])", text(document)))
    assert told <= there
    if document == "ARCHITECTURE.md":
        assert all(re.search(rf"\b{name}\b", text(document)) for name in there)


DESIGN = sorted(p.name for p in (ROOT / "docs/design").glob("*.md") if p.name not in ("README.md", "flower.md"))


def anchors(name):
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text(name), flags=re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", DESIGN)
def test_each_decision_says_what_why_and_at_which_cost(page):
    for section in text(f"docs/design/{page}").split("\n## ")[1:]:
        what, why, cost = section.find("\n\n"), section.find("\n**Why.** "), section.find("\n**Cost.** ")
        assert 0 < what < what + 2 < why < cost, f"{page}: {section.splitlines()[0]}"


def test_the_map_of_decisions_is_complete():
    mapped = re.findall(r"\]\(([\w-]+\.md)#([\w-]+)\)", text("docs/design/README.md"))
    assert sorted(mapped) == sorted((p, a) for p in DESIGN for a in anchors(f"docs/design/{p}")[1:])


def test_links_to_decisions_lead_to_their_sections():
    files = [*DOCUMENTS, *(p.relative_to(ROOT).as_posix() for p in (ROOT / "src").rglob("*.py"))]
    pattern = r"(?:design/|\]\((?=[\w-]+\.md#))([\w-]+\.md)#([\w-]+)"
    for file in files:
        for page, anchor in re.findall(pattern, text(file)):
            if "design/" + page in text(file) or file.startswith("docs/design/"):
                assert anchor in anchors(f"docs/design/{page}"), f"{file} links to {page}#{anchor}"


@pytest.mark.budget(1, "twenty rounds, as the README has them")
def test_the_five_lines_run(capsys):
    federation = digits_federation()
    clients = [(federation.x[held], federation.y[held]) for held in map(federation.splits["train"].of, range(2))]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    (x, y), (x2, y2) = clients[:2]
    space = run(blocks("README.md")[0], x=x, y=y, x2=x2, y2=y2, model=model, x_new=x[:4])
    *answers, accuracy = capsys.readouterr().out.split()
    assert 50 < float(accuracy.rstrip("%")) <= 100
    assert answers
    assert space["fitted"].client("Basel").predict(x[:4]).shape == torch.Size([4])


def test_the_record_of_the_guide_is_fedavg():
    assert run(blocks("docs/guide/write-a-method.md")[0])["fedavg"]() == fedavg()


def test_the_example_method_is_the_file():
    assert blocks("docs/guide/write-a-method.md")[1] == text("examples/halfway.py")


@pytest.mark.slow
def test_the_example_method_keeps_the_contract(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert strata(["check", "examples.halfway:halfway", "--quick"]) == 0


@pytest.mark.slow
def test_without_a_share_the_example_is_fedavg(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    halfway = importlib.import_module("examples.halfway").halfway
    check_special_case(SpecialCase("Halfway that keeps nothing is FedAvg", halfway(share=0.0), fedavg()))


@pytest.mark.slow
def test_the_step_of_the_guide_keeps_the_contract():
    step = run(blocks("docs/guide/write-a-method.md")[2], __name__="docs_step")["SignDescent"]()
    check_algorithm(replace(fedavg(), train=(step,)), settings=[("follow", 0.5)])


def test_the_settings_are_documented():
    pages = runpy.run_path(str(ROOT / "docs/tools/pages.py"))
    assert pages["settings_tables"]({**TABLES, DEPLOY: DeployTable}) in text("docs/reference/settings.md"), (
        "run docs/tools/pages.py"
    )


LEARNS = "docs/understand/what-the-server-learns.md"


@pytest.mark.slow
def test_the_reference_lists_what_methods_send():
    pages = runpy.run_path(str(ROOT / "docs/tools/pages.py"))
    assert pages["sent_tables"]() in text("docs/reference/sent-fields.md"), "run docs/tools/pages.py"


def test_the_page_of_what_the_server_learns_says_what_each_kind_and_each_method_gives_away():
    told = text(LEARNS)
    for kind in KINDS_OF_FIELDS.keys() - {"unknown"}:
        assert f"\n| {kind} | " in told, f"{LEARNS}: what does '{kind}' give away?"
    (section,) = re.findall(r"\n## Method by method\n(.*?)\n## ", told, re.DOTALL)
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in section.splitlines() if line[:1] == "|"))
    assert sorted(named) == sorted(ALGORITHMS)


def row(document, name):
    """The row of a table that begins with a name, or with several of which it is one."""
    found = re.findall(rf"^\| (?:[^|]*, )?`{name}`(?:,[^|]*)? \|.*$", text(document), re.MULTILINE)
    assert found, f"{document} has no row for '{name}'"
    return found[0]


def shown(value):
    """A default as TOML has it."""
    if isinstance(value, tuple):
        return str(list(value))
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


@pytest.mark.parametrize(
    ("document", "name", "maker"),
    [
        *(("docs/reference/models.md", name, maker) for name, maker in MODELS.items()),
        *(("docs/reference/partitions.md", name, maker) for name, maker in PARTITIONS.items()),
    ],
)
def test_models_and_partitions_are_documented_with_their_options(document, name, maker):
    for option, parameter in parameters(maker).items():
        if option in ("shape", "classes"):
            continue
        known = f"`{option}`" if parameter.default is None else f"`{option} = {shown(parameter.default)}`"
        assert known in row(document, name)


def test_the_digits_of_the_document_are_those_of_the_command():
    fitted, default = run(blocks("docs/reference/data-sets.md")[0])["fitted"], from_tables({})
    federation, of_command = fitted.sim.runtime.federation, federation_of(default)
    for name, split in of_command.splits.items():
        rows = federation.splits[name]
        assert torch.equal(federation.x[rows.indices], of_command.x[split.indices])
        assert torch.equal(rows.offsets, split.offsets)
    assert fitted.sim.algorithm == algorithm_of(default)
    for setting in (f"data.alpha = {default.data.alpha}", f"train.lr = {default.train.lr}"):
        assert setting in text("docs/reference/settings.md")


def test_the_reader_of_the_document_reads(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": [1, 2], "label": "no"}\n{"x": [3, 4], "label": "yes"}\n')
    read = run(blocks("docs/guide/write-a-data-format.md")[0])["read_jsonl"]
    columns = read([tmp_path / "a.jsonl"], Request(content="x"))
    assert columns["x"].tolist() == [[1, 2], [3, 4]]
    assert columns["label"] == ["no", "yes"]


def test_the_partition_of_the_document_divides():
    made = run(blocks("docs/reference/partitions.md")[0], __name__="docs_partition")["ByLabel"]()
    labels = np.array([2, 0, 1, 0, 2, 1])
    assert [mine.tolist() for mine in made(labels, 3, seed=0)] == [[1, 3], [2, 5], [0, 4]]
    assert federate(np.zeros((6, 1)), labels, made(labels, 3, seed=0), test=0.5).clients == 3


def test_the_papers_partitions_are_settings():
    table = text("docs/reference/partitions.md").partition("## As the papers have them")[2].partition("## Readings")[0]
    rows = re.findall(r"`partition = [^|]*", table)
    assert len(rows) == 8
    for settings in rows:
        given = re.findall(r"`(\w+) = ([^`]*)`", settings)
        partition_of(from_tables({"data": {key: tomllib.loads(f"v = {value}")["v"] for key, value in given}}).data)


def test_the_recipes_are_those_that_there_are():
    listed = re.findall(r"^\| `(\w+/\w+)` \|", text("docs/guide/recipes.md"), re.MULTILINE)
    assert sorted(listed) == recipe_names()


def test_the_kinds_of_claims_are_those_that_there_are():
    rows = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| (`row.*?) \| (?:the|a|each|two) ", text("docs/guide/recipes.md"), re.MULTILINE
    )
    needs = {
        kind: [key.replace("`", "") for key in keys.partition(", perhaps")[0].split(", ")]
        for kinds, keys in rows
        for kind in re.findall(r"`(\w+)`", kinds)
    }
    assert needs == {kind: list(keys) for kind, keys in KINDS.items()}


def test_the_recipe_of_the_document_can_be_put_together():
    recipe = parse_recipe("a/b", blocks("docs/guide/recipes.md", "toml")[0])
    assert [(c.row, dict(c.experiment.algorithm.options)) for c in recipe.cells("smoke")[:2]] == [
        ("FedAvg", {}),
        ("FedPer", {"personal": "last:2"}),
    ]
