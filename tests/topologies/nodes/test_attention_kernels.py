"""Kernels of fused attention by name: their times relative to the tables, and where no rate is known."""

import pytest

from quadrille.algorithms.analysis.volumes import AttentionProducts, Work
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.kernel_signatures import ATTENTION_PRODUCTS, FUSED_ATTENTION
from quadrille.algorithms.schedule.ops import Kernel
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.simulator.machine.compute_model import ComputeModel
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.nodes.attention_kernels import BY_TABLE, attention_kernel
from quadrille.topologies.nodes.kernel_tables import kernel_table_names

RATES = {"flash2": (319, 368, 310), "cudnn": (518, 609, 499), "flash3": (579, 638, 542)}
"""FlashAttention-3, figures 5 and 6: forward with a mask, forward and backward without [10^12 flop/s]."""


def seconds(machine, kernel, function="attention", overhead=5e-6):
    work = AttentionProducts(64, 4096, 128, 2, function, kernel=kernel)
    touched = 2**28 * (2 if work.backward else 1)
    model = ComputeModel(find_machine(machine), "bfloat16", 1, 1)
    return model.kernel(Work(0, work.flops, touched, work), function).seconds - overhead


@pytest.mark.parametrize("kernel", RATES)
def test_on_h100_kernels_have_the_published_rates_relative_to_each_other(kernel):
    causal, forward, backward = RATES[kernel]
    assert seconds("h100-node", kernel) / seconds("h100-node", None) == pytest.approx(579 / causal)
    assert seconds("h100-node", kernel, "attention_gradient") / seconds("h100-node", kernel) == pytest.approx(
        2.5 * forward / backward
    )


def test_the_usual_kernel_of_a_gpu_is_that_of_its_table():
    assert seconds("a100-node", "flash2") == seconds("a100-node", None)
    assert seconds("h200-node", "flash3") == seconds("h200-node", None)
    assert seconds("b200-node", "cudnn") == seconds("b200-node", None)
    assert {*BY_TABLE} == {*kernel_table_names()}


def test_a_later_generation_is_faster_on_every_gpu_that_has_both():
    for kernels in BY_TABLE.values():
        times = [kernels[name].slower for name in FUSED_ATTENTION[:3] if name in kernels]
        assert times == sorted(times, reverse=True)


def test_a_kernel_without_a_rate_on_a_gpu_is_refused_with_those_that_have_one():
    with pytest.raises(InputError, match="flash3: on a100-sxm, accepted are fused, unfused, flash2, flash1"):
        attention_kernel("a100-sxm", "flash3")


def test_a_machine_without_a_table_takes_every_fused_kernel_alike():
    assert seconds("frontier", "flash1") == seconds("frontier", None)


def test_a_name_changes_nothing_of_a_schedule_but_a_scalar_of_attention():
    plain, named = (
        gpt_schedule(Gpt(1, 64, 4, 16, 128, 2, attention=attention), Grid(x=2), Scheme4D())
        for attention in ("fused", "flash2")
    )
    assert plain.tensors == named.tensors
    for op, other in zip(all_ops(plain), all_ops(named), strict=True):
        if isinstance(op, Kernel) and op.function in ATTENTION_PRODUCTS:
            assert {**dict(op.scalars), "kernel": 2.0} == dict(other.scalars)
        else:
            assert op == other
