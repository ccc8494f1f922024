"""`quadrille compare PREDICTED LOG` and `--measured VALUE`: a predicted step beside measured steps of another program.

Only totals are compared: such a measurement has no ops.  A rate becomes a time by the batch, the GPUs and the
operations of the predicted record:

    seconds = tokens of the batch / (GPUs · tokens/s/GPU) = operations of a step on a GPU / (flop/s/GPU)
"""

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.field_units import Seconds, Share, in_unit
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.percentiles import percentiles
from quadrille.algorithms.formats.record import Record, device_bytes, interval_known, load_record
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.units import LONGEST_SECONDS, format_bytes, format_seconds, parse_flops, parse_seconds
from quadrille.experiments.compare.compare_records import relative_error
from quadrille.experiments.compare.comparison import PredictedAndMeasured
from quadrille.experiments.import_.training_logs import StepMeasurement
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.tables import Row, duration, percent, print_tables, table
from quadrille.runtime.host.console import remark_all

SCHEMA = "quadrille/step-comparison/1"
TOKENS_PER_GPU = re.compile(r"\s*([0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?)\s*tokens?/s(/gpu)?\s*", re.IGNORECASE)
FLOPS_PER_GPU = re.compile(r"(.*flop/?s)/gpu\s*", re.IGNORECASE)
TERA = 1e12
ACCEPTED = "a time such as 17.2s, or a rate such as 2357tokens/s/gpu or 412TFLOP/s/gpu, is accepted"


class StepComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A predicted training step beside measured ones.

    Parameters
    ----------
    predicted, measured : names of the record and of the measurement
    seconds : time of a step
    relative_error : predicted / measured - 1
    measured_low_seconds, measured_high_seconds : 5th and 95th percentile of the measured times
    steps, left_out : measured steps that count, and steps before them
    within_noise : whether the prediction is between both percentiles; null for a single time
    tokens_per_second_per_gpu, flops_per_second_per_gpu, memory_bytes : the same step as rates, and memory of a GPU;
        null where one of both sides is unknown
    verdict : the result in a sentence
    """

    predicted: str
    measured: str
    seconds: Annotated[PredictedAndMeasured, in_unit("s")]
    relative_error: Share | None
    measured_low_seconds: Seconds
    measured_high_seconds: Seconds
    steps: int
    left_out: int
    within_noise: bool | None
    tokens_per_second_per_gpu: Annotated[PredictedAndMeasured, in_unit("1")] | None
    flops_per_second_per_gpu: Annotated[PredictedAndMeasured, in_unit("FLOP/s")] | None
    memory_bytes: Annotated[PredictedAndMeasured, in_unit("B")] | None
    verdict: str
    provenance: Provenance | None = None


def parse_measured(text: str) -> StepMeasurement:
    """The measurement that a text names.

    >>> parse_measured("17.2s").seconds, parse_measured("2,357 tokens/s/gpu").tokens_per_second_per_gpu
    ((17.2,), (2357.0,))
    >>> parse_measured("412TFLOP/s/gpu").flops_per_second_per_gpu
    412000000000000.0

    Raises
    ------
    InputError : neither a time nor a rate
    """
    try:
        if tokens := TOKENS_PER_GPU.fullmatch(text):
            if not tokens[2]:
                raise InputError("tokens/s of all GPUs")
            measurement = StepMeasurement(text, tokens_per_second_per_gpu=(float(tokens[1].replace(",", "")),))
        elif flops := FLOPS_PER_GPU.fullmatch(text):
            measurement = StepMeasurement(text, flops_per_second_per_gpu=parse_flops(flops[1]))
        else:
            measurement = StepMeasurement(text, seconds=(parse_seconds(text),))
    except InputError:
        raise InputError(f"--measured {text!r:.60}: {ACCEPTED}") from None
    values = (*measurement.seconds, *measurement.tokens_per_second_per_gpu, measurement.flops_per_second_per_gpu)
    if not 0 < max(values) < LONGEST_SECONDS * TERA:
        raise InputError(f"--measured {text!r:.60}: {ACCEPTED}, above 0")
    return measurement


def report_steps(predicted: str, measurement: StepMeasurement, to: Destinations, origin: Provenance) -> None:
    """Prints the comparison of a predicted record with measured steps, and writes the requested JSON.

    Raises
    ------
    InputError : a record that is not predicted, that is of another job, or that lacks what a rate needs
    """
    record = load_record(predicted)
    comparison = msgspec.structs.replace(compare_steps(record, measurement, predicted), provenance=origin)
    if to.json:
        schema_files.write_json(to.json, comparison, SCHEMA)
    if not to.to_stdout:
        print(f"{comparison.verdict}\n")
        print_tables(table("", ("", "predicted", "measured", "error"), list(_rows(comparison))))
    remark_all(_remarks(record, measurement))


def compare_steps(record: Record, measurement: StepMeasurement, name: str = "") -> StepComparison:
    """The comparison of a predicted record with measured steps.

    Raises
    ------
    InputError : as `report_steps`
    """
    if record.kind != "predicted":
        raise InputError(f"{name}: the record is measured: a predicted one is needed first")
    _check_sizes(record, measurement)
    times = percentiles(_seconds(record, measurement))
    if not 0 < times.median <= LONGEST_SECONDS:
        raise InputError(f"{measurement.name}: a step of {times.median:g} s: a time above 0 is accepted")
    predicted, steps = (
        _step_seconds(record),
        max(len(measurement.seconds), len(measurement.tokens_per_second_per_gpu), 1),
    )
    comparison = StepComparison(
        predicted=name,
        measured=measurement.name,
        seconds=PredictedAndMeasured(predicted, times.median),
        relative_error=relative_error(predicted, times.median),
        measured_low_seconds=times.low,
        measured_high_seconds=times.high,
        steps=steps,
        left_out=measurement.left_out,
        within_noise=times.low <= predicted <= times.high if steps > 1 else None,
        tokens_per_second_per_gpu=_tokens(record, predicted, times.median),
        flops_per_second_per_gpu=_flops(record, predicted, times.median, measurement.flops_per_second_per_gpu),
        memory_bytes=_memory(record, measurement.memory_bytes),
        verdict="",
    )
    return msgspec.structs.replace(comparison, verdict=_verdict(comparison, record))


def _step_seconds(record: Record) -> float:
    """The predicted time of a step, or of the run of a record that has no steps [s]."""
    return record.seconds_per_iteration or record.seconds


def _step_tokens(record: Record) -> int:
    """Tokens of a batch; 0 if the workload has no tokens."""
    gpt = record.workload.gpt
    return gpt.batch * gpt.sequence if gpt is not None else 0


def _seconds(record: Record, measurement: StepMeasurement) -> tuple[float, ...]:
    """The measured times of a step [s]."""
    if measurement.seconds:
        return measurement.seconds
    if rates := measurement.tokens_per_second_per_gpu:
        if not _step_tokens(record):
            raise InputError(
                f"{measurement.name}: tokens/s need a model with tokens: a time, such as 17.2s, is accepted"
            )
        return tuple(_step_tokens(record) / (record.ranks * rate) for rate in rates)
    work = (record.model_flops_per_second_per_gpu or 0.0) * _step_seconds(record)
    if not work:
        raise InputError(f"{measurement.name}: flop/s need training steps: a time, such as 17.2s, is accepted")
    return (work / measurement.flops_per_second_per_gpu,)


def _check_sizes(record: Record, measurement: StepMeasurement) -> None:
    """Checks that the sizes that a log prints are those of the record.

    Raises
    ------
    InputError : all sizes that differ
    """
    gpt = record.workload.gpt
    if gpt is None:
        return
    predicted = {
        "global_batch_size": gpt.batch,
        "world_size": record.ranks,
        "num_layers": gpt.layers,
        "hidden_size": gpt.hidden,
        "seq_length": gpt.sequence,
    }
    different = [
        f"{name} {predicted[name]} predicted, {size} measured"
        for name, size in measurement.sizes
        if predicted[name] != size
    ]
    if different:
        raise InputError(f"{measurement.name}: another job than predicted: {'; '.join(different)}")


def _tokens(record: Record, predicted: float, measured: float) -> PredictedAndMeasured | None:
    tokens = _step_tokens(record) / record.ranks
    return PredictedAndMeasured(tokens / predicted, tokens / measured) if tokens and predicted > 0 else None


def _flops(record: Record, predicted: float, measured: float, printed: float) -> PredictedAndMeasured | None:
    """The rate of both sides: as the program printed it, or as the record counts operations."""
    rate = record.model_flops_per_second_per_gpu or 0.0
    return PredictedAndMeasured(rate, printed or rate * predicted / measured) if rate else None


def _memory(record: Record, measured: float) -> PredictedAndMeasured | None:
    predicted = device_bytes(record.memory_bytes_by_kind or {}) or record.peak_bytes_per_rank_max
    return PredictedAndMeasured(float(predicted), measured) if measured and predicted else None


def _rows(comparison: StepComparison) -> Iterator[Row]:
    rows = (
        ("step", comparison.seconds, duration),
        ("tokens/s per GPU", comparison.tokens_per_second_per_gpu, lambda rate: f"{rate:,.4g}"),
        ("TFLOP/s per GPU", comparison.flops_per_second_per_gpu, lambda rate: f"{rate / TERA:.4g}"),
        ("memory of a GPU", comparison.memory_bytes, format_bytes),
    )
    for name, both, shown in rows:
        if both is not None:
            error = percent(relative_error(both.predicted, both.measured))
            yield (name, shown(both.predicted), shown(both.measured), error)


def _verdict(comparison: StepComparison, record: Record) -> str:
    """The result in a sentence."""
    seconds, error = comparison.seconds, comparison.relative_error or 0.0
    low, high = map(format_seconds, (comparison.measured_low_seconds, comparison.measured_high_seconds))
    spread = f" (median of {comparison.steps} steps, {low} to {high})" if comparison.steps > 1 else ""
    way = "too long" if error > 0 else "too short"
    noise = {True: ", within the noise", False: ", outside the noise", None: ""}[comparison.within_noise]
    size = f"{percent(abs(error), signed=False)} {way}{noise}"
    interval = ""
    if interval_known(record.seconds_low, record.seconds_high) and record.seconds > 0:
        scale = seconds.predicted / record.seconds
        holds = record.seconds_low * scale <= seconds.measured <= record.seconds_high * scale
        interval = f"; its interval {'holds' if holds else 'does not hold'} the measurement"
    return (
        f"A step is predicted to take {format_seconds(seconds.predicted)}, and took {format_seconds(seconds.measured)}"
        f"{spread}: the prediction is {size}{interval}."
    )


def _remarks(record: Record, measurement: StepMeasurement) -> Iterator[str]:
    if measurement.left_out:
        plural = "s" if measurement.left_out > 1 else ""
        yield f"{measurement.name}: the first {measurement.left_out} line{plural} with a time left out as warm-up"
    if measurement.flops_per_second_per_gpu and record.workload.gpt is not None:
        yield "flop/s are compared as printed: programs count attention and recomputation in different ways"
    if measurement.memory_bytes and record.options.software is msgspec.UNSET:
        yield "the predicted memory is that of the schedule's buffers: --software megatron counts that of Megatron-LM"
