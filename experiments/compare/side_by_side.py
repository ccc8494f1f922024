"""Compares a predicted record with a measured record: errors in total, by kind of op and by op.

    relative error = predicted / measured - 1

raw, and with the drift of the machine taken out: the predicted seconds of each
op times its factor (`quadrille.experiments.compare.drift`), the makespan times the mean factor of
its ops weighted by the seconds for which each is charged.  Beside a machine that was busy
the second error is not known: a machine that runs something else is not a slower one.
"""

from collections.abc import Callable, Iterable, Sequence

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.percentiles import Percentiles, percentiles
from quadrille.algorithms.formats.record import OpRecord, Record, interval_known
from quadrille.experiments.compare.attribution import attribute
from quadrille.experiments.compare.comparison import Both, Comparison, KindComparison, Noise, OpComparison, Times
from quadrille.experiments.compare.drift import Drift, drift, op_drift, was_busy
from quadrille.experiments.compare.problem import check_same_problem, problem

OpPair = tuple[OpRecord, OpRecord]


def compare_records(predicted: Record, measured: Record) -> Comparison:
    """The comparison of two records of one problem.

    Raises
    ------
    InputError : two records of one kind, in the wrong order or of different problems, or a measured time of 0
    """
    _check_kinds(predicted, measured)
    check_same_problem(predicted, measured)
    if measured.seconds <= 0:
        raise InputError(f"seconds = {measured.seconds} in the measured record: a time above 0 is needed")
    pairs = _pairs(predicted.ops, measured.ops)
    drifts = drift(predicted.reference, measured.reference, predicted.ops)
    removable = Drift() if was_busy(drifts) else drifts
    spread = _makespans(measured).spread if measured.repeats > 1 else None
    seconds = _times(predicted.seconds, measured.seconds, removable.total, spread)
    return Comparison(
        problem=problem(predicted),
        seconds=seconds,
        kinds=tuple(_compare_kinds(pairs, removable)),
        ops=tuple(_compare_op(*pair, removable) for pair in pairs),
        attribution_seconds=attribute(predicted.seconds - measured.seconds, pairs),
        noise=_noise(predicted, measured, seconds),
        drift=drifts,
        bytes_sent_total=Both(predicted.bytes_sent_total, measured.bytes_sent_total),
        remarks=tuple(_remarks(predicted, measured, drifts)),
    )


