"""`quadrille sweep --collective`: every point is what `quadrille collective` says, and what cannot be is refused."""

import csv
import io
import json

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.cli.parsing.flags import CollectiveFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.sweep import predicted, sweep
from quadrille.cli.parsing.sweep_points import COLLECTIVE_KEYS, SweepFlags, parse_varied, points
from quadrille.experiments.sweep.sweep_figure import lines_of
from quadrille.experiments.sweep.sweep_report import csv_text
from quadrille.experiments.sweep.sweep_result import COLLECTIVE_RESULT_COLUMNS, SCHEMA, Sweep
from quadrille.experiments.sweep.varied_key import VariedKey
from quadrille.experiments.tasks.answer_tasks import answer_points
from tests.support.by_words import collective_predicted
from tests.support.quadrille import called

STAR = "star:hosts=8,bandwidth=1e9,latency=1e-6"
BANDWIDTH = "set:topology.bandwidth_bytes_per_second"


def asked(machine=STAR, *, gpus="", **flags):
    flags = CollectiveFlags(**{"kind": "all-gather", "bytes": "1MiB", **flags})
    return SweepFlags(collective=flags, on=MachineFlags(machine=machine), gpus=gpus)


def test_an_answer_is_what_collective_predicts():
    found = sweep(
        asked("bench-2to1", group="4", concurrent="all"),
        ["gpus=64,128", "bytes=1MiB,1GiB", "stride=1,16", "collectives=own:ring,own:doubling"],
    )
    assert len(found.points) == 16
    for row in found.points:
        one = {name: row.point[name] for name in ("gpus", "bytes", "stride", "collectives")}
        flags = CollectiveFlags(kind="all-gather", group="4", concurrent="all", **one)
        alone = collective_predicted(flags, MachineFlags(machine="bench-2to1"), json="/dev/null")
        assert row.answer.seconds == alone.seconds
        assert row.answer.ranks == int(row.point["gpus"])
        kept = row.answer.collective
        assert (kept.algorithm, kept.bus_bandwidth) == (alone.algorithm, alone.bus_bandwidth)
        assert kept.bottleneck == alone.bottlenecks[0].link
        assert kept.seconds_by_part == alone.seconds_by_part
        assert row.speedup == found.points[0].answer.seconds / alone.seconds


def test_settings_faults_and_routing_reach_the_links():
    base, faster, slower = (
        sweep(asked(), [vary]).points[1].answer.seconds
        for vary in (f"{BANDWIDTH}=2e9,1e9", f"{BANDWIDTH}=x1,x2", "degrade=none,host:1>switch:0=0.5")
    )
    step = (1 << 20) / 8
    assert base == pytest.approx(7 * (step / 1e9 + 2e-6), rel=1e-9)
    assert faster == pytest.approx(7 * (step / 2e9 + 2e-6), rel=1e-9)
    assert slower == pytest.approx(7 * (step / 0.5e9 + 2e-6), rel=1e-9)


def test_kinds_are_varied_too():
    found = sweep(asked(kind="", bytes="1MiB"), ["collective=all-gather,all-reduce,barrier"])
    gather, reduced, barrier = (row.answer for row in found.points)
    assert reduced.seconds == pytest.approx(2 * gather.seconds, rel=1e-9)
    assert "a barrier moves no bytes" in barrier.reason


