"""The files with the advice: `advice.toml` (the recommended run's configuration), `advice.md` and `advice.json`."""

import json
from math import isfinite
from pathlib import Path
from typing import Any

import tomli_w

from stratafl.advice import advice_text
from stratafl.advice.advice import Advice
from stratafl.advice.look import Effect
from stratafl.advice.measured import MeasuredFederation, most_similar
from stratafl.advice.problem import Result
from stratafl.config.experiment import to_tables
from stratafl.config.migrations import with_format
from stratafl.files import write_atomically
from stratafl.report.jackknife import Difference
from stratafl.runs.run import with_absolute_paths

CONFIG, PAGE, DATA = "advice.toml", "advice.md", "advice.json"


def write_advice(advice: Advice, folder: Path) -> Path:
    """Write all three into a folder, which is made if it does not exist; the path of the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / CONFIG
    tables = to_tables(with_absolute_paths(advice.experiment))
    write_atomically(config, tomli_w.dumps(with_format(tables)).encode())
    write_atomically(folder / PAGE, advice_text.advice_page(advice, config).encode())
    write_atomically(folder / DATA, (json.dumps(plain(advice, config), indent=2, ensure_ascii=False) + "\n").encode())
    return config


def plain(advice: Advice, config: Path) -> dict[str, Any]:
    """The advice as JSON holds it."""
    facts, tryout = advice.facts, advice.tryout
    return {
        "federate": advice.federate,
        "method": advice.candidate.method,
        "options": dict(advice.candidate.options),
        "personal_layers": advice.candidate.personal,
        "answer": advice_text.advice_answer(advice),
        "doubt": advice.doubt,
        "metric": advice.metric.name,
        "best_federated": advice.best_federated.name,
        "gain_over_local": _difference(advice.over_local),
        "expected_gain_over_local": {
            **_difference(advice.expected),
            "interval": [_number(end) for end in advice.interval],
        },
        "bytes": advice.bytes,
        "command": advice_text.commands(advice, config)[0],
        "facts": {
            "clients": facts.clients,
            "train_samples": list(facts.sizes),
            "label_skew": _effect(facts.skew),
            "feature_shift": _effect(facts.shift),
            "groups": list(facts.groups),
            "conflicts": {layer.layer: layer.conflicts for layer in facts.layers},
            "cuts": {
                cut.rule: {"shared": list(cut.layers[: cut.shared]), "personal": cut.personal} for cut in facts.cuts
            },
        },
        "most_similar_measured": [_measured(similar) for similar in most_similar(facts)],
        "budget": {"client_steps": tryout.steps, "allowed": tryout.allowed, "full_comparison": tryout.full},
        "comparable": [candidate.name for candidate in advice.comparable],
        "tried": [_result(result) for result in tryout.results],
        "baselines": {name: _number(score) for name, score in advice.baselines.items()},
        "clients": [
            {key: getattr(client, key) for key in ("client", "name", "gain", "error", "verdict")}
            for client in advice.clients
        ],
    }


def _result(result: Result) -> dict[str, Any]:
    scores = {"score": _number(result.score), "expected": _number(result.expected)}
    return {"candidate": result.candidate.name, "rounds": result.rounds, **scores, "why": result.candidate.why}


def _difference(gain: Difference) -> dict[str, float | None]:
    return {"value": _number(gain.value), "error": _number(gain.error)}


def _measured(similar: MeasuredFederation) -> dict[str, Any]:
    """A measured federation that is like these clients, and its methods, the chosen one first."""
    methods = [
        {
            "method": method.method,
            "over_local": _difference(method.over_local),
            "over_fedavg": _difference(method.over_fedavg),
        }
        for method in similar.methods
    ]
    return {"kind": similar.kind, "samples": similar.samples, "methods": methods}


def _effect(effect: Effect | None) -> dict[str, float] | None:
    return None if effect is None else {"value": effect.value, "by_accident": effect.accident, "p": effect.p}


def _number(value: float) -> float | None:
    return value if isfinite(value) else None
