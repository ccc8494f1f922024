"""`quadrille rank` and `sweep --best-grid` with experts: grids that are tried, their bounds, and refusals."""

import shlex
from dataclasses import replace

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.schedule.grid import Grid
from quadrille.cli.parsing.flags import RankFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.ranking import command_of_fastest, parse_question, parse_space
from quadrille.experiments.predict.step_parts import sample_experiment
from quadrille.experiments.rank.configurations import configurations
from quadrille.experiments.rank.lower_estimates import least_bytes
from quadrille.experiments.rank.rank import ranking
from quadrille.experiments.sweep.best_grid import step_grids
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from tests.support.quadrille import called

ON = MachineFlags(machine="h100-node")
SIZES = "layers=2,hidden=64,heads=4,sequence=32,vocabulary=96,gated=yes,experts=6,top_k=2,expert_ffn=48"


def flags(**more):
    return RankFlags(**({"gpt": SIZES, "batch": "24", "gpus": "8", "search": "none"} | more))


def tried(**more):
    asked = parse_question(flags(**more), ON)
    return asked, configurations(asked, parse_space(flags(**more), has_experts=True))[0]


def test_every_length_of_the_expert_axis_that_divides_a_stage_and_experts_is_tried():
    _, experiments = tried()
    grids = {str(one.grid) for one in experiments}
    dense = {"data=8", "data=4,z=2", "data=2,z=4", "z=8"}
    pipelines = {"pipeline=2,data=4", "pipeline=2,data=2,z=2", "pipeline=2,z=4"}
    assert grids == dense | pipelines | {f"{grid},expert=2" for grid in dense | pipelines}


def test_limits_to_powers_of_two_hold_for_the_expert_axis():
    lengths = {one.grid.expert for one in tried(gpus="6")[1]}
    assert lengths == {1, 2, 3, 6}
    assert {one.grid.expert for one in tried(gpus="8", powers_of_two=True)[1]} == {1, 2}


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("expert", [1, 2])
@pytest.mark.parametrize("z", [1, 2, 4])
def test_the_bound_of_memory_is_at_most_what_the_schedule_stores(zero, expert, z):
    asked, _ = tried()
    step = replace(
        asked.training, grid=Grid(data=4 // z, z=z, expert=expert), problem=replace(asked.problem, zero=zero)
    )
    assert 0 < least_bytes(step, asked.shape) <= experiment_peak_bytes(step)


@pytest.mark.parametrize("sizes", ["experts_every=2", "dense_layers=1", "dense_layers=1-1"])
def test_the_bound_of_memory_knows_layers_without_experts(sizes):
    asked, _ = tried(gpt=f"{SIZES},{sizes},inner=8")
    step = replace(asked.training, grid=Grid(data=4))
    all_experts = least_bytes(replace(tried()[0].training, grid=Grid(data=4)), tried()[0].shape)
    assert 0 < least_bytes(step, asked.shape) <= experiment_peak_bytes(step)
    states = all_experts / (2 * (4 * 64 * 64 + 64 * 6) + 2 * 6 * 3 * 64 * 48)
    dense = 2 * 4 * 64 * 64 + 64 * 6 + 6 * 3 * 64 * 48 + 3 * 64 * 8  # one layer with experts, and one with an MLP
    assert least_bytes(step, asked.shape) == pytest.approx(states * dense)


@pytest.mark.parametrize(
    ("sizes", "layers", "dense"),
    [("layers=61,{},dense_layers=3", 3, 0), ("layers=9,{},dense_layers=3", 3, 1), ("layers=8,{},experts_every=2", 4, 2),
     ("layers=8,{},dense_layers=5-7", 3, 1), ("layers=1,{}", 1, 0), ("layers=8,{}", 3, 0)],
)  # fmt: skip
def test_a_sample_has_as_large_a_share_of_dense_layers_as_the_model(sizes, layers, dense):
    asked, _ = tried(gpt=sizes.format(SIZES.removeprefix("layers=2,")) + ",inner=8", batch="8", gpus="4")
    problem = sample_experiment(replace(asked.training, grid=Grid(data=4))).problem
    assert (problem.layers, sum(problem.experts.dense(problem.layers))) == (layers, dense)


def test_a_model_whose_first_layers_are_all_dense_is_ranked():
    """As DeepSeek-V3, the sample of which has as many layers."""
    more = {"pipeline": "1", "zero": "1", "micro_batch": "1", "top": "1", "gpus": "4"}
    asked = flags(gpt=SIZES.replace("layers=2", "layers=5") + ",dense_layers=3,inner=8", **more)
    assert ranking(parse_question(asked, ON), parse_space(asked, has_experts=True)).simulated


def test_ranks_that_share_out_experts_store_fewer():
    asked, _ = tried()
    alone, halved = (
        least_bytes(replace(asked.training, grid=Grid(data=4, expert=each)), asked.shape) for each in (1, 2)
    )
    expert_weights = 2 * 6 * 3 * 64 * 48  # layers × experts × products × hidden × width
    states = alone / (2 * (4 * 64 * 64 + 64 * 6) + expert_weights)
    assert alone - halved == pytest.approx(states * expert_weights / 2)


def test_the_command_of_a_grid_names_the_expert_axis_and_simulates_the_same_time(capsys, tmp_path):
    asked = flags(order="x,y,z,data", pipeline="1", expert_load="zipf:1")
    answer = ranking(parse_question(asked, ON), parse_space(asked, has_experts=True))
    assert [one.seconds for one in answer.simulated] == sorted(one.seconds for one in answer.simulated)
    shared = next(one for one in answer.simulated if one.grid.get("expert") == 2)
    words = shlex.split(command_of_fastest(asked, ON, shared))[1:]
    assert words[words.index("--grid") + 1].endswith(",expert=2")
    assert called(capsys, *words, "--json", tmp_path / "record.json").status == 0
    assert load_record(tmp_path / "record.json").seconds_per_iteration == pytest.approx(shared.seconds)


def test_the_communication_model_refuses_experts():
    with pytest.raises(InputError, match="--form exact: the communication model has no experts"):
        parse_question(flags(form="exact"), ON)


def test_a_sweep_tries_the_expert_axis():
    asked, _ = tried()
    grids = {str(grid) for grid in step_grids(asked.training, 4) if grid.data == 4}
    assert grids == {"data=4", "data=4,expert=2"}
