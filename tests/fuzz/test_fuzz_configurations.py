"""Broken configurations are accepted and the same after a round trip, or refused in one line; nothing is imported.

From complete configurations (every method, several models, partitions and protocols) with the seed 13: half are changed
in their tables, a quarter in their TOML text, a quarter by lists of `--set`. The quick test takes 900 of them, the slow
one 6,000. No model is made and no data is read, so memory and time do not depend on the numbers in them.
"""

import os
import random
import sys
import tomllib
from copy import deepcopy
from datetime import date

import pytest
import tomli_w

from stratafl.algorithms import ALGORITHMS
from stratafl.config.assemble import algorithm_of, completed
from stratafl.config.experiment import TABLES, Experiment, from_tables, load_experiment, to_tables, with_settings
from stratafl.errors import StrataError, printable

pytestmark = pytest.mark.slow

SEED = 13
LONGEST = 4000  # letters of an error
BASES = [
    *([f"algorithm.name={name}"] for name in sorted(ALGORITHMS)),
    ["model.name=cnn", "data.name=mnist", "run.protocol=pfllib"],
    ["model.name=resnet18", "data.name=cifar10", "run.protocol=flayer", "train.clip=1.0"],
    ["data.partition=classes", "data.per_client=2", "stop.target=0.9", "run.memory_limit=2GB"],
    ["data.partition=iid", "data.name=./mine.csv", "data.label=label", 'log.to=["wandb"]'],
]
NUMBERS = [0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**308, 10**400, 10**5000, 0.5, -0.5, 1e308, 1e-320]
NUMBERS += [float("nan"), float("inf"), -float("inf")]
TEXTS = [
    "",
    " ",
    "None",
    "true",
    "1",
    'we"ird/',
    "it's/",
    "a\\b/",
    "\x1b[31mred",
    "two\nlines",
    "\u202eevil",
    "\x00",
    "é",
    "😀",
]
TEXTS += ["x" * 300, "y" * 10_000, "../" * 50, "os:system", "builtins:exit", "subprocess:run", "fuzz_canary:thing"]
TEXTS += ["fuzz_canary:", ":", "a.b.c:d", "last:99999999999999999999", "first:-1", "head+base", "8GB", "9" * 400 + "GB"]
TEXTS += [
    "auto",
    "dirichlet",
    "fedper",
    "mlp",
    "digits",
    "wandb",
    "\udc80",
    "cpu",
    "cuda:99",
    "[1",
    "{}",
    "nan",
    "0x10",
]
OTHERS = [True, False, None, [], [1, "a"], [[[]]], {}, {"a": 1}, {"": {"b": []}}, date(2020, 1, 1), b"bytes", (1, 2)]
DEEP = [[1]]
for _ in range(100):
    DEEP = [DEEP]
VALUES = [*NUMBERS, *TEXTS, *OTHERS, DEEP, ["z"] * 1000]
KEYS = sorted(
    {key for table in TABLES.values() for key in table.__dataclass_fields__} | {"warmup", "hidden", "k", "options"}
)


