"""Install the wheel in a clean environment and use it as a stranger does: `make package`.

    python tools/check_package.py dist

The environment is new and holds the wheel alone. It borrows what the wheel depends on from the environment that runs
this script, so that torch is not downloaded again. Then it runs, in an empty folder, the command, the demo for a few
rounds, the lines of Python of README.md, and a smoke test for each extra. An extra that is not installed is named.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_MEGABYTES = 3
DEMO = ["compare", "--algorithms", "local,fedavg,fedper,flayer", "--seeds", "2", "--rounds", "3", "--out", "demo"]
README = """
import stratafl, torch
from torch import nn
(x, y), (x2, y2) = stratafl.digits("iid", clients=2)
x_new, model = x[:4], nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
"""
FITTED = """
import numpy as np, stratafl
x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
clients = {"a": (x[:30], (x[:30, 0] > 0).astype(int)), "b": (x[30:], (x[30:, 0] > 0).astype(int))}
fitted = stratafl.fit("fedper", clients, "mlp", rounds=1, device="cpu")
"""
# Of each extra the packages to import, and code or a command that uses them.
SMOKE_TESTS: dict[str, tuple[tuple[str, ...], str | list[str]]] = {
    "onnx": (("onnx", "onnxscript"), FITTED + "assert fitted.client('a').export('a.onnx').stat().st_size > 1000"),
    "data": (
        ("datasets", "PIL"),
        "import datasets, stratafl\n"
        "columns = {'x': [0.1, 0.9] * 20, 'label': [0, 1] * 20, 'site': ['a'] * 20 + ['b'] * 20}\n"
        "table = datasets.Dataset.from_dict(columns)\n"
        "assert stratafl.fit('fedavg', table, 'mlp', label='label', client='site', rounds=1).clients == 2",
    ),
    "text": (
        ("tokenizers",),
        ["run", "--data", "notes.csv", "--set", "data.tokens=trained", "--model", "embedding", "--rounds", "1"],
    ),
    "tensorboard": (("tensorboard",), ["run", "--rounds", "1", "--log", "tensorboard"]),
    "mlflow": (("mlflow",), ["run", "--rounds", "1", "--log", "mlflow"]),
    "wandb": (("wandb",), ["run", "--rounds", "1", "--log", "wandb"]),
    "tune": (
        ("optuna",),
        ["tune", "--algorithms", "fedavg", "--sampler", "tpe", "--trials", "2", "--seeds", "1", "--rounds", "2"],
    ),
    "flower": (
        ("flwr", "h11"),
        "import stratafl.deploy.server_app, stratafl.deploy.client_app, stratafl.deploy.gate\n"
        "from stratafl.deploy.processes import require_flower; require_flower()",
    ),
    "adapters": (
        ("transformers", "peft"),
        "import peft, stratafl, torch\nfrom torch import nn\n"
        "model = peft.get_peft_model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),\n"
        "    peft.LoraConfig(target_modules=['0'], modules_to_save=['2'], r=2))\n"
        "x, y = torch.randn(40, 4), torch.arange(40) % 2\n"
        "assert stratafl.fit('fedper', [(x, y), (x, y)], model, rounds=1).clients == 2",
    ),
}


def main() -> None:
    """Check the files in a folder, then the wheel among them."""
    begin, folder = time.perf_counter(), Path(sys.argv[1]).absolute()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    files = [folder / f"stratafl-{version}{end}" for end in ("-py3-none-any.whl", ".tar.gz")]
    for path in files:
        size = path.stat().st_size / 1e6
        print(f"{path.name}: {size:.2f} MB")
        assert size < MAX_MEGABYTES, f"{path.name} is larger than {MAX_MEGABYTES} MB"
    with tempfile.TemporaryDirectory() as place:
        use(files[0], Path(place), version)
    print(f"the package works ({time.perf_counter() - begin:.0f} s)")


def use(wheel: Path, place: Path, version: str) -> None:
    """Install a wheel in a clean environment, and use it in an empty folder."""
    python = clean_environment(wheel, place / "environment")
    (home := place / "home").mkdir()

    def strata(*arguments: str) -> str:
        return run([str(python.with_name("strata")), *arguments], home)

    installed = run([str(python), "-c", "import stratafl; print(stratafl.__file__)"], home)
    assert Path(installed.strip()).is_relative_to(place), f"{installed} is not the wheel's"
    assert strata("--version") == f"stratafl {version}\n"
    assert "strata advise" in strata()
    assert "flayer" in strata(*DEMO)
    print("the demo: strata", *DEMO)
    lines = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    print("the lines of README.md:", run([str(python), "-c", README + lines], home).strip().splitlines()[-1])
    notes = [f"this was {'good' if n % 2 else 'bad'} on day {n} of our stay,{n % 2},{'ab'[n < 30]}" for n in range(60)]
    (home / "notes.csv").write_text("\n".join(["text,label,client", *notes]), encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(SMOKE_TESTS) == set(extras) - {"dev", "docs"}, "every extra has a smoke test"
    for extra, (packages, test) in SMOKE_TESTS.items():
        if not all(importable(python, package, home) for package in packages):
            print(f"extra {extra}: not installed here")
            continue
        strata(*test) if isinstance(test, list) else run([str(python), "-c", test], home)
        print(f"extra {extra}: works")


def clean_environment(wheel: Path, folder: Path) -> Path:
    """The Python of a new environment with this wheel, which sees the dependencies of the running environment."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return python


def importable(python: Path, package: str, place: Path) -> bool:
    """Whether a package can be imported."""
    command = [str(python), "-c", f"import {package}"]
    return subprocess.run(command, cwd=place, capture_output=True, check=False).returncode == 0


def run(command: list[str], place: Path) -> str:
    """What a command prints; it must succeed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[:4]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


if __name__ == "__main__":
    main()
