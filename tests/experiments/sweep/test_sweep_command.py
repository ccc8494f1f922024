import contextlib
import csv
import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.matmuls.catalogue import find_algorithm
from quadrille.cli.parsing.flags import MatmulFlags, TrainingFlags
from quadrille.cli.parsing.gpus import following
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.matmul import parse_matmul
from quadrille.cli.parsing.sweep import predicted, sweep
from quadrille.cli.parsing.sweep_points import KEYS, SweepFlags, SweptPoints, parse_varied, parse_vary, points
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.tables import print_tables
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.experiments.sweep import sweep as sweeping
from quadrille.experiments.sweep.sweep_figure import lines_of
from quadrille.experiments.sweep.sweep_report import MOST_ROWS, csv_text, reason_lines
from quadrille.experiments.sweep.sweep_report import sweep_table as table_of
from quadrille.experiments.sweep.sweep_result import RESULT_COLUMNS, SCHEMA, Sweep, SweepAnswer, SweepRow, sweep_rows
from quadrille.experiments.sweep.varied_key import VariedKey
from quadrille.experiments.tasks.answer_tasks import answer_points
from quadrille.experiments.workloads.fitting_grids import fitting_grids
from quadrille.topologies.machines.machine import Host
from quadrille.topologies.machines.machine_file import save_machine
from quadrille.topologies.machines.what_if import with_faults
from tests.support.by_words import step_predicted
from tests.support.quadrille import ROOT, called
from tests.support.speed import time_limit
from tests.support.toy_machines import star

BANDWIDTH = "set:topology.bandwidth_bytes_per_second"


def machine(**given):
    """16 hosts of one core on a switch, a rank on each."""
    return msgspec.structs.replace(star(16, memory=1e10, **given), host=Host(cores=1, ranks=1))


@pytest.fixture
def toy(tmp_path):
    """The file of this machine."""
    path = tmp_path / "toy.toml"
    save_machine(machine(), path)
    return str(path)


@pytest.fixture
def cluster(tmp_path):
    """The file of a machine that has 16 GPUs and no more."""
    path = tmp_path / "cluster.toml"
    wiring = {"family": "gpu-cluster", "nodes": 4, "node": "perlmutter"}
    save_machine(msgspec.structs.replace(star(1, memory=1e10), topology=wiring), path)
    return str(path)


def asked(toy, *, best_grid=False, gpus="", top=3, **flags):
    return SweepFlags(
        experiment=MatmulFlags(**{"matmul": "96,64,48", "dtype": "float64", "passes": "training", **flags}),
        on=MachineFlags(machine=toy),
        best_grid=best_grid,
        gpus=gpus,
        top=top,
    )


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


# What is varied


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--vary : write KEY=VALUE"),
        ("gpus", "--vary gpus: write KEY=VALUE"),
        ("=1,2", "write KEY=VALUE"),
        ("gpu=1,2", "--vary gpu: accepted are gpus, matmul, algorithm, .* and set:PATH"),
        ("seed=1,2", "--vary seed: accepted are"),
        ("set:=1", "--vary set:: accepted are"),
        ("gpus=", "a value is empty"),
        ("gpus=1,,2", "a value is empty"),
        ("grid=x=1;", "a value is empty"),
        ("gpus=4,8,4", "repeats 4"),
        ("overlap=oar;oar", "repeats oar"),
    ],
)
def test_a_vary_that_cannot_be_read_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_vary(text)


def test_a_million_points_are_listed_one_by_one():
    varied = parse_varied([f"{key}={','.join(map(str, range(1, 101)))}" for key in ("gpus", "panel", "threads")])
    combined = SweptPoints(SweepFlags(), varied)
    assert len(combined) == 1_000_000 and combined.values(10_203) == ("2", "3", "4")
    few = SweptPoints(SweepFlags(), parse_varied(["gpus=1,2", "dtype=float32,float64", "panel=1,2,3"]))
    assert list(few) == [few[place] for place in range(12)] == few[0:12]


