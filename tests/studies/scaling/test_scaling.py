import csv
import io

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.cli.parsing.machines import MachineFlags, chosen_machine
from quadrille.simulator.simulate import simulate
from quadrille.studies.scaling import study
from quadrille.studies.scaling.grid_search import search_grids
from quadrille.studies.scaling.problem import ScalingProblem, memory_limit, parse_algorithms, parse_problem
from quadrille.studies.scaling.report import CSV_COLUMNS, SCHEMA, ScalingResult, csv_text
from quadrille.studies.scaling.study import scaling as scaling_for
from quadrille.topologies.find_machine import find_machine
from tests.support.toy_machines import FREE, one_host, star

PERLMUTTER = MachineFlags(machine="perlmutter")


def sized(machine):
    """Gives the machine with so many GPUs, if it is known by name."""
    return (lambda gpus: chosen_machine(machine, gpus)) if isinstance(machine, MachineFlags) else lambda _: machine


def answer(question, machine):
    return search_grids(question, sized(machine))


def scaling(question, machine, **more):
    return scaling_for(question, sized(machine), **more)


SMALL = (64, 48, 96)


def question(kind="strong", sizes=SMALL, *, algorithm="4d", dtype="float64", passes="training", **given):
    problem = Matmul(*sizes, dtype, passes)
    return ScalingProblem(kind=kind, matmul=problem, algorithms=parse_algorithms(algorithm), **given)


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_the_default_study_simulates_the_best_three_of_all_grids(kind, capsys):
    found = scaling(parse_problem(kind, gpus=[1, 2, 4, 8, 16]), PERLMUTTER)
    assert [sum(run.gpus == gpus for run in found.runs) for gpus in (1, 2, 4, 8, 16)] == [1, 3, 3, 3, 3]
    assert [sum(one.gpus == gpus for one in found.ranked) for gpus in (1, 2, 4, 8, 16)] == [1, 4, 10, 20, 35]
    assert all(run.closed_form_place <= 3 for run in found.runs)
    printed = capsys.readouterr()
    assert f"{kind} scaling of 4d on perlmutter" in printed.out
    assert "no measured products" in printed.err


def test_a_simulated_run_is_what_simulate_gives():
    found = answer(question(gpus=(6,)), PERLMUTTER)
    run = found.best[0]
    schedule = matmul_schedule(Matmul(*SMALL, "float64", "training"), run.algorithm, Grid(**run.grid))
    assert run.seconds == simulate(schedule, find_machine("perlmutter", gpus=6)).timeline.makespan


@settings(max_examples=30)
@given(
    sizes=st.tuples(*[st.integers(1, 97)] * 3),
    gpus=st.lists(st.integers(1, 8), min_size=1, max_size=3, unique=True).map(sorted),
    kind=st.sampled_from(["weak", "strong"]),
)
def test_no_number_of_gpus_is_more_efficient_than_one_or_than_the_peak(sizes, gpus, kind):
    found = answer(question(kind, sizes, gpus=(1, *(one for one in gpus if one > 1)), top=2), star(8))
    assert all(0 < run.efficiency <= 1 + 1e-9 for run in found.runs)
    assert all(0 < run.fraction_of_peak <= 1 + 1e-9 for run in found.runs)


def test_an_even_cut_on_a_free_network_loses_nothing():
    free = star(8, latency=0.0, bandwidth=FREE, memory=FREE)
    for kind in ("weak", "strong"):
        found = answer(question(kind, gpus=(1, 2, 4, 8)), free)
        assert [run.efficiency for run in found.best] == pytest.approx([1, 1, 1, 1])
        assert [run.exposed_seconds for run in found.best] == pytest.approx([0, 0, 0, 0], abs=1e-12)


def test_m_grows_with_the_gpus_in_weak_scaling_only():
    weak, strong = (answer(question(kind, gpus=(1, 3, 5)), star(5)) for kind in ("weak", "strong"))
    assert [(run.m, run.k, run.n) for run in weak.best] == [(64 * gpus, 48, 96) for gpus in (1, 3, 5)]
    assert {(run.m, run.k, run.n) for run in strong.runs} == {SMALL}


