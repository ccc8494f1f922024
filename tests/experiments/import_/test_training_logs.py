"""Step times, rates and memory in logs of training programs."""

import random

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.experiments.import_.training_logs import is_training_log, read_training_log
from tests.support.training_logs import megatron_log

MEGATRON = megatron_log([5000.0, 1100.0, 1200.5, 1300.0])


def written(tmp_path, content):
    path = tmp_path / "train.log"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_the_first_iteration_is_left_out_and_memory_is_in_mebibytes(tmp_path):
    read = read_training_log(written(tmp_path, MEGATRON))
    assert read.seconds == pytest.approx((1.1, 1.2005, 1.3))
    assert (read.left_out, read.memory_bytes, read.flops_per_second_per_gpu) == (1, 2**31, 100e12)
    assert dict(read.sizes) == {
        "global_batch_size": 8, "hidden_size": 64, "num_layers": 2, "seq_length": 32, "world_size": 2,
    }  # fmt: skip


def test_a_fifth_of_many_iterations_is_left_out_and_a_single_one_counts(tmp_path):
    many = read_training_log(written(tmp_path, megatron_log([1000.0] * 11)))
    assert (many.left_out, len(many.seconds)) == (3, 8)
    single = read_training_log(written(tmp_path, megatron_log([1000.0])))
    assert (single.left_out, single.seconds) == (0, (1.0,))


def test_the_largest_memory_of_all_ranks_counts(tmp_path):
    more = MEGATRON + "[Rank 1] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 4096.0 | x\n"
    assert read_training_log(written(tmp_path, more)).memory_bytes == 2**32


@pytest.mark.parametrize(
    ("lines", "seconds", "tokens", "flops"),
    [
        ("Step Time : 1.50s GPU utilization: 412.5MODEL_TFLOP/s/GPU\n" * 2, (1.5,), (), 412.5e12),
        ("| train_step_timing in s: 2.250 |\n" * 3, (2.25, 2.25), (), 0.0),
        ("step: 10  memory: 30.00GiB(38%)  tps: 7,000  tflops: 41.20  mfu: 13.3%\n" * 2, (), (7000.0,), 41.2e12),
        ("node-01: elapsed time per iteration (ms): 76015.3 | TFLOPs: 147.61 |\n", (76.0153,), (), 147.61e12),
    ],
)  # fmt: skip
def test_lines_of_other_programs_are_read(lines, seconds, tokens, flops, tmp_path):
    path = written(tmp_path, "\x1b[32m" + lines)
    assert is_training_log(path)
    read = read_training_log(path)
    assert read.seconds == pytest.approx(seconds)
    assert read.tokens_per_second_per_gpu == tokens
    assert read.flops_per_second_per_gpu == pytest.approx(flops)


@pytest.mark.parametrize("content", [b"", b"{}", b"hello\n", b"\x1f\x8b\x08", b"\0\1\2", b'{"tps: 7": 1}'])
def test_other_files_are_no_logs(content, tmp_path):
    assert not is_training_log(written(tmp_path, content))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("elapsed time per iteration (ms): 0.0 |", "a step of 0"),
        ("elapsed time per iteration (ms): 1e99 |", "line 1: 1e.99"),
        ("elapsed time per iteration (ms): nan |", "no line has the time"),
        ("tps: 0", "a step of 0"),
    ],
)
def test_impossible_times_are_refused(line, words, tmp_path):
    with pytest.raises(InputError, match=words):
        read_training_log(written(tmp_path, line))


def test_a_damaged_log_ends_in_times_or_in_one_line(tmp_path):
    draw = random.Random("training logs")
    for _ in range(200):
        content = bytearray(MEGATRON.encode())
        for _ in range(draw.randint(1, 6)):
            at = draw.randrange(len(content))
            piece = draw.choice((b"\xff\xfe", b"9" * 40, b"e999", b"\n", b"", b"-", b"\0"))
            content[at : at + draw.randint(0, 30)] = piece
        try:
            read = read_training_log(written(tmp_path, bytes(content[: draw.randint(1, len(content))])))
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert all(0 < seconds < 1e12 for seconds in read.seconds)
