"""Machine drift: the change of a machine's speed between its calibration and a run, from reference kernels.

Three small reference kernels (a GEMM, a copy, an addition) are timed during calibration
and after every repeat of a run.  The drift comes from these kernels only, never from the
run itself:

    drift = median time of a kernel during the run / median time in the calmer half of the calibration

A predicted GEMM is multiplied by the drift of the GEMM kernel.  Every other op
(element-wise work, copies, reductions and transfers, which move memory) is multiplied by
the geometric mean of the drifts of the copy and the addition.  In an emulated network
(laboratory) communication does not drift, because token buckets keep the rates of its
links.  Between other hosts communication drifts like memory, though a network need not.
"""

from collections.abc import Iterable, Sequence
from math import prod
from statistics import median

import msgspec

from quadrille.algorithms.formats.record import OpRecord, Reference
from quadrille.algorithms.timelines.op_times import HOST_KINDS
from quadrille.experiments.compare.attribution import COMPUTE_KINDS, charged_seconds

BUSY_FACTOR = 1.5
"""Factor on the time of a reference kernel from which the machine counts as busy with other load.

The clock of a shared machine alone changes times by about a quarter
(`quadrille.runtime.measuring.reference_kernels`).
"""


class Drift(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The drift of a machine, as factors on predicted times; null if unknown.

    Parameters
    ----------
    gemm : factor of GEMMs
    memory : factor of ops that move memory
    messages : factor of communication: the factor of memory, but 1 in an emulated network
    total : factor of the makespan
    """

    gemm: float | None = None
    memory: float | None = None
    messages: float | None = None
    total: float | None = None


def drift(calibrated: Reference | None, beside: Reference | None, predicted_ops: Iterable[OpRecord]) -> Drift:
    """The drift of the machine between calibration and the run.

    The factor of the makespan is the mean of the factors of the ops, weighted
    by the time that each op adds to the makespan; waiting and idle time scale
    with the ops that cause them.

    >>> before, after = Reference((1.0,), (2.0,), (2.0,)), Reference((1.1, 1.1), (2.0, 2.2), (2.1, 2.1))
    >>> ops = [OpRecord(name="multiply", kind="gemm", seconds=3.0)]
    >>> factors = drift(before, after, ops)
    >>> round(factors.gemm, 6), round(factors.memory, 6), round(factors.total, 6)
    (1.1, 1.05, 1.1)

    Parameters
    ----------
    calibrated, beside : times of the reference kernels during calibration and during the run; not comparable if
        different numbers of ranks timed the kernels at once
    predicted_ops : entries of the predicted record
    """
    before, after = calibrated or Reference(), beside or Reference()
    if before.concurrent_ranks != after.concurrent_ranks:
        return Drift()
    gemm = _ratio(before.gemm_seconds, after.gemm_seconds)
    memory = _geometric_mean(
        _ratio(before.copy_seconds, after.copy_seconds), _ratio(before.add_seconds, after.add_seconds)
    )
    kernels = Drift(gemm, memory, 1.0 if before.concurrent_ranks else memory)
    return msgspec.structs.replace(kernels, total=_makespan_drift(kernels, list(predicted_ops)))


def drift_of_kind(drift: Drift, kind: str) -> float | None:
    """The factor on predicted times of a kind of ops; None if its reference kernel was not timed both times."""
    if kind == "gemm":
        return drift.gemm
    return drift.memory if kind in (*COMPUTE_KINDS, *HOST_KINDS) else drift.messages


def machine_was_busy(drift: Drift) -> bool:
    """Whether other load ran during calibration or the run: a kernel's times differ by a factor of `BUSY_FACTOR`.

    >>> [machine_was_busy(drift) for drift in (Drift(gemm=1.2, memory=0.9), Drift(gemm=18.9), Drift(memory=0.4))]
    [False, True, True]
    """
    return any(max(factor, 1 / factor) >= BUSY_FACTOR for factor in (drift.gemm, drift.memory) if factor)


def busy_sentence(drifts: Sequence[Drift]) -> str:
    """A sentence that says when the machine was busy, and how much slower it was; empty if it was not busy.

    >>> busy_sentence([Drift(gemm=18.86, memory=2.0)])
    'the machine was busy during these measurements: the reference product took 18.9 times as long as during \
calibration; measure again when it is idle'
    >>> busy_sentence([Drift(gemm=1.0), Drift(gemm=1.0, memory=3.0)])
    'the machine was busy during 1 of these 2 measurements: the reference copy took 3 times as long as during \
calibration; measure again when it is idle'
    >>> busy_sentence([Drift(gemm=0.5)])
    'the machine was busy during calibration: the reference product took 2 times as long as during these measurements; \
calibrate again when it is idle'
    >>> busy_sentence([Drift(gemm=1.1)])
    ''
    """
    busy = [drift for drift in drifts if machine_was_busy(drift)]
    if not busy:
        return ""
    factors = [
        (factor, kernel)
        for drift in busy
        for factor, kernel in ((drift.gemm, "product"), (drift.memory, "copy"))
        if factor
    ]
    slower, kernel = max(factors, key=lambda item: item[0])
    if slower >= BUSY_FACTOR:
        which = f"{len(busy)} of these {len(drifts)}" if len(busy) < len(drifts) else "these"
        slowdown_text = f"the reference {kernel} took {slower:.3g} times as long as during calibration"
        return f"the machine was busy during {which} measurements: {slowdown_text}; measure again when it is idle"
    faster, kernel = min(factors, key=lambda item: item[0])
    slowdown_text = f"the reference {kernel} took {1 / faster:.3g} times as long as during these measurements"
    return f"the machine was busy during calibration: {slowdown_text}; calibrate again when it is idle"


def _ratio(before: tuple[float, ...], after: tuple[float, ...]) -> float | None:
    return median(after) / median(before) if before and after else None


def _geometric_mean(*factors: float | None) -> float | None:
    """The geometric mean of the known factors."""
    values = [factor for factor in factors if factor is not None]
    return prod(values) ** (1 / len(values)) if values else None


def _makespan_drift(kernels: Drift, ops: list[OpRecord]) -> float | None:
    weights = [(charged_seconds(op), drift_of_kind(kernels, op.kind)) for op in ops]
    total = sum(weight for weight, _ in weights)
    if total <= 0:
        return None
    stretched = 0.0
    for weight, factor in weights:
        if weight > 0 and factor is None:
            return None
        stretched += weight * (factor or 0.0)
    return stretched / total