def test_efficiency_is_the_rate_of_one_gpu_over_that_on_the_fewest():
    found = answer(question(gpus=(2, 3, 6)), star(6))
    base = found.best[0]
    assert base.efficiency == 1
    for run in found.runs:
        assert run.efficiency == pytest.approx(base.seconds * 2 / (run.seconds * run.gpus))
        assert run.flops_per_second_per_gpu == pytest.approx(6 * 64 * 48 * 96 / run.gpus / run.seconds)


def test_runs_are_sorted_by_gpus_and_then_by_simulated_time():
    found = answer(question(gpus=(2, 4, 6), algorithm="3d,4d", top=5), PERLMUTTER)
    keys = [(run.gpus, float(f"{run.seconds:.9e}")) for run in found.runs]
    assert keys == sorted(keys)
    assert [run.gpus for run in found.best] == [2, 4, 6]


def test_overlap_hides_communication_and_leaves_the_closed_form():
    plain, hidden = (
        answer(question(sizes=(512, 512, 512), gpus=(4,), top=99, overlaps=frozenset(overlaps)), star(4))
        for overlaps in ((), ("oar", "ors", "oag"))
    )
    for one, other in zip(plain.ranked, hidden.ranked, strict=True):
        assert one.closed_form_seconds == pytest.approx(other.closed_form_seconds)
    assert hidden.best[0].seconds < plain.best[0].seconds
    assert hidden.overlap == ("oag", "oar", "ors")


def test_the_same_question_has_the_same_answer():
    one, other = (answer(question(gpus=(1, 6)), PERLMUTTER) for _ in range(2))
    assert msgspec.json.encode(one) == msgspec.json.encode(other)


def test_grids_that_do_not_fit_in_memory_are_ranked_and_not_simulated():
    small = star(4)
    device = msgspec.structs.replace(small.device, memory_bytes=200_000)
    found = answer(question(gpus=(1, 4), top=99), msgspec.structs.replace(small, device=device))
    assert {run.gpus for run in found.runs} == {4}
    assert len(found.runs) == sum(one.fits for one in found.ranked) < len(found.ranked)
    assert any("1 GPU: no grid fits" in remark for remark in found.remarks)


def test_what_fits_nowhere_is_refused_with_the_memory_it_needs():
    with pytest.raises(
        InputError,
        match=r"no grid fits: .* needs at least .* TiB a GPU .* one of perlmutter has 39.5 GiB; most of it is A",
    ):
        answer(question(sizes=(10**6, 10**6, 10**6), gpus=(1, 2)), PERLMUTTER)


def test_numbers_of_gpus_without_a_grid_are_left_out_with_a_remark():
    found = answer(question(algorithm="cannon", gpus=(2, 4)), star(4))
    assert [run.gpus for run in found.best] == [4]
    assert "2 GPUs: cannon has no grid of 2, it takes z=q,x=q" in found.remarks


SEVERAL = {"gpus": (1, 4, 8, 9), "algorithm": "summa,3d,4d,cannon", "sizes": SMALL, "top": 2}


def test_several_algorithms_are_compared_by_their_own_best_grids():
    several = answer(question(**SEVERAL), star(9))
    names = SEVERAL["algorithm"].split(",")
    for name in names:
        alone = answer(question(**{**SEVERAL, "algorithm": name}), star(9))
        own = [run for run in several.runs if run.algorithm == name]
        assert [(run.gpus, run.grid, run.seconds) for run in own] == [
            (run.gpus, run.grid, run.seconds) for run in alone.runs
        ]
        assert [run.seconds for run in several.best_by_algorithm[name]] == [run.seconds for run in alone.best]
    assert [run.gpus for run in several.best_by_algorithm["cannon"]] == [1, 4, 9]
    for run in several.best:
        assert run.seconds == min(other.seconds for other in several.runs if other.gpus == run.gpus)


def test_the_table_has_the_best_grid_of_each_algorithm_and_its_memory(capsys):
    found = scaling(question(**SEVERAL), star(9))
    printed = capsys.readouterr()
    assert "memory per GPU" in printed.out
    lines = [line.split()[:2] for line in printed.out.splitlines() if line.split()[1:2] and line.split()[0].isdigit()]
    expected = [[str(run.gpus), name] for name, runs in found.best_by_algorithm.items() for run in runs]
    assert sorted(lines) == sorted(expected) and len(expected) == 15
    assert "8 GPUs: cannon has no grid of 8, it takes z=q,x=q" in printed.err


