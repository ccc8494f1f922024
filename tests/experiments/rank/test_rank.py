import json
import re
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.analysis.axonn import (
    FRONTIER,
    MODELLED,
    PERLMUTTER,
    block_products,
    block_seconds,
    effective_bandwidth,
    known_bandwidth,
)
from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.architecture import LLAMA
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.offload import DEFAULT_BUCKET
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.algorithms.units import GIB
from quadrille.cli.parsing.flags import RankFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.ranking import parse_question
from quadrille.experiments.rank.analytical_ranking import rank_candidates
from quadrille.experiments.rank.candidate_grids import GridLimits, candidate_grids
from quadrille.experiments.rank.disagreements import causes_of_communication_model, explanation_lines
from quadrille.experiments.rank.kendall_tau import kendall_tau
from quadrille.experiments.rank.memory_by_grid import host_bytes_by_grid, peak_bytes_by_grid
from quadrille.experiments.rank.ring_bandwidths import bandwidth_table, simulated_bandwidth, split_known_bandwidths
from quadrille.experiments.rank.work_sharing import WorkSharing
from quadrille.experiments.workloads.grids import factorisations
from tests.support.by_words import ranked as rank
from tests.support.formulas import gpt_block_seconds, gpt_block_seconds_of_authors
from tests.support.launched import launched
from tests.support.quadrille import called
from tests.support.rank_questions import simulated_step

SMALL = "layers=3,hidden=60,heads=6,sequence=7,vocabulary=53"
WHOLE_TILES = "layers=2,hidden=1024,heads=8,sequence=16,vocabulary=256"
"""A model whose blocks cut no tiles of a pruned matrix on 8 GPUs."""
PERLMUTTER_FLAGS = MachineFlags(machine="perlmutter")
IN_FEATURES_FIRST = "y,x,z,data"
HOST = """schema = "quadrille/machine/1"
name = "toy"
[topology]
family = "host"
cores = 8
[device]
peak_flops_per_second = { float32 = 1e11 }
memory_bytes_per_second = 1e10
memory_bytes = 8e9
overhead_seconds = 5e-6
"""


def asked(on=PERLMUTTER_FLAGS, **flags):
    return parse_question(RankFlags(**{"gpt": SMALL, "batch": "12", "gpus": "6", **flags}), on)


def refusal(on=PERLMUTTER_FLAGS, **flags):
    with pytest.raises(InputError) as refused:
        rank(RankFlags(**{"gpt": SMALL, "batch": "12", "gpus": "6", "form": "exact", **flags}), on)
    text = str(refused.value)
    assert "\n" not in text
    return text


# The analytical model


@pytest.mark.parametrize(
    ("form", "golden"),
    [
        ("authors", {(1, 1, 32, 1): 1.335, (1, 4, 8, 1): 1.486, (1, 1, 16, 2): 1.522, (1, 4, 4, 2): 1.543}),
        ("exact", {(1, 1, 32, 1): 1.335, (1, 4, 8, 1): 1.346, (1, 4, 4, 2): 1.403, (1, 2, 16, 1): 1.430}),
    ],
)
def test_20b_on_32_gpus_is_ranked_as_known(form, golden):
    flags = {"form": form, "order": IN_FEATURES_FIRST, "powers_of_two": True, "min_model_parallel": "16"}
    found = rank_candidates(asked(gpt="20b", batch="32", gpus="32", recompute="full", **flags), WorkSharing())
    best = {}
    for place in range(4):
        grid = found.candidate_grids.grid(place)
        best[grid.y, grid.x, grid.z, grid.data] = round(float(found.seconds[place]), 3)
    assert best == golden
    assert list(best) == list(golden)
    assert not found.bandwidths
    assert found.from_table


@pytest.mark.parametrize(
    ("form", "one_grid"), [("exact", gpt_block_seconds), ("authors", gpt_block_seconds_of_authors)]
)
def test_all_grids_at_once_take_what_each_takes_by_itself(form, one_grid):
    question = asked(gpt="5b", batch="64", gpus="64", form=form, recompute="full")
    found = rank_candidates(question, WorkSharing())
    assert len(found) > 300
    for place in range(0, len(found), 7):
        grid = found.candidate_grids.grid(place)
        seconds = 24 * one_grid(64, 2048, 4096, grid, PERLMUTTER)
        assert found.seconds[place] == pytest.approx(seconds, rel=1e-12)
        assert sum(of_axis[place] for of_axis in found.by_axis.values()) == pytest.approx(seconds, rel=1e-12)
    assert (np.diff(found.seconds) >= -1e-9 * found.seconds[1:]).all()


