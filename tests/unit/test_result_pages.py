"""Pages of results: their numbers are those of the result files."""

import csv
import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import pytest

from stratafl.advice.measured import measured_federations

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"
PAPERS = ("flayer", "fedper", "pfedla", "fedalp", "fedlag")
PAGES = ("README", *PAPERS)
NUMBERS = ("tuned.md", "methods.md", "claims.md")  # pages whose numbers others repeat
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


@pytest.fixture(scope="module")
def claims(tool):
    """docs/tools/judged_claims.py, which the other imports."""
    return sys.modules["judged_claims"]


def test_tables_are_made_from_the_result_files(tool):
    pages = {page.relative_to(RESULTS.parent).with_suffix("").as_posix(): page for page in tool.pages()}
    every = (*PAGES, "claims", "which-method", "newcomer")
    assert pages.keys() >= {f"results/{page}" for page in every} | {"notebook/pfedla"}
    for page in pages.values():
        text = page.read_text(encoding="utf-8")
        assert tool.made(text, tool.specification()) == text, f"{page}: run docs/tools/result_pages.py"


def test_pictures_are_drawn_from_the_result_files(tool):
    drawn = tool.drawn(tool.specification())
    assert {path.stem for path in tool.PICTURES.glob("*.svg")} == set(drawn) == {*PAPERS, "pfedla-rate", "which-method"}
    for name, content in drawn.items():
        assert (tool.PICTURES / f"{name}.svg").read_text(encoding="utf-8") == content, "run docs/tools/result_pages.py"


def sources(page, text):
    """What a page may take numbers from: the recipes and result files of its paper, and what it links to."""
    linked = [RESULTS / name for name in re.findall(r"\]\(([^)#\s]+\.(?:md|csv))", text)]
    own = f"*{page}*" if page in PAPERS else "*"
    files = {
        *(path for path in linked if {"short", "headline", "notebook"} & set(path.parts) or path.name in NUMBERS),
        *RESULTS.glob(f"short/{own}"),
        *RESULTS.glob(f"headline/{own}"),
        *(ROOT / "src/stratafl/recipes").glob(f"{page}/*.toml" if page in PAPERS else "*/*.toml"),
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


def test_the_difference_shown_is_that_from_the_best_rival_and_the_one_that_decides(tool):
    why = "A against B: -4.3 (± 20.0 over 2 seeds, within noise); A against C: -0.6 (with each of 2 seeds); 50 rounds"
    assert judged(tool, "✗ does not hold", why).short == "✗ −4.3 ± 20.0, within noise; −0.6"
    assert judged(tool, "✓ holds, within noise", why).short == "✓ −4.3 ± 20.0, within noise"
    assert (
        judged(tool, "✓ holds, with one seed", "A against B: +2.0 (one seed, no interval)").short == "✓ +2.0 (one seed)"
    )


def test_every_claim_of_todays_recipes_is_counted_once(claims):
    for covered in claims.coverage():
        recipe, parts = covered.recipe, (covered.judged, covered.by_means, covered.untold)
        says = {claim["says"] for claim in recipe.table.get("claims", ())}
        assert says >= set().union(*parts)
        assert sum(map(len, parts)) + sum(covered.lacking.values()) == recipe.claims == len(says), recipe.name
    lacks = {covered.recipe.name: covered.lacking for covered in claims.coverage()}
    assert lacks["fedper/fig7"] == {claims.DATA: 2}
    assert lacks["fedlag/fig5"] == {claims.COLUMNS: 7}
    assert lacks["flayer/table1"] == {claims.CONVERGENCE: 5}
    assert lacks["fedlag/fig4"][claims.ROWS] == 22
    assert lacks["fedalp/table2"][claims.MEASURE] == 1


def test_claims_without_a_verdict_are_judged_by_the_means_in_the_files(claims):
    judged = {
        (name, page, verdict.predicate.partition(" ")[0], verdict.claim[:22]): verdict
        for name in claims.result_names()
        for page, verdict in claims.verdicts_by_means(claims.recipes(name)[0])
    }
    gain = judged["flayer/table2", "headline/flayer-table2.md", "average", "FLAYER gains 5.4 point"]
    assert (gain.holds, gain.paper_value, gain.measured) == (False, "+9.25, up to +12.82", "+2.86, up to +6.81")
    saved = judged["pfedla/table3", "short/pfedla-table3.md", "above", "Retaining 1 layer save"]
    assert (saved.holds, "-16.4 %" in saved.reason) == (False, True)
    costs = judged["flayer/table3", "short/flayer-table3.md", "above", "A round of FLAYER cost"]
    assert (costs.holds, costs.measured) == (True, "FLAYER 1.40 · Ditto 2.15")
    best = judged["fedlag/table1", "short/fedlag-table1.md", "best", "FedLAG is the best of "]
    assert (best.holds, best.measured) == (None, "FedLAG 24.66 · FedAvg 3.01")  # one of ten rivals
    assert not any(page == "headline/flayer-table3.md" for _, page, *_ in judged)  # its seconds do not count


def test_no_method_is_the_best_of_rivals_that_were_not_run(tool, claims):
    for name, pages in claims.result_names().items():
        (recipe,) = claims.recipes(name)
        best = {claim.says: claim for claim in recipe.claims if claim.kind == "best"}
        for file in map(tool.result, pages):
            for verdict in file.judged:
                if verdict.claim in best and verdict.holds:
                    rivals = recipe.rivals(best[verdict.claim].row, verdict.where)
                    cells = [file.numbers["test accuracy, %"][rival, f"{verdict.where}: here"] for rival in rivals]
                    assert all(cell[0].isdigit() for cell in cells), (name, verdict.claim)


def numbers_of(page, head):
    """The rows of the table of a page that begins so, by the name in their first cell."""
    text = (RESULTS / page).read_text(encoding="utf-8")
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name.strip("*`"): cells for name, *cells in rows}


