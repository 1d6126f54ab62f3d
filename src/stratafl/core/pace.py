"""Whether an algorithm goes on: with more rounds, or with more clients, than were asked for at the start.

A cosine schedule and a warm-up that is a share of the rounds differ between a run of 20 rounds and the first 20 of 40.
Such a run cannot go on as if 40 rounds had been asked for at the start. A part that reads the number of rounds has a
method `pace(t, rounds)`, which returns all that it takes from it in round t. What belongs to the number of clients
shows in the form of its states, or a step says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from stratafl.core.algorithm import Algorithm
from stratafl.core.phased import records_of
from stratafl.core.round import Setup, scheduled
from stratafl.core.state import Kind, flatten, kind
from stratafl.errors import RunError

EVALUATED_SLOTS = ("mix", "tune")  # of the round after the last, which gives the models that are scored


def check_goes_on(algorithm: Algorithm, done: int, before: int, after: int, new_clients: bool = False) -> None:
    """Raise unless `done` rounds of `before` are those of `after` rounds; `new_clients` train when they are scored."""
    slots = (*EVALUATED_SLOTS, *(("train",) if new_clients else ()))
    scored = [getattr(record, slot) for record in records_of(algorithm) for slot in slots]
    for t, parts in [*((t, algorithm) for t in range(done)), (done, scored)]:
        if _pace(algorithm, parts, t, before) != _pace(algorithm, parts, t, after):
            raise RunError(
                f"{before} rounds cannot become {after}: in round {t + 1} a schedule or a phase of this method depends "
                f"on the number of rounds in all; train again with rounds={after}, or fix it, such as a warm-up in "
                "rounds or a constant learning rate"
            )


def check_more_clients(algorithm: Algorithm, done: int, before: Setup, after: Setup) -> None:
    """Raise if clients cannot join after `done` rounds; `before` and `after` differ in the number of clients."""
    steps = [step for record in records_of(algorithm) for step in record.steps]
    forms, others = _forms(algorithm, before), _forms(algorithm, after)
    widths = {name.partition("/")[0] for name in forms if forms[name] != others[name]}
    if widths:
        why = f"it keeps values for each of the {before.clients} clients ({', '.join(sorted(widths))})"
    elif algorithm.plan(done, after.rounds).phase:
        why = "its clients have passed a phase that a new one would miss"
    elif any(step.divides_by_clients for step in steps):
        why = f"it divides sums by the number of clients, {before.clients}, of which its state is a mean"
    elif algorithm.promise:
        why = f"its privacy is accounted for {before.clients} clients"
    elif not steps:
        why = "it is not made of steps, which would say what belongs to the number of clients"
    else:
        return
    raise RunError(f"no client can join this method later: {why}; begin a new federation with all clients")


def _forms(algorithm: Algorithm, setup: Setup) -> dict[str, Kind]:
    """Names, types and shapes of the states of the server and of a client."""
    blank = setup.blank()
    server, client = algorithm.init(blank), algorithm.enrol(blank, torch.zeros(1, dtype=torch.int64))
    return {name: kind(x) for name, x in (flatten(server, "server ") | flatten(client, "client ")).items()}


def _pace(algorithm: Algorithm, parts: object, t: int, rounds: int) -> list[object]:
    plan = algorithm.plan(t, rounds)
    at = scheduled(plan, t, rounds)
    return [plan, *(part.pace(*at) for part in _paced(parts))]


def _paced(part: object) -> Iterator[Any]:
    """The parts of a record that have a pace, at any depth."""
    if hasattr(part, "pace"):
        yield part
    elif isinstance(part, tuple | list):
        for nested in part:
            yield from _paced(nested)
    elif isinstance(part, Mapping):
        yield from _paced(list(part.values()))
    elif is_dataclass(part):
        yield from _paced([getattr(part, field.name) for field in fields(part)])
