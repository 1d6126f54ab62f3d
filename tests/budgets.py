"""What tests may cost: CPU seconds of each fast test, and their sum in each directory, checked by the run itself.

CPU seconds count threads and the processes that a test waits for; they hardly change beside a busy process. They do
depend on the machine, so every budget is scaled by a reference that each worker measures in the same run. A test or a
directory over its budget is reported; beyond three times the budget the run fails, with a second more for a test: it
may be the first of its worker to need what others share. A test that needs more says so and why:
`@pytest.mark.budget(3, "one real federation")`. `STRATAFL_BUDGETS=off` checks nothing, `STRATAFL_DURATIONS=FILE`
writes what every test took.
"""

import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TEST_SECONDS = 0.5
DIRECTORY_SECONDS: dict[str, float] = {
    "unit": 188,
    "contract": 25,
    "equivalence": 40,
    "deploy": 60,
    "runs": 40,
    "oracle": 35,
    "cli": 50,
    "report": 20,
    "benchmarks": 4,
    "advice": 5,
    "exchange": 8,
    "mutants": 2,
    "house": 2,
    "gpu": 1,
}
REFERENCE_SECONDS = 0.150  # of `reference_seconds` on the machine on which the budgets were chosen
FAILS_BEYOND = 3.0  # CPU seconds of one test differ by more than half between machines
SHARED_SECONDS = 1.0  # of what is cached; which test pays for it depends on the order
FEW_MODULES = (
    20  # a test that imports more pays for all later ones of its worker; it counts in its directory's sum only
)


def cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def reference_seconds() -> float:
    """CPU seconds of fixed work of the kind that tests do: short tensor operations, and Python between them."""
    import torch

    times = []
    for _ in range(3):
        begun = time.process_time()
        weights, rows = torch.ones(64, 64), torch.ones(20, 64)
        for step in range(4000):
            rows = torch.tanh(rows @ weights * (1e-3 * (step % 7)))
            _ = {name: len(name) for name in ("theta", "up.theta", "down.theta")}
        times.append(time.process_time() - begun)
    return min(times)


def tier_of(item: pytest.Item) -> str:
    return next((tier for tier in ("nightly", "slow") if item.get_closest_marker(tier)), "fast")


class Meter:
    """In each process that runs tests: what a test took, added to its report."""

    def __init__(self) -> None:
        self._reference: float | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if self._reference is None:
            self._reference = reference_seconds()
        self._begun, self._modules = cpu_seconds(), len(sys.modules)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        if report.when == "teardown":
            budget = item.get_closest_marker("budget")
            report.user_properties += [
                ("cpu", cpu_seconds() - self._begun),
                ("reference", self._reference),
                ("tier", tier_of(item)),
                ("budget", budget.args[0] if budget else TEST_SECONDS),
                ("first_use", len(sys.modules) - self._modules > FEW_MODULES),
            ]
        return report


class Ledger:
    """In the process that prints: adds up, and fails the run if something is far over its budget."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = dict(report.user_properties)
        if report.when != "teardown" or "cpu" not in row:
            return
        row["test"] = report.nodeid
        self.rows.append(row)
        if path := os.environ.get("STRATAFL_DURATIONS"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def over(self) -> list[tuple[str, float, float]]:
        """What is over its budget: its name, its CPU seconds and its budget, both on the reference machine."""
        fast = [row for row in self.rows if row["tier"] == "fast"]
        if not fast:
            return []
        speeds = sorted(row["reference"] for row in fast)
        scale = max(1.0, speeds[len(speeds) // 2] / REFERENCE_SECONDS)
        sums: dict[str, float] = defaultdict(float)
        for row in fast:
            sums[Path(row["test"]).parts[1]] += row["cpu"] / scale
        tests = [(row["test"], row["cpu"] / scale, row["budget"]) for row in fast if not row["first_use"]]
        directories = [(name, seconds, DIRECTORY_SECONDS.get(name, 0.0)) for name, seconds in sums.items()]
        return [line for line in tests + directories if line[1] > line[2]]

    def fails(self, name: str, seconds: float, budget: float) -> bool:
        return seconds > FAILS_BEYOND * budget + (SHARED_SECONDS if "::" in name else 0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if any(self.fails(*line) for line in self.over()):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(f"CPU seconds of tests: {sum(row['cpu'] for row in self.rows):.0f}")
        for name, seconds, budget in sorted(self.over(), key=lambda line: line[2] - line[1])[:40]:
            fails = " (fails)" if self.fails(name, seconds, budget) else ""
            terminalreporter.write_line(f"over budget{fails}: {name} took {seconds:.2f} of {budget:g} CPU seconds")


def register(config: pytest.Config) -> None:
    if os.environ.get("STRATAFL_BUDGETS") == "off" and "STRATAFL_DURATIONS" not in os.environ:
        return
    config.pluginmanager.register(Meter())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ledger())
