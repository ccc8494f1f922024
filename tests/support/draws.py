"""The number of examples of a property test: fewer if every run draws the same examples."""

from hypothesis import settings

FEWER = 3


def examples(number):
    """`number` if examples are drawn anew (`make fuzz`), and a third of it if the suite repeats its draws."""
    return -(-number // FEWER) if settings().derandomize else number
