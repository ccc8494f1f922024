"""The times of NCCL's collectives in a step, by cause: what does not depend on the bytes is latency."""

import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.bounds.nccl_times import WITH_CAUSES
from quadrille.simulator.simulate import simulate
from quadrille.topologies.find_machine import find_machine

GRIDS = {
    "ring between nodes": Grid(z=16, x=2),
    "ring inside a node": Grid(z=2, x=2),
    "sums in the switch": Grid(y=8),
    "sums in the switches, trees between": Grid(y=16),
    "three axes": Grid(z=4, y=4, x=4),
}


def prediction(size, grid, collectives="nccl"):
    return simulate(
        matmul_schedule(Matmul(size, size, size, dtype="bfloat16"), "4d", grid),
        find_machine("h100-superpod"),
        choices=parse_choices(collectives),
        granularity="collective",
    )


def communication(result):
    """The parts of the ops that communicate, with members in their groups."""
    return [parts for parts in result.parts.values() if parts["latency"] + parts["transfer"] > 0]


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_a_tiny_message_is_latency_and_a_huge_message_is_bandwidth(grid):
    tiny, huge = communication(prediction(64, grid)), communication(prediction(1 << 18, grid))
    assert tiny and len(tiny) == len(huge)
    for small, large in zip(tiny, huge, strict=True):
        assert small["latency"] > 2 * small["transfer"]
        assert large["transfer"] > 10 * large["latency"] > 0


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("collectives", ["nccl", "own:ring", "own:hierarchical"])
def test_the_causes_of_a_path_add_up_to_its_step(grid, collectives):
    result = prediction(4096, grid, collectives)
    path = result.timeline.critical_path()
    seconds = sum(sum(result.breakdowns.of(span).values()) for span in path)
    assert seconds == pytest.approx(sum(span.seconds for span in path), rel=1e-12)
    for op, parts in result.parts.items():
        times = result.times[op]
        assert sum(parts.values()) == pytest.approx(times.seconds + times.waiting_seconds, rel=1e-12)


@pytest.mark.parametrize("size", [64, 2048, 1 << 15])
def test_a_gather_in_a_step_has_the_causes_of_the_same_collective_alone(size):
    """`quadrille collective` finds the causes of the same groups by itself."""
    machine, grid = find_machine("h100-superpod"), Grid(z=16)
    result = prediction(size, grid)
    question = CollectiveQuestion(
        kind="all_gather", bytes=2 * size * size, gpus=16, group=16, choices=parse_choices("nccl"), options=WITH_CAUSES
    )
    alone = predict_collective(question, machine)
    parts = result.parts["gather B"]
    assert parts["latency"] == pytest.approx(alone.seconds_by_part["latency"], rel=0.01)
    assert result.contention["gather B"] == pytest.approx(alone.seconds_by_part["contention"], abs=1e-9)
