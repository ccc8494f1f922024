import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.record import (
    LinkLoad,
    OpRecord,
    Options,
    PathSegment,
    Record,
    Simulation,
    load_record,
    save_record,
)
from quadrille.algorithms.formats.timeline_files import load_timeline
from quadrille.algorithms.formats.workload import MatmulSizes as Sizes
from quadrille.algorithms.formats.workload import Workload
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul as Problem
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.experiments.explain.explain import explain, explain_file
from quadrille.experiments.explain.explanation import (
    SCHEMA,
    Explanation,
    explain_record,
    mean_seconds_by_cause,
    simulate_command,
)
from quadrille.experiments.explain.explanation_figure import explanation_figure
from quadrille.experiments.measure.measured_record import RunMeasurements, measured_record
from quadrille.experiments.records.path_segments import (
    MOST_SEGMENTS,
    PARTS,
    joined_by_op,
    path_seconds_by_cause,
    path_segments,
)
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.simulator.simulate import simulate
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.what_if import with_faults
from tests.support.quadrille import called
from tests.support.toy_machines import collective, leaf_spine, one_host, star


def predict(algorithm="4d", machine=None, *, passes="training", overlaps=(), sizes=(192, 160, 128), **lengths):
    grid = Grid(**lengths)
    problem = Problem(*sizes, "float64", passes, panel=16)
    schedule = overlap(matmul_schedule(problem, algorithm, grid), frozenset(overlaps))
    return simulate(schedule, machine or star(grid.size, memory=1e10, overhead=1e-6))


def record(**changed):
    """A predicted record of two ops on the critical path."""
    gather = OpRecord(
        name="gather B",
        kind="all_gather",
        axis="z",
        algorithm="ring",
        seconds=2.0,
        waiting_seconds=0.5,
        exposed_seconds=2.0,
        seconds_by_part={"transfer": 1.5, "latency": 0.5},
        contention_seconds=0.75,
    )
    multiply = OpRecord(name="multiply C", kind="gemm", seconds=1.25, seconds_by_part={"compute": 1.25})
    path = (
        PathSegment(
            op="gather B", rank=3, seconds=2.5, seconds_by_part={"bandwidth": 1.0, "latency": 0.5, "contention": 1.0}
        ),
        PathSegment(op="multiply C", rank=3, seconds=1.5, seconds_by_part={"compute": 1.5}),
    )
    plain = {
        "kind": "predicted",
        "workload": Workload(Sizes(64, 32, 16)),
        "dtype": "float64",
        "passes": "forward",
        "algorithm": "4d",
        "grid": {"data": 1, "z": 2, "y": 1, "x": 2},
        "order": ("x", "y", "z", "data"),
        "ranks": 4,
        "options": Options(overlap=("oar",)),
        "backend": "numpy",
        "seconds": 4.0,
        "seconds_low": 4.0,
        "seconds_high": 4.0,
        "flops_per_rank_max": 10,
        "bytes_sent_per_rank_max": 10,
        "bytes_sent_total": 40,
        "peak_bytes_per_rank_max": 10,
        "ops": (gather, multiply),
        "links": (LinkLoad("leaf:0>spine:1", 1e9, 3.9, 0.95), LinkLoad("cores of host:0", 1.5, 1.5, 0.375)),
        "critical_path": path,
    }
    return Record(**{**plain, **changed})


# The critical path


