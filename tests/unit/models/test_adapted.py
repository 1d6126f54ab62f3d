"""Models of others: named inputs, outputs that are more than a tensor, one logit for two classes."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from math import exp, log

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import stratafl
from stratafl.algorithms import fedavg, fedper, fedrod
from stratafl.core.objectives import cross_entropies
from stratafl.data import from_clients
from stratafl.data.preprocessing import preprocessing_from
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import DataError, ModelError, StrataError
from stratafl.models import AdaptedModel, own_model
from stratafl.models.adapted import logits_of, two_logits

Record = namedtuple("Record", ["logits", "attentions"])


@dataclass
class Output:
    """As libraries return it."""

    loss: None
    logits: Tensor


FORMS = {
    "tensor": lambda z: z,
    "tuple": lambda z: (z, z.sum()),
    "dict": lambda z: {"hidden": z + 1, "logits": z},
    "only": lambda z: {"scores": z},
    "record": lambda z: Record(z, None),
    "object": lambda z: Output(None, z),
    "ordered": lambda z: OrderedDict(loss=z.sum(), logits=z),
}


class Classifier(nn.Module):
    """A mean of embeddings of the tokens that count, and a head; outputs in a form of its own."""

    def __init__(self, form="tensor", classes=3):
        super().__init__()
        self.form = form
        self.embedding, self.fc = nn.Embedding(12, 5), nn.Linear(5, classes)

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        weight = mask.to(self.fc.weight.dtype).unsqueeze(-1)
        return FORMS[self.form](self.fc((self.embedding(input_ids) * weight).sum(1) / weight.sum(1)))


def tokens(count=12, seed=0, classes=3):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 12, (count, 4))
    mask = np.ones_like(ids)
    mask[::2, 3] = 0
    return {"input_ids": ids, "attention_mask": mask}, ids[:, 0] % classes


def clients(named=True, **options):
    pairs = [tokens(seed=seed, **options) for seed in (0, 1)]
    return pairs if named else [(x["input_ids"], y) for x, y in pairs]


def fitted(model, data, algorithm=None, **options):
    torch.manual_seed(0)
    return stratafl.fit(algorithm or fedavg(), data, model, rounds=1, **options)


def seeded(form="tensor", classes=3):
    torch.manual_seed(0)
    return Classifier(form, classes)


@pytest.mark.parametrize("form", list(FORMS)[1:])
def test_the_form_of_outputs_changes_no_number(form):
    z = torch.randn(3, 2)
    assert logits_of(FORMS[form](z), "Model") is z


def test_named_inputs_and_their_outputs_train_as_a_plain_model():
    """With a mask of ones the named model is the plain one, and gives the same bits."""
    plain = fitted(seeded(), clients(named=False))
    ones = [({**x, "attention_mask": np.ones_like(x["input_ids"], dtype=bool)}, y) for x, y in clients()]
    named = fitted(seeded("object"), ones)
    samples = tokens(5, seed=3)[0]
    whole = {**samples, "attention_mask": np.ones_like(samples["input_ids"])}
    assert torch.equal(named.client(1).outputs(whole), plain.client(1).outputs(samples["input_ids"]))
    assert not torch.equal(named.client(1).outputs(samples), named.client(1).outputs(whole))
    assert isinstance(named.client(0).model, Classifier)
    assert named.sim.setup.layout.names == plain.sim.setup.layout.names == ("embedding", "fc")
    again = preprocessing_from(SampleFormat.of(named.sim.runtime.federation).to_table()["preprocessing"])
    assert again.inputs == ("input_ids", "attention_mask")


def test_named_inputs_come_in_splits_and_datasets():
    class Items(Dataset):
        def __init__(self, pair):
            self.x, self.y = pair

        def __len__(self):
            return len(self.y)

        def __getitem__(self, place):
            return {name: torch.from_numpy(x[place]) for name, x in self.x.items()}, int(self.y[place])

    plain, items = from_clients(clients(), seed=1), from_clients([Items(pair) for pair in clients()], seed=1)
    assert torch.equal(items.x, plain.x)
    assert items.input_names == plain.input_names == ("input_ids", "attention_mask")
    turned = [({"attention_mask": x["attention_mask"], "input_ids": x["input_ids"]}, y) for x, y in clients()]
    assert torch.equal(from_clients([clients()[0], turned[1]], seed=1).x, plain.x)
    splits = fitted(seeded("dict"), [{"train": pair, "test": pair} for pair in clients()])
    assert splits.sim.runtime.federation.x.shape == (48, 2, 4)


def test_one_logit_is_the_binary_cross_entropy():
    """By hand: for z = ln 3 class 1 has probability 3/4, so the losses are ln 4 and ln (4/3)."""
    z = torch.tensor([log(3.0), log(3.0), -2.0])
    y = torch.tensor([0, 1, 1])
    by_hand = torch.tensor([log(4.0), log(4 / 3), log(1 + exp(2.0))])
    assert torch.allclose(cross_entropies(two_logits(z), y), by_hand)
    binary = nn.functional.binary_cross_entropy_with_logits(z, y.float(), reduction="none")
    assert torch.allclose(cross_entropies(two_logits(z[:, None]), y), binary)


def test_one_logit_trains_as_two_of_which_one_stays_zero():
    """θ after a step by hand: the head's gradient is the mean of (σ(z) − y)·features."""
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5], [-1.0, 1.0]])
    y = torch.tensor([1, 0, 1, 0])
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Flatten(0))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.5, -0.25]]))
    step = stratafl.fit(
        fedavg(train=stratafl.policies.LocalTraining(lr=0.1, batch=4)), [{"train": (x, y)}], model, rounds=1,
        normalise="none",
    )  # fmt: skip
    error = torch.sigmoid(x @ torch.tensor([0.5, -0.25])) - y
    expected = torch.tensor([0.5, -0.25]) - 0.1 * (error[:, None] * x).mean(0)
    client = step.client(0)
    assert torch.allclose(client.model[0].weight[0], expected, atol=1e-6)
    assert torch.allclose(client.predict_proba(x)[:, 1], torch.sigmoid(client.model(x)))


