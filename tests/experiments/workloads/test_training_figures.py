"""Tests of the memory of training steps that sweeps and `rank` name: the largest of any rank, on any stage."""

from dataclasses import replace
from random import Random

import pytest
from msgspec import structs

from quadrille.algorithms.analysis.storage import storages
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.memory import largest_memory
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.offload import Offload
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.sweep.sweep_points import OneGrid
from quadrille.experiments.sweep.training_point import predict_training_point
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.ranks.host_links import host_memory_shortage
from quadrille.topologies.find_machine import find_machine

SELENE = find_machine("selene")
PEAKED = Gpt(8, 60, 6, 16, 256, 12, micro_batch=1, stages=(1, 6, 1))
"""A model with most layers on the middle stage."""


def drawn(random):
    """A training step with a random layout; it may be impossible."""
    pipeline = random.choice((1, 2, 3, 4))
    grid = Grid(
        pipeline=pipeline, data=random.choice((1, 2, 3)), z=random.choice((1, 1, 2)), x=random.choice((1, 2, 3))
    )
    schedule = random.choice(("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "message-driven"))
    chunks = 2 if schedule == "interleaved" else 1
    layers = random.choice((4, 8, 12))
    options = {
        "dtype": random.choice(("float32", "bfloat16")),
        "zero": random.choice((0, 0, 1, 2, 3)),
        "offload": random.choice((None, None, Offload(200), Offload(300, updates_on_host=True))),
        "sparsity": random.choice((0.0, 0.8)),
        "sparse_states": random.random() < 0.4,
        "micro_batch": random.choice((1, 1, 2)),
        "pipeline_schedule": schedule if pipeline > 1 else "1f1b",
        "stages": sizes(random, layers, pipeline * chunks) if pipeline > 1 and random.random() < 0.6 else (),
    }
    if options["sparse_states"] and not options["sparsity"]:
        options["sparsity"] = 0.7
    if schedule == "message-driven" and pipeline > 1:
        options["pipeline_limit"] = random.choice((0, 1, 3))
    if random.random() < 0.3:
        problem = Mlp(tuple(random.choice((20, 36, 64)) for _ in range(layers + 1)), 24, **options)
    else:
        more = {"recompute": random.choice(("none", "full")), "interleave": chunks if pipeline > 1 else 1}
        problem = Gpt(layers, 60, 6, 16, 53, 12, **options | more)
    overlaps = frozenset(random.choice(((), ("oar", "ors", "oag"))))
    scheme = random.choice(("4d", "megatron"))
    return TrainingExperiment(problem, grid, find_scheme(scheme), ExecutionOptions(overlaps=overlaps))


def sizes(random, layers, parts):
    """Layers of each part, at least one."""
    cuts = sorted(random.sample(range(1, layers), min(parts, layers) - 1))
    return tuple(stop - start for start, stop in zip([0, *cuts], [*cuts, layers], strict=True))


def possible_steps(seed, count):
    """Random training steps that are possible, each with the buffers of all its ranks."""
    random = Random(seed)
    while count:
        try:
            experiment = drawn(random)
            schedule = experiment.applied_schedule()
        except InputError:
            continue
        count -= 1
        ranks = [schedule.coordinates(rank) for rank in range(experiment.grid.size)]
        yield experiment, storages(schedule, ranks, experiment.execution.choices)


@pytest.mark.parametrize("seed", range(3))
def test_the_largest_memory_is_that_of_the_fullest_of_all_ranks(seed):
    for experiment, buffers in possible_steps(seed, 4):
        assert experiment_peak_bytes(experiment) == max(each.bytes for each in buffers), experiment
        kinds = largest_memory(experiment.applied_schedule(), experiment.execution.choices)
        assert sum(kinds.values()) == max(each.bytes + each.host_bytes for each in buffers), experiment


@pytest.mark.parametrize("stages", [(1, 6, 1), (3, 2, 3)])
def test_host_memory_is_that_of_the_fullest_of_all_ranks(stages):
    problem = replace(PEAKED, stages=stages, offload=Offload(200))
    experiment, choices = TrainingExperiment(problem, Grid(pipeline=3, x=2)), Choices()
    schedule, placement = experiment.schedule(), place_ranks(SELENE, 6)
    buffers = storages(schedule, [schedule.coordinates(rank) for rank in range(6)], choices)
    needed = 6 * max(each.host_bytes for each in buffers)
    enough, too_little = (structs.replace(SELENE.host_link, memory_bytes=needed + more) for more in (0.0, -1.0))
    assert not host_memory_shortage(schedule, placement, enough, choices)
    assert f"6 ranks of a host keep {format_bytes(needed)}" in host_memory_shortage(
        schedule, placement, too_little, choices
    )


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "message-driven"])
def test_a_sweep_names_the_memory_of_a_middle_stage_with_most_layers(schedule):
    experiment = TrainingExperiment(replace(PEAKED, pipeline_schedule=schedule), Grid(pipeline=3))
    answer = predict_training_point(OneGrid(experiment, SELENE))
    built = experiment.schedule()
    first, middle, last = storages(built, [built.coordinates(rank) for rank in range(3)], Choices())
    assert answer.peak_bytes_per_rank_max == middle.bytes > 2 * max(first.bytes, last.bytes)
