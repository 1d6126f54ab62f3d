"""Cosines of rows from the inner products that `Layout.gram` and `Layout.cross` give."""

import torch
from torch import Tensor


def cosines(gram: Tensor) -> Tensor:
    """`[L, C, C]` cosines from inner products; 0 with an update of norm 0."""
    norms = gram.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    return cosines_between(gram, norms, norms)


def cosines_between(products: Tensor, norms: Tensor, others: Tensor) -> Tensor:
    """`[L, C, N]` cosines from the inner products of C rows with N others, and the norms `[L, C]` and `[L, N]`."""
    scale = norms[:, :, None] * others[:, None, :]
    return torch.where(scale > 0, products / scale.clamp(min=torch.finfo(products.dtype).tiny), 0)


def conflicting_pairs(gram: Tensor, xi: float) -> Tensor:
    """GC_ξ(l) = #{u < v : cos(h_{l,u}, h_{l,v}) < ξ} (FedLAG, Eq. 3), from Gram matrices `[L, C, C]`."""
    return (cosines(gram) < xi).triu(1).sum((1, 2))