def bad(**inputs):
    return [({**tokens()[0], **inputs}, tokens()[1])] * 2


class Sum(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.fc, self.give = nn.Linear(4, 3), give

    def forward(self, x):
        return self.give(self.fc(x.float()))


IDS = clients(named=False)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (lambda: Sum(lambda z: {"last_hidden_state": z, "pooler_output": z}), IDS),
        (lambda: Sum(lambda z: ()), IDS),
        (lambda: Sum(lambda z: ("text", z)), IDS),
        (lambda: Sum(lambda z: {}), IDS),
        (lambda: Sum(lambda z: {"logits": [1, 2]}), IDS),
        (lambda: Sum(lambda z: None), IDS),
        (lambda: Sum(lambda z: {"logits": z[:, :2]}), IDS),  # too few classes
        (lambda: Sum(lambda z: z[:, :1]), IDS),  # one logit, three classes
        (lambda: Sum(lambda z: z.unsqueeze(1)), IDS),  # a class per token
        (Classifier, bad(token_ids=tokens()[0]["input_ids"])),  # a name that forward does not take
        (Classifier, bad(labels=tokens()[1])),
        (Classifier, bad(attention_mask=np.ones((12, 5)))),  # another length
        (Classifier, bad(attention_mask=np.ones((11, 4)))),  # fewer samples
        (Classifier, bad(attention_mask=np.full((12, 4), 0.5))),  # fractions
        (Classifier, bad(attention_mask=np.full((12, 4), "a"))),
        (Classifier, bad(input_ids=tokens()[0]["input_ids"] + 12)),  # outside the table
        (Classifier, [tokens(), ({"input_ids": tokens()[0]["input_ids"]}, tokens()[1])]),
        (Classifier, [tokens(), (tokens()[0]["input_ids"], tokens()[1])]),
        (Classifier, [({}, [])] * 2),
        (lambda: Sum(lambda z: z), clients()),  # a model that names no such inputs
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(model, data):
    with pytest.raises(StrataError) as error:
        fitted(model(), data)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ModelError | DataError) or error.value.exit_code == 2


def test_new_samples_need_the_same_inputs():
    client = fitted(seeded("tuple"), clients()).client(0)
    x = tokens(2, seed=5)[0]
    assert client.outputs(x).shape == (2, 3)
    for wrong in ({"input_ids": x["input_ids"]}, x["input_ids"], {**x, "more": x["input_ids"]}):
        with pytest.raises(DataError):
            client.outputs(wrong)


def test_a_method_that_replaces_the_head_needs_two_outputs():
    with pytest.raises(ModelError):
        fitted(seeded(classes=1), clients(classes=2), fedrod())
    two = fitted(seeded(classes=1), clients(classes=2), fedper())
    assert two.client(0).predict_proba(tokens(3)[0]).shape == (3, 2)
    assert isinstance(two.sim.template, AdaptedModel)
    assert isinstance(own_model(two.sim.template), Classifier)


@pytest.mark.slow
def test_a_bert_of_transformers_runs_stacked_as_it_comes():
    """From a configuration, with dropout in attention and padded samples; nothing is downloaded."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=12, max_position_embeddings=4, num_labels=3, **sizes)
    fits = [fitted(BertForSequenceClassification(config), clients(), engine=engine) for engine in ("stacked", "loop")]
    assert isinstance(fits[0].client(0).model, BertForSequenceClassification)
    assert fits[0].client(0).outputs(tokens(5)[0]).shape == (5, 3)
