"""Cross-site evaluation: the model of every client on the held-out samples of every other client.

Only the model travels. Samples are as their own client prepares them, so a client that standardises columns by its own
training samples does so for the models of others, too, and the diagonal is each client's own score.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stratafl.core.reprs import holder
from stratafl.errors import DataError
from stratafl.evaluation.evaluate import client_models
from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import row_predictions
from stratafl.execute.simulation import Progress, Simulation

MAX_CLIENTS = 200  # every further client is as many models on its samples, and as many clients for its model


@holder
class CrossSite:
    """`values[i, j]`: the metric of the model of client i on the samples of client j; NaN where it is not defined."""

    metric: str
    split: str
    names: tuple[str, ...]
    values: Tensor  # float64 [N, N]

    def _about(self) -> str:
        return f"{self.metric} of {len(self.names)} models on {self.split} samples of {len(self.names)} clients"

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.names), len(self.names)):
            raise DataError(f"a cross-site table of {len(self.names)} clients has shape {tuple(self.values.shape)}")

    def to_table(self) -> dict[str, Any]:
        """For JSON, which has no NaN."""
        values = [[value if value == value else None for value in row] for row in self.values.tolist()]
        return {"metric": self.metric, "split": self.split, "names": list(self.names), "values": values}


def cross_site_from(table: Mapping[str, Any]) -> CrossSite:
    """The record of a table; a LookupError, TypeError, ValueError or DataError if it is none."""
    metric, split, names = str(table["metric"]), str(table["split"]), tuple(map(str, table["names"]))
    rows = [[float("nan") if value is None else float(value) for value in row] for row in table["values"]]
    return CrossSite(metric, split, names, torch.tensor(rows, dtype=torch.float64))


def cross_site(
    sim: Simulation,
    progress: Progress,
    metric: Metric,
    ids: Sequence[int],
    split: str = "test",
    stage: str = "deployed",
) -> CrossSite:
    """The models of these clients on each other's samples, as many models at a time as memory allows."""
    if not ids or len({*ids}) < len(ids) or max(ids) >= sim.setup.clients:
        raise DataError("a cross-site table needs one or more different clients of those that took part in training")
    if len(ids) > MAX_CLIENTS:
        taken = f"a cross-site table of {len(ids):,} clients takes {len(ids) ** 2:,} evaluations"
        raise DataError(f"{taken}: choose at most {MAX_CLIENTS} clients")
    place, every = {client: at for at, client in enumerate(ids)}, torch.tensor(list(ids))
    values = torch.full((len(ids), len(ids)), torch.nan, dtype=torch.float64)
    with sim.arithmetic():
        for some in client_models(sim, progress, sim.checked(every)):
            rows, models = some.rows(stage), torch.tensor([place[client] for client in some.ids.tolist()])
            for shift in range(len(ids)):  # every model has the samples of another client, all at a time
                others = (models + shift) % len(ids)
                scores = row_predictions(sim, some.rnd, rows, every[others], split).by_client(metric)
                for model, samples in zip(models.tolist(), others.tolist(), strict=True):
                    values[model, samples] = scores.get(ids[samples], torch.nan)
    names = tuple(sim.runtime.federation.client_name(client) for client in ids)
    return CrossSite(metric.name, split, names, values)
