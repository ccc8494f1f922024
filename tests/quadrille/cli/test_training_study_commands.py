"""Studies of training steps: their points, their figures, and what they say of them."""

from dataclasses import replace
from itertools import pairwise
from math import prod

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.cli.parsing.flags import TrainingFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.sweep import point_of, predicted
from quadrille.cli.parsing.sweep_points import SweepFlags, machine_of
from quadrille.cli.parsing.training import parse_training
from quadrille.experiments.predict.training_step import simulated_step
from quadrille.experiments.sweep.best_grid import GRID_FORMS, ranked_steps
from quadrille.experiments.sweep.point_predictions import predict_point
from quadrille.experiments.sweep.sweep_result import SweepAnswer, SweepRow
from quadrille.experiments.sweep.training_study import StudyOptions, excluded_lines, grid_text
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes, iteration_times
from quadrille.simulator.simulate import simulate
from quadrille.studies.better_network import study as better
from quadrille.studies.overlap_worth import study as worth
from quadrille.studies.which_grid import study as which_grid
from tests.support.by_words import step_predicted

SMALL = "layers=9,hidden=512,heads=8,sequence=256,vocabulary=2048"
"""Large enough for communication to matter, with more layers than are simulated."""
SHALLOW = SMALL.replace("layers=9", "layers=2")
PERLMUTTER = MachineFlags(machine="perlmutter")
ROUNDING = 1e-9


def flags(**given):
    return TrainingFlags(
        **{"gpt": SMALL, "batch": "16", "dtype": "bfloat16", "recompute": "full", "collectives": "library"} | given
    )


def step(**given):
    """The training step that these words name."""
    return parse_training(flags(**given))


def asked(*, gpus="8", on=PERLMUTTER, top=2, **given):
    return SweepFlags(experiment=flags(**given), on=on, gpus=gpus, best_grid=True, top=top)


# All layers


@pytest.mark.parametrize(
    ("scheme", "grid"),
    [("4d", "z=2,y=2,x=2"), ("megatron", "data=2,x=4"), ("optimus", "z=2,x=2"), ("bian", "z=2,y=2,x=2")],
)
@pytest.mark.parametrize("overlap", ["none", "oar,ors,oag"])
def test_the_step_of_a_study_is_the_simulated_step(scheme, grid, overlap):
    one = parse_training(flags(scheme=scheme, grid=grid, overlap=overlap))
    machine = machine_of(PERLMUTTER, one.grid.size)
    step = simulated_step(one, machine)
    assert step.layers == one.problem.layers
    all_layers = exact(one, machine)
    computing = sum(op.seconds for op in all_layers.ops if op.axis is None)
    assert step.seconds == pytest.approx(all_layers.seconds, rel=1e-9)
    assert step.compute == pytest.approx(computing, rel=1e-9)


def exact(experiment, machine):
    """All layers, simulated."""
    schedule = experiment.schedule()
    ran = simulate(schedule, machine, choices=experiment.execution.choices)
    return iteration_times(experiment, schedule, ran.timeline.makespan, ran.op_times().values())


# The best grid of a training step


def test_grids_are_filtered_by_the_prices_of_the_simulator():
    """On one GPU nothing else is left of the closed form."""
    (only,) = ranked_steps(step(gpt=SHALLOW), 1, machine_of(PERLMUTTER, 1))
    ran = simulate(only.experiment.schedule(), machine_of(PERLMUTTER, 1), choices=only.experiment.execution.choices)
    assert only.closed_form_seconds == pytest.approx(ran.timeline.makespan, rel=1e-9)


def test_the_best_grid_is_no_slower_than_any_that_was_ranked():
    found = predicted(asked(top=100, gpus="4"))
    assert found.simulated == found.grids
    machine = machine_of(PERLMUTTER, 4)
    ranked = ranked_steps(step(), 4, machine)
    assert len(ranked) == found.grids
    assert found.seconds == min(simulated_step(one.experiment, machine).seconds for one in ranked)


@pytest.mark.parametrize("scheme", GRID_FORMS)
def test_every_ranked_grid_has_the_form_of_its_scheme_and_all_gpus(scheme):
    machine = machine_of(PERLMUTTER, 8)
    ranked = ranked_steps(step(scheme=scheme), 8, machine)
    assert ranked
    assert all(one.experiment.grid.size == 8 and GRID_FORMS[scheme](one.experiment.grid) for one in ranked)
    assert [one.closed_form_seconds for one in ranked] == sorted(one.closed_form_seconds for one in ranked)


