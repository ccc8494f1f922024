"""`--collectives auto`: what is chosen is what is predicted to take least, by all ranks alike."""

import json
from dataclasses import replace

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace as replaced

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.volumes import bytes_sent
from quadrille.algorithms.collectives.collective_choices import Choices, parse_choices
from quadrille.algorithms.collectives.lowering import SETS
from quadrille.algorithms.formats.measured_rows import LibraryRow
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Collective
from quadrille.algorithms.schedule.program import ops
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.cli.parsing.flags import MatmulFlags
from quadrille.cli.parsing.matmul import parse_matmul
from quadrille.experiments.predict.collectives_choice import chosen_collectives, collective_ops, program_with_only
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.simulator.simulate import simulate
from quadrille.topologies.machines.machine import NetworkCosts
from quadrille.topologies.machines.machine_file import save_machine
from tests.support.predicted_runs import predicted_and_run
from tests.support.products import assembled, products, whole_integers
from tests.support.quadrille import called
from tests.support.toy_machines import collective, leaf_spine, one_host, star, transfer_row

SIZES = (1 << 10, 1 << 16, 1 << 22)
GRID = Grid(z=2, y=2, x=4)


def rows(shift_rate, exchange_rate, ranks=4):
    """Steps around a ring and to and fro, each at its rate, after 10 us."""
    rates = {"shift": shift_rate, "exchange": exchange_rate}
    return [
        transfer_row(size, 1e-5 + size / rate, pattern=pattern, ranks=ranks)
        for pattern, rate in rates.items()
        for size in (8, *SIZES)
    ]


def chosen_for(kind, members, size, machine):
    """The one choice for a collective, and all ways that were tried."""
    (found,) = chosen_collectives(collective(kind, members, size), machine, [0] * members)
    return str(found.ranked[0].choices), {str(one.choices): one.seconds for one in found.ranked}


def test_an_exchange_that_is_known_to_be_slow_is_avoided():
    half_duplex, full_duplex = (star(4, network=rows(25e6, rate)) for rate in (12e6, 25e6))
    chosen, seconds = chosen_for("all_gather", 4, 1 << 22, half_duplex)
    assert chosen == "own:ring" and seconds["own:doubling"] > 1.5 * seconds["own:ring"]
    assert chosen_for("all_gather", 4, 1 << 22, full_duplex)[0] == "own:doubling"


def test_few_bytes_go_in_few_steps_and_many_in_small_pieces():
    slow_to_begin = star(8, latency=1e-3)
    assert chosen_for("all_reduce", 8, 1 << 10, slow_to_begin)[0] == "own:doubling"
    assert chosen_for("all_reduce", 8, 1 << 28, slow_to_begin)[0] in ("own:ring", "own:halving_doubling")


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"])
@pytest.mark.parametrize("size", [1 << 13, 1 << 23])
def test_no_set_of_ours_is_predicted_to_be_faster_than_what_is_chosen(kind, size):
    machine = leaf_spine(2, 4, latency=2e-5)
    chosen, seconds = chosen_for(kind, 8, size, machine)
    for name in SETS:
        other = simulate(collective(kind, 8, size), machine, choices=Choices("own", name)).timeline.makespan
        assert seconds[chosen] <= other * (1 + 1e-9)


def test_pieces_of_a_chain_are_as_small_as_pays():
    quick, slow = star(8, latency=1e-7), star(8, latency=5e-3)
    assert chosen_for("broadcast", 8, 16 << 20, quick)[0].endswith(":256KiB")
    chosen, ways = chosen_for("broadcast", 8, 16 << 20, slow)
    assert not chosen.endswith(":256KiB")
    assert ways["own:ring"] > ways["own:ring:4096KiB"]


