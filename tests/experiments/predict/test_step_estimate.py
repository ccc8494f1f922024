"""The estimate of a training step beside its prediction, and NCCL's rings beside the cards of a node."""

import pytest

from quadrille.algorithms.analysis.volumes import storages_of_classes, storages_of_stages
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import Grid, parse_grid
from quadrille.cli.parsing.flags import TrainingFlags
from quadrille.cli.parsing.training import parse_training
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.predict import prediction_record
from quadrille.experiments.predict.prepared_experiment import with_machine_choices
from quadrille.experiments.predict.sampled_step import sample_costs
from quadrille.experiments.predict.step_estimate import ring_bandwidths, step_estimate
from quadrille.experiments.predict.step_parts import sample_experiment
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.find_machine import find_machine

EXPERTS = "layers=4,hidden=2048,heads=16,sequence=2048,vocabulary=32000,experts=16,top_k=4,expert_ffn=1024"


@pytest.mark.parametrize("grid", ["data=16,expert=16", "data=16,expert=8"])
def test_the_estimate_of_experts_on_two_nodes_is_near_the_prediction(grid):
    machine = find_machine("h100-superpod", gpus=16)
    experiment = parse_training(TrainingFlags(gpt=EXPERTS, grid=grid, batch="16", micro_batch="1", dtype="bfloat16"))
    assert step_estimate(experiment, machine).seconds == pytest.approx(
        prediction_record(experiment, machine).seconds, rel=0.1
    )


@pytest.mark.parametrize(
    ("name", "grid", "cards"),
    [
        ("h100-superpod", "data=64", 8),
        ("h100-superpod", "data=32,x=2", 4),
        ("h100-superpod", "data=8,x=8", 1),
        ("perlmutter", "data=64", 4),
    ],
)
def test_rings_between_nodes_share_the_cards_of_a_node(name, grid, cards):
    machine, lengths = find_machine(name, gpus=64), parse_grid(grid)
    experiment = with_machine_choices(parse_training(TrainingFlags(gpt="tiny", grid=grid, batch="64")), machine)
    model = ClosedFormModel(machine, "bfloat16", 64, experiment.execution.choices)
    rings = ring_bandwidths(lengths, model, network_of(machine))
    of_one_card = machine.topology["bandwidth_bytes_per_second"]
    assert rings == {(lengths.stride("data"), lengths.data): pytest.approx(cards * of_one_card)}


def test_a_stage_in_one_domain_sends_faster_than_a_stage_on_two():
    machine = find_machine("gb200-nvl72", gpus=256)
    grid = Grid(data=64, pipeline=4, expert=64)
    model = ClosedFormModel(machine, "bfloat16", grid.size, Choices(implementation="nccl"), stages=4)
    stages = [model.at_place(stage).hops for stage in range(4)]
    seconds = [hops.all_pairs_link(grid, "expert", 1 << 20).seconds(1 << 20) for hops in stages]
    assert seconds[0] < min(seconds[1:]) / 4  # GPUs 0 to 63 are in one domain of 72
    slowest = model.hops.all_pairs_link(grid, "expert", 1 << 20).seconds(1 << 20)
    assert slowest == max(seconds)
    assert model.hops.equal_places()[0] == 0
    assert 0 not in model.hops.equal_places()[1:]


def test_the_estimate_counts_a_stage_whose_groups_lie_on_two_nodes_for_that_stage_only():
    machine = find_machine("gb200-nvl72", gpus=256)
    grid = "data=64,expert=64,pipeline=4"
    flags = TrainingFlags(
        gpt=EXPERTS.replace("experts=16", "experts=64"), grid=grid, batch="256", micro_batch="1", dtype="bfloat16"
    )
    experiment = parse_training(flags)
    assert step_estimate(experiment, machine).seconds == pytest.approx(
        prediction_record(experiment, machine).seconds, rel=0.1
    )


def test_the_estimate_follows_each_chain_of_ranks_with_its_own_groups_on_two_nodes():
    """Of four chains with groups of three, one has a slow group in the first stage, and another in the second."""
    machine = find_machine("h100-superpod", gpus=24)
    gpt = "layers=8,hidden=3072,heads=24,sequence=2048,vocabulary=1024"
    flags = TrainingFlags(gpt=gpt, grid="pipeline=2,data=4,z=3", batch="48", micro_batch="1", dtype="bfloat16")
    experiment = parse_training(flags)
    assert step_estimate(experiment, machine).seconds == pytest.approx(
        prediction_record(experiment, machine).seconds, rel=0.05
    )


def test_stages_that_differ_in_unequal_all_to_alls_alone_are_not_equal():
    """Stages 1 and 3 have 8 and 24 of their 64 GPUs in another domain: their rings are equal, not their all-to-alls."""
    machine = find_machine("gb200-nvl72", gpus=256)
    first_of_stages = {}
    for load in ("balanced", "zipf:0.5"):
        flags = TrainingFlags(
            gpt=EXPERTS.replace("experts=16", "experts=64"),
            grid="data=64,expert=64,pipeline=4",
            batch="256",
            micro_batch="1",
            dtype="bfloat16",
            expert_load=load,
        )
        experiment = with_machine_choices(parse_training(flags), machine)
        model = ClosedFormModel(machine, "bfloat16", 256, experiment.execution.choices, stages=4)
        sample_costs(sample_experiment(experiment), model.at_once({}))
        first_of_stages[load] = model.hops.equal_places(), model.equal_places()
    of_hops, of_all = first_of_stages["zipf:0.5"]
    assert of_hops == [0, 1, 2, 1]
    assert of_all == [0, 1, 2, 3]
    of_hops, of_all = first_of_stages["balanced"]
    assert of_hops == of_all


def test_the_estimate_of_unequal_experts_is_near_the_prediction():
    machine = find_machine("h100-superpod", gpus=16)
    flags = TrainingFlags(
        gpt=EXPERTS, grid="data=16,expert=16", batch="16", micro_batch="1", dtype="bfloat16", expert_load="zipf:0.5"
    )
    experiment = parse_training(flags)
    assert step_estimate(experiment, machine).seconds == pytest.approx(
        prediction_record(experiment, machine).seconds, rel=0.1
    )


@pytest.mark.parametrize("grid", ["data=16,expert=4", "data=16,expert=8", "pipeline=2,data=8,expert=8"])
def test_the_fullest_rank_of_unequal_experts_is_that_of_all_classes_of_ranks(grid):
    flags = TrainingFlags(gpt=EXPERTS, grid=grid, batch="16", micro_batch="1", expert_load="zipf:1")
    schedule, choices = parse_training(flags).applied_schedule(), Choices()

    def most(storages):
        return max(storage.bytes for storage in storages)

    assert most(storages_of_stages(schedule, choices)) == most(storages_of_classes(schedule, choices))
