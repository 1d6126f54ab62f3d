"""Accuracy: what a client knows about how good its model is."""

from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of
from stratafl.core.steps import Train
from stratafl.core.task import Task
from stratafl.errors import RecordError


@record
class Accuracy(Train):
    """A_k: the accuracy of the client's model on its own split; kept for its next round."""

    split: str = "train"
    reads = ("theta",)
    writes = ("accuracy",)
    scores = True

    @property
    def splits(self) -> tuple[str, ...]:
        return (self.split,)

    def check(self, setup: Setup) -> None:
        """Refuse numbers as targets: nothing would ever be correct."""
        if setup.classes is None:
            raise RecordError("an accuracy needs classes, and the targets of this data are numbers")

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        """A number from 0 to 1 per client."""
        theta = rows_of(client, "theta")
        return {"accuracy": task.scores(theta, self.split).accuracy.to(next(iter(theta.values())).dtype)}
