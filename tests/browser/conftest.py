"""A headless Chromium, if there is one; it must be there where CI or STRATAFL_BROWSER=required says so."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "report"))  # for the runs that are written by hand

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


def missing(what: str) -> None:
    """Skip, or fail where a browser is required."""
    if os.environ.get("CI") or os.environ.get("STRATAFL_BROWSER") == "required":
        pytest.fail(f"{what} is required and not there", pytrace=False)
    pytest.skip(f"{what} is not there (Debian: apt-get install chromium chromium-driver)")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        missing("chromium with chromedriver")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ModuleNotFoundError:
        missing("selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    browser.set_script_timeout(20)
    yield browser
    browser.quit()
