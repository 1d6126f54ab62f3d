"""Every code block of the site is run or checked by a test, or is marked as output."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import stratafl
from code_blocks import (
    LANGUAGES,
    ROOT,
    blocks_of,
    check_commands,
    check_imports,
    check_json,
    check_toml,
    commands_of,
    runnable,
)
from stratafl.algorithms import fedavg, fedper
from stratafl.cli import main as strata
from stratafl.core import records
from stratafl.data import digits_federation

EXECUTED = ("docs/start/", "docs/tutorials/")  # whole, by docs/tools/run_blocks.py
UNTAGGED = ("docs/design/",)
MEASURED = ("docs/results/",)  # their commands take hours, and are checked alone
RECORDS = ("docs/notebook/",)  # what was measured once, with the commands of that day
PAGES = [path.relative_to(ROOT).as_posix() for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])]
PAGES = [page for page in PAGES if not page.startswith((*EXECUTED, *RECORDS)) and blocks_of(page)]


@pytest.mark.parametrize("page", PAGES)
def test_commands_settings_and_imports_of_a_page_exist(page):
    for block in blocks_of(page):
        if not block.language and page.startswith(UNTAGGED):
            continue
        assert block.language in LANGUAGES, f"{block}: say what the block is: {', '.join(LANGUAGES)}"
        if block.language in ("bash", "console"):
            check_commands(block)
        elif block.language == "toml":
            check_toml(block)
        elif block.language == "json":
            check_json(block)
        elif block.language == "python":
            check_imports(block)


# What runs: Python, and the commands that need little


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """The run directory `runs/first` of the pages: FedPer on the clients Basel, Bern and Cork."""
    folder = tmp_path_factory.mktemp("first")
    samples = names_of_pages()["clients"]
    samples["Cork"] = samples["Bern"]
    for name, clients in (("my", ("Basel", "Bern", "Cork")), ("chur", ("Basel",)), ("new", ("Basel",))):
        write_table(folder / f"{name}.csv", {client: samples[client] for client in clients})
    data = ["--data", str(folder / "my.csv"), "--set", "data.client=client"]
    assert strata(["run", "--algorithm", "fedper", *data, "--rounds", "2", "--out", str(folder / "runs/first")]) == 0
    return folder


def names_of_pages():
    """What the Python of the pages takes for granted: samples of two clients, a model, and usual imports."""
    federation = digits_federation()
    (x, y), (x2, y2) = (
        (federation.x[rows][:60], federation.y[rows][:60]) for rows in map(federation.splits["train"].of, range(2))
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    space = {"x": x, "y": y, "x2": x2, "y2": y2, "x_new": x[:4], "rows": x[:4].flatten(1), "model": model}
    space |= {"clients": {"Basel": (x, y), "Bern": (x2, y2)}, "stratafl": stratafl, "Path": Path, "replace": replace}
    return space | {"fedper": fedper, "fedavg": fedavg, "__name__": "page"}


def write_table(path, clients):
    """A table of 64 pixels, the client and the label."""
    lines = [",".join([*(f"p{i}" for i in range(64)), "client", "label"])]
    for name, (x, y) in clients.items():
        for pixels, label in zip(x.flatten(1).tolist(), y.tolist(), strict=True):
            lines.append(",".join([*(f"{value:g}" for value in pixels), name, str(label)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def desk(first_run, tmp_path, monkeypatch):
    shutil.copytree(first_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    ours = {name: cls for name, cls in records._CLASSES.items() if cls.__module__.startswith("stratafl.")}
    monkeypatch.setattr(records, "_CLASSES", ours)  # a page and another test may show the same record
    return tmp_path


def tokens():
    """A small BERT's samples, as the pages on transformers have them."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=4,
    )
    BertForSequenceClassification(config).save_pretrained("my/bert")
    ids, mask, y = torch.randint(0, 40, (24, 8)), torch.ones(24, 8, dtype=torch.long), torch.arange(24) % 4
    more = {"BertForSequenceClassification": BertForSequenceClassification, "config": config}
    more |= {"ids": ids, "mask": mask, "y": y, "ids2": ids, "mask2": mask, "y2": y}
    return more | {"new_ids": ids[:2], "new_mask": mask[:2]}


def two_classes():
    """Clients of two classes, for the metrics of two."""
    space = names_of_pages()
    pairs = {name: (x, (y > 4).long()) for name, (x, y) in space["clients"].items()}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    return {"clients": {**pairs, "Chur": pairs["Bern"], "Davos": pairs["Basel"]}, "model": model}


SPACES = {  # what a page's Python needs besides
    "docs/guide/adapters.md": tokens,
    "docs/reference/models.md": tokens,
    "docs/reference/metrics.md": two_classes,
}
WITH_PYTHON = [page for page in PAGES if any(b.language == "python" and not b.not_run for b in blocks_of(page))]
WITH_COMMANDS = [  # commands of a method's page run what the catalogue's tests run, too
    pytest.param(page, marks=pytest.mark.nightly) if page.startswith("docs/methods/") else page
    for page in PAGES
    if not page.startswith(MEASURED) and any(block.language in ("bash", "console") for block in blocks_of(page))
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers
@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_of_a_page_runs(page, desk):
    space = names_of_pages() | SPACES.get(page, dict)()
    for block in blocks_of(page):
        if block.language == "python" and not block.not_run:
            exec(compile("\n" * block.line + block.text, page, "exec"), space)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_of_a_page_run(page, desk):
    for block in blocks_of(page):
        if block.language in ("bash", "console") and not block.not_run:
            for line in commands_of(block):
                if arguments := runnable(shlex.split(line)):
                    assert strata(arguments) == 0, f"{block}: {line}"