@pytest.mark.parametrize(("together", "x", "y"), [(12, 6, 2), (48, 12, 4), (27, 9, 3)])
def test_without_recomputation_x_is_best_three_times_as_long_as_y(together, x, y):
    boxes = np.array(list(factorisations(together, 2)))
    ones = np.ones(len(boxes), dtype=np.int64)
    lengths = {"data": ones, "z": ones, "y": boxes[:, 0], "x": boxes[:, 1]}
    found = block_seconds(
        np.full(len(boxes), 64.0), block_products(8), lengths, dict.fromkeys(MODELLED, 1.0), recomputed=False
    )
    seconds = found["x"] + found["y"]
    volume = 12 * (boxes[:, 0] - 1) + 4 * (boxes[:, 1] - 1)
    np.testing.assert_allclose(seconds / seconds[0], volume / volume[0])
    best = int(np.argmin(seconds))
    if together == 27:  # 3 : 1 itself is a grid here and the neighbours are 27 : 1
        assert seconds[best] < seconds[0]
    assert tuple(boxes[best]) == (y, x)


def test_gradients_of_two_bytes_halve_the_sum_over_data():
    full, half = (
        rank_candidates(asked(gpus="6", order="data,x", min_model_parallel="1", gradient_bytes=size), WorkSharing())
        for size in "42"
    )
    of = [
        {str(one.candidate_grids.grid(place)): one.by_axis["data"][place] for place in range(len(one))}
        for one in (full, half)
    ]
    assert of[0]["data=6"] == pytest.approx(2 * of[1]["data=6"])
    assert of[0]["data=6"] > 0


# Candidates


@pytest.mark.parametrize("gpus", [1, 5, 12, 24])
def test_candidates_are_all_that_differ_each_once(gpus):
    found = candidate_grids(
        gpus, GridLimits(), find_shape("layers=1,hidden=5040,heads=5040,sequence=2,vocabulary=5040"), 5040
    )
    strides = found.strides()
    seen = [
        tuple(
            (int(found.lengths[axis][place]), int(strides[axis][place]))
            for axis in MODELLED
            if found.lengths[axis][place] > 1
        )
        + tuple(int(found.lengths[axis][place]) for axis in MODELLED)
        for place in range(len(found))
    ]
    assert len(set(seen)) == len(seen)
    wanted = set()
    for data, z, y, x in factorisations(gpus, 4):
        for order in permutations(MODELLED):
            grid = Grid(data=data, z=z, y=y, x=x, order=order)
            long = [axis for axis in MODELLED if grid.length(axis) > 1]
            wanted.add((*((grid.length(axis), grid.stride(axis)) for axis in long), data, z, y, x))
    assert set(seen) == wanted


def test_strides_are_those_of_the_grid():
    found = candidate_grids(24, GridLimits(), find_shape("5b"), 24)
    strides = found.strides()
    assert len(found)
    for place in range(len(found)):
        grid = found.grid(place)
        assert {axis: grid.stride(axis) for axis in MODELLED} == {axis: int(strides[axis][place]) for axis in MODELLED}


def test_heads_sequences_and_limits_narrow_the_grids():
    shape = find_shape(SMALL)
    found = candidate_grids(24, GridLimits(order=("z", "y", "x", "data"), least_model_parallel=8), shape, batch=5)
    for place in range(len(found)):
        grid = found.grid(place)
        assert shape.heads % grid.x == 0
        assert grid.data * grid.z <= 5
        assert grid.x * grid.y * grid.z >= 8
        assert grid.order[:4] == ("z", "y", "x", "data")
    assert {1, 3} <= {found.grid(place).data for place in range(len(found))}
    powers = candidate_grids(8, GridLimits(powers_of_two=True), shape, batch=8)
    assert set(np.unique(np.stack(list(powers.lengths.values())))) <= {1, 2, 4, 8}


# Memory


