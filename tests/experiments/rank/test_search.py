"""`quadrille rank --search`: what is tried, that the optimum is found, and what the answer says about the rest."""

import json
import random
import re
import shlex
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_fields

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.overlap import OVERLAPS
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.program import PipelineSchedule
from quadrille.algorithms.training.memory import memory_bytes_by_kind
from quadrille.algorithms.units import format_bytes
from quadrille.cli.parsing.flags import RankFlags, TrainingFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.ranking import SEARCHED, command_of_fastest, parse_question
from quadrille.experiments.rank.configuration_evaluator import Evaluator
from quadrille.experiments.rank.configurations import configurations, default_space
from quadrille.experiments.rank.lower_estimates import best_flops_per_second, least_activation_bytes, least_seconds
from quadrille.experiments.rank.rank import ranking
from quadrille.experiments.rank.schemes_report import accounting_lines
from quadrille.experiments.rank.search_options import SEARCH_OPTIONS
from quadrille.experiments.rank.search_report import DEFAULT_VALUE, ONE_VALUE, option_entries
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from tests.support.draws import examples
from tests.support.quadrille import called
from tests.support.rank_questions import ON, SIZES, WORDS, flags, question, ranked, space


def simulated_seconds(asked, experiments):
    evaluator = Evaluator(asked, {})
    device_bytes = asked.machine.device.memory_bytes
    fitting = [one for one in experiments if experiment_peak_bytes(one) <= device_bytes]
    return {one: evaluator.simulated_in_full(one, "auto").seconds for one in fitting}


# The optimum

STEPS = {"search": "overlap,zero", "order": "x,y,z,data", "batch": "2", "micro_batch": "1"}
PIPELINES = STEPS | {"search": "pipeline,pipeline-schedule", "collectives": "own"}
EVERYTHING = {"search": "all", "pipeline": "2", "batch": "2", "micro_batch": "1"}


@pytest.mark.parametrize("more", [STEPS, PIPELINES], ids=["steps", "pipelines"])
def test_the_search_finds_the_optimum_of_all_configurations(more):
    asked = question(**more)
    every = simulated_seconds(asked, configurations(asked, space(**more))[0])
    assert len(every) > 5
    answer = ranked(**more)
    assert answer.simulated[0].seconds == pytest.approx(min(every.values()), rel=1e-6)
    assert answer.simulated[0].seconds < 0.9 * max(every.values())


@settings(max_examples=examples(18), deadline=None)
@given(
    st.sampled_from([{"pipeline": 2}, {"data": 2}, {"z": 2}, {"x": 2}, {"pipeline": 4}]),
    st.sampled_from(["1f1b", "gpipe", "zb-h1", "interleaved"]),
    st.sampled_from(["none", "full"]),
    st.sampled_from(["none", "oar,ors,oag", "ogr,opg"]),
    st.sampled_from([1, 2]),
    st.sampled_from(["perlmutter", "h100-node"]),
)
def test_no_configuration_is_faster_than_its_bound(lengths, schedule, recompute, overlap, micro, machine):
    gpus = Grid(**lengths).size
    asked = parse_question(
        flags(gpus=str(gpus), batch="8", recompute=recompute, overlap=overlap), MachineFlags(machine=machine)
    )
    order = {"pipeline_schedule": schedule, "interleave": 2 if schedule == "interleaved" else 1}
    if "pipeline" not in lengths or (gpus == 4 and schedule == "interleaved"):
        order = {}
    step = replace(asked.training, grid=Grid(**lengths), problem=replace(asked.problem, micro_batch=micro, **order))
    bound = least_seconds(step, best_flops_per_second(asked.machine, asked.training.dtype))
    evaluator = Evaluator(asked, {})
    assert 0 < bound <= evaluator.simulated_in_full(step, "auto").seconds
    assert bound <= evaluator.fastest([step]).step.seconds


