"""Algorithms with one thing wrong each, for the contract to catch."""

from dataclasses import replace

import torch

from stratafl.algorithms import fedavg, fedper
from stratafl.core.algorithm import Algorithm, Work
from stratafl.core.fields import Number, Start
from stratafl.core.layers import Select, select
from stratafl.core.parcel import Field, LayerMask, Parcel
from stratafl.core.records import record
from stratafl.core.state import rows_of
from stratafl.core.steps import MergeRows, MergeSums, Mix, Send, Serve, Train
from stratafl.policies import Broadcast, Deliver, LocalTraining, Take


class Delegate(Algorithm):
    """An algorithm that does what another does, so that a mutant can do one thing differently."""

    def __init__(self, inner):
        self.inner = inner

    def init(self, setup):
        return self.inner.init(setup)

    def enrol(self, setup, ids):
        return self.inner.enrol(setup, ids)

    def download(self, rnd, server, ids, new=False):
        return self.inner.download(rnd, server, ids, new)

    def receive(self, rnd, client, parcel, task):
        return self.inner.receive(rnd, client, parcel, task)

    def work(self, rnd, client, task):
        return self.inner.work(rnd, client, task)

    def open(self, rnd, server, uploads, ids):
        return self.inner.open(rnd, server, uploads, ids)

    def fold(self, rnd, server, total, uploads, ids):
        return self.inner.fold(rnd, server, total, uploads, ids)

    def absorb(self, rnd, server, total):
        return self.inner.absorb(rnd, server, total)


@record
class BroadcastDense(Serve):
    """The whole model with a mask that says that only some layers are sent."""

    layers: Select = select("base")
    reads = ("theta",)
    writes = ("down.theta",)

    def __call__(self, rnd, server, ids):
        return {"theta": Field(rows_of(server, "theta"), True, LayerMask(rnd.layout.layer_mask(self.layers)))}


@record
class TakeEverything(Mix):
    """Reads the unsent head as well."""

    reads = ("down.theta",)
    writes = ("theta",)

    def __call__(self, rnd, client, down, task):
        rows = down["theta"].rows
        return {"theta": {n: x.expand(len(task), *x.shape) for n, x in rows.items()}}


def dense_fedper(mix):
    return replace(
        fedper(),
        serve=(BroadcastDense(),),
        mix=(mix,),
        server=fedavg().server,
        client={"theta": Start()},
    )


def honest_reader():
    return dense_fedper(Take())


def reads_unsent_head():
    return dense_fedper(TakeEverything())


@record
class Noise(Train):
    """Adds noise to the model, drawn from a key per client, or per place in the cohort."""

    by_position: bool
    reads = writes = ("theta",)

    def __call__(self, rnd, client, task):
        who = torch.arange(len(task)) if self.by_position else task.ids
        noise = rnd.keys(who, "noise").double() / 2.0**70
        rows = rows_of(client, "theta")
        return {"theta": {n: x + noise.reshape(-1, *(1,) * (x.ndim - 1)) for n, x in rows.items()}}


def noise(*, by_position):
    return replace(fedavg(), train=(LocalTraining(), Noise(by_position)))


@record
class WritesIntoItsInput(Train):
    reads = writes = ("anchor",)

    def __call__(self, rnd, client, task):
        for x in rows_of(client, "anchor").values():
            x.add_(0.001)
        return {}


@record
class CopyToAnchor(Mix):
    reads = ("theta",)
    writes = ("anchor",)

    def __call__(self, rnd, client, down, task):
        return {"anchor": {n: x.clone() for n, x in rows_of(client, "theta").items()}}


def mutates_its_input():
    return replace(fedavg(), mix=(Take(), CopyToAnchor()), train=(WritesIntoItsInput(), LocalTraining()))


@record
class Sneaky(Train):
    """Uses a field that it does not declare."""

    reads = writes = ("theta",)

    def __call__(self, rnd, client, task):
        return {"theta": {n: x + 0 * client["extra"].mean() for n, x in rows_of(client, "theta").items()}}


@record
class Generous(Train):
    """Gives a field that it does not declare."""

    reads = writes = ("theta",)

    def __call__(self, rnd, client, task):
        return {"theta": client["theta"], "extra": client["theta"]}