@pytest.mark.parametrize(
    ("attention", "recompute"), [("fused", "full"), ("fused", "none"), ("unfused", "none"), ("unfused", "selective")]
)
@pytest.mark.parametrize("overlap", ["none", "oar,ors,oag"])
def test_memory_of_all_grids_at_once_is_what_each_rank_keeps(attention, recompute, overlap):
    question = asked(gpus="12", batch="13", attention=attention, recompute=recompute, overlap=overlap)
    every = candidate_grids(12, question.limits, question.shape, question.problem.batch)
    assert len(every)
    for place in range(0, len(every), 23):
        grid = every.grid(place)
        schedule = question.schedule(grid)
        lengths = {axis: np.array([grid.length(axis)]) for axis in MODELLED}
        assert (
            int(peak_bytes_by_grid(schedule, lengths)[0]) == storage(schedule, schedule.coordinates(0), Choices()).bytes
        )
    found = rank_candidates(question, WorkSharing())
    assert len(found)
    for place in range(0, len(found), 17):
        schedule = question.schedule(found.candidate_grids.grid(place))
        assert int(found.peak_bytes[place]) == storage(schedule, schedule.coordinates(0), Choices()).bytes


@pytest.mark.parametrize("grid", [Grid(y=2, x=3), Grid(z=2, y=3), Grid(data=2, z=3)], ids=str)
def test_memory_of_a_grid_has_the_packed_blocks_of_an_all_to_all(grid):
    """Latents of attention are exchanged over y, from rows to columns."""
    traits = replace(LLAMA, key_rank=9, query_rank=7, head_columns=6, rotary_columns=2, value_columns=4)
    schedule = gpt_schedule(Gpt(2, 24, 6, 5, 17, 12, architecture=traits), grid, find_scheme("4d"))
    lengths = {axis: np.array([grid.length(axis)]) for axis in MODELLED}
    expected = storage(schedule, schedule.coordinates(0), Choices()).bytes
    assert int(peak_bytes_by_grid(schedule, lengths)[0]) == expected


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("overlap", ["none", "oar,ors,oag"])
def test_memory_of_all_grids_at_once_counts_kept_elements(compressed, overlap):
    options = {"sparsity": "0.8", "sparse_states": compressed, "overlap": overlap}
    question = asked(gpus="12", batch="13", **options)
    every = candidate_grids(12, question.limits, question.shape, question.problem.batch)
    for place in range(0, len(every), 17):
        grid = every.grid(place)
        schedule = question.schedule(grid)
        lengths = {axis: np.array([grid.length(axis)]) for axis in MODELLED}
        expected = storage(schedule, schedule.coordinates(0), Choices()).bytes
        assert int(peak_bytes_by_grid(schedule, lengths)[0]) == expected


@pytest.mark.parametrize("offload", ["optimizer", "optimizer:1000", "optimizer:host:1000"])
def test_memory_of_all_grids_at_once_counts_offloaded_states_on_hosts(offload):
    question = asked(gpus="12", batch="13", offload=offload)
    bucket = question.problem.offload.bucket or DEFAULT_BUCKET
    every = candidate_grids(12, question.limits, question.shape, question.problem.batch)
    of_two = {}
    for place in range(0, len(every), 11):
        grid = every.grid(place)
        schedule = question.schedule(grid)
        long = tuple(axis for axis in MODELLED if grid.length(axis) > 1)
        of_two.setdefault(long, schedule)  # the schedule of another grid with the same long axes
        lengths = {axis: np.array([grid.length(axis)]) for axis in MODELLED}
        expected = storage(schedule, schedule.coordinates(0), Choices())
        assert int(peak_bytes_by_grid(of_two[long], lengths, bucket)[0]) == expected.bytes
        assert int(host_bytes_by_grid(of_two[long], lengths, bucket)[0]) == expected.host_bytes > 0


@pytest.mark.parametrize("offload", ["optimizer:1000", "optimizer:host"])
def test_memory_of_all_grids_at_once_counts_offloaded_compressed_states(offload):
    question = asked(gpus="8", batch="16", sparsity="0.8", sparse_states=True, offload=offload, gpt=WHOLE_TILES)
    bucket = question.problem.offload.bucket or DEFAULT_BUCKET
    every = candidate_grids(8, question.limits, question.shape, question.problem.batch)
    for place in range(0, len(every), 11):
        grid = every.grid(place)
        schedule = question.schedule(grid)
        lengths = {axis: np.array([grid.length(axis)]) for axis in MODELLED}
        expected = storage(schedule, schedule.coordinates(0), Choices())
        assert int(peak_bytes_by_grid(schedule, lengths, bucket)[0]) == expected.bytes
        assert int(host_bytes_by_grid(schedule, lengths, bucket)[0]) == expected.host_bytes > 0