@pytest.mark.parametrize(
    ("algorithm", "lengths"),
    [
        ("1d-column", {"x": 4}),
        ("1d-row", {"y": 4}),
        ("cannon", {"z": 3, "x": 3}),
        ("summa", {"z": 2, "x": 3}),
        ("2.5d", {"z": 2, "x": 2, "y": 2}),
        ("3d", {"z": 2, "y": 3, "x": 2}),
        ("4d", {"data": 2, "z": 2, "y": 2, "x": 2}),
    ],
)
@pytest.mark.parametrize("passes", ["forward", "training"])
def test_stretches_and_their_parts_add_up_to_the_makespan(algorithm, lengths, passes):
    predicted = predict(algorithm, find_machine("perlmutter", gpus=16), passes=passes, **lengths)
    path = path_segments(predicted.timeline, predicted.parts_of)
    makespan = predicted.timeline.makespan
    assert sum(one.seconds for one in path) == pytest.approx(makespan, rel=1e-12)
    assert sum(path_seconds_by_cause(path).values()) == pytest.approx(makespan, rel=1e-12)
    for one in path:
        assert sum(one.seconds_by_part.values()) == pytest.approx(one.seconds, rel=1e-9)
        assert all(seconds > 0 for seconds in one.seconds_by_part.values())


@pytest.mark.parametrize("overlaps", [(), ("oar",), ("oar", "ors", "oag")])
def test_with_a_straggler_an_uneven_cut_and_overlap_they_add_up_too(overlaps):
    machine = with_faults(star(8, memory=1e10), slow=["host:3=0.5"], degrade=["host:5>switch:0=0.3"])
    predicted = predict(machine=machine, overlaps=overlaps, sizes=(191, 163, 127), z=2, y=2, x=2)
    path = path_segments(predicted.timeline, predicted.parts_of)
    assert sum(path_seconds_by_cause(path).values()) == pytest.approx(predicted.timeline.makespan, rel=1e-12)


spans = st.builds(
    lambda rank, op, lane, index, times, group: Span(
        rank, op, "gemm" if lane == "compute" else "all_reduce", lane, times[0], times[1], times[2], times[3],
        None if lane == "compute" else "x", index, -1 if lane == "compute" else group,
    ),
    st.integers(0, 3),
    st.sampled_from("abc"),
    st.sampled_from(["compute", "x"]),
    st.integers(0, 2),
    st.lists(st.floats(0, 9), min_size=4, max_size=4).map(sorted),
    st.integers(0, 1),
)  # fmt: skip


@given(
    st.lists(spans, min_size=1, max_size=12), st.dictionaries(st.sampled_from(PARTS), st.floats(0.01, 1), max_size=3)
)
def test_of_any_timeline_the_stretches_add_up_to_the_makespan(made, shares):
    def parts_of(span):
        whole = sum(shares.values())
        return {part: (span.end - span.start) * share / whole for part, share in shares.items()} if whole else {}

    timeline = Timeline(tuple(made), "predicted", ranks=4)
    path = path_segments(timeline, parts_of)
    assert sum(one.seconds for one in path) == pytest.approx(timeline.makespan, rel=1e-9, abs=1e-12)
    assert sum(path_seconds_by_cause(path).values()) == pytest.approx(timeline.makespan, rel=1e-9, abs=1e-12)


def test_a_lone_transfer_is_latency_and_bandwidth_only():
    predicted = simulate(collective("broadcast", 2, 8_000_000), star(2, latency=1e-3))
    parts = path_seconds_by_cause(path_segments(predicted.timeline, predicted.parts_of))
    assert parts["latency"] == pytest.approx(2e-3)
    assert parts["bandwidth"] == pytest.approx(8e-3)
    assert parts["contention"] == pytest.approx(0, abs=1e-12) and parts["waiting"] == parts["other"] == 0


def test_what_sharing_an_uplink_adds_is_contention():
    """Four hosts under each of two leaves send to the other leaf at once, over one cable."""
    machine = leaf_spine(2, 4, latency=0.0)
    predicted = simulate(collective("all_gather", 2, 2_000_000, grid=Grid(x=4, y=2), axis="y"), machine)
    parts = path_seconds_by_cause(path_segments(predicted.timeline, predicted.parts_of))
    assert parts["bandwidth"] == pytest.approx(1e-3)
    assert parts["contention"] == pytest.approx(3e-3)
    assert predicted.timeline.makespan == pytest.approx(4e-3)


