"""The Pareto front: the points that no other point beats in every amount."""

from collections.abc import Sequence


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """The indices of the points to which no other point is at least as small in all amounts and smaller in one.

    >>> pareto_front([(1, 5), (2, 2), (3, 3), (5, 1), (2, 2)])
    [0, 1, 3, 4]

    Parameters
    ----------
    points : amounts of each point, all of which are better if they are smaller
    """
    front: list[int] = []
    for index in sorted(range(len(points)), key=lambda place: tuple(points[place])):
        if not any(_beats(points[kept], points[index]) for kept in front):
            front.append(index)
    return sorted(front)


def _beats(first: Sequence[float], second: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(first, second, strict=True)) and any(
        a < b for a, b in zip(first, second, strict=True)
    )
