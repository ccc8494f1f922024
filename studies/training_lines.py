"""What a person reads of training steps: losses, rates, exposed communication and memory, a line each."""

from collections.abc import Iterator

from msgspec import UNSET

from algorithms.record import Record, Workload
from algorithms.units import format_bytes, format_seconds

LOSSES_SHOWN = 12
GIGA, TERA = 1e9, 1e12
USUAL_OPTIONS = {
    "zero": 0,
    "micro_batch": None,
    "interleave": 1,
    "recompute": "selective",
    "gradient_bytes": 4,
    "steps": 1,
    "clip": 0.0,
}
"""What the options of training steps are unless they are given."""


def workload_words(workload: Workload) -> str:
    """Sizes of what was computed.

    >>> from algorithms.record import Matmul, Mlp
    >>> workload_words(Workload(Matmul(2, 3, 5))), workload_words(Workload(mlp=Mlp((4, 8, 2), 6)))
    ('m=2 k=3 n=5', 'mlp 4,8,2 of 6 rows')
    """
    if workload.matmul is not None:
        sizes = workload.matmul
        return f"m={sizes.m} k={sizes.k} n={sizes.n}"
    if workload.mlp is not None:
        return f"mlp {','.join(map(str, workload.mlp.widths))} of {workload.mlp.rows} rows"
    gpt = workload.gpt
    assert gpt is not None
    return (
        f"gpt of {gpt.layers} layers, hidden {gpt.hidden}, {gpt.heads} heads, vocabulary {gpt.vocabulary}, "
        f"{gpt.batch} sequence{'s' if gpt.batch > 1 else ''} of {gpt.sequence}"
    )


def workload_flags(made: Record) -> list[str]:
    """The flags that name what a record is of, and its algorithm or scheme."""
    work, options = made.workload, made.options
    if work.matmul is not None:
        sizes = work.matmul
        return [f"--matmul {sizes.m},{sizes.k},{sizes.n}", f"--algorithm {made.algorithm}"]
    if work.mlp is not None:
        words = [f"--mlp {','.join(map(str, work.mlp.widths))} --batch {work.mlp.rows}"]
    else:
        assert work.gpt is not None
        sizes_of = {name: getattr(work.gpt, name) for name in work.gpt.__struct_fields__ if name != "batch"}
        named = ",".join(f"{name}={size}" for name, size in sizes_of.items())
        words = [f"--gpt {named} --batch {work.gpt.batch}"]
    words += [f"--scheme {made.algorithm}"]
    words += ["--sequence-parallel"] if options.sequence_parallel is True else []
    for name, usual in USUAL_OPTIONS.items():
        value = getattr(options, name)
        if value is not UNSET and value != usual:
            words.append(f"--{name.replace('_', '-')} {value}")
    return words


def training_lines(made: Record) -> Iterator[str]:
    """What a record of training steps says beside the total; nothing of a multiplication."""
    if made.seconds_per_iteration is UNSET:
        return
    if losses := made.losses or ():
        yield _losses(losses)
    yield f"iteration: {format_seconds(made.seconds_per_iteration)}, {_rates(made)}"
    if exposed := made.exposed_seconds_by_axis or {}:
        words = ", ".join(f"{axis} {format_seconds(seconds)}" for axis, seconds in exposed.items())
        yield f"exposed communication of all steps: {words}"
    if kinds := made.memory_bytes_by_kind or {}:
        words = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in kinds.items() if size)
        yield f"memory of a rank: {format_bytes(sum(kinds.values()))}: {words}"
    if made.fits is False:
        where = made.machine.name if made.machine is not None else "the machine"
        yield f"DOES NOT FIT in the memory of a device of {where}"


def _losses(losses: tuple[float | None, ...]) -> str:
    """Loss of each step; of many, the first and the last ones."""
    words = ["not a number" if loss is None else f"{loss:.6g}" for loss in losses]
    if len(words) > LOSSES_SHOWN:
        half = LOSSES_SHOWN // 2
        words = [*words[:half], "…", *words[-half:]]
    return f"loss of each step: {', '.join(words)}"


def _rates(made: Record) -> str:
    """Model and hardware flop, by seconds and GPUs, and percent of the peak of the device."""
    model, hardware = made.model_flops_per_second_per_gpu, made.hardware_flops_per_second_per_gpu
    if not model or not hardware:
        return "no rate"
    words = f"{_rate(model)} per rank of the model, {_rate(hardware)} with what is made again"
    return words + (f"; {made.percent_of_peak:.3g} % of peak" if made.percent_of_peak else "")


def _rate(flops_per_second: float) -> str:
    """A rate in words.

    >>> _rate(57e12), _rate(5.29e8)
    ('57 TFLOP/s', '0.529 GFLOP/s')
    """
    tera = flops_per_second >= TERA / 10
    return f"{flops_per_second / (TERA if tera else GIGA):.4g} {'T' if tera else 'G'}FLOP/s"
