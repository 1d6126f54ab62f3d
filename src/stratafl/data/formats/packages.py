"""Packages of the extra `data`, imported when they are needed."""

import importlib
from typing import Any

from stratafl.errors import DataError


def needed(module: str, reads: str) -> Any:
    """The module, or a sentence about how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"reading {reads} needs the package '{module.partition('.')[0]}', which is not installed: "
            "pip install 'stratafl[data]'"
        ) from error