def test_the_figure_has_a_curve_for_each_algorithm(tmp_path):
    picture = tmp_path / "several.svg"
    scaling(question(**SEVERAL), star(9), plot=str(picture))
    drawn = picture.read_text()
    assert [name for name in ("summa", "3d", "4d", "cannon") if f"{name}, simulated" not in drawn] == []


def smallest(ranked, gpus):
    """The least memory of a rank on any grid of each algorithm on a number of GPUs."""
    names = {row.algorithm for row in ranked if row.gpus == gpus}
    return {
        name: min(row.peak_bytes_per_rank_max for row in ranked if (row.gpus, row.algorithm) == (gpus, name))
        for name in names
    }


def test_all_algorithms_keep_to_the_same_memory_limit():
    free = answer(question(**SEVERAL), star(9))
    bound = sorted(row.peak_bytes_per_rank_max for row in free.ranked if row.gpus == 8)[3]
    bounded = answer(question(**SEVERAL, memory_per_gpu=bound), star(9))
    assert all(run.peak_bytes_per_rank_max <= bound for run in bounded.runs)
    assert [row.fits for row in bounded.ranked] == [row.peak_bytes_per_rank_max <= bound for row in bounded.ranked]
    assert any(run.peak_bytes_per_rank_max > bound for run in free.runs)
    assert bounded.memory_limits == {str(gpus): bound for gpus in SEVERAL["gpus"]}
    assert any("--memory-per-gpu allows" in remark for remark in bounded.remarks)


def test_equal_memory_is_the_least_at_which_each_algorithm_has_a_grid():
    found = answer(question(**SEVERAL, memory_per_gpu="equal"), star(9))
    for gpus in SEVERAL["gpus"]:
        least = smallest(found.ranked, gpus)
        limit = found.memory_limits[str(gpus)]
        assert limit == max(least.values())
        runs = [run for run in found.runs if run.gpus == gpus]
        assert {run.algorithm for run in runs} == set(least)
        assert all(run.peak_bytes_per_rank_max <= limit for run in runs)
    assert any(remark.startswith("equal memory: each algorithm may use ") for remark in found.remarks)


def test_more_memory_than_the_device_has_is_not_a_limit():
    found = answer(question(gpus=(4,), memory_per_gpu=1e30), star(4))
    assert found.memory_limits == {"4": star(4).device.memory_bytes}
    assert found.runs == answer(question(gpus=(4,)), star(4)).runs


@pytest.mark.parametrize("text", ["much", "0", "-1GiB", "1G"])
def test_a_memory_limit_that_cannot_be_is_refused(text):
    with pytest.raises(InputError, match="--memory-per-gpu"):
        memory_limit(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "sideways"}, "scaling 'sideways': accepted are weak, strong"),
        ({"gpus": ()}, "gpus none"),
        ({"gpus": (0, 2)}, "gpus 0,2"),
        ({"gpus": (2, 2)}, "gpus 2,2"),
        ({"top": 0}, "top 0"),
    ],
)
def test_a_question_that_cannot_be_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        question(**{"kind": "strong", "gpus": (1,), **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": "5d"}, "algorithm '5d'"),
        ({"algorithm": "4d,4d"}, "repeats 4d"),
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"passes": "both"}, "passes 'both'"),
        ({"overlaps": "all"}, "overlap 'all'"),
        ({"collectives": "own:star"}, "collectives 'own:star'"),
        ({"matmul": (0, 1, 1)}, "matmul m=0"),
    ],
)
def test_words_that_cannot_be_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        parse_problem("strong", **{"gpus": [1], **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"machine": MachineFlags(machine="tianhe")}, "machine 'tianhe' is unknown"),
        ({"plot": "figure.doc"}, "figure.doc"),
        ({"json": "-", "csv": "-"}, "--json and --csv both name -: give each its own file"),
        ({"json": "no/such/folder.json"}, "cannot be written"),
    ],
)
def test_a_machine_or_a_file_that_cannot_be_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        scaling(parse_problem("strong", gpus=[1]), **{"machine": PERLMUTTER, **change})