@settings(max_examples=examples(12), deadline=None)
@given(
    st.sampled_from(
        [{"pipeline": 2}, {"data": 2}, {"z": 2}, {"x": 2, "y": 2}, {"pipeline": 4}, {"pipeline": 2, "x": 2}]
    ),
    st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-v", "interleaved"]),
    st.sampled_from(["none", "full", "selective"]),
    st.sampled_from(["fused", "unfused"]),
    st.sampled_from([1, 2]),
    st.sampled_from(["", ",gated=yes", ",experts=4,top_k=2,expert_ffn=256", ",key_heads=2"]),
)
def test_the_bound_of_activations_is_at_most_what_the_schedule_keeps(
    lengths, schedule, recompute, attention, micro, more
):
    if "experts" in more:
        lengths = {axis: length for axis, length in lengths.items() if axis not in ("x", "y")}
    grid = Grid(**lengths)
    asked = parse_question(
        flags(gpt=SIZES["gpt"] + more, gpus=str(grid.size), batch="8", recompute=recompute, attention=attention), ON
    )
    order = {"pipeline_schedule": schedule, "interleave": 2 if schedule in ("interleaved", "zb-v") else 1}
    if grid.pipeline == 1 or (grid.pipeline == 4 and schedule in ("interleaved", "zb-v")):
        order = {}
    step = replace(asked.training, grid=grid, problem=replace(asked.problem, micro_batch=micro, **order))
    schedule_of_step = step.schedule()
    of_first_stage = memory_bytes_by_kind(schedule_of_step, schedule_of_step.coordinates(0), step.execution.choices)
    assert 0 < least_activation_bytes(step, asked.shape) <= of_first_stage["activations"]


def test_the_bound_counts_the_forward_passes_before_the_last_stage():
    asked = question()
    rate = best_flops_per_second(asked.machine, asked.training.dtype)
    alone, staged, chunked = (
        least_seconds(
            replace(
                asked.training,
                grid=Grid(pipeline=2) if stages > 1 else Grid(data=2),
                problem=replace(asked.problem, micro_batch=1, interleave=chunks),
            ),
            rate,
        )
        for stages, chunks in ((1, 1), (2, 1), (2, 2))
    )
    assert staged - alone == pytest.approx(2 * (chunked - alone))
    assert chunked > alone


# What is tried


def test_with_search_none_a_job_runs_as_megatron_users_run_it():
    asked, tried = question(), space()
    experiments, _ = configurations(asked, tried)
    assert {one.problem.zero for one in experiments if one.grid.data > 1} == {1}
    assert {one.problem.zero for one in experiments if one.grid.data == 1} == {0}
    assert {one.problem.pipeline_schedule for one in experiments} == {"1f1b"}
    assert {one.problem.micro_batch for one in experiments if one.grid.data == 2} == {1, 2}
    unfused = question(attention="unfused")
    assert {one.problem.recompute for one in configurations(unfused, tried)[0]} == {"selective"}
    assert {one.problem.recompute for one in experiments} == {"none"}


def test_search_all_tries_every_value_of_every_option():
    tried = space(search="all")
    assert tried.options == {name: option.tried for name, option in SEARCH_OPTIONS.items()}
    assert tried.stages is None
    assert len(tried.schemes) == 2
    assert tried.unsearched == space()
    assert set(SEARCHED) >= set(SEARCH_OPTIONS)


def test_by_default_schemes_pipelines_zero_and_recomputation_are_searched_with_all_overlaps():
    tried = space(search="")
    assert tried == default_space()
    searched = ("zero", "recompute", "pipeline-schedule")
    expected = {name: option.tried if name in searched else (option.usual,) for name, option in SEARCH_OPTIONS.items()}
    assert tried.options == expected | {"overlap": ((frozenset(OVERLAPS),),)}
    assert space(search="", overlap="none").options["overlap"] == ((frozenset(),),)
    assert (tried.stages, tried.unsearched, tried.wide) == (None, None, True)
    assert {(scheme.name, bool(scheme.stream.finer)) for scheme in tried.schemes} == {("4d", False), ("megatron", True)}
    assert space(search="", zero="2", scheme="4d").options["zero"] == ((2,),)
    assert ranked(**EVERYTHING | {"search": ""}).without_search is None


