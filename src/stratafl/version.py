"""The version of this package; pyproject.toml says the same."""

VERSION = "0.2.0"
