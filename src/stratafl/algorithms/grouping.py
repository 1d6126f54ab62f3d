"""Groups of clients whose updates are alike, and how much each layer of a group moves, as FedALP forms them."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stratafl.core.layout import Layout, per_row
from stratafl.core.reduce import add_rows_by_group
from stratafl.core.state import Computed


def ward(similarity: Tensor, groups: int, features: str = "cosine") -> Tensor:
    """The group of each client: Ward's clustering, with its similarities to everybody as its features.

    An update that overflowed is like none: similar to nobody but itself.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # only whoever forms groups needs scipy
    from scipy.spatial.distance import pdist

    count = len(similarity)
    if count == 1:
        return torch.zeros(1, dtype=torch.int64)
    x: NDArray[np.float64] = similarity.double().cpu().nan_to_num(0.0).clamp(-1, 1).fill_diagonal_(1.0).numpy()
    between = pdist(np.arccos(x) if features == "angle" else x)  # of rows: a matrix of angles is not of distances
    labels = fcluster(linkage(between, "ward"), t=groups, criterion="maxclust")
    return torch.from_numpy(labels.astype(np.int64)) - 1


def shares(delta: Mapping[str, Tensor], samples: Tensor, labels: Tensor, groups: int, layout: Layout) -> Tensor:
    """δ_m/max δ_m, δ_m^(l) = ‖Σ_{k∈G_m} γ_k·Δw_k^(l)‖₂ (Eq. 5–8 without β): `[M, L]`; 0 where a group stays."""
    gamma = samples.double() / samples.sum()  # a quotient of whole numbers would be rounded to float32
    places = labels.to(samples.device)
    D = Computed(delta, lambda n: add_rows_by_group({}, places, groups, gamma, {n: delta[n]})[n])  # Eq. 5
    lengths = layout.norms(D)  # δ_m, Eq. 6–7
    longest = lengths.max(1, keepdim=True).values
    return torch.where(longest > 0, lengths / longest.clamp(min=torch.finfo(lengths.dtype).tiny), 0)


def without_overflow(delta: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The updates, with 0 for a client in whose update anything is not finite: it would make everybody's NaN.

    Each is computed anew whenever it is asked for, and only then.
    """
    finite = torch.stack([torch.stack([row.isfinite().all() for row in delta[name]]) for name in delta]).all(0)

    def block(name: str) -> Tensor:
        x = delta[name]
        return x if bool(finite.all()) else x.masked_fill(~per_row(finite, x), 0)

    return Computed(delta, block)