def test_nothing_varied_a_key_twice_and_too_many_points_are_refused():
    with pytest.raises(InputError, match="vary is missing"):
        parse_varied([])
    with pytest.raises(InputError, match="--vary gpus is given twice"):
        parse_varied(["gpus=1", "dtype=float32", "gpus=2"])
    many = ",".join(map(str, range(1, 1002)))
    with pytest.raises(InputError, match="1002001 points; a sweep takes at most 1000000"):
        parse_varied([f"gpus={many}", f"panel={many}"])


def test_values_that_hold_commas_stand_between_semicolons():
    assert parse_vary("grid=z=2,x=4;x=8") == VariedKey("grid", ("z=2,x=4", "x=8"))
    assert parse_vary("grid=z=2,x=4") == VariedKey("grid", ("z=2,x=4",))
    assert parse_vary("gpus=1;2") == VariedKey("gpus", ("1", "2"))
    many = tuple(map(str, range(1, 200_001)))
    assert parse_vary(f"gpus={','.join(many)}").values == many  # compared pair by pair they took minutes
    assert parse_vary("degrade=none,host:1>switch:0=0.5").values == ("none", "host:1>switch:0=0.5")
    assert parse_vary(f"{BANDWIDTH}=x1,2e9") == VariedKey(BANDWIDTH, ("x1", "2e9"))


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 4)), min_size=1, max_size=4, unique_by=lambda it: it[0])
)
def test_points_are_every_combination_once_and_the_last_key_changes_fastest(sizes):
    varied = [VariedKey(key, tuple(f"v{n}" for n in range(count))) for key, count in sizes]
    found = [tuple(point.values()) for point, _ in points(SweepFlags(), varied)]
    assert len(set(found)) == len(found)
    assert found == sorted(found)
    assert all(list(point) == [one.key for one in varied] for point, _ in points(SweepFlags(), varied))
    product = 1
    for _, count in sizes:
        product *= count
    assert len(found) == product


def test_every_key_reaches_what_is_asked():
    plain = SweepFlags()
    assert all(plain.given(key, "1=0.5") != plain for key in KEYS)
    faulty = plain.given("fail", "a>b+c>d").given("slow", "gpu:1=0.5")
    assert faulty.on.fail == ("a>b", "c>d") and faulty.on.slow == ("gpu:1=0.5",)


def untouched(_):
    raise AssertionError("a point was asked")


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ("gpus=two", "gpus 'two': a whole number from 1"),
        ("gpus=4,0", "gpus '0': a whole number from 1"),
        ("dtype=float64,int8", "--vary dtype=int8: dtype 'int8': accepted are"),
        ("passes=both", "--vary passes=both"),
        ("algorithm=4d,5d", "--vary algorithm=5d: algorithm '5d'"),
        ("grid=x=4;w=4", "--vary grid=w=4: grid: unknown axis 'w'"),
        ("grid=x=4;x=*", "follows from the number of GPUs"),
        ("overlap=none,oar", "--vary overlap=none,oar: overlap 'none'"),
        ("collectives=own:star", "--vary collectives=own:star"),
        ("panel=0", "--vary panel=0"),
        ("threads=many", "--vary threads=many"),
        ("matmul=1,2,3;1,2", "--vary matmul=1,2: matmul '1,2'"),
        ("order=x,y;x,x", "--vary order=x,x"),
        ("machine=nosuch", "--vary machine=nosuch"),
        ("machine=no/such.toml", "--vary machine=no/such.toml"),
        ("routing=sideways", "--vary routing=sideways: routing 'sideways'"),
        ("set:topology.colour=1,2", "--vary set:topology.colour=1: .* has no 'colour'"),
        ("set:name=x2", "--vary set:name=x2: .* is not a number and cannot be multiplied"),
        ("set:device.memory_bytes=x0", "is not a finite number above 0"),
        ("set:device.memory_bytes=-1", "--vary set:device.memory_bytes=-1"),
        ("degrade=host:1>switch:0", "write NAME=SHARE"),
        ("degrade=none,host:1>switch:0=1.5", "write NAME=SHARE"),
        ("fail=none,host:1>swotch:0", "--vary fail=host:1>swotch:0: link 'host:1>swotch:0' is not in topology"),
        ("slow=gpu:3=0.5", "--slow gpu:3: .* computes on host:0 to host:15"),
    ],
)
def test_what_can_never_be_is_refused_before_anything_runs(toy, vary, message):
    with pytest.raises(InputError, match=message):
        sweep(asked(toy), [vary], question=untouched)


