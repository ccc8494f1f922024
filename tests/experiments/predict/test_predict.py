import json
import subprocess
import sys
from dataclasses import replace as changed

import msgspec
import numpy as np
import pytest

from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.formats.timeline_files import load_timeline
from quadrille.cli.parsing.flags import MatmulFlags
from quadrille.cli.parsing.matmul import parse_matmul
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.experiments.records.record_table import print_record
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Emulation, Fit, Host, ReferenceKernels
from quadrille.topologies.machines.machine_file import save_machine
from tests.support.quadrille import HOST, called
from tests.support.toy_laboratories import laboratory

replace = msgspec.structs.replace
SPEEDS = {"bandwidth_bytes_per_second": 1e9, "latency_seconds": 1e-6}
KERNELS = ReferenceKernels(gemm_seconds=1e-3, copy_seconds=2e-4, add_seconds=3e-4)
HOST_OF_TWO = {"host": Host(cores=2), "reference": KERNELS}
WORDS = ["simulate", "--matmul", "307,211,101", "--algorithm", "4d", "--grid", "z=2,x=2", "--passes", "training"]


@pytest.fixture
def machine(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(HOST)
    return path


def without_provenance(path):
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "provenance"}


def test_a_prediction_is_a_record_of_what_was_asked(capsys, tmp_path, machine):
    path = tmp_path / "predicted.json"
    ended = called(capsys, *WORDS, "--machine", machine, "--overlap", "ors,oar", "--order", "z,x", "--json", path)
    assert ended.status == 0, ended.err
    record = load_record(path)
    assert (record.kind, record.ranks, record.grid["z"], record.backend) == ("predicted", 4, 2, "numpy")
    assert record.options.overlap == ("oar", "ors")
    assert record.order == ("z", "x", "y", "data")
    assert record.machine.name == "toy" and record.machine.sha256 == find_machine(str(machine)).sha256
    assert record.provenance.command.startswith("quadrille simulate --matmul 307,211,101")
    assert record.verified is None
    assert 0 < record.seconds_low <= record.seconds <= record.seconds_high
    assert record.seconds >= record.flops_per_rank_max / 1.6e11


def test_a_prediction_holds_the_reference_kernels_of_calibration_unless_ranks_outnumber_cores(machine):
    toy = find_machine(str(machine))
    for grid, expected in (("x=1", (1e-3,)), ("x=2", (1e-3,)), ("x=4", None)):
        experiment = parse_matmul(MatmulFlags(matmul="64,64,64", grid=grid))
        reference = predict_record_and_timeline(experiment, toy)[0].reference
        assert (reference and reference.gemm_seconds) == expected


RUN_WORDS = [
    ["--seed", "7", "--operands", "integers"],
    ["--warmups", "0", "--repeats", "31"],
    ["--verify", "--verify-method", "freivalds"],
    ["--a", "no/a.npy", "--b", "no/b.npy", "--dc", "no/dc.npy"],
    ["--c", "no/c.npy", "--da", "no/da.npy", "--db", "no/db.npy"],
    ["--carrier", "mpi"],
]


@pytest.mark.parametrize("words", RUN_WORDS)
def test_the_flags_of_a_run_change_no_prediction_and_touch_no_file(capsys, tmp_path, machine, words):
    plain, with_flags = tmp_path / "plain.json", tmp_path / "flags.json"
    ended = called(capsys, *WORDS, "--machine", machine, "--json", plain)
    assert (ended.status, ended.line) == (0, "quadrille: toy: 4 ranks share 2 cores, more ranks than cores")
    assert called(capsys, *WORDS, *words, "--machine", machine, "--json", with_flags) == ended
    assert without_provenance(plain) == without_provenance(with_flags)
    assert sorted(tmp_path.iterdir()) == [with_flags, plain, machine]


def test_a_prediction_is_of_the_chunks_that_are_asked_for(capsys, tmp_path):
    """In a laboratory, whose sends are buffered: a broadcast over a chain goes on chunk by chunk."""
    lab = laboratory(None)
    path, record = tmp_path / "lab.toml", tmp_path / "predicted.json"
    save_machine(replace(lab, emulation=replace(lab.emulation, eager=True)), path)

    def seconds(*words):
        product = ["--matmul", "512,512,512", "--grid", "x=4", "--algorithm", "summa", "--panel", "512"]
        ended = called(capsys, "simulate", *product, *words, "--machine", path, "--json", record)
        assert ended.status == 0, ended.err
        return load_record(record).seconds

    assert seconds() == seconds("--chunk", "60KiB") < seconds("--chunk", "256KiB") < seconds("--chunk", "none")


