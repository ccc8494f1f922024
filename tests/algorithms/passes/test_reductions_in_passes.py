"""Gradients reduced in the backward pass, weights gathered beside the forward pass: earlier, and bit by bit equal."""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.passes.rewriting import map_ops
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllReduce, Communication, Gemm, Kernel, ReduceScatter
from quadrille.algorithms.schedule.program import Repeat, walk
from quadrille.algorithms.training.adam import Adam, is_moment
from quadrille.algorithms.training.experts import Experts
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.offload import Offload
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.simulator.simulate import simulate
from tests.support.pairs import pairs
from tests.support.toy_machines import star
from tests.support.trainings import bits, check_training, schedule_of, trained, whole_matrices

ADAM = Adam(clip=0.05, rate=0.05)
BOTH = ("ogr", "opg")
ALL = ("oar", "ors", "oag", *BOTH)


def gpt(**options):
    return Gpt(3, 12, 4, 4, 17, 8, **{"steps": 2, "adam": ADAM, **options})


def walked(schedule, rank=0):
    """The ops of a rank in program order, with their coordinates."""
    role = next(role for role in schedule.roles if role.includes(schedule.coordinates(rank)))
    return list(walk(role.program, schedule.coordinates(rank)))


def is_reduction(op):
    return isinstance(op, AllReduce | ReduceScatter) and op.overlap == "ogr"


GRIDS = [Grid(data=4), Grid(data=2, x=2), Grid(data=2, z=2), Grid(data=2, context=2), Grid(pipeline=2, data=2)]


@pytest.mark.parametrize(
    ("grid", "zero", "micro_batch", "names"), pairs(GRIDS, [0, 1, 2], [1, 2], [BOTH, ALL]), ids=str
)
def test_no_bit_and_no_byte_changes(grid, zero, micro_batch, names):
    check_bits(schedule_of(gpt(zero=zero, micro_batch=micro_batch), grid), names)


def check_bits(plain, names):
    """The overlaps change no bit of a result and no number of bytes."""
    drawn = whole_matrices(plain, 17)
    matrices = {name: np.zeros_like(drawn[name]) if is_moment(name) else drawn[name] for name in drawn}
    changed = validate(overlap(plain, names))
    expected, overlapped = trained(plain, matrices), trained(changed, matrices)
    assert bits(overlapped) == bits(expected)
    assert overlapped.bytes_sent == expected.bytes_sent


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("micro_batch", [None, 1])
def test_overlapped_steps_equal_serial(zero, micro_batch):
    wide = {"dtype": "float64", "steps": 2, "adam": ADAM, "zero": zero, "micro_batch": micro_batch}
    check_training(Gpt(3, 12, 4, 4, 17, 9, **wide), Grid(data=3), overlaps=BOTH)
    check_training(Mlp((7, 11, 5, 13), 12, **wide), Grid(data=3), overlaps=BOTH)


@pytest.mark.parametrize(
    "options",
    [
        {"experts": Experts(4, 2, 8), "zero": 1},
        {"experts": Experts(4, 2, 8, dense_layers=(0,)), "zero": 1},
        {"offload": Offload(), "zero": 1},
        {"recompute": "full", "zero": 1, "micro_batch": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_no_bit_of_a_special_step_changes(options):
    grid = Grid(data=2, expert=2) if "experts" in options else Grid(data=2)
    check_bits(schedule_of(gpt(dtype="float32", **options), grid), ALL)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("micro_batch", [None, 1])
def test_a_layer_is_reduced_before_the_backward_pass_of_the_layer_below(zero, micro_batch):
    problem = gpt(steps=1, zero=zero, micro_batch=micro_batch)
    order = walked(overlap(schedule_of(problem, Grid(data=2), find_scheme("megatron")), ["ogr"]))
    reduced = {
        at.indices["layer"]: position
        for position, (op, at) in enumerate(order)
        if is_reduction(op) and "QKV" in op.name and "layer" in at.indices
    }
    gradients = {
        at.indices["layer"]: position
        for position, (op, at) in enumerate(order)
        if isinstance(op, Gemm) and op.name == "QKV multiply dW"
    }
    assert sorted(reduced) == sorted(gradients) == [0, 1, 2]
    assert gradients[2] < reduced[2] < gradients[1] < reduced[1] < gradients[0] < reduced[0]


def test_gradients_of_earlier_microbatches_are_not_reduced():
    plain = schedule_of(gpt(steps=1, zero=1, micro_batch=1), Grid(data=2))
    order = walked(overlap(plain, ["ogr"]))
    inside = {at.indices["microbatch"] for op, at in order if is_reduction(op) and "microbatch" in at.indices}
    assert inside == {3}, "the last of four"


def test_reductions_of_a_pipeline_stay_after_its_passes():
    plain = schedule_of(gpt(steps=1, zero=1, micro_batch=1), Grid(pipeline=2, data=2))
    changed = overlap(plain, ["ogr"])
    for schedule in (plain, changed):
        order = [op for op, _ in walked(schedule)]
        last_product = max(position for position, op in enumerate(order) if isinstance(op, Gemm))
        reductions = [position for position, op in enumerate(order) if is_reduction(op)]
        assert reductions and min(reductions) > last_product


def test_only_named_overlaps_act():
    plain = schedule_of(gpt(zero=1), Grid(data=2))
    for names, marks in ((("ogr",), {"ogr"}), (("opg",), {"opg"}), (BOTH, set(BOTH))):
        concurrent = {
            op.overlap for op, _ in walked(overlap(plain, names)) if isinstance(op, Communication) and op.concurrent
        }
        assert concurrent == marks


@pytest.mark.parametrize(("zero", "names"), [(0, ("ogr",)), (1, ("ogr",)), (1, ("opg",)), (1, BOTH)])
def test_overlap_over_data_is_worth_time(zero, names):
    plain = schedule_of(Gpt(4, 96, 4, 32, 64, 8, zero=zero), Grid(data=8))
    machine = star(8, bandwidth=1e9, peak=2e11)
    before, after = (simulate(schedule, machine).timeline.makespan for schedule in (plain, overlap(plain, names)))
    assert after < 0.99 * before


def test_an_addition_after_the_sum_of_the_same_layer_is_refused():
    changed = overlap(schedule_of(gpt(zero=0, micro_batch=1), Grid(data=2)), ALL)
    validate(changed)

    def swapped(program):
        """The program with each sum over data at the head of its loop, before the addition to it."""
        entries = [
            replace(entry, body=swapped(entry.body)) if isinstance(entry, Repeat) else entry for entry in program
        ]
        adds = any(isinstance(entry, Kernel) and entry.function == "add_to" for entry in entries)
        sums = [entry for entry in entries if isinstance(entry, AllReduce) and entry.overlap == "ogr"]
        return tuple([*sums, *(entry for entry in entries if entry not in sums)] if adds else entries)

    wrong = changed.with_program(lambda program: map_ops(swapped(program), lambda op: replace(op, after=())))
    with pytest.raises(InputError, match=r"adds to .* only one of the two is a partial sum over data"):
        validate(wrong)
