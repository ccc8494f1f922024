"""A figure of a network, which is exact or a bound."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """A value, whether it is exact or a bound, and the method that computed it.

    >>> str(Figure(5.0, "at least", "searched from 4 of 80 endpoints"))
    'at least 5 (searched from 4 of 80 endpoints)'
    """

    value: float
    bound: Literal["exact", "at least", "at most"]
    method: str

    def __str__(self) -> str:
        return f"{'' if self.bound == 'exact' else self.bound + ' '}{self.value:g} ({self.method})"
