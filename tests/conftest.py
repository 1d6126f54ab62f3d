"""Nothing that a test draws is kept in anybody's home."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before, folder = os.environ.get("STRATAFL_CACHE"), tmp_path_factory.mktemp("cache")
    os.environ["STRATAFL_CACHE"] = str(folder)  # of the processes that tests start, too
    yield folder
    del os.environ["STRATAFL_CACHE"]
    if before is not None:
        os.environ["STRATAFL_CACHE"] = before
