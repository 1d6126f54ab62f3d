"""The format of a run's files. Run directories, checkpoints, comparisons and configurations carry its number.

1   lines of journals have no checksums
2   every line has a checksum
3   settings are called `run.memory_limit` and `data.new_clients`, the steps of a method have today's names, class
    counts are in `class_counts.json`, and a checkpoint says its format
4   a run has a metric (`evaluate.metric`) and seeds of its own for weights and batches, and leaves its predictions
5   tables are standardised by default, and each client by its own samples: what `data.normalise` called `auto` and
    `columns` before are `images` and `pooled`; a checkpoint holds the scores of models right after clients last
    trained, and `trained` is over all clients
6   FedALP without `groups` has as many as suit the number of clients, and had 4 before; files of federations have a
    number

7   images of 16 bits are scaled by their own mean and deviation by default: what `data.normalise` called `auto` before
    is `former`
8   FedPrior's class frequencies are no column that could be trained, so its digest is another one
9   a simulation has a limit to the length of updates by default, as a deployment always had
10  of many clients, journals and class counts have columns; a run evaluates a sample of them without `evaluate.clients`
11  updates that are too long are shortened by default, in simulations and deployments

Older formats are read: add what differs to this list, to `migrate` (settings) and where the file is read. Raise FORMAT
whenever an older stratafl could not read, or would misread, what this one writes. A key that was renamed is read under
its old name, whether or not a number says how old the file is.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratafl.core.annotations import said
from stratafl.errors import DamagedError, RecordError, RunError, shown

FORMAT = 11  # a run's configuration without a number is of format 3 or older
CHECKSUMS = 2  # since this format, all lines of journals have checksums
METHOD_DIGEST = 3  # since this format, the digest of a method can be compared: it covers the names of its steps
CHANGED_SINCE = {"fedprior": 8}  # methods whose record changed, but not what they do, with the format of the change
OWN_COLUMNS = 5  # since this format, each client standardises a table by its own samples
GROUPS_BY_CLIENTS = 6  # since this format, the default number of FedALP's groups grows with the clients
IMAGES_BY_THEIR_OWN = 7  # since this format, images of 16 bits are scaled by their own mean and deviation
USUALLY_LIMITED = 9  # since this format, simulations have a limit to the length of updates by default
SAMPLED_CLIENTS = 10  # since this format, a run of many clients evaluates a sample of them by default
USUALLY_SHORTENED = 11  # since this format, updates that are too long are shortened by default
UNNUMBERED_FEDERATION = 5  # the format of a federation's file or invitation that has no number
_NORMALISED_BEFORE = {"auto": "images", "columns": "pooled"}
_RENAMED = {("run", "memory"): "memory_limit", ("data", "newcomers"): "new_clients"}


def with_format(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables as they are written, with the number of their format."""
    return {"format": FORMAT, **tables}


def migrate(tables: Mapping[str, Any], *, stored: bool = False, deployed: bool = False) -> dict[str, Any]:
    """The tables of a configuration of this or an older format in today's words, without the number.

    A file that a person wrote has no number and means what its words mean today; one that was `stored` is old.
    `deployed`: whether they are of a federation, not of a simulation.
    """
    number = tables.get("format", 1 if stored else FORMAT)
    if type(number) is not int or number < 1:
        raise RecordError(f"format must be a whole number from 1 to {FORMAT}, not {said(number)}")
    if number > FORMAT:
        newer = f"format {said(number)}; this one reads up to {FORMAT}"
        raise RecordError(f"this configuration is from a newer version of stratafl ({newer}): update stratafl")
    migrated = {name: table for name, table in tables.items() if name != "format"}
    for (name, old), new in _RENAMED.items():
        table = migrated.get(name)
        if isinstance(table, Mapping) and old in table and new not in table:
            migrated[name] = {new if key == old else key: value for key, value in table.items()}
    data = migrated.get("data", {})
    if number < OWN_COLUMNS and isinstance(data, Mapping):
        normalise = data.get("normalise", "auto")
        data = migrated["data"] = {**data, "normalise": _NORMALISED_BEFORE.get(normalise, normalise)}
    if number < IMAGES_BY_THEIR_OWN and isinstance(data, Mapping) and data.get("normalise", "auto") == "auto":
        migrated["data"] = {**data, "normalise": "former"}
    server = migrated.get("server", {})
    if number < USUALLY_LIMITED and not deployed and isinstance(server, Mapping):
        migrated["server"] = {"norm_limit": 0.0, **server}
    server = migrated.get("server", {})
    if number < USUALLY_SHORTENED and isinstance(server, Mapping):
        migrated["server"] = {"norm_clip": 0.0, **server}
    evaluate = migrated.get("evaluate", {})
    if number < SAMPLED_CLIENTS and not deployed and isinstance(evaluate, Mapping):
        migrated["evaluate"] = {"clients": 0, **evaluate}
    method = migrated.get("algorithm")
    if isinstance(method, Mapping):
        migrated["algorithm"] = {**former_defaults(method.get("name"), number), **method}
    return migrated


def former_defaults(method: Any, number: int) -> dict[str, Any]:
    """The options of a method at their defaults in files of this format, where these are others today."""
    return {"groups": 4} if method == "fedalp" and number < GROUPS_BY_CLIENTS else {}


def method_digest_compares(method: str, number: int) -> bool:
    """Whether the digest of a method, as a file of this format has it, is comparable with today's."""
    return number >= max(METHOD_DIGEST, *(CHANGED_SINCE.get(part.strip(), 1) for part in method.split("+")))


def check_format(path: Path, number: Any) -> int:
    """The format that a file says it has, if this version reads it."""
    if type(number) is not int or number < 1:
        raise DamagedError(f"'{path}' is damaged: its format is {shown(number, 40)}, not a number from 1 to {FORMAT}")
    if number > FORMAT:
        raise RunError(
            f"'{path}' was written by a newer version of stratafl "
            f"(format {shown(number, 40)}; this one reads up to {FORMAT}): update stratafl"
        )
    return number
