"""The verdict of a record: a sentence to quote, and at most four points beside it."""

from collections.abc import Iterator

from msgspec import UNSET

from quadrille.algorithms.formats.record import Record, device_bytes
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.explain.explanation import FULL, ExplainedLink, Explanation, is_link
from quadrille.experiments.output.tables import percent
from quadrille.experiments.records.record_table import shares, verification_line
from quadrille.experiments.report.amounts import flops_text
from quadrille.experiments.report.elements import sentence
from quadrille.experiments.workloads.training_lines import (
    approximation_lines,
    expert_load_lines,
    memory_warning,
    model_name,
    throughput,
)

MOST_POINTS = 4


def record_verdict(record: Record, memory_bytes: float) -> str:
    """The answer of a record in a sentence: time, rate, use of the peak, memory, and what takes most of the time.

    Parameters
    ----------
    memory_bytes : memory of a device [B]; 0 if it is unknown
    """
    is_predicted = record.kind == "predicted"
    took = "is predicted to take" if is_predicted else "took"
    step = record.seconds_per_iteration
    has_steps = step is not UNSET and record.options.steps not in (UNSET, 1)
    each = f", {format_seconds(step)} a step" if has_steps and step is not UNSET else ""
    rates = f" ({', '.join(_rates(record))})" if any(_rates(record)) else ""
    time = f"{_work(record)} on {_where(record)} {took} {format_seconds(record.seconds)}{each}{rates}"
    more = [*_memory_words(record, memory_bytes), *_bound_words(record, "is" if is_predicted else "was")]
    return f"{', '.join([time, *more[:-1]])}{f' and {more[-1]}' if more else ''}."


def _work(record: Record) -> str:
    if record.workload.matmul is not None:
        return "The training pass of a matmul" if record.passes == "training" else "The matmul"
    model = model_name(record.workload.gpt) if record.workload.gpt is not None else ""
    of_model = f" of {model}" if model else ""
    return (
        f"A training step{of_model}"
        if record.options.steps in (UNSET, 1)
        else f"A run of {record.options.steps} training steps{of_model}"
    )


def _where(record: Record) -> str:
    where = f"{record.ranks:,} rank{'s' if record.ranks > 1 else ''}"
    return where + (f" of {record.machine.name}" if record.machine is not None else "")


def _rates(record: Record) -> Iterator[str]:
    """Tokens or rows per second and the MFU of a training step; FLOP/s of a matmul."""
    sizes = record.workload.matmul
    if sizes is not None:
        products = 3 if record.passes == "training" else 1
        if record.seconds > 0:
            yield flops_text(products * 2 * sizes.m * sizes.k * sizes.n / record.seconds)
        return
    if record.seconds_per_iteration is not UNSET:
        yield throughput(record).partition(", ")[0]
    model, hardware = record.model_flops_per_second_per_gpu, record.hardware_flops_per_second_per_gpu
    if model and hardware and record.percent_of_peak:
        yield f"MFU {record.percent_of_peak * model / hardware:.3g} %"


def _memory_words(record: Record, memory_bytes: float) -> Iterator[str]:
    kinds = record.memory_bytes_by_kind
    size = device_bytes(kinds) if kinds is not UNSET else record.peak_bytes_per_rank_max
    if not size or not memory_bytes or record.fits in (UNSET, None):
        return
    both = format_bytes(size), format_bytes(memory_bytes)
    yield (
        f"fits in memory ({both[0]} of {both[1]})"
        if record.fits
        else f"DOES NOT FIT in memory ({both[0]}, and a device has {both[1]})"
    )


def _bound_words(record: Record, is_or_was: str) -> Iterator[str]:
    for name, share in shares(record)[:1]:
        yield f"{is_or_was} bound by {name} ({100 * share:.3g} %)"


def record_points(record: Record, explanation: Explanation) -> list[str]:
    """At most four sentences beside the verdict, those that limit it first."""
    points = [sentence(line) for line in approximation_lines(record)]
    points += [sentence(line) for line in list(memory_warning(record))[1:]]
    points += [sentence(verification_line(record.verified))] if record.verified is not None else []
    points.append(sentence(record.interval_text))
    others = ", ".join(f"{name} {100 * share:.3g} %" for name, share in shares(record)[1:5])
    points += [f"After that come {others}."] if others else []
    points += link_points(explanation.links)
    points += [sentence(line) for line in expert_load_lines(record)]
    return points[:MOST_POINTS]


def link_points(links: "tuple[ExplainedLink, ...]") -> Iterator[str]:
    """The sentence about the busiest link; none if no link is known."""
    first = next((link for link in links if is_link(link.link)), None)
    if first is None:
        return
    others = f" (and {first.alike - 1} more like it)" if first.alike > 1 else ""
    verdict = "it limits the run" if first.utilisation >= FULL else "no link is full all the time"
    use = percent(first.utilisation, signed=False)
    yield f"The busiest link, {first.link}{others}, is used to {use}, a mean over the run: {verdict}."
