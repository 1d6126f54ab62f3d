"""A table and a plot of all results in a folder.

python benchmarks/summarise.py benchmark-results            writes benchmark-results/table.md and plot.svg
python benchmarks/summarise.py benchmarks/results           the same of the published results

It needs Python alone, not the package.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from recording import RESULTS, Table, aim_text, figure, met

WIDTH, LABELS, LINE, GAP = 860, 260, 20, 34
COLOUR = "#4477aa"


def results(folder: Path) -> list[tuple[str, Table]]:
    """Every result in the folder by its name; other files are left alone."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        table = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(table, dict) and {"benchmark", "environment", "rows", "bars"} <= table.keys():
            found.append((path.relative_to(folder).as_posix(), table))
    return found


def markdown(found: Sequence[tuple[str, Table]]) -> str:
    """One section per result: what it was measured on, the command, and its lines."""
    parts = ["# Benchmarks\n"]
    for name, table in found:
        about = table["environment"]
        threads = f"{about['threads']} thread{'' if about['threads'] == 1 else 's'}"
        host = f"{about['processor']}, {about['cores']} cores, {threads}"
        device = f"{about['gpu']}, host {host}" if about["gpu"] else host
        versions = f"torch {about['torch']}, Python {about['python']}, load {about['load']}"
        code = f"commit {about['commit']}, code {about['source']}"
        command = " ".join(["python", *(_short(word) for word in about["command"][1:])])
        parts.append(f"## {name}\n\n{device}; {versions}; {code}; {about['started']}\n\n```\n{command}\n```\n")
        parts.append("| | measured | aim | |\n|---|---|---|---|")
        for each in table["rows"]:
            verdict = {True: "reached", False: "**missed**", None: ""}[met(each)]
            parts.append(f"| {each['what']} | {figure(each['value'], each['unit'])} | {aim_text(each)} | {verdict} |")
        parts.append("")
    return "\n".join(parts)


def _short(word: str) -> str:
    """A script's path from the folder `benchmarks` on, the name of any other; nobody needs to know where it was."""
    at = word.rfind("benchmarks/")
    if at >= 0 and word.endswith(".py"):
        return word[at:]
    return Path(word).name if word.startswith("/") else word


def plot(found: Sequence[tuple[str, Table]]) -> str:
    """Bars as SVG, one panel for each group of them; a panel has its own scale."""
    panels: dict[str, list[Table]] = {}
    for _, table in found:
        for each in table["bars"]:
            panels.setdefault(each["panel"], []).append(each)
    drawn, y = list[str](), GAP
    for title, bars in panels.items():
        drawn.append(f'<text x="8" y="{y}" font-weight="bold">{escape(title)}</text>')
        largest = max([*(abs(each["value"]) for each in bars), 1e-12])
        for each in bars:
            y += LINE
            long = max(1.0, (WIDTH - LABELS - 110) * max(0.0, each["value"]) / largest)
            label, value = escape(each["label"]), escape(figure(each["value"], each["unit"]))
            drawn.append(f'<text x="{LABELS - 8}" y="{y}" text-anchor="end">{label}</text>')
            drawn.append(f'<rect x="{LABELS}" y="{y - 13}" width="{long:.1f}" height="15" fill="{COLOUR}"/>')
            drawn.append(f'<text x="{LABELS + long + 6:.1f}" y="{y}">{value}</text>')
        y += GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" '
    head += 'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, *drawn, "</svg>\n"])


def main(arguments: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path, nargs="?", default=RESULTS, help=f"with the JSON files ({RESULTS})")
    made.add_argument("--to", type=Path, help="folder for table.md and plot.svg; by default the same")
    given = made.parse_args(arguments)
    found = results(given.folder)
    if not found:
        raise SystemExit(f"'{given.folder}' has no results: run a benchmark with --results {given.folder} first")
    target = given.to or given.folder
    target.mkdir(parents=True, exist_ok=True)
    for name, text in (("table.md", markdown(found)), ("plot.svg", plot(found))):
        partial = target / f"{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(target / name)
        print(target / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
