"""Lists of numbers as one word, `4x4` or `25e9:100e9`: what files and the command line can hold.

A builder takes a sequence as well as such a word, or one number for a list of
one; the network keeps the word, so that it can be built again from its name.
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
    """The whole numbers from 1 in a list such as `8x8x4`.

    >>> whole_numbers("torus", "dims", "8x8x4"), whole_numbers("torus", "dims", 8)
    ((8, 8, 4), (8,))

    Parameters
    ----------
    length : how many there must be; one number then stands for as many

    Raises
    ------
    InputError : naming the family, the list and what is accepted
    """
    words = _words(value)
    if not all(word.isascii() and word.isdigit() and len(word) < 19 and int(word) >= 1 for word in words):
        raise InputError(
            f"{family}: {name}={as_word(value)!s:.60} must be whole numbers from 1 joined by x, such as 4x4"
        )
    return _of_length(family, name, value, tuple(int(word) for word in words), length)


def numbers(family: str, name: str, value: Numbers, *, length: int | None = None) -> tuple[float, ...]:
    """The finite numbers in a list such as `25e9x100e9`.

    >>> numbers("tree", "bandwidth", 25e9, length=2)
    (25000000000.0, 25000000000.0)

    Raises
    ------
    InputError : naming the family, the list and what is accepted
    """
    found = tuple(_number(word) for word in _words(value))
    if not found or not all(map(isfinite, found)):
        raise InputError(
            f"{family}: {name}={as_word(value)!s:.60} must be finite numbers joined by x, such as 25e9x100e9"
        )
    return _of_length(family, name, value, found, length)


def as_word(value: Numbers) -> int | float | str:
    """The list as one word, as an argument of a network keeps it.

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
    family: str, name: str, value: Numbers, found: tuple[Number, ...], length: int | None
) -> tuple[Number, ...]:
    if length is None or len(found) == length:
        return found
    if len(found) == 1:
        return found * length
    raise InputError(f"{family}: {name}={as_word(value)!s:.60} has {len(found)} numbers; it must have 1 or {length}")