def test_grids_whose_hosts_have_too_little_memory_are_left_out():
    question = asked(gpus="4", batch="8", offload="optimizer")
    every = candidate_grids(4, question.limits, question.shape, question.problem.batch)
    kept = []
    for place in range(len(every)):
        schedule = question.schedule(every.grid(place))
        kept.append(4 * storage(schedule, schedule.coordinates(0), Choices()).host_bytes)
    for limit in (max(kept), max(kept) - 1, min(kept)):
        on = replace(PERLMUTTER_FLAGS, settings=(f"host_link.memory_bytes={limit}",))
        found = rank_candidates(asked(on, gpus="4", batch="8", offload="optimizer"), WorkSharing())
        assert found.without == sum(size > limit for size in kept)
    on = replace(PERLMUTTER_FLAGS, settings=(f"host_link.memory_bytes={min(kept) - 1}",))
    with pytest.raises(InputError, match=r"--offload optimizer keeps at least .* in the memory of a host"):
        rank_candidates(asked(on, gpus="4", batch="8", offload="optimizer"), WorkSharing())


def test_what_does_not_fit_is_left_out():
    question = asked(gpt="20b", batch="32", gpus="32")
    found = rank_candidates(question, WorkSharing())
    assert found.without > 0
    assert found.peak_bytes.max() <= question.machine.device.memory_bytes
    assert len(found) + found.without == len(candidate_grids(32, question.limits, question.shape, 32))


# Bandwidths


def test_where_the_table_has_it_the_table_holds_and_the_rest_is_simulated():
    machine = asked(gpus="24", batch="24").machine
    table = bandwidth_table(machine, 24)
    assert table is PERLMUTTER
    found, lacking = split_known_bandwidths([(1, 4), (1, 3), (3, 8), (4, 6), (24, 1)], table)
    assert found == {(1, 4): 225 * GIB, (4, 6): 20 * GIB, (24, 1): float("inf")}
    assert lacking == [(1, 3), (3, 8)]
    rate = simulated_bandwidth(machine, 24)
    assert 20e9 < rate((3, 8)) <= 25e9  # three rings leave a node of four GPUs, two by the same NIC at times
    assert rate((1, 4)) == pytest.approx(300e9, rel=0.01)  # NVLink3: 12 links of 25 GB/s a GPU


@pytest.mark.parametrize(
    "change", [{"degrade": ["gpu:0>gpu:1=0.5"]}, {"settings": ["topology.bandwidth_bytes_per_second=x2"]}]
)
def test_a_changed_machine_has_no_table(change):
    machine = asked(MachineFlags(machine="perlmutter", **change)).machine
    assert bandwidth_table(machine, 6) is None


def test_strides_that_do_not_divide_a_node_are_not_known():
    assert known_bandwidth(3, 8, FRONTIER) is None
    assert known_bandwidth(12, 3, FRONTIER) == 5 * GIB
    with pytest.raises(InputError, match=r"\(3, 8\)"):
        effective_bandwidth(3, 8, FRONTIER)


# Orders


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=8))
def test_kendalls_tau_counts_pairs(pairs):
    both = [((a > c) - (a < c), (b > d) - (b < d)) for i, (a, b) in enumerate(pairs) for c, d in pairs[:i]]
    ones, others = (sum(abs(pair[side]) for pair in both) for side in (0, 1))
    found = kendall_tau(*zip(*pairs, strict=True))
    if not ones or not others:
        assert found is None
    else:
        assert found == pytest.approx(sum(a * b for a, b in both) / (ones * others) ** 0.5)


# Simulated


def test_the_parts_of_a_step_add_up_and_overlap_hides():
    grid = Grid(z=3, x=2)
    plain = simulated_step(asked(gpt="layers=3,hidden=768,heads=6,sequence=64,vocabulary=1031"), grid)
    ahead = simulated_step(
        asked(gpt="layers=3,hidden=768,heads=6,sequence=64,vocabulary=1031", overlap="oar,ors,oag"), grid
    )
    for step in (plain, ahead):
        parts = step.compute + step.latency + step.transfer - step.hidden + step.waiting
        assert parts == pytest.approx(step.seconds, rel=1e-6)
        assert sum(step.exposed_seconds_by_axis.values()) <= step.seconds
        assert set(step.exposed_seconds_by_axis) == {"z", "x"}
        assert 0 < step.compute_efficiency(312e12) < 1
    assert plain.hidden == 0 < ahead.hidden
    assert ahead.seconds < plain.seconds


