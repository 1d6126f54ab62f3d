"""FedAvg, FedPer and HeurpFedLA with each compression, five rounds of half the clients, against plain loops."""

import pytest
import torch
from oracle_loops import Phase, assert_same_models, convnorm, images
from plain_compression import Compressed, CompressedPFedLA
from plain_pfedla import TRAIN as WHOLE

from stratafl.algorithms import algorithm
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.testing import CLASSES, SHAPE, difference, tiny_federation
from tiers import slow_and_nightly

pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.budget(0.9, "some rounds beside a plain loop")]

TRAIN = LocalTraining(lr=0.1, epochs=1, batch=10, momentum=0.9)
QUICK = {"hyper_lr": 0.5, "initial": "drawn", "embedding": 6, "width": 5, "depth": 2, "train": WHOLE}
MIN_SIZE = 5  # BatchNorm's four weights and the head's three biases travel as they are
CASES = [("q8", False), ("q4", False), ("q4", True), ("topk", True), ("topk", False)]
MEANS = [
    ("fedavg", "q4", True),
    ("fedper", "topk", True),
    *slow_and_nightly(
        [("fedavg", *case) for case in CASES if case != ("q4", True)]
        + [("fedper", *case) for case in CASES if case != ("topk", True)]
    ),
]
RETAINED = [
    ("topk", True, 1, ()),
    *slow_and_nightly((*case, None, ("conv2",)) for case in CASES),
    *slow_and_nightly((*case, 1, ()) for case in CASES if case != ("topk", True)),
]
PERSONAL = {"fedavg": (), "fedper": ("fc",)}


@pytest.mark.parametrize(("host", "how", "feedback"), MEANS)
def test_a_mean_of_what_is_compressed(host, how, feedback):
    method = algorithm(f"{host}+{how}", feedback=feedback, min_size=MIN_SIZE, train=TRAIN)
    options = {"rounds": 5, "participation": 0.5}
    sim = simulation(method, images(), convnorm(), engine="stacked", dtype=torch.float64, buffers="follow", **options)
    plain = Compressed(images(), convnorm(), (Phase(TRAIN),), PERSONAL[host], **options)
    plain.compressing(how, feedback, MIN_SIZE).run()
    progress = sim.run(Matrix())
    assert_same_models(sim, progress, plain)
    for k, sender in enumerate(plain.senders):
        mine = progress.clients[k]["theta.residual"] if feedback and k in progress.clients else {}
        for name, x in mine.items():
            owed = sender.left.get(name, torch.zeros(sim.setup.layout.specs[name].shape, dtype=torch.float64))
            assert difference({"": x.reshape(owed.shape)}, {"": owed}) < 1e-10
    assert len({tuple(sim.setup.sampled(t).tolist()) for t in range(5)}) > 1


@pytest.mark.parametrize(("how", "feedback", "k", "retained"), RETAINED)
def test_heurpfedla_mixes_what_is_compressed(how, feedback, k, retained):
    chosen = {"k": k} if k else {"retained": "+".join(retained)}
    method = algorithm(f"heurpfedla+{how}", feedback=feedback, min_size=MIN_SIZE, **chosen, **QUICK)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = build("convnorm", shape=SHAPE, classes=CLASSES, channels=3, dropout=0.0)
    data = tiny_federation((14, 11, 7, 20))
    sim = simulation(method, data, model, rounds=5, participation=0.5, dtype=torch.float64, buffers="follow")
    progress = sim.run(Matrix())
    plain = CompressedPFedLA(sim, lr=0.5, k=k or 0, retained=retained).compressing(how, feedback, MIN_SIZE)
    for t in range(5):
        plain.round(t)
    rows = received_models(sim, progress, torch.arange(4))
    for i in range(4):
        expected = {n: x for n, x in plain.received(i).state_dict().items() if x.is_floating_point()}
        assert difference({n: x[i] for n, x in rows.items()}, expected) < 1e-10
        held = {n: x for n, x in plain.stored[i].items() if x.is_floating_point()}
        assert difference({n: x[i] for n, x in progress.server["rows"].items()}, held) < 1e-10
        assert difference({n: progress.server[n][i] for n in plain.hyper[i]}, plain.hyper[i]) < 1e-10
    own = [max(float((m.state_dict()[n] - s[n]).abs().max()) for n in ("conv1.weight", "fc.weight"))
           for m, s in zip(plain.models, plain.stored, strict=True)]  # fmt: skip
    assert max(own) > 1e-4  # what the server has is not what clients have
