"""Runs in a process of their own, with the time at which each round ended, counted from the start of the process.

    python benchmarks/worker.py --to times.json --methods fedavg --set run.rounds=5 …         one run
    python benchmarks/worker.py --to times.json --methods fedavg,fedper --seeds 3 --joined …  a comparison, joined
    python benchmarks/worker.py … --joined --part 2/3                                     the second third of its runs

`joined.py` and `first_round.py` start it, also with the package of another checkout on the path, so it uses nothing but
`Comparison` and `Member` unless runs are joined.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratafl.runs import Member

STARTED = "BENCHMARK_STARTED"  # seconds since the epoch, noted by the process that started this one
Note = Callable[["Member", int], None]


class Times:
    """Seconds since the start of the process at which something was done."""

    def __init__(self) -> None:
        self._start = float(os.environ.get(STARTED, time.time()))
        self.reached: dict[str, float] = {}
        self.rounds: dict[str, list[float]] = {}

    def now(self) -> float:
        return time.time() - self._start

    def reach(self, what: str) -> None:
        self.reached[what] = self.now()

    def round(self, member: "Member", number: int) -> None:
        self.rounds.setdefault(str(member.folder.relative_to(member.folder.parents[1])), []).append(self.now())


def one_after_the_other(members: Sequence["Member"], note: Note) -> None:
    for member in members:
        with member.run() as run:
            for line in run.rounds():
                note(member, int(line["round"]))


def joined(members: Sequence["Member"], note: Note) -> None:
    """All runs under way together, as `strata compare` has them; `note` is called after each round of each run."""
    from stratafl.runs.joined import JoinedRuns  # older versions do not have it

    together = JoinedRuns(len(members), precision=members[0].experiment.run.precision)

    def work(member: "Member") -> None:
        with member.run() as run, together.declared(member.folder, run.sim):
            for line in run.rounds():
                note(member, int(line["round"]))

    together.drive(partial(work, member) for member in members)


def have_joined_runs() -> bool:
    """Whether the package on the path can join runs."""
    return find_spec("stratafl.runs.joined") is not None


def members_of(given: argparse.Namespace, folder: Path) -> list["Member"]:
    """Methods × seeds, or one method with each value of one setting."""
    from stratafl.config.experiment import Experiment, with_values
    from stratafl.config.setting_tables import parse_settings
    from stratafl.runs import Comparison, Member

    settings, methods = parse_settings(given.set), given.methods.split(",")
    if given.vary is None:
        made = Comparison.create(folder / "compare", Experiment(), methods, given.seeds, settings, checked=False)
        return list(made.members())
    key, _, values = given.vary.partition("=")
    base = with_values(Experiment(), {**settings, "algorithm.name": methods[0]})
    each = [with_values(base, parse_settings([f"{key}={value}"])) for value in values.split(",")]
    return [Member(methods[0], 0, one, folder / "vary" / f"value-{i}" / "seed-0") for i, one in enumerate(each)]


def part_of(members: list["Member"], part: str) -> list["Member"]:
    """As `strata compare --jobs` shares them: neighbours, which are seeds of one method, together."""
    number, parts = map(int, part.split("/"))
    size = -(-len(members) // parts)
    return members[(number - 1) * size : number * size]


def decided(members: Sequence["Member"]) -> Mapping[str, Any]:
    """What each run recorded about speed, such as whether and when its steps were compiled."""
    found = {}
    for member in members:
        path = member.folder / "environment.json"
        if path.exists():
            about = json.loads(path.read_text(encoding="utf-8"))
            found["/".join(member.folder.parts[-2:])] = about.get("tuning")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    times = Times()
    import torch

    import stratafl

    times.reach("imported")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        members = part_of(members_of(given, Path(name)), given.part)
        times.reach("members")
        (joined if given.joined else one_after_the_other)(members, times.round)
        times.reach("done")
        compiled = decided(members)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    table = {"reached": times.reached, "rounds": times.rounds, "tuning": compiled, "gpu_peak": peak}
    table["package"] = str(Path(stratafl.__file__).parent)
    given.to.write_text(json.dumps(table), encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--to", type=Path, required=True, help="the JSON file to write")
    made.add_argument("--methods", required=True, help="names, separated by commas")
    made.add_argument("--seeds", type=int, default=1, help="how many")
    made.add_argument("--vary", metavar="KEY=VALUE,VALUE", help="one run for each value, of one method")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all runs")
    made.add_argument("--part", default="1/1", metavar="I/N", help="the I-th of N parts of the runs")
    made.add_argument("--joined", action="store_true", help="all runs together instead of one after the other")
    return made


if __name__ == "__main__":
    sys.exit(main())