def test_collectives_are_those_of_nccl_unless_others_are_named():
    assert str(asked().training.execution.choices) == "nccl"
    assert str(asked(overlap="oar,ors,oag").training.execution.choices) == "nccl"
    assert str(asked(collectives="own:doubling").training.execution.choices) == "own:doubling"


@pytest.mark.parametrize("overlap", ["none", "oar,ors,oag"])
def test_all_layers_are_simulated_at_the_granularity_of_simulate(overlap):
    gpt = "layers=9,hidden=768,heads=6,sequence=64,vocabulary=1031"
    for collectives, bounded in (("own", False), ("nccl", True)):
        step = simulated_step(asked(overlap=overlap, gpt=gpt, collectives=collectives), Grid(z=3, x=2))
        assert (step.layers, step.bounded) == (9, bounded)


def test_the_cause_that_turns_the_order_around_is_named():
    question = asked(gpt="layers=3,hidden=768,heads=6,sequence=64,vocabulary=1031")
    step = simulated_step(question, Grid(z=6))
    steps = [replace(step, seconds=10.0 - turn, compute=8.0 - turn, transfer=1 + turn * 1e-3) for turn in range(3)]
    modelled = [1.0, 1.001, 1.002]
    tau = kendall_tau(modelled, [one.seconds for one in steps])
    assert tau == -1
    found = causes_of_communication_model(modelled, steps)
    assert (found[0].name, found[0].tau, found[0].least, found[0].most) == ("compute", 1, 6.0, 8.0)
    lines = explanation_lines(found, tau, steps, Choices())
    assert "do not agree" in lines[0]
    assert lines[1].startswith("compute is left out of the model (6.00 s to 8.00 s")


def test_orders_that_agree_are_said_to():
    assert explanation_lines([], 1.0, [], Choices()) == ["both orders are the same"]
    assert "no order" in explanation_lines([], None, [], Choices())[0]


def test_the_answer_has_both_orders_best_first(capsys):
    answer = rank(RankFlags(gpt=SMALL, batch="12", gpus="6", top="5", form="exact"), PERLMUTTER_FLAGS, json="-")
    written = json.loads(capsys.readouterr().out)
    assert written["schema"] == "quadrille/rank/1"
    assert written["provenance"] is None
    assert set(written["analytical"][0]) >= {"grid", "order", "seconds"}
    analytical = [one["seconds"] for one in written["analytical"]]
    assert analytical == sorted(analytical)
    assert len(analytical) == len(answer.analytical) > 5
    simulated = written["simulated"]
    assert [one["seconds"] for one in simulated] == sorted(one["seconds"] for one in simulated)
    assert sorted(one["analytical_place"] for one in simulated) == [1, 2, 3, 4, 5]
    for one in simulated:
        first = written["analytical"][one["analytical_place"] - 1]
        assert (first["grid"], first["order"], first["seconds"]) == (
            one["grid"],
            one["order"],
            one["analytical_seconds"],
        )
    tau = kendall_tau([one["analytical_seconds"] for one in simulated], [one["seconds"] for one in simulated])
    assert written["kendall_tau"] == tau
    question = asked(top="5")
    grid = Grid(**simulated[0]["grid"], order=tuple(simulated[0]["order"]))
    assert simulated_step(question, grid).seconds == simulated[0]["seconds"]


