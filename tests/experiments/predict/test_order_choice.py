"""`--order auto`: ranks are laid out as is predicted to take least, by all ranks alike."""

import csv
import json
from dataclasses import replace

import pytest

from quadrille.algorithms.schedule.grid import Grid
from quadrille.cli.parsing.experiment import experiment_of
from quadrille.cli.parsing.flags import MatmulFlags, TrainingFlags
from quadrille.cli.parsing.matmul import parse_matmul
from quadrille.experiments.predict.predict import choose_order, predict_record_and_timeline
from quadrille.experiments.workloads.rank_orders import ORDERS, grids_in_every_order
from quadrille.topologies.machines.machine_file import save_machine
from tests.support.predicted_runs import predicted_and_run
from tests.support.quadrille import called
from tests.support.toy_machines import leaf_spine, one_host, star

STEP = ["--mlp", "64,256,64", "--batch", "64"]


@pytest.mark.parametrize(
    ("lengths", "orders"), [({}, 1), ({"z": 4}, 1), ({"z": 2, "x": 2}, 2), ({"data": 2, "z": 2, "y": 3}, 6)]
)
def test_orders_that_differ_are_those_of_the_axes_that_are_longer_than_one(lengths, orders):
    found = grids_in_every_order(Grid(**lengths, pipeline=2))
    places = {tuple(tuple(grid.coordinates(rank).values()) for rank in range(grid.size)) for grid in found}
    assert len(found) == len(places) == orders
    assert all(grid.order[-1] == "pipeline" for grid in found)


@pytest.mark.parametrize("grid", ["z=2,x=4", "y=2,x=2,z=2", "data=4,y=2"])
def test_what_is_chosen_takes_least_of_all_orders(grid):
    machine = leaf_spine(2, 4)
    flags = MatmulFlags(matmul="128,1024,512", grid=grid, passes="training", order="auto")
    found = choose_order(parse_matmul(flags), machine)
    alone = {
        ",".join(order): predict_record_and_timeline(parse_matmul(replace(flags, order=",".join(order))), machine)[
            0
        ].seconds
        for order in ORDERS
    }
    assert found.ranked[0].seconds == pytest.approx(min(alone.values()), rel=1e-9)
    assert all(one.seconds == pytest.approx(alone[str(one)], rel=1e-9) for one in found.ranked)


def test_between_leaves_the_axis_that_moves_most_is_innermost_and_where_all_are_equal_the_default_order_stays():
    flags = TrainingFlags(mlp="256,1024,256", batch="64", grid="z=4,x=2", order="auto")
    between, at_one_switch = (choose_order(experiment_of(flags), machine) for machine in (leaf_spine(2, 4), star(8)))
    first, second = between.ranked
    assert str(first).index("z") < str(first).index("x")
    assert second.seconds > 1.2 * first.seconds
    assert str(at_one_switch.ranked[0]) == "x,y,z,data"


def test_a_prediction_says_what_was_chosen_and_why(tmp_path, capsys):
    machine = tmp_path / "leaves.toml"
    save_machine(leaf_spine(2, 2), machine)
    words = ["simulate", *STEP, "--grid", "z=2,x=2", "--machine", machine, "--json", "-"]
    made = {order: called(capsys, *words, "--order", order) for order in ("auto", "x,y,z,data", "z,y,x,data")}
    records = {order: json.loads(ended.out) for order, ended in made.items()}
    fastest = min(("x,y,z,data", "z,y,x,data"), key=lambda order: records[order]["seconds"])
    choice = records["auto"]["order_choice"]
    assert choice["seconds"] == records["auto"]["seconds"] == records[fastest]["seconds"] < choice["second_seconds"]
    assert f"order {choice['chosen']}: " in made["auto"].err and f"; then {choice['second']}, " in made["auto"].err
    assert "order_choice" not in records[fastest]


def test_without_a_machine_ranks_are_laid_out_as_usual_which_is_said(capsys):
    ended = called(capsys, "run", "--matmul", "16,16,16", "--order", "auto", "--repeats", "1", "--json", "-")
    assert ended.status == 0 and "no --machine to predict with, so ranks are laid out in x,y,z,data" in ended.err
    assert json.loads(ended.out)["order"] == ["x", "y", "z", "data"]


def test_a_sweep_finds_the_order_of_every_point_and_names_it(tmp_path, capsys):
    machine = tmp_path / "leaves.toml"
    save_machine(leaf_spine(2, 2), machine)
    words = ["sweep", *STEP, "--machine", machine, "--vary", "order=auto;x,y,z,data;z,y,x,data", "--grid", "z=2,x=2"]
    files = {"--json": tmp_path / "found.json", "--csv": tmp_path / "found.csv"}
    ended = called(capsys, *words, *(word for pair in files.items() for word in pair))
    assert ended.status == 0, ended.err
    auto, *others = json.loads(files["--json"].read_text())["rows"]
    fastest = min(others, key=lambda row: row["answer"]["seconds"])
    assert auto["answer"]["seconds"] == fastest["answer"]["seconds"]
    found = auto["answer"]["order_found"]
    assert (found.index("z") < found.index("x")) == (fastest["point"]["order"] == "z,y,x,data"), "y has one rank"
    assert [row["answer"].get("order_found") for row in others] == [None, None]
    with files["--csv"].open() as lines:
        assert [row["order_found"] for row in csv.DictReader(lines)] == [found, "", ""]
    assert "order found" in ended.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["schedule", "--matmul", "8,8,8", "--order", "auto"], "order 'auto': run and simulate find it"),
        (["sweep", "--matmul", "64,64,64", "--machine", "perlmutter", "--gpus", "4", "--best-grid", "--order", "auto",
          "--vary", "dtype=float32"], "--best-grid tries one order of ranks"),
        (["simulate", "--matmul", "8,8,8", "--order", "autos"], "unknown axis 'autos'"),
        (["study", "strong-scaling", "--matmul", "8,8,8", "--order", "auto", "--machine", "perlmutter"],
         "unknown axis 'auto'"),
    ],
)  # fmt: skip
def test_where_no_order_is_looked_for_it_is_refused(words, said, capsys):
    ended = called(capsys, *words)
    assert said in ended.err
    assert ended.status == 2


@pytest.mark.mpi
def test_ranks_are_laid_out_as_was_predicted_for_them(tmp_path, capsys):
    machine = tmp_path / "host.toml"
    save_machine(one_host(2, memory=1e10), machine)
    words = ["--matmul", "96,64,80", "--grid", "z=2,x=2", "--order", "auto", "--collectives", "auto"]
    foretold, ran, _ = predicted_and_run(capsys, tmp_path, *words, "--machine", machine)
    assert ran["verified"]["ok"] and ran["order"] == foretold["order"]
    assert ran["order_choice"] == foretold["order_choice"]
    assert ran["bytes_sent_total"] == foretold["bytes_sent_total"]
