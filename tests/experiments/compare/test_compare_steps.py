"""A predicted step beside the steps of a log, or beside one number."""

import json

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import load_record
from quadrille.cli.main import main
from quadrille.experiments.compare.compare_steps import compare_steps, parse_measured
from tests.support.training_logs import megatron_log

GPT = "layers=2,hidden=64,heads=4,sequence=32,vocabulary=128"
STEP = ["simulate", "--gpt", GPT, "--batch", "8", "--grid", "data=2", "--dtype", "bfloat16", "--machine", "a100-node"]


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    """The path of a predicted record of a small GPT on two GPUs."""
    path = tmp_path_factory.mktemp("steps") / "predicted.json"
    assert main([*STEP, "--quiet", "--json", str(path)]) == 0
    return path


def test_a_rate_is_the_time_of_the_batch_on_all_gpus(predicted):
    record = load_record(predicted)
    tokens = compare_steps(record, parse_measured("1000tokens/s/gpu"))
    assert tokens.seconds.measured == pytest.approx(8 * 32 / 2 / 1000)
    again = compare_steps(record, parse_measured(f"{record.model_flops_per_second_per_gpu / 2 / 1e12}TFLOP/s/gpu"))
    assert again.relative_error == pytest.approx(-0.5)
    twice = compare_steps(record, parse_measured(f"{record.seconds_per_iteration * 2}s"))
    assert twice.relative_error == pytest.approx(-0.5)
    assert twice.tokens_per_second_per_gpu.predicted == pytest.approx(128 / record.seconds_per_iteration)


def test_a_log_gives_the_median_without_warm_up_and_a_verdict(predicted, tmp_path, capsys):
    log, out = tmp_path / "train.log", tmp_path / "compared.json"
    log.write_text(megatron_log([9000.0, 1000.0, 2000.0, 3000.0]))
    assert main(["compare", str(predicted), str(log), "--json", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("A step is predicted to take ")
    assert "took 2.00 s (median of 3 steps" in printed.out.splitlines()[0]
    assert "the first 1 line" in printed.err
    compared = json.loads(out.read_text())
    assert compared["schema"] == "quadrille/step-comparison/1"
    assert compared["seconds"]["measured"] == 2.0
    assert (compared["steps"], compared["left_out"], compared["within_noise"]) == (3, 1, False)
    assert compared["memory_bytes"]["measured"] == 2**31


def test_a_log_of_another_job_is_refused_with_all_differences(predicted, tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text(megatron_log([1000.0], batch=16, gpus=4))
    assert main(["compare", str(predicted), str(log)]) == 2
    refused = capsys.readouterr().err
    assert "world_size 2 predicted, 4 measured; global_batch_size 8 predicted, 16 measured" in refused
    assert refused.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("17", None), ("17.2 s", None), ("2,357 tokens/s/GPU", None), ("412 TFLOPS/GPU", None), ("", "--measured"),
        ("fast", "--measured 'fast'"), ("0s", "--measured '0s'"), ("-1s", "--measured"), ("nans", "--measured"),
        ("5tokens/s", "tokens/s/gpu"), ("412TFLOP/s", "TFLOP/s/gpu"), ("1e999tokens/s/gpu", "--measured"),
    ],
)  # fmt: skip
def test_values_are_times_or_rates_of_a_gpu(text, words):
    if words is None:
        assert parse_measured(text).name == text
        return
    with pytest.raises(InputError, match=words):
        parse_measured(text)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "needs one measurement"),
        (["x.log", "--measured", "1s"], "needs one measurement"),
        (["--measured", "1s", "--plot", "x.svg"], "--plot"),
        (["--measured", "1s", "--timelines", "a", "b"], "--timelines"),
    ],
)
def test_flags_that_do_not_go_together_are_one_line(predicted, flags, words, capsys):
    assert main(["compare", str(predicted), *flags]) == 2
    refused = capsys.readouterr().err
    assert words in refused
    assert refused.count("\n") == 1


def test_a_matmul_has_a_time_and_no_tokens(tmp_path, capsys):
    path = str(tmp_path / "matmul.json")
    words = ["simulate", "--matmul", "64,64,64", "--grid", "z=2", "--machine", "perlmutter", "--quiet", "--json", path]
    assert main(words) == 0
    assert main(["compare", path, "--measured", "1ms"]) == 0
    capsys.readouterr()
    assert main(["compare", path, "--measured", "5tokens/s/gpu"]) == 2
    assert "need a model with tokens" in capsys.readouterr().err
