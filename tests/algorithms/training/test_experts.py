"""Layers of experts: trained on every kind of grid as the serial reference trains them, whose slopes are checked."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.traffic import traffic
from quadrille.algorithms.analysis.volumes import flops, storages_of_stages, volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid, parse_grid
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Role, Schedule, all_ops
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.architecture import GEMMA, LLAMA, PLAIN, Architecture
from quadrille.algorithms.training.experts import ExpertLoad, Experts, parse_expert_load
from quadrille.algorithms.training.flops import step_flops
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.runtime.training.serial_experts import SerialExperts
from quadrille.runtime.training.serial_transformer import gpt_loss
from quadrille.runtime.training.tensor_copies import tensor_copy
from quadrille.simulator.simulate import Shortcuts, simulate
from tests.support.gradients import check_gradients
from tests.support.toy_machines import star
from tests.support.trainings import (
    assembled,
    check_training,
    in_batch_order,
    schedule_of,
    total_flops,
    trained,
    whole_matrices,
)

ADAM = Adam(rate=0.03, decay=0.1, clip=0.05)
EXPERTS = Experts(4, 2, 10, balance=0.01)
KEEP = "full-keep-exchange"
KINDS = {
    "softmax": EXPERTS,
    "shared": replace(EXPERTS, shared=12),
    "one of four": replace(EXPERTS, chosen=1),
    "not normalised": Experts(4, 3, 10, normalised=False, scale=2.5),
    "sigmoid": replace(EXPERTS, router="sigmoid", scale=1.5),
    "capacity": replace(EXPERTS, capacity=1.0, shared=12),
    "groups": Experts(12, 4, 10, router="sigmoid", groups=6, chosen_groups=2, balance=0.01),
    "gated shared": replace(EXPERTS, shared=12, shared_gate=True),
    "biases": replace(EXPERTS, biases=True, chosen=3),
    "biases and capacity": Experts(4, 2, 10, biases=True, capacity=1.0, shared=12, shared_gate=True),
    "one group": Experts(8, 2, 10, groups=4, chosen_groups=1, capacity=1.5),
}


def gpt(experts=EXPERTS, layers=2, batch=8, **given):
    given = {"dtype": "float64", "adam": ADAM, "architecture": Architecture(gated=True), **given}
    return Gpt(layers, 24, given.pop("heads", 6), given.pop("sequence", 3), 17, batch, experts=experts, **given)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_router_equals_serial(kind):
    check_training(gpt(KINDS[kind], steps=2), Grid(data=4, expert=2))


@pytest.mark.parametrize(
    ("grid", "options"),
    [
        ("data=2", {"batch": 7, "micro_batch": 2}),
        ("data=4,expert=4", {"zero": 3, "gathered": "keep"}),
        ("data=4,expert=2", {"zero": 1, "steps": 2}),
        ("data=4,expert=2", {"zero": 2, "micro_batch": 1}),
        ("data=4,expert=2", {"zero": 3, "micro_batch": 1, "recompute": "full"}),
        ("data=4,expert=2", {"zero": 3, "micro_batch": 1, "recompute": KEEP}),
        ("data=2,expert=2,pipeline=2", {"micro_batch": 2, "recompute": KEEP}),
        ("data=2,expert=2,pipeline=2", {"micro_batch": 2, "pipeline_schedule": "zb-h1", "recompute": KEEP}),
        ("data=4,expert=2", {"batch": 13, "micro_batch": 2, "architecture": replace(GEMMA, key_heads=3)}),
        ("data=2,expert=2,pipeline=2", {"micro_batch": 2, "architecture": PLAIN}),
        ("data=2,expert=2,pipeline=2", {"micro_batch": 2, "pipeline_schedule": "gpipe", "recompute": "full"}),
        ("data=2,expert=2,pipeline=2", {"micro_batch": 2, "interleave": 2, "layers": 4}),
        ("data=2,expert=2,pipeline=2", {"micro_batch": 2, "pipeline_schedule": "zb-h1", "zero": 2}),
        ("data=2,expert=2,pipeline=2", {"micro_batch": 2, "pipeline_schedule": "zb-v", "layers": 4}),
        ("data=2,expert=2,pipeline=2", {"micro_batch": 2, "pipeline_schedule": "zb-h1", "recompute": "full"}),
        ("data=2,expert=2,pipeline=2", {"micro_batch": 2, "pipeline_schedule": "message-driven", "dropout": 0.2}),
    ],
    ids=str,
)
def test_every_option_trains_experts_as_the_serial_run_does(grid, options):
    check_training(gpt(**options), parse_grid(grid))


@pytest.mark.parametrize(
    ("kinds", "grid", "options"),
    [
        ({"dense_layers": frozenset({1})}, "data=4,expert=2", {"layers": 3, "steps": 2, "zero": 1}),
        (
            {"every": 2, "shared": 12},
            "data=4,expert=2",
            {"layers": 3, "zero": 3, "micro_batch": 1, "recompute": "full"},
        ),
        ({"dense_layers": frozenset({0})}, "data=2,expert=2,pipeline=2", {"layers": 4, "interleave": 2}),
        ({"every": 2}, "data=2,expert=2,pipeline=2", {"layers": 4, "pipeline_schedule": "zb-v", "zero": 2}),
        ({"dense_layers": frozenset({0, 2})}, "data=2,pipeline=2", {"layers": 5, "pipeline_schedule": "zb-h1"}),
        (
            {"dense_layers": frozenset({0})},
            "data=2,pipeline=2",
            {"layers": 3, "architecture": replace(LLAMA, key_heads=3)},
        ),
    ],
    ids=str,
)
def test_dense_layers_beside_experts_equal_serial(kinds, grid, options):
    """With one rank along expert, the memory of every rank is the predicted one, too."""
    pipelined = {"micro_batch": 2} if "pipeline" in grid else {}
    check_training(gpt(replace(EXPERTS, **kinds), **pipelined, **options), parse_grid(grid))


def test_weights_are_gathered_ahead_beside_dense_layers():
    """A gather stays within the choice of a layer's kind."""
    problem = gpt(replace(EXPERTS, every=2), layers=3, zero=3, micro_batch=1)
    check_training(problem, Grid(data=4, expert=2), overlaps=("oag", "ors", "oar"))


