"""What the methods of the catalogue say of themselves, and how a builder says it."""

import runpy
from pathlib import Path
from typing import Annotated, Literal

import pytest

from stratafl.algorithms import ALGORITHMS, fedavg
from stratafl.algorithms.declaration import KINDS, METHODS, method
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.layers import Select
from stratafl.core.layerwise import Layerwise
from stratafl.errors import RecordError, StrataError
from stratafl.policies import LocalTraining
from stratafl.recipes import recipe_names, recipes

DOCS = Path(__file__).parents[2] / "docs"
index_page = runpy.run_path(str(DOCS / "tools/pages.py"))["index_page"]
WITHOUT_PAPER = ("controls", "smallest personal part")  # nobody invented training alone
PAPER = {"paper": "Nobody et al., 1999", "title": "On Nothing"}
SAYS = {**PAPER, "sends": "nothing", "new_client": "nothing"}


@pytest.fixture
def empty_again():
    known = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(known)


def test_the_catalogue_is_sorted_and_every_builder_in_it_declares_itself():
    assert list(ALGORITHMS) == sorted(ALGORITHMS)
    assert {name: METHODS[name].builder for name in ALGORITHMS} == ALGORITHMS
    assert all(name == builder.__name__ for name, builder in ALGORITHMS.items())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_says_all_that_the_catalogue_asks(name):
    found = METHODS[name]
    assert found.kind in KINDS
    assert found.idea.endswith(".")
    assert len(found.idea) <= 120, "the idea is one short sentence"
    assert found.sends
    assert found.new_client
    assert not found.sends.endswith(".")
    assert not found.new_client.endswith(".")
    assert found.is_called(found.label)
    if found.kind not in WITHOUT_PAPER or found.paper:
        assert found.paper
        assert found.title
        assert found.paper.endswith(str(found.year))
        assert 1990 < found.year < 2100


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_number_has_a_sensible_range_or_a_reason_to_have_none(name):
    for each in METHODS[name].hyperparameters:
        is_number = bool({"int", "float"} & set(each.type.split(" or ")))
        assert (each.tune is None) != (each.fixed is None) or not is_number, f"{each.name} needs Tune or Fixed"
        if each.tune is None:
            continue
        assert each.default is None or each.tune.covers(each.default), f"{each.name} = {each.default} is outside"
        for end in (each.tune.low, each.tune.high, *each.tune.choices):
            if each.limits is not None and end is not None:
                each.limits.check(each.name, end)
            assert each.type != "int" or end is None or isinstance(end, int)


def test_the_smallest_declaration(empty_again):
    @method("global", **SAYS, also=("N-1",))
    def nothing(
        *,
        share: Annotated[float, Range(least=0), Tune(0.1, 0.5)] = 0.2,
        k: Annotated[int, Fixed("a count")] | None = None,
        how: Literal["a", "b"] = "a",
        kept: str | Select = "head",
        train: LocalTraining = LocalTraining(),
    ) -> Layerwise:
        """No-Thing (Nobody et al., 1999, Fig. 3): pFedX that does
        little.

        And more.
        """
        return fedavg(train=train)

    found = METHODS["nothing"]
    assert (found.label, found.idea, found.year) == ("No-Thing", "pFedX that does little.", 1999)
    assert [(p.name, p.type, p.default) for p in found.hyperparameters] == [
        ("share", "float", 0.2),
        ("k", "int", None),
        ("how", "str", "a"),
        ("kept", "layers", "head"),
    ]
    share, k, how, _ = found.hyperparameters
    assert (share.limits, share.tune, share.fixed) == (Range(least=0), Tune(0.1, 0.5), None)
    assert (k.tune, k.fixed) == (None, "a count")
    assert how.choices == ("a", "b")
    assert all(map(found.is_called, ("nothing", "No-Thing", "NO thing", "n1")))
    assert not found.is_called("thing")
    assert nothing() == fedavg()
    with pytest.raises(StrataError, match=r"nothing\.share .*-1"):
        nothing(share=-1)


def test_a_method_without_a_paper_names_itself(empty_again):
    @method("controls", paper=None, title=None, sends="nothing", new_client="nothing")
    def quiet(*, train: LocalTraining = LocalTraining()) -> Layerwise:
        """Quiet: nobody says anything."""
        return fedavg(train=train)

    assert (METHODS["quiet"].label, METHODS["quiet"].idea) == ("Quiet", "Nobody says anything.")
    assert METHODS["quiet"].year is None


