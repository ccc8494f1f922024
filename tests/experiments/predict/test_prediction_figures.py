import json
import pickle

import pytest

import quadrille
from quadrille.experiments.predict.predict import record_and_prediction
from quadrille.experiments.predict.prepared_experiment import prepare
from quadrille.experiments.predict.roofline import Roofline, RooflineOp, recorded_ops, roofline, roofline_ops
from quadrille.experiments.predict.roofline_figure import roofline_figure
from quadrille.simulator.simulate import Shortcuts
from quadrille.topologies.find_machine import find_machine
from tests.support.quadrille import called

JOB = ["simulate", "--matmul", "512,1024,256", "--grid", "z=2,x=2", "--machine", "perlmutter", "--quiet"]
GPT = "--gpt layers=2,hidden=256,heads=4,sequence=128,vocabulary=1024 --batch 8 --dtype bfloat16"


def prepared(words):
    """An experiment on a machine, as `simulate` prepares it."""
    from quadrille.cli.parsing.experiment import experiment_of
    from quadrille.cli.parsing.flags import TrainingFlags

    named = dict(zip([word.removeprefix("--") for word in words[0::2]], words[1::2], strict=True))
    experiment = experiment_of(TrainingFlags(**named))
    return prepare(experiment, find_machine("perlmutter", (), experiment.grid.size))


@pytest.mark.parametrize("collectives", ["own:ring", "nccl"])
def test_every_link_has_the_use_that_it_has_without_folding(collectives):
    job = prepared(["--matmul", "512,512,512", "--grid", "z=4,x=2", "--collectives", collectives])
    uses = [
        record_and_prediction(job, granularity="auto", shortcuts=Shortcuts(fold=fold))[1].every_link()
        for fold in (True, False)
    ]
    folded, single = ({name: use for name, use in links.items() if ">" in name} for links in uses)
    assert folded == pytest.approx(single)
    assert len(folded) >= 2 * 8


def test_an_exact_prediction_goes_to_another_process_with_the_use_of_its_links():
    schedule = quadrille.matmul_schedule(quadrille.Matmul(512, 512, 512), "4d", quadrille.Grid(z=4, x=2))
    prediction = quadrille.simulate(schedule, find_machine("perlmutter", gpus=8), granularity="exact")
    assert pickle.loads(pickle.dumps(prediction)).every_link() == prediction.every_link()


def test_a_product_has_the_intensity_and_rate_of_its_sizes():
    """2 m k n flop, and each of three matrices touched once."""
    job = prepared(["--matmul", "512,1024,256", "--grid", "x=1"])
    _, prediction = record_and_prediction(job)
    (op,) = roofline_ops(job, prediction.timeline)
    assert op.flops == 2 * 512 * 1024 * 256
    assert op.touched == 4 * (512 * 1024 + 1024 * 256 + 512 * 256)
    assert op.rate == pytest.approx(op.flops / prediction.seconds)


@pytest.mark.parametrize("granularity", ["exact", "collective"])
def test_no_op_of_a_training_step_is_above_the_roof(granularity):
    job = prepared([*GPT.split(), "--grid", "z=2,x=2"])
    _, prediction = record_and_prediction(job, granularity=granularity)
    ops = roofline_ops(job, prediction.timeline)
    device = roofline(job, ops)
    assert {op.kind for op in ops} == {"product", "attention", "function"}
    assert all(device.share_of_roof(op) <= 1 + 1e-9 for op in ops)
    assert sum(op.seconds for op in ops) <= prediction.seconds
    axes = roofline_figure(device, "a job").axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert sum(len(marks.get_offsets()) for marks in axes.collections) == len(ops)
    assert max(axes.lines[0].get_ydata()) == device.peak
    assert any(text.get_text().startswith("peak 312 TFLOP/s") for text in axes.texts)


def test_each_of_the_longest_ops_has_its_number_and_the_memory_its_name_at_its_roof():
    ops = [RooflineOp("a", "product", 640.0, 80.0, 10.0), RooflineOp("b", "product", 630.0, 80.0, 9.0)]
    ops.append(RooflineOp("c", "function", 16.0, 16.0, 2.0))
    device = Roofline(tuple(ops), 80.0, 20.0)
    axes = roofline_figure(device).axes[0]
    numbers = {text.get_text(): text.xy for text in axes.texts if hasattr(text, "xy")}
    assert numbers == {"1-2": (8, 64), "3": (1, 8)}
    (memory,) = [text for text in axes.texts if text.get_text().startswith("memory")]
    intensity, rate = memory.get_position()
    assert rate == device.roof(intensity) < device.peak


def test_the_ridge_of_the_roof_is_peak_over_bandwidth():
    axes = roofline_figure(Roofline((RooflineOp("multiply", "product", 100.0, 10.0, 1.0),), 80.0, 20.0)).axes[0]
    assert list(axes.lines[0].get_xdata())[1] == 4.0
    assert list(axes.lines[0].get_ydata())[1:] == [80.0, 80.0]


