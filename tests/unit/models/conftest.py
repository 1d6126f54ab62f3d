import pytest
from model_cases import CASES, LARGE, Case

PARAMS = [pytest.param(case, marks=[pytest.mark.slow] * (name in LARGE), id=name) for name, case in CASES.items()]


@pytest.fixture(scope="session", params=PARAMS)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found