MODEL = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 4, "vocab_size": 16}
STACK = ["--mlp", "8,8", "--batch", "4"]


@pytest.mark.parametrize(
    ("flag", "name", "words"),
    [
        ("--load", "trained.ckpt", STACK),
        ("--save", "trained.ckpt", STACK),
        ("--gpt", "model.json", ["--batch", "4"]),
        ("--gemm-layouts", "host.toml", STACK),
        ("--placement", "places.txt", ["--matmul", "8,8,8"]),
        ("--a", "a.npy", ["--matmul", "8,8,8"]),
    ],
)
@pytest.mark.parametrize("result", ["--json", "--timeline"])
def test_no_file_that_is_named_for_something_else_is_overwritten(capsys, tmp_path, machine, flag, name, words, result):
    path = tmp_path / name
    path.write_text(json.dumps(MODEL))
    ended = called(capsys, "simulate", *words, flag, path, "--machine", machine, result, path)
    assert ended.status == 2
    assert flag in ended.line and f"both name {path}: give each its own file" in ended.line
    assert path.read_text() == json.dumps(MODEL)


@pytest.mark.parametrize("command", ["simulate", "run"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--save", "--machine"), STACK),
        (("--save", "--gpt"), ["--batch", "2"]),
        (("--save", "--gemm-layouts"), STACK),
        (("--save", "--placement"), STACK),
        (("--c", "--machine"), ["--matmul", "8,8,8"]),
    ],
)
def test_neither_a_checkpoint_nor_a_product_overwrites_what_is_read(capsys, tmp_path, machine, command, flags, words):
    path = tmp_path / ("model.json" if "--gpt" in flags else "host.toml")
    before = json.dumps(MODEL | {"vocab_size": 256}) if "--gpt" in flags else machine.read_text()
    path.write_text(before)
    named = [one for flag in flags for one in (flag, path)]
    on = [] if "--machine" in flags else ["--machine", machine]
    ended = called(capsys, command, *words, *on, *named)
    assert ended.status == 2
    assert ended.line == f"quadrille: {' and '.join(flags)} both name {path}: give each its own file"
    assert path.read_text() == before


def test_the_backend_named_is_that_of_the_runs_to_be_compared_with(capsys, tmp_path, machine):
    plain, named = tmp_path / "plain.json", tmp_path / "named.json"
    assert called(capsys, *WORDS, "--machine", machine, "--json", plain).status == 0
    words = ["--backend", "cupy", "--carrier", "nccl", "--json", named]
    assert called(capsys, *WORDS, *words, "--machine", machine).status == 0
    assert without_provenance(named) == without_provenance(plain) | {"backend": "cupy"}


def test_auto_is_recorded_as_what_it_stands_for(capsys, tmp_path, machine):
    path = tmp_path / "record.json"
    called(capsys, *WORDS, "--collectives", "auto", "--machine", machine, "--json", path)
    record = load_record(path)
    assert record.options.collectives == "own:ring"
    assert {one.chosen for one in record.collectives.values()} == {"own:ring"}
    assert {op.algorithm for op in record.ops if op.axis == "z"} == {"ring"}


def test_the_same_command_gives_the_same_files_but_for_provenance(capsys, tmp_path, machine):
    paths = [[tmp_path / f"{name}{time}.json" for name in ("record", "trace", "timeline")] for time in (1, 2)]
    for record, trace, timeline in paths:
        words = ["--machine", machine, "--json", record, "--trace", trace, "--timeline", timeline]
        assert called(capsys, *WORDS, *words).status == 0
    for one, other in zip(*paths, strict=True):
        first, second = without_provenance(one), without_provenance(other)
        for content in (first, second):
            content.get("otherData", {}).pop("provenance", None)
        assert first == second