@pytest.mark.parametrize(("subject", "words"), [("links", "Which links are used most?"), ("roofline", "limited by")])
def test_simulate_draws_a_subject_with_the_job_in_its_title(capsys, tmp_path, subject, words):
    path = tmp_path / "figure.svg"
    ended = called(capsys, *JOB, "--plot-of", subject, "--plot", path)
    assert (ended.status, ended.out) == (0, called(capsys, *JOB).out)
    figure = path.read_text()
    assert words in figure
    assert "m=512 k=1024 n=256" in figure


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--plot-of", "links"], "--plot FILE is needed"),
        (["--plot-of", "heat", "--plot", "a.svg"], "timeline, links, roofline"),
        (["--plot-of", "links", "--plot", "a.gif"], "one of png, svg, pdf is needed"),
        (["--plot-of", "links", "--plot", "a.svg", "--ranks", "0"], "leave out --ranks"),
    ],
)
def test_bad_figures_are_refused_in_a_line(capsys, words, message):
    ended = called(capsys, *JOB, *words)
    assert ended.status == 2
    assert message in ended.line


@pytest.mark.parametrize(
    "words", [["--matmul", "512,1024,256", "--grid", "z=2,x=2"], [*GPT.split(), "--grid", "z=2,x=2"]]
)
def test_the_ops_of_a_record_are_those_of_its_prediction(words):
    job = prepared(words)
    record, prediction = record_and_prediction(job)
    recorded, predicted = recorded_ops(job, record), roofline_ops(job, prediction.timeline)
    assert [op.name for op in recorded] == [op.name for op in predicted]
    for summed, single in zip(recorded, predicted, strict=True):
        assert summed.rate == pytest.approx(single.rate)
        assert summed.intensity == pytest.approx(single.intensity)


def test_ops_of_a_pipeline_have_the_rate_of_the_stage_that_runs_them():
    job = prepared([*GPT.split(), "--micro_batch", "4", "--grid", "pipeline=2"])
    record, prediction = record_and_prediction(job, granularity="exact")
    rates = {op.name: op.rate for op in roofline_ops(job, prediction.timeline)}
    logits = [op for op in recorded_ops(job, record) if "logits" in op.name]
    assert logits
    assert all(op.rate == pytest.approx(rates[op.name]) for op in logits)


@pytest.mark.parametrize("order", ["z,x,y", "auto"])
def test_explain_draws_the_roofline_of_a_record(capsys, tmp_path, order):
    record, figure = tmp_path / "record.json", tmp_path / "figure.svg"
    assert called(capsys, *JOB, "--order", order, "--json", record).status == 0
    ended = called(capsys, "explain", record, "--plot-of", "roofline", "--plot", figure)
    assert (ended.status, ended.err) == (0, "")
    assert "limited by" in figure.read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": None}, "names no machine"),
        ({"machine": {"name": "perlmutter", "sha256": "0" * 64}}, "is not as"),
        ({"provenance": None}, "its record names no command line: a record of simulate or run is accepted"),
    ],
)
def test_a_record_without_its_machine_has_no_roofline(capsys, tmp_path, changes, words):
    record, figure = tmp_path / "record.json", tmp_path / "figure.svg"
    assert called(capsys, *JOB, "--json", record).status == 0
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))
    ended = called(capsys, "explain", record, "--plot-of", "roofline", "--plot", figure)
    assert (ended.status, figure.exists()) == (2, False)
    assert words in ended.line


def test_links_by_passes_are_refused_before_the_simulation(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("quadrille.experiments.predict.predict.record_and_prediction", None)
    words = ["simulate", *GPT.split(), "--micro-batch", "1", "--grid", "pipeline=2", "--machine", "perlmutter"]
    flags = ["--granularity", "passes", "--plot-of", "links", "--plot", tmp_path / "a.svg", "--quiet"]
    assert "a prediction by passes counts no links" in called(capsys, *words, *flags).line


@pytest.mark.parametrize("subject", ["links", "roofline"])
def test_a_prediction_by_passes_says_what_it_lacks(capsys, tmp_path, subject):
    words = ["simulate", *GPT.split(), "--micro-batch", "1", "--grid", "pipeline=2", "--machine", "perlmutter"]
    flags = ["--granularity", "passes", "--quiet", "--plot-of", subject, "--plot", tmp_path / "a.svg"]
    ended = called(capsys, *words, *flags)
    assert ended.status == 2
    last = ended.err.splitlines()[-1]
    assert "a prediction by passes" in last
    assert "--granularity collective" in last


def test_a_run_draws_its_timeline_alone(capsys):
    ended = called(capsys, "run", "--matmul", "8,8,8", "--plot-of", "links", "--plot", "a.svg")
    assert ended.status == 2 and "quadrille simulate draws links" in ended.line
