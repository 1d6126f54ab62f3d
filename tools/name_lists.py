"""Write src/stratafl/cli/name_lists.json, from which `strata list` and `strata data list` print without torch.

    python tools/name_lists.py

Run it after adding a method, a model, a data set, a partition or a protocol, or changing the sentence on one.
"""

import json
from pathlib import Path
from typing import Any

from stratafl.algorithms.composition import PARTS
from stratafl.algorithms.declaration import KINDS
from stratafl.cli.list_command import catalogue
from stratafl.data import DATASETS
from stratafl.data.loading import fetched_entry

FILE = Path(__file__).parents[1] / "src" / "stratafl" / "cli" / "name_lists.json"
SHOWN = ("name", "kind", "description", "paper")  # of a method


def stored_catalogue() -> dict[str, Any]:
    """What the file holds: the lists of names, kinds of methods, parts, and the facts and cache entries of data."""
    live = catalogue()
    methods = [{key: entry[key] for key in SHOWN} for entry in live["algorithms"]]
    others = {section: entries for section, entries in live.items() if section not in ("algorithms", "recipes")}
    return {
        "names": {"algorithms": methods, **others},
        "kinds": KINDS,
        "parts": {name: part.label for name, part in PARTS.items()},
        "data": [[_facts(name), fetched_entry(name)] for name in DATASETS],
    }


def _facts(name: str) -> dict[str, Any]:
    dataset = DATASETS[name]
    source = "the package" if dataset.bundled else dataset.hub or "a folder (data.path)"
    size = {"samples": dataset.samples, "classes": dataset.classes, "shape": list(dataset.shape)}
    return {"name": name, **size, "from": source}


if __name__ == "__main__":
    FILE.write_text(json.dumps(stored_catalogue(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
