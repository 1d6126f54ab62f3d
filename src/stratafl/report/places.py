"""Where and when runs were made, from what they say of themselves."""

from collections.abc import Mapping, Sequence
from typing import Any

from stratafl.errors import counted
from stratafl.report.formats import NOTHING

Environment = Mapping[str, Any]


def machine(env: Environment) -> str:
    """The machine and the device."""
    parts = [env.get("machine"), counted(env["cores"], "core") if env.get("cores") else None]
    device, name = env.get("device"), env.get("device_name")
    return ", ".join(str(part) for part in (*parts, device, name if name != device else None) if part)


def versions(env: Environment) -> str:
    """The versions of what computed, and the commit."""
    names = [("stratafl", "stratafl"), ("python", "Python"), ("torch", "torch"), ("numpy", "numpy")]
    words = [f"{title} {env[key]}" for key, title in names if env.get(key)]
    return ", ".join([*words, *([f"commit {env['commit'][:10]}"] if env.get("commit") else [])])


def minute(time: Any) -> str:
    """A time up to its minute."""
    return str(time)[:16].replace("T", " ") if time else NOTHING


def span(times: Sequence[str]) -> str:
    """From the first to the last of them."""
    shown = [minute(time) for time in (min(times), max(times))] if times else []
    return f"{' to '.join(dict.fromkeys(shown))} UTC" if shown else ""
