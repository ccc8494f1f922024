"""How many cases a test of drawn cases takes: few where draws are the same in every run, more where they are new."""

from hypothesis import settings

FEWER = 3


def examples(number):
    """The number where cases are drawn anew (`make fuzz`), and a third of it where the suite repeats its draws."""
    return -(-number // FEWER) if settings().derandomize else number
