"""Which claims of the recipes are judged, by which result files, and what the others lack.

Every claim of today's recipes is counted once. It is judged if a result file has a verdict on it in some column. A
claim that came after its runs is judged by the means in a result file: without an interval, as the file does not have
the accuracy of each seed.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from result_files import RESULTS, Result, markdown_table, result

from results import NOT_COUNTED
from stratafl.recipes.claims import MEASURES, OF_CONVERGENCE, Claim
from stratafl.recipes.recipe import Recipe, recipes
from stratafl.recipes.recorded import ListedRecipe, every_recipe, recorded_results
from stratafl.recipes.verdicts import verdicts
from stratafl.report.verdict import Verdict

TITLE = re.compile(r"## (?!own/)\S+, scale")
NUMBER = re.compile(r"[\d.]+")
ONE_MEAN = re.compile(r" \(one seed, no interval\)")  # a mean is one number, as that of one seed is
LEAST_RIVALS = 0.5  # of the rivals of a claim must have numbers, or it cannot be told
FROM_END_TO_END = ("rises", "widens")
COLUMNS, ROWS, DATA, CONVERGENCE, MEASURE = REASONS = (
    "columns missing",
    "rows missing",
    "data cannot be obtained",
    "not converged",
    "a measure that came later",
)
OTHERS = ("by means", "cannot be told")


@dataclass(frozen=True)
class Coverage:
    """The claims of a recipe that are judged, and how many others lack what."""

    recipe: ListedRecipe
    judged: frozenset[str] = frozenset()
    by_means: frozenset[str] = frozenset()
    untold: frozenset[str] = frozenset()
    lacking: Mapping[str, int] = field(default_factory=dict)


@cache
def result_names() -> dict[str, list[str]]:
    """The result files of each recipe of the package."""
    names: dict[str, list[str]] = {recipe.name: [] for recipe in every_recipe()}
    for path in sorted(RESULTS.glob("*/*.md")):
        if TITLE.match(path.read_text(encoding="utf-8")):
            name = path.relative_to(RESULTS).as_posix()
            names[result(name).recipe].append(name)
    return names


def _ours(file: Result, claim: Claim) -> dict[tuple[str, str], dict[int, float]]:
    """The means of a measure, as numbers of one seed."""
    table = file.numbers.get(MEASURES[claim.measure], {})
    here = {(row, head.removesuffix(": here")): text for (row, head), text in table.items() if head.endswith(": here")}
    return {place: {0: float(number[0])} for place, text in here.items() if (number := NUMBER.match(text))}


def _judged_in_files(name: str) -> set[str]:
    files = map(result, result_names()[name])
    return {verdict.claim for file in files for verdict in file.judged if verdict.holds is not None}


def verdicts_by_means(recipe: Recipe) -> Iterator[tuple[str, Verdict]]:
    """On every claim that no file judges, by every file that has the numbers; first the file.

    `holds` is None if too few rivals were run.
    """
    judged = _judged_in_files(recipe.name)
    for name in result_names()[recipe.name]:
        left_out = NOT_COUNTED.findall((RESULTS / name).read_text(encoding="utf-8"))
        measures = {measure.strip() for each in left_out for measure in each.split(",")}
        for claim in recipe.claims:
            if claim.says not in judged and claim.measure not in measures:
                for verdict in _by_means(recipe, claim, result(name)):
                    yield name, verdict


def _by_means(recipe: Recipe, claim: Claim, file: Result) -> Iterator[Verdict]:
    controls = [row.name for row in recipe.rows if row.control and claim.kind == "best"]
    numbers = {place: values for place, values in _ours(file, claim).items() if place[0] not in controls}
    columns = list(dict.fromkeys(column for _, column in numbers))
    measure = "score" if claim.measure in recipe.readings else claim.measure
    printed = {(row.name, column): float(v) for row in recipe.rows for column, v in row.prints(measure).items()}
    for verdict in verdicts(claim, numbers, printed, columns):
        if verdict.holds is not None:
            where = verdict.column.split("; ")
            rivals = claim.rivals if claim.kind == "average" else []
            rivals = recipe.rivals(str(claim.row), where[0]) if claim.kind == "best" else rivals
            run = [rival for rival in rivals if any((rival, column) in numbers for column in where)]
            few = f"; {len(run)} of {len(rivals)} rivals" if len(run) < len(rivals) else ""
            holds = verdict.holds if len(run) >= LEAST_RIVALS * len(rivals) else None
            yield replace(verdict, holds=holds, reason=ONE_MEAN.sub("", verdict.reason) + few)


@cache
def coverage() -> tuple[Coverage, ...]:
    return tuple(_coverage(listed) for listed in every_recipe())


def _coverage(listed: ListedRecipe) -> Coverage:
    (recipe,) = recipes(listed.name)
    says = {claim.says for claim in recipe.claims}
    judged = _judged_in_files(listed.name) & says
    several = [verdict for _, verdict in verdicts_by_means(recipe)]
    by_means = {verdict.claim for verdict in several if verdict.holds is not None}
    files = [result(name) for name in result_names()[listed.name]]
    untold = {v.claim for file in files for v in file.judged if "cannot be told" in v.words}
    untold = (untold | {verdict.claim for verdict in several}) & says - judged - by_means
    left = [claim for claim in recipe.claims if claim.says not in judged | by_means | untold]
    lacking = Counter(_lacks(claim, listed, files) for claim in left)
    return Coverage(listed, frozenset(judged), frozenset(by_means), frozenset(untold), lacking)


def _lacks(claim: Claim, listed: ListedRecipe, files: list[Result]) -> str:
    """What a claim lacks: data, columns, rows, or runs that converged."""
    asked = claim.columns or listed.columns
    needed = [asked[0], asked[-1]] if claim.kind in FROM_END_TO_END else asked
    obtainable = [column for column in needed if column in listed.obtainable]
    run = {column for _, column in (place for file in files for place in _ours(file, replace(claim, measure="score")))}
    least = len(needed) if claim.kind in FROM_END_TO_END else 2 if claim.kind == "flat" else 1
    if len(obtainable) < least:
        return DATA
    if len(run & set(obtainable)) < least:
        return COLUMNS
    tables = [file.numbers[MEASURES[claim.measure]] for file in files if MEASURES[claim.measure] in file.numbers]
    if not tables:
        return CONVERGENCE if claim.measure in OF_CONVERGENCE else MEASURE
    improving = {row for table in tables for (row, _), text in table.items() if text == "improving"}
    return CONVERGENCE if improving and (claim.kind == "best" or improving & set(claim.names)) else ROWS


def totals() -> str:
    """How many claims there are, and how many are judged."""
    every = coverage()
    claims = sum(each.recipe.claims for each in every)
    judged, means, untold = (sum(len(part) for part in parts) for parts in zip(*map(_parts, every), strict=True))
    lacking = sum((Counter(each.lacking) for each in every), Counter[str]())
    return (
        f"**{claims} claims: {judged} judged, {claims - judged} not, because their rows or columns have not run.** "
        f"Of the {claims - judged}, {means} can be told from means, without an interval, and {untold} cannot be told "
        f"because most rivals were not run. The other {lacking.total()} have no numbers ({_reasons(lacking)}).\n"
    )


def _parts(covered: Coverage) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    return covered.judged, covered.by_means, covered.untold


def _reasons(lacking: Mapping[str, int]) -> str:
    return "; ".join(f"{why}: {lacking[why]}" for why in (*REASONS, *OTHERS) if lacking.get(why))


def coverage_table() -> str:
    """A line for each recipe: its claims, and what is left with its estimated cost on an H200."""
    recorded, rows, sums = recorded_results(), list[list[str]](), [0.0] * 5
    for covered in coverage():
        recipe = covered.recipe
        run = {column for past in recorded if past.recipe == recipe.name for column, n in past.rows.items() if n}
        named = {*recipe.columns_at("short"), *recipe.columns_at("headline"), *run}
        further = sum(column not in named for column in recipe.obtainable)
        left = [recipe.left(scale, recorded) for scale in ("short", "headline")]
        judged, *others = map(len, _parts(covered))
        reasons = _reasons({**covered.lacking, **dict(zip(OTHERS, others, strict=True))}) or "–"
        sums = [total + each for total, each in zip(sums, (recipe.claims, judged, *left, further), strict=True)]
        minutes = _numbers([*left, further])
        rows.append([f"`{recipe.name}`", *_numbers([recipe.claims, judged]), reasons, *minutes])
    rows.append(["all", *_numbers(sums[:2]), "", *_numbers(sums[2:])])
    head = ["recipe", "claims", "judged", "the other claims", "minutes: short", "headline", "further columns"]
    text = markdown_table(head, rows).splitlines()
    text[1] = "|---|---:|---:|---|---:|---:|---:|"
    return "\n".join(text) + "\n"


def _numbers(counts: Sequence[float]) -> list[str]:
    return [f"{count:,.0f}" if count >= 0.5 else "–" for count in counts]


def means_table() -> str:
    """The verdicts by means."""
    signs = {True: "✓", False: "✗", None: "?"}
    rows = []
    for name in result_names():
        for page, verdict in verdicts_by_means(recipes(name)[0]):
            paper, words = verdict.paper_value or "–", f"{signs[verdict.holds]} {verdict.reason}"
            rows.append([f"[{name}]({page})", verdict.claim, paper, verdict.measured, words])
    return markdown_table(["result", "claim", "paper", "here", "by means"], rows)
