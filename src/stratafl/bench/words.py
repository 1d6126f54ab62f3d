"""A row in words, for a terminal without tables."""

from typing import Any

MIB = 2**20


def headline(machine: dict[str, Any]) -> str:
    """The machine in a line."""
    names = ("device", "machine", "cores", "threads", "load", "torch", "python", "precision", "compile")
    return ", ".join(f"{name} {machine[name]}" for name in names if machine[name] is not None)


def line(row: dict[str, Any]) -> str:
    """A row in a line."""
    what = f"{row['model']:9} {row['method']:9} N {row['clients']} C {row['cohort']} B {row['batch']}:"
    if "refused" in row:
        return f"{what} not measured: {row['refused']}"
    engine = row["engine"]
    middle = engine["median"]
    parts = [
        f"first {engine['first_round']:.2f} s",
        f"round {middle['round']:.3f} s (train {middle['train']:.3f} server {middle['server']:.3f})"
        f" best {engine['best']['round']:.3f}",
        f"evaluate {middle['evaluate']:.3f} s",
        f"{engine['ms_per_client_step']:.3f} ms per client-step",
        f"peak {engine['peak_memory'] / MIB:.0f} MiB",
        *(f"{ratio['round']:.1f}x {name}" for name, ratio in row["ratios"].items()),
    ]
    return f"{what} " + " | ".join(parts)