def test_dense_layers_are_counted_and_named():
    text = "layers=5,hidden=8,heads=2,sequence=4,vocabulary=16,experts=4,top_k=2,expert_ffn=6,gated=yes"
    mixed, whole = find_shape(f"{text},dense_layers=1,experts_every=2"), find_shape(text)
    of_experts, of_dense = 8 * 4 + 4 * 3 * 8 * 6, 3 * 8 * 32 + 2 * 32 + 8  # the dense MLP has biases
    assert whole.parameters - mixed.parameters == 3 * (of_experts - of_dense)
    assert mixed.experts.dense(5) == (True, False, True, False, True)
    schedule = schedule_of(gpt(mixed.experts, layers=5), Grid(data=2, pipeline=2))
    names = {
        schedule.tensors["up W"].copy_name(at)
        for at in schedule.tensors["up W"].copy_coordinates(schedule.coordinates(3))
    }
    assert names == {"up W dense_layer 2"}  # the last stage has the last two layers
    assert tensor_copy(schedule, "up W dense_layer 2").indices == {"dense_layer": 2}


@pytest.mark.parametrize("collectives", ["own", "library", "own:pairwise"])
def test_rows_travel_by_every_implementation(collectives):
    check_training(gpt(Experts(6, 2, 10)), Grid(data=3, expert=3), find_scheme("megatron"), collectives)


def test_no_expert_is_needed_by_every_rank():
    """Top 1 of many experts leaves most of them without rows."""
    check_training(gpt(Experts(16, 1, 6), batch=4), Grid(data=4, expert=4))


@pytest.mark.parametrize("kind", KINDS)
def test_serial_gradients_are_slopes(kind):
    """At fixed choices: the loss jumps where another expert is chosen."""
    problem = gpt(KINDS[kind], batch=2, layers=1)
    matrices = whole_matrices(schedule_of(problem, Grid()), 17)
    tokens, targets = (matrices[f"{name} step 0"].reshape(2, 3) for name in ("tokens", "targets"))
    choices = {}

    def loss_of(held):
        experts = SerialExperts(problem.experts, 2, problem.layers, choices)
        model = problem.layers, problem.heads, problem.architecture
        loss, gradients = gpt_loss(held, tokens, targets, *model, experts=experts)
        return loss + experts.auxiliary_loss, gradients

    check_gradients(
        loss_of, {name: each for name, each in matrices.items() if not name.startswith("t") or name == "table"}
    )