def test_what_cannot_be_at_a_point_is_a_row_with_the_reason(capsys):
    found = sweep(asked(concurrent="all"), ["group=3,4,8,9"])
    assert [row.answer.reason is None for row in found.points] == [False, True, True, False]
    assert "8 GPUs do not fall into such groups" in found.points[0].answer.reason
    assert found.baseline == 1
    assert "[1] --group 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ("grid=x=2;x=4", "--vary grid: accepted are gpus, collective, bytes, .* and set:PATH"),
        ("slow=host:1=0.5", "--vary slow: accepted are"),
        ("bytes=0", "--vary bytes=0: --bytes: size '0' is 0 bytes"),
        ("bytes=nan", "--vary bytes=nan"),
        ("collective=all-gather,all-scatter", "--vary collective=all-scatter: collective 'all-scatter'"),
        ("group=0", "--vary group=0: --group '0'"),
        ("stride=-1", "--vary stride=-1"),
        ("concurrent=one,two", "--vary concurrent=two: concurrent 'two': accepted are one, all"),
        ("collectives=own,mpi", "--vary collectives=mpi"),
        ("channels=none", "--vary channels=none"),
        ("shards=odd", "--vary shards=odd"),
        ("dtype=float8", "--vary dtype=float8"),
        ("root=x", "--vary root=x"),
        ("routing=sideways", "--vary routing=sideways"),
        ("fail=host:1>switch:9", "--vary fail=host:1>switch:9: link"),
        ("gpus=two", "gpus 'two'"),
        ("set:topology.colour=1", "--vary set:topology.colour=1"),
        ("machine=nosuch", "--vary machine=nosuch: machine 'nosuch' is unknown"),
    ],
)
def test_what_can_never_be_is_refused_before_anything_runs(vary, message):
    def untouched(_):
        raise AssertionError("a point was asked")

    with pytest.raises(InputError, match=message):
        sweep(asked(), [vary], question=untouched)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--collective", "all-reduce", "--bytes", "1", "--best-grid"], "--best-grid is for multiplications"),
        (["--collective", "all-reduce", "--bytes", "1", "--grid", "x=4"], "--grid is for multiplications"),
        (["--collective", "all-reduce", "--bytes", "1", "--matmul", "1,1,1"], "--matmul is for multiplications"),
        (["--matmul", "8,8,8", "--bytes", "1MiB"], "--bytes is for collectives: give --collective KIND"),
        (["--collective", "all-reduce"], "bytes is missing: all-reduce needs --bytes SIZE"),
        (["--collective", "all-reduce", "--bytes", "1", "--group", "none"], "--group 'none'"),
        (["--matmul", "8,8,8", "--vary", "bytes=1,2"], "with --collective KIND also those of a collective"),
    ],
)
def test_flags_of_both_workloads_do_not_mix(capsys, words, message):
    ended = called(capsys, "sweep", *words, "--machine", "perlmutter", "--vary", "gpus=4,8")
    assert ended.status == 2 and message in ended.line


def test_the_command_writes_csv_json_and_a_plot(tmp_path, capsys):
    paths = {kind: tmp_path / f"found.{kind}" for kind in ("csv", "json", "svg")}
    words = ["--collective", "all-reduce", "--dtype", "float32", "--machine", STAR, "--vary", "bytes=1KiB,1MiB"]
    words += ["--vary", "group=2,8", "--csv", paths["csv"], "--json", paths["json"], "--plot", paths["svg"]]
    ended = called(capsys, "sweep", *words, "--jobs", "2")
    assert ended.status == 0, ended.err
    assert "bus bandwidth" in ended.out and "host:0>switch:0" in ended.out
    found = schema_files.read(paths["json"], Sweep, SCHEMA)
    assert found.flags["collective"] == "all-reduce" and "matmul" not in found.flags
    rows = list(csv.DictReader(io.StringIO(paths["csv"].read_text())))
    assert list(rows[0]) == ["bytes", "group", *(one for one in COLLECTIVE_RESULT_COLUMNS if one != "group")]
    assert csv_text(found) == paths["csv"].read_text()
    assert [float(row["seconds"]) for row in rows] == [row.answer.seconds for row in found.points]
    for row in rows:
        parts = sum(float(row[f"{part}_seconds"]) for part in ("latency", "bandwidth", "contention"))
        assert parts == pytest.approx(float(row["seconds"]), rel=1e-9)
    assert paths["svg"].stat().st_size > 1000
    assert json.loads(paths["json"].read_text())["schema"] == SCHEMA


def test_sizes_are_drawn_where_they_are():
    found = sweep(asked(), ["bytes=1MiB,1KiB", "group=2,4"])
    lines = lines_of(found.points, VariedKey("bytes", ("1MiB", "1KiB")))
    assert [(line.label, line.x) for line in lines] == [
        ("group=2", [1024, 1 << 20]),
        ("group=4", [1024, 1 << 20]),
    ]


def test_every_key_reaches_what_is_asked():
    plain = asked()
    assert all(plain.given(key, "7=0.5") != plain for key in COLLECTIVE_KEYS)


def test_several_processes_give_the_same_answers():
    varied = parse_varied(["group=2,4,8", "collectives=own,own:doubling"], COLLECTIVE_KEYS)
    every = [one for _, one in points(asked(), varied)]
    alone, together = (dict(answer_points(every, predicted, jobs)) for jobs in (1, 2))
    assert alone == together and set(alone) == set(range(6))
