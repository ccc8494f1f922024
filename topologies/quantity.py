"""A number with its source: what named GPUs, nodes and machines are made of."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, in SI units that its name says, and where it comes from.

    >>> Quantity("memory_bytes", 80e9, "data sheet").number
    80000000000.0
    """

    quantity: str
    value: float | str
    source: str

    @property
    def number(self) -> float:
        """The value, where it is one number."""
        assert not isinstance(self.value, str), self.quantity
        return self.value


def table(quantities: Iterable[Quantity], name: str) -> dict[str, float]:
    """The numbers called `name.key`, by key.

    >>> table([Quantity("peak.float32", 67e12, "data sheet"), Quantity("gpus", 8, "data sheet")], "peak")
    {'float32': 67000000000000.0}
    """
    found = (one for one in quantities if one.quantity.startswith(f"{name}."))
    return {one.quantity.removeprefix(f"{name}."): one.number for one in found}


def of(quantities: Iterable[Quantity], name: str) -> float:
    """The number of this name."""
    return next(one.number for one in quantities if one.quantity == name)
