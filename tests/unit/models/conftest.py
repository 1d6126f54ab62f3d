import pytest
from model_cases import CASES, Case


@pytest.fixture(scope="session", params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found
