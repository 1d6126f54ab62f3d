"""Run directories written by hand, with everything that a report reads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from stratafl.runs.json_files import Journal, read_lines

EVIL = "</script><script>window.hurt=1</script><img src=x onerror=window.hurt=2>"
ENVIRONMENT = {
    "format": 2,
    "stratafl": "0.1",
    "commit": "0123456789abcdef",
    "python": "3.11",
    "torch": "2.13",
    "numpy": "2.4",
    "machine": "Linux",
    "cores": 2,
    "device": "cpu",
    "device_name": "cpu",
    "columns": 1000,
    "started": "2026-11-15T10:00:00+00:00",
    "command": ["strata", "run"],
    "leaks": None,
    "resumed": [],
}


def round_line(number: int, accuracy: float, loss: float = 1.0) -> dict[str, Any]:
    """A round of 2 seconds with the clients, 0.5 with the server, 100 bytes down and 10 up."""
    line: dict[str, Any] = {"round": number, "train.loss": loss, "bytes.down": 100, "bytes.up": 10}
    line |= {"seconds.train": 2.0, "seconds.server": 0.5}
    for place in ("validation.deployed", "test.deployed", "test.received", "test.trained"):
        line |= {f"{place}.accuracy": accuracy, f"{place}.loss": loss, f"{place}.worst10": accuracy / 2}
    return line | {"test.deployed.std": 0.1}


def client_line(number: int, client: int, accuracy: float) -> dict[str, Any]:
    line = {"round": number, "client": client, "test.samples": 4 + client, "validation.samples": 2}
    return line | {"test.deployed.accuracy": accuracy, "test.deployed.loss": 1.0}


def layer_line(number: int, layer: str, looked: bool, mixing: int = 0) -> dict[str, Any]:
    line: dict[str, Any] = {"round": number, "layer": layer, "columns": 10, "bytes.down": 50, "bytes.up": 5}
    if looked:
        line |= {"conflicts": 0.25, "cosine": 0.1, "cka": 0.9 - 0.05 * number, "sent": 1.0, "train.rate": 0.05}
    if looked and mixing:
        own = number / 100
        line["alpha"] = [[own + (i == j) / 2 for j in range(mixing)] for i in range(mixing)]
    return line


def write_run(
    folder: Path,
    accuracies: list[float],
    *,
    name: str = "fedper",
    seed: int = 0,
    clients: int = 4,
    layers: tuple[str, ...] = ("first", "head"),
    lab: int = 0,
    mixing: int = 0,
    holdings: dict[str, Any] | None = None,
    asked: int | None = None,
    environment: dict[str, Any] | None = None,
    **tables: dict[str, Any],
) -> Path:
    """A run with these test accuracies; client i is i hundredths below, layers are looked at each `lab` rounds."""
    folder.mkdir(parents=True)
    config = {"algorithm": {"name": name}, "run": {"rounds": asked or len(accuracies), "seed": seed}}
    config |= {"data": {"name": "gone.npz"}, "evaluate": {"lab": lab}}
    for table, values in tables.items():
        config[table] = {**config.get(table, {}), **values}
    (folder / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    about = {**ENVIRONMENT, "seed": seed, "clients": clients, **(environment or {})}
    (folder / "environment.json").write_text(json.dumps(about), encoding="utf-8")
    if holdings is not None:
        (folder / "class_counts.json").write_text(json.dumps(holdings), encoding="utf-8")
    numbered = list(enumerate(accuracies, 1))
    journals = {
        "rounds": [round_line(number, value, 2 - value) for number, value in numbered],
        "clients": [client_line(t, i, max(0, value - i / 100)) for t, value in numbered for i in range(clients)],
        "layers": [
            layer_line(t, layer, bool(lab) and (t == 1 or t % lab == 0), mixing)
            for t, _ in numbered
            for layer in layers
        ],
    }
    for journal, lines in journals.items():
        Journal(folder / f"{journal}.jsonl").append(lines)
    return folder


def rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Other lines in a journal, with their checksums."""
    lines = [change(line) for line in read_lines(path)]
    path.unlink()
    Journal(path).append(lines)


def as_regression(folder: Path) -> Path:
    """The same run without its accuracies: one of numbers, measured by its loss, which is 2 minus what they were."""
    for name in ("rounds", "clients"):
        path = folder / f"{name}.jsonl"
        rewrite(path, lambda line: {k: v for k, v in line.items() if not k.endswith("accuracy")})
    return folder


def write_study(place: Path) -> Path:
    """Three methods with two seeds each, one of which mixes; a label and a layer that try to break out; verdicts."""
    held = {"classes": 3, "clients": 4, "counts": {split: [[i, 2, 0] for i in range(4)] for split in ("train", "test")}}
    for seed in (0, 1):
        course = [0.3, 0.5, 0.6 + seed / 50, 0.7]
        write_run(place / f"a{seed}", course, name="pfedla", seed=seed, lab=2, mixing=4, holdings=held)
        evil = {"name": "fedper", "note": EVIL}
        layers = ("first", EVIL)
        write_run(place / f"b{seed}", [x - 0.1 for x in course], seed=seed, lab=2, algorithm=evil, layers=layers)
        write_run(place / f"c{seed}", [x - 0.2 for x in course], seed=seed, lab=2, algorithm={"note": "plain"})
    told = [
        {"paper": "A", "table": "2", "claim": f"x {EVIL}", "predicate": "a > b", "paper_value": 0.5, "measured": 0.6}
        | {"holds": holds, "reason": ""}
        for holds in (True, False, None)
    ]
    (place / "verdicts.json").write_text(json.dumps(told), encoding="utf-8")
    return place
