"""Number lists written as one word, such as `4x4` or `25e9x100e9`, for files and the command line.

A builder takes a sequence, such a word, or one number for a list of one.  The
network keeps the word as its argument, so that its name describes it fully.
"""

import re
from collections.abc import Sequence
from math import isfinite
from typing import TypeVar

from quadrille.algorithms.errors import InputError

WholeNumbers = int | str | Sequence[int]
Numbers = float | str | Sequence[float]
REAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
Number = TypeVar("Number", int, float)


def whole_numbers(family: str, name: str, value: WholeNumbers, *, length: int | None = None) -> tuple[int, ...]:
    """The numbers of a list of whole numbers from 1, such as `8x8x4`.

    >>> whole_numbers("torus", "dims", "8x8x4"), whole_numbers("torus", "dims", 8)
    ((8, 8, 4), (8,))

    Parameters
    ----------
    length : required length of the list; a single number is then repeated

    Raises
    ------
    InputError : another word or length; the message names the family, the list and the accepted values
    """
    words = _words(value)
    if not all(word.isascii() and word.isdigit() and len(word) < 19 and int(word) >= 1 for word in words):
        raise InputError(
            f"{family}: {name}={as_word(value)!s:.60} must be whole numbers from 1 joined by x, such as 4x4"
        )
    return _of_length(family, name, value, tuple(int(word) for word in words), length)


def numbers(family: str, name: str, value: Numbers, *, length: int | None = None) -> tuple[float, ...]:
    """The numbers of a list of finite numbers, such as `25e9x100e9`.

    >>> numbers("tree", "bandwidth", 25e9, length=2)
    (25000000000.0, 25000000000.0)

    Raises
    ------
    InputError : another word or length; the message names the family, the list and the accepted values
    """
    values = tuple(_number(word) for word in _words(value))
    if not values or not all(map(isfinite, values)):
        raise InputError(
            f"{family}: {name}={as_word(value)!s:.60} must be finite numbers joined by x, such as 25e9x100e9"
        )
    return _of_length(family, name, value, values, length)


def as_word(value: Numbers) -> int | float | str:
    """The list as one word with `x` between the numbers; a single number stays a number.

    >>> as_word((4, 4)), as_word(8), as_word("4:4")
    ('4x4', 8, '4x4')
    """
    if isinstance(value, int | float):
        return value
    return "x".join(_words(value))


def _words(value: Numbers) -> list[str]:
    if isinstance(value, str):
        return value.replace(":", "x").split("x")
    return [str(value)] if isinstance(value, int | float) else [str(number) for number in value]


def _number(word: str) -> float:
    return float(word) if word.isascii() and REAL.fullmatch(word) else float("nan")


def _of_length(
    family: str, name: str, value: Numbers, values: tuple[Number, ...], length: int | None
) -> tuple[Number, ...]:
    if length is None or len(values) == length:
        return values
    if len(values) == 1:
        return values * length
    raise InputError(f"{family}: {name}={as_word(value)!s:.60} has {len(values)} numbers; it must have 1 or {length}")
