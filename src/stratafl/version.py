"""The version of this package; pyproject.toml has the same, and a test compares them."""

VERSION = "0.1.0.dev0"
