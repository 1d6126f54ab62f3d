"""Edits: what is done to gradients before a step."""

from collections.abc import Mapping

from stratafl.core.layout import Layout, Rows
from stratafl.core.records import record
from stratafl.core.state import Value, rows_of


@record
class Pull:
    """Add strength·(θ − anchor): the gradient of (strength/2)·‖θ − anchor‖²."""

    strength: float
    anchor: str = "anchor"

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.anchor,)

    def __call__(self, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> Rows:
        anchor = rows_of(client, self.anchor)
        return {name: g + self.strength * (row[name] - anchor[name]) for name, g in gradients.items()}
