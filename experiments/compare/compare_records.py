"""`compare_records`: the errors of a predicted record against a measured record, in total, by kind of op and by op.

    relative error = predicted / measured - 1

The error is given raw and with the drift of the machine removed.  To remove the drift, the
predicted time of each op is multiplied by the op's drift factor
(`quadrille.experiments.compare.drift`), and the makespan by the factor of the makespan.  If
the machine was busy with other load, the second error is unknown, because other load slows
ops by different factors.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec import UNSET

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.percentiles import Percentiles, percentiles
from quadrille.algorithms.formats.record import OpRecord, Record, interval_known
from quadrille.algorithms.timelines.pass_orders import first_difference
from quadrille.experiments.compare.attribution import attribute
from quadrille.experiments.compare.comparison import (
    Comparison,
    KindComparison,
    Noise,
    OpComparison,
    PassOrders,
    PredictedAndMeasured,
    Times,
)
from quadrille.experiments.compare.drift import Drift, drift, drift_of_kind, machine_was_busy
from quadrille.experiments.compare.problem import check_same_problem, problem_of

OpPair = tuple[OpRecord, OpRecord]


def compare_records(predicted: Record, measured: Record) -> Comparison:
    """The comparison of a predicted and a measured record of one problem.

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
    removable = Drift() if machine_was_busy(drifts) else drifts
    spread = _makespans(measured).spread if measured.repeats > 1 else None
    seconds = _times(predicted.seconds, measured.seconds, removable.total, spread)
    return Comparison(
        problem=problem_of(predicted),
        seconds=seconds,
        kinds=tuple(_compare_kinds(pairs, removable)),
        ops=tuple(_compare_op(*pair, removable) for pair in pairs),
        attribution_seconds=attribute(predicted.seconds - measured.seconds, pairs),
        noise=_noise(predicted, measured, seconds),
        drift=drifts,
        bytes_sent_total=PredictedAndMeasured(predicted.bytes_sent_total, measured.bytes_sent_total),
        pass_orders=tuple(_pass_orders(predicted, measured)),
        remarks=tuple(_remarks(predicted, measured, drifts)),
    )


def _pass_orders(predicted: Record, measured: Record) -> Iterable[PassOrders]:
    """The orders of passes of both records, where messages decided them."""
    if predicted.pass_orders is UNSET or measured.pass_orders is UNSET:
        return
    for stage, (before, after) in enumerate(zip(predicted.pass_orders, measured.pass_orders, strict=False)):
        yield PassOrders(stage, before, after, first_difference(before, after))


