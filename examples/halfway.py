"""Halfway: FedAvg whose clients start each round between the model they receive and the layers they kept."""

from dataclasses import replace

from stratafl.methods import LocalTraining, Mix, Select, Start, Take, fedavg, record, rows_of, select


@record
class Halfway(Mix):
    """θ_kept ← share · own + (1 − share) · received; all other layers are the received ones."""

    layers: Select = select("head")
    share: float = 0.5
    reads = ("theta", "down.theta")  # a field of the client state, and one of the download
    writes = ("theta",)

    def __call__(self, rnd, client, down, task):
        own = rows_of(client, "theta")  # what the client kept: blocks [C, …] by tensor name
        model = Take()(rnd, client, down, task)["theta"]  # what it received, complete
        kept = [name for name in rnd.layout.trainable(self.layers) if name in own]
        mixed = {name: self.share * own[name] + (1 - self.share) * model[name] for name in kept}
        return {"theta": {**model, **mixed}}


def halfway(*, personal="head", share: float = 0.5, train=LocalTraining()):
    """FedAvg with another `mix`, and clients that keep these layers."""
    kept = select(personal)
    return replace(fedavg(train=train), mix=(Halfway(kept, share),), client={"theta": Start(kept)})
