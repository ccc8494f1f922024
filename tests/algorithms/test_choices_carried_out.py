"""Trees and hierarchies, carried out by the runtime and by the simulator: NumPy's product, and the bytes foretold."""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.volumes import bytes_sent
from quadrille.algorithms.collectives.collective_choices import Choices, parse_choices
from quadrille.algorithms.collectives.lowering import lower
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.simulator.simulate import simulate
from tests.support.products import assembled, products, whole_integers
from tests.support.toy_machines import BANDWIDTH, LATENCY, collective, star

GRIDS = [
    ("4d", Grid(data=2, z=4, x=2)),
    ("4d", Grid(z=6, y=4)),
    ("3d", Grid(z=2, y=6, x=2)),
    ("summa", Grid(z=4, x=6)),
    ("1d-row", Grid(y=8)),
]


def two_to_a_node(grid: Grid) -> Choices:
    """Every axis as if pairs of neighbours along it shared a node: no machine is so, but every kind is tried."""
    sharing = tuple((axis, 2) for axis in AXES if grid.length(axis) > 2)
    return replace(parse_choices("own:hierarchical"), per_node=sharing)


@pytest.mark.parametrize(("algorithm", "grid"), GRIDS)
@pytest.mark.parametrize("passes", ["forward", "training"])
@pytest.mark.parametrize("set_name", ["double_binary_tree", "hierarchical", "ring:40B", "double_binary_tree:40B"])
def test_the_product_is_numpy_s_and_the_bytes_are_those_predicted(algorithm, grid, passes, set_name):
    problem = Matmul(53, 37, 41, "float64", passes, panel=5)
    choices = two_to_a_node(grid) if set_name == "hierarchical" else parse_choices(f"own:{set_name}")
    schedule, matrices = matmul_schedule(problem, algorithm, grid), whole_integers(problem)
    execution = execute(schedule, matrices, InProcess(grid.size), choices=choices)
    for name, expected in products(problem, matrices).items():
        np.testing.assert_array_equal(assembled(schedule, execution, name, expected.shape), expected)
    for rank in range(grid.size):
        assert execution.bytes_sent[rank] == bytes_sent(schedule, rank, choices)
        assert execution.allocated_bytes[rank] == storage(schedule, schedule.coordinates(rank), choices).bytes


@pytest.mark.parametrize("set_name", ["double_binary_tree", "hierarchical"])
def test_a_prediction_is_no_faster_than_its_bytes(set_name):
    grid = Grid(z=4, x=6)
    choices = two_to_a_node(grid) if set_name == "hierarchical" else parse_choices(f"own:{set_name}")
    schedule = matmul_schedule(Matmul(530, 370, 410, "float64"), "summa", grid)
    seconds = simulate(schedule, star(grid.size), choices=choices).timeline.makespan
    assert seconds >= max(bytes_sent(schedule, rank, choices) for rank in range(grid.size)) / BANDWIDTH


@pytest.mark.parametrize(("members", "per_node"), [(6, 2), (8, 4), (12, 3)])
def test_a_hierarchy_on_idle_links_takes_its_closed_form(members, per_node):
    """Along the rails one piece a step, inside the nodes as many as there are nodes."""
    choices = replace(parse_choices("own:hierarchical"), per_node=(("x", per_node),))
    size, nodes = members << 20, members // per_node
    piece, hop = (1 << 20) / BANDWIDTH, 2 * LATENCY
    gathered = (nodes - 1) * (hop + piece) + (per_node - 1) * (hop + nodes * piece)
    for kind, expected in (("all_gather", gathered), ("reduce_scatter", gathered), ("all_reduce", 2 * gathered)):
        found = simulate(collective(kind, members, size), star(members), choices=choices)
        assert found.timeline.makespan == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("members", [2, 3, 4, 7, 8, 13])
@pytest.mark.parametrize("kind", ["broadcast", "reduce", "all_reduce"])
def test_two_trees_take_no_longer_than_their_steps(kind, members):
    size = 16 << 20
    found = simulate(collective(kind, members, size), star(members), choices=parse_choices("own:double_binary_tree"))
    lowered = lower(kind, "double_binary_tree", members, size_bytes=size)
    one = 2 * LATENCY + size / lowered.pieces / BANDWIDTH
    assert lowered.pieces * one <= found.timeline.makespan * (1 + 1e-9)
    assert found.timeline.makespan <= lowered.steps * one * (1 + 1e-9)
