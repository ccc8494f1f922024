"""Whole numbers as they are typed."""

MOST_DIGITS = 15
"""More than any size has; Python refuses to read thousands of them."""


def whole(text: str) -> int | None:
    """The whole number from 0 that `text` is, in at most 15 digits; None where it is none.

    >>> whole("12"), whole("-1"), whole("1e3"), whole("9" * 16)
    (12, None, None, None)
    """
    return int(text) if len(text) <= MOST_DIGITS and text.isascii() and text.isdigit() else None