def test_a_typed_flag_fixes_its_option():
    tried = space(search="all", zero="2", pipeline="2", pipeline_schedule="zb-h1,message-driven", pipeline_limit="3")
    assert tried.options["zero"] == ((2,),)
    assert tried.stages == (2,)
    assert tried.options["pipeline-schedule"] == (("zb-h1", 1, 0), ("message-driven", 1, 3))
    assert tried.options["gathered"] == SEARCH_OPTIONS["gathered"].tried
    assert tried.unsearched.options["pipeline-schedule"] == tried.options["pipeline-schedule"]


def test_offload_is_searched_on_machines_with_a_host_link_only():
    offloads = {}
    for machine in ("perlmutter", "longhorn"):
        asked = parse_question(flags(search="offload", dtype="float16"), MachineFlags(machine=machine))
        experiments, _ = configurations(asked, space(search="offload"))
        offloads[machine] = {str(one.problem.offload) for one in experiments}
        tried = {entry.option: entry.values for entry in option_entries(asked, space(search="offload"))}
        assert tried.get("offload") == (["none", "optimizer"] if machine == "perlmutter" else None)
    assert offloads == {"perlmutter": {"None", "optimizer"}, "longhorn": {"None"}}
    more = {"search": "offload", "sparsity": "0.5", "sparse_states": True}
    assert {str(one.problem.offload) for one in configurations(question(**more), space(**more))[0]} == {
        "None",
        "optimizer",
    }


def test_uneven_stages_are_those_of_the_user():
    asked = question(stages="1,3", pipeline="2", batch="4")
    experiments, _ = configurations(asked, space(stages="1,3", pipeline="2"))
    assert {one.stages.part_sizes for one in experiments} == {(1, 3)}
    even = question(pipeline="2")
    uneven_seconds, even_seconds = (
        min(simulated_seconds(asked, configurations(asked, space(**more))[0]).values())
        for asked, more in ((asked, {"stages": "1,3", "pipeline": "2"}), (even, {"pipeline": "2"}))
    )
    assert uneven_seconds > even_seconds


# The answer


def test_the_search_is_never_slower_than_the_defaults():
    answer = ranked(**EVERYTHING)
    default = ranked(**EVERYTHING | {"search": "none"})
    assert default.without_search is None
    assert answer.simulated[0].seconds <= answer.without_search.seconds
    # A search simulates pipelines in full, and without a search they come from a sample.
    assert answer.without_search.seconds == pytest.approx(default.simulated[0].seconds, rel=0.05)


def test_the_answer_says_what_was_searched_and_what_was_not():
    answer = ranked(**EVERYTHING)
    assert {entry.option for entry in answer.tried if entry.search} == {"micro-batch", "pipeline"}
    assert not [entry for entry in option_entries(question(search="all"), space(search="all")) if entry.search]
    fixed = {entry.option: entry.search for entry in option_entries(question(order="x,y,z,data"), space())}
    assert {name for name, search in fixed.items() if not search} == {"grid", "micro-batch"}
    assert fixed["order"] == "--order auto"
    assert fixed["zero"] == "--search zero"
    assert {entry.option for entry in answer.tried} == set(fixed)


@pytest.mark.parametrize("more", [STEPS, EVERYTHING], ids=["steps", "everything"])
def test_the_printed_command_reproduces_the_time(capsys, more):
    best = ranked(**more).simulated[0]
    command = shlex.split(command_of_fastest(flags(**more), ON, best))[1:]
    again = json.loads(called(capsys, *command, "--json", "-").out)
    assert again["seconds_per_iteration"] == pytest.approx(best.seconds, rel=1e-9)
    assert sum(again["memory_bytes_by_kind"].values()) == best.memory_bytes