def test_the_path_goes_over_to_the_member_that_arrives_last():
    """Rank 1 multiplies for longer; rank 0 waits for it, and this waiting is not on the path."""
    short = Span(0, "multiply", "gemm", "compute", ready=0, start=0, arrival=0, end=1)
    long = structs.replace(short, rank=1, end=4)
    early = Span(0, "sum C", "all_reduce", "y", ready=1, start=1, arrival=4, end=6, axis="y", group=0)
    late = structs.replace(early, rank=1, ready=4, start=4)
    parts = {
        (0, "sum C"): {"waiting": 3.0, "bandwidth": 2.0},
        (1, "sum C"): {"bandwidth": 2.0},
        (0, "multiply"): {"compute": 1.0},
        (1, "multiply"): {"compute": 4.0},
    }
    timeline = Timeline((short, long, structs.replace(early, end=6.5), late), "predicted", ranks=2)
    found = path_segments(
        timeline, lambda span: parts[span.rank, span.op] if span.end != 6.5 else {"waiting": 3, "bandwidth": 2.5}
    )
    assert [(one.op, one.rank, one.seconds) for one in found] == [("multiply", 1, 4), ("sum C", 0, 2.5)]
    assert path_seconds_by_cause(found) == dict.fromkeys(PARTS, 0.0) | {"compute": 4.0, "bandwidth": 2.5}


def test_time_between_two_ops_is_other():
    one = Span(0, "a", "gemm", "compute", ready=0, start=0, arrival=0, end=1)
    other = structs.replace(one, op="b", ready=1, start=3, arrival=3, end=5)
    found = path_segments(Timeline((one, other), "predicted", ranks=1), lambda span: {})
    assert path_seconds_by_cause(found)["other"] == 2 and path_seconds_by_cause(found)["compute"] == 3


