"""Layers of a field, which travel one way or the other."""

from stratafl.core.layers import Select, select
from stratafl.core.records import record


@record
class Travelling:
    """Which layers, and of which field."""

    layers: Select = select("all")
    field: str = "theta"

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", select(self.layers))

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.field,)
