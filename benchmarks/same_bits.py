"""Whether a change of the source changes a result: hashes of runs, and the texts of reports.

    python benchmarks/same_bits.py OUT            run everything; write OUT/hashes.json and OUT/*.txt
    python benchmarks/same_bits.py OUT --only fedper,executor-debug

Run it at two commits on the same machine and compare: `diff -r OUT_OLD OUT_NEW`. `hashes.json` has for each run a hash
of its final state, its journals (without times) and its predictions, and must be equal, as must be the identity by
which one version resumes runs of another. The texts are what a
comparison prints and what its report says, times removed. They may differ in wording. It takes about three minutes.
"""

import contextlib
import csv
import hashlib
import html
import io
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

SMALL = ["--rounds", "3", "--seed", "3", "--set", "data.clients=8", "--set", "run.device=cpu", "--set", "train.lr=0.1"]
HALF = ["--set", "run.participation=0.5"]
METHODS = """
    apple confree ditto fedala fedalp fedamp fedas fedavg fedavg30local fedavgft fedavglpft fedbabu fedbias fedbn fedcac
    fedcp feddbe fedexp fedfomo fedlag fedlc fedopt fedpac fedper fedprior fedprox fedrep fedrod fedstrata flayer gpfl
    heurfedamp heurpfedla ifca lgfedavg local moon perfedavg pfedfda pfedhn pfedhnpc pfedla pfedme scaffold simmix
""".split()  # noqa: SIM905
COMPOSED = """
    fedper+flayer scaffold+lag fedper+q8 fedavg+q4 fedper+topk fedavg+median fedavg+trimmed fedper+clipped
    fedavg+krum fedavg+private
""".split()  # noqa: SIM905
OPTIONS = {
    "fedlag": ["--set", "algorithm.warmup=1"],
    "fedavg30local": ["--set", "algorithm.warmup=1"],
    "fedalp": ["--set", "algorithm.warmup=1", "--set", "algorithm.groups=4"],  # the default was another
    "scaffold+lag": ["--set", "lag.warmup=1"],
    "fedavg+krum": ["--set", "run.participation=1"],
}
# Ways to run: name, method, settings.
WAYS = [
    ("model-cnn", "flayer", ["--model", "lenet"]),
    ("model-convnorm", "fedper", ["--model", "convnorm"]),
    ("model-norm", "fedbn", ["--set", "model.norm=true"]),
    ("optimizer-adam", "fedper", ["--set", "train.optimizer=adam", "--set", "train.clip=1"]),
    ("optimizer-momentum", "ditto", ["--set", "train.momentum=0.9", "--set", "train.optimizer_state=kept"]),
    ("engine-loop", "fedrep", ["--set", "run.engine=loop"]),
    ("engine-stacked", "fedala", ["--set", "run.engine=stacked"]),
    ("graphs", "fedper", ["--set", "run.graphs=on"]),
    ("store-disk", "fedper", ["--set", "run.store=disk", "--set", "run.checkpoint=1"]),
    ("new-clients", "fedper", ["--set", "data.new_clients=2", "--lab", "1"]),
    ("guard", "fedavg", ["--guard"]),
]
EXECUTORS = {"executor-messages": "Messages", "executor-debug": "Debug"}
COMPARISONS = {
    "comparison-demo": ["--algorithms", "fedavg,fedper,local,flayer", "--seeds", "3"],
    "comparison-guard": ["--algorithms", "fedavg,fedrep,local", "--seeds", "2", "--guard"],
    "comparison-auroc": ["--algorithms", "fedavg,fedprior", "--seeds", "2", "--metric", "auroc", "--lab", "2"],
}


def run_command(*arguments: str) -> str:
    """What `strata` prints with these arguments, in this process."""
    from stratafl.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(list(arguments))
    if code:
        raise SystemExit(f"strata {' '.join(arguments)} ended with {code}: {errors.getvalue()}")
    return printed.getvalue()


def hash_of_arrays(path: Path) -> str:
    """A hash of the names, types and bytes of a safetensors file, whatever else it records."""
    from safetensors.numpy import load_file

    digest = hashlib.sha256()
    for name, array in sorted(load_file(path).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:16]