@pytest.mark.parametrize(
    "more", [{"micro_batch": "1"}, {"pipeline": "2", "micro_batch": "1"}], ids=["no pipeline", "pipeline"]
)
def test_an_offloaded_optimizer_is_found_where_only_it_fits(capsys, more):
    least = min(entry.memory_bytes for entry in ranking(question(**more), space(**more)).analytical)
    small = MachineFlags(machine="perlmutter", settings=(f"device.memory_bytes={least - 1}",))
    tried = space(search="offload", **more)
    best = ranking(parse_question(flags(search="offload", **more), small), tried).simulated[0]
    assert best.offload == "optimizer"
    assert best.memory_bytes < least
    command = shlex.split(command_of_fastest(flags(search="offload", **more), small, best))[1:]
    again = json.loads(called(capsys, *command, "--json", "-").out)
    assert again["options"]["offload"] == "optimizer"
    assert again["seconds_per_iteration"] == pytest.approx(best.seconds, rel=1e-9)
    sizes = again["memory_bytes_by_kind"]
    assert sum(sizes.values()) - sizes["optimizer on host"] == best.memory_bytes


@pytest.mark.parametrize("offload", ["optimizer", "optimizer:1000000", "optimizer:host:1000000"])
def test_the_closed_form_hides_copies_in_one_direction_behind_copies_in_the_other(offload):
    answer = ranking(question(offload=offload), space(offload=offload))
    modelled = {str(entry.grid): entry.seconds for entry in answer.analytical}
    for entry in answer.simulated:
        assert entry.offload == offload
        assert modelled[str(entry.grid)] == pytest.approx(entry.seconds, rel=0.15)
        parts = entry.compute_seconds + entry.communication_seconds - entry.hidden_seconds + entry.waiting_seconds
        assert parts == pytest.approx(entry.seconds)


def test_configurations_whose_hosts_have_too_little_memory_are_left_out():
    offloaded = {"offload": "optimizer", "micro_batch": "1"}
    sizes = {}
    for experiment in configurations(question(**offloaded), space(**offloaded))[0]:
        schedule = experiment.schedule()
        sizes[str(experiment.grid)] = 2 * storage(schedule, schedule.coordinates(0), Choices()).host_bytes
    limit = sorted(set(sizes.values()))[-2]
    small = MachineFlags(machine="perlmutter", settings=(f"host_link.memory_bytes={limit}",))
    answer = ranking(parse_question(flags(**offloaded), small), space(**offloaded))
    left_out = {entry.reason: entry for entry in answer.left_out}["memory of the hosts"]
    assert left_out.configurations == sum(size > limit for size in sizes.values()) > 0
    assert "2 ranks of a host keep" in left_out.example and "a host of perlmutter has" in left_out.example
    none = MachineFlags(machine="perlmutter", settings=("host_link.memory_bytes=1000",))
    with pytest.raises(InputError, match=r"no configuration is left: .* by memory of the hosts"):
        ranking(parse_question(flags(**offloaded), none), space(**offloaded))


def test_a_batch_that_no_grid_divides_is_answered_with_a_batch_that_can_be_divided():
    odd = {"gpus": "9", "batch": "8"}
    with pytest.raises(InputError, match=r"; --batch 9, a multiple of the 9 GPUs, is divisible$"):
        ranking(parse_question(flags(**odd), ON), space(**odd))
    even = odd | {"batch": "9"}
    assert configurations(question(**even), space(**even))[0]


@pytest.mark.parametrize("form", ["", "exact"])
def test_what_fits_on_no_grid_fits_with_states_on_the_host_or_compressed(form):
    fitting = ranking(question(micro_batch="1", zero="0"), space(micro_batch="1", zero="0")).analytical
    limit = min(entry.memory_bytes for entry in fitting) - 1
    small = MachineFlags(machine="perlmutter", settings=(f"device.memory_bytes={limit}",))
    more = {"search": "", "form": "exact", "batch": "2"} if form else {"micro_batch": "1", "zero": "0"}
    with pytest.raises(InputError, match="no grid fits") as refused:
        ranking(parse_question(flags(**more), small), None if form else space(**more))
    for words, option in (
        ("--offload optimizer", {"offload": "optimizer"}),
        ("--sparsity 0.9 --sparse-states", {"sparsity": "0.9", "sparse_states": True}),
    ):
        answer = ranking(parse_question(flags(**more, **option), small), None if form else space(**more, **option))
        sizes = {format_bytes(entry.memory_bytes) for entry in answer.analytical}
        named = re.search(f"; with {words} it fits, in ([0-9.]+ .iB)", str(refused.value))
        assert named is not None and named[1] in sizes


