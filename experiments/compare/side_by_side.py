"""A predicted record held against a measured one: errors in total, by kind of op and by op.

    relative error = predicted / measured - 1

raw, and with the drift of the machine taken out: the predicted seconds of each
op times its factor (`quadrille.experiments.compare.drift`), the makespan times the mean factor of
its ops weighted by the seconds for which each is charged.
"""

from collections.abc import Callable, Iterable, Sequence

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.percentiles import Percentiles, percentiles
from quadrille.algorithms.formats.record import OpRecord, Record
from quadrille.experiments.compare.attribution import attribute
from quadrille.experiments.compare.comparison import Both, Comparison, KindComparison, Noise, OpComparison, Times
from quadrille.experiments.compare.drift import Drift, drift, op_drift
from quadrille.experiments.compare.problem import check_same_problem, problem

OpPair = tuple[OpRecord, OpRecord]


def compare_records(predicted: Record, measured: Record) -> Comparison:
    """The comparison of two records of one problem.

    Raises
    ------
    InputError : two of the same kind, in the wrong order, of different problems, or a measurement of no time
    """
    _check_kinds(predicted, measured)
    check_same_problem(predicted, measured)
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
    if _all_own(measured) and predicted.bytes_sent_total != measured.bytes_sent_total:
        yield f"bytes sent: {predicted.bytes_sent_total} predicted, {measured.bytes_sent_total} counted"
    yield from _machine_remark(predicted, measured)


def _all_own(measured: Record) -> bool:
    """Whether all collectives were ours, so that bytes were counted."""
    by_op = [one.chosen for one in (measured.collectives or {}).values()]
    return all(name.startswith(("own", "auto")) for name in (measured.options.collectives, *by_op))


def _machine_remark(predicted: Record, measured: Record) -> Iterable[str]:
    one, other = predicted.machine, measured.machine
    if one and other and one.sha256 and other.sha256 and one.sha256 != other.sha256:
        yield f"predicted for the machine {one.name} ({one.sha256[:8]}), measured on {other.name} ({other.sha256[:8]})"
