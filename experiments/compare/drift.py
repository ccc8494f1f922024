"""How much faster or slower the machine was while it was measured than while it was calibrated.

The same small kernels (a GEMM, a copy, an addition) are timed beside
calibration and beside every repeat of a run; only they are used here, never
the run itself:

    drift = median seconds beside the run / median seconds of the calm half beside calibration

A predicted op takes the drift of the kernel that it resembles: a GEMM that of
the GEMM, all else (element-wise work, copies, reductions and transfers, which
move memory) the geometric mean of those of the copy and the addition.  In a
laboratory communication takes as long as it did: its links keep their rates.
Between other hosts it is treated as all else, though a network need not drift
with memory.
"""

from collections.abc import Iterable, Sequence
from math import prod
from statistics import median

import msgspec

from quadrille.algorithms.formats.record import OpRecord, Reference
from quadrille.experiments.compare.attribution import ON_COMPUTE_LANE, charged_seconds

BUSY = 1.5
"""A reference kernel that takes this many times as long shares its core with something else.

The clock of a shared machine changes by about a quarter (`quadrille.runtime.measuring.reference_kernels`).
"""


class Drift(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factors on predicted seconds; null if not known.

    Parameters
    ----------
    gemm : factor of GEMMs
    memory : factor of ops that move memory
    messages : factor of communication: the factor of memory, but 1 in a laboratory
    total : factor of the makespan
    """

    gemm: float | None = None
    memory: float | None = None
    messages: float | None = None
    total: float | None = None


def drift(calibrated: Reference | None, beside: Reference | None, predicted_ops: Iterable[OpRecord]) -> Drift:
    """Drift of the machine between calibration and the run.

    The factor of the makespan is the mean of the factors of the ops, weighted
    by the seconds for which each is charged; waiting and idle time stretch
    with the ops that cause them.

    >>> before, after = Reference((1.0,), (2.0,), (2.0,)), Reference((1.1, 1.1), (2.0, 2.2), (2.1, 2.1))
    >>> ops = [OpRecord(name="multiply", kind="gemm", seconds=3.0)]
    >>> factors = drift(before, after, ops)
    >>> round(factors.gemm, 6), round(factors.memory, 6), round(factors.total, 6)
    (1.1, 1.05, 1.1)

    Parameters
    ----------
    calibrated, beside : kernel times; not comparable if different numbers of ranks timed the kernels at once
    """
    before, after = calibrated or Reference(), beside or Reference()
    if before.concurrent_ranks != after.concurrent_ranks:
        return Drift()
    gemm = _ratio(before.gemm_seconds, after.gemm_seconds)
    memory = _mean(_ratio(before.copy_seconds, after.copy_seconds), _ratio(before.add_seconds, after.add_seconds))
    kernels = Drift(gemm, memory, 1.0 if before.concurrent_ranks else memory)
    return msgspec.structs.replace(kernels, total=_weighted(kernels, list(predicted_ops)))


def op_drift(drift: Drift, kind: str) -> float | None:
    """The factor on predicted seconds of ops of this kind; none where its kernel was not timed on both sides."""
    if kind == "gemm":
        return drift.gemm
    return drift.memory if kind in ON_COMPUTE_LANE else drift.messages


def was_busy(drift: Drift) -> bool:
    """Whether something else ran during calibration or the run: a reference kernel took `BUSY` times as long.

    >>> was_busy(Drift(gemm=1.2, memory=0.9)), was_busy(Drift(gemm=18.9)), was_busy(Drift(memory=0.4))
    (False, True, True)
    """
    return any(max(factor, 1 / factor) >= BUSY for factor in (drift.gemm, drift.memory) if factor)


def busy_sentence(drifts: Sequence[Drift]) -> str:
    """One sentence that says when the machine was busy, and how much slower it was; empty if it was idle.

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
    busy = [drift for drift in drifts if was_busy(drift)]
    if not busy:
        return ""
    factors = [
        (factor, kernel)
        for drift in busy
        for factor, kernel in ((drift.gemm, "product"), (drift.memory, "copy"))
        if factor
    ]
    slower, kernel = max(factors, key=lambda item: item[0])
    if slower >= BUSY:
        which = f"{len(busy)} of these {len(drifts)}" if len(busy) < len(drifts) else "these"
        took = f"the reference {kernel} took {slower:.3g} times as long as during calibration"
        return f"the machine was busy during {which} measurements: {took}; measure again when it is idle"
    faster, kernel = min(factors, key=lambda item: item[0])
    took = f"the reference {kernel} took {1 / faster:.3g} times as long as during these measurements"
    return f"the machine was busy during calibration: {took}; calibrate again when it is idle"


def _ratio(before: tuple[float, ...], after: tuple[float, ...]) -> float | None:
    return median(after) / median(before) if before and after else None


def _mean(*factors: float | None) -> float | None:
    """The geometric mean of the known factors."""
    values = [factor for factor in factors if factor is not None]
    return prod(values) ** (1 / len(values)) if values else None


def _weighted(kernels: Drift, ops: list[OpRecord]) -> float | None:
    weights = [(charged_seconds(op), op_drift(kernels, op.kind)) for op in ops]
    total = sum(weight for weight, _ in weights)
    if total <= 0:
        return None
    stretched = 0.0
    for weight, factor in weights:
        if weight > 0 and factor is None:
            return None
        stretched += weight * (factor or 0.0)
    return stretched / total
