"""A predicted record held against a measured one: errors in total, by kind of op and by op.

    relative error = predicted / measured - 1

raw, and with the drift of the machine taken out: the predicted seconds of each
op times its factor (`studies.comparing.drift`), the makespan times the mean factor of
its ops weighted by the seconds for which each is charged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from algorithms.errors import InputError
from algorithms.formats.percentiles import Percentiles, percentiles
from algorithms.formats.provenance import Provenance
from algorithms.formats.record import OpRecord, Options, Record, Workload
from algorithms.grid import AXES
from studies.comparing.attribution import Attribution, attribute
from studies.comparing.drift import Drift, drift, op_drift

SCHEMA = "quadrille/comparison/1"
OpPair = tuple[OpRecord, OpRecord]


class Both(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One quantity on both sides."""

    predicted: float
    measured: float


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds on both sides and their errors; null where not known.

    `spread` is that of the measurement over its repeats (`algorithms.formats.percentiles`).
    """

    predicted: float
    measured: float
    relative_error: float | None = None
    predicted_drift_removed: float | None = None
    relative_error_drift_removed: float | None = None
    spread: float | None = None


class OpComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One op on both sides."""

    name: str
    kind: str
    axis: str | None
    algorithm: str | None
    count: int
    seconds: Times
    waiting_seconds: Both
    exposed_seconds: Both
    extrapolated: bool


class KindComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All ops of one kind on both sides, their times summed."""

    kind: str
    ops: int
    seconds: Times
    waiting_seconds: Both
    exposed_seconds: Both


class Noise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the repeats of the measurement say about its errors.

    `within_noise`: the predicted seconds lie between the 5th and the 95th
    percentile of the repeats; null with a single repeat, which shows no noise.
    `interval_holds_measurement`: the measured median lies in the prediction
    interval.
    """

    repeats: int
    median_seconds: float
    low_seconds: float
    high_seconds: float
    spread: float | None
    within_noise: bool | None
    within_noise_drift_removed: bool | None
    predicted_low_seconds: float
    predicted_high_seconds: float
    interval_holds_measurement: bool


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What both records are about."""

    workload: Workload
    dtype: str
    passes: str
    algorithm: str
    grid: dict[str, int]
    order: tuple[str, ...]
    ranks: int
    options: Options
    backend: str


class FileNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which records were compared."""

    predicted: str
    measured: str


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A predicted and a measured record of one problem, side by side."""

    problem: Problem
    files: FileNames | None = None
    seconds: Times
    kinds: tuple[KindComparison, ...]
    ops: tuple[OpComparison, ...]
    attribution_seconds: Attribution = msgspec.field(name="attribution")
    noise: Noise
    drift: Drift
    bytes_sent_total: Both
    remarks: tuple[str, ...] = ()
    provenance: Provenance | None = None


def compare_records(predicted: Record, measured: Record) -> Comparison:
    """The comparison of two records of one problem.

    Raises
    ------
    InputError : two of the same kind, in the wrong order, of different problems, or a measurement of no time
    """
    _check_kinds(predicted, measured)
    _check_problems(predicted, measured)
    if measured.seconds <= 0:
        raise InputError(f"seconds = {measured.seconds} in the measured record: a time above 0 is needed")
    pairs = _pairs(predicted.ops, measured.ops)
    found = drift(predicted.reference, measured.reference, predicted.ops)
    spread = _makespans(measured).spread if measured.repeats > 1 else None
    seconds = _times(predicted.seconds, measured.seconds, found.total, spread)
    return Comparison(
        problem=problem(predicted),
        seconds=seconds,
        kinds=tuple(_compare_kinds(pairs, found)),
        ops=tuple(_compare_op(*pair, found) for pair in pairs),
        attribution_seconds=attribute(predicted.seconds - measured.seconds, pairs),
        noise=_noise(predicted, measured, seconds),
        drift=found,
        bytes_sent_total=Both(predicted.bytes_sent_total, measured.bytes_sent_total),
        remarks=tuple(_remarks(predicted, measured, found)),
    )


def problem(record: Record) -> Problem:
    """What the record is about, written in one way: every axis of the grid named, `own` by its full name."""
    options = record.options
    collectives = "own:ring" if options.collectives == "own" else options.collectives
    return Problem(
        workload=record.workload,
        dtype=record.dtype,
        passes=record.passes,
        algorithm=record.algorithm,
        grid={axis: record.grid.get(axis, 1) for axis in AXES},
        order=record.order,
        ranks=record.ranks,
        options=msgspec.structs.replace(options, overlap=tuple(sorted(options.overlap)), collectives=collectives),
        backend=record.backend,
    )


def same_problem_key(record: Record) -> bytes:
    """Equal for records of the same problem and for no others."""
    return msgspec.json.encode(problem(record), order="sorted")


def label(problem: Problem) -> str:
    """The problem in one line.

    >>> from algorithms.formats.record import Matmul
    >>> label(Problem(workload=Workload(Matmul(2, 3, 5)), dtype="float64", passes="forward", algorithm="4d",
    ...     grid={"data": 1, "z": 2, "y": 1, "x": 1}, order=("x", "y", "z", "data"), ranks=2, options=Options(),
    ...     backend="numpy"))
    '4d, matmul m=2 k=3 n=5, float64 forward, grid z=2 (2 ranks), own:ring'
    """
    sizes = _text(msgspec.to_builtins(problem.workload))
    grid = _text({axis: length for axis, length in problem.grid.items() if length > 1})
    ranks = f"grid {grid} ({problem.ranks} ranks)" if grid else "1 rank"
    more = [f"overlap {','.join(problem.options.overlap)}"] if problem.options.overlap else []
    parts = [problem.algorithm, sizes, f"{problem.dtype} {problem.passes}", ranks, problem.options.collectives, *more]
    return ", ".join(parts)


def relative_error(predicted: float | None, measured: float) -> float | None:
    """What was predicted over what was measured, less 1; none where nothing was predicted or no time measured.

    >>> relative_error(1.5, 2.0), relative_error(0.5, 0.0)
    (-0.25, None)
    """
    return None if predicted is None or measured <= 0 else predicted / measured - 1


def _check_kinds(predicted: Record, measured: Record) -> None:
    kinds = (predicted.kind, measured.kind)
    if kinds == ("measured", "predicted"):
        raise InputError("the first record is measured and the second predicted: give the predicted one first")
    if kinds != ("predicted", "measured"):
        raise InputError(f"both records are {predicted.kind}: a predicted and a measured one are needed")


def _check_problems(predicted: Record, measured: Record) -> None:
    """All that differs, in one message."""
    one, other = _fields(predicted), _fields(measured)
    different = [
        f"{name} {one.get(name, 'none')} predicted, {other.get(name, 'none')} measured"
        for name in {**one, **other}
        if one.get(name) != other.get(name)
    ]
    different += _different_algorithms(predicted, measured)
    if different:
        raise InputError(f"records of different problems: {'; '.join(different)}; the same are needed on both sides")


def _fields(record: Record) -> dict[str, str]:
    """The problem as names and text, its options and sizes under their own names."""
    fields = msgspec.to_builtins(problem(record))
    return {name: _text(value) for name, value in {**fields, **fields.pop("options")}.items() if name != "options"}


def _different_algorithms(predicted: Record, measured: Record) -> list[str]:
    measured_ops = {op.name: op.algorithm for op in measured.ops}
    names = ((op.name, op.algorithm, measured_ops.get(op.name)) for op in predicted.ops)
    return [
        f"algorithm of {name!r} {one} predicted, {other} measured"
        for name, one, other in names
        if one and other and one != other
    ]


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        inner = [
            f"{key} {_text(item)}" if isinstance(item, Mapping) else f"{key}={item}" for key, item in value.items()
        ]
        return " ".join(inner)
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _pairs(predicted: Sequence[OpRecord], measured: Sequence[OpRecord]) -> list[OpPair]:
    """Each op of either side with its like on the other, which took no time where it is missing."""
    one, other = _by_name(predicted, "predicted"), _by_name(measured, "measured")
    names = [*one, *(name for name in other if name not in one)]
    return [(one.get(name) or _absent(other[name]), other.get(name) or _absent(one[name])) for name in names]


def _by_name(ops: Sequence[OpRecord], kind: str) -> dict[str, OpRecord]:
    named = {op.name: op for op in ops}
    if len(named) < len(ops):
        twice = next(op.name for place, op in enumerate(ops) if op.name in {before.name for before in ops[:place]})
        raise InputError(f"op {twice!r} stands twice in the {kind} record: each name is needed once")
    return named


def _absent(op: OpRecord) -> OpRecord:
    """The op of the other side, not done here."""
    return OpRecord(name=op.name, kind=op.kind, axis=op.axis, algorithm=op.algorithm, count=0, seconds=0.0)


def _times(predicted: float, measured: float, factor: float | None, spread: float | None = None) -> Times:
    corrected = None if factor is None else predicted * factor
    return Times(
        predicted=predicted,
        measured=measured,
        relative_error=relative_error(predicted, measured),
        predicted_drift_removed=corrected,
        relative_error_drift_removed=relative_error(corrected, measured),
        spread=spread,
    )


def _compare_op(predicted: OpRecord, measured: OpRecord, found: Drift) -> OpComparison:
    factor = op_drift(found, predicted.kind)
    return OpComparison(
        name=predicted.name,
        kind=predicted.kind,
        axis=predicted.axis,
        algorithm=predicted.algorithm or measured.algorithm,
        count=max(predicted.count, measured.count),
        seconds=_times(predicted.seconds, measured.seconds, factor, _spread(measured.seconds_of_repeats)),
        waiting_seconds=Both(predicted.waiting_seconds, measured.waiting_seconds),
        exposed_seconds=Both(predicted.exposed_seconds, measured.exposed_seconds),
        extrapolated=predicted.extrapolated,
    )


def _compare_kinds(pairs: Iterable[OpPair], found: Drift) -> list[KindComparison]:
    kinds: dict[str, list[OpPair]] = {}
    for pair in pairs:
        kinds.setdefault(pair[0].kind, []).append(pair)
    return [_compare_kind(kind, members, op_drift(found, kind)) for kind, members in kinds.items()]


def _compare_kind(kind: str, members: Sequence[OpPair], factor: float | None) -> KindComparison:
    def both(quantity: Callable[[OpRecord], float]) -> Both:
        return Both(sum(quantity(one) for one, _ in members), sum(quantity(other) for _, other in members))

    seconds = both(lambda op: op.seconds)
    return KindComparison(
        kind=kind,
        ops=len(members),
        seconds=_times(seconds.predicted, seconds.measured, factor, _spread(_summed([op for _, op in members]))),
        waiting_seconds=both(lambda op: op.waiting_seconds),
        exposed_seconds=both(lambda op: op.exposed_seconds),
    )


def _summed(ops: Sequence[OpRecord]) -> list[float]:
    """Seconds of all these ops together, repeat by repeat; none unless every op was recorded in the same repeats."""
    counts = {len(op.seconds_of_repeats) for op in ops if op.count}
    if len(counts) != 1:
        return []
    return [sum(repeat) for repeat in zip(*(op.seconds_of_repeats for op in ops if op.count), strict=True)]


def _spread(seconds: Sequence[float]) -> float | None:
    """Over the repeats; one repeat has none, nor has an op that took no time."""
    found = percentiles(seconds) if len(seconds) > 1 else None
    return found.spread if found is not None and found.median > 0 else None


def _makespans(measured: Record) -> Percentiles:
    """Of the whole run [s], from its repeats or, where they are not kept, from the percentiles in the record."""
    if measured.seconds_of_repeats:
        return percentiles(measured.seconds_of_repeats)
    return Percentiles(measured.seconds_low, measured.seconds, measured.seconds_high)


def _noise(predicted: Record, measured: Record, seconds: Times) -> Noise:
    found = _makespans(measured)

    def within(time: float | None) -> bool | None:
        return None if time is None or measured.repeats < 2 else found.low <= time <= found.high

    return Noise(
        repeats=measured.repeats,
        median_seconds=found.median,
        low_seconds=found.low,
        high_seconds=found.high,
        spread=seconds.spread,
        within_noise=within(seconds.predicted),
        within_noise_drift_removed=within(seconds.predicted_drift_removed),
        predicted_low_seconds=predicted.seconds_low,
        predicted_high_seconds=predicted.seconds_high,
        interval_holds_measurement=predicted.seconds_low <= measured.seconds <= predicted.seconds_high,
    )


def _remarks(predicted: Record, measured: Record, found: Drift) -> Iterable[str]:
    """What a reader should know before trusting the errors."""
    one, other = ([op.name for op in record.ops] for record in (predicted, measured))
    for names, others, kind in ((one, other, "predicted"), (other, one, "measured")):
        alone = [name for name in names if name not in others]
        if alone:
            yield f"only in the {kind} record: {', '.join(alone)}"
    extrapolated = [op.name for op in predicted.ops if op.extrapolated]
    if extrapolated:
        yield f"predicted beyond what was calibrated: {', '.join(extrapolated)}"
    if measured.verified is not None and not measured.verified.ok:
        yield "the measured run did not verify"
    if measured.repeats < 2:
        yield "a single repeat: the noise of the measurement is not known"
    if found.total is None:
        yield "the drift of the machine is not known: both records need their reference kernels"
    if measured.options.collectives.startswith("own") and predicted.bytes_sent_total != measured.bytes_sent_total:
        yield f"bytes sent: {predicted.bytes_sent_total} predicted, {measured.bytes_sent_total} counted"
    yield from _machine_remark(predicted, measured)


def _machine_remark(predicted: Record, measured: Record) -> Iterable[str]:
    one, other = predicted.machine, measured.machine
    if one and other and one.sha256 and other.sha256 and one.sha256 != other.sha256:
        yield f"predicted for the machine {one.name} ({one.sha256[:8]}), measured on {other.name} ({other.sha256[:8]})"
