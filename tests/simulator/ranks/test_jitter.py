"""Noise of op instances: its spread, its seed, what it excludes, and its record."""

import csv
import json
from collections import defaultdict
from math import exp, log
from statistics import fmean, pstdev

import pytest

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.mlp import Mlp
from quadrille.experiments.compare.problem import check_same_problem
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.simulator.ranks.jitter import QUANTILES, Jitter
from quadrille.simulator.simulate import simulate
from tests.support.quadrille import called
from tests.support.toy_machines import star

MANY = TrainingExperiment(Mlp((64, 96, 80, 64), 256, micro_batch=1), Grid()).schedule()
"""A step of 256 microbatches on one rank."""
PIPELINE = TrainingExperiment(Mlp((64, 96, 96, 64, 64), 12, micro_batch=2), Grid(pipeline=2, x=2)).schedule()
STEP = ["simulate", "--mlp", "64,96,96,64", "--batch", "8", "--micro-batch", "2", "--grid", "pipeline=2"]
GPU_STEP = [*STEP, "--machine", "perlmutter"]


def machine(hosts=4):
    return star(hosts, peak=1e9, memory=1e9, bandwidth=1e7)


def predicted(schedule, jitter=None, hosts=4, **options):
    return simulate(schedule, machine(hosts), choices=Choices(), jitter=jitter, **options)


def makespan(schedule, jitter=None):
    return predicted(schedule, jitter).timeline.makespan


def logs_of_instances(timeline):
    """Logarithms of the seconds of local work, by op with many instances."""
    seconds = defaultdict(list)
    for span in timeline.spans:
        if span.lane == "compute" and span.end > span.start:
            seconds[span.op].append(log(span.end - span.start))
    return {op: values for op, values in seconds.items() if len(values) > 100}


def test_no_spread_is_no_noise():
    assert makespan(PIPELINE, Jitter()) == pytest.approx(makespan(PIPELINE), rel=1e-12)


def test_a_seed_repeats_its_noise_and_another_seed_differs():
    first, again, other = (makespan(PIPELINE, Jitter(0.2, 0.2, seed)) for seed in (1, 1, 2))
    assert first == again
    assert abs(first - other) > 1e-4 * first


def test_noise_of_the_network_does_not_change_local_work():
    quiet, noisy = (predicted(PIPELINE, jitter).timeline.spans for jitter in (Jitter(), Jitter(network=0.5)))
    seconds = [{(s.rank, s.op, s.index): (s.lane, s.end - s.start) for s in spans} for spans in (quiet, noisy)]
    local = [key for key, (lane, _) in seconds[0].items() if lane == "compute"]
    assert [seconds[1][key][1] for key in local] == pytest.approx(
        [seconds[0][key][1] for key in local], rel=1e-9, abs=1e-12
    )
    moved = [key for key, (lane, _) in seconds[0].items() if lane != "compute"]
    assert any(abs(seconds[1][key][1] - seconds[0][key][1]) > 0.1 * seconds[0][key][1] for key in moved)


@pytest.mark.parametrize("sigma", [0.05, 0.3])
def test_local_work_has_the_spread_that_was_asked_for(sigma):
    quiet, noisy = (
        logs_of_instances(predicted(MANY, jitter, hosts=1).timeline) for jitter in (Jitter(), Jitter(sigma))
    )
    draws = [value - quiet[op][0] for op in quiet for value in noisy[op]]
    assert len(draws) > 1000
    assert pstdev(draws) == pytest.approx(sigma, rel=0.05)
    assert fmean(draws) == pytest.approx(0, abs=0.1 * sigma)  # the median is kept
    assert fmean(map(exp, draws)) == pytest.approx(exp(sigma**2 / 2), rel=0.1 * sigma)


def test_messages_have_the_spread_that_was_asked_for():
    jitter = Jitter(network=0.2)
    factors = [
        jitter.factors(jitter.quantile(rank, "send", index)).transfer for rank in range(8) for index in range(500)
    ]
    assert pstdev(map(log, factors)) == pytest.approx(0.2, rel=0.05)
    assert len(set(factors)) == QUANTILES


def test_the_mean_time_of_a_pipeline_grows_with_the_spread():
    means = [fmean(makespan(PIPELINE, Jitter(sigma, sigma, seed)) for seed in range(3)) for sigma in (0, 0.2, 0.6)]
    assert means == sorted(means)
    assert means[-1] > 1.1 * means[0]


def test_an_op_draws_the_same_whatever_the_order_of_passes():
    """Instances of an op run in one order on each schedule, and other ops between them differ."""
    seconds = []
    for schedule in ("gpipe", "message-driven"):
        step = Mlp((64, 96, 96, 64), 24, micro_batch=2, pipeline_schedule=schedule)
        spans = predicted(TrainingExperiment(step, Grid(pipeline=2)).schedule(), Jitter(0.3)).timeline.spans
        seconds.append({(s.rank, s.op, s.index): s.end - s.start for s in spans if s.lane == "compute"})
    shared = sorted(seconds[0].keys() & seconds[1].keys())
    assert len(shared) > 100
    assert [seconds[1][key] for key in shared] == pytest.approx(
        [seconds[0][key] for key in shared], rel=1e-9, abs=1e-12
    )