@pytest.mark.parametrize(
    ("given", "vary", "message"),
    [
        ({"matmul": ""}, "dtype=float32", "matmul is missing"),
        ({"dtype": "int8"}, "algorithm=3d", "^dtype 'int8'"),
        ({}, "gpus=1,2", "does not follow them; give --best-grid, or a grid with one length"),
        ({"grid": "x=*,y=*"}, "gpus=2,4", "does not follow them"),
        ({"grid": "x=*"}, "dtype=float32,float64", "follows from the number of GPUs; give --gpus N"),
        ({"best_grid": True}, "dtype=float32,float64", "--best-grid needs a number of GPUs"),
        ({"best_grid": True, "grid": "x=2"}, "gpus=2,4", "--best-grid chooses the grid"),
        ({"best_grid": True}, "grid=x=2;x=4", "--best-grid chooses the grid"),
        ({"gpus": "none", "grid": "x=*"}, "dtype=float32", "gpus 'none'"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(toy, given, vary, message):
    with pytest.raises(InputError, match=message):
        sweep(asked(toy, **given), [vary], question=untouched)


def test_a_machine_is_needed():
    with pytest.raises(InputError, match="machine is missing"):
        sweep(SweepFlags(experiment=MatmulFlags(matmul="8,8,8")), ["dtype=float32,float64"], question=untouched)


def test_a_setting_that_one_of_the_machines_has_is_a_row_with_a_reason_on_the_other(toy, tmp_path):
    one_host = msgspec.structs.replace(star(4), topology={"family": "host", "cores": 4})
    save_machine(one_host, tmp_path / "one.toml")
    found = sweep(asked(toy, grid="x=4"), [f"machine={toy},{tmp_path / 'one.toml'}", "set:topology.hosts=8"])
    assert [row.answer.reason is None for row in found.points] == [True, False]
    assert "has no 'hosts'" in found.points[1].answer.reason


@pytest.mark.parametrize(
    ("text", "gpus", "grid"), [("x=*", 6, "x=6"), ("z=2,x=*", 6, "z=2,x=3"), ("x=6,y=*", 6, "x=6")]
)
def test_a_grid_follows_the_number_of_gpus(text, gpus, grid):
    assert str(following(text, gpus)) == grid
    with pytest.raises(InputError, match="5 GPUs cannot be shared out over groups of 2"):
        following("z=2,x=*", 5)


# What is found


def test_an_answer_is_what_simulate_predicts(toy):
    found = sweep(asked(toy), ["grid=x=4;z=2,y=2", "dtype=float32,float64", f"{BANDWIDTH}=x1,x2"])
    assert len(found.points) == 8
    for row in found.points:
        experiment = parse_matmul(asked(toy, grid=row.point["grid"], dtype=row.point["dtype"]).experiment)
        factor = float(row.point[BANDWIDTH].removeprefix("x"))
        made, timeline = predict_record_and_timeline(experiment, machine(bandwidth=1e9 * factor))
        assert row.answer.seconds == made.seconds == timeline.makespan
        assert row.answer.peak_bytes_per_rank_max == made.peak_bytes_per_rank_max
        assert row.speedup == found.points[0].answer.seconds / made.seconds
        assert row.answer.fits


def test_shares_are_of_the_makespan_and_add_up_without_overlap(toy):
    found = sweep(asked(toy, grid="z=2,y=2,x=2"), ["algorithm=4d,3d"])
    assert len(found.points) == 2
    for row in found.points:
        one = row.answer
        assert one.communication_share == pytest.approx((one.exposed_seconds + one.waiting_seconds) / one.seconds)
        assert one.compute_seconds + one.exposed_seconds + one.waiting_seconds == pytest.approx(one.seconds, rel=1e-9)


def test_a_fault_slows_and_none_is_none(toy):
    healthy, slow, slower = sweep(
        asked(toy, grid="x=8"), ["degrade=none,host:1>switch:0=0.1,host:1>switch:0=0.1+host:2>switch:0=0.05"]
    ).points
    assert healthy.answer.seconds < slow.answer.seconds < slower.answer.seconds
    degraded = with_faults(machine(), degrade=["host:1>switch:0=0.1"])
    experiment = parse_matmul(asked(toy, grid="x=8").experiment)
    assert slow.answer.seconds == predict_record_and_timeline(experiment, degraded)[0].seconds


def test_points_that_cannot_be_are_rows_with_the_reason(cluster, capsys):
    found = sweep(asked(cluster, grid="y=2,x=*"), ["gpus=3,4,4096", "algorithm=4d,1d-column"])
    reasons = [row.answer.reason for row in found.points]
    assert [reason is None for reason in reasons] == [False, False, True, False, False, False]
    assert "3 GPUs cannot be shared out" in reasons[0]
    assert "1d-column takes the axes x only" in reasons[3]
    assert "4096 ranks" in reasons[4]
    assert found.baseline == 2 and found.points[2].speedup == 1 and found.points[0].speedup is None
    printed = capsys.readouterr()
    assert f"[1] {reasons[0]}" in printed.out
    assert "the first point cannot be" in printed.err


def test_a_sweep_of_which_nothing_can_be_is_refused_and_writes_nothing(toy, tmp_path):
    target = tmp_path / "rows.csv"
    with pytest.raises(InputError, match=r"none of the 2 points can be; the first: grid 'y=2,x=\*'"):
        sweep(asked(toy, grid="y=2,x=*"), ["gpus=3,5"], csv=str(target))
    assert not target.exists()


def test_the_best_grid_is_the_fastest_of_all(toy):
    found = sweep(asked(toy, best_grid=True, top=1000), ["gpus=4,6", "algorithm=4d,3d,summa"])
    assert len(found.points) == 6
    for row in found.points:
        given = asked(toy, algorithm=row.point["algorithm"])
        grids = fitting_grids(find_algorithm(given.experiment.algorithm), int(row.point["gpus"]))
        every = [parse_matmul(given.given("grid", str(grid)).experiment) for grid in grids]
        assert row.answer.seconds == min(predict_record_and_timeline(one, machine())[0].seconds for one in every)
        assert row.answer.grids == row.answer.simulated == len(grids)


def test_few_of_the_grids_are_simulated_unless_more_are_asked_for(toy):
    one, three = (sweep(asked(toy, best_grid=True, top=top, gpus="8"), ["dtype=float64"]).points[0] for top in (1, 3))
    assert (one.answer.simulated, three.answer.simulated) == (1, 3)
    assert three.answer.seconds <= one.answer.seconds
    assert one.answer.ranks == 8


def test_grids_that_do_not_fit_in_memory_are_passed_over(toy):
    fixed, searched = (
        sweep(given, ["set:device.memory_bytes=8e9,200000,1"])
        for given in (asked(toy, grid="x=4"), asked(toy, best_grid=True, gpus="4", top=99))
    )
    assert [row.answer.fits for row in fixed.points] == [True, True, False]
    assert [row.answer.reason is None for row in searched.points] == [True, True, False]
    reason = searched.points[2].answer.reason
    assert "no grid fits: multiplication 96,64,48 by 4d on 4 " in reason and "most of it is " in reason


def test_an_algorithm_without_a_grid_of_so_many_ranks_says_so(toy):
    found = sweep(asked(toy, best_grid=True, algorithm="cannon"), ["gpus=4,6"])
    assert (
        found.points[0].answer.seconds and found.points[1].answer.reason == "cannon has no grid of 6, it takes z=q,x=q"
    )


def test_any_question_can_be_swept(toy, capsys):
    found = sweep(
        asked(toy),
        ["panel=1,2,4"],
        question=lambda one: SweepAnswer(seconds=8 / int(one.experiment.panel), remarks=("so be it",)),
    )
    assert [row.speedup for row in found.points] == [1, 2, 4]
    assert capsys.readouterr().err == "quadrille: so be it\n"


# How it runs


def test_several_processes_give_the_same_answers(toy):
    varied = parse_varied(["grid=x=2;x=4;y=2", "dtype=float32,float64"])
    every = [one for _, one in points(asked(toy), varied)]
    alone, together = (dict(answer_points(every, predicted, jobs)) for jobs in (1, 2))
    assert alone == together and set(alone) == set(range(6))


def dying(_):
    os._exit(1)


def test_a_process_that_dies_is_reported(toy):
    every = [one for _, one in points(asked(toy), [VariedKey("panel", ("1", "2"))])]
    with pytest.raises(RunError, match="ended before its point was done"):
        dict(answer_points(every, dying, 2))


def interrupting(asked_there):
    """Answers two points, then somebody presses Ctrl-C."""
    if asked_there.experiment.panel == "3":
        raise KeyboardInterrupt
    return SweepAnswer(seconds=float(asked_there.experiment.panel))


def test_an_interruption_loses_nothing_that_was_found(toy, tmp_path):
    target, other = tmp_path / "rows.csv", tmp_path / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        sweep(asked(toy), ["panel=1,2,3,4"], question=interrupting, csv=str(target), json=str(other))
    kept = rows(target.read_text())
    assert [row["seconds"] for row in kept] == ["1.0", "2.0", "", ""]
    assert [bool(row["reason"]) for row in kept] == [False, False, True, True]
    assert "interrupted" in kept[3]["reason"]
    assert len(schema_files.read(other, Sweep, SCHEMA).points) == 4


def alive(group):
    """Processes of a group that have not ended."""
    found = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_the_command_and_its_processes_and_keeps_what_was_found(toy, tmp_path, jobs):
    """A first quick point, then long ones; the interruption comes while one of these runs."""
    target = tmp_path / "rows.csv"
    words = ["sweep", "--algorithm", "summa", "--grid", "x=8,z=2", "--panel", "1", "--machine", toy, "--jobs", jobs]
    words += ["--csv", str(target), "--vary", "matmul=" + ";".join(f"{n},{n},{n}" for n in (8, 60000, 60001))]
    running = subprocess.Popen(
        [sys.executable, "-P", "-c", STARTED_BY_US, *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stderr is not None
    while "answered 1 of 3 points" not in running.stderr.readline():
        assert running.poll() is None
    os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    kept = rows(target.read_text())
    assert len(kept) == 3 and float(kept[0]["seconds"]) > 0 and "interrupted" in kept[2]["reason"]
    until = time.monotonic() + 20
    while alive(running.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive(running.pid)


SLOW_AFTER_TWO = """
import sys, time
from quadrille.cli.parsing.flags import MatmulFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.sweep import sweep
from quadrille.cli.parsing.sweep_points import SweepFlags
from quadrille.experiments.sweep import sweep as sweeping
from quadrille.experiments.tasks.task_options import TaskOptions
from quadrille.experiments.sweep.sweep_result import SweepAnswer

def answer(point):
    if int(point.experiment.panel) > 2:
        time.sleep(600)
    return SweepAnswer(seconds=float(point.experiment.panel))

if __name__ == "__main__":
    sweeping.SAVE_SECONDS, sweeping.SAVE_SHARE = 0.0, 1e9
    base = SweepFlags(experiment=MatmulFlags(matmul="96,64,48", grid="x=8"), on=MachineFlags(machine=sys.argv[1]))
    options = TaskOptions(jobs=int(sys.argv[4]))
    sweep(base, ["panel=1,2,3,4"], csv=sys.argv[2], json=sys.argv[3], options=options, question=answer)
"""


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_sweep_that_is_killed_keeps_its_answers_and_leaves_no_process(toy, tmp_path, number, jobs):
    script, table, record = tmp_path / "sweep.py", tmp_path / "rows.csv", tmp_path / "rows.json"
    script.write_text(SLOW_AFTER_TWO)
    running = subprocess.Popen(
        [sys.executable, "-P", str(script), toy, str(table), str(record), str(jobs)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + time_limit(60)
    while not (record.exists() and sum(row["seconds"] != "" for row in rows(table.read_text())) == 2):
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    assert running.returncode and (number == signal.SIGKILL or "Interruption" in err)
    assert [row["seconds"] for row in rows(table.read_text())] == ["1.0", "2.0", "", ""]
    assert len(schema_files.read(record, Sweep, SCHEMA).points) == 4
    while alive(running.pid):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_answers_so_far_are_written_at_most_for_a_share_of_the_time_and_never_into_a_stream(tmp_path, monkeypatch):
    now, written = [0.0], []
    monkeypatch.setattr(sweeping.time, "monotonic", lambda: now[0])

    def write(files):
        written.append((now[0], (files.json, files.csv)))
        now[0] += 1.0  # a write takes a second

    os.mkfifo(tmp_path / "pipe")
    saved = sweeping.SavedAnswers(Destinations(json=str(tmp_path / "pipe"), csv="rows.csv"), write)
    for _ in range(800):
        now[0] += 0.125
        saved.write_if_due()
    assert [at for at, _ in written] == [1.0, 22.0, 43.0, 64.0, 85.0]
    assert {files for _, files in written} == {("", "rows.csv")}
    for stdout in (Destinations(json="-"), Destinations()):
        sweeping.SavedAnswers(stdout, write).write_if_due()
    assert len(written) == 5


STARTED_BY_US = """
import sys
from quadrille.experiments.output import progress
progress.DEFAULT_INTERVALS = progress.Intervals(log_seconds=0.02)
from quadrille.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_progress_tells_how_many_points_are_done_and_how_many_cannot_be(monkeypatch):
    said, reasons = [], [None, "cannot be", None]
    monkeypatch.setattr(
        sweeping, "progress_line", lambda words, *, share, shown: contextlib.nullcontext(said.append((words, shown)))
    )
    answers = [(place, SweepAnswer(reason=reason)) for place, reason in enumerate(reasons)]
    shown = []
    for _ in sweeping.show_progress(iter(answers), 4, quiet=False):
        words, is_shown = said[0]
        shown.append(words(6.0))
    assert is_shown and shown == [
        "answered 1 of 4 points, 10 a minute, about 18 s left",
        "answered 2 of 4 points, 1 of them cannot be, 20 a minute, about 6 s left",
        "answered 3 of 4 points, 1 of them cannot be, 30 a minute, about 2 s left",
    ]


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_shows_no_progress(toy, monkeypatch, quiet):
    calls = []
    monkeypatch.setattr(
        sweeping, "progress_line", lambda _words, *, share, shown: contextlib.nullcontext(calls.append(shown))
    )
    sweep(asked(toy, grid="x=2"), ["dtype=float64,float32"], quiet=quiet)
    assert calls == [not quiet]


# What is written


def test_the_csv_has_every_key_and_every_result_and_a_line_for_each_point(cluster, capsys):
    found = sweep(asked(cluster, grid="x=*"), ["gpus=2,3,4096", "set:device.memory_bytes=x1,x2"], csv="-")
    text = capsys.readouterr().out
    assert text == csv_text(found)
    kept = rows(text)
    assert tuple(kept[0]) == ("gpus", "set:device.memory_bytes", *RESULT_COLUMNS)
    assert [row["gpus"] for row in kept] == ["2", "2", "3", "3", "4096", "4096"]
    assert [row["grid_lengths"] for row in kept] == ["x=2", "x=2", "x=3", "x=3", "", ""]
    for row, of_found in zip(kept, found.points, strict=True):
        assert row["seconds"] == ("" if of_found.answer.seconds is None else str(of_found.answer.seconds))
        assert bool(row["reason"]) == (of_found.answer.seconds is None)


def test_the_json_is_read_again_and_is_the_same_for_the_same_command(toy, tmp_path):
    paths = [tmp_path / "one.json", tmp_path / "other.json"]
    made = [
        sweep(asked(toy, grid="x=2"), ["dtype=float64,float32"], json=str(path), command=["quadrille", "sweep"])
        for path in paths
    ]
    assert schema_files.read(paths[0], Sweep, SCHEMA) == made[0]
    assert made[0].provenance.command == "quadrille sweep"
    one, other = (msgspec.structs.replace(found, provenance=None) for found in made)
    assert one == other


def test_the_picture_is_the_same_bytes_and_takes_words_too(toy, cluster, tmp_path):
    pictures = [tmp_path / "one.svg", tmp_path / "other.svg"]
    for picture in pictures:
        sweep(asked(cluster, grid="x=*"), ["dtype=float64,float32", "gpus=1,2,16,4096"], plot=str(picture))
    one, other = (picture.read_bytes() for picture in pictures)
    assert one == other and one.startswith(b"<?xml")
    sweep(asked(toy, grid="x=2"), ["algorithm=4d,3d"], plot=str(tmp_path / "words.png"))
    assert (tmp_path / "words.png").read_bytes().startswith(b"\x89PNG")


def test_lines_leave_out_points_without_an_answer():
    answers = {
        ("8", "float32"): SweepAnswer(seconds=2),
        ("8", "float64"): SweepAnswer(reason="no"),
        ("4", "float32"): SweepAnswer(seconds=3),
        ("4", "float64"): SweepAnswer(seconds=5),
    }
    found, _ = sweep_rows([({"gpus": gpus, "dtype": dtype}, answer) for (gpus, dtype), answer in answers.items()])
    lines = lines_of(found, VariedKey("gpus", ("8", "4")))
    assert [(line.label, line.x, line.seconds) for line in lines] == [
        ("dtype=float32", [4.0, 8.0], [3, 2]),
        ("dtype=float64", [4.0], [5]),
    ]


def test_a_long_table_is_cut_and_says_so(capsys):
    values = tuple(map(str, range(1, MOST_ROWS + 2)))
    made = tuple(SweepRow(point={"panel": value}, answer=SweepAnswer(seconds=1.0)) for value in values)
    print_tables(table_of(Sweep(flags={}, varied={"panel": values}, best_grid=False, points=made, baseline=0)))
    text = capsys.readouterr().out
    assert f"the first {MOST_ROWS} rows" in text and len(text.splitlines()) == MOST_ROWS + 4


def test_many_reasons_are_cut_and_say_so():
    many, _ = sweep_rows([({}, SweepAnswer(reason=f"reason {n}")) for n in range(20)])
    lines = list(reason_lines(Sweep(flags={}, varied={}, best_grid=False, points=many)))
    assert len(lines) == 13 and lines[-1] == "8 more reasons: --csv FILE has them all"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--csv", "no/such/folder/rows.csv"), "--csv no/such/folder/rows.csv cannot be written"),
        (("--json", "/"), "--json / cannot be written: it is a folder"),
        (("--plot", "rows.doc"), "rows.doc"),
        (("--csv", "-", "--json", "-"), "--json and --csv both name -"),
        (("--csv", "rows.csv", "--json", "./rows.csv"), "--json and --csv both name"),
        (("--top", "0"), "--top '0'"),
        (("--jobs", "none"), "--jobs 'none'"),
        (("--jobs", "65536"), "--jobs '65536': a whole number from 1 to 1024 is accepted"),
        (("--vary", "colour=red"), "--vary colour: accepted are"),
        (("--vary", "grid=x=2;x=2"), "repeats x=2"),
        (("--grid", "w=2"), "grid: unknown axis 'w'"),
    ],
)
def test_the_command_refuses_in_one_line_and_writes_nothing(toy, capsys, monkeypatch, tmp_path, given, message):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    ended = called(capsys, "sweep", "--matmul", "64,64,64", "--machine", toy, "--vary", "dtype=float64", *given)
    assert ended.status == 2 and ended.out == ""
    assert message in ended.line
    assert sorted(tmp_path.iterdir()) == before


def test_the_machine_file_is_not_overwritten(toy, capsys):
    ended = called(capsys, "sweep", "--matmul", "8,8,8", "--machine", toy, "--vary", "dtype=float64", "--csv", toy)
    assert ended.status == 2 and "both name" in ended.line


@pytest.mark.parametrize(
    ("words", "named_by"),
    [
        (("--placement", "places.txt", "--vary", "dtype=float64"), "--placement"),
        (("--vary", "placement=packed;places.txt"), "--vary placement=places.txt"),
        (("--vary", "machine=perlmutter,./places.txt"), "--vary machine=./places.txt"),
    ],
)
def test_no_file_that_points_read_is_overwritten(toy, capsys, monkeypatch, tmp_path, words, named_by):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "places.txt").write_text("host:0")
    ended = called(capsys, "sweep", "--matmul", "8,8,8", "--machine", toy, *words, "--json", "places.txt")
    assert ended.status == 2 and f"--json and {named_by} both name places.txt" in ended.line
    assert (tmp_path / "places.txt").read_text() == "host:0"


def test_the_command_prints_a_table_and_writes_what_is_asked_for(toy, capsys, tmp_path):
    target, picture = tmp_path / "rows.csv", tmp_path / "rows.png"
    words = ("--vary", "gpus=2,4", "--best-grid", "--vary", f"{BANDWIDTH}=x1,x2", "--csv", target, "--plot", picture)
    ended = called(capsys, "sweep", "--matmul", "64,64,64", "--machine", toy, *words)
    assert ended.status == 0
    assert "best grid" in ended.out and "speed-up over gpus=2" in ended.out
    assert len(rows(target.read_text())) == 4 and picture.stat().st_size > 1000


# Where ranks live


CROWDED = msgspec.structs.replace(star(3, memory=1e10), host=Host(cores=4))
"""Three hosts of four cores."""
FIVE = "host:0\nhost:1\nhost:2\nhost:0\nhost:1"
"""Places of five ranks."""
FULLEST = [("packed", 4), ("scattered", 3), ("axes:z,x", 4), ("places.txt", 2)]
"""Rules, and how many of five ranks they put on the host that has most."""
GPT = {"gpt": "tiny", "batch": "10"}


@pytest.fixture
def holding(monkeypatch, tmp_path):
    """Gives the hosts with so much memory, beside a file of places."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "places.txt").write_text(FIVE)

    def made(memory_bytes):
        path = tmp_path / f"{memory_bytes}.toml"
        device = msgspec.structs.replace(CROWDED.device, memory_bytes=memory_bytes)
        save_machine(msgspec.structs.replace(CROWDED, device=device), path)
        return MachineFlags(machine=str(path))

    return made


@pytest.mark.parametrize(("rule", "ranks"), FULLEST)
@pytest.mark.parametrize(
    ("question", "given"),
    [(predicted, {"matmul": "60,50,40"}), (predicted, GPT), (step_predicted, GPT)],
)
def test_a_point_fits_where_its_ranks_are_placed(holding, question, given, rule, ranks):
    flags = TrainingFlags(**given, grid="z=5", placement=rule)
    peak = question(SweepFlags(experiment=flags, on=holding(8e9))).peak_bytes_per_rank_max
    assert question(SweepFlags(experiment=flags, on=holding(ranks * peak))).fits
    assert not question(SweepFlags(experiment=flags, on=holding(ranks * peak - 1))).fits


@pytest.mark.parametrize(("rule", "ranks"), FULLEST)
@pytest.mark.parametrize("given", [{"matmul": "60,50,40"}, GPT])
def test_the_best_grid_is_looked_for_where_ranks_are_placed(holding, given, rule, ranks):
    asked = SweepFlags(experiment=TrainingFlags(**given, placement=rule), gpus="5", best_grid=True, top=1)
    found = predicted(replace(asked, on=holding(8e9)))
    assert found.reason is None and found.fits
    enough = predicted(replace(asked, on=holding(ranks * found.peak_bytes_per_rank_max)))
    assert enough.reason is None and enough.fits
    assert "no grid fits" in predicted(replace(asked, on=holding(1))).reason
