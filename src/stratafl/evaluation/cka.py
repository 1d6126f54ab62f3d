"""How similar a layer's outputs are across clients on the same samples: linear CKA (Kornblith et al., 2019)."""

import copy
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from stratafl.core.layers import Layer
from stratafl.core.layout import Layout, Rows


def cka(features: Tensor) -> Tensor:
    """`[C, C]` similarities, from 0 to 1, of features `[C, n, d]` of the same n samples.

    ‖Yᵀ·X‖²/(‖Xᵀ·X‖·‖Yᵀ·Y‖) of centred features, which is the cosine of their n × n Gram matrices.
    """
    return similarities(centred_gram(features))


def centred_gram(features: Tensor) -> Tensor:
    """`[…, n, n]` in float64: the products of the samples' centred features `[…, n, d]`."""
    features = features.double()
    centred = features - features.mean(-2, keepdim=True)
    return centred @ centred.transpose(-2, -1)


def similarities(grams: Tensor) -> Tensor:
    """`[C, C]`: the cosines of centred Gram matrices `[C, n, n]`."""
    flat = grams.flatten(1)
    unit = flat / flat.norm(dim=1, keepdim=True).clamp(min=torch.finfo(flat.dtype).tiny)
    similar: Tensor = unit @ unit.T
    return similar


def mean_similarity(similar: Tensor) -> float | None:
    """The mean over pairs of different clients; None for a single one."""
    count = len(similar)
    return float((similar.sum() - similar.diagonal().sum()) / (count * (count - 1))) if count > 1 else None


def grams(template: nn.Module, rows: Rows, samples: Tensor, layout: Layout) -> Mapping[str, Tensor]:
    """Of what each layer of each client's model gives for the same samples: `[C, n, n]` by the layer's name."""
    module = copy.deepcopy(template).to(samples.device).eval()
    seen: dict[str, Tensor] = {}
    outputs: dict[str, list[Tensor]] = {}
    for layer in layout.layers:
        path = outlet(layer, module)
        if path:
            module.get_submodule(path).register_forward_hook(partial(_see, seen, layer.name, len(samples)))
    for client in range(len(next(iter(rows.values())))):
        module.load_state_dict({name: block[client] for name, block in rows.items()}, strict=False)
        seen.clear()
        with torch.no_grad():
            module(samples)
        for name, out in seen.items():
            outputs.setdefault(name, []).append(out)
    return {name: torch.stack(outs) for name, outs in outputs.items()}


def outlet(layer: Layer, module: nn.Module) -> str:
    """The module whose output is the layer's: the smallest that holds all its tensors, or else the last with some."""
    owners = [tensor.rpartition(".")[0] for tensor in layer.tensors]
    path = owners[0]
    while path and not all(f"{owner}.".startswith(f"{path}.") for owner in owners):
        path = path.rpartition(".")[0]
    called = type(module.get_submodule(path)).forward is not nn.Module.forward  # a ModuleList has no forward of its own
    return path if path and called else owners[-1]


def _see(seen: dict[str, Tensor], name: str, samples: int, module: nn.Module, inputs: object, out: object) -> None:
    first = out[0] if isinstance(out, tuple) else out  # a recurrent layer gives its states as well
    # A layer that is not given samples, such as GPFL's valve of a condition, has nothing to compare.
    if isinstance(first, Tensor) and first.ndim > 1 and len(first) == samples:
        # Features of all clients and layers would not fit; n² numbers do, and an in-place activation cannot touch them.
        seen[name] = centred_gram(first.detach().flatten(1))
