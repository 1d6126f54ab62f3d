"""How alike the same layer of different clients sees the same samples: linear CKA (Kornblith et al., 2019)."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from stratafl.layout import Layout, Rows


def cka(features: Tensor) -> Tensor:
    """`[C, C]` similarities, from 0 to 1, of features `[C, n, d]` of the same n samples.

    ‖Yᵀ·X‖²/(‖Xᵀ·X‖·‖Yᵀ·Y‖) of centred features, which is the cosine of their n × n Gram matrices.
    """
    centred = (features - features.mean(1, keepdim=True)).double()
    gram = torch.bmm(centred, centred.transpose(1, 2)).flatten(1)
    unit = gram / gram.norm(dim=1, keepdim=True).clamp(min=torch.finfo(gram.dtype).tiny)
    similar: Tensor = unit @ unit.T
    return similar


def mean_similarity(similar: Tensor) -> float | None:
    """The mean over pairs of different clients; None for a single one."""
    count = len(similar)
    return float((similar.sum() - similar.diagonal().sum()) / (count * (count - 1))) if count > 1 else None


def activations(template: nn.Module, rows: Rows, samples: Tensor, layout: Layout) -> Mapping[str, Tensor]:
    """What each layer of each client's model gives for the same samples: `[C, n, d]` by the layer's name."""
    module = copy.deepcopy(template).to(samples.device).eval()
    seen: dict[str, Tensor] = {}
    found: dict[str, list[Tensor]] = {}
    handles = [
        sub.register_forward_hook(lambda _, __, out, name=name: _see(seen, name, out))
        for name, sub in module.named_modules()
        if name in layout.index
    ]
    for client in range(len(next(iter(rows.values())))):
        module.load_state_dict({name: block[client] for name, block in rows.items()}, strict=False)
        with torch.no_grad():
            module(samples)
        for name, out in seen.items():
            found.setdefault(name, []).append(out)
    for handle in handles:
        handle.remove()
    return {name: torch.stack(outs) for name, outs in found.items()}


def _see(seen: dict[str, Tensor], name: str, out: object) -> None:
    first = out[0] if isinstance(out, tuple) else out  # a recurrent layer gives its states as well
    if isinstance(first, Tensor):
        seen[name] = first.detach().flatten(1).clone()
