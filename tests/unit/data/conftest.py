"""Every test decodes into a cache of its own, and nothing is asked of the hub."""

import huggingface_hub
import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    def unreachable(*given, **options):
        raise ConnectionError("tests have no network")

    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STRATAFL_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    return folder