def test_hierarchies_are_tried_where_members_share_nodes():
    schedule = collective("all_gather", 8, 1 << 20)
    (apart,), (together,) = (chosen_collectives(schedule, star(8), [i // each for i in range(8)]) for each in (1, 4))
    assert "own:hierarchical" not in {str(one.choices) for one in apart.ranked}
    assert "own:hierarchical" in {str(one.choices) for one in together.ranked}


def test_the_library_is_tried_only_where_its_time_is_known():
    assert "library" not in chosen_for("all_gather", 4, 1 << 20, star(4))[1]
    for seconds, is_best in ((1e-6, True), (1.0, False)):
        knowing = replaced(star(4), network=NetworkCosts(library=(gathered("regular", seconds),)))
        chosen, ways = chosen_for("all_gather", 4, 1 << 20, knowing)
        assert (chosen == "library") == is_best and ways["library"] == pytest.approx(seconds, rel=0.01)
        assert "library" not in chosen_for("reduce_scatter", 4, 1 << 20, knowing)[1]


def gathered(calls, seconds):
    """An all-gather of 1 MiB by MPI's library."""
    return LibraryRow(kind="all_gather", ranks=4, stride=1, world_size=4, bytes=1 << 20, calls=calls, seconds=seconds)


def ways_by_library(size, *rows):
    """What is chosen for a gather, and the library's ways that were tried."""
    chosen, ways = chosen_for("all_gather", 4, size, replaced(star(4), network=NetworkCosts(library=rows)))
    return chosen, {way for way in ways if way.startswith("library")}


@pytest.mark.parametrize(("fastest", "seconds"), [("library", (1e-6, 1e-5)), ("library:vector", (1e-5, 1e-6))])
def test_both_calls_of_the_library_are_tried_where_both_were_measured_and_shards_are_equal(fastest, seconds):
    both = [gathered(*one) for one in zip(("regular", "vector"), seconds, strict=True)]
    assert ways_by_library(1 << 20, *both) == (fastest, {"library", "library:vector"})
    assert ways_by_library((1 << 20) - 8, *both) == ("library", {"library"})
    assert ways_by_library(1 << 20, both[1])[1] == {"library:vector"}, "as `library` these calls are a guess"
    old = replaced(both[1], calls=UNSET)
    assert ways_by_library(1 << 20, old)[1] == {"library:vector"}


def test_a_broadcast_is_compared_by_what_turning_roots_were_measured_to_take():
    for seconds, is_best in ((1e-6, True), (1.0, False)):
        row = LibraryRow(kind="broadcast", ranks=4, stride=1, world_size=4, bytes=1 << 20, seconds=seconds)
        chosen, ways = chosen_for("broadcast", 4, 1 << 20, replaced(star(4), network=NetworkCosts(library=(row,))))
        assert (chosen == "library") == is_best and ways["library"] == pytest.approx(seconds, rel=0.01)


def test_ops_of_one_kind_and_size_are_one_question_and_groups_of_one_are_none():
    schedule = matmul_schedule(Matmul(64, 64, 64, passes="training"), "4d", Grid(z=4, x=1))
    (gather, scatter) = collective_ops(schedule)
    assert gather.kind == "all_gather" and gather.size_bytes == 64 * 64 * 4 and len(gather.names) == 2
    assert scatter.kind == "reduce_scatter" and scatter.axis == "z"


def test_the_reduced_program_is_the_op_in_all_its_iterations():
    schedule = matmul_schedule(Matmul(64, 64, 64, panel=16), "summa", Grid(z=2, x=2))
    name = next(op.name for op in all_ops(schedule) if isinstance(op, Collective))
    left = program_with_only(schedule.roles[0].program, name)
    assert {op.name for op in ops(left)} == {name}
    place = schedule.coordinates(0)
    assert [len(entry.indices(place)) for entry in left] == [4]


def mixed(schedule):
    """Another set for every op."""
    names = list(dict.fromkeys(op.name for op in all_ops(schedule) if isinstance(op, Collective)))
    sets = [*SETS]
    return Choices(by_op=tuple((name, Choices("own", sets[i % len(sets)])) for i, name in enumerate(names)))


@pytest.mark.parametrize(("algorithm", "grid"), [("4d", GRID), ("3d", GRID), ("summa", Grid(z=4, x=2))])
def test_a_product_whose_ops_go_by_many_algorithms_is_numpy_s_and_its_bytes_are_predicted(algorithm, grid):
    problem = Matmul(53, 37, 41, "float64", "training", panel=5)
    schedule, matrices = matmul_schedule(problem, algorithm, grid), whole_integers(problem)
    choices = mixed(schedule)
    execution = execute(schedule, matrices, InProcess(grid.size), choices=choices)
    for name, expected in products(problem, matrices).items():
        np.testing.assert_array_equal(assembled(schedule, execution, name, expected.shape), expected)
    for rank in range(grid.size):
        assert execution.bytes_sent[rank] == bytes_sent(schedule, rank, choices)
        assert execution.allocated_bytes[rank] == storage(schedule, schedule.coordinates(rank), choices).bytes


def test_a_library_s_op_beside_one_of_our_own_gives_numpy_s_product():
    problem = Matmul(30, 20, 10, "float64")
    schedule, matrices = matmul_schedule(problem, "4d", Grid(z=2, x=2, y=2)), whole_integers(problem)
    first = next(op.name for op in all_ops(schedule) if isinstance(op, Collective))
    execution = execute(schedule, matrices, InProcess(8), choices=Choices(by_op=((first, parse_choices("library")),)))
    np.testing.assert_array_equal(assembled(schedule, execution, "C", (30, 10)), matrices["A"] @ matrices["B"])


def test_a_prediction_with_auto_is_the_least_and_says_what_was_chosen_and_why():
    machine, flags = star(8, network=rows(25e6, 12e6, ranks=8)), MatmulFlags(matmul="256,512,256", grid="z=4,x=2,y=1")
    made = {
        words: predict_record_and_timeline(parse_matmul(replace(flags, collectives=words)), machine)[0]
        for words in ("auto", *(f"own:{name}" for name in SETS))
    }
    auto = made.pop("auto")
    assert auto.seconds <= min(one.seconds for one in made.values()) * (1 + 1e-9)
    reasons = auto.collectives
    for op in auto.ops:
        if op.name in reasons:
            assert reasons[op.name].seconds <= reasons[op.name].second_seconds
            assert op.algorithm == parse_choices(reasons[op.name].chosen).label(op.kind, op.axis)
    assert "gather B" in reasons and auto.options.collectives == "own:ring", "all that was chosen"


def test_without_a_machine_auto_is_a_ring_and_says_so(capsys):
    ended = called(capsys, "run", "--matmul", "16,16,16", "--collectives", "auto", "--repeats", "1", "--json", "-")
    assert ended.status == 0 and "no --machine to predict with, so every op uses own:ring" in ended.err
    record = json.loads(ended.out)
    assert record["options"]["collectives"] == "own:ring" and "collectives" not in record


@pytest.mark.mpi
def test_ranks_choose_what_was_predicted_for_them(tmp_path, capsys):
    machine = tmp_path / "host.toml"
    save_machine(one_host(2, transfer=rows(5e9, 2e9, ranks=2), memory=1e10), machine)
    words = ["--matmul", "96,64,80", "--algorithm", "summa", "--grid", "z=2,x=2", "--collectives", "auto"]
    foretold, ran, said = predicted_and_run(capsys, tmp_path, *words, "--machine", machine)
    assert ran["verified"]["ok"] and ran["collectives"] == foretold["collectives"] != {}
    assert {op["name"]: op["algorithm"] for op in ran["ops"]} == {op["name"]: op["algorithm"] for op in foretold["ops"]}
    assert ran["bytes_sent_total"] == foretold["bytes_sent_total"]
    assert "predicted alone" in said