def test_the_page_has_simulated_and_modelled_times(capsys, tmp_path):
    path = tmp_path / "rank.json"
    rank(
        RankFlags(gpt=SMALL, batch="12", gpus="6", top="3", form="exact"),
        PERLMUTTER_FLAGS,
        json=str(path),
        command=["quadrille", "rank"],
    )
    page = capsys.readouterr().out
    for word in (
        "as simulated, the fastest first",
        "grid, innermost axis last",
        "communication by model",
        "MFU",
        "compute",
        "the quick model ranks them ",
        "lacked by the table",
        "(1, 3)",
    ):
        assert word in page
    rows = re.findall(r"^ \d+  .*$", page, re.MULTILINE)
    assert len(rows) == 3
    assert len(set(re.findall(r" (s|ms|us)(?= |$)", "\n".join(rows)))) == 1
    assert json.loads(path.read_text())["provenance"]["command"] == "quadrille rank"


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("ranks", "more"),
    [(2, {"form": "exact"}), (3, {"scheme": "all", "pipeline": "2", "micro_batch": "1", "order": "x,y,z,data"})],
    ids=["grids", "schemes"],
)
def test_any_number_of_ranks_says_the_same_byte_for_byte(capsys, ranks, more):
    flags = RankFlags(gpt=SMALL, batch="12", gpus="6", top="3", **more)
    program = (
        "from quadrille.cli.parsing.machines import MachineFlags; "
        "from quadrille.cli.parsing.flags import RankFlags; "
        "from tests.support.by_words import ranked as rank; "
        f"rank({flags!r}, MachineFlags(machine='perlmutter'), json='-')"
    )
    rank(flags, PERLMUTTER_FLAGS, json="-")
    alone = capsys.readouterr().out
    assert len(json.loads(alone)["simulated"]) == 3
    ended = launched(ranks, "-c", program)
    assert ended.status == 0, ended.err
    assert ended.out == alone


# What cannot be


def test_what_cannot_be_is_refused_in_one_line(tmp_path):
    assert "--gpt is missing" in refusal(gpt="")
    assert "--batch is missing" in refusal(batch="")
    assert "--gpus 'many'" in refusal(gpus="many")
    assert "--top '0'" in refusal(top="0")
    assert "model '21b'" in refusal(gpt="21b")
    assert "form 'best': accepted are exact, authors" in refusal(form="best")
    assert "order: unknown axis 'w'" in refusal(order="w")
    assert "order 'pipeline,x': pipeline is the slowest axis" in refusal(order="pipeline,x")
    assert "gradient-bytes '3': accepted are 4, 2" in refusal(gradient_bytes="3")
    assert "granularity 'fine'" in refusal(granularity="fine")
    assert "attention 'flash': accepted are fused, unfused" in refusal(attention="flash")
    assert "recompute 'some'" in refusal(recompute="some")
    assert "gpus 6: grids of powers of two alone need a power of two" in refusal(powers_of_two=True)
    assert "min_model_parallel 7: at most the number of GPUs, 6" in refusal(min_model_parallel="7")
    assert "divides heads = 6" in refusal(
        gpus="7", order="x", min_model_parallel="7", batch="1", gpt=SMALL.replace("60", "6")
    )
    host = tmp_path / "host.toml"
    host.write_text(HOST)
    assert "machines of GPUs" in refusal(MachineFlags(machine=str(host)))


def test_too_few_sequences_for_any_grid():
    words = refusal(gpus="49", batch="6", gpt="layers=1,hidden=6,heads=6,sequence=7,vocabulary=6")
    assert "batch 6: sequences are cut over data and z" in words
    assert "needs at least 49" in words


def test_a_model_that_fits_nowhere_says_the_smallest_need_and_what_helps():
    words = refusal(gpt="80b", batch="8", gpus="8", attention="unfused", recompute="selective")
    assert "no grid fits: model 80b on 8 GPUs needs at least" in words
    for help_word in ("optimizer states", "more --gpus", "--zero 1 or 2 or 3", "--gradient-bytes 2"):
        assert help_word in words
    words = refusal(gpt="80b", batch="256", gpus="8", attention="unfused", recompute="selective")
    for help_word in ("activations", "a shorter --sequence", "--attention fused", "--recompute full", "--batch"):
        assert help_word in words


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gpus", "6", "--min-model-parallel", "7"], "--min-model-parallel 7: at most the number of GPUs, 6"),
        (["--gpus", "7000", "--form", "exact"], "--batch 8: sequences are cut over data and z"),
        (["--gpus", "6", "--pipeline", "4"], "--pipeline 4: a number of stages that divides 6 GPUs"),
    ],
)
def test_the_command_line_names_the_flag_of_a_wrong_parameter(capsys, flags, said):
    ended = called(capsys, "rank", "--gpt", "tiny", "--batch", "8", "--machine", "perlmutter", *flags)
    assert ended.status == 2 and said in ended.line