def test_the_page_names_the_gain_and_the_flags_of_the_rest(capsys):
    page = called(capsys, "rank", *WORDS, "--top", "1", "--search", "gathered,zero").out
    assert "searched: grid all; order all; micro-batch all; zero 0, 1, 2, 3; gathered again, keep" in page
    assert "not searched: pipeline 1, recompute selective, " in page
    assert "(--search all, or NAME,…)" in page
    assert (
        "message-driven pipelines (--pipeline-schedule message-driven); attention, collectives, context-parallel, "
        in page
    )
    assert "sparsity, stages (a flag sets each); bands, gemm-layouts, keep-first, " in page
    assert "with --search none " in page
    assert " %: quadrille simulate" in page


def test_every_option_of_a_training_step_is_searched_or_named_as_not_searched():
    named = {entry.option for entry in option_entries(question(), space())} | {
        *ONE_VALUE,
        *DEFAULT_VALUE,
        *SEARCH_OPTIONS,
    }
    parts = {"prune": "sparsity", "sparse-states": "sparsity", "interleave": "pipeline-schedule"}
    workload = {"matmul", "algorithm", "panel", "transposed", "passes", "mlp", "gpt", "sequence", "batch", "steps"}
    others = workload | {"approximate", "learning-rate", "clip", "shards", "jitter"}
    options = {name.replace("_", "-") for name in TrainingFlags.__dataclass_fields__} - others
    assert {parts.get(name, name) for name in options} == named - {"pipeline"}
    assert {*ONE_VALUE} <= {name.replace("_", "-") for name in RankFlags.__dataclass_fields__}
    assert not {*DEFAULT_VALUE} & {name.replace("_", "-") for name in RankFlags.__dataclass_fields__}


def test_the_search_tries_every_static_schedule():
    orders = {schedule for schedule, _, _ in SEARCH_OPTIONS["pipeline-schedule"].tried}
    assert orders == {*get_args(PipelineSchedule)} - {"message-driven"}


def test_v_pipelines_are_ranked_by_their_two_chunks():
    more = {"pipeline": "2", "pipeline_schedule": "zb-v,1f1b", "micro_batch": "1", "collectives": "own"}
    ranked = ranking(question(**more), space(**more))
    assert {entry.pipeline_schedule for entry in ranked.simulated} == {"zb-v", "1f1b"}


def test_message_driven_pipelines_are_tried_if_they_are_named():
    more = {"pipeline": "2", "pipeline_schedule": "message-driven,1f1b", "micro_batch": "1", "collectives": "own"}
    found = ranking(question(**more), space(**more))
    assert {one.pipeline_schedule for one in found.analytical} == {"message-driven", "1f1b"}


def test_a_search_simulates_each_layout_as_its_command_does(capsys):
    """The answer without a search has pipelines from samples, whose communication has no wait for other stages."""
    words = ["rank", *WORDS, "--search", "pipeline-schedule,zero", "--pipeline", "2", "--top", "3", "--json", "-"]
    entries = json.loads(called(capsys, *words).out)["simulated"]
    assert len(entries) >= 3
    for entry in entries:
        record = json.loads(called(capsys, *shlex.split(entry["command"])[1:], "--json", "-").out)
        assert entry["seconds"] == pytest.approx(record["seconds_per_iteration"], rel=1e-9)


