"""PFLlib's FedAvg on files that `against_pfllib.py` wrote, timed; a process of its own, so that nothing is shared.

PFLlib's classes are imported from the checkout that is given and its own loop, `FedAvg.train`, runs unchanged. Packages
that it imports and that are not installed are replaced by what it needs of them here, and the result lists them. With
`--orders` nothing is timed: clients take their samples in a given order, and their models after one round are written.
"""

import argparse
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Table = dict[str, Any]
DATA_NAME = "Cifar10-drawn"  # PFLlib chooses its CNN by the name of the data
MERGED = "merged"  # the name of the average among the models


# What PFLlib imports


def label_binarize(y: Any, *, classes: Any) -> Any:
    """As scikit-learn's, for three classes or more."""
    return (np.asarray(y)[:, None] == np.asarray(classes)[None]).astype(np.int64)


def roc_auc_score(truth: Any, score: Any, *, average: str) -> float:
    """As scikit-learn's with `average="micro"`: the area over all entries, ties counted half."""
    if average != "micro":
        raise NotImplementedError(average)
    truth, score = np.ravel(truth).astype(bool), np.ravel(score)
    _, place, counts = np.unique(score, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks = (last - (counts - 1) / 2)[place]
    positive = int(truth.sum())
    return float((ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * (len(truth) - positive)))


class _NoFile:
    """An HDF5 file into which results would be written after the last round."""

    def __init__(self, *given: Any) -> None: ...

    def __enter__(self) -> "_NoFile":
        return self

    def __exit__(self, *error: Any) -> None: ...

    def create_dataset(self, *given: Any, **options: Any) -> None: ...


def stand_ins() -> dict[str, dict[str, Any]]:
    """What PFLlib uses of packages that may be missing."""
    metrics = SimpleNamespace(roc_auc_score=roc_auc_score)
    return {
        "h5py": {"File": _NoFile},
        "matplotlib": {},
        "matplotlib.pyplot": {},
        "sklearn": {"metrics": metrics},
        "sklearn.preprocessing": {"label_binarize": label_binarize},
    }


def replace_missing() -> list[str]:
    """Put stand-ins for packages that cannot be imported; their names."""
    replaced = []
    for name, holds in stand_ins().items():
        try:
            if name.partition(".")[0] in replaced:
                raise ImportError(name)
            importlib.import_module(name)
        except ImportError:
            module = ModuleType(name)
            module.__spec__ = ModuleSpec(name, None)  # torch looks for it
            vars(module).update(holds)
            sys.modules[name] = module
            replaced.append(name)
    return replaced


def model(name: str, classes: int) -> nn.Module:
    """PFLlib's own CNN for CIFAR-10; its ResNet-18 is torchvision's, of which the package has an equal one."""
    if name == "cnn":
        made = importlib.import_module("flcore.trainmodel.models").FedAvgCNN(3, classes, dim=1600)
    else:
        from stratafl.models import build

        made = build("resnet18", shape=(3, 32, 32), classes=classes)
    assert isinstance(made, nn.Module)
    return made


def load_in_order(module: nn.Module, weights: Path) -> None:
    """The common initial weights and their type: the same tensors in the same order, whatever they are called."""
    with np.load(weights) as file:
        given = [torch.from_numpy(file[name]) for name in file.files]
    own = [*module.to(given[0].dtype).parameters()]
    if [x.shape for x in own] != [x.shape for x in given]:
        raise SystemExit("the two models are not the same: their parameters have other shapes")
    with torch.no_grad():
        for mine, x in zip(own, given, strict=True):
            mine.copy_(x)


# Timing


def finished(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


class Clock:
    """Seconds by part, one list entry per round; `NAME_reading` is what reading files took of it."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds, self.reading = device, dict[str, list[float]](), 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begin, read = finished(self.device), self.reading
        yield
        self.note(name, finished(self.device) - begin)
        self.note(f"{name}_reading", self.reading - read)

    def note(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, []).append(seconds)


class Counts:
    """Steps and samples of the first round, counted where PFLlib takes them; later rounds run without hooks."""

    def __init__(self) -> None:
        self.steps = self.samples = 0

    def _step(self, *given: Any) -> None:
        self.steps += 1

    def _loss(self, module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        self.samples += len(given[1])

    @contextmanager
    def watching(self, client: Any) -> Iterator[None]:
        hooks = [client.optimizer.register_step_post_hook(self._step), client.loss.register_forward_hook(self._loss)]
        yield
        for hook in hooks:
            hook.remove()


def timed_server(clock: Clock, counts: Counts) -> Any:
    """PFLlib's server and clients, which also note times; the loop in `train` is PFLlib's."""
    avg: Any = importlib.import_module("flcore.servers.serveravg")
    base: Any = importlib.import_module("flcore.clients.clientbase")
    read = base.read_client_data

    def timed_read(*given: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        found = read(*given, **options)
        clock.reading += time.perf_counter() - begin
        return found

    base.read_client_data = timed_read

    class Client(avg.clientAVG):  # type: ignore[misc]
        counted = False

        def train(self) -> None:
            with nullcontext() if self.counted else counts.watching(self):
                super().train()
            self.counted = True

    avg.clientAVG = Client

    class Server(avg.FedAvg):  # type: ignore[misc]
        def select_clients(self) -> Any:
            clock.reading = 0.0
            return super().select_clients()

        def test_metrics(self) -> Any:
            with clock.part("test"):
                return super().test_metrics()

        def train_metrics(self) -> Any:
            with clock.part("train_loss"):
                return super().train_metrics()

        def aggregate_parameters(self) -> None:
            with clock.part("aggregate"):
                super().aggregate_parameters()
            clock.note("reading", clock.reading)

    return Server


# One round whose models are compared


class RoundDone(Exception):  # noqa: N818
    """The first round is over, and its models are written."""


def checked_server(orders: Path, models: Path) -> Any:
    """PFLlib's server and clients with given batches; after the first average their models are written.

    Clients train in float32 also where torch would round the factors of products to fewer bits.
    """
    avg: Any = importlib.import_module("flcore.servers.serveravg")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    with np.load(orders) as file:
        order = {int(client): file[client].tolist() for client in file.files}

    class Client(avg.clientAVG):  # type: ignore[misc]
        def load_train_data(self, batch_size: int | None = None) -> Any:
            """PFLlib's own function shuffles, and rounds to float32."""
            with np.load(f"../dataset/{DATA_NAME}/train/{self.id}.npz", allow_pickle=True) as file:
                held = file["data"].tolist()
            x, y = (torch.from_numpy(held[name][order[self.id]]) for name in ("x", "y"))
            return DataLoader(TensorDataset(x, y), batch_size or self.batch_size, drop_last=True)

    avg.clientAVG = Client

    class Server(avg.FedAvg):  # type: ignore[misc]
        def evaluate(self, *given: Any, **options: Any) -> None:
            """Nothing: only models are compared."""

        def aggregate_parameters(self) -> None:
            super().aggregate_parameters()
            for client in self.clients:
                write_model(models / f"{client.id}.npz", [*tensors_of(client.model).values()])
            write_model(models / f"{MERGED}.npz", [*self.global_model.parameters()])
            raise RoundDone

    return Server


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters, then what BatchNorm gathered, by their names; counters are left out."""
    buffers = {name: x for name, x in module.named_buffers() if x.is_floating_point()}
    return {**dict(module.named_parameters()), **buffers}


def write_model(path: Path, tensors: Sequence[Tensor]) -> None:
    arrays: Any = {f"{i:03}": x.detach().cpu().numpy() for i, x in enumerate(tensors)}
    np.savez(path, **arrays)


def options_of(given: argparse.Namespace, module: nn.Module) -> SimpleNamespace:
    """PFLlib's options for FedAvg, at its defaults but for the sizes."""
    return SimpleNamespace(
        **{"device": given.device, "dataset": DATA_NAME, "num_classes": given.classes, "model": module},
        **{"global_rounds": given.rounds, "local_epochs": 1, "batch_size": given.batch},
        **{"local_learning_rate": given.lr, "learning_rate_decay": False, "learning_rate_decay_gamma": 0.99},
        **{"num_clients": given.clients, "join_ratio": 1.0, "random_join_ratio": False, "few_shot": 0},
        **{"algorithm": "FedAvg", "time_select": False, "goal": "test", "time_threthold": 10_000},
        **{"save_folder_name": "items", "top_cnt": 100, "auto_break": False, "eval_gap": 1},
        **{"client_drop_rate": 0.0, "train_slow_rate": 0.0, "send_slow_rate": 0.0, "dlg_eval": False, "dlg_gap": 100},
        **{"batch_num_per_client": 2, "num_new_clients": 0, "fine_tuning_epoch_new": 0},
    )


def main() -> None:
    given = _parser().parse_args()
    target, weights = given.to.absolute(), given.weights.absolute()
    orders = given.orders and given.orders.absolute()
    sys.path.insert(0, str(given.pfllib.absolute() / "system"))
    if not Path(sys.path[0], "flcore").is_dir():
        raise SystemExit(f"'{given.pfllib}' is not a checkout of PFLlib: it has no folder system/flcore")
    replaced = replace_missing()
    os.chdir(given.folder / "system")
    if given.threads:
        torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    np.random.seed(given.seed)
    random.seed(given.seed)
    clock, counts = Clock(given.device), Counts()
    server_class = checked_server(orders, target) if orders else timed_server(clock, counts)
    module = model(given.model, given.classes)
    load_in_order(module, weights)
    server = server_class(options_of(given, module.to(given.device)), 0)
    with suppress(RoundDone):
        server.train()
    if orders:
        return
    result = {
        "rounds": server.Budget,
        **clock.seconds,
        **{"steps": counts.steps, "samples": counts.samples},
        **{"accuracy": server.rs_test_acc, "train_loss_of_global_model": server.rs_train_loss},
        **{"stand_ins": replaced, "model": f"{type(module).__module__}.{type(module).__name__}"},
        **{"parameters": sum(x.numel() for x in module.parameters()), "threads": torch.get_num_threads()},
        "tf32": {"convolutions": torch.backends.cudnn.allow_tf32, "products": torch.backends.cuda.matmul.allow_tf32},
    }
    target.write_text(json.dumps(result), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("pfllib", "folder", "weights", "to"):
        made.add_argument(f"--{name}", type=Path, required=True)
    made.add_argument("--orders", type=Path, help="npz with the samples of each client; --to is a folder for models")
    made.add_argument("--model", choices=("cnn", "resnet18"), required=True)
    made.add_argument("--device", default="cpu")
    for name, usual in (("rounds", 5), ("batch", 10), ("classes", 10), ("clients", 20), ("seed", 0), ("threads", 0)):
        made.add_argument(f"--{name}", type=int, default=usual)
    made.add_argument("--lr", type=float, default=0.005)
    return made


if __name__ == "__main__":
    main()