def test_a_batch_that_does_not_fit_is_taken_in_the_largest_microbatches_that_do():
    whole = ranked_steps(step(scheme="megatron", batch="64"), 8, machine_of(PERLMUTTER, 8))
    sizes = {str(one.experiment.grid): one.peak_bytes for one in whole}
    room = 0.6 * min(sizes.values())
    small = MachineFlags(machine="perlmutter", settings=(f"device.memory_bytes={room}",))
    tight = ranked_steps(step(scheme="megatron", batch="64"), 8, machine_of(small, 8))
    assert tight
    for one in tight:
        taken = one.experiment.problem.micro_batch
        assert taken is not None
        assert one.peak_bytes <= room
        twice = replace(one.experiment, problem=replace(one.experiment.problem, micro_batch=2 * taken))
        assert experiment_peak_bytes(twice) > room


def test_a_model_that_fits_on_no_grid_is_a_reason_not_an_error():
    tiny = MachineFlags(machine="perlmutter", settings=("device.memory_bytes=1e5",))
    reason = predicted(asked(on=tiny)).reason
    assert "no grid fits: a step of scheme " in reason and "one of perlmutter has " in reason
    assert "most of it are parameters, gradients and optimizer states" in reason
    reason = predicted(asked(scheme="bian", gpus="12")).reason
    assert reason == "scheme bian has no grid of 12 ranks: it takes cubes z=q,y=q,x=q with q from 2, repeated over data"


def test_grids_that_do_not_divide_are_counted_with_each_sentence_once():
    reason = predicted(asked(scheme="megatron", gpus="16", batch="1")).reason
    assert reason.startswith("no grid is left: ") and " by what does not divide: " in reason
    assert "batch 1: at least data=" in reason and reason.count("batch 1: ") == 1
    assert ", or grid x=16: " in reason


def test_an_exceeded_budget_is_reported():
    found = predict_point(replace(point_of(asked()), most_seconds=1e-6))
    assert found.seconds is None
    assert "is left out" in found.reason
    assert "given up" in found.reason
    rows = [SweepRow(point={"gpus": "8"}, answer=SweepAnswer(seconds=1.0, remarks=("4d on z=8 is left out",)))]
    assert excluded_lines(rows) == ["gpus=8: 4d on z=8 is left out"]


# Physics


@pytest.mark.parametrize("scheme", ["4d", "megatron", "optimus"])
def test_more_bandwidth_is_never_slower_on_the_same_grid(scheme):
    grid = {"4d": "z=4,x=2", "megatron": "x=8", "optimus": "data=2,z=2,x=2"}[scheme]
    seconds = [
        step_predicted(
            SweepFlags(
                experiment=flags(scheme=scheme, grid=grid),
                on=MachineFlags(machine="perlmutter", settings=(f"topology.bandwidth_bytes_per_second={factor}",)),
            )
        ).seconds
        for factor in ("x0.5", "x4")
    ]
    assert all(fast <= slow * (1 + ROUNDING) for slow, fast in pairwise(seconds))
    assert seconds[-1] < seconds[0]


@pytest.mark.parametrize("grid", ["z=8", "z=2,y=2,x=2", "x=8", "data=2,z=2,x=2"])
def test_all_overlaps_together_are_never_slower_than_none(grid):
    none, every = (
        step_predicted(SweepFlags(experiment=flags(grid=grid, overlap=overlap), on=PERLMUTTER)).seconds
        for overlap in ("none", "oar,ors,oag")
    )
    assert every <= none * (1 + ROUNDING)


# The studies themselves


