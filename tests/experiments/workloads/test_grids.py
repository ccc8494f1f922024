from math import comb, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.matmuls.catalogue import algorithms, find_algorithm
from quadrille.algorithms.schedule.grid import AXES
from quadrille.experiments.workloads.grids import divisors, factorisations, grids

ALGORITHMS = [algorithm.name for algorithm in algorithms()]


def exponents(number):
    found = {}
    for prime in range(2, number + 1):
        while number % prime == 0:
            number //= prime
            found[prime] = found.get(prime, 0) + 1
    return found.values()


@given(number=st.integers(1, 300), parts=st.integers(1, 5))
def test_the_primes_of_a_number_are_shared_out_independently(number, parts):
    found = list(factorisations(number, parts))
    assert len(found) == len(set(found)) == prod(comb(e + parts - 1, parts - 1) for e in exponents(number))
    assert all(prod(lengths) == number and len(lengths) == parts for lengths in found)


def test_only_one_is_the_product_of_nothing():
    assert list(factorisations(1, 0)) == [()]
    assert list(factorisations(2, 0)) == []


@given(st.integers(1, 500))
def test_divisors_are_those_that_leave_no_remainder(number):
    assert divisors(number) == [one for one in range(1, number + 1) if number % one == 0]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("ranks", [1, 2, 4, 7, 12, 18])
def test_an_algorithm_runs_on_every_one_of_its_grids(name, ranks):
    algorithm = find_algorithm(name)
    own_grids = list(grids(ranks, algorithm))
    assert bool(own_grids) == (name != "cannon" or ranks in (1, 4))  # the grids of Cannon's algorithm are squares
    for grid in own_grids:
        assert grid.size == ranks
        algorithm.check(grid)


@pytest.mark.parametrize(
    ("name", "ranks", "count"),
    [
        ("4d", 64, 84),
        ("4d", 12, 40),
        ("3d", 64, 28),
        ("summa", 12, 6),
        ("1d-column", 12, 1),
        ("cannon", 36, 1),
        ("cannon", 12, 0),
        ("2.5d", 12, 2),
        ("2.5d", 64, 4),
    ],
)
def test_there_are_as_many_grids_as_counted_by_hand(name, ranks, count):
    assert len(grids(ranks, find_algorithm(name))) == count


def test_grids_have_the_rank_order_asked_for():
    order = ("data", "z", "x", "y")
    assert {grid.order for grid in grids(6, find_algorithm("4d"), order)} == {(*order, "context", "pipeline")}
    assert all(
        set(grid.lengths) == set(AXES) - {"context", "pipeline"} for grid in grids(6, find_algorithm("4d"), order)
    )