def test_a_prediction_and_its_timeline_have_one_makespan(capsys, tmp_path, machine):
    record, timeline = tmp_path / "record.json", tmp_path / "timeline.json"
    called(capsys, *WORDS, "--machine", machine, "--json", record, "--timeline", timeline)
    assert load_timeline(timeline).makespan == pytest.approx(load_record(record).seconds)
    assert load_timeline(timeline).kind == "predicted"


def test_json_to_stdout_is_nothing_but_the_record(capsys, machine):
    ended = called(capsys, *WORDS, "--machine", machine, "--json", "-")
    assert json.loads(ended.out)["schema"] == "quadrille/record/2"


def test_the_table_shows_every_op_of_several_ranks_and_the_total(capsys, tmp_path, machine):
    ended = called(capsys, *WORDS, "--machine", machine, "--json", tmp_path / "record.json")
    record = load_record(tmp_path / "record.json")
    alone = [op for op in record.ops if op.axis is not None and record.grid[op.axis] == 1 and op.seconds == 0]
    assert alone and all(f"\n{op.name} " in ended.out for op in record.ops if op not in alone)
    assert not any(f"\n{op.name} " in ended.out for op in alone)
    assert f"\nand {len(alone)} more, 0 s together; --verbose shows all\n" in ended.out
    ended = called(capsys, *WORDS, "--machine", machine, "--verbose")
    assert all(f"\n{op.name} " in ended.out for op in record.ops)
    assert "\ntotal: " in ended.out and "(from data sheets: no interval is known)" in ended.out


def test_the_table_shows_the_interval_of_a_prediction_that_has_one(capsys, machine):
    made, _ = predict_record_and_timeline(parse_matmul(MatmulFlags(matmul="64,64,64")), find_machine(str(machine)))
    print_record(msgspec.structs.replace(made, seconds=0.02, seconds_low=0.01, seconds_high=0.03))
    assert "\ntotal: 20.0 ms (90 % interval: 10.0 ms to 30.0 ms)\n" in capsys.readouterr().out
    print_record(msgspec.structs.replace(made, seconds=0.02, seconds_low=0.0, seconds_high=0.03))
    assert "\ntotal: 20.0 ms (90 % interval: unknown)\n" in capsys.readouterr().out


WARNINGS = ["half of the products are off the fit", "something else ran", "link a>b carries 0.5 times"]


@pytest.mark.parametrize(
    ("warnings", "flags", "said"),
    [
        (WARNINGS, [], ["toy: its calibration gave 3 warnings; --verbose shows them"]),
        (WARNINGS, ["--verbose"], [f"toy: {warning}" for warning in WARNINGS]),
        (WARNINGS[:1], [], [f"toy: {WARNINGS[0]}"]),
        ([], [], []),
    ],
)
def test_the_warnings_of_a_calibration_are_summed_up_in_one_line(capsys, machine, warnings, flags, said):
    save_machine(replace(find_machine(str(machine)), fit=Fit(warnings=tuple(warnings))), machine)
    ended = called(capsys, "simulate", "--matmul", "64,64,64", "--machine", machine, *flags)
    assert ended.err.splitlines() == [f"quadrille: {line}" for line in said]


def test_parts_of_an_op_add_up_to_its_seconds_and_waiting(capsys, tmp_path, machine):
    called(capsys, *WORDS, "--machine", machine, "--json", tmp_path / "record.json")
    ops = load_record(tmp_path / "record.json").ops
    assert ops
    for op in ops:
        assert sum(op.seconds_by_part.values()) == pytest.approx(op.seconds + op.waiting_seconds)


def test_a_machine_by_name_is_as_large_as_the_grid_and_what_if_changes_it(capsys, tmp_path):
    seconds = []
    faster = ("device.peak_flops_per_second=x4", "device.memory_bytes_per_second=x4", "device.overhead_seconds=x0.25")
    for settings in ([], [word for setting in faster for word in ("--set", setting)]):
        path = tmp_path / "record.json"
        words = ["simulate", "--matmul", "8192,8192,8192", "--dtype", "bfloat16", "--grid", "x=4", "--json", path]
        ended = called(capsys, *words, "--machine", "perlmutter", *settings)
        assert ended.status == 0, ended.err
        seconds.append(load_record(path).seconds)
    assert seconds[0] / seconds[1] == pytest.approx(4, rel=0.05)
    assert find_machine("perlmutter", gpus=4).topology["gpus"] == 4


