"""Message-driven pipelines of the claims: which steps are tried, and what offload and pruning change."""

from dataclasses import replace

import pytest

from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from quadrille.studies.published_training.claimed_steps import ClaimedTraining
from quadrille.studies.published_training.claims import CLAIMS
from quadrille.studies.published_training.message_driven import (
    AXONN,
    OPTIMISED,
    PipelineSetup,
    candidates,
    pipeline_experiment,
    predicted_step,
    state_bytes,
)
from quadrille.studies.published_training.pipeline_claims import compressed_states, offloaded_states

SMALL = ClaimedTraining("summit", 12, ModelShape("small", 12, 1024, 16, 512, 5120), 48, half="float16")


def test_the_least_number_of_stages_that_fits_is_tried():
    micro = 4
    needed = {stages: experiment_peak_bytes(pipeline_experiment(SMALL, AXONN, stages, micro)) for stages in (2, 3, 4)}
    assert needed[2] > needed[3] > needed[4]
    for stages in (3, 4):
        tight = SMALL.what_if(f"device.memory_bytes={needed[stages]}")
        assert next(candidates(tight, AXONN)).grid.pipeline == stages
        assert next(candidates(tight, OPTIMISED)).grid.pipeline < stages


def test_states_are_counted_as_the_papers_count_bytes_of_a_parameter():
    bytes_of_parameter = {"dense": 16.0, "pruned": 2 + 0.1 * (2 + 12) + 0.4}
    dense, pruned = (
        state_bytes(pipeline_experiment(SMALL, setup, 3, 4)) for setup in (AXONN, PipelineSetup(sparsity=0.9))
    )
    assert pruned / dense == pytest.approx(bytes_of_parameter["pruned"] / bytes_of_parameter["dense"], rel=0.35)
    offloaded = offloaded_states(SMALL)
    assert 2 < offloaded.predicted < 4
    assert offloaded.what_if["gradients of 4 bytes"] < offloaded.predicted
    compressed = compressed_states(SMALL)
    assert compressed.predicted == pytest.approx(
        100
        * (
            state_bytes(pipeline_experiment(SMALL, PipelineSetup(sparsity=0.9), 1, 4))
            / state_bytes(pipeline_experiment(SMALL, AXONN, 1, 4))
            - 1
        )
    )
    assert compressed.predicted < compressed.what_if["sparsity 0.8"] < 0


def test_a_predicted_step_is_message_driven():
    step = predicted_step(SMALL, pipeline_experiment(SMALL, OPTIMISED, 3, 4))
    assert step.experiment.problem.pipeline_schedule == "message-driven"
    assert step.setting == "pipeline=3, data=4, microbatches of 4"
    assert 0 < step.communication_seconds < step.seconds
    slower = predicted_step(replace(SMALL, batch=96), pipeline_experiment(replace(SMALL, batch=96), OPTIMISED, 3, 4))
    assert slower.seconds > step.seconds


def test_the_claims_have_names_of_their_own():
    names = [name for name, *_ in CLAIMS]
    assert len(set(names)) == len(names)