def undeclared(step):
    return replace(fedavg(), train=(step, LocalTraining()), client={**fedavg().client, "extra": Number(1.0)})


class ThinField(Field):
    """Says that nothing of it was sent, and sends it all the same."""

    def sent(self, layout):
        return {n: torch.zeros((), dtype=torch.bool).expand(x.shape) for n, x in self.rows.items()}


@record
class UploadThin(Send):
    reads = ("theta",)
    writes = ("up.theta", "up.samples")

    def __call__(self, rnd, client, task):
        rows = {n: x for n, x in rows_of(client, "theta").items() if n in rnd.layout.travelling()}
        return {"theta": ThinField(rows), "samples": Field(task.sizes("train"))}


def declares_wrong_bytes():
    return replace(fedavg(), send=(UploadThin(),))


class SendsWhatNobodyReads(Delegate):
    """Tells the server how many samples of each class a client has, or clients what they do not need."""

    def __init__(self, inner, way):
        super().__init__(inner)
        self.way = way

    def download(self, rnd, server, ids, new=False):
        down = self.inner.download(rnd, server, ids, new)
        return Parcel({**down, "round": Field(torch.tensor(rnd.t), common=True)}) if self.way == "down" else down

    def work(self, rnd, client, task):
        work = self.inner.work(rnd, client, task)
        extra = Field(task.sizes("train").double())
        return work._replace(upload=Parcel({**work.upload, "extra": extra})) if self.way == "up" else work


class SendsTypesOfItsOwn(Delegate):
    """One client sends its number of samples as another type than the others."""

    def work(self, rnd, client, task):
        work = self.inner.work(rnd, client, task)
        samples = task.sizes("train")
        if int(task.ids[0]) == 3:
            samples = samples.double()
        return work._replace(upload=Parcel({**work.upload, "samples": Field(samples)}))


class StoresAnUndeclaredLayer(Delegate):
    """Declares the head, keeps the whole model."""

    def work(self, rnd, client, task):
        kept, upload, trained = self.inner.work(rnd, client, task)
        return Work({**kept, "theta": client["theta"]}, upload, trained)


class WritesIntoWhatItOpens(Delegate):
    """Counts a sample more for every client, in the upload itself."""

    def open(self, rnd, server, uploads, ids):
        uploads["samples"].tensor.add_(1)
        return super().open(rnd, server, uploads, ids)


class AmbientRandomness(Delegate):
    """Draws from torch's own generator."""

    def work(self, rnd, client, task):
        theta = {n: x + 1e-3 * torch.randn_like(x) for n, x in client["theta"].items()}
        return self.inner.work(rnd, {**client, "theta": theta}, task)


@record
class PlainMean:
    """Averages over the batch without looking at the padding."""

    frozen = constants = carries = ()

    def __call__(self, net, row, frozen, batch, constants, carry):
        losses = torch.nn.functional.cross_entropy(net(row, batch.x), batch.y, reduction="none")
        return losses.mean(), carry, {}


def ignores_padding():
    return fedavg(train=LocalTraining(objective=PlainMean()))


@record
class StepThatReads(Train):
    reads = writes = ("theta",)

    def __call__(self, rnd, client, task):
        def step(carry, held, stack):
            rate = 0.1 if stack.x.sum().item() > 1e9 else 0.01
            gradients = task.gradients(carry["theta"], stack).rows
            return {"theta": {n: x - rate * gradients[n] if n in gradients else x for n, x in carry["theta"].items()}}

        return task.scan(step, {"theta": client["theta"]}, batch=10)


def reads_the_host():
    return replace(fedavg(), train=(StepThatReads(),))


@record
class LastOneWins(MergeSums):
    """Takes the upload of whoever comes last."""

    reads = ("up.theta",)
    writes = ("theta",)

    def fold(self, rnd, server, sums, up, ids):
        return {"last": {n: x[-1] for n, x in up["theta"].rows.items()}}

    def finish(self, rnd, server, sums):
        return {"theta": sums["last"]}


@record
class MeanOfChunkMeans(MergeSums):
    """Averages what each chunk averages to."""

    reads = ("up.theta",)
    writes = ("theta",)

    def fold(self, rnd, server, sums, up, ids):
        means = {n: x.mean(0) for n, x in up["theta"].rows.items()}
        top = sums.get("top")
        count = sums.get("count", torch.zeros(()))
        return {"top": means if top is None else {n: top[n] + x for n, x in means.items()}, "count": count + 1}

    def finish(self, rnd, server, sums):
        return {"theta": {n: x / sums["count"] for n, x in sums["top"].items()}}


