import pytest

from stratafl.runtime import engine


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are not traced: that takes most of the time of a short run, and test_oracle_traced.py shows that it may."""
    monkeypatch.setattr(engine, "patience", lambda _: float("inf"), raising=False)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are traced the second time they come, not after many."""
    monkeypatch.setattr(engine, "patience", lambda _: 1, raising=False)
