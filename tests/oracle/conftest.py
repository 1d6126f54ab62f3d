import pytest

from stratafl.task import engine


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are not traced: that takes most of the time of a short run, and test_oracle_traced.py shows that it may."""
    monkeypatch.setattr(engine, "patience", lambda _: float("inf"), raising=False)
