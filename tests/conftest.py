"""Nothing that a test draws is kept in anybody's home, and a failure is printed when it happens."""

import gc
import os
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from pathlib import Path
from weakref import WeakValueDictionary

import pytest

import budgets


class FailuresAtOnce:
    """What failed is printed when it fails: a suite that is cut off by a time limit prints no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.nodeid} failed in its {report.when}:\n{report.longreprtext}")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected: a quarter of the collection is spent looking for garbage
    budgets.register(config)
    if not hasattr(config, "workerinput"):  # a worker of xdist has no terminal
        config.pluginmanager.register(FailuresAtOnce(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long modules come first at each worker, which begins with an equal part: nobody waits for them at the end."""
    long = [item for item in items if item.get_closest_marker("long")]
    if not long:
        return
    modules = list(dict.fromkeys(item.path for item in long))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    others = iter([item for item in items if item not in set(long)])
    parts = [[item for item in long if modules.index(item.path) % workers == at] for at in range(workers)]
    size = len(items) // workers
    items[:] = [item for part in parts for item in (*part, *islice(others, max(0, size - len(part))))]
    items += others


def pytest_collection_finish() -> None:
    """Leave what was collected, and stays to the end, out of every search for garbage: half a second each."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before, folder = os.environ.get("STRATAFL_CACHE"), tmp_path_factory.mktemp("cache")
    os.environ["STRATAFL_CACHE"] = str(folder)  # of the processes that tests start, too
    os.environ["STRATAFL_MEASURE"] = "off"  # no test depends on which engine is faster here and now
    yield folder
    del os.environ["STRATAFL_CACHE"]
    if before is not None:
        os.environ["STRATAFL_CACHE"] = before


@pytest.fixture(scope="session", autouse=True)
def _no_scikit_learn() -> None:
    """Our own logistic regression, which finds the same: scikit-learn takes two seconds to import."""
    from stratafl.runs import logistic as baselines

    baselines.PACKAGE = "a package that is not installed"


@pytest.fixture(scope="session", autouse=True)
def _digits_are_divided_once() -> None:
    """Runs of all tests that divide the packaged digits in the same way share the federation, as those of a process do
    while one of them lasts."""
    from stratafl.data import loading
    from stratafl.data.federation import Federation

    held: list[Federation] = []

    class Held(WeakValueDictionary[Hashable, Federation]):
        def __setitem__(self, key: Hashable, federation: Federation) -> None:
            if isinstance(key, tuple) and key[0] == "digits":
                held.append(federation)
            super().__setitem__(key, federation)

    loading._shared = Held()


@pytest.fixture
def divided_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that another test divided is shared with this one, and nothing of it stays."""
    from stratafl.data import loading

    monkeypatch.setattr(loading, "_shared", WeakValueDictionary())


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    """Sets how many threads torch uses, for this test only."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for one test alone, and a hub that cannot be reached."""
    import huggingface_hub  # takes a second, which only tests of data need

    def unreachable(*given: object, **options: object) -> None:
        raise ConnectionError("tests have no network")

    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STRATAFL_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    return folder