def test_a_line_says_what_communication_of_pipelines_in_full_has():
    answer = ranked(**EVERYTHING)
    assert {entry.layers_simulated for entry in answer.simulated} == {4}
    assert accounting_lines(answer)[0].startswith("comm. of pipelines has the wait for other stages")
    assert answer.simulated[0].hidden_seconds > 0
    sampled = [replace_fields(entry, layers_simulated=3) for entry in answer.simulated]
    assert accounting_lines(replace_fields(answer, simulated=sampled)) == []


def test_where_only_the_search_fits_the_page_says_so(capsys):
    least = min(entry.memory_bytes for entry in ranking(question(micro_batch="1"), space(micro_batch="1")).analytical)
    small = ["--micro-batch", "1", "--top", "1", "--set", f"device.memory_bytes={least - 1}"]
    plain = called(capsys, "rank", *WORDS, "--search", "none", *small)
    searched = called(capsys, "rank", *WORDS, "--search", "zero,recompute,pipeline", *small)
    assert plain.status == 2 and "no grid fits" in plain.line
    assert searched.status == 0 and "with --search none nothing fits in memory" in searched.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"search": "zeros"}, "search 'zeros': accepted are zero, recompute, pipeline-schedule, gathered"),
        ({"search": "zero,"}, "search ''"),
        ({"search": "zero,none"}, "--search zero,none: none is accepted alone"),
        ({"search": "pipeline-schedule"}, "--search pipeline,pipeline-schedule is needed"),
        ({"search": "zero", "form": "exact"}, "leave out --search, or --form"),
        ({"search": "", "zero": "1", "form": "exact"}, "leave out --zero, or --form"),
        ({"pipeline_schedule": "gpipe"}, "--pipeline-schedule gpipe: is about a pipeline's stages"),
        ({"pipeline_schedule": "gipe", "pipeline": "2"}, "pipeline-schedule 'gipe': accepted are gpipe, 1f1b"),
        ({"pipeline_schedule": "zb-h2", "pipeline": "2"}, "pipeline-schedule 'zb-h2'"),
        ({"pipeline_limit": "3", "pipeline": "2"}, "--pipeline-limit 3: is for --pipeline-schedule message-driven"),
        (
            {"pipeline_limit": "0", "pipeline": "2", "pipeline_schedule": "message-driven"},
            "--pipeline-limit '0': a whole number from 1",
        ),
        (
            {"interleave": "2", "pipeline": "2", "pipeline_schedule": "gpipe"},
            "--interleave 2: several chunks are for --pipeline-schedule interleaved",
        ),
        ({"stages": "1,2", "pipeline": "2"}, "stages 1,2: 2 numbers from 1 that add up to 4 layers"),
        ({"stages": "1,3"}, "--stages 1,3: is about a pipeline's stages"),
        ({"offload": "optimiser"}, "offload 'optimiser': accepted are optimizer[:BUCKET]"),
        ({"offload": "optimizer:0"}, "offload 'optimizer:0': a bucket of 1 parameter or more is accepted"),
        ({"offload": "optimizer:99999999999"}, "offload optimizer:99999999999: the model has"),
        ({"gathered": "ahead"}, "gathered 'ahead': accepted are"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(more, said):
    with pytest.raises(InputError) as refused:
        ranking(question(**more), space(**more))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_machine_without_a_host_link_refuses_offload():
    with pytest.raises(InputError, match=r"--offload optimizer: longhorn has no host link; accepted is a machine with"):
        parse_question(flags(offload="optimizer", dtype="float16"), MachineFlags(machine="longhorn"))


def test_every_configuration_has_a_schedule_that_is_valid():
    sizes = {"gpt": "layers=4,hidden=64,heads=8,sequence=16,vocabulary=64", "batch": "4", "gpus": "4", "search": "all"}
    found, _ = configurations(question(**sizes), space(**sizes))
    overlapped = [one for one in found if one.problem.zero == 3 and one.grid.z > 1 and one.execution.overlaps]
    chosen = random.Random(1).sample(found, 20) + random.Random(1).sample(overlapped, 8)
    for experiment in chosen:
        assert experiment.schedule().grid.size == 4
