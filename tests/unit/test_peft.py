"""Adapters of Hugging Face's PEFT on a BERT with random weights: layers, bytes, states, memory and exports.

Importing both libraries takes seven seconds, so all tests share one process and a few runs.
"""

import gc
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stratafl
from stratafl.algorithms import fedavg, fedper
from stratafl.algorithms.fedper import Layerwise
from stratafl.api import Fitted
from stratafl.core.describe import describe, frozen_tensors, head_of
from stratafl.core.machine import resident
from stratafl.errors import ModelError
from stratafl.execute.memory import release_freed_memory
from stratafl.policies import LocalTraining

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # peft 0.21 uses what transformers 5 has renamed
]
CLIENTS, RANK, LENGTH, CLASSES = 8, 4, 8, 4
WIDTH, LAYERS, VOCABULARY = 128, 2, 98_635  # a base of more than 50 MB
TRAIN = LocalTraining(lr=0.1, batch=8)
PEAK = Path("/proc/self/clear_refs")
PERSONAL = "*.lora_B+classifier"  # FedSA-LoRA


def lora(rank: int = RANK, vocabulary: int = VOCABULARY, **options: Any) -> nn.Module:
    from peft import LoraConfig, TaskType, get_peft_model

    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=rank, target_modules=["query", "value"], **options)
    return get_peft_model(base(vocabulary), config)


def base(vocabulary: int = VOCABULARY) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": WIDTH}
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(vocab_size=vocabulary, max_position_embeddings=LENGTH, num_labels=CLASSES, **sizes)
    )


@cache
def samples() -> dict[str, tuple[dict[str, Tensor], Tensor]]:
    draw = torch.Generator().manual_seed(1)
    clients = {}
    for number in range(CLIENTS):
        ids = torch.randint(1, 1000, (16, LENGTH), generator=draw)
        x = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        clients[f"site {number}"] = (x, torch.randint(0, CLASSES, (16,), generator=draw))
    return clients


def fitted(algorithm: Layerwise, **options: Any) -> Fitted:
    return stratafl.fit(algorithm, samples(), lora, rounds=1, validation=0.0, **options)


@cache
def fedsa() -> Fitted:
    return fitted(fedper(personal=PERSONAL, train=TRAIN))


@cache
def on_adapters() -> Fitted:
    return fitted(fedavg(train=TRAIN))


def number_of(module: nn.Module, *words: str) -> int:
    """How many numbers are trained in tensors whose names have one of these words."""
    trained = {name: p.numel() for name, p in module.named_parameters() if p.requires_grad}
    return sum(size for name, size in trained.items() if any(word in name for word in words))


def test_layers_have_the_models_own_names_in_forward_order():
    layout = describe(lora(vocabulary=10))
    blocks = [f"bert.encoder.layer.{i}.attention.self.{part}" for i in range(LAYERS) for part in ("query", "value")]
    assert layout.names == (*(f"{block}.lora_{factor}" for block in blocks for factor in "AB"), "classifier")
    assert [layer.name for layer in layout.layers if layer.head] == ["classifier"]
    assert layout.resolve("encoder.layer.[1-9].*") == layout.names[4:8]
    assert layout.resolve("*.query.lora_B") == (layout.names[1], layout.names[5])
    assert head_of(lora(vocabulary=10), "classifier").endswith("classifier.modules_to_save.default")


def test_an_adapted_head_is_the_layer_with_its_adapter():
    from peft import LoraConfig, get_peft_model

    net = nn.Sequential()
    net.body, net.out = nn.Linear(4, 4), nn.Linear(4, 3)
    model = get_peft_model(net, LoraConfig(target_modules=["body", "out"], r=2))
    assert head_of(model) == "base_model.model.out"
    assert [layer.name for layer in describe(model).layers if layer.head] == ["out.lora_A", "out.lora_B"]


def test_a_round_carries_adapters_and_classifier_and_a_client_keeps_what_is_personal():
    module = lora()
    assert sum(x.nbytes for x in frozen_tensors(module).values()) > 50e6
    shared, personal = number_of(module, "lora_A"), number_of(module, "lora_B", "classifier")
    line, sim = fedsa().history[-1], fedsa().sim
    assert line["bytes.down"] == CLIENTS * 4 * shared
    assert line["bytes.up"] == CLIENTS * (4 * shared + 8)  # and the number of samples
    assert sim.state_format.size == 4 * personal
    assert on_adapters().history[-1]["bytes.down"] == CLIENTS * 4 * (shared + personal)
    assert on_adapters().sim.state_format.size == 0


@pytest.mark.skipif(not PEAK.exists(), reason="the peak of a process is known on Linux alone")
def test_peak_memory_is_the_base_once_and_little_for_each_client():
    fedsa()  # what libraries keep is there
    gc.collect()
    release_freed_memory()
    PEAK.write_text("5")  # the peak begins again
    before = resident()
    done = fitted(fedper(personal=PERSONAL, train=TRAIN))
    status = Path("/proc/self/status").read_text()
    peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    assert done.sim.template is not None
    once = sum(x.nbytes for x in frozen_tensors(done.sim.template).values())
    assert peak - before < 1.6 * once  # less, if the allocator has kept memory of earlier tests


def test_fedsa_that_shares_everything_is_fedavg_on_adapters():
    same = fitted(fedper(personal="none", train=TRAIN))
    a, b = same.progress.tensors(), on_adapters().progress.tensors()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_clients_adapter_is_loaded_by_peft(tmp_path: Path):
    from peft import PeftModel

    for name in ("site 0", "site 5"):
        client, x = fedsa().client(name), samples()[name][0]
        folder = client.export(tmp_path / name)
        assert sum(file.stat().st_size for file in folder.iterdir()) < 100_000  # without the base
        again = PeftModel.from_pretrained(base(), folder).eval()
        with torch.no_grad():
            assert torch.equal(again(**x).logits, client.outputs(x))


def test_what_peft_would_not_keep_is_not_exported_as_an_adapter(tmp_path: Path):
    def with_norm() -> nn.Module:
        module = lora(vocabulary=1000)
        module.base_model.model.bert.embeddings.LayerNorm.requires_grad_(True)
        return module

    done = stratafl.fit(fedavg(train=TRAIN), samples(), with_norm, rounds=1, validation=0.0)
    with pytest.raises(ModelError):
        done.client(0).export(tmp_path / "adapter")
    assert list(tmp_path.iterdir()) == []
