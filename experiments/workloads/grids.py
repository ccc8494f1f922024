"""All process grids of a number of ranks on which an algorithm runs."""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import Algorithm
from quadrille.algorithms.schedule.grid import AXES, DEFAULT_ORDER, Axis, Grid


def factorisations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every ordered factorisation of `number` into `parts` whole numbers from 1.

    A prime power p^e has C(e + parts - 1, parts - 1) factorisations, and the primes of a
    number are independent.

    >>> list(factorisations(6, 2))
    [(1, 6), (2, 3), (3, 2), (6, 1)]
    >>> len(list(factorisations(64, 4)))
    84
    """
    if parts == 0:
        if number == 1:
            yield ()
        return
    if parts == 1:
        yield (number,)
        return
    for first in divisors(number):
        for others in factorisations(number // first, parts - 1):
            yield first, *others


def divisors(number: int) -> list[int]:
    """The divisors of `number` in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [
        divisor for divisor in range(1, int(number**0.5) + 2) if divisor * divisor <= number and number % divisor == 0
    ]
    return low + [number // divisor for divisor in reversed(low) if divisor * divisor != number]


def grids(ranks: int, algorithm: Algorithm, order: tuple[Axis, ...] = DEFAULT_ORDER) -> list[Grid]:
    """Every grid of `ranks` ranks on which the algorithm runs, powers of two or not.

    >>> from quadrille.algorithms.matmuls.catalogue import find_algorithm
    >>> [str(grid) for grid in grids(6, find_algorithm("summa"))]
    ['x=6', 'z=2,x=3', 'z=3,x=2', 'z=6']
    >>> grids(6, find_algorithm("cannon"))
    []
    """
    axes = [axis for axis in AXES if axis in algorithm.axes]
    grids = (Grid(**dict(zip(axes, lengths, strict=True)), order=order) for lengths in factorisations(ranks, len(axes)))
    return [grid for grid in grids if _runs(algorithm, grid)]


def expert_grids(grid: Grid, experts: int, *, powers_of_two: bool = False) -> Iterator[Grid]:
    """The grid with every length of the expert axis that divides the ranks of a stage and a number of experts.

    >>> [str(each) for each in expert_grids(Grid(data=6, x=2), 8)]
    ['data=6,x=2', 'data=6,x=2,expert=2', 'data=6,x=2,expert=4']

    Parameters
    ----------
    experts : experts of a layer; 1 for a dense model
    powers_of_two : whether only powers of two are tried
    """
    for length in divisors(gcd(grid.stage_size, experts)):
        if not (powers_of_two and length & (length - 1)):
            try:
                yield replace(grid, expert=length)
            except InputError:  # the order of the axes spaces the ranks unevenly
                continue


def _runs(algorithm: Algorithm, grid: Grid) -> bool:
    try:
        algorithm.check(grid)
    except InputError:
        return False
    return True
