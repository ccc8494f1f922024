"""A key that a sweep varies, and its values as a person reads them."""

from dataclasses import dataclass
from math import isfinite

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import parse_bytes

KIND = "collective"
"""The key of the kind of collective."""
SIZE = "bytes"
"""The key of the size of a collective."""


@dataclass(frozen=True, slots=True)
class Varied:
    """One key and its values."""

    key: str
    values: tuple[str, ...]

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The values as numbers, a factor as what it multiplies by; None if one is no number.

        >>> Varied("set:device.memory_bytes", ("x1", "x2")).numbers, Varied("dtype", ("float32",)).numbers
        ((1.0, 2.0), None)
        >>> Varied("bytes", ("1KiB", "4KiB")).numbers
        (1024.0, 4096.0)
        """
        number = parse_bytes if self.key == SIZE else float
        try:
            numbers = tuple(float(number(value.removeprefix("x"))) for value in self.values)
        except (ValueError, InputError):
            return None
        return numbers if all(map(isfinite, numbers)) else None
