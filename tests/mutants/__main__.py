"""Try mutants: `python tests/mutants try [--jobs 2] [--only NAME …] [-o table.json]`, `record`, `table`.

A mutant is tried on the tests that it names, then on those that the recorded map says execute its statement, fast
ones first, and the first kill ends it. `record` makes that map: it runs the suite once over a copy of the source
with a probe at each mutant. Only a test that fails kills; an error in collecting tests does not count.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from mutation import HERE, ROOT, Mutant, Overlay, load_mutants, write_probes

TIERS = {"fast": "not slow and not nightly", "slow": "slow and not nightly", "nightly": "nightly"}
MAP = HERE / "map.json"
TESTS_OF_MAP = 25  # kept for each mutant in each tier
SECONDS = 600  # a mutant that makes a test hang counts as noticed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    trying = commands.add_parser("try")
    trying.add_argument("--jobs", type=int, default=2)
    trying.add_argument("--only", nargs="*", default=[], help="areas, or names of mutants")
    trying.add_argument("--tiers", nargs="*", default=list(TIERS), choices=TIERS)
    trying.add_argument("-o", "--output", type=Path)
    recording = commands.add_parser("record")
    recording.add_argument("pytest", nargs="*", help="arguments of pytest")
    options = parser.parse_args()
    if options.command == "record":
        record(load_mutants(), options.pytest)
    else:
        chosen = [each for each in load_mutants() if _is_chosen(each, options.only)]
        sys.exit(0 if try_all(chosen, options.jobs, options.tiers, options.output) else 1)


def _is_chosen(mutant: Mutant, only: list[str]) -> bool:
    return not only or mutant.name in only or mutant.name.split("/")[0] in only


def try_all(mutants: list[Mutant], jobs: int, tiers: list[str], output: Path | None) -> bool:
    """Try each mutant; write and print who killed it. True if none survives."""
    recorded = json.loads(MAP.read_text()) if MAP.exists() else {}
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        overlays: Queue[Overlay] = Queue()
        for job in range(jobs):
            overlays.put(Overlay(Path(folder) / str(job)))

        def trial(mutant: Mutant) -> tuple[Mutant, dict[str, Any]]:
            overlay = overlays.get()
            try:
                return mutant, _try(mutant, recorded.get(mutant.name, {}), tiers, overlay)
            finally:
                overlays.put(overlay)

        for number, (mutant, result) in enumerate(pool.map(trial, mutants), 1):
            results[mutant.name] = result
            print(f"[{number}/{len(mutants)}] {mutant.name}: {_told(result)}", flush=True)
            if output is not None:
                output.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    survivors = [name for name, result in results.items() if result["tier"] is None]
    by_tier = {tier: sum(result["tier"] == tier for result in results.values()) for tier in TIERS}
    print(f"{len(mutants)} mutants; killed by {by_tier}; {len(survivors)} survive: {', '.join(survivors)}")
    return not survivors


def _told(result: dict[str, Any]) -> str:
    return f"SURVIVES {result['note']}" if result["tier"] is None else f"killed, {result['tier']}: {result['test']}"


def _try(mutant: Mutant, recorded: dict[str, list[str]], tiers: list[str], overlay: Overlay) -> dict[str, Any]:
    begun, note = time.monotonic(), ""
    with overlay.replaced(mutant.file, mutant.mutated()) as source:
        for tier in tiers:
            for tests in (list(mutant.tests), recorded.get(tier, [])):
                test, problem = _killer(tests, tier, source)
                note = note or problem
                if test is not None:
                    return {"tier": tier, "test": test, "seconds": round(time.monotonic() - begun, 1)}
    return {"tier": None, "test": None, "note": note, "seconds": round(time.monotonic() - begun, 1)}


def _killer(tests: list[str], tier: str, source: Path) -> tuple[str | None, str]:
    """The first of these tests that fails, with its error, and what else pytest had to say."""
    if not tests:
        return None, ""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-rf", "-m", TIERS[tier], *tests]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "STRATAFL_BUDGETS": "off"}
    try:
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"{tests[0]} (hangs)", ""
    if run.returncode == 1:
        failed = [line[7:] for line in run.stdout.splitlines() if line.startswith("FAILED ")]
        return (failed[0], "") if failed else (None, run.stdout[-400:])
    return None, "" if run.returncode in (0, 5) else f"pytest ended with {run.returncode}: {run.stdout[-400:]}"


def record(mutants: list[Mutant], arguments: list[str]) -> None:
    """Run the tests over probes; keep which of them execute which mutant's statement, the quickest first."""
    with tempfile.TemporaryDirectory() as folder:
        probes, hits = Path(folder) / "src", Path(folder) / "hits"
        hits.mkdir()
        write_probes(mutants, probes)
        environment = {**os.environ, "PYTHONPATH": str(probes), "MUTANT_MAP": str(hits), "OMP_NUM_THREADS": "1"}
        environment |= {"STRATAFL_BUDGETS": "off", "STRATAFL_DURATIONS": str(Path(folder) / "durations.jsonl")}
        command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "--tb=no", *arguments]
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        durations = [json.loads(line) for line in (Path(folder) / "durations.jsonl").read_text().splitlines()]
        lines = {line for path in hits.iterdir() for line in path.read_text().splitlines()}
    executed = defaultdict(set)
    for line in lines:
        name, test = line.split("\t")
        executed[name].add(test)
    quickest = sorted(durations, key=lambda row: row["cpu"])
    recorded = {}
    for name, hit in sorted(executed.items()):
        tests = {tier: [r["test"] for r in quickest if r["tier"] == tier and r["test"] in hit] for tier in TIERS}
        recorded[name] = {tier: names[:TESTS_OF_MAP] for tier, names in tests.items()}
    MAP.write_text(json.dumps(recorded, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