def test_ops_outside_what_was_measured_are_marked(capsys, machine):
    assert "extrapolated" in called(capsys, *WORDS, "--machine", machine).out


def test_remarks_go_to_stderr_and_do_not_fail(capsys, machine):
    words = ["simulate", "--matmul", "60000,60000,60000", "--algorithm", "cannon", "--overlap", "oar"]
    ended = called(capsys, *words, "--machine", machine)
    assert ended.status == 0
    first, second = ended.err.splitlines()
    assert "--overlap oar changes nothing: cannon, forward, has no such communication" in first
    assert "and a device of toy has 7.45 GiB: it would not fit" in second


@pytest.mark.parametrize(
    ("algorithm", "grid", "passes", "expected"),
    [
        ("3d", "z=2,x=2", "forward", True),
        ("summa", "z=2,x=2", "forward", True),
        ("cannon", "z=2,x=2", "forward", True),
        ("3d", "z=2,x=2", "training", False),
        ("4d", "z=2,x=2", "forward", False),
        ("2.5d", "y=2", "forward", False),
    ],
)
def test_the_lower_bound_is_given_where_it_holds(machine, algorithm, grid, passes, expected):
    flags = MatmulFlags(matmul="64,64,64", algorithm=algorithm, grid=grid, passes=passes)
    record, _ = predict_record_and_timeline(parse_matmul(flags), find_machine(str(machine)))
    assert (record.bytes_lower_bound_per_rank is not None) == expected
    if expected:
        assert record.bytes_sent_per_rank_max >= record.bytes_lower_bound_per_rank


def test_collectives_are_named_and_groups_of_one_have_no_algorithm(machine):
    flags = MatmulFlags(matmul="64,64,64", algorithm="4d", grid="z=2", collectives="library")
    record, _ = predict_record_and_timeline(parse_matmul(flags), find_machine(str(machine)))
    by_name = {op.name: op.algorithm for op in record.ops}
    assert by_name == {"gather B": "library (as ring)", "multiply C": None, "sum C": None}


def test_threads_default_to_the_share_of_the_host_s_cores(machine):
    toy = find_machine(str(machine))
    assert [fullest_device(toy, ranks).threads for ranks in (1, 2, 3, 8)] == [2, 1, 1, 1]
    flags = MatmulFlags(matmul="64,64,64")
    assert predict_record_and_timeline(parse_matmul(flags), toy)[0].options.threads == 2
    assert predict_record_and_timeline(parse_matmul(changed(flags, threads="1")), toy)[0].options.threads == 1


@pytest.mark.parametrize(("ranks", "known"), [(4, True), (6, True), (7, False), (12, False)])
def test_reference_kernels_are_kept_while_no_host_of_several_has_more_ranks_than_cores(ranks, known):
    wiring = {"family": "star", "hosts": 3, **SPEEDS}
    hosts = replace(find_machine("perlmutter", gpus=1), topology=wiring, **HOST_OF_TWO)
    experiment = parse_matmul(MatmulFlags(matmul="64,64,64", grid=f"x={ranks}"))
    reference = predict_record_and_timeline(experiment, hosts)[0].reference
    assert (reference is not None) == known


@pytest.mark.parametrize(("ranks", "at_once"), [(2, 2), (3, 2), (8, 2)])
def test_where_hosts_share_cores_as_many_ranks_time_reference_kernels_as_there_are_cores(ranks, at_once):
    wiring = {"family": "star", "hosts": ranks, **SPEEDS}
    hosts = replace(find_machine("perlmutter", gpus=1), topology=wiring, **HOST_OF_TWO)
    hosts = replace(hosts, emulation=Emulation(shared_cores=True))
    experiment = parse_matmul(MatmulFlags(matmul="64,64,64", grid=f"x={ranks}"))
    reference = predict_record_and_timeline(experiment, hosts)[0].reference
    assert reference.concurrent_ranks == at_once


