"""What papers print of a run, from its lines."""

from math import inf
from statistics import median

from stratafl.recipes.claims import OF_CONVERGENCE
from stratafl.report.outcomes import Outcome

SETTLED = 0.9  # of its rounds: a run that comes near its best later is still improving, and nobody knows until when


def measured(one: Outcome, measure: str) -> float | None:
    """A number of a run as papers have it, see `MEASURES`."""
    numbers = one.numbers()
    if measure in ("trained", "global"):
        common = measure == "global" and one.config["algorithm"]["name"] == "fedavg"  # everybody has FedAvg's
        return _accuracy(one, "received" if common else measure)
    if measure in ("score", "spread"):
        return 100 * numbers[measure] if measure in numbers else None
    if measure in OF_CONVERGENCE:
        settled = numbers.get("converged_round", inf) <= SETTLED * one.rounds
        return numbers["converged_round" if measure == "rounds" else "converged_seconds"] if settled else None
    if measure == "bytes":
        return numbers["bytes"] / numbers["rounds"] / 2**20
    return median(float(line["seconds.train"] + line["seconds.server"]) for line in one.lines)  # the first compile


def _accuracy(one: Outcome, stage: str) -> float | None:
    """The test accuracy of a stage in the selected round, averaged as the protocol says."""
    name = "client_accuracy" if one.config["evaluate"]["average"] == "clients" else "accuracy"
    selected = one.numbers()["selected_round"]
    found = next((line for line in one.lines if line["round"] == selected), {})
    value = found.get(f"test.{stage}.{name}")
    return None if value is None else 100 * value


def seconds(one: Outcome) -> float:
    """What a run took, with its evaluations."""
    return sum(float(value) for line in one.lines for key, value in line.items() if key.startswith("seconds."))