def last_one_wins():
    return replace(fedavg(), merge=(LastOneWins(),))


def mean_of_chunk_means():
    return replace(fedavg(), merge=(MeanOfChunkMeans(),))


@record
class RowsOfAll(MergeRows):
    """Each upload replaces the row of whoever sent it."""

    reads = ("up.theta", "theta")
    writes = ("theta",)

    def absorb(self, rnd, server, up, ids):
        sent = up["theta"].rows
        return {"theta": {n: x.index_copy(0, ids, sent[n]) for n, x in rows_of(server, "theta").items()}}


def keeps_rows(*, welcome=()):
    """A server that gives each client its own row back, and new clients whatever `welcome` says."""
    server = {"theta": Start(per_client=True)}
    return replace(fedavg(), serve=(Deliver(),), merge=(RowsOfAll(),), server=server, welcome=welcome)


@record
class FirstRow(Serve):
    reads = ("theta",)
    writes = ("down.theta",)

    def __call__(self, rnd, server, ids):
        return {"theta": Field({n: x[0] for n, x in rows_of(server, "theta").items()}, common=True)}


@record
class RateOfOne(Serve):
    """Looks up a number by the client's id, of which the server has as many as clients."""

    reads = ("rates",)
    writes = ("down.rates",)

    def __call__(self, rnd, server, ids):
        return {"rates": Field(server["rates"][ids])}


def looks_up_numbers_by_id():
    server = {**fedavg().server, "rates": Number(1.0, width="clients")}
    return replace(fedavg(), serve=(Broadcast(), RateOfOne()), mix=(Take(), Take("rates")), server=server)


class ForgetsNewClients(Delegate):
    """Does to a client that it does not know what it does to no other."""

    def __init__(self, inner, how):
        super().__init__(inner)
        self.how = how

    def receive(self, rnd, client, parcel, task):
        state = self.inner.receive(rnd, client, parcel, task)
        if int(task.ids.max()) < rnd.setup.clients:
            return state
        shift = {"nan": torch.nan, "group": 0.01 * len(task)}[self.how]
        return {**state, "theta": {n: x + shift for n, x in state["theta"].items()}}


class RemembersNewClients(Delegate):
    """Changes the server's state when a new client asks."""

    def download(self, rnd, server, ids, new=False):
        if new:
            server["theta"]["fc.bias"].add_(1.0)
        return self.inner.download(rnd, server, ids, new)


class HidesState(Delegate):
    """Remembers in a Python attribute what it does not declare."""

    rounds_seen = 0

    def absorb(self, rnd, server, total):
        self.rounds_seen += 1
        state = self.inner.absorb(rnd, server, total)
        return {"theta": {n: x + 1e-3 * self.rounds_seen for n, x in state["theta"].items()}}


class TouchesOutsiders(Delegate):
    """Writes into the state it is shown for evaluation."""

    def deploy(self, rnd, client, task):
        rows = client["theta"]
        for name in self.inner.client["theta"].names(rnd.layout, "client"):
            rows[name].add_(1.0)
        return rows


class CountsWhomItServed(Delegate):
    """Moves the server by how many clients it served, instead of by how many uploads it has."""

    served = 0

    def download(self, rnd, server, ids, new=False):
        self.served = len(ids) if len(ids) > 1 else self.served  # one is that of a rehearsal
        return self.inner.download(rnd, server, ids, new)

    def absorb(self, rnd, server, total):
        state = self.inner.absorb(rnd, server, total)
        return {"theta": {n: x + 1e-3 * self.served for n, x in state["theta"].items()}}


class MarksItsTensors(Delegate):
    """Remembers in an attribute of a tensor what no file holds."""

    def absorb(self, rnd, server, total):
        state = self.inner.absorb(rnd, server, total)
        rounds = getattr(server["theta"]["fc.bias"], "rounds", 0) + 1
        moved = {n: x + 1e-3 * rounds for n, x in state["theta"].items()}
        moved["fc.bias"].rounds = rounds
        return {"theta": moved}


def draws_nothing():
    return replace(fedavg(), train=())
