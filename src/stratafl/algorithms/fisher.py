"""The trace of a client's empirical Fisher information: F_k = Σ_batches ‖∇ mean NLL‖², at the current model.

The sum is taken along a descent at rate 0, so it is batched and captured as training is.
"""

from dataclasses import replace

from torch import Tensor

from stratafl.core.layout import Layout, Rows
from stratafl.core.objectives import Batch, Frozen, Loss, Net, cross_entropies
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.steps import Train
from stratafl.core.task import Gradients, Task
from stratafl.policies import LocalTraining
from stratafl.policies.descent import Fields, GradientAt

TRACE_FLOOR = 1e-30  # far below the trace of a client that has one


def fisher_trace(batch: int) -> tuple[Train, ...]:
    """The steps that give the field `fisher`, over all trained layers and the training samples in their order."""
    along = LocalTraining(0.0, 1, batch, objective=Likelihood(), shuffle=False, purpose="fisher")
    return StartTrace(), replace(along, gradient=SquaredNorm(), follow=(AddNorm(),))


@record
class Likelihood:
    """The mean negative log-likelihood of the model in evaluation mode."""

    frozen = constants = carries = ()

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        return batch.mean(cross_entropies(net(row, batch.x, train=False), batch.y)), carry, {}


@record
class StartTrace(Train):
    """F_k before the first batch: nothing that counts, but in proportion to n_k, which decides if all traces are 0."""

    reads = ("theta",)
    writes = ("fisher",)

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        like = next(iter(rows_of(client, "theta").values()))
        return {"fisher": TRACE_FLOOR * task.sizes().to(like.dtype)}


@record
class SquaredNorm:
    """The gradient at the row, and its squared norm."""

    reads = ()
    gives = ("squared norm",)
    draws = 1

    def __call__(self, gradient: GradientAt, row: Rows, client: Fields, layout: Layout) -> tuple[Gradients, State]:
        out = gradient(row)
        return out, {"squared norm": layout.dot(out.rows, out.rows).sum(1)}


@record
class AddNorm:
    """F_k grows by the squared norm of every batch."""

    reads = ("squared norm",)
    writes = ("fisher",)

    def __call__(self, row: Rows, client: Fields, layout: Layout, rate: Tensor) -> State:
        return {"fisher": tensor_of(client, "fisher") + tensor_of(client, "squared norm")}
