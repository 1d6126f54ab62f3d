"""Verdicts on published claims: a list in `verdicts.json`, which `strata reproduce` or you can write."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratafl.errors import RunError, counted, unknown
from stratafl.report.report_tables import Cell, ReportTable, as_csv, text
from stratafl.runs.json_files import check_table, read_json_value

VERDICTS = "verdicts.json"
KEYS = (
    "paper",
    "table",
    "claim",
    "predicate",
    "paper_value",
    "measured",
    "holds",
    "reason",
    "noise",
    "one_seed",
    "stand_in",
)
SIGNS: dict[str, Any] = {"holds": bool | None, "noise": bool, "one_seed": bool, "stand_in": bool}
NOISE = "within noise: other seeds may change the verdict"
ONE_SEED = "one seed: no interval, so other seeds may change the verdict"
STAND_IN = "no evidence: measured on data other than the paper's"
STOOD_IN = "here on other data and another model"
WORDS = {True: "✓ holds", False: "✗ does not hold"}


@dataclass(frozen=True)
class Verdict:
    """Whether a claim of a paper holds here; `holds` is None if it was not run, or cannot be told from `measured`."""

    claim: str
    predicate: str
    paper_value: str
    measured: str
    holds: bool | None
    reason: str = ""
    noise: bool = False  # the deciding difference is within the noise between seeds
    one_seed: bool = False  # the deciding difference has no interval
    stand_in: bool = False  # from other data and models than the paper's, so no evidence
    paper: str = ""
    table: str = ""
    column: str = ""  # of the table; in `verdicts.json` a part of `table`

    @property
    def words(self) -> str:
        if self.holds is None:
            return "– cannot be told" if self.measured else "– not run"
        doubts = [*(["within noise"] if self.noise else []), *(["with one seed"] if self.one_seed else [])]
        return ", ".join([*(["no evidence"] if self.stand_in else []), WORDS[self.holds], *doubts])

    @property
    def sure(self) -> bool:
        """Whether it was decided on the paper's data by an interval."""
        return self.holds is not None and not (self.noise or self.one_seed or self.stand_in)

    @property
    def entry(self) -> dict[str, Any]:
        """The verdict as an entry of `verdicts.json`."""
        where = ": ".join(filter(None, (self.table, self.column)))
        return {key: where if key == "table" else getattr(self, key) for key in KEYS}


def tally(verdicts: Sequence[Verdict]) -> str:
    """How many claims hold and how many do not; those of other data than the paper's are not counted."""
    evidence = [each for each in verdicts if not each.stand_in]
    counts = [_counts(evidence)] if evidence or not verdicts else []
    return "; ".join([*counts, *([STAND_IN] if len(evidence) < len(verdicts) else [])])


def _counts(verdicts: Sequence[Verdict]) -> str:
    claims, parts = counted(len(verdicts), "claim"), list[str]()
    for sign, singular, plural in ((True, f"of {claims} holds", f"of {claims} hold"), (False, "does not", "do not")):
        decided = [each for each in verdicts if each.holds is sign]
        doubts = {"within noise": sum(v.noise for v in decided), "with one seed": sum(v.one_seed for v in decided)}
        texts = [why if n == len(decided) == 1 else f"{n} {why}" for why, n in doubts.items() if n]
        if decided or sign:
            share = f" ({', '.join(texts)})" if texts else ""
            parts.append(f"{len(decided)} {singular if len(decided) == 1 else plural}{share}")
    untold = sum(each.holds is None and bool(each.measured) for each in verdicts)
    unrun = sum(each.holds is None and not each.measured for each in verdicts)
    parts += [f"{untold} cannot be told"] if untold else []
    return ", ".join([*parts, *([f"{unrun} {'was' if unrun == 1 else 'were'} not run"] if unrun else [])])


def read_verdicts(folders: Sequence[Path]) -> list[Verdict]:
    paths = [folder / VERDICTS for folder in folders if (folder / VERDICTS).is_file()]
    return [verdict for path in paths for verdict in _read(path)]


def verdict_table(verdicts: Sequence[Verdict]) -> ReportTable | None:
    if not verdicts:
        return None
    rows = []
    for verdict in verdicts:
        where = ", ".join(filter(None, (verdict.paper, verdict.entry["table"])))
        place = Cell(where, where, below=STOOD_IN if verdict.stand_in else "")
        texts = map(text, (verdict.paper_value, verdict.measured, verdict.reason))
        rows.append((Cell(verdict.claim, below=verdict.predicate), text(verdict.words, _look(verdict)), place, *texts))
    head = ("claim", "verdict", "table of the paper", "in the paper", "here", "why")
    written = as_csv(KEYS, [list(verdict.entry.values()) for verdict in verdicts])
    doubts = ((NOISE, any(each.noise for each in verdicts)), (ONE_SEED, any(each.one_seed for each in verdicts)))
    caption = "; ".join([tally(verdicts), *(text for text, applies in doubts if applies)])
    return ReportTable("verdicts", caption, head, tuple(rows), left=len(head), written=written, stacked=True)


def _look(verdict: Verdict) -> str:
    if verdict.holds is None:
        return "unrun"
    return "doubtful" if not verdict.sure else "holds" if verdict.holds else "fails"


def _read(path: Path) -> list[Verdict]:
    entries = read_json_value(path)
    if not isinstance(entries, list):
        raise RunError(f"'{path}' must be a list of verdicts, not {type(entries).__name__}")
    return [_verdict(path, number, entry) for number, entry in enumerate(entries, 1)]


def _verdict(path: Path, number: int, entry: Any) -> Verdict:
    try:
        check_table(entry, SIGNS, optional=("noise", "one_seed", "stand_in"))
    except ValueError as error:
        raise RunError(f"'{path}': verdict {number} is wrong: {error}") from error
    for key in entry:
        if key not in KEYS:
            raise unknown(f"key of verdict {number} in '{path}'", key, KEYS)
    for key in ("paper", "claim"):
        if key not in entry:
            raise RunError(f"'{path}': verdict {number} lacks '{key}'")
    texts: dict[str, Any] = {name: _text(entry.get(name)) for name in KEYS if name not in SIGNS}
    return Verdict(**texts, **{name: entry[name] for name in SIGNS if name in entry})


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
