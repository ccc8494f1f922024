"""Tests of options that make a training step fit: one table for predictions and for runs, counted with overlaps."""

import re

import pytest

from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.offload import Offload
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.measure.device_memory import check_device_memory
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.memory_remedies import remedies, remedy_texts
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.what_if import apply_settings

OVERLAPS = ExecutionOptions(overlaps=frozenset({"oar", "ors", "oag"}))


def step(**options):
    problem = Gpt(4, 64, 4, 16, 256, 8, dtype="bfloat16", **options)
    return TrainingExperiment(problem, Grid(data=2, z=2), execution=OVERLAPS)


def test_bytes_of_a_remedy_are_those_of_its_schedule_with_overlaps():
    tried = {remedy.flags: remedy for remedy in remedies(step())}
    assert set(tried) == {
        "--zero 1",
        "--recompute full",
        "--offload optimizer",
        "--offload optimizer --recompute full",
        "--sparsity 0.9 --sparse-states",
    }
    for remedy in tried.values():
        schedule = remedy.experiment.schedule()
        assert schedule.overlap == OVERLAPS.overlaps
        assert remedy.rank_bytes == volumes(schedule, OVERLAPS.choices).peak_bytes_per_rank_max


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"zero": 1, "recompute": "full"}, {"--offload optimizer", "--sparsity 0.9 --sparse-states"}),
        (
            {"zero": 2, "recompute": "full", "sparsity": 0.5},
            {"--offload optimizer", "--sparse-states"},
        ),
        ({"zero": 3, "recompute": "full", "offload": Offload(), "sparsity": 0.5}, {"--sparse-states"}),
    ],
)
def test_options_that_a_step_has_are_no_remedies(options, flags):
    assert {remedy.flags for remedy in remedies(step(**options))} == flags


def test_a_refused_arena_and_a_refused_prediction_name_the_same_options():
    experiment = step()
    sizes = {remedy.flags: remedy.rank_bytes for remedy in remedies(experiment)}
    limit = sorted(sizes.values())[2]
    with pytest.raises(InputError) as refused:
        check_device_memory(experiment, experiment.schedule(), limit)
    fitting = {flags: format_bytes(size) for flags, size in sizes.items() if size <= limit}
    assert len(fitting) == 3
    assert (
        dict(re.findall(r"(--[^(]*?) \(([0-9.]+ .iB)\)", str(refused.value).partition("this limit with")[2])) == fitting
    )
    machine = apply_settings(find_machine("selene"), [f"device.memory_bytes={limit}"])
    texts = [f"with {flags} it fits, in {size}" for flags, size in fitting.items()]
    assert [*remedy_texts(experiment, machine, 1)] == texts