@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
def test_the_auxiliary_loss_of_even_loads_is_its_coefficient(router):
    """Experts · Σ (rows of expert / rows) · mean share is 1 if all shares are equal, whichever experts are chosen."""
    problem = gpt(replace(EXPERTS, router=router), layers=3, adam=Adam(rate=1e-9))
    schedule = schedule_of(problem, Grid(data=2, expert=2, pipeline=3))
    matrices = whole_matrices(schedule, 17)
    routers = {name: np.zeros_like(each) for name, each in matrices.items() if name.startswith("router W")}
    execution = trained(schedule, matrices | routers)
    (losses,) = assembled(schedule, "auxiliary loss", execution.outputs).values()
    np.testing.assert_allclose(losses[:, 0], 0.01, rtol=1e-12)


def test_flops_are_those_of_chosen_experts():
    problem = gpt(Experts(4, 2, 10, shared=12), architecture=replace(LLAMA, key_heads=3))
    for grid in (Grid(), Grid(data=4, expert=2)):
        assert total_flops(schedule_of(problem, grid)) == step_flops(problem.shape, 8).hardware


def test_even_loads_need_as_much_memory_with_any_number_of_ranks_along_expert():
    """Weights and their states shrink with the ranks that share out experts; activations do not."""
    problem = gpt(Experts(8, 2, 40))
    peaks = [
        volumes(schedule_of(problem, Grid(data=4, expert=ranks)), Choices()).peak_bytes_per_rank_max
        for ranks in (1, 2, 4)
    ]
    of_an_expert = 2 * 4 * 8 * 24 * 120  # layers · (weights, gradients, two moments) · bytes · parameters
    assert peaks[0] - peaks[1] > 4 * of_an_expert * 0.8
    assert peaks[1] - peaks[2] > 2 * of_an_expert * 0.8


LOADS = ExpertLoad(counts=(6, 0, 1, 1))


def test_uneven_loads_give_ranks_the_flops_of_their_experts():
    """Products of experts take 6 · rows · hidden · (2 + 1) · inner flop, forward and backward, for each row."""
    grid = Grid(data=4, expert=4)
    even, uneven = (schedule_of(gpt(expert_load=load), grid) for load in (None, LOADS))
    each = 2 * 3 * 24 * 30 * 2  # layers · forward and backward · hidden · inner columns
    rows = 2 * 3 * 2  # sequences · tokens · experts of a token, on each of 4 ranks
    for rank, count in enumerate(LOADS.counts):
        more = flops(uneven, uneven.coordinates(rank)) - flops(even, even.coordinates(rank))
        assert more == each * rows * (count / 2 - 1)


def test_uneven_loads_send_rows_to_hot_experts():
    schedule = schedule_of(gpt(expert_load=LOADS), Grid(data=4, expert=4))
    op = next(op for op in all_ops(schedule) if op.name == "send to experts")
    sent = traffic(op, schedule, schedule.coordinates(1), Choices())
    assert sent.edges == tuple(24 * rows for rows in (0, 9, 9, 10, 12))  # 12 rows by 6:0:1:1
    assert sent.receive_edges == (0,) * 5


def test_the_fullest_rank_is_that_of_the_hottest_expert():
    grid, hot_last = Grid(data=4, expert=4), ExpertLoad(counts=(0, 0, 0, 1))
    fullest = {
        load: storages_of_stages(schedule_of(gpt(expert_load=load), grid), Choices()) for load in (None, hot_last)
    }
    most = {load: max(storage.bytes for storage in storages) for load, storages in fullest.items()}
    assert most[hot_last] > most[None]