def test_a_declaration_without_an_idea_is_refused(empty_again):
    with pytest.raises(RecordError, match=r"^silent: .*'Silent \(Nobody et al., 1999\): '"):

        @method("global", **SAYS)
        def silent() -> Layerwise:
            """Nothing of use."""
            return fedavg()

    assert "silent" not in METHODS


def test_an_unknown_kind_is_refused():
    with pytest.raises(StrataError, match="did you mean 'global'"):
        method("gobal", **SAYS)


def test_two_methods_of_one_name_are_refused(empty_again):
    def fedper() -> Layerwise:
        """FedPer (Nobody et al., 1999): another one."""
        return fedavg()

    with pytest.raises(RecordError, match=r"'fedper'.*stratafl\.algorithms\.fedper "):
        method("global", **SAYS)(fedper)


def test_a_sensible_range():
    assert Tune(1, 5).covers(5)
    assert not Tune(1, 5).covers(5.1)
    assert Tune(choices=("a", None)).covers(None)
    assert [str(Tune(1, 5)), str(Tune(1e-4, 1.0, log=True))] == ["1 to 5", "0.0001 to 1, log"]
    assert str(Tune(choices=(1, 2))) == "1, 2"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "low and high, or choices"),
        ({"low": 1}, "low and high, or choices"),
        ({"low": 1, "high": 2, "choices": (1,)}, "low and high, or choices"),
        ({"low": 1, "choices": (1,)}, "low and high, or choices"),
        ({"log": True, "choices": (1,)}, "low and high, or choices"),
        ({"low": 2, "high": 1}, "low below high, not 2 and 1"),
        ({"low": 0, "high": 1, "log": True}, "low above 0, not 0"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(given, says):
    with pytest.raises(RecordError, match=says):
        Tune(**given)


# --- The recipes


@pytest.mark.parametrize("name", recipe_names())
def test_no_row_of_a_recipe_is_missing_that_is_in_the_catalogue(name):
    for recipe in recipes(name):
        for row in recipe.rows:
            there = [known for known in ALGORITHMS if row.missing and METHODS[known].is_called(row.missing)]
            assert not there, f"{recipe.name}: the row '{row.name}' is missing, but {there[0]} is in the catalogue"


def test_names_of_papers_are_recognised(empty_again):
    @method("regularised and meta", **SAYS, also=("MetaAvg-FO", "FedAvg+FT"))
    def metaavg(*, train: LocalTraining = LocalTraining()) -> Layerwise:
        """Meta-Avg (Nobody et al., 1999): something."""
        return fedavg(train=train)

    found = METHODS["metaavg"]
    assert all(map(found.is_called, ("meta-avg", "Meta-Avg", "metaavg", "MetaAvg (FO)", "FedAvg-FT")))
    assert not found.is_called("FedAvg")
    assert METHODS["perfedavg"].is_called("Per-FedAvg")
    assert METHODS["lgfedavg"].is_called("LG-FedAvg")


# --- The documents


def test_the_index_of_methods_is_made_from_the_catalogue():
    written = (DOCS / "methods/README.md").read_text(encoding="utf-8")
    assert written == index_page(DOCS / "methods"), "run docs/tools/pages.py"


def test_a_page_of_the_index_is_the_methods_own_or_the_one_that_names_its_code(tmp_path):
    code = "`algorithms/pfedla.py`, `algorithms/simmix.py`, `fedavg30local`"
    (tmp_path / "pfedla.md").write_text(f"# Two\n\nCode: {code}\n")
    (tmp_path / "fedper.md").write_text("# FedPer\n\nOf simmix nothing, of local neither.\n")
    page = index_page(tmp_path)
    assert [line.partition(")")[0] for line in page.splitlines() if line.startswith("| [")] == [
        "| [FedPer](fedper.md",
        "| [HeurpFedLA](pfedla.md",
        "| [pFedLA](pfedla.md",
        "| [FedAvg30+Local](pfedla.md",
        "| [Similarity mixing](pfedla.md",
    ]
    assert f"| Local `local` | {METHODS['local'].idea} |" in page
    assert f"## Personal parts\n\n{KINDS['personal parts'].capitalize()}.\n\n| method |" in page