def test_ranks_that_draw_noise_are_not_folded_and_no_iteration_is_skipped():
    step = TrainingExperiment(Mlp((64, 64, 64), 512, micro_batch=2), Grid(data=4)).schedule()
    plain, noisy = predicted(step), predicted(step, Jitter(0.1))
    assert plain.extent.folded
    assert plain.extent.iterations_skipped > 0
    assert (noisy.extent.folded, noisy.extent.iterations_skipped) == (False, 0)
    assert "jitter" in noisy.extent.not_folded_reason


def test_bounds_are_refused_with_noise():
    with pytest.raises(InputError, match="granularity collective"):
        predicted(PIPELINE, Jitter(0.1), granularity="collective")


def test_the_record_names_the_noise_only_if_it_was_asked_for(capsys, tmp_path):
    record = tmp_path / "record.json"
    for words, named in (
        ((), None),
        (("--jitter", "network=0.1,seed=4,compute=0.05"), "compute=0.05,network=0.1,seed=4"),
    ):
        assert called(capsys, *GPU_STEP, *words, "--json", record).status == 0
        assert json.loads(record.read_text())["options"].get("jitter") == named
    assert "jitter" in json.loads(record.read_text())["simulation"]["not_folded_reason"]


def test_a_remark_says_that_rings_stand_for_nccl(capsys):
    assert "rings of single ranks" in called(capsys, *GPU_STEP, "--jitter", "compute=0.1").err
    own = called(capsys, *GPU_STEP, "--jitter", "compute=0.1", "--collectives", "own")
    assert "rings of single ranks" not in own.err


def test_noise_combines_with_faults(capsys, tmp_path):
    noise, fault = ["--jitter", "compute=0.1"], ["--slow", "gpu:1=0.5"]
    seconds = []
    for number, words in enumerate(([], noise, fault, [*noise, *fault])):
        record = tmp_path / f"{number}.json"
        assert called(capsys, *GPU_STEP, "--collectives", "own", *words, "--json", record).status == 0
        seconds.append(json.loads(record.read_text())["seconds"])
    assert len(set(seconds)) == 4
    assert min(seconds[2:]) > max(seconds[:2])


def test_a_sweep_varies_noise(capsys, tmp_path):
    table = tmp_path / "rows.csv"
    varied = ["--vary", "jitter=none;compute=0.5,seed=2"]
    assert called(capsys, "sweep", *GPU_STEP[1:], *varied, "--csv", table).status == 0
    quiet, noisy = csv.DictReader(table.read_text().splitlines())
    assert (quiet["jitter"], noisy["jitter"]) == ("none", "compute=0.5,seed=2")
    assert quiet["seconds"] != noisy["seconds"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("compute=-0.1", "from 0 to 2"),
        ("network=2.5", "from 0 to 2"),
        ("compute=nan", "from 0 to 2"),
        ("compute=much", "'much'"),
        ("memory=0.1", "'memory'"),
        ("compute=0.1,seed=1.5", "'1.5'"),
        ("compute=0.1,seed=-1", "from 0"),
        ("compute=0.1,compute=0.2", "twice"),
        ("gpus=many", "from 0 to 2 or machine"),
        ("gpus=-0.1", "from 0 to 2"),
    ],
)
def test_bad_noise_is_one_line(capsys, text, words):
    for command in (GPU_STEP, ["sweep", *GPU_STEP[1:], "--vary", "bands=1,2"]):
        ended = called(capsys, *command, "--jitter", text)
        assert ended.status == 2
        assert words in ended.err
        assert ended.err.count("\n") == 1


def test_a_run_and_a_ranking_refuse_noise(capsys):
    run = called(capsys, "run", "--matmul", "8,8,8", "--jitter", "compute=0.1")
    assert run.status == 2
    assert "simulate accepts it" in run.err
    rank = called(capsys, "rank", "--gpt", "tiny", "--batch", "8", "--gpus", "8", "--jitter", "compute=0.1")
    assert rank.status == 2
    assert rank.err.count("\n") == 1


def test_predictions_with_and_without_noise_are_of_the_same_problem(tmp_path, capsys):
    from quadrille.algorithms.formats.record import load_record

    paths = [str(tmp_path / name) for name in ("plain.json", "noisy.json")]
    for path, noise in zip(paths, ((), ("--jitter", "compute=0.1")), strict=True):
        assert called(capsys, *GPU_STEP, *noise, "--json", path).status == 0
    plain, noisy = map(load_record, paths)
    check_same_problem(noisy, plain)
