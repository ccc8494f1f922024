"""The accounting of Megatron-LM's memory, against formulas of its authors and recordings of its own tests."""

from dataclasses import replace

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.megatron_memory import (
    ALL_CAUSES,
    MegatronMemory,
    layer_parameters,
    stage_parameters,
)
from quadrille.algorithms.training.model_shapes import SHAPES
from tests.support.megatron_steps import SMALL

GIB = 2**30


def test_one_rank_has_the_parameters_of_the_model():
    gpt2 = SHAPES["gpt3-125m"]
    sizes = {name: getattr(gpt2, name) for name in ("layers", "hidden", "heads", "vocabulary", "sequence")}
    more = {"inner": gpt2.mlp, "head_columns": gpt2.head, "key_heads": gpt2.heads, "positions": gpt2.sequence}
    step = replace(SMALL, **sizes, **more)
    assert stage_parameters(step, step.layers, is_first=True, is_last=True) == gpt2.parameters


def test_stages_and_tensor_ranks_share_the_parameters():
    step = replace(SMALL, tensor=4, pipeline=2, vocabulary=50688)
    ends = [stage_parameters(step, 6, is_first=first, is_last=not first) for first in (True, False)]
    table = 50688 // 4 * 512
    assert sum(ends) == 12 * layer_parameters(step) + 2 * table + 1024 * 512 + 2 * 512


@pytest.mark.parametrize(("tensor", "sequence_parallel"), [(1, False), (2, False), (4, False), (2, True), (4, True)])
def test_a_layer_stores_the_bytes_of_korthikanti(tensor, sequence_parallel):
    """Section 4: s b h (10 + 24/t + 5 a s / (h t)), and with sequence parallelism s b h (34/t + 5 a s / (h t))."""
    step = replace(SMALL, tensor=tensor, sequence_parallel=sequence_parallel, attention="unfused")
    sbh = 1024 * 4 * 512
    scores = 5 * 8 * 1024 / (512 * tensor)
    rows = 34 / tensor if sequence_parallel else 10 + 24 / tensor
    assert MegatronMemory(step, gpu="A100").layer_bytes() == sbh * (rows + scores)


@pytest.mark.parametrize(
    ("microbatches", "pipeline", "virtual", "stage", "in_flight"),
    [(8, 4, 1, 0, 4), (8, 4, 1, 3, 1), (2, 4, 1, 0, 2), (8, 4, 3, 3, 9), (8, 4, 3, 0, 15), (1, 4, 3, 0, 3)],
)
def test_chunks_in_flight_are_those_of_the_warm_up_and_one(microbatches, pipeline, virtual, stage, in_flight):
    step = replace(SMALL, gpus=pipeline, pipeline=pipeline, virtual=virtual, micro_batch=1, global_batch=microbatches)
    assert MegatronMemory(step, stage).in_flight == in_flight


RECORDED = {
    "tp1_pp1_dist_optimizer": (SMALL, {"distributed_optimizer": True, "attention": "unfused"}, 4673.1e6),
    "tp1_pp4_disable_bias_linear": (SMALL, {"pipeline": 4, "biases": False}, 2195.2e6),
    "tp1_pp4_vp1, unfused": (SMALL, {"pipeline": 4, "virtual": 3, "attention": "unfused"}, 4119.2e6),
    "tp2_pp2, no mask": (SMALL, {"tensor": 2, "pipeline": 2, "vocabulary": 50432, "mask_from_loader": False}, 1401.0e6),
    "tp1_pp2 local": (SMALL, {"pipeline": 2, "attention": "unfused", "implementation": "local"}, 3632.7e6),
}
"""Peaks on A100 of the last stage, from Megatron-LM's tests/functional_tests/test_cases/gpt, commit d98e8a64ddf3."""


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_peaks_are_within_one_percent(name):
    step, changes, recorded = RECORDED[name]
    assert MegatronMemory(replace(step, **changes), gpu="A100").peak == pytest.approx(recorded, rel=0.01)


def test_every_cause_adds_bytes():
    step = replace(SMALL, pipeline=4, virtual=3, attention="flash", fused_gradients=True, inner=2**17, loss="te")
    everything = MegatronMemory(step, 0, "A100").peak + MegatronMemory(step, -1, "A100").peak
    unfused_loss = replace(step, loss="unfused")
    for cause in ALL_CAUSES.__dataclass_fields__:
        without = replace(ALL_CAUSES, **{cause: False})
        less = sum(MegatronMemory(step, stage, "A100", without).peak for stage in (0, -1))
        fewer = MegatronMemory(unfused_loss, -1, "A100", without).peak - MegatronMemory(unfused_loss, -1, "A100").peak
        assert less < everything or fewer < 0, cause


def test_recomputation_stores_less_and_sharded_states_too():
    unfused = replace(SMALL, attention="unfused")
    peaks = [MegatronMemory(replace(unfused, recompute=words)).peak for words in ("none", "selective", "full")]
    assert peaks == sorted(peaks, reverse=True)
    sharded = replace(SMALL, distributed_optimizer=True)
    full = replace(sharded, sharded_weights=True)
    assert [MegatronMemory(step).by_kind()["optimizer"] for step in (SMALL, sharded)] == pytest.approx(
        [12 * 64.11e6, 12 / 8 * 64.11e6], rel=1e-3
    )
    assert MegatronMemory(full).by_kind()["parameters"] == MegatronMemory(SMALL).by_kind()["parameters"] / 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 0}, "heads 0"),
        ({"tensor": 3}, "multiple of tensor"),
        ({"gpus": 6, "pipeline": 4}, "gpus 6"),
        ({"global_batch": 33}, "global batch 33"),
        ({"pipeline": 4, "stage_layers": (3, 3, 3)}, "stages"),
        ({"attention": "magic"}, "magic"),
        ({"layers": 10**30}, "whole number from 1"),
    ],
)
def test_impossible_steps_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        replace(SMALL, **changes)
