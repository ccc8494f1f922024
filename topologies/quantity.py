"""A number with its source; the numbers of GPUs, nodes and machines are made of these."""

from collections.abc import Iterable
from dataclasses import dataclass

UNITS = ("_bytes_per_second", "_seconds")
"""Units that names of rates and times end with."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number in the SI unit that its name tells, and the source of the number.

    >>> Quantity("memory_bytes", 80e9, "data sheet").number
    80000000000.0
    """

    quantity: str
    value: float | str
    source: str

    @property
    def number(self) -> float:
        """The value; it must be a number."""
        assert not isinstance(self.value, str), self.quantity
        return self.value


def bare_name(name: str) -> str:
    """The name without its unit, as the arguments of builders are called.

    >>> bare_name("bandwidth_bytes_per_second"), bare_name("latency_seconds"), bare_name("hosts")
    ('bandwidth', 'latency', 'hosts')
    """
    for unit in UNITS:
        name = name.removesuffix(unit)
    return name


def name_with_unit(name: str) -> str:
    """The name with its unit, as machine files write it.

    >>> name_with_unit("bandwidth"), name_with_unit("uplink_latency"), name_with_unit("hosts")
    ('bandwidth_bytes_per_second', 'uplink_latency_seconds', 'hosts')
    """
    units = {"bandwidth": "_bytes_per_second", "latency": "_seconds"}
    return name + units.get(name.rpartition("_")[2], "")


def numbers_by_key(quantities: Iterable[Quantity], name: str) -> dict[str, float]:
    """The numbers called `name.key`, by key.

    >>> numbers_by_key([Quantity("peak.float32", 67e12, "data sheet"), Quantity("gpus", 8, "data sheet")], "peak")
    {'float32': 67000000000000.0}
    """
    chosen = (quantity for quantity in quantities if quantity.quantity.startswith(f"{name}."))
    return {quantity.quantity.removeprefix(f"{name}."): quantity.number for quantity in chosen}


def number_named(quantities: Iterable[Quantity], name: str) -> float:
    """The number with this name."""
    return next(quantity.number for quantity in quantities if quantity.quantity == name)
