"""`VariedKey`: a key that a sweep varies, and its values as text."""

from dataclasses import dataclass
from math import isfinite

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import parse_bytes

COLLECTIVE_KEY = "collective"
"""The key of the kind of collective."""
GPUS_KEY = "gpus"
"""The key of the number of GPUs."""
SIZE_KEY = "bytes"
"""The key of the size of a collective."""


@dataclass(frozen=True, slots=True)
class VariedKey:
    """A key that a sweep varies, such as `gpus`, and its values as text."""

    key: str
    values: tuple[str, ...]

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The values as numbers, without the x of factors; None if a value is no number.

        >>> VariedKey("set:device.memory_bytes", ("x1", "x2")).numbers, VariedKey("dtype", ("float32",)).numbers
        ((1.0, 2.0), None)
        >>> VariedKey("bytes", ("1KiB", "4KiB")).numbers
        (1024.0, 4096.0)
        """
        number = parse_bytes if self.key == SIZE_KEY else float
        try:
            numbers = tuple(float(number(value.removeprefix("x"))) for value in self.values)
        except (ValueError, InputError):
            return None
        return numbers if all(map(isfinite, numbers)) else None
