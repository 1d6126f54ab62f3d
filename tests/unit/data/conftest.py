"""Every test decodes into a cache of its own, and nothing is asked of the hub."""

import pytest


@pytest.fixture(autouse=True)
def _offline(own_cache):
    """All tests here."""
