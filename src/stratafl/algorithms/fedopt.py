"""FedOpt (Reddi et al., 2021): FedAvg whose server treats the mean update as a gradient for Adam, Yogi or momentum."""

from dataclasses import replace
from typing import Annotated, Literal

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range, Tune
from stratafl.core.layerwise import Layerwise
from stratafl.policies import LocalTraining, ServerOptimizer


@method(
    "global",
    paper="Reddi et al., 2021",
    title="Adaptive Federated Optimization",
    also=("FedAdam", "FedYogi", "FedAvgM"),
)
def fedopt(
    *,
    optimizer: Literal["adam", "yogi", "momentum"] = "adam",
    server_lr: Annotated[float, Range(above=0), Tune(1e-3, 1.0, log=True)] | None = None,
    beta1: Annotated[float, Range(least=0, below=1), Tune(choices=(0.0, 0.9))] = 0.9,
    beta2: Annotated[float, Range(least=0, below=1), Tune(choices=(0.9, 0.99, 0.999))] = 0.99,
    tau: Annotated[float, Range(least=1e-8), Tune(1e-5, 1e-1, log=True)] = 1e-3,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """Algorithm 2: θ ← θ + η·m/(√v + τ), with m and v the running means of Δ̄ and Δ̄² (`momentum`: θ ← θ + η·m).

    The server's `optimizer` is adam, yogi or momentum; `beta1` and `beta2` are the weights of the past in m and v,
    `tau` is τ. Left open, η = `server_lr` is 1 for momentum and 0.01 for the others, whose steps do not shrink with Δ̄.
    """
    lr = (1.0 if optimizer == "momentum" else 0.01) if server_lr is None else server_lr
    step = ServerOptimizer(optimizer=optimizer, lr=lr, beta1=beta1, beta2=beta2, tau=tau)
    return replace(fedavg(train=train), merge=(step,))
