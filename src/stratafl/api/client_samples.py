"""Samples of clients in memory: of which kind they are, and what `fit` and the commands in Python make of it.

`fit` needs a federation, split and scaled. `compare`, `tune` and `advise` need samples, which every run splits itself.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from stratafl.data import Federation
from stratafl.data.builders import (
    from_objects,
    from_samples,
    samples_of_clients,
    with_scaled_pixels,
    with_standardised,
)
from stratafl.data.frames import frame_samples, is_frame
from stratafl.data.partitions import IID
from stratafl.data.reading import is_table
from stratafl.data.samples import Samples
from stratafl.data.splitting import SplitPlan, check_some_clients
from stratafl.data.text_clients import hold_texts, text_samples
from stratafl.errors import DataError, unknown

NORMALISED = ("auto", "columns", "none")
log = logging.getLogger("stratafl")


def _kind(clients: Any, label: str | None, client: str | None) -> Literal["table", "federation", "texts", "arrays"]:
    """What the clients hold. Columns are named only for tables, which may also come client by client."""
    if is_frame(clients) or label is not None or client is not None:
        return "table"
    if isinstance(clients, Federation):
        return "federation"
    if not isinstance(clients, Mapping | Sequence) or isinstance(clients, str):
        advice = "give the samples of each client in a list, or in a dict by the clients' names"
        raise DataError(f"clients are of type {type(clients).__name__}: {advice}")
    check_some_clients(clients)
    return "texts" if hold_texts(clients) else "arrays"


def samples_in_memory(clients: Any, label: str | None, client: str | None, normalise: str) -> Samples:
    """The samples of all clients, before any split of ours; what may be a mistake in a table is logged."""
    kind = _kind(clients, label, client)
    if kind == "federation":
        return samples_of_clients(clients, splits=True)
    if kind == "arrays":
        values = list(clients.values()) if isinstance(clients, Mapping) else list(clients)
        splits = any(isinstance(samples, Mapping) for samples in values)
        whole = from_objects(clients, validation=0.0, test=0.0, seed=0, split="random")
        return samples_of_clients(with_scaled_pixels(whole), splits=splits)
    samples = text_samples(clients) if kind == "texts" else frame_samples(clients, label, client, normalise)
    if samples.remark:
        log.warning("%s", samples.remark)
    return samples


def federation_in_memory(
    clients: Any, label: str | None, client: str | None, plan: SplitPlan, normalise: str, new_clients: int
) -> Federation:
    """A federation of these clients, split and scaled, which is logged; a `Federation` as it is."""
    if normalise not in NORMALISED:
        raise unknown("normalise", normalise, NORMALISED)
    kind = _kind(clients, label, client)
    federation: Federation
    if kind == "federation":
        federation = clients
        return federation
    if kind == "arrays":
        federation = from_objects(clients, validation=plan.validation, test=plan.test, seed=plan.seed, split=plan.split)
        return _standardised(federation, normalise)
    samples = samples_in_memory(clients, label, client, normalise)
    federation = from_samples(samples, plan, clients=0, partition=None, fallback=IID(), new_clients=new_clients)
    if note := federation.standardisation_note("normalise='none'"):
        log.warning("%s", note)
    return federation


def _standardised(federation: Federation, normalise: str) -> Federation:
    """A table with standardised columns, which is logged; images with scaled bytes; any other federation as it is."""
    if normalise == "columns" and federation.x.ndim != 2:
        raise DataError(f"normalise='columns' is for tables, but a sample is {tuple(federation.x.shape[1:])}")
    if federation.codes:
        ways = {"auto": ("x",), "columns": ("client",), "none": ()}
        federation = with_standardised(federation, ways[normalise])
    elif normalise == "none" or not (normalise == "columns" or is_table(federation.x)):
        return federation if normalise == "none" else with_scaled_pixels(federation)
    else:
        federation = with_standardised(federation, ("client",))
    log.warning("%s", federation.standardisation_note("normalise='none'"))
    return federation