def test_a_long_path_is_summed_by_op():
    made = [
        Span(0, "ab"[n % 2], "gemm", "compute", ready=n, start=n, arrival=n, end=n + 1, index=n // 2)
        for n in range(2 * MOST_SEGMENTS)
    ]
    found = path_segments(Timeline(tuple(made), "predicted", ranks=1), lambda span: {})
    assert [(one.op, one.rank, one.count, one.seconds) for one in found] == [("a", 0, 100, 100.0), ("b", 0, 100, 100.0)]


def test_ops_on_several_ranks_name_none():
    path = [PathSegment(op="a", rank=rank, seconds=1.0, seconds_by_part={"compute": 1.0}) for rank in (0, 1)]
    assert joined_by_op(path) == [
        PathSegment(op="a", rank=None, count=2, seconds=2.0, seconds_by_part={"compute": 2.0})
    ]


# The mean rank


@pytest.mark.parametrize("overlaps", [(), ("oar", "ors", "oag")])
def test_the_mean_rank_adds_up_to_the_makespan(overlaps):
    predicted = predict(overlaps=overlaps, z=2, y=2, x=2)
    ops = [
        OpRecord(
            name=one.name,
            kind=one.kind,
            seconds=one.seconds,
            waiting_seconds=one.waiting_seconds,
            exposed_seconds=one.exposed_seconds,
            seconds_by_part=predicted.parts[one.name],
            contention_seconds=predicted.contention.get(one.name, 0.0),
        )
        for one in predicted.timeline.op_times().values()
    ]
    makespan = predicted.timeline.makespan
    for known in (True, False):
        parts = mean_seconds_by_cause(ops, makespan, predicted=known)
        assert sum(parts.values()) == pytest.approx(makespan, rel=1e-12)
        assert parts["compute"] > 0
        assert min(parts.values()) > -1e-9 * makespan


def test_a_measured_op_is_not_taken_apart():
    parts = mean_seconds_by_cause(record().ops, 4.0, predicted=False)
    assert parts == {"compute": 1.25, "transfer": 2.0, "waiting": 0.5, "other": 0.25}


def test_contention_is_taken_out_of_the_transfer():
    parts = mean_seconds_by_cause(record().ops, 4.0, predicted=True)
    assert parts == pytest.approx(
        {"compute": 1.25, "latency": 0.5, "bandwidth": 0.75, "contention": 0.75, "waiting": 0.5, "other": 0.25}
    )


# Records and other files


def test_a_record_is_explained():
    found = explain_record(record())
    assert found.path_seconds_by_part["contention"] == 1.0
    assert (
        found.summary[0]
        == "the largest part of the time is compute: 1.50 s of 4.00 s (38 %), most of it in 'multiply C'"
    )
    assert found.summary[1] == "leaf:0>spine:1 is used to 95 %, a mean over the run: it limits the run"
    assert not found.lacking


def test_a_link_that_is_not_full_holds_nothing_back():
    found = explain_record(record(links=(LinkLoad("a:0>b:0", 1e9, 1.0, 0.25),)))
    assert found.summary[1] == "a:0>b:0 is used to 25 %, a mean over the run: no link is full all the time"


def test_what_a_record_lacks_is_said_with_the_command_that_makes_it():
    words = (
        "quadrille simulate --matmul 64,32,16 --algorithm 4d --grid z=2,x=2 --dtype float64 --overlap oar "
        "--collectives own:ring --machine"
    )
    older = explain_record(record(links=(), critical_path=()))
    assert "has no links and no critical path" in older.lacking[0] and words in older.lacking[0]
    assert sum(older.mean_seconds_by_part.values()) == pytest.approx(4.0)
    measured = explain_record(record(kind="measured", links=(), critical_path=()))
    assert (
        "a measured record knows no links and no critical path" in measured.lacking[0] and words in measured.lacking[0]
    )
    assert measured.mean_seconds_by_part["transfer"] == 2.0
    passes = Simulation(folded=False, rank_classes=4, granularity="passes")
    (lacking,) = explain_record(record(links=(), simulation=passes)).lacking
    assert lacking.startswith("a prediction by passes counts no links") and lacking.endswith("--granularity collective")
    alone = record(links=(), ranks=1, grid={"data": 1, "z": 1, "y": 1, "x": 1})
    assert not explain_record(alone).lacking


def test_the_command_that_it_names_is_one():
    made = record(
        algorithm="summa",
        order=("z", "x", "y", "data"),
        passes="training",
        options=Options(gathered="keep", panel=64, collectives="own:doubling"),
    )
    assert simulate_command(made) == (
        "quadrille simulate --matmul 64,32,16 --algorithm summa --grid z=2,x=2 --order z,x,y,data --dtype float64 "
        "--passes training --gathered keep --panel 64 --collectives own:doubling --machine … --json …"
    )


def write(path, content):
    path.write_text(json.dumps(content))
    return str(path)


FLOWS = {
    "schema": "quadrille/flows/1",
    "finish_s": [1.0, 2.0],
    "makespan_s": 2.0,
    "links": [
        {"link": "gpu:0>leaf:0", "bytes": 1e9, "busy_s": 1.0, "utilisation": 0.25},
        {"link": "leaf:0>gpu:1", "bytes": 2e9, "busy_s": 1.9, "utilisation": 0.99},
    ],
}
COLLECTIVE = {
    "schema": "quadrille/collective/1",
    "seconds": 0.5,
    "bus_bandwidth": 1e9,
    "bottlenecks": [{"link": "leaf:0>spine:0", "alike": 8, "bytes": 1e9, "utilisation": 0.97}],
}


def test_flows_and_collectives_are_explained_by_their_links(tmp_path, capsys):
    found = explain_file(write(tmp_path / "flows.json", FLOWS))
    assert found.seconds == 2.0 and [one.link for one in found.links] == ["leaf:0>gpu:1", "gpu:0>leaf:0"]
    assert "leaf:0>gpu:1 is used to 99 %, a mean over the run: it limits the run" in found.summary
    other = explain_file(write(tmp_path / "collective.json", COLLECTIVE))
    assert other.seconds == 0.5 and other.links[0].alike == 8
    assert (
        other.summary[0]
        == "leaf:0>spine:0 (and 7 more like it) is used to 97 %, a mean over the run: it limits the run"
    )
    assert called(capsys, "explain", tmp_path / "collective.json").status == 0
    assert "leaf:0>spine:0 and 7 more like it" in called(capsys, "explain", tmp_path / "collective.json").out


def explained(tmp_path, capsys, *words):
    """What is said of the JSON that a command writes."""
    ended = called(capsys, *words, "--json", tmp_path / "answer.json")
    assert ended.status == 0, ended.err
    return explain_file(str(tmp_path / "answer.json"))


def test_a_collective_is_taken_apart(tmp_path, capsys):
    """16 all-gathers over leaves whose uplinks have half of what is asked of them."""
    words = ["collective", "all-gather", "--bytes", "1GiB", "--gpus", "1024", "--group", "16", "--stride", "64"]
    found = explained(tmp_path, capsys, *words, "--concurrent", "all", "--machine", "bench-2to1")
    alone = 15 * (1 << 26) / 50e9
    for parts in (found.path_seconds_by_part, found.mean_seconds_by_part):
        assert parts["latency"] == pytest.approx(15 * 4e-6, rel=1e-9)
        assert parts["bandwidth"] == pytest.approx(alone, rel=1e-9)
        assert parts["contention"] == pytest.approx(alone, rel=1e-9)
        assert sum(parts.values()) == pytest.approx(found.seconds, rel=1e-12)
    best = found.links[0]
    assert (best.link, best.alike) == ("leaf:0>spine:0", 32)
    assert best.busy_s == pytest.approx(2 * alone, rel=1e-9)
    assert found.lacking == ()


@pytest.mark.parametrize("collectives", ["nccl:ring", "nccl:tree", "nccl:nvls_tree"])
def test_a_collective_of_nccl_is_taken_apart(tmp_path, capsys, collectives):
    words = ["collective", "all-reduce", "--bytes", "64MiB", "--gpus", "64", "--group", "32", "--stride", "2"]
    words += ["--concurrent", "all", "--machine", "h100-superpod", "--collectives", collectives]
    found = explained(tmp_path, capsys, *words)
    parts = found.path_seconds_by_part
    assert sum(parts.values()) == pytest.approx(found.seconds, rel=1e-12)
    assert parts["latency"] > 0 and parts["bandwidth"] > 0


def test_what_a_degraded_link_costs_the_ranks_behind_it_is_waiting_on_the_others(tmp_path, capsys):
    words = ["collective", "all-gather", "--bytes", "1GiB", "--gpus", "64", "--group", "8", "--concurrent", "all"]
    found = explained(tmp_path, capsys, *words, "--machine", "bench-1to1", "--degrade", "gpu:0-nvswitch:0=0.5")
    # seven groups of eight end after half of the time, and nobody of the eighth a step too early
    others, step = 7 / 8 * found.seconds / 2, found.seconds / 7
    assert others * (1 - 1e-3) < found.mean_seconds_by_part["waiting"] < others + step / 8
    assert found.path_seconds_by_part["waiting"] == 0


TRAFFIC = """source,destination,bytes,start_s
0,40,5000000000,0
0,80,5000000000,0
3,4,8,0.05
1,8,5000000000,0.1
"""


def test_flows_are_taken_apart(tmp_path, capsys):
    """Two flows share a NIC of 50 GB/s; a third one has a NIC to itself and starts when they are half done."""
    (tmp_path / "traffic.csv").write_text(TRAFFIC)
    found = explained(tmp_path, capsys, "flows", tmp_path / "traffic.csv", "--machine", "bench-1to1", "--gpus", "96")
    assert found.seconds == pytest.approx(0.200004)
    assert found.path_seconds_by_part == pytest.approx(
        {"waiting": 0.0, "latency": 4e-6, "bandwidth": 0.1, "contention": 0.1}
    )
    last, second, late, small = found.flows
    assert [one.row for one in found.flows] == [1, 2, 4, 3]
    assert last.held_by[0].link == second.held_by[0].link == "gpu:0>leaf:0"
    assert last.held_by[0].utilisation == pytest.approx(1.0)
    assert late.seconds_by_part == pytest.approx({"latency": 2e-6, "bandwidth": 0.1, "contention": 0.0})
    assert late.held_by[0].utilisation == pytest.approx(1.0) and small.held_by[0].utilisation < 1.01
    assert sum(found.mean_seconds_by_part.values()) == pytest.approx(found.seconds)
    assert found.mean_seconds_by_part["contention"] == pytest.approx(0.05, rel=1e-4)
    assert found.summary[-1].startswith("row 1, 0 > 40, ends last: sharing takes 50 % of its 200 ms, mostly on gpu:0>")


def test_an_answer_written_before_there_were_parts_says_so(tmp_path):
    found = explain_file(write(tmp_path / "collective.json", COLLECTIVE))
    assert found.path_seconds_by_part == {}
    assert "has no times by cause; write it again with quadrille collective" in found.lacking[0]


def test_the_json_is_read_again(tmp_path):
    save_record(record(), tmp_path / "record.json")
    found = explain(str(tmp_path / "record.json"), json=str(tmp_path / "why.json"), command=["quadrille", "explain"])
    assert schema_files.read(tmp_path / "why.json", Explanation, SCHEMA) == found
    assert found.file == str(tmp_path / "record.json") and found.provenance.command == "quadrille explain"


def test_the_command_explains_what_simulate_wrote(tmp_path, capsys):
    target = tmp_path / "record.json"
    words = (
        "simulate",
        "--matmul",
        "512,512,512",
        "--grid",
        "z=2,y=2,x=2",
        "--machine",
        "perlmutter",
        "--json",
        target,
    )
    assert called(capsys, *words).status == 0
    made = load_record(target)
    ended = called(capsys, "explain", target)
    assert ended.status == 0 and ended.err == ""
    assert "critical path" in ended.out and "mean rank" in ended.out and "gather B" in ended.out
    shown = json.loads(called(capsys, "explain", target, "--json", "-").out)
    assert sum(shown["path_seconds_by_part"].values()) == pytest.approx(made.seconds, rel=1e-9)
    assert sum(shown["mean_seconds_by_part"].values()) == pytest.approx(made.seconds, rel=1e-9)
    assert shown["links"] and shown["lacking"] == []


def test_the_command_explains_a_run_on_a_host(tmp_path, capsys):
    from quadrille.topologies.machines.machine_file import save_machine

    save_machine(one_host(2, memory=1e10), tmp_path / "host.toml")
    target = tmp_path / "record.json"
    words = ("simulate", "--matmul", "64,64,64", "--grid", "y=4", "--dtype", "float64")
    assert called(capsys, *words, "--machine", tmp_path / "host.toml", "--json", target).status == 0
    ended = called(capsys, "explain", target)
    assert ended.status == 0 and "cores of host:0" in ended.out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("", "is empty"),
        ('{"schema": "quadrille/record/1", ', "truncated or not JSON"),
        (
            '{"schema": "quadrille/timeline/1"}',
            "accepted are quadrille/record/2, quadrille/collective/1, quadrille/flows/1",
        ),
        ('{"schema": "quadrille/record/9"}', "newer than this Quadrille reads"),
        ('{"schema": "quadrille/flows/1", "links": []}', "neither seconds nor makespan_s"),
        ('{"schema": "quadrille/flows/1", "makespan_s": 1, "links": [{"link": 3}]}', "links"),
        ('{"schema": "quadrille/record/1", "kind": "predicted"}', "record file"),
        ("[1, 2]", "names no schema of Quadrille"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path, capsys, content, message):
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    ended = called(capsys, "explain", path)
    assert ended.status == 2 and ended.out == ""
    assert message in ended.line


def test_the_record_is_not_overwritten(tmp_path, capsys):
    save_record(record(), tmp_path / "record.json")
    ended = called(capsys, "explain", tmp_path / "record.json", "--json", tmp_path / "record.json")
    assert ended.status == 2 and "both name" in ended.line
    ended = called(capsys, "explain", tmp_path / "record.json", "--json", tmp_path / "no" / "such.json")
    assert ended.status == 2 and "--json" in ended.line and "cannot be written" in ended.line


def test_a_record_written_before_there_were_links_is_read(tmp_path, capsys):
    made = schema_files.plain_tables(record())
    for key in ("links", "critical_path", "simulation"):
        made.pop(key, None)
    for op in made["ops"]:
        op.pop("contention_seconds")
    path = write(tmp_path / "older.json", {"schema": "quadrille/record/1", **made})
    ended = called(capsys, "explain", path)
    assert ended.status == 0 and "make it again: quadrille simulate" in ended.out
    assert structs.replace(load_record(path), ops=()) == record(links=(), critical_path=(), ops=())


def test_what_is_no_plain_file_is_refused_before_it_is_read():
    with pytest.raises(InputError, match="/dev/zero cannot be read: not a regular file"):
        explain("/dev/zero")


def test_a_long_path_is_shown_by_its_longest_segments_in_order(tmp_path, capsys):
    seconds = [3.0 + (7 * place) % 40 for place in range(40)]
    path = tuple(
        PathSegment(op=f"op {place}", rank=0, seconds=length, seconds_by_part={"compute": length})
        for place, length in enumerate(seconds)
    )
    save_record(record(seconds=sum(seconds), critical_path=path), tmp_path / "long.json")
    printed = called(capsys, "explain", str(tmp_path / "long.json"), "--all").out
    shown = [int(line.split()[1]) for line in printed.splitlines() if line.startswith("  op ") and " s " in line]
    assert shown == [place for place, length in enumerate(seconds) if length >= 19.0]
    left_out = sum(length for length in seconds if length < 19.0)
    assert f"the 24 longest of 40 ops; --json FILE has the others, {left_out:.1f} s" in printed


def test_the_ten_longest_ops_come_first_the_longest_on_top(tmp_path, capsys):
    seconds = [3.0 + (7 * place) % 40 for place in range(40)]
    path = tuple(
        PathSegment(op=f"op {place}", rank=0, seconds=length, seconds_by_part={"compute": length})
        for place, length in enumerate(seconds)
    )
    save_record(record(seconds=sum(seconds), critical_path=path), tmp_path / "long.json")
    lines = called(capsys, "explain", str(tmp_path / "long.json")).out.splitlines()
    shown = [int(line.split()[1]) for line in lines if line.startswith("  op ") and " s " in line]
    assert shown == sorted(range(40), key=lambda place: -seconds[place])[:10]
    assert "the 10 longest of 40 ops; --all" in lines[0]


def test_the_figure_stacks_both_views_and_the_memory():
    explained = record(seconds=4.0)
    explanation = explain_record(explained)
    with_memory = structs.replace(explained, memory_bytes_by_kind={"parameters": 3, "gradients": 5})
    figure = explanation_figure(explanation, with_memory)
    times, memory = figure.axes
    for axes, totals in ((times, [4.0, 4.0]), (memory, [8.0])):
        ends = [0.0] * len(totals)
        for bars in axes.containers:
            for place, bar in enumerate(bars):
                assert bar.get_x() == pytest.approx(ends[place])
                ends[place] += bar.get_width()
        assert ends == pytest.approx(totals)
    assert [label.get_text() for label in times.get_yticklabels()] == ["critical path", "mean rank"]
    assert figure.get_suptitle().startswith("Where does the time go?")


def test_a_timeline_next_to_the_record_is_drawn_below(tmp_path, capsys):
    words = ["simulate", "--matmul", "64,64,64", "--grid", "z=2", "--machine", "perlmutter", "--quiet"]
    files = "--json", str(tmp_path / "one.json"), "--timeline", str(tmp_path / "one.timeline.json")
    called(capsys, *words, *files)
    explained, timeline = load_record(tmp_path / "one.json"), load_timeline(tmp_path / "one.timeline.json")
    *_, below = explanation_figure(explain_record(explained), explained, timeline).axes
    assert {label.get_text().split()[1] for label in below.get_yticklabels()} == {"0", "1"}
    ended = called(capsys, "explain", str(tmp_path / "one.json"), "--plot", str(tmp_path / "one.svg"))
    assert ended.status == 0
    assert "Where does the time go?" in (tmp_path / "one.svg").read_text()


def measured_of_two_ops(*repeats):
    """The record of a measured run on two ranks, from the seconds of its two ops in each repeat."""
    experiment = MatmulExperiment(Problem(64, 64, 64), Grid(z=2))
    schedule = matmul_schedule(experiment.problem, "4d", experiment.grid)
    timelines = [
        Timeline.of_spans(
            [
                span
                for rank in (0, 1)
                for span in (
                    Span(rank, "gather B", "all_gather", "z", rank, rank, rank, 1 + gather, "z"),
                    Span(rank, "multiply C", "gemm", "compute", *(1.5 + gather,) * 3, 1.5 + gather + product),
                )
            ],
            "measured",
            experiment.grid,
        )
        for gather, product in repeats
    ]
    run = RunMeasurements(timelines, {0: 1, 1: 1}, [], 0, None, 1, 1, "numpy")
    return measured_record(experiment, schedule, run, provenance(["quadrille", "run"]))


@pytest.mark.parametrize(
    ("repeats", "parts"),
    [
        ([(9.0, 1.0), (1.0, 10.0), (5.0, 7.0)], (10.0, 1.0)),
        ([(9.0, 1.0), (1.0, 10.0), (5.0, 7.0), (0.0, 1.0)], (5.5, 5.0)),
        ([(2.0, 3.0)], (3.0, 2.0)),
    ],
)
def test_the_parts_of_a_measured_run_of_unequal_repeats_add_up_with_the_time_outside_ops(repeats, parts):
    record = measured_of_two_ops(*repeats)
    mean = explain_record(record).mean_seconds_by_part
    assert (mean["compute"], mean["transfer"]) == parts
    assert (mean["waiting"], mean["before the first op"], mean["between ops"], mean["after the last op"]) == (
        0.5, 0.5, 0.5, 0.0
    )  # fmt: skip
    assert mean["other"] == 0 and sum(mean.values()) == pytest.approx(record.seconds)
    if len(repeats) > 1:
        medians = [op.seconds for op in record.ops]
        assert sum(medians) != pytest.approx(sum(parts))


def test_the_parts_of_an_executed_run_add_up_with_the_time_outside_ops():
    experiment = MatmulExperiment(Problem(192, 160, 128, "float64"), Grid(z=2, x=2))
    schedule = matmul_schedule(experiment.problem, "4d", experiment.grid)
    inputs = {"A": np.ones((192, 160)), "B": np.ones((160, 128))}
    executed = execute(schedule, inputs, InProcess(4), repeats=4, warmups=0)
    run = RunMeasurements(executed.timelines, executed.bytes_sent, [], 0, None, 0, 1, "numpy")
    record = measured_record(experiment, schedule, run, provenance(["quadrille", "run"]))
    outside = record.outside_ops_seconds
    assert min(outside.values()) >= 0 and sum(outside.values()) > 0
    parts = explain_record(record).mean_seconds_by_part
    assert parts["other"] == pytest.approx(0.0, abs=0.02 * record.seconds)
    assert sum(parts.values()) == pytest.approx(record.seconds)
    assert {part: parts[part] for part in outside} == outside
