"""Claims of a paper as predicates on measured numbers; `verdicts` says which of them hold.

kind      needs                    holds if, in every column,
best      row                      the row is better than every other row that was run, except controls
above     row, than, by            row is better than `than` by more than by (0)
order     rows                     each of the rows is better than the next
close     row, than, within        |row − than| ≤ within
printed   row, within              |row − the number in the paper| ≤ within
rises     row, columns, by         the number in the last column is more than by (0) above the one in the first
widens    row, than, columns, by   the lead of row over `than` is more than by (0) larger in the last than in the first
average   row, than, columns, by   the lead of row over `than`, averaged over these columns, is more than by (0)
flat      row, columns, within     its largest and smallest numbers in these columns differ by at most within
over      row, limit               the number of row is above limit
under     row, limit               the number of row is below limit

`average` and `widens` take several `rows` in place of `than`: leads are then averaged over these rivals too. With
`share` every lead is in per cent of the rival's number. For accuracies more is better, for everything else less.
"""

from dataclasses import dataclass

from stratafl.errors import RecordError, unknown

MEASURES = {
    "score": "test accuracy, %",
    "trained": "test accuracy right after local training, %",
    "global": "test accuracy of the server's model, %",
    "new": "test accuracy of clients that join after training, %",
    "jump": "rise of test accuracy where the warm-up ends, points",
    "spread": "standard deviation of test accuracy over clients, points",
    "rounds": "rounds to convergence",
    "seconds": "seconds per round (median)",
    "relative": "seconds per round, divided by FedAvg's",
    "server": "seconds of the server per round (median)",
    "time": "seconds to convergence",
    "bytes": "MiB per round, both ways",
}
MORE_IS_BETTER = ("score", "trained", "global", "new", "jump")
OF_CONVERGENCE = ("rounds", "time")
PER_ROUND = ("seconds", "relative", "server", "bytes")  # the number of rounds does not matter for these
REFERENCE = "FedAvg"  # the row by whose seconds those of all rows are divided
OVER_COLUMNS = ("rises", "widens", "average", "flat")
KINDS = {  # with the keys that they need; "a or b": one of them
    "best": ("row",),
    "above": ("row", "than"),
    "order": ("rows",),
    "close": ("row", "than", "within"),
    "printed": ("row", "within"),
    "rises": ("row", "columns"),
    "widens": ("row", "than or rows", "columns"),
    "average": ("row", "than or rows", "columns"),
    "flat": ("row", "columns", "within"),
    "over": ("row", "limit"),
    "under": ("row", "limit"),
}


@dataclass(frozen=True)
class UnjudgedClaim:
    """A sentence of a paper that no number of a run can judge, and why."""

    says: str
    why: str


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper and its predicate; without `columns`, for every column that was run."""

    says: str
    kind: str
    row: str | None = None
    than: str | None = None
    rows: list[str] | None = None
    columns: list[str] | None = None
    by: float = 0.0
    within: float | None = None
    limit: float | None = None
    share: bool = False
    measure: str = "score"

    @property
    def names(self) -> list[str]:
        return [name for name in (self.row, self.than, *(self.rows or ())) if name is not None]

    @property
    def rivals(self) -> list[str]:
        """What the row's lead is over."""
        return [self.than] if self.than is not None else list(self.rows or [])

    @property
    def sign(self) -> int:
        """−1 if less is better."""
        return 1 if self.measure in MORE_IS_BETTER else -1

    @property
    def predicate(self) -> str:
        parts = [self.kind, ", ".join(self.names), *([f"by {self.by:g}"] if self.by else [])]
        parts += [f"within {self.within:g}"] if self.within is not None else []
        parts += [f"{self.limit:g}"] if self.limit is not None else []
        parts += ["in %"] if self.share else []
        parts += [f"({MEASURES[self.measure]})"] if self.measure != "score" else []
        return " ".join(parts)

    def check(self) -> None:
        """Refuse unknown kinds and measures, and missing keys."""
        if self.kind not in KINDS:
            raise unknown("kind of claim", self.kind, KINDS)
        if self.measure not in MEASURES:
            raise unknown("measure", self.measure, MEASURES)
        for key in KINDS[self.kind]:
            name = next((name for name in key.split(" or ") if getattr(self, name) is not None), None)
            if name is None:
                raise RecordError(f"claim '{self.says}' of kind {self.kind} lacks '{key}'; add it")
            if name in ("rows", "columns") and len(getattr(self, name)) < 2:
                raise RecordError(f"claim '{self.says}' of kind {self.kind} needs two '{name}' or more; add some")
