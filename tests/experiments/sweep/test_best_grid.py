"""Tests of the fastest grid for a training step: the microbatches that are tried."""

from dataclasses import replace

import pytest
from msgspec import structs

from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.sweep.best_grid import ranked_steps
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from quadrille.topologies.find_machine import find_machine

MACHINE = find_machine("perlmutter", gpus=4)


@pytest.mark.parametrize("batch", [24, 22])
def test_a_batch_is_cut_into_microbatches_until_a_step_fits(batch):
    """Data does not divide a batch of 22 sequences: the last microbatch is smaller."""
    problem = Gpt(2, 64, 4, 64, 256, batch, dtype="float32")
    whole = TrainingExperiment(problem, Grid(data=4), find_scheme("megatron"))
    halved = replace(whole, problem=replace(problem, micro_batch=3))
    needed = experiment_peak_bytes(halved)
    assert needed < experiment_peak_bytes(whole)
    tight = structs.replace(MACHINE, device=structs.replace(MACHINE.device, memory_bytes=needed))
    chosen = {step.experiment.grid: step.experiment.problem.micro_batch for step in ranked_steps(whole, 4, tight)}
    assert chosen[whole.grid] == 3
