"""Training logs: the step times, rates and memory that a program prints, as a `StepMeasurement`.

    program                        line                                                             gives
    Megatron-LM, -DeepSpeed        … elapsed time per iteration (ms): 1234.5 | … TFLOP/s/GPU): 412  seconds, flop/s
                                   … global batch size: 128 | …                                     sequences
                                   … memory (MB) | allocated: … | max allocated: 68581.8 | …        peak of memory
    Megatron-Bridge                Step Time : 1.23s GPU utilization: 412.3MODEL_TFLOP/s/GPU         seconds, flop/s
    NeMo                           … train_step_timing in s: 1.23 …                                 seconds
    torchtitan                     … memory: 30.1GiB(38%) tps: 7,000 tflops: 41.2 …                 tokens/s/GPU, flop/s

The first iterations warm up: the first fifth of the lines with a time, and at least one, is left out where there are
two lines or more.  The peak of memory is the largest that any rank prints.  Other lines are ignored.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from math import ceil
from typing import IO

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import open_regular
from quadrille.algorithms.units import LONGEST_SECONDS

NUMBER = r"([0-9][0-9,]{0,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?)"
MILLISECONDS = re.compile(rf"elapsed time per iteration \(ms\): ?{NUMBER}")
SECONDS = re.compile(rf"(?:\bStep Time ?: ?|\btrain_step_timing in s: ?){NUMBER}")
TOKENS = re.compile(rf"\btps: ?{NUMBER}\b")
TERAFLOPS = re.compile(
    rf"(?:TFLOP/s/GPU\): ?|\bTFLOPs: ?|\btflops: ?|GPU utilization: ?){NUMBER}(?:MODEL_TFLOP/s/GPU)?"
)
BATCH = re.compile(r"global batch size: {0,12}([0-9]{1,12}) \|")
MEGABYTES = re.compile(rf"max allocated: ?{NUMBER}")
TITAN_MEMORY = re.compile(rf"\bmemory: ?{NUMBER}GiB")
ARGUMENT = re.compile(r"^.{0,64}?\b(world_size|num_layers|hidden_size|seq_length) \.{2,} {0,4}([0-9]{1,12})\s*$")
MIB, GIB, TERA, KILO = 2**20, 2**30, 1e12, 1e3
LONGEST_LINE = 2**16
MOST_LINES = 10_000_000
MOST_SEARCHED = 2**26
"""Bytes at the beginning of a log that are searched for its first step."""
WARM_UP_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class StepMeasurement:
    """Measured training steps.

    Parameters
    ----------
    name : name of the file, or the text that was typed
    seconds : time of each step that counts [s]; empty if only a rate is known
    tokens_per_second_per_gpu : rate of each step that counts, where no times are known; else empty
    flops_per_second_per_gpu : median of the printed rate [flop/s]; 0 if unknown
    memory_bytes : largest printed peak of allocated memory; 0 if unknown
    left_out : lines left out as warm-up
    sizes : sizes that the log prints, by Megatron-LM's name of the argument
    """

    name: str
    seconds: tuple[float, ...] = ()
    tokens_per_second_per_gpu: tuple[float, ...] = ()
    flops_per_second_per_gpu: float = 0.0
    memory_bytes: float = 0.0
    left_out: int = 0
    sizes: tuple[tuple[str, int], ...] = ()


def is_training_log(path: str) -> bool:
    """Whether a file is a text with the time or the rate of a training step in a line.

    Raises
    ------
    InputError : a file that cannot be read
    """
    with _opened(path) as file:
        if file.read(1) in (b"{", b"\x1f", b""):
            return False
        file.seek(0)
        lines = takewhile(lambda _: file.tell() < MOST_SEARCHED, _lines(file))
        return any(map(is_step_line, lines))


def is_step_line(line: str) -> bool:
    """Whether a line has the time or the rate of a training step."""
    return any(pattern.search(line) for pattern in (MILLISECONDS, SECONDS, TOKENS))


def read_training_log(path: str) -> StepMeasurement:
    """The measured steps in a log.

    Raises
    ------
    InputError : a file that cannot be read, without a time, or with a time that no step takes
    """
    seconds, tokens, flops, memory = list[float](), list[float](), list[float](), 0.0
    sizes: dict[str, int] = {}
    with _opened(path) as file:
        for number, line in enumerate(_lines(file), 1):
            where = f"{path}: line {number}"
            seconds += [value / KILO for value in _numbers(MILLISECONDS, line, where)]
            seconds += _numbers(SECONDS, line, where)
            tokens += _numbers(TOKENS, line, where)
            flops += [value * TERA for value in _numbers(TERAFLOPS, line, where)]
            megabytes, gibibytes = _numbers(MEGABYTES, line, where), _numbers(TITAN_MEMORY, line, where)
            memory = max([memory, *(MIB * value for value in megabytes), *(GIB * value for value in gibibytes)])
            sizes.update(_sizes(line))
    if not seconds and not tokens:
        raise InputError(f"{path}: no line has the time of a training step, such as `elapsed time per iteration (ms):`")
    if impossible := [value for value in (*seconds, *tokens) if not 0 < value <= LONGEST_SECONDS]:
        raise InputError(
            f"{path}: a step of {impossible[0]:g}: a number above 0 and up to {LONGEST_SECONDS:g} is accepted"
        )
    counted = seconds or tokens
    left_out = max(1, ceil(WARM_UP_SHARE * len(counted))) if len(counted) > 1 else 0
    later = sorted(flops[left_out:] or flops)
    return StepMeasurement(
        path,
        tuple(seconds[left_out:]),
        () if seconds else tuple(tokens[left_out:]),
        later[len(later) // 2] if later else 0.0,
        memory,
        left_out,
        tuple(sizes.items()),
    )


def _opened(path: str) -> IO[bytes]:
    try:
        return open_regular(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _lines(file: IO[bytes]) -> Iterator[str]:
    """The lines of a text, each at most `LONGEST_LINE` bytes long; bytes that are not UTF-8 are replaced."""
    for _ in range(MOST_LINES):
        line = file.readline(LONGEST_LINE)
        if not line:
            return
        yield line.decode("utf-8", errors="replace")


def _numbers(pattern: re.Pattern[str], line: str, where: str) -> list[float]:
    """The numbers that a pattern finds in a line.

    Raises
    ------
    InputError : a number that is not finite
    """
    numbers = [float(text.replace(",", "")) for text in pattern.findall(line)]
    if any(number > 1e30 for number in numbers):
        raise InputError(f"{where}: {max(numbers):g}: a number up to 1e30 is accepted")
    return numbers


def _sizes(line: str) -> Iterator[tuple[str, int]]:
    """The sizes of the job in a line of the arguments, or of an iteration."""
    if match := BATCH.search(line):
        yield "global_batch_size", int(match[1])
    if match := ARGUMENT.match(line):
        yield match[1], int(match[2])
