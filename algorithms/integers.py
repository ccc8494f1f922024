"""Whole numbers as they are typed."""

MOST_DIGITS = 15
"""More than any size has; Python refuses to read thousands of them."""


def parse_integer(text: str) -> int | None:
    """The whole number from 0 that `text` is, in at most 15 digits; None where it is none.

    >>> parse_integer("12"), parse_integer("-1"), parse_integer("1e3"), parse_integer("9" * 16)
    (12, None, None, None)
    """
    return int(text) if len(text) <= MOST_DIGITS and text.isascii() and text.isdigit() else None