def relative_error(predicted: float | None, measured: float) -> float | None:
    """Predicted seconds / measured seconds - 1; None if nothing was predicted or the measured time is 0.

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
    """Each op as predicted and as measured; an op that one record lacks has count 0 and 0 seconds there."""
    predicted_ops, measured_ops = _by_name(predicted, "predicted"), _by_name(measured, "measured")
    names = [*predicted_ops, *(name for name in measured_ops if name not in predicted_ops)]
    return [
        (predicted_ops.get(name) or _absent(measured_ops[name]), measured_ops.get(name) or _absent(predicted_ops[name]))
        for name in names
    ]


def _by_name(ops: Sequence[OpRecord], kind: str) -> dict[str, OpRecord]:
    named = {op.name: op for op in ops}
    if len(named) < len(ops):
        twice = next(op.name for place, op in enumerate(ops) if op.name in {before.name for before in ops[:place]})
        raise InputError(f"op {twice!r} stands twice in the {kind} record: each name is needed once")
    return named


def _absent(op: OpRecord) -> OpRecord:
    """A record of the same op with count 0 and 0 seconds."""
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


def _compare_op(predicted: OpRecord, measured: OpRecord, drifts: Drift) -> OpComparison:
    factor = op_drift(drifts, predicted.kind)
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


def _compare_kinds(pairs: Iterable[OpPair], drifts: Drift) -> list[KindComparison]:
    kinds: dict[str, list[OpPair]] = {}
    for pair in pairs:
        kinds.setdefault(pair[0].kind, []).append(pair)
    return [_compare_kind(kind, members, op_drift(drifts, kind)) for kind, members in kinds.items()]


def _compare_kind(kind: str, members: Sequence[OpPair], factor: float | None) -> KindComparison:
    def both(quantity: Callable[[OpRecord], float]) -> Both:
        return Both(
            sum(quantity(predicted_op) for predicted_op, _ in members),
            sum(quantity(measured_op) for _, measured_op in members),
        )

    seconds = both(lambda op: op.seconds)
    return KindComparison(
        kind=kind,
        ops=len(members),
        seconds=_times(seconds.predicted, seconds.measured, factor, _spread(_summed([op for _, op in members]))),
        waiting_seconds=both(lambda op: op.waiting_seconds),
        exposed_seconds=both(lambda op: op.exposed_seconds),
    )


def _summed(ops: Sequence[OpRecord]) -> list[float]:
    """Sum of the seconds of the ops in each repeat; empty if ops have different numbers of repeats."""
    counts = {len(op.seconds_of_repeats) for op in ops if op.count}
    if len(counts) != 1:
        return []
    return [sum(repeat) for repeat in zip(*(op.seconds_of_repeats for op in ops if op.count), strict=True)]


def _spread(seconds: Sequence[float]) -> float | None:
    """Spread over the repeats; None for a single repeat and for an op that took no time."""
    repeats = percentiles(seconds) if len(seconds) > 1 else None
    return repeats.spread if repeats is not None and repeats.median > 0 else None


def _makespans(measured: Record) -> Percentiles:
    """Percentiles of the makespan [s], from the repeats, or from the record if it has no repeats."""
    if measured.seconds_of_repeats:
        return percentiles(measured.seconds_of_repeats)
    return Percentiles(measured.seconds_low, measured.seconds, measured.seconds_high)


def _noise(predicted: Record, measured: Record, seconds: Times) -> Noise:
    makespans = _makespans(measured)

    def within(time: float | None) -> bool | None:
        return None if time is None or measured.repeats < 2 else makespans.low <= time <= makespans.high

    return Noise(
        repeats=measured.repeats,
        median_seconds=makespans.median,
        low_seconds=makespans.low,
        high_seconds=makespans.high,
        spread=seconds.spread,
        within_noise=within(seconds.predicted),
        within_noise_drift_removed=within(seconds.predicted_drift_removed),
        predicted_low_seconds=predicted.seconds_low,
        predicted_high_seconds=predicted.seconds_high,
        interval_holds_measurement=interval_known(predicted.seconds_low, predicted.seconds_high)
        and predicted.seconds_low <= measured.seconds <= predicted.seconds_high,
    )


def _remarks(predicted: Record, measured: Record, drifts: Drift) -> Iterable[str]:
    """What a reader should know before trusting the errors."""
    predicted_names, measured_names = ([op.name for op in record.ops] for record in (predicted, measured))
    for names, others, kind in (
        (predicted_names, measured_names, "predicted"),
        (measured_names, predicted_names, "measured"),
    ):
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
    if drifts.total is None:
        yield "the drift of the machine is not known: both records need their reference kernels"
    if _all_own(measured) and predicted.bytes_sent_total != measured.bytes_sent_total:
        yield f"bytes sent: {predicted.bytes_sent_total} predicted, {measured.bytes_sent_total} counted"
    yield from _machine_remark(predicted, measured)


def _all_own(measured: Record) -> bool:
    """Whether all collectives were our own, so that their bytes were counted."""
    by_op = [collective.chosen for collective in (measured.collectives or {}).values()]
    return all(name.startswith(("own", "auto")) for name in (measured.options.collectives, *by_op))


def _machine_remark(predicted: Record, measured: Record) -> Iterable[str]:
    predicted_machine, measured_machine = predicted.machine, measured.machine
    if (
        predicted_machine
        and measured_machine
        and predicted_machine.sha256
        and measured_machine.sha256
        and predicted_machine.sha256 != measured_machine.sha256
    ):
        measured_on = f"{measured_machine.name} ({measured_machine.sha256[:8]})"
        predicted_for = f"{predicted_machine.name} ({predicted_machine.sha256[:8]})"
        yield f"predicted for the machine {predicted_for}, measured on {measured_on}"
