"""Transformer encoders with dropout against plain PyTorch loops: clients stacked in one step, or one after the other.

    python benchmarks/encoders.py --device cpu                       nn.TransformerEncoder of three widths
    python benchmarks/encoders.py --device cpu --kinds bert          a small BERT, if there is `transformers`
    python benchmarks/encoders.py --device cuda --widths 64,128,256 --steps 20

Engine and loops take turns in one process, the best round of each counts, and the ratio is to the
better loop: over tensors, or over a DataLoader per client, as PFLlib has it. Samples are random tokens of one length.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import recording
from against_loops import Cell, Ways, measured_rows
from bench_models import BENCH_MODELS, BenchModel, Workload
from models_on_cpu import BESIDE
from recording import Result, Table, bar, row, where_of
from stratafl.runtime.speed import Speed

VOCABULARY, CLASSES, HEADS, DROPOUT = 1000, 4, 4, 0.1
NARROW, NARROW_AIM, GPU_AIM = 128, 1.5, 10.0  # widths up to which a CPU is to be this much faster; on a GPU


class Encoder(nn.Module):
    """Tokens and places embedded, torch's TransformerEncoder, and the mean of what it gives."""

    def __init__(self, width: int, length: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, dropout=DROPOUT, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.fc = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        logits: Tensor = self.fc(self.encoder(self.tokens(x) + self.places(places)).mean(1))
        return logits


@dataclass(frozen=True)
class EncoderOfBench(BenchModel):
    """A model that is no model of the catalogue."""

    width: int = 32
    layers: int = 2

    def module(self) -> nn.Module:
        if self.name == "encoder":
            return Encoder(self.width, self.shape[0], self.layers)
        from transformers import BertConfig, BertForSequenceClassification

        sizes = {"hidden_size": self.width, "num_hidden_layers": self.layers, "num_attention_heads": HEADS}
        rest = {"intermediate_size": 4 * self.width, "vocab_size": VOCABULARY, "num_labels": CLASSES}
        return BertForSequenceClassification(BertConfig(**sizes, **rest, max_position_embeddings=self.shape[0]))


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    device = recording.device_named(given.device)
    result = Result("encoders", given, device, f"encoders-{device}" + (f"-busy-{given.busy}" if given.busy else ""))
    environment = result.table["environment"]
    rows = result.details["rows"] = []
    lines, bars = list[Table](), list[Table]()
    for kind in given.kinds.split(","):
        for width in map(int, given.widths.split(",")):
            name = f"{kind} of width {width}"
            options = {"vocabulary": VOCABULARY}
            BENCH_MODELS[name] = EncoderOfBench(kind, (given.length,), CLASSES, 10, options, width, given.layers)
            work = Workload(given.clients, given.clients, given.batch, given.steps * given.batch)
            ways = Ways(device, Speed(precision=given.precision, compile=given.compile), given.repeats, busy=given.busy)
            rows += measured_rows([Cell(name, "fedavg", work)], ways)
            aim = GPU_AIM if device != "cpu" else NARROW_AIM if width <= NARROW else BESIDE
            what = f"times the better loop: {name}, {where_of(environment)}, {given.busy} others at work"
            lines.append(row(what, rows[-1].get("least_ratio"), "×", aim, "more"))
            print(recording.sentence(lines[-1]), _detail(rows[-1]), flush=True)
            bars.append(bar("times the better loop, encoders", name, lines[-1]["value"] or 0.0, "×"))
            result.table["rows"], result.table["bars"] = lines, bars
            result.save()
    print(f"written to {result.path}")
    return 0


def _detail(measured: Table) -> str:
    engine = measured["engine"]
    loops = ", ".join(f"{name} {each['round']:.2f}" for name, each in measured["ratios"].items())
    how = f"{engine['engine']}, compiled: {engine['compiled']}, {engine['ms_per_client_step']:.3f} ms per client-step"
    return f"({how}; {loops})"


def _parser() -> argparse.ArgumentParser:
    parser = recording.parser(__doc__)
    parser.add_argument("--kinds", default="encoder", help="encoder, bert, or both (encoder)")
    parser.add_argument("--widths", default="32,64,128", help="of the model, separated by commas (32,64,128)")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=32, help="tokens of a sample (32)")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5, help="per client and round (5)")
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds (3)")
    parser.add_argument("--precision", default="fp32", help="of products on a GPU: fp32, tf32 or bf16 (fp32)")
    parser.add_argument("--compile", default="auto", choices=("auto", "on", "off"), help="run.compile (auto)")
    parser.add_argument("--busy", type=int, default=0, help="so many other processes keep a core busy")
    return parser


if __name__ == "__main__":
    sys.exit(main())