def test_a_machine_whose_topology_is_a_file_is_oversubscribed_where_its_hosts_are(tmp_path):
    import networkx as nx

    from quadrille.topologies.families.basic import star

    net = nx.node_link_data(star(2, bandwidth=1e9, latency=1e-6).graph(), edges="edges")
    (tmp_path / "net.json").write_text(json.dumps(net, default=lambda number: np.asarray(number).tolist()))
    wired = replace(find_machine("perlmutter", gpus=1), topology={"file": str(tmp_path / "net.json")}, **HOST_OF_TWO)
    assert [fullest_device(wired, ranks).oversubscribed for ranks in (2, 4, 5)] == [False, False, True]


@pytest.mark.parametrize(
    ("grid", "said"), [("x=1", None), ("x=2", "the 2 ranks of a host need"), ("x=4", "the 4 ranks")]
)
def test_the_ranks_of_a_host_share_its_memory_in_a_prediction(capsys, machine, grid, said):
    alone = predict_record_and_timeline(parse_matmul(MatmulFlags(matmul="64,64,64")), find_machine(str(machine)))[0]
    room = f"device.memory_bytes={alone.peak_bytes_per_rank_max * 1.1}"
    ended = called(capsys, "simulate", "--matmul", "64,64,64", "--grid", grid, "--machine", machine, "--set", room)
    assert ended.status == 0
    assert (ended.err == "") if said is None else (said in ended.err and "it would not fit" in ended.err)


@pytest.mark.parametrize(("algorithm", "passes"), [("summa", "training"), ("4d", "forward"), ("2.5d", "training")])
def test_gathered_blocks_that_are_not_there_are_no_other_problem_and_a_remark_says_so(
    capsys, tmp_path, machine, algorithm, passes
):
    paths = {word: tmp_path / f"{word}.json" for word in ("keep", "again")}
    words = ["simulate", "--matmul", "64,64,64", "--algorithm", algorithm, "--passes", passes, "--machine", machine]
    for word, path in paths.items():
        ended = called(capsys, *words, "--gathered", word, "--json", path)
        said = f"--gathered keep changes nothing: {algorithm}, {passes}, gathers nothing twice"
        assert (said in ended.err) == (word == "keep")
    assert without_provenance(paths["keep"]) == without_provenance(paths["again"])


def test_gathered_blocks_that_are_kept_are_another_problem(machine):
    flags = MatmulFlags(matmul="64,64,64", algorithm="4d", grid="z=2", passes="training", gathered="keep")
    assert predict_record_and_timeline(parse_matmul(flags), find_machine(str(machine)))[0].options.gathered == "keep"


def test_a_topology_file_is_found_beside_the_machine_file(capsys, tmp_path):
    import networkx as nx

    from quadrille.topologies.families.basic import star

    net = nx.node_link_data(star(4, bandwidth=1e9, latency=1e-6).graph(), edges="edges")
    (tmp_path / "net.json").write_text(json.dumps(net, default=lambda number: np.asarray(number).tolist()))
    text = HOST.replace('family = "host"\ncores = 2\n', 'file = "net.json"\n').partition("[host]")[0]
    (tmp_path / "wired.toml").write_text(text)
    ended = called(capsys, *WORDS, "--machine", tmp_path / "wired.toml")
    assert ended.status == 0, ended.err


TWICE = """
import io, json, sys
from contextlib import redirect_stdout
from quadrille.cli.main import main

def predict():
    output = io.StringIO()
    with redirect_stdout(output):
        assert main([*sys.argv[1:], "--json", "-"]) == 0
    return {key: value for key, value in json.loads(output.getvalue()).items() if key != "provenance"}

first = predict()
assert first["simulation"]["events"] > 1000 and "numba" not in sys.modules
import numba
assert predict() == first
"""


def test_a_record_does_not_depend_on_predictions_before_it_in_the_same_process():
    """Where Numba is loaded, long simulations go over to compiled kernels earlier."""
    model = "layers=4,hidden=256,heads=8,sequence=64,vocabulary=1024"
    words = ["simulate", "--gpt", model, "--batch", "16", "--grid", "pipeline=2,data=2,x=2,z=2", "--micro-batch", "2",
             "--machine", "perlmutter", "--collectives", "own", "--granularity", "exact"]  # fmt: skip
    ran = subprocess.run([sys.executable, "-P", "-c", TWICE, *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