def relative_error(predicted: float | None, measured: float) -> float | None:
    """The relative error, predicted / measured - 1; None if nothing was predicted or the measured time is 0.

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
        (
            predicted_ops.get(name) or _absent_op(measured_ops[name]),
            measured_ops.get(name) or _absent_op(predicted_ops[name]),
        )
        for name in names
    ]


def _by_name(ops: Sequence[OpRecord], kind: str) -> dict[str, OpRecord]:
    named = {op.name: op for op in ops}
    if len(named) < len(ops):
        twice = next(op.name for place, op in enumerate(ops) if op.name in {before.name for before in ops[:place]})
        raise InputError(f"op {twice!r} stands twice in the {kind} record: each name is needed once")
    return named


def _absent_op(op: OpRecord) -> OpRecord:
    """An entry of the same op with count 0 and 0 seconds, for the record that lacks the op."""
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
    factor = drift_of_kind(drifts, predicted.kind)
    return OpComparison(
        name=predicted.name,
        kind=predicted.kind,
        axis=predicted.axis,
        algorithm=predicted.algorithm or measured.algorithm,
        count=max(predicted.count, measured.count),
        seconds=_times(predicted.seconds, measured.seconds, factor, _spread(measured.seconds_of_repeats)),
        waiting_seconds=PredictedAndMeasured(predicted.waiting_seconds, measured.waiting_seconds),
        exposed_seconds=PredictedAndMeasured(predicted.exposed_seconds, measured.exposed_seconds),
        extrapolated=predicted.extrapolated,
    )


def _compare_kinds(pairs: Iterable[OpPair], drifts: Drift) -> list[KindComparison]:
    kinds: dict[str, list[OpPair]] = {}
    for pair in pairs:
        kinds.setdefault(pair[0].kind, []).append(pair)
    return [_compare_kind(kind, members, drift_of_kind(drifts, kind)) for kind, members in kinds.items()]


def _compare_kind(kind: str, members: Sequence[OpPair], factor: float | None) -> KindComparison:
    def sum_over_ops(quantity: Callable[[OpRecord], float]) -> PredictedAndMeasured:
        return PredictedAndMeasured(
            sum(quantity(predicted_op) for predicted_op, _ in members),
            sum(quantity(measured_op) for _, measured_op in members),
        )

    seconds = sum_over_ops(lambda op: op.seconds)
    return KindComparison(
        kind=kind,
        ops=len(members),
        seconds=_times(
            seconds.predicted, seconds.measured, factor, _spread(_seconds_of_repeats([op for _, op in members]))
        ),
        waiting_seconds=sum_over_ops(lambda op: op.waiting_seconds),
        exposed_seconds=sum_over_ops(lambda op: op.exposed_seconds),
    )


def _seconds_of_repeats(ops: Sequence[OpRecord]) -> list[float]:
    """The sum of the times of the ops in each repeat [s]; empty if ops have different numbers of repeats."""
    counts = {len(op.seconds_of_repeats) for op in ops if op.count}
    if len(counts) != 1:
        return []
    return [sum(repeat) for repeat in zip(*(op.seconds_of_repeats for op in ops if op.count), strict=True)]


def _spread(seconds: Sequence[float]) -> float | None:
    """The spread over the repeats; None for a single repeat and for an op that took no time."""
    repeats = percentiles(seconds) if len(seconds) > 1 else None
    return repeats.spread if repeats is not None and repeats.median > 0 else None


def _makespans(measured: Record) -> Percentiles:
    """Percentiles of the makespan [s], from the repeats, or from the record if it has no repeats."""
    if measured.seconds_of_repeats:
        return percentiles(measured.seconds_of_repeats)
    return Percentiles(measured.seconds_low, measured.seconds, measured.seconds_high)


def _noise(predicted: Record, measured: Record, seconds: Times) -> Noise:
    makespans = _makespans(measured)

    def is_within(time: float | None) -> bool | None:
        return None if time is None or measured.repeats < 2 else makespans.low <= time <= makespans.high

    return Noise(
        repeats=measured.repeats,
        median_seconds=makespans.median,
        low_seconds=makespans.low,
        high_seconds=makespans.high,
        spread=seconds.spread,
        within_noise=is_within(seconds.predicted),
        within_noise_drift_removed=is_within(seconds.predicted_drift_removed),
        predicted_low_seconds=predicted.seconds_low,
        predicted_high_seconds=predicted.seconds_high,
        interval_holds_measurement=interval_known(predicted.seconds_low, predicted.seconds_high)
        and predicted.seconds_low <= measured.seconds <= predicted.seconds_high,
    )


def _remarks(predicted: Record, measured: Record, drifts: Drift) -> Iterable[str]:
    """Remarks about limits of the comparison: missing ops, extrapolation, noise, drift, bytes and machines."""
    predicted_names, measured_names = ([op.name for op in record.ops] for record in (predicted, measured))
    for names, others, kind in (
        (predicted_names, measured_names, "predicted"),
        (measured_names, predicted_names, "measured"),
    ):
        names_without_partner = [name for name in names if name not in others]
        if names_without_partner:
            yield f"only in the {kind} record: {', '.join(names_without_partner)}"
    extrapolated = [op.name for op in predicted.ops if op.extrapolated]
    if extrapolated:
        yield f"extrapolated beyond the calibration: {', '.join(extrapolated)}"
    if measured.verified is not None and not measured.verified.ok:
        yield "the measured run did not verify"
    if measured.repeats < 2:
        yield "a single repeat: the noise of the measurement is not known"
    if drifts.total is None:
        yield "the drift of the machine is not known: both records need their reference kernels"
    if _only_own_collectives(measured) and predicted.bytes_sent_total != measured.bytes_sent_total:
        yield f"bytes sent: {predicted.bytes_sent_total} predicted, {measured.bytes_sent_total} counted"
    yield from _machine_remark(predicted, measured)


def _only_own_collectives(measured: Record) -> bool:
    """Whether all collectives were Quadrille's own, so that their bytes were counted."""
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