def test_the_fullest_rank_may_be_second_by_each_of_two_loads():
    """By rows of two tensors (6, 0, 5, 1) and (0, 6, 5, 1), rank 2 has most rows together."""

    def routed(name, loads):
        return Tensor(name, Part("m", ("data",), loads=loads), Part("n"))

    tensors = {name: routed(name, loads) for name, loads in {"A": (6, 0, 5, 1), "B": (0, 6, 5, 1)}.items()}
    grid = Grid(data=4, expert=4)
    schedule = Schedule("two loads", {"m": 12, "n": 2}, grid, "float32", tensors, ("A", "B"), (), (Role(()),))
    fullest = max(storage.bytes for storage in storages_of_stages(schedule, Choices()))
    assert fullest == max(storage(schedule, schedule.coordinates(rank), Choices()).bytes for rank in range(4))
    assert fullest == 4 * 2 * (5 + 5)


@pytest.mark.parametrize("load", [None, ExpertLoad(zipf=1.5)], ids=str)
def test_folded_predictions_are_exact_where_x_cuts_tokens_too(load):
    """Two groups of experts on 8 ranks, each of 2 ranks along x and 2 along data."""
    problem = gpt(SHARED, expert_load=load, sequence=4, layers=1)
    for tensor, classes in ((1, 4), (2, 4)):
        schedule = schedule_of(problem, Grid(data=4, x=2, expert=4 // tensor, expert_tensor=tensor), MEGATRON)
        folded, exact = (simulate(schedule, star(8), shortcuts=Shortcuts(fold=fold)) for fold in (True, False))
        assert folded.timeline.makespan == pytest.approx(exact.timeline.makespan, rel=1e-12)
        assert folded.extent.rank_classes == (2 if load is None else classes)


@pytest.mark.parametrize("load", [None, LOADS, ExpertLoad(zipf=1.5)], ids=str)
def test_folded_predictions_of_experts_are_exact(load):
    """Ranks with hot experts are not alike those with cold ones."""
    schedule = schedule_of(gpt(expert_load=load, batch=16), Grid(data=8, expert=4))
    folded, exact = (simulate(schedule, star(8), shortcuts=Shortcuts(fold=fold)) for fold in (True, False))
    assert folded.timeline.makespan == pytest.approx(exact.timeline.makespan, rel=1e-12)
    assert (folded.extent.rank_classes == 1) == (load is None) and folded.extent.rank_classes <= 4


def test_a_load_in_a_file_is_that_of_its_counts(tmp_path):
    path = tmp_path / "counts.txt"
    path.write_text("[6, 0,\n1 1]\n")
    assert parse_expert_load(str(path)) == LOADS


def test_a_model_by_numbers_has_experts():
    text = "layers=2,hidden=8,heads=2,sequence=4,vocabulary=16,experts=4,top_k=2,expert_ffn=6,gated=yes,router=sigmoid"
    assert find_shape(text).experts == Experts(4, 2, 6, router="sigmoid")
    changed = find_shape(text.replace("gated=yes", "gated=yes,shared_ffn=10"))
    assert changed.parameters - find_shape(text).parameters == 2 * 3 * 8 * 10
    assert changed.parameters - changed.active_parameters == 2 * 2 * 3 * 8 * 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": Experts(3, 1, 8)}, "grid expert=2: the ranks along expert share out the experts"),
        ({"experts": None}, "grid expert=2: the model has no experts"),
        ({"sparsity": 0.5}, "sparsity 0.5: no schedule has it together with experts"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_line(changes, message):
    with pytest.raises(InputError, match=message):
        schedule_of(replace(gpt(), **changes), Grid(data=4, expert=2))


@pytest.mark.parametrize("numbers", [(4, 5, 8), (4, 0, 8), (0, 1, 8), (4, 1, 0)], ids=str)
def test_experts_are_checked(numbers):
    with pytest.raises(InputError, match="accepted"):
        Experts(*numbers)


UNBALANCED = replace(EXPERTS, balance=0.0, shared=12)
SHARED = replace(EXPERTS, shared=12)
MEGATRON = find_scheme("megatron", sequence_parallel=True)


@pytest.mark.parametrize(
    ("experts", "grid", "options", "scheme"),
    [
        (EXPERTS, "data=2,z=2,expert=2", {"zero": 1}, find_scheme("4d")),
        (SHARED, "data=2,x=3", {"micro_batch": 2}, MEGATRON),
        (UNBALANCED, "data=2,x=3,expert=2", {"zero": 3, "recompute": "full"}, MEGATRON),
        (
            replace(SHARED, every=2),
            "data=2,x=3,expert=2,pipeline=2",
            {"micro_batch": 2, "layers": 4, "zero": 1, "architecture": replace(LLAMA, key_heads=3)},
            MEGATRON,
        ),
        (replace(SHARED, router="sigmoid"), "data=2,context=3", {"zero": 1, "sequence": 6}, find_scheme("megatron")),
        (replace(SHARED, normalised=False), "data=2,context=2,x=2,expert=2", {"sequence": 4, "steps": 2}, MEGATRON),
        (SHARED, "data=2,context=2,z=2,expert=2", {"sequence": 4, "dropout": 0.2}, find_scheme("4d")),
    ],
    ids=str,
)
def test_axes_that_cut_tokens_beside_experts_equal_serial(experts, grid, options, scheme):
    check_training(gpt(experts, **options), parse_grid(grid), scheme)


@pytest.mark.parametrize(
    ("experts", "grid", "options", "scheme"),
    [
        (SHARED, "data=2,expert_tensor=2", {}, find_scheme("4d")),
        (replace(SHARED, router="sigmoid"), "data=4,expert=2,expert_tensor=2", {"zero": 1}, find_scheme("4d")),
        (SHARED, "data=2,x=2,expert=2,expert_tensor=2", {"sequence": 4, "steps": 2}, MEGATRON),
        (replace(EXPERTS, count=2, inner=9), "data=2,x=3,expert=2,expert_tensor=3", {"architecture": PLAIN}, MEGATRON),
        (
            replace(SHARED, capacity=1.0),
            "data=2,x=2,expert_tensor=2",
            {"sequence": 4, "zero": 3, "recompute": "full", "micro_batch": 1},
            MEGATRON,
        ),
        (
            replace(SHARED, every=2),
            "data=2,x=2,expert=2,expert_tensor=2,pipeline=2",
            {"sequence": 4, "layers": 4, "micro_batch": 2, "pipeline_schedule": "zb-h1", "recompute": KEEP},
            MEGATRON,
        ),
    ],
    ids=str,
)
def test_experts_that_ranks_cut_equal_serial(experts, grid, options, scheme):
    check_training(gpt(experts, **options), parse_grid(grid), scheme)


def test_rows_of_cut_experts_travel_by_library_calls():
    check_training(gpt(SHARED, sequence=4), parse_grid("data=2,x=2,expert=2,expert_tensor=2"), MEGATRON, "library")


def test_ranks_that_cut_experts_send_each_row_once_and_gather_it():
    """Twice the ranks along expert_tensor: half of the columns of twice the rows, exchanged among half of the ranks."""
    sent, work = {}, []
    for grid in (Grid(data=4, x=2, expert=4), Grid(data=4, x=2, expert=4, expert_tensor=2)):
        schedule = schedule_of(gpt(EIGHT, sequence=4, architecture=LLAMA), grid, MEGATRON)
        at, named = schedule.coordinates(5), {op.name: op for op in all_ops(schedule)}
        rows = schedule.tensors["expert U"].block(at).rectangle_shape
        assert rows == (8 * grid.expert_tensor, 20 // grid.expert_tensor)  # 8 sequences · 4 tokens · 2 / 8 ranks
        for name in ("send to experts", "gather rows of experts", "sum rows of experts"):
            if name in named:
                sent[name, grid.expert_tensor] = traffic(named[name], schedule, at, Choices()).bytes_sent
        work.append(total_flops(schedule))
    assert work[0] == work[1]
    whole = 8 * 24 * 8  # rows · hidden · bytes
    assert sent == {
        ("send to experts", 1): whole * 3 // 4,
        ("send to experts", 2): whole * 3 // 4,
        ("gather rows of experts", 2): whole,
        ("sum rows of experts", 2): whole,
    }


def test_the_auxiliary_loss_is_the_same_however_sequences_are_cut():
    found = []
    for grid in (Grid(), Grid(data=2, x=2), Grid(context=2, x=2, expert=2, expert_tensor=2)):
        schedule = schedule_of(gpt(replace(EXPERTS, balance=0.5), sequence=4), grid, MEGATRON)
        matrices = whole_matrices(schedule_of(gpt(sequence=4), Grid()), 17)
        own = whole_matrices(schedule, 17)
        for name in own.keys() - matrices.keys():
            stacked = matrices[name.replace(" transposed", "")].reshape(4, 10, 24)
            matrices[name] = stacked.transpose(0, 2, 1).reshape(4 * 24, 10)
        order = in_batch_order(schedule, {name: np.arange(len(matrices[name])) for name in own}, 4)
        ordered = {name: matrices[name][np.argsort(order[name])] for name in own}
        (loss,) = assembled(schedule, "auxiliary loss", trained(schedule, ordered).outputs).values()
        found.append(loss[0, 0])
    np.testing.assert_allclose(found, found[0], rtol=1e-12)
    assert 0.5 < found[0] < 2


EIGHT = replace(UNBALANCED, count=8)
"""More experts than data ranks: ranks along other axes share them out, too."""


@pytest.mark.parametrize(
    ("grid", "options", "scheme"),
    [
        ("data=4,x=2,expert=8", {"zero": 1}, MEGATRON),
        ("x=2,expert=2,pipeline=2", {"micro_batch": 3, "pipeline_schedule": "zb-h1", "recompute": KEEP}, MEGATRON),
        ("data=2,x=2,expert=4,pipeline=2", {"micro_batch": 2, "layers": 4, "interleave": 2, "zero": 2}, MEGATRON),
        ("data=2,x=3,expert=2", {"zero": 3, "sequence": 3}, MEGATRON),
        ("x=2,context=2,expert=2", {"zero": 1, "steps": 2}, MEGATRON),
        ("data=2,context=2,expert=4", {"zero": 3, "recompute": "full"}, find_scheme("megatron")),
        ("z=4,expert=2", {"zero": 2}, find_scheme("4d")),
    ],
    ids=str,
)
def test_ranks_of_a_stage_share_out_experts_as_the_serial_run_has_them(grid, options, scheme):
    options = {"sequence": 4, **options}
    check_training(gpt(replace(EIGHT, biases=True), **options), parse_grid(grid), scheme)


def test_rows_travel_between_tensor_ranks_by_library_calls_and_above_capacity_are_dropped():
    problem = gpt(replace(EIGHT, capacity=1.0), sequence=4)
    check_training(problem, parse_grid("data=2,x=2,expert=4"), MEGATRON, "library")


def test_tensor_and_data_ranks_share_out_experts_as_in_megatron():
    """Consecutive ranks of a stage share out the experts; ranks at that distance hold the same ones."""
    for tensor, data, pipeline, expert in ((2, 4, 1, 8), (2, 4, 2, 4), (2, 2, 2, 2), (4, 2, 1, 2)):
        grid = Grid(x=tensor, data=data, pipeline=pipeline, expert=expert)
        ranks = np.arange(grid.size).reshape(pipeline, -1, expert)
        assert [*grid.groups("expert")] == [tuple(group) for group in ranks.reshape(-1, expert).tolist()]
        replicas = np.moveaxis(ranks, 1, 2).reshape(pipeline * expert, -1).tolist()
        assert sorted(grid.groups("replica")) == sorted(map(tuple, replicas))


def test_eight_ranks_hold_an_eighth_of_the_experts_each_and_exchange_seven_eighths_of_their_rows():
    for grid in (Grid(data=8, expert=8), Grid(data=4, x=2, expert=8), Grid(data=2, x=4, expert=8)):
        schedule = schedule_of(gpt(EIGHT, sequence=4, heads=4, architecture=LLAMA), grid, MEGATRON)
        op = next(op for op in all_ops(schedule) if op.name == "send to experts")
        edges = traffic(op, schedule, schedule.coordinates(5), Choices()).edges
        assert edges == tuple(
            24 * part for part in range(9)
        )  # 8 · 4 · 2 rows / 8 ranks: 8 of each, one for each expert
        for name, height in (("experts up W", 24), ("experts down W", 10)):
            assert schedule.tensors[name].block(schedule.coordinates(5)).rows == (5 * height, 6 * height)


FULL = replace(UNBALANCED, capacity=1.0)
ROUTED_APART = [
    ("data=2", {"batch": 7, "micro_batch": 2}, MEGATRON),
    ("data=4,expert=2", {"zero": 3, "micro_batch": 1, "recompute": "full"}, MEGATRON),
    ("data=2,expert=2,pipeline=2", {"micro_batch": 1, "pipeline_schedule": "zb-h1"}, MEGATRON),
    ("data=2,x=3,expert=2", {"sequence": 6}, MEGATRON),
    ("data=2,context=2,expert=2", {"sequence": 8, "zero": 1}, find_scheme("megatron")),
    ("data=2,z=2,expert=2", {"layers": 3}, find_scheme("4d")),
]


@pytest.mark.parametrize(("grid", "options", "scheme"), ROUTED_APART, ids=str)
def test_tokens_above_the_capacity_of_a_rank_are_dropped_as_in_the_serial_run(grid, options, scheme):
    check_training(gpt(FULL, **options), parse_grid(grid), scheme)


@pytest.mark.parametrize("recompute", ["none", "full", KEEP])
@pytest.mark.parametrize("options", [{}, {"pipeline": 2}, {"x": 2}, {"x": 2, "expert_tensor": 2}], ids=str)
def test_memory_is_the_predicted_one_where_capacity_1_leaves_no_expert_more_rows_than_the_mean(recompute, options):
    problem = gpt(replace(FULL, balance=0.01), sequence=4, micro_batch=1, recompute=recompute)
    schedule, execution = check_training(problem, Grid(data=2, expert=2, **options), MEGATRON)
    assert max(execution.allocated_bytes.values()) == volumes(schedule, Choices()).peak_bytes_per_rank_max


def test_a_token_has_experts_of_chosen_groups_only():
    """Expert 0 has the largest score; the two of group 1 have more together."""
    from quadrille.runtime.kernels.kernel_arguments import KernelArguments
    from quadrille.runtime.kernels.routing_kernels import route

    scores, into = np.array([[3.0, 0.0, 2.5, 2.0, -1.0, 0.0]]), [np.zeros((1, 2), int), np.zeros((1, 2))]
    into += [np.zeros((1, 2), int), np.zeros((1, 6), int)]
    scalars = {"top_k": 2, "sigmoid": 1, "normalised": 1, "scale": 1, "capacity": inf, "groups": 3, "chosen_groups": 1}
    route(KernelArguments(np, tuple(into), (), (scores,), (), scalars, 0))
    assert into[0].tolist() == [[2, 3]] and into[3].tolist() == [[0, 0, 1, 1, 0, 0]]


def test_kept_exchanges_are_not_repeated_and_store_two_tensors_of_each_layer():
    grid, peaks, sent = Grid(data=2, expert=2), {}, {}
    for recompute in ("none", "full", KEEP):
        schedule = schedule_of(gpt(recompute=recompute, layers=5), grid)
        exchanges = [op.name for op in all_ops(schedule) if getattr(op, "counts", "") and hasattr(op, "back")]
        sent[recompute] = sum(name.startswith("again") for name in exchanges)
        peaks[recompute] = volumes(schedule, Choices()).peak_bytes_per_rank_max
    assert sent == {"none": 0, "full": 2, KEEP: 0}
    rows, counts = 8 // 2 * 3 * 2, 2 * 4  # rows sent by a rank, and rows of each expert from each rank
    assert peaks[KEEP] - peaks["full"] == 4 * (2 * rows * 24 * 8 + counts * 4)
    assert peaks[KEEP] < peaks["none"]


def test_dropped_tokens_change_the_loss_and_a_capacity_of_all_tokens_drops_none():
    grid = Grid(data=2, expert=2)
    matrices = whole_matrices(schedule_of(gpt(), grid), 17)
    losses = [
        assembled(schedule, "loss", trained(schedule, matrices).outputs)
        for schedule in (schedule_of(gpt(replace(UNBALANCED, shared=0, capacity=each)), grid) for each in (1, 4, inf))
    ]
    assert losses[0] != losses[1] == losses[2]


def test_a_capacity_takes_rows_from_hot_experts():
    """At capacity 1.5, the loads 6:0:1:1 are 3:0:1:1: each of 4 ranks sends half as many of 24 rows to expert 0."""
    grid, of_rows = Grid(data=4, expert=4), {}
    for capacity in (1.5, inf):
        schedule = schedule_of(gpt(replace(EXPERTS, capacity=capacity), expert_load=LOADS, batch=16), grid)
        op = next(op for op in all_ops(schedule) if op.name == "send to experts")
        of_rows[capacity] = [
            traffic(op, schedule, schedule.coordinates(rank), Choices()).receive_edges[-1] // 24 for rank in range(4)
        ]
    assert of_rows == {inf: [4 * 18, 0, 4 * 3, 4 * 3], 1.5: [4 * 9, 0, 4 * 3, 4 * 3]}


def test_ranks_along_x_send_their_own_tokens():
    """Twice the ranks along x: each sends half of the rows."""
    sent = []
    for ranks in (1, 2):
        grid = Grid(data=2, expert=2, x=ranks)
        schedule = schedule_of(gpt(UNBALANCED, sequence=4), grid, MEGATRON)
        op = next(op for op in all_ops(schedule) if op.name == "send to experts")
        sent.append(traffic(op, schedule, schedule.coordinates(0), Choices()).edges[-1])
    assert sent == [2 * sent[1], sent[1]]


@pytest.mark.parametrize(
    ("grid", "scheme", "changes", "message"),
    [
        (Grid(data=2, x=2), find_scheme("megatron"), {}, "grid x=2: experts need whole tokens: x=1 is accepted"),
        (Grid(data=2, y=2), find_scheme("4d"), {}, "grid y=2: experts need whole tokens"),
        (Grid(data=2, z=2), find_scheme("bian"), {}, "grid z=2: experts need whole tokens"),
        (Grid(data=2, x=2), MEGATRON, {"experts": UNBALANCED}, "sequence 3: .* a multiple of 2 is accepted"),
        (Grid(data=3, expert_tensor=3), MEGATRON, {}, "grid expert_tensor=3: .* must divide expert_ffn = 10"),
        (Grid(data=2, expert_tensor=2), MEGATRON, {"experts": KINDS["biases"]}, "cuts experts with biases"),
        (Grid(data=2, expert_tensor=2), MEGATRON, {"experts": None}, "grid expert_tensor=2: the model has no experts"),
    ],
    ids=str,
)
def test_tokens_that_cannot_be_cut_are_refused(grid, scheme, changes, message):
    with pytest.raises(InputError, match=message):
        schedule_of(replace(gpt(), **changes), grid, scheme)


def test_ranks_that_cut_experts_are_neighbours_as_in_megatron():
    """Megatron-LM numbers expert tensor ranks first, then expert ranks, then replicas."""
    for tensor, data, pipeline, expert, cut in ((2, 4, 1, 2, 2), (2, 4, 2, 2, 4), (1, 8, 1, 4, 2)):
        grid = Grid(x=tensor, data=data, pipeline=pipeline, expert=expert, expert_tensor=cut)
        ranks = np.arange(grid.size).reshape(pipeline, -1, expert, cut)
        for place, axis in enumerate(("replica", "expert", "expert_tensor"), 1):
            groups = np.moveaxis(ranks, place, -1).reshape(-1, ranks.shape[place]).tolist()
            assert sorted(grid.groups(axis)) == sorted(map(tuple, groups))
            assert all(grid.moved(grid.coordinates(rank), axis, 0)["x"] < tensor for rank in range(grid.size))
    with pytest.raises(InputError, match=r"grid expert=4 times expert_tensor=4: .* divides 8: accepted are 1, 2"):
        Grid(data=4, x=2, expert=4, expert_tensor=4)
    with pytest.raises(InputError, match=r"grid expert_tensor=3: .* divides 8: accepted are 1, 2, 4, 8"):
        Grid(data=4, x=2, expert_tensor=3)


def test_ranks_along_expert_divide_those_of_a_stage():
    with pytest.raises(InputError, match=r"grid expert=3: .* 8 ranks of a pipeline stage .* accepted are 1, 2, 4, 8"):
        Grid(data=4, x=2, pipeline=3, expert=3)


def test_pipeline_between_ranks_that_share_out_experts_is_refused():
    order = ("x", "pipeline", "data")
    assert Grid(data=4, x=2, pipeline=2, expert=2, order=order).group(0, "replica") == (0, 4, 8, 12)
    with pytest.raises(
        InputError, match=r"pipeline lies between the ranks of a stage: expert=2 is accepted, and so is"
    ):
        Grid(data=4, x=2, pipeline=2, expert=4, order=order)
