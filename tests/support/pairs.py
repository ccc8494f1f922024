"""Covering sets: a few combinations of options in which every two values of different options meet."""

from itertools import combinations, product


def pairs(*options):
    """Combinations of one value of each option, so that every two values of different options occur together.

    Each combination is the one of the full product that holds most pairs which no earlier combination holds.

    >>> pairs("ab", "xy", [0, 1])
    [('a', 'x', 0), ('a', 'y', 1), ('b', 'x', 1), ('b', 'y', 0)]

    Parameters
    ----------
    options : the values of each option
    """
    candidates = list(product(*(range(len(values)) for values in options)))
    left, chosen = set().union(*map(pairs_of, candidates)), []
    while left:
        best = max(candidates, key=lambda candidate: len(left & pairs_of(candidate)))
        left -= pairs_of(best)
        chosen.append(best)
    return [tuple(values[index] for values, index in zip(options, one, strict=True)) for one in sorted(chosen)]


def pairs_of(combination):
    """The pairs of a combination: two options, each with its value."""
    return set(combinations(enumerate(combination), 2))