def test_the_ranks_of_a_host_share_its_memory():
    asked = question(kind="strong", gpus=(2,))
    room = 1 + max(one.peak_bytes_per_rank_max for one in answer(asked, star(2)).ranked)
    apart, together = (
        msgspec.structs.replace(one, device=msgspec.structs.replace(one.device, memory_bytes=float(room)))
        for one in (star(2), one_host(2))
    )
    assert all(one.fits for one in answer(asked, apart).ranked)
    with pytest.raises(InputError, match=r"no grid fits: .* on 2 ranks needs at least .* a host \(grid .*, 2 ranks\)"):
        answer(asked, together)


def test_too_few_gpus_are_refused_before_anything_is_simulated():
    with pytest.raises(InputError, match=r"8 ranks: .* has 4 GPUs"):
        scaling(parse_problem("strong", gpus=[1, 8]), find_machine("perlmutter", gpus=4))


def test_the_csv_has_a_line_for_each_run_under_the_names_of_its_columns(capsys):
    found = scaling(parse_problem("strong", matmul=SMALL, dtype="float64", gpus=[1, 6]), star(6), csv="-")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert len(rows) == len(found.runs)
    for row, run in zip(rows, found.runs, strict=True):
        assert float(row["seconds"]) == run.seconds
        assert row["grid"] == str(Grid(**run.grid))
        assert row["extrapolated"] == "true"


def test_a_peak_that_is_not_known_is_empty_in_the_csv_and_a_remark():
    found = answer(question(dtype="float16", gpus=(1,)), star(1))
    assert found.runs[0].fraction_of_peak is None
    assert csv_text(found).splitlines()[1].split(",")[CSV_COLUMNS.index("fraction_of_peak")] == ""
    assert any("gives no speed for float16" in remark for remark in found.remarks)


def test_the_json_is_read_again_as_the_same_answer(tmp_path):
    path = tmp_path / "scaling.json"
    weak = parse_problem("weak", matmul=SMALL, dtype="float64", gpus=[1, 2])
    found = scaling(weak, star(2), json=str(path), command=["quadrille"])
    assert schema_files.read(path, ScalingResult, SCHEMA) == found
    assert found.provenance.command == "quadrille"


def test_the_plot_is_the_same_bytes_for_the_same_answer(tmp_path):
    pictures = [tmp_path / "one.svg", tmp_path / "other.svg"]
    for picture in pictures:
        scaling(parse_problem("strong", matmul=SMALL, dtype="float64", gpus=[1, 2, 4]), star(4), plot=str(picture))
    one, other = (picture.read_bytes() for picture in pictures)
    assert one == other and one.startswith(b"<?xml")


def test_routing_and_faults_are_those_of_the_study_and_recorded():
    slow = MachineFlags(machine="perlmutter", routing="ecmp", slow=("gpu:3=0.5",))
    healthy, degraded = (answer(question(gpus=(1, 4)), machine) for machine in (PERLMUTTER, slow))
    assert degraded.machine.routing == "ecmp:0" and degraded.machine.faults.slow == {"gpu:3": 0.5}
    assert {run.gpus for run in degraded.runs} == {4}  # of one GPU there is no gpu:3
    assert any("1 GPUs: --slow gpu:3" in remark for remark in degraded.remarks)
    assert degraded.best[0].seconds > next(run for run in healthy.best if run.gpus == 4).seconds


def test_settings_change_the_machine():
    slow, fast = (
        answer(question(gpus=(1,)), MachineFlags(machine="perlmutter", settings=settings))
        for settings in ((), ("device.peak_flops_per_second=x2", "device.overhead_seconds=0"))
    )
    assert fast.best[0].seconds < slow.best[0].seconds
    assert fast.machine.sha256 != slow.machine.sha256


def test_the_study_keeps_the_answers_to_both_questions(tmp_path, capsys):
    study.main(tmp_path / "results", gpus=(1, 2), top=1)
    assert len(capsys.readouterr().out.splitlines()) > 10
    for kind in ("weak", "strong"):
        kept = schema_files.read(tmp_path / "results" / f"{kind}-perlmutter.json", ScalingResult, SCHEMA)
        assert kept.kind == kind and kept.provenance.command == f"quadrille study {kind}-scaling --machine perlmutter"
        assert (tmp_path / "results" / f"{kind}-perlmutter.csv").read_text() == csv_text(kept)