def test_which_method_when_has_the_numbers_of_its_pages():
    mnist, cifar = numbers_of("methods.md", "| method | 0.1 |"), numbers_of("tuned.md", "| method | rate |")
    kind = "half of the labels permuted"
    (federation,) = (each for each in measured_federations() if (each.kind, each.samples) == (kind, 80))
    permuted = {each.method: [f"{100 * each.accuracy:.1f}"] for each in federation.methods}
    settings = {
        "MNIST, Dirichlet 0.1": (mnist, 0),
        "MNIST, Dirichlet 0.1, new clients": (mnist, 2),
        "MNIST, Dirichlet 0.5": (mnist, 3),
        "CIFAR-100, Dirichlet 0.1, validation samples": (cifar, 1),
        "MNIST, half of the labels permuted": (permuted, 0),
    }
    table = numbers_of(ROOT / "README.md", "| your clients | try |")
    assert len(table) == 6
    for methods, measured in table.values():
        setting, _, scores = measured.partition(": ")
        rows, column = settings[setting]
        shown, _, others = scores.partition(" (")
        pairs = list(zip(re.findall(r"`([\w+]+)`", methods), FRACTION.findall(shown), strict=False))
        for method, score in pairs + re.findall(r"`(\w+)` (\d+\.\d)", others):
            assert rows[method][column].split(" ")[0] == score, (setting, method)
    assert mnist["lgfedavg"][5] == "0.01"


def percent(values):
    return f"{100 * mean(values):.1f} ± {100 * stdev(values):.1f}"


def test_the_tuned_comparison_is_that_of_its_files():
    rows, steps, trials = (
        list(csv.DictReader((RESULTS / f"tuned/{name}.csv").read_text(encoding="utf-8").splitlines()))
        for name in ("runs", "costs", "trials")
    )
    last = [row for row in rows if row["round"] == "40"]
    scores = {part: defaultdict(list) for part in ("winners", "untuned")}
    for row in last:
        scores[row["part"]][row["method"]].append(float(row["accuracy"]))
    places = {part: sorted(by, key=lambda name: -mean(by[name])) for part, by in scores.items()}
    cost = {row["method"]: int(row["client_steps_in_40_rounds"]) for row in steps}
    table = numbers_of("tuned.md", "| method | rate |")
    assert list(table) == places["winners"]
    for method, (rate, tuned, worst, untuned, place, work) in table.items():
        won = [row for row in last if (row["part"], row["method"]) == ("winners", method)]
        assert {float(row["lr"]) for row in won} == {float(rate)}
        best = max((row for row in trials if row["method"] == method), key=lambda row: float(row["accuracy"] or 0))
        assert float(best["lr"]) == float(rate)
        assert (tuned, untuned) == (percent(scores["winners"][method]), percent(scores["untuned"][method]))
        assert worst == f"{100 * mean(float(row['worst_tenth']) for row in won):.1f}"
        assert place == ", ".join(str(places[part].index(method) + 1) for part in places)
        assert work == f"{cost[method] / cost['fedavg']:.1f}"
    for claim, (_, tuned, _, untuned, _) in numbers_of("tuned.md", "| claim | paper | tuned |").items():
        named = re.fullmatch(r"(?:(\w+) )?better than (\w+)", claim.lower())
        for part, shown in (("winners", tuned), ("untuned", untuned)) if named else ():
            by = scores[part]
            lead = 100 * (mean(by[named[1] or "flayer"]) - mean(by[named[2]]))
            assert shown.split(" ")[0] == f"{lead:+.1f}".replace("-", "−"), (claim, part)


def test_a_claim_that_no_result_file_has_is_refused(tool):
    with pytest.raises(AssertionError):
        tool.evidence({"evidence": [["headline/flayer-table2.md", "cheap"]]})