def hash_of_journal(path: Path) -> str:
    """A hash of a journal's lines without times and checksums."""
    digest = hashlib.sha256()
    for line in path.read_text().splitlines():
        row = {key: value for key, value in json.loads(line).items() if not re.match("seconds|checksum", key)}
        digest.update(json.dumps(row, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def hashes_of_run(folder: Path) -> dict[str, str]:
    newest = max((folder / "checkpoint").iterdir())
    arrays = [*sorted(newest.glob("*.safetensors")), *sorted(folder.glob("*.safetensors"))]
    hashes = {path.name: hash_of_arrays(path) for path in arrays}
    hashes |= {path.name: hash_of_journal(path) for path in sorted(folder.glob("*.jsonl"))}
    identity = json.loads((folder / "environment.json").read_text())["identity"]
    return hashes | {"identity": json.dumps(identity, sort_keys=True)}  # by which a run of another version is resumed


def hash_of_executor(name: str) -> dict[str, str]:
    """The server's state after two rounds of FedPer, over another executor than the command's."""
    from stratafl import execute
    from stratafl.algorithms import fedper
    from stratafl.data import from_clients
    from stratafl.data.digits import digits_arrays
    from stratafl.models import MLP

    x, y = digits_arrays()
    federation = from_clients([(x[start::6][:60], y[start::6][:60]) for start in range(6)], seed=5)
    torch.manual_seed(5)
    model = MLP(shape=(1, 8, 8), classes=10, hidden=(16,))
    progress = execute.simulation(fedper(), federation, model, rounds=2, seed=5).run(getattr(execute, name)())
    digest = hashlib.sha256()
    hash_state(progress.server, digest)
    return {"server": digest.hexdigest()[:16]}


def hash_state(state: object, digest: "hashlib._Hash") -> None:
    if isinstance(state, Mapping):
        for name, part in sorted(state.items()):
            digest.update(str(name).encode())
            hash_state(part, digest)
    elif isinstance(state, torch.Tensor):
        digest.update(state.numpy().tobytes())


def plain_text(page: str) -> str:
    """The text of an HTML page, one line per element, and the data of its charts and tables."""
    data = [script for script in re.findall(r"(?s)<script\b[^>]*>(.*?)</script>", page) if script.startswith("{")]
    page = re.sub(r"(?s)<(style|script)\b.*?</\1>", "", page)
    lines = [json.dumps(untimed(json.loads(script)), indent=1) for script in data]
    return "\n".join([html.unescape(re.sub(r"\s*<[^>]+>\s*", "\n", page)), *lines])


def untimed(tree: object) -> object:
    """The data of a page without what is measured in seconds, and without columns that name a time or a commit."""
    if isinstance(tree, dict):
        return {key: untimed(part) for key, part in tree.items()}
    if isinstance(tree, list):
        return [untimed(part) for part in tree if not (isinstance(part, list) and part and part[0] == "seconds")]
    if isinstance(tree, str) and tree.count("\n") > 1:  # a table as CSV
        rows = list(csv.reader(io.StringIO(tree)))
        columns = [number for number, name in enumerate(rows[0]) if not re.search("seconds|started|commit", name)]
        return [[row[number] for number in columns if number < len(row)] for row in rows]
    return tree


def without_times(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "FOLDER")
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\+\d\d:\d\d)?( UTC)?", "TIME", text)
    text = re.sub(r"\b\d+(\.\d+)? ?(s|ms|min)\b", "SECONDS", text)
    text = re.sub(r"\b[0-9a-f]{10}\b", "COMMIT", text)
    return "\n".join(line for line in text.splitlines() if line.strip())


def comparison(name: str, arguments: list[str], output: Path, folder: Path) -> dict[str, str]:
    printed = run_command("compare", *arguments, *SMALL, "--jobs", "1", "--out", str(folder))
    run_command("report", str(folder), "-o", str(folder / "page.html"))
    page = plain_text((folder / "page.html").read_text())
    (output / f"{name}-terminal.txt").write_text(without_times(printed, folder))
    (output / f"{name}-report.txt").write_text(without_times(page, folder))
    hashes = {}
    for run in sorted(path.parent for path in folder.rglob("rounds.jsonl") if "guard" not in path.parts):
        hashes |= {f"{run.relative_to(folder)}/{file}": value for file, value in hashes_of_run(run).items()}
    return hashes


def jobs(output: Path) -> Iterator[tuple[str, Callable[[Path], dict[str, str]]]]:
    def run(method: str, settings: list[str]) -> Callable[[Path], dict[str, str]]:
        def make(folder: Path) -> dict[str, str]:
            run_command("run", "--algorithm", method, *SMALL, *HALF, *settings, "--out", str(folder))
            return hashes_of_run(folder)

        return make

    for method in METHODS + COMPOSED:
        yield method, run(method, OPTIONS.get(method, []))
    for name, method, settings in WAYS:
        yield name, run(method, settings)
    for name, executor in EXECUTORS.items():
        yield name, lambda folder, executor=executor: hash_of_executor(executor)  # type: ignore[misc]
    for name, arguments in COMPARISONS.items():
        yield name, lambda folder, name=name, arguments=arguments: comparison(name, arguments, output, folder)  # type: ignore[misc]


def main() -> None:
    output = Path(sys.argv[1])
    only = sys.argv[3].split(",") if len(sys.argv) > 3 else None
    output.mkdir(parents=True, exist_ok=True)
    hashes = {}
    for name, make in jobs(output):
        if only is None or name in only:
            with tempfile.TemporaryDirectory() as place:
                hashes[name] = make(Path(place) / "run")
            print(name, flush=True)
    (output / "hashes.json").write_text(json.dumps(hashes, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
