"""Flags of a prediction that say what is different about the machine, where ranks live and what is left out."""

import json

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.timeline_files import load_timeline
from quadrille.algorithms.schedule.grid import Grid
from quadrille.cli.parsing.flags import MatmulFlags
from quadrille.cli.parsing.machines import MachineFlags, chosen_machine
from quadrille.cli.parsing.matmul import parse_matmul
from quadrille.cli.parsing.runs import parse_ranks
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.simulator.simulate import Limits
from tests.support.quadrille import called

SIMULATE = ["simulate", "--matmul", "256,256,256", "--grid", "z=4,x=4", "--machine", "h100-superpod"]
TRAINING = [*SIMULATE, "--passes", "training", "--collectives", "own"]


def predicted(capsys, tmp_path, *words):
    ended = called(capsys, *words, "--json", tmp_path / "r.json")
    assert ended.status == 0, ended.err
    return json.loads((tmp_path / "r.json").read_text())


def test_routing_faults_and_placement_are_named_in_the_record(capsys, tmp_path):
    made = predicted(
        capsys,
        tmp_path,
        *TRAINING,
        *("--routing", "spray", "--slow", "gpu:3=0.5", "--degrade", "gpu:1-nic:1=0.25", "--placement", "scattered"),
    )
    machine = made["machine"]
    assert (machine["routing"], machine["placement"]) == ("spray", "scattered")
    assert machine["faults"] == {"fail": [], "degrade": {"gpu:1-nic:1": 0.25}, "slow": {"gpu:3": 0.5}}
    plain = predicted(capsys, tmp_path, *TRAINING)
    assert plain["machine"].keys() == {"name", "sha256"}
    assert made["machine"]["sha256"] != plain["machine"]["sha256"]
    assert made["seconds"] > plain["seconds"]


def test_a_record_says_how_it_was_computed(capsys, tmp_path):
    made = predicted(capsys, tmp_path, *TRAINING)
    assert made["simulation"]["folded"]
    assert made["simulation"]["rank_classes"] < 16
    assert made["simulation"]["shards"] == "exact"
    assert sum(one["seconds"] for one in made["critical_path"]) == pytest.approx(made["seconds"], rel=1e-9)
    assert 1 <= len(made["links"]) <= 20


@pytest.mark.parametrize("switch", ["--no-fold", "--no-fold-time", "--no-memory", "--no-local"])
def test_no_switch_changes_the_answer(capsys, tmp_path, switch):
    one, other = (predicted(capsys, tmp_path, *TRAINING, *more) for more in ([], [switch]))
    assert other["seconds"] == pytest.approx(one["seconds"], rel=1e-9)
    assert other["simulation"]["folded"] == (switch != "--no-fold")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--routing", "best"], "routing 'best'"),
        (["--fail", "gpu:0-gpu:99"], "gpu:0"),
        (["--degrade", "gpu:0-nic:0"], "--degrade gpu:0-nic:0: write NAME=SHARE"),
        (["--degrade", "gpu:0-nic:0=2"], "above 0 and at most 1"),
        (["--slow", "gpu:16=0.5"], "--slow gpu:16"),
        (["--placement", "round"], "placement 'round': accepted are packed, packed:N, scattered"),
        (["--placement", "axes:w"], "placement 'axes:w'"),
        (["--shards", "odd"], "shards 'odd': accepted are exact, even"),
        (["--ranks", "0-3"], "--ranks 0-3: says what --trace, --timeline or --plot shows"),
        (["--trace", "t.json", "--ranks", "9-16"], "'9-16' is no rank"),
        (["--trace", "t.json", "--ranks", "3-1"], "'3-1' is no rank"),
    ],
)
def test_a_flag_that_cannot_be_is_one_line_and_status_2(capsys, words, said):
    ended = called(capsys, *SIMULATE, *words)
    assert ended.status == 2
    assert said in ended.line