def test_overlap_worth_keeps_the_grid_of_a_case_and_counts_gains_against_none(capsys):
    around = worth.OverlapQuestion(gpt=SHALLOW, gpus=(4,), each=(2,), bandwidths=(), grids=("z=4", "x=4"))
    found = worth.overlap_worth(around, StudyOptions(top=1))
    cases = worth.cases_in(found.rows)
    assert len(cases) == 1 + 2
    assert all(set(case.seconds) == set(worth.VARIANTS) for case in cases)
    deep = next(case for case in cases if case.point["grid"] == "z=4")
    assert deep.gain("oar") == pytest.approx(0.0, abs=worth.NEGLIGIBLE_GAIN)
    assert deep.gain("ors") > 0 or deep.gain("oag") > 0
    wide = next(case for case in cases if case.point["grid"] == "x=4")
    assert wide.gain("ors") == pytest.approx(0.0, abs=worth.NEGLIGIBLE_GAIN)
    assert wide.gain("oar") > 0
    most = max(case.gain(worth.ALL) for case in cases)
    assert f"{100 * most:+.1f} %" in found.answer
    assert "no ranks along z" in found.answer
    assert found.answer.split()[0] in capsys.readouterr().out


def test_which_grid_says_what_lies_inside_the_node_and_what_another_order_costs():
    asked = which_grid.GridQuestion(machines=("perlmutter", "selene"), gpt=SHALLOW, gpus=8, batch=16)
    found = which_grid.which_grid(asked, StudyOptions(top=1))
    nodes = which_grid.nodes_of(asked)
    assert nodes == {"perlmutter": 4, "selene": 8}
    for machine, per_node in nodes.items():
        best = which_grid.best_of(found.rows, machine)
        own = [row for row in found.rows if row.point["machine"] == machine]
        assert best.answer.seconds == min(
            row.answer.seconds for row in own if row.point["order"] != which_grid.MODEL_FIRST
        )
        assert f"On {machine} {grid_text(best.answer)} is best" in found.answer
        boxes = {grid_text(row.answer) for row in own if row.point["order"] != which_grid.MODEL_FIRST}
        assert boxes == {grid_text(best.answer)}
        within = which_grid.axes_inside_node(best.answer, per_node)
        assert prod(best.answer.grid_lengths[axis] for axis in within) <= per_node
    assert sum(row.point["order"] == which_grid.MODEL_FIRST for row in found.rows) == 2


def test_better_network_buys_no_time_back_and_compares_domains_on_one_switch():
    asked = better.NetworkQuestion(gpt=SHALLOW, gpus=(16,), each=2)
    found = better.better_network(asked, StudyOptions(top=4))
    assert [row.point["network"] for row in found.rows] == list(better.NETWORKS)
    seconds = better.seconds_of(found.rows)
    for network in (better.BANDWIDTH, better.LATENCY, better.BOTH):
        assert seconds[network, "16"] <= seconds[better.AS_IT_IS, "16"] * (1 + ROUNDING)
    assert seconds[better.LARGE_DOMAIN, "16"] < seconds[better.ONE_SWITCH, "16"]
    gain = seconds[better.ONE_SWITCH, "16"] / seconds[better.LARGE_DOMAIN, "16"] - 1
    assert better.gain_over_base(found.rows, better.LARGE_DOMAIN, "16") == pytest.approx(gain)
    assert f"{100 * gain:+.1f} %" in found.answer


def test_a_large_domain_has_the_machines_own_gpus_links_and_nics():
    plain, large = (better.on_switch("h100-superpod", 144, size) for size in (None, 72))
    assert large.device == plain.device
    assert large.topology["gpus_per_node"] == 72
    changed = {key for key in plain.topology if plain.topology[key] != large.topology[key]}
    assert changed == {"nodes", "gpus_per_node", "nics_per_node"}


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: worth.overlap_worth(worth.OverlapQuestion(gpt="7z"), StudyOptions()), "model '7z'"),
        (lambda: which_grid.which_grid(which_grid.GridQuestion(gpt="7z"), StudyOptions()), "model '7z'"),
        (
            lambda: better.better_network(better.NetworkQuestion(machine="perlmutter"), StudyOptions()),
            "not joined by a switch",
        ),
        (lambda: better.better_network(better.NetworkQuestion(), StudyOptions(plot="figure.txt")), "figure.txt"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_runs(ask, words):
    with pytest.raises(InputError, match=words) as raised:
        ask()
    assert "\n" not in str(raised.value)


def test_usual_grids_have_all_gpus():
    for gpus in (8, 16, 32, 64):
        assert all(parse_grid(text).size == gpus for text in worth.default_grids(gpus))