class Cases:
    """Broken configurations, one after the other."""

    def __init__(self, folder):
        self.random, self.path = random.Random(SEED), folder / "fuzz.toml"
        self.bases = [to_tables(completed(with_settings(Experiment(), given))) for given in BASES]

    def tables(self):
        """An experiment from changed tables."""
        changed = deepcopy(self.random.choice(self.bases))
        for _ in range(self.random.choice((1, 1, 2, 4))):
            self.change(changed)
        return from_tables(changed)

    def change(self, tables):
        """One change of any kind."""
        draw = self.random
        name = draw.choice(sorted(tables, key=str) or ["run"])
        table = tables.get(name)
        kind = draw.randrange(12)
        if kind == 0 or not isinstance(table, dict):
            tables[draw.choice([name, *TEXTS])] = draw.choice(VALUES)
        elif kind == 1 and table:
            del table[draw.choice(sorted(table))]
        elif kind == 2:
            table[draw.choice([*KEYS, *TEXTS])] = draw.choice(VALUES)
        elif kind == 3:
            tables[name] = tables.get(draw.choice(list(TABLES)), {})
        elif table and kind < 7:
            table[draw.choice(sorted(table))] = draw.choice(VALUES)
        elif name in TABLES:  # as another one has it, which may well fit
            other = draw.choice(self.bases)[name]
            table.update({key: other[key] for key in draw.sample(sorted(other), min(2, len(other)))})

    def text(self):
        """An experiment from changed TOML."""
        draw = self.random
        text = list(tomli_w.dumps(draw.choice(self.bases)))
        for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
            at = draw.randrange(len(text) + 1)
            change = draw.randrange(4)
            if change == 0:
                del text[at : at + draw.choice((1, 3, 40))]
            elif change == 1:
                text[at:at] = draw.choice([*'[]{}="\n\\.,#0e-\x00\x7f', "é", "9" * 5000, "[" * 3000, *map(str, TEXTS)])
            elif change == 2:
                text[at:at] = text[max(at - 30, 0) : at]
            else:
                text[at : at + 1] = chr(draw.choice((draw.randrange(128), draw.randrange(0x3000))))
        self.path.write_bytes("".join(text).encode("utf-8", "surrogateescape" if draw.random() < 0.9 else "replace"))
        return load_experiment(self.path)

    def settings(self):
        """An experiment from changed settings of a command."""
        draw = self.random
        base = from_tables(draw.choice(self.bases))
        return with_settings(base, [self.setting() for _ in range(draw.choice((1, 2, 4)))])

    def setting(self):
        draw = self.random
        table = draw.choice([*TABLES, *ALGORITHMS, draw.choice(TEXTS)])
        value = draw.choice(VALUES)
        text = str(value) if not isinstance(value, int) or abs(value) < 10**400 else "9" * 5000
        other = draw.choice(self.bases)[fitting := draw.choice(["train", "run", "evaluate", "stop"])]
        key = draw.choice(sorted(other))
        fits = f"{fitting}.{key}={other[key]}"
        given = (f"{table}.{draw.choice(KEYS)}={text}", f"{table}.name={text}", f"{table}{text}")
        return draw.choice((*given, fits, fits, fits))

    def __next__(self):
        return self.random.choice((self.tables, self.tables, self.text, self.settings))


def outcome(make):
    """What a case comes to: an experiment, or None where it was refused as it should be."""
    try:
        return make()
    except StrataError as error:
        said = str(error)
        assert printable(said) == said  # one line, and nothing that steers a terminal
        assert 0 < len(said) <= LONGEST, len(said)
        return None


def check_round_trip(experiment):
    tables = to_tables(experiment)
    assert from_tables(tables) == experiment
    assert from_tables(tomllib.loads(tomli_w.dumps(tables))) == experiment


def fuzz(folder, monkeypatch, count):
    """So many cases; how many were accepted."""
    (folder / "fuzz_canary.py").write_text("raise AssertionError('a configuration imported this')", encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in ("system", "execv", "fork"):
        monkeypatch.setattr(os, name, None)
    cases, accepted = Cases(folder), 0
    before, path = set(sys.modules), list(sys.path)
    for _ in range(count):
        made = outcome(next(cases))
        if made is None:
            continue
        accepted += 1
        check_round_trip(made)
        whole = outcome(lambda made=made: completed(made))
        if whole is not None:
            check_round_trip(whole)
        outcome(lambda made=made: algorithm_of(made))
    new = {name for name in set(sys.modules) - before if not name.startswith("stratafl.")}
    assert not new, new
    assert sys.path == path
    return accepted


def test_broken_configurations(tmp_path, monkeypatch):
    assert 100 < fuzz(tmp_path, monkeypatch, 900) < 700


@pytest.mark.nightly
def test_many_broken_configurations(tmp_path, monkeypatch):
    assert 500 < fuzz(tmp_path, monkeypatch, 6_000) < 5_000
