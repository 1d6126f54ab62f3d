"""Try mutants: `python tests/mutants try [--only AREA …] [--tiers fast slow] [-o table.json]`, or `record` the map.

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
SECONDS = 900  # a mutant that makes a test hang counts as noticed

# A process that has imported torch and tries each mutant in a fork of itself, which saves four CPU seconds a trial.
_FORKING = """
import json, os, sys
import numpy, pytest, safetensors.torch, torch, torch.func
torch.set_num_threads(1)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1), os.dup2(log, 2), os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["PYTHONPATH"] = job["source"]
        sys.path.insert(0, job["source"])
        code = 3
        try:
            code = int(pytest.main(job["arguments"]))
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    trying = commands.add_parser("try")
    trying.add_argument("--jobs", type=int, default=2)
    trying.add_argument("--only", nargs="*", default=[], help="areas, or names of mutants")
    trying.add_argument("--tiers", nargs="*", default=["fast", "slow"], choices=TIERS)
    trying.add_argument("-o", "--output", type=Path)
    recording = commands.add_parser("record")
    recording.add_argument("pytest", nargs="*", help="arguments of pytest")
    options = parser.parse_args()
    if options.command == "record":
        record(load_mutants(), options.pytest)
    else:
        chosen = [mutant for mutant in load_mutants() if _is_chosen(mutant, options.only)]
        sys.exit(0 if try_all(chosen, options.jobs, options.tiers, options.output) else 1)


def _is_chosen(mutant: Mutant, only: list[str]) -> bool:
    return not only or mutant.name in only or mutant.name.split("/")[0] in only


class Trials:
    """One process and one copy of the source, in which one mutant after another is tried."""

    def __init__(self, folder: Path) -> None:
        self._overlay, self._log = Overlay(folder / "src"), folder / "log"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "STRATAFL_BUDGETS": "off"}
        environment.pop("PYTHONPATH", None)
        command = [sys.executable, "-c", _FORKING]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)

    def attempt(self, mutant: Mutant, recorded: dict[str, list[str]], tiers: list[str]) -> dict[str, Any]:
        """Who kills the mutant: the tier and the test, or None and what pytest had to say."""
        begun, note = time.monotonic(), ""
        with self._overlay.replaced(mutant.file, mutant.mutated()) as source:
            for tier in tiers:
                for tests in (list(mutant.tests), recorded.get(tier, [])):
                    test, problem = self._killer(tests, tier, source)
                    note = note or problem
                    if test is not None:
                        return {"tier": tier, "test": test, "seconds": round(time.monotonic() - begun, 1)}
        return {"tier": None, "test": None, "note": note, "seconds": round(time.monotonic() - begun, 1)}

    def _killer(self, tests: list[str], tier: str, source: Path) -> tuple[str | None, str]:
        if not tests:
            return None, ""
        options = ["-x", "-q", "--no-header", "--tb=no", "-rf", "-o", f"faulthandler_timeout={SECONDS}"]
        arguments = [*options, "-o", "faulthandler_exit_on_timeout=true", "-m", TIERS[tier], *tests]
        job = {"log": str(self._log), "source": str(source), "arguments": arguments}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        printed = self._log.read_text(errors="replace")
        failed = [line[7:] for line in printed.splitlines() if line.startswith("FAILED ")]
        if code == 1 and failed:
            return failed[0], ""
        return None, "" if code in (0, 5) else f"pytest ended with {code}: {printed[-400:]}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def try_all(mutants: list[Mutant], jobs: int, tiers: list[str], output: Path | None) -> bool:
    """Try each mutant; write and print who killed it. True if none survives."""
    recorded = json.loads(MAP.read_text()) if MAP.exists() else {}
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        trials: Queue[Trials] = Queue()
        for job in range(jobs):
            trials.put(Trials(Path(folder) / str(job)))

        def attempt(mutant: Mutant) -> tuple[Mutant, dict[str, Any]]:
            free = trials.get()
            try:
                return mutant, free.attempt(mutant, recorded.get(mutant.name, {}), tiers)
            finally:
                trials.put(free)

        for number, (mutant, result) in enumerate(pool.map(attempt, mutants), 1):
            results[mutant.name] = result
            print(f"[{number}/{len(mutants)}] {mutant.name}: {_shown(result)}", flush=True)
            if output is not None:
                output.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        while not trials.empty():
            trials.get().close()
    survivors = [name for name, result in results.items() if result["tier"] is None]
    by_tier = {tier: sum(result["tier"] == tier for result in results.values()) for tier in tiers}
    print(f"{len(mutants)} mutants; killed by {by_tier}; {len(survivors)} survive: {', '.join(survivors)}")
    return not survivors


def _shown(result: dict[str, Any]) -> str:
    return f"SURVIVES {result['note']}" if result["tier"] is None else f"killed, {result['tier']}: {result['test']}"


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