def test_a_fault_that_cuts_the_network_in_two_is_status_2(capsys, tmp_path):
    (tmp_path / "m.toml").write_text(
        'schema = "quadrille/machine/1"\nname = "two"\n[topology]\nfamily = "leaf-spine"\nleaves = 2\nspines = 1\n'
        "hosts_per_leaf = 2\nbandwidth_bytes_per_second = 1e9\nlatency_seconds = 1e-6\n[device]\n"
        "peak_flops_per_second = { float32 = 1e11 }\nmemory_bytes_per_second = 1e10\nmemory_bytes = 8e9\n"
        "overhead_seconds = 0.0\n"
    )
    words = ["simulate", "--matmul", "64,64,64", "--grid", "z=4", "--machine", tmp_path / "m.toml"]
    ended = called(capsys, *words, "--fail", "leaf:1-spine:0")
    assert ended.status == 2
    assert "cut" in ended.line
    assert called(capsys, *words).status == 0


def test_a_trace_and_a_timeline_show_the_ranks_that_were_asked_for(capsys, tmp_path):
    words = ["simulate", "--matmul", "256,256,256", "--grid", "z=32,x=4", "--machine", "h100-superpod"]
    words += ["--collectives", "own"]
    files = ["--trace", tmp_path / "t.json", "--timeline", tmp_path / "l.json", "--json", tmp_path / "r.json"]
    assert called(capsys, *words, *files, "--ranks", "0-7,12").status == 0
    asked = {*range(8), 12}
    assert {span.rank for span in load_timeline(tmp_path / "l.json").spans} == asked
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "X"} == asked
    assert called(capsys, *words, *files).status == 0
    of_kinds = load_timeline(tmp_path / "l.json")
    assert sum(of_kinds.copies.values()) == 128
    assert len({span.rank for span in of_kinds.spans}) < 64
    every = of_kinds.expanded(Grid(z=32, x=4)).spans
    assert {span.rank for span in every} == set(range(128))


def test_ranks_are_numbers_and_ranges():
    assert parse_ranks("5,0-2,1", 6) == (0, 1, 2, 5)
    with pytest.raises(InputError, match="from 0 to 5"):
        parse_ranks("6", 6)


# Shards


def test_even_shards_are_recorded_with_their_bound_and_are_automatic_on_many_ranks():
    machine = chosen_machine(MachineFlags(machine="bench-1to1"), gpus=4160)
    flags = {"matmul": "100001,1009,1013", "grid": "z=65,x=64", "passes": "forward"}
    made = predict_record_and_timeline(parse_matmul(MatmulFlags(**flags)), machine)[0].simulation
    assert (made.shards, made.folded) == ("even", True)
    assert 0 < made.shards_bound < 1
    small = {"matmul": "101,103,107", "grid": "z=3,x=2"}
    few = chosen_machine(MachineFlags(machine="bench-1to1"), gpus=6)
    asked = [parse_matmul(MatmulFlags(**small, shards=word)) for word in ("", "even")]
    exact, even = (predict_record_and_timeline(experiment, few)[0] for experiment in asked)
    assert (exact.simulation.shards, even.simulation.shards) == ("exact", "even")
    assert abs(exact.seconds - even.seconds) <= even.simulation.shards_bound * even.seconds


def test_a_run_has_no_even_shards(capsys):
    ended = called(capsys, "run", "--matmul", "64,64,64", "--shards", "even")
    assert ended.status == 2
    assert "shards 'even'" in ended.line


# What is not small


def test_where_ranks_live_is_known_at_once_for_many():
    machine = chosen_machine(MachineFlags(machine="bench-1to1"), gpus=100_000)
    assert fullest_device(machine, 100_000).ranks == 1


def test_what_will_take_long_says_so_before_it_starts(capsys):
    flags = MatmulFlags(matmul="256,256,256", grid="z=4,x=4", passes="training", collectives="own")
    machine, limits = chosen_machine(MachineFlags(machine="h100-superpod"), gpus=16), Limits(long_seconds=1e-6)
    predict_record_and_timeline(parse_matmul(flags), machine, limits=limits, announce=True)
    announced = capsys.readouterr().err
    assert "ranks out of 16 are to be simulated" in announced
    assert "Ctrl-C ends it" in announced
